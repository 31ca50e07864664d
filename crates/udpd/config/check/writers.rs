//! Who writes to which file. Two writers of one file would tear each other's records and close each other's ledger, so
//! no file and no standard output may have more than one. Who writes is known from the listeners: each lane feeds one
//! consumer of each sink.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::feeding;
use super::own_files;
use super::paths;
use crate::config::file::raw_sink::RawSink;
use crate::config::file::reader::Report;
use crate::config::host::Host;
use crate::config::{Consumers, FileSink, Lanes, Listener, Sink, SinkKind};
use crate::sink::file::template::{self, Names};

/// What one socket's receiver takes on one core; the number of lanes that "auto" means follows from it.
const LANE_RATE: u64 = 500_000;

/// When a file is compared with others, this many of its expansions are looked at.
const FILES_COMPARED_MAX: usize = 4096;

/// Who feeds each sink, with how many lanes.
#[derive(Debug)]
pub(crate) struct Feeds<'l> {
    listeners: &'l [Listener],
    host: &'l Host,
}

impl<'l> Feeds<'l> {
    pub(crate) fn new(listeners: &'l [Listener], host: &'l Host) -> Self {
        Self { listeners, host }
    }

    /// How many lanes the listener gets at most.
    fn lanes(&self, listener: &Listener) -> usize {
        let each = match (listener.lanes, &listener.interface) {
            (Lanes::Count(count), _) => count.get(),
            (Lanes::Auto, Some(interface)) => self.host.receive_queues(interface),
            (Lanes::Auto, None) => usize::try_from(listener.absorb.rate.div_ceil(LANE_RATE)).unwrap_or(1),
        };
        each.saturating_mul(listener.addresses.len())
    }

    /// How many consumers the sink has at most.
    fn consumers(&self, index: usize, sink: &Sink) -> usize {
        match sink.consumers {
            Consumers::Count(count) => count.get(),
            Consumers::PerLane => feeding(self.listeners, index).map(|listener| self.lanes(listener)).sum(),
        }
    }

    /// The files that the sink may write, as far as they are compared.
    pub(crate) fn files_of(&self, index: usize, sink: &Sink) -> BTreeSet<PathBuf> {
        let mut files = BTreeSet::new();
        let SinkKind::File(FileSink { path, .. }) = &sink.kind else { return files };
        let count = |placeholder: &str, count: usize| if template::has(path, placeholder) { count.max(1) } else { 1 };
        let consumers = count("consumer", self.consumers(index, sink));
        for listener in feeding(self.listeners, index) {
            for lane in 0..count("lane", self.lanes(listener)) {
                for consumer in 0..consumers {
                    if files.len() == FILES_COMPARED_MAX {
                        return files;
                    }
                    let names = Names { listener: &listener.name, lane, consumer, sink: &sink.name };
                    files.insert(paths::tidy(Path::new(&template::expand(path, &names))));
                }
            }
        }
        if files.is_empty() {
            // Nobody feeds it yet; it is still wrong if another sink has the same path.
            files.insert(paths::tidy(Path::new(path)));
        }
        files
    }
}

/// Refuses every file and every standard output with more than one writer.
pub(crate) fn check(raw: &[RawSink], sinks: &[Option<Sink>], feeds: &Feeds<'_>, report: &mut Report<'_>) {
    let mut stdout: Option<&str> = None;
    let mut files: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for (index, (raw, sink)) in raw.iter().zip(sinks).enumerate() {
        let Some(sink) = sink else { continue };
        match &sink.kind {
            SinkKind::Null | SinkKind::Udp(_) | SinkKind::Unix(_) | SinkKind::Kafka(_) | SinkKind::Supplied => {}
            SinkKind::Stdout(_) => {
                let place = raw.kind.get().map_or(&raw.place, |kind| &kind.place);
                if let Some(other) = stdout.replace(&sink.name) {
                    let what = format!("sink {other:?} writes to standard output already, and lines of both would mix");
                    report.say(place, what, "let the listeners share that sink, or write one of them to a file");
                }
                check_stdout_consumers(raw, sink, report);
            }
            SinkKind::File(file) => {
                let clean = check_own_files(raw, index, sink, &file.path, feeds, report);
                let own = if clean { feeds.files_of(index, sink) } else { BTreeSet::new() };
                let mut taken = None;
                for path in own {
                    check_expanded(raw, &path, report);
                    if let Some(other) = files.insert(own_files::resolve(&path), &sink.name) {
                        taken = taken.or(Some((path, other)));
                    }
                }
                if let (Some((path, other)), Some(place)) = (taken, raw.path.get()) {
                    let what = format!("sink {other:?} writes {}, too", path.display());
                    report.say(&place.place, what, "give each sink its own file; {sink} in the path does that");
                }
            }
        }
    }
}

fn check_stdout_consumers(raw: &RawSink, sink: &Sink, report: &mut Report<'_>) {
    let one = Consumers::Count(NonZeroUsize::MIN);
    if let (Some(written), false) = (raw.consumers.get(), sink.consumers == one) {
        let what = "several consumers would mix their lines on standard output";
        report.say(
            &written.place,
            what,
            "write consumers = 1, or use a sink of type \"file\" with {consumer} in its path",
        );
    }
}

/// A path that is a file as a template may be a directory once its names are filled in.
fn check_expanded(raw: &RawSink, path: &Path, report: &mut Report<'_>) {
    if let (true, Some(written)) = (path.is_dir(), raw.path.get()) {
        let what = format!("{} is a directory", path.display());
        report.say(&written.place, what, "name a file in it, such as one ending in .log");
    }
}

/// False when several consumers of the sink would write one file.
fn check_own_files(
    raw: &RawSink,
    index: usize,
    sink: &Sink,
    path: &str,
    feeds: &Feeds<'_>,
    report: &mut Report<'_>,
) -> bool {
    let consumers = feeds.consumers(index, sink);
    if consumers <= 1 || template::has(path, "consumer") {
        return true;
    }
    // Lanes are numbered within their listener, so a lane alone tells two writers apart only when one listener feeds.
    let listeners = feeding(feeds.listeners, index).count();
    if template::has(path, "lane") && (listeners <= 1 || template::has(path, "listener")) {
        return true;
    }
    let Some(written) = raw.path.get() else { return true };
    let what = format!("{consumers} consumers would write the same file");
    let cure = match template::has(path, "lane") {
        true => "put {consumer} into the path, or {listener} beside {lane}, because lanes are numbered per listener",
        false => "put {consumer} or {lane} into the path, or write consumers = 1",
    };
    report.say(&written.place, what, cure);
    false
}
