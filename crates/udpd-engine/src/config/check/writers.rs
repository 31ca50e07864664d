//! Who writes to which file. Two writers of one file would tear each other's records and close each other's ledger, so
//! no file and no standard output may have more than one. Who writes is known from the listeners: each lane feeds one
//! consumer of each sink.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::config::feeders::LaneFeeds;
use crate::config::file::sinks::SinkPart;
use crate::config::sinks::{ConsumerCount, SinkConfig};
use udpd_base::os::paths;
use udpd_base::settings::{Findings, WrittenKeys};
use udpd_base::sink::settings::SinkTarget;
use udpd_file::template;

/// When a file is compared with others, the files of this many lanes are looked at: more than any machine runs.
const LANES_COMPARED_MAX: usize = 4096;

/// The files that the sink may write, as far as they are compared.
pub(super) fn files_of(index: usize, sink: &SinkConfig, feeders: &LaneFeeds<'_>) -> BTreeSet<PathBuf> {
    let SinkTarget::Files(path) = sink.settings.target() else { return BTreeSet::new() };
    let lanes = feeders.of_sink(index, sink.consumers).take(LANES_COMPARED_MAX);
    let mut files: BTreeSet<String> = lanes.map(|lane| lane.file(feeders.listeners(), &sink.name, path)).collect();
    if files.is_empty() {
        // Nobody feeds it yet; it is still wrong if another sink has the same path.
        files.insert(path.to_owned());
    }
    files.iter().map(|file| paths::tidy(Path::new(file))).collect()
}

/// Refuses every file and every standard output with more than one writer.
pub(super) fn check(parts: &[SinkPart<'_>], feeders: &LaneFeeds<'_>, findings: &mut Findings<'_>) {
    let mut stdout: Option<&str> = None;
    let mut files: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for (index, SinkPart { sink, written, .. }) in parts.iter().enumerate() {
        let Some(sink) = sink else { continue };
        match sink.settings.target() {
            SinkTarget::Nowhere | SinkTarget::Peers(_) | SinkTarget::Elsewhere(_) => {}
            SinkTarget::Stdout => {
                if let Some(other) = stdout.replace(&sink.name) {
                    let what = format!("sink {other:?} writes to standard output already, and lines of both would mix");
                    let place = written.place("type").unwrap_or_else(|| written.place.clone());
                    findings.say(&place, what, "let the listeners share that sink, or write one of them to a file");
                }
                check_stdout_consumers(written, sink, findings);
            }
            SinkTarget::Files(path) => {
                let clean = check_own_files(written, index, sink, path, feeders, findings);
                let own = if clean { files_of(index, sink, feeders) } else { BTreeSet::new() };
                let mut taken = None;
                for path in own {
                    check_expanded(written, &path, findings);
                    if let Some(other) = files.insert(paths::resolve(&path), &sink.name) {
                        taken = taken.or(Some((path, other)));
                    }
                }
                if let (Some((path, other)), Some(place)) = (taken, written.place("path")) {
                    let what = format!("sink {other:?} writes {}, too", path.display());
                    findings.say(&place, what, "give each sink its own file; {sink} in the path does that");
                }
            }
        }
    }
}

fn check_stdout_consumers(written: &WrittenKeys<'_>, sink: &SinkConfig, findings: &mut Findings<'_>) {
    let one = ConsumerCount::Count(NonZeroUsize::MIN);
    if let (Some(place), false) = (written.place("consumers"), sink.consumers == one) {
        let what = "several consumers would mix their lines on standard output";
        findings.say(&place, what, "write consumers = 1, or use a sink of type \"file\" with {consumer} in its path");
    }
}

/// A path that is a file as a template may be a directory once its names are filled in.
fn check_expanded(written: &WrittenKeys<'_>, path: &Path, findings: &mut Findings<'_>) {
    if let (true, Some(place)) = (path.is_dir(), written.place("path")) {
        let what = format!("{} is a directory", path.display());
        findings.say(&place, what, "name a file in it, such as one ending in .log");
    }
}

/// False when several consumers of the sink would write one file.
fn check_own_files(
    written: &WrittenKeys<'_>,
    index: usize,
    sink: &SinkConfig,
    path: &str,
    feeders: &LaneFeeds<'_>,
    findings: &mut Findings<'_>,
) -> bool {
    // A number that is written holds whatever number of lanes there is.
    let consumers = match sink.consumers {
        ConsumerCount::Count(count) => count.get(),
        ConsumerCount::PerLane => feeders.consumers(index, sink.consumers),
    };
    if consumers <= 1 || template::has(path, "consumer") {
        return true;
    }
    // Lanes are numbered within their listener, so a lane alone tells two writers apart only when one listener feeds.
    let listeners = feeders.listeners_of(index).count();
    if template::has(path, "lane") && (listeners <= 1 || template::has(path, "listener")) {
        return true;
    }
    let Some(place) = written.place("path") else { return true };
    let what = format!("{consumers} consumers would write the same file");
    let cure = match template::has(path, "lane") {
        true => "put {consumer} into the path, or {listener} beside {lane}, because lanes are numbered per listener",
        false => "put {consumer} or {lane} into the path, or write consumers = 1",
    };
    findings.say(&place, what, cure);
    false
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, HostView};

    /// What is said of a listener on an interface that does not tell its queues, and that needs two lanes for its rate.
    fn said(path: &str) -> String {
        let hidden = tempfile::tempdir().expect("a directory");
        let host = HostView { sys_root: hidden.path().to_owned(), ..HostView::default() };
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5514\"\ninterface = \"eth7\"\n\
             absorb = {{ rate = 500001 }}\nsinks = [\"out\"]\n\
             [sink.out]\ntype = \"file\"\npath = \"{path}\"\nconsumers = \"per_lane\"\n"
        );
        Config::parse(&text, "in.toml", &host).map_or_else(|problems| problems.to_string(), |_| "accepted".to_owned())
    }

    #[test]
    fn an_interface_that_hides_its_queues_gets_the_lanes_of_its_rate_and_none_shares_a_file() {
        let refused =
            "in.toml:9:8: sink.out.path: 2 consumers would write the same file; put {consumer} or {lane} into";
        assert!(said("/tmp/x.log").contains(refused), "{}", said("/tmp/x.log"));
        assert_eq!(said("/tmp/{lane}.log"), "accepted");
    }
}
