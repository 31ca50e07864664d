//! `--real-sinks`: the sinks as they are configured, on purpose. What they will touch is said before anything does, and
//! what would cost somebody data is refused.

use super::files::{self, Disk, FREE_MIN_BYTES};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::sink::settings::SinkTarget;
use udpd_engine::config::{Config, SinkConfig};
use udpd_engine::plan::PipelinePlan;
use udpd_file::{FileSettings, Keep};

/// What the sinks will touch, in words, and the disks that have to be watched meanwhile.
pub(super) fn touched(config: &Config, plan: &PipelinePlan) -> Result<(Vec<String>, Vec<Disk>), Failure> {
    let (mut lines, mut disks) = (Vec::new(), Vec::new());
    for (sink, planned) in config.sinks.iter().zip(&plan.sinks) {
        let what = match sink.settings.target() {
            SinkTarget::Nowhere => continue,
            SinkTarget::Files(path) => {
                let paths = planned.files(&config.listeners, &sink.name, path);
                disks.push(check(sink, path, paths.iter())?);
                format!(
                    "writes {}, and leaves there what it has written",
                    paths.into_iter().collect::<Vec<_>>().join(", ")
                )
            }
            SinkTarget::Peers(peers) => {
                let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
                format!("sends all trials to {}", peers.join(", "))
            }
            SinkTarget::Elsewhere(place) => format!("sends all trials to {place}"),
            SinkTarget::Stdout => {
                let text = "the report goes to standard output; measure without --real-sinks, which writes to a pipe";
                return Err(refuse(sink, text));
            }
        };
        lines.push(format!("sink {} is real: it {what}", sink.name));
    }
    Ok((lines, disks))
}

fn check<'a>(sink: &SinkConfig, pattern: &str, paths: impl Iterator<Item = &'a String>) -> Result<Disk, Failure> {
    if sink.settings.of_type::<FileSettings>().is_some_and(|file| file.keep != Keep::ALL) {
        let text = "its keep would remove files that were there before; measure without --real-sinks, or without keep";
        return Err(refuse(sink, text));
    }
    if let Some(path) = paths.filter_map(|path| files::existing(path)).next() {
        let text = format!(
            "{} exists already, and trials would be appended to it; measure without --real-sinks",
            path.display()
        );
        return Err(refuse(sink, &text));
    }
    let (directory, _) = files::split(pattern);
    let place = files::ground(&directory);
    let free = files::free_bytes(place).unwrap_or(0);
    if free < FREE_MIN_BYTES {
        let text =
            format!("sink {}: only {} MiB are free in {}; free some space", sink.name, free >> 20, place.display());
        return Err(Failure::new(ExitCode::Disk, text));
    }
    Ok(Disk::new(place, None, free))
}

fn refuse(sink: &SinkConfig, why: &str) -> Failure {
    Failure::new(ExitCode::Usage, format!("--real-sinks: sink {}: {why}", sink.name))
}
