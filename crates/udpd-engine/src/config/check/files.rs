//! Which files a configuration writes: no file has two writers, and none is the configuration itself, a list of
//! networks or a file of the daemon.
//!
//! Two writers of one file tear each other's records. A sink that appends datagrams to the configuration has the next
//! start refused, and a ledger written over a log replaces it. Who writes is known from the listeners: each lane feeds
//! one consumer of each sink.
//!
//! Two paths lead to the same file when they are spelled the same, when their directories are the same behind any
//! symbolic links, or when both exist and are one file under two names.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::daemon::DaemonConfig;
use crate::config::feeders::LaneFeeds;
use crate::config::file::{Sections, SinkInFile};
use crate::config::sinks::{ConsumerCount, SinkConfig};
use udpd_base::os::path_check::{resolve, tidy};
use udpd_base::settings::{Findings, ValuePlace, WrittenKeys};
use udpd_base::sink::settings::SinkTarget;
use udpd_file::template;

/// Files are compared for this many lanes of a sink, which is more than any machine runs.
const LANES_COMPARED_MAX: usize = 4096;

/// The files that the sink may write, as far as they are compared.
fn files_of(index: usize, sink: &SinkConfig, feeders: &LaneFeeds<'_>) -> BTreeSet<PathBuf> {
    let SinkTarget::Files(path) = sink.settings.target() else { return BTreeSet::new() };
    let lanes = feeders.of_sink(index, sink.consumers).take(LANES_COMPARED_MAX);
    let mut files: BTreeSet<String> = lanes.map(|lane| lane.file(feeders.listeners(), &sink.name, path)).collect();
    if files.is_empty() {
        // No listener feeds it yet. It is still wrong if another sink has the same path.
        files.insert(path.to_owned());
    }
    files.iter().map(|file| tidy(Path::new(file))).collect()
}

/// Refuses every file and every standard output with more than one writer.
pub(super) fn check_writers(sections: &[SinkInFile<'_>], feeders: &LaneFeeds<'_>, findings: &mut Findings<'_>) {
    let mut stdout: Option<&str> = None;
    let mut files: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for (index, SinkInFile { sink, written, .. }) in sections.iter().enumerate() {
        let Some(sink) = sink else { continue };
        match sink.settings.target() {
            SinkTarget::Nowhere | SinkTarget::Peers(_) | SinkTarget::Elsewhere(_) => {}
            SinkTarget::Stdout => {
                if let Some(other) = stdout.replace(&sink.name) {
                    let what = format!("sink {other:?} writes to standard output already, and lines of both would mix");
                    let place = written.place("type").unwrap_or_else(|| written.place.clone());
                    findings.say(&place, what, "let the listeners share that sink, or write one of them to a file");
                }
                if sink.consumers != ConsumerCount::Count(NonZeroUsize::MIN)
                    && let Some(place) = written.place("consumers")
                {
                    let what = "several consumers would mix their lines on standard output";
                    let cure = "write consumers = 1, or use a sink of type \"file\" with {consumer} in its path";
                    findings.say(&place, what, cure);
                }
            }
            SinkTarget::Files(path) => {
                if !check_file_consumers(written, index, sink, path, feeders, findings) {
                    continue;
                }
                let mut taken = None;
                for path in files_of(index, sink, feeders) {
                    // What names a file before its placeholders are filled in may name a directory after.
                    if path.is_dir()
                        && let Some(place) = written.place("path")
                    {
                        let what = format!("{} is a directory", path.display());
                        findings.say(&place, what, "name a file in it, such as one ending in .log");
                    }
                    if let Some(other) = files.insert(resolve(&path), &sink.name) {
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

/// False when several consumers of the sink would write one file.
fn check_file_consumers(
    written: &WrittenKeys<'_>,
    index: usize,
    sink: &SinkConfig,
    path: &str,
    feeders: &LaneFeeds<'_>,
    findings: &mut Findings<'_>,
) -> bool {
    // A written number counts even where fewer lanes feed the sink today.
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

/// Refuses two spills of which one lies in the directory of the other.
pub(super) fn check_spills(sections: &[SinkInFile<'_>], findings: &mut Findings<'_>) {
    let mut taken: Vec<(PathBuf, &str)> = Vec::new();
    for SinkInFile { name, sink, written } in sections {
        let spill = sink.as_ref().and_then(|sink| sink.settings.spill());
        let Some(path) = spill.map(|spill| resolve(spill.path)) else { continue };
        let overlaps = |(other, _): &&(PathBuf, &str)| other.starts_with(&path) || path.starts_with(other);
        if let Some((other, owner)) = taken.iter().find(overlaps)
            && let Some(place) = written.inner("spill", "path").or_else(|| written.place("spill"))
        {
            let what = format!("sink {owner:?} has its spill in {}", other.display());
            findings.say(&place, what, "give each sink a directory of its own");
        }
        taken.push((path, name));
    }
}

/// A file that is in use, and what it is.
struct UsedFile {
    /// May hold codes for the time.
    path: PathBuf,
    noun: String,
}

/// Refuses every file with two meanings. The problem is reported at the setting, never of the configuration itself.
pub(super) fn check_own_files(
    file: &Sections<'_>,
    daemon: &DaemonConfig,
    feeders: &LaneFeeds<'_>,
    findings: &mut Findings<'_>,
) {
    let used = |path: &Path, noun: &str| UsedFile { path: resolve(path), noun: noun.to_owned() };
    let mut taken = vec![used(Path::new(findings.file()), "this configuration")];
    if let (Some(socket), false) = (&daemon.control_socket.value, daemon.control_socket.written) {
        taken.push(used(socket, "the control socket"));
    }
    let listed = file.listeners.iter().flat_map(|section| section.settings.access.files());
    taken.extend(listed.map(|path| used(path, "a list of networks")));
    let mut written = Vec::new();
    for (index, section) in file.sinks.iter().enumerate() {
        let (Some(sink), Some(path)) = (&section.sink, section.written.place("path")) else { continue };
        let noun = format!("what sink {:?} writes", sink.name);
        let files: Vec<UsedFile> = files_of(index, sink, feeders).iter().map(|path| used(path, &noun)).collect();
        if let Some(other) = files.iter().find_map(|own| other_than(&taken, &own.path)) {
            refuse(&path, other, findings);
        }
        written.extend(files);
    }
    taken.extend(written);
    for (key, noun) in [("control_socket", "the control socket"), ("stats_on_exit", "the ledger at exit")] {
        let written = file.daemon.as_ref().and_then(|section| section.written.text(key));
        let Some(written) = written.filter(|written| !written.value.is_empty()) else { continue };
        let own = used(Path::new(&written.value), noun);
        if let Some(other) = other_than(&taken, &own.path) {
            refuse(&written.place, other, findings);
        }
        taken.push(own);
    }
}

fn refuse(place: &ValuePlace, other: &str, findings: &mut Findings<'_>) {
    findings.say(place, format!("the same path is {other}"), "give each its own path");
}

/// What this file is already, if it is in use.
fn other_than<'c>(taken: &'c [UsedFile], path: &Path) -> Option<&'c str> {
    taken.iter().find(|used| is_same(&used.path, path)).map(|used| used.noun.as_str())
}

/// Whether two paths, each with or without codes for the time, can be one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let (one_text, other_text) = (one.to_string_lossy(), other.to_string_lossy());
    if can_be(&one_text, &other_text) || can_be(&other_text, &one_text) {
        return true;
    }
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether `pattern` can become `text`, with digits for its codes of the time and any name for its placeholders.
fn can_be(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    let mut pattern = pattern.chars();
    while let Some(character) = pattern.next() {
        let digits = match (character, if character == '%' { pattern.next() } else { None }) {
            ('%', Some('Y')) => 4,
            ('%', Some(_)) => 2,
            ('{', _) => {
                let behind = pattern.as_str().split_once('}').map_or("", |(_, behind)| behind);
                let ends = rest.find('/').unwrap_or(rest.len());
                return (1..=ends).filter(|&end| rest.is_char_boundary(end)).any(|end| can_be(behind, &rest[end..]));
            }
            (character, _) => match rest.strip_prefix(character) {
                Some(behind) => {
                    rest = behind;
                    continue;
                }
                None => return false,
            },
        };
        match rest.split_at_checked(digits) {
            Some((head, tail)) if head.bytes().all(|byte| byte.is_ascii_digit()) => rest = tail,
            _ => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{Config, HostView};

    fn outcome(text: &str, host: &HostView) -> String {
        Config::parse(text, "in.toml", host).map_or_else(|problems| problems.to_string(), |_| "accepted".to_owned())
    }

    #[test]
    fn an_interface_that_hides_its_queues_gets_the_lanes_of_its_rate_and_none_shares_a_file() {
        // A rate that needs two lanes, on an interface that does not tell its queues.
        let hidden = tempfile::tempdir().expect("a directory");
        let host = HostView { sys_root: hidden.path().to_owned(), ..HostView::default() };
        let outcome_of = |path: &str| {
            let text = format!(
                "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5514\"\ninterface = \"eth7\"\n\
                 absorb = {{ rate = 500001 }}\nsinks = [\"out\"]\n\
                 [sink.out]\ntype = \"file\"\npath = \"{path}\"\nconsumers = \"per_lane\"\n"
            );
            outcome(&text, &host)
        };
        let refused =
            "in.toml:9:8: sink.out.path: 2 consumers would write the same file; put {consumer} or {lane} into";
        let said = outcome_of("/tmp/x.log");
        assert!(said.contains(refused), "{said}");
        assert_eq!(outcome_of("/tmp/{lane}.log"), "accepted");
    }

    /// What is said of two sinks with these spills.
    fn spills(one: &str, other: &str) -> String {
        let sink = |name: &str, spill: &str| {
            format!("[sink.{name}]\ntype = \"unix\"\npath = \"/tmp/{name}.sock\"\nspill = {{ {spill} }}\n")
        };
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5514\"\nsinks = [\"a\", \"b\"]\n{}{}",
            sink("a", one),
            sink("b", other)
        );
        outcome(&text, &HostView::default())
    }

    #[test]
    fn two_sinks_never_share_a_directory_and_one_that_cannot_be_written_or_holds_nothing_is_refused() {
        let one = "path = \"/tmp/spill\", bytes = \"1GiB\"";
        assert_eq!(spills(one, "path = \"/tmp/other\", bytes = \"1GiB\""), "accepted");
        assert_eq!(spills(one, ""), "accepted");
        for other in ["/tmp/spill", "/tmp/spill/", "/tmp/spill/1", "/tmp"] {
            let said = spills(one, &format!("path = \"{other}\", bytes = \"1GiB\""));
            assert!(said.contains("sink.b.spill.path") && said.contains("sink \"a\" has its spill in"), "{said}");
        }
        for (spill, words) in [
            ("path = \"/dev/null\", bytes = \"1GiB\"", "is no directory"),
            ("path = \"spill\", bytes = \"1GiB\"", "is no absolute path"),
            ("path = \"/tmp/other\"", "holds hardly a second"),
            ("bytes = \"1GiB\"", "names no directory"),
            ("path = \"/tmp/other\", bytes = \"1GiB\", sync = \"1s\"", "sync"),
        ] {
            let said = spills(one, spill);
            assert!(said.contains("sink.b.spill") && said.contains(words), "{said}");
        }
    }

    /// What is said of a configuration at this path, with `@DIR@` for its directory.
    fn said(name: &str, text: &str, prepare: impl Fn(&Path)) -> String {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join(name);
        let text = text.replace("@DIR@", directory.path().to_str().expect("UTF-8"));
        fs::write(&path, &text).expect("written");
        prepare(directory.path());
        match Config::load(&path, &HostView::default()) {
            Ok(_) => "accepted".to_owned(),
            Err(failure) => failure.message.replace(directory.path().to_str().expect("UTF-8"), "@DIR@"),
        }
    }

    fn with_sink(path: &str) -> String {
        format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5514\"\nsinks = [\"out\"]\n\
             [sink.out]\ntype = \"file\"\npath = \"@DIR@/{path}\"\n"
        )
    }

    #[test]
    fn no_sink_writes_into_the_configuration_by_whatever_name() {
        let refused = "7:8: sink.out.path: the same path is this configuration; give each its own path";
        let link_directory = |directory: &Path| {
            std::os::unix::fs::symlink(directory, directory.join("also")).expect("linked");
        };
        let link_file = |directory: &Path| {
            std::os::unix::fs::symlink(directory.join("in.toml"), directory.join("also")).expect("linked");
        };
        let name_file = |directory: &Path| {
            fs::hard_link(directory.join("in.toml"), directory.join("also")).expect("linked");
        };
        for (name, path, prepare) in [
            ("in.toml", "in.toml", &(|_: &_| ()) as &dyn Fn(&Path)),
            ("in.toml", "{listener}.toml", &|_| ()),
            ("in.toml", "also/in.toml", &link_directory),
            ("in.toml", "also", &link_file),
            ("in.toml", "also", &name_file),
            ("07.toml", "%H.toml", &|_| ()),
            ("10.0.0.1.toml", "{source}.toml", &|_| ()),
        ] {
            let said = said(name, &with_sink(path), prepare);
            assert!(said.contains(refused), "{path}: {said}");
        }
        assert_eq!(said("in.toml", &with_sink("%H.toml"), |_| ()), "accepted");
        assert_eq!(said("in.toml", &with_sink("new/{listener}.log"), |_| ()), "accepted");
    }

    #[test]
    fn no_sink_writes_into_a_list_of_networks() {
        let listed = with_sink("deny").replace("[[listener]]\n", "[[listener]]\ndeny_files = [\"@DIR@/deny\"]\n");
        let said = said("in.toml", &listed, |directory| fs::write(directory.join("deny"), "").expect("written"));
        assert!(said.contains(": sink.out.path: the same path is a list of networks"), "{said}");
    }

    #[test]
    fn nothing_of_the_daemon_is_written_over_the_configuration_or_a_log() {
        for (key, path, what) in [
            ("stats_on_exit", "in.toml", "this configuration"),
            ("control_socket", "in.toml", "this configuration"),
            ("stats_on_exit", "2026.log", "what sink \"out\" writes"),
            ("control_socket", "also/2026.log", "what sink \"out\" writes"),
        ] {
            let text = format!("[daemon]\n{key} = \"@DIR@/{path}\"\n{}", with_sink("%Y.log"));
            let said = said("in.toml", &text, |directory| {
                std::os::unix::fs::symlink(directory, directory.join("also")).expect("linked");
            });
            assert!(said.contains(&format!(": daemon.{key}: the same path is {what}")), "{key}: {said}");
        }
    }
}
