//! The daemon's own files and its lists must be neither each other nor what a sink writes: a sink that appends
//! datagrams to the configuration would have the next start refused, and a ledger in place of a log would replace it.
//!
//! Two paths lead to the same file when they are spelled the same, when the directories above them are the same by
//! whatever links, or when both are there and are one file under two names.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::writers::files_of;
use crate::config::daemon::DaemonConfig;
use crate::config::feeders::LaneFeeds;
use crate::config::file::parts::Parts;
use udpd_base::os::paths::resolve;
use udpd_base::settings::{Findings, ValuePlace};

/// A file that something has already.
struct Claim {
    /// May hold codes for the time.
    path: PathBuf,
    noun: String,
}

/// Refuses every file with two meanings. What is reported is the setting, never the configuration itself.
pub(super) fn check(parts: &Parts<'_>, daemon: &DaemonConfig, feeders: &LaneFeeds<'_>, findings: &mut Findings<'_>) {
    let claim = |path: &Path, noun: &str| Claim { path: resolve(path), noun: noun.to_owned() };
    let mut taken = vec![claim(Path::new(findings.file()), "this configuration")];
    if let (Some(socket), false) = (&daemon.control_socket.value, daemon.control_socket.written) {
        taken.push(claim(socket, "the control socket"));
    }
    let listed = parts.listeners.iter().flat_map(|section| section.settings.access.files());
    taken.extend(listed.map(|path| claim(path, "a list of networks")));
    let mut written = Vec::new();
    for (index, part) in parts.sinks.iter().enumerate() {
        let (Some(sink), Some(path)) = (&part.sink, part.written.place("path")) else { continue };
        let noun = format!("what sink {:?} writes", sink.name);
        let files: Vec<Claim> = files_of(index, sink, feeders).iter().map(|file| claim(file, &noun)).collect();
        if let Some(other) = files.iter().find_map(|file| other_than(&taken, &file.path)) {
            refuse(&path, other, findings);
        }
        written.extend(files);
    }
    taken.extend(written);
    for (key, noun) in [("control_socket", "the control socket"), ("stats_on_exit", "the ledger at exit")] {
        let written = parts.daemon.as_ref().and_then(|section| section.written.text(key));
        let Some(written) = written.filter(|written| !written.value.is_empty()) else { continue };
        let own = claim(Path::new(&written.value), noun);
        if let Some(other) = other_than(&taken, &own.path) {
            refuse(&written.place, other, findings);
        }
        taken.push(own);
    }
}

fn refuse(place: &ValuePlace, other: &str, findings: &mut Findings<'_>) {
    findings.say(place, format!("the same path is {other}"), "give each its own path");
}

/// What has this file already, if anything has.
fn other_than<'c>(taken: &'c [Claim], path: &Path) -> Option<&'c str> {
    taken.iter().find(|claim| is_same(&claim.path, path)).map(|claim| claim.noun.as_str())
}

/// Whether the two, of which each may have codes for the time, can be one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let (one_text, other_text) = (one.to_string_lossy(), other.to_string_lossy());
    if can_be(&one_text, &other_text) || can_be(&other_text, &one_text) {
        return true;
    }
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether `text` is what `pattern` can become when digits stand for its codes, and addresses for what a datagram fills
/// in.
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

    use crate::config::{Config, HostView};

    /// What is said of a configuration at this path, with `@DIR@` for its directory.
    fn said(name: &str, text: &str, prepare: impl Fn(&std::path::Path)) -> String {
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
        let link_directory = |directory: &std::path::Path| {
            std::os::unix::fs::symlink(directory, directory.join("also")).expect("linked");
        };
        let link_file = |directory: &std::path::Path| {
            std::os::unix::fs::symlink(directory.join("in.toml"), directory.join("also")).expect("linked");
        };
        let name_file = |directory: &std::path::Path| {
            fs::hard_link(directory.join("in.toml"), directory.join("also")).expect("linked");
        };
        for (name, path, prepare) in [
            ("in.toml", "in.toml", &(|_: &_| ()) as &dyn Fn(&std::path::Path)),
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
