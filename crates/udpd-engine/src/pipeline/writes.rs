//! Who writes what. A file, and standard output, has one writer at any time, also while one sink takes the place of
//! another.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::config::{Config, SinkConfig};
use crate::plan::PipelinePlan;
use udpd_base::sink::settings::SinkTarget;

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
    /// Nobody waits for it any more.
    pub(super) is_given_up: bool,
}

impl Writes {
    /// Of a sink of this plan.
    pub(super) fn of(config: &Config, plan: &PipelinePlan, sink: usize) -> Self {
        let files = files_by_consumer(config, plan, sink).into_iter().map(|(_, file)| file).collect();
        let settings = &config.sinks[sink].settings;
        let spill = settings.spill().map(|spill| spill.path.to_owned());
        Self { files, standard_output: settings.target() == SinkTarget::Stdout, spill }
    }

    /// Whether there is something that both write.
    pub(super) fn overlap(&self, other: &Self) -> bool {
        let standard_output = self.standard_output && other.standard_output;
        let spill = self.spill.is_some() && self.spill == other.spill;
        standard_output || spill || !self.files.is_disjoint(&other.files)
    }
}

/// Which files each consumer of a sink writes.
pub(super) fn files_by_consumer(config: &Config, plan: &PipelinePlan, sink: usize) -> BTreeSet<(usize, String)> {
    let SinkConfig { name, settings, .. } = &config.sinks[sink];
    let SinkTarget::Files(path) = settings.target() else { return BTreeSet::new() };
    let file = |feeder: &crate::config::feeders::Feeder| (feeder.consumer, feeder.file(&config.listeners, name, path));
    plan.sinks[sink].feeders.iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_common_to_who_writes_it_and_to_nobody_else() {
        let writes = |file: &str| Writes { files: [file.to_owned()].into(), ..Writes::default() };
        assert!(writes("/a.log").overlap(&writes("/a.log")));
        assert!(!writes("/a.log").overlap(&writes("/b.log")));
    }

    #[test]
    fn two_sinks_have_standard_output_in_common_without_a_file() {
        let standard = Writes { standard_output: true, ..Writes::default() };
        assert!(standard.overlap(&standard));
        assert!(!standard.overlap(&Writes::default()) && !Writes::default().overlap(&Writes::default()));
    }
}
