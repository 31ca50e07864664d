//! Who writes what. A file, and standard output, has one writer at any time, also while one sink takes the place of
//! another.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use super::entry::Ended;
use crate::config::{Config, Sink};
use crate::os::crew;
use crate::plan::Plan;
use crate::sink::settings::Target;

/// What a sink writes and nobody else may write meanwhile.
#[derive(Debug, Clone, Default)]
pub(super) struct Writes {
    files: BTreeSet<String>,
    standard_output: bool,
    spill: Option<PathBuf>,
}

/// A consumer of an earlier pipeline that has yet to finish.
#[derive(Debug)]
pub(super) struct Finishing {
    /// The name of its sink.
    pub(super) sink: String,
    pub(super) writes: Writes,
    pub(super) ended: Ended,
}

impl Finishing {
    /// Whether it has finished by then.
    pub(super) fn ends_before(&self, deadline: Instant) -> bool {
        crew::at_rest(|| self.ended.recv_deadline(deadline)).is_err_and(|error| !error.is_timeout())
    }
}

impl Writes {
    /// Of a sink of this plan.
    pub(super) fn of(config: &Config, plan: &Plan, sink: usize) -> Self {
        let files = files_by_consumer(config, plan, sink).into_iter().map(|(_, file)| file).collect();
        let settings = &config.sinks[sink].settings;
        let spill = settings.spill().and_then(|spill| spill.path.clone());
        Self { files, standard_output: settings.target() == Target::Stdout, spill }
    }

    /// What both write, for the log.
    pub(super) fn in_common(&self, other: &Self) -> Option<String> {
        if self.standard_output && other.standard_output {
            return Some("standard output".to_owned());
        }
        if let Some(spill) = self.spill.as_ref().filter(|_| self.spill == other.spill) {
            return Some(format!("the spill {}", spill.display()));
        }
        self.files.intersection(&other.files).next().map(|file| format!("its file {file}"))
    }
}

/// Which files each consumer of a sink writes.
pub(super) fn files_by_consumer(config: &Config, plan: &Plan, sink: usize) -> BTreeSet<(usize, String)> {
    let Sink { name, settings, .. } = &config.sinks[sink];
    let Target::Files(path) = settings.target() else { return BTreeSet::new() };
    let file = |feeder: &crate::config::feeders::Feeder| (feeder.consumer, feeder.file(&config.listeners, name, path));
    plan.sinks[sink].feeders.iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_common_to_who_writes_it_and_to_nobody_else() {
        let writes = |file: &str| Writes { files: [file.to_owned()].into(), ..Writes::default() };
        assert_eq!(writes("/a.log").in_common(&writes("/a.log")), Some("its file /a.log".to_owned()));
        assert_eq!(writes("/a.log").in_common(&writes("/b.log")), None);
    }

    #[test]
    fn two_sinks_have_standard_output_in_common_without_a_file() {
        let standard = Writes { standard_output: true, ..Writes::default() };
        assert_eq!(standard.in_common(&standard), Some("standard output".to_owned()));
        assert_eq!(standard.in_common(&Writes::default()), None);
    }
}
