//! A spill that is full and blocks, one in which something was damaged while nobody ran, and one that cannot be had.

use std::collections::HashSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::spill::{Lines, STREAM, assert_each_in_order, is_delivered, is_spilled, load, segments, sink, to_unix};
use crate::util::daemon::free_address;
use crate::util::ledger::{assert_closed, count};
use crate::util::manager::Manager;

#[test]
fn a_full_spill_that_blocks_loses_nothing_while_it_runs_and_at_the_end_only_what_waits_in_memory() {
    let address = free_address();
    let text = to_unix(address, &format!("when_full = \"block\"\nqueue_bytes = \"16MiB\"\n{STREAM}"));
    let text = text.replace("64MiB", "4MiB");
    let mut manager = Manager::new();
    let mut load = load(address, 8_000);
    load.payload_bytes = 1_000;
    for ends_while_full in [false, true] {
        manager.start(&text);
        let report = load.clone().send();
        let is_full = |ledger: &Value| {
            let sink = sink(ledger);
            count(sink, "offered") == report.sent && count(sink, "in_flight") > 2_000 && count(sink, "spilled") > 2_000
        };
        let ledger = manager.stats_when("the spill is full and the rest waits", is_full);
        let spilled = count(sink(&ledger), "spilled");
        assert_eq!(spilled + count(sink(&ledger), "in_flight"), report.sent, "{ledger:#}");
        if ends_while_full {
            let ended = manager.end_by(Signal::SIGTERM);
            assert_closed(&ended.ledger, report.sent);
            assert_eq!(count(sink(&ended.ledger), "spilled"), spilled);
            assert_eq!(count(&sink(&ended.ledger)["dropped"], "sink_error"), report.sent - spilled);
            let lines = Lines::listen(&manager.directory().join("out.sock"));
            manager.start(&text);
            manager.stats_when("what was in the spill is sent", |ledger| is_delivered(ledger, spilled));
            let taken = lines.await_count(spilled);
            assert_eq!(taken.iter().collect::<HashSet<_>>().len() as u64, spilled);
            assert_closed(&manager.end_by(Signal::SIGTERM).ledger, 0);
        } else {
            let lines = Lines::listen(&manager.directory().join("out.sock"));
            manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
            assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
            let ended = manager.end_by(Signal::SIGTERM);
            assert_closed(&ended.ledger, report.sent);
            assert_eq!(ended.stderr.matches("the sink waits for room").count(), 1, "{}", ended.stderr);
            std::fs::remove_file(manager.directory().join("out.sock")).expect("its name");
        }
    }
}

#[test]
fn a_spill_that_was_damaged_while_nobody_ran_is_sent_but_for_the_damage_which_is_counted_and_named() {
    let address = free_address();
    let mut manager = Manager::new();
    manager.start(&to_unix(address, STREAM));
    let report = load(address, 20_000).send();
    manager.stats_when("all wait on the disk", |ledger| is_spilled(ledger, report.sent));
    manager.end_by(Signal::SIGTERM);
    let spill = manager.directory().join("spill/0");
    let entries = std::fs::read_dir(&spill).expect("the spill").map(|entry| entry.expect("an entry").path());
    let segment = entries.filter(|path| path.extension().is_some_and(|end| end == "spill")).min().expect("a segment");
    let mut bytes = std::fs::read(&segment).expect("it reads");
    // In what fills a payload: damage to a header is told by another line.
    let middle = (bytes.len() / 2..).find(|&at| bytes[at..].starts_with(b"xxx")).expect("a payload is filled up");
    let end = bytes.len() - 5;
    bytes[middle] ^= 1;
    std::fs::write(&segment, &bytes[..end]).expect("a bit flipped, and the end cut off");
    std::fs::write(spill.join("00000000000000000009.spill"), vec![b'x'; 4096]).expect("nobody's");
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    manager.start(&to_unix(address, STREAM));
    let ledger = manager.stats_when("all that is whole is sent", |ledger| {
        let sink = sink(ledger);
        count(sink, "spilled_before") > 0 && is_spilled(ledger, 0)
    });
    let (delivered, torn) = (count(sink(&ledger), "delivered"), count(&sink(&ledger)["dropped"], "spill_torn"));
    assert_eq!(delivered + torn, report.sent, "the heads of its frames say what is lost: {ledger:#}");
    assert!(torn > 0 && delivered > 10_000, "{ledger:#}");
    let taken = lines.await_count(delivered);
    let mut last = vec![None; report.per_flow.len()];
    for &(flow, number) in &taken {
        assert!(last[flow] < Some(number), "flow {flow}: {number} came after {:?}", last[flow]);
        last[flow] = Some(number);
    }
    let ended = manager.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, 0);
    for words in [
        "cannot be read, because they were not written to their",
        "is no spill that udpd can read any more",
        "are damaged and count",
    ] {
        assert_eq!(ended.stderr.matches(words).count(), 1, "{words}: {}", ended.stderr);
    }
    assert!(spill.join("00000000000000000009.torn").exists());
    assert_eq!(segments(manager.directory()), 0);
}

#[test]
fn a_spill_that_cannot_be_had_at_the_start_is_a_start_refused_with_its_name() {
    let mut manager = Manager::new();
    let text = to_unix(free_address(), STREAM);
    let spill = manager.directory().join("spill");
    std::fs::create_dir(&spill).expect("made");
    // What is to be a directory, a segment, and a directory of a consumer of before.
    for (name, is_directory) in [("0", false), ("0/00000000000000000009.spill", true), ("7", false)] {
        let path = spill.join(name);
        if is_directory {
            std::fs::create_dir_all(&path).expect("made");
        } else {
            std::fs::write(&path, "no directory").expect("written");
        }
        let finished = manager.start_in_vain(&text);
        assert_eq!(finished.status.code(), Some(74), "{name}: {}", finished.stderr);
        let said =
            finished.stderr.contains("cannot use the spill") && finished.stderr.contains(path.to_str().expect("UTF-8"));
        assert!(said, "{name}: {}", finished.stderr);
        if is_directory { std::fs::remove_dir_all(spill.join("0")) } else { std::fs::remove_file(path) }
            .expect("removed");
    }
    manager.start(&text);
    assert_closed(&manager.end_by(Signal::SIGTERM).ledger, 0);
}

#[test]
fn a_spill_that_others_may_have_written_or_that_is_a_link_is_a_start_refused_and_what_udpd_makes_is_its_owners() {
    let text = to_unix(free_address(), STREAM);
    let mut manager = Manager::new();
    manager.start(&text);
    let spill = manager.directory().join("spill");
    let mode = |path: &std::path::Path| path.metadata().expect("there").permissions().mode() & 0o7777;
    assert_eq!([mode(&spill), mode(&spill.join("0")), mode(&spill.join("0/lock"))], [0o700, 0o700, 0o600]);
    assert_eq!(mode(&manager.directory().join("control.sock")), 0o660);
    assert_closed(&manager.end_by(Signal::SIGTERM).ledger, 0);
    assert_eq!(mode(&manager.directory().join("ledger.json")) & !0o640, 0);
    let refused = |manager: &mut Manager, path: &std::path::Path, words: &str| {
        let finished = manager.start_in_vain(&text);
        assert_eq!(finished.status.code(), Some(77), "{}", finished.stderr);
        let path = path.to_str().expect("UTF-8");
        assert!(finished.stderr.contains(path) && finished.stderr.contains(words), "{}", finished.stderr);
    };
    let segment = spill.join("0/00000000000000000009.spill");
    std::fs::write(&segment, "not udpd's").expect("written");
    for path in [&spill, &spill.join("0"), &spill.join("0/lock"), &segment] {
        let before = path.metadata().expect("there").permissions();
        std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("set");
        refused(&mut manager, path, "chmod go-w");
        std::fs::set_permissions(path, before).expect("set back");
    }
    std::fs::remove_file(&segment).expect("removed");
    let other = manager.directory().join("other");
    std::fs::rename(&spill, &other).expect("moved");
    std::os::unix::fs::symlink(&other, &spill).expect("made");
    refused(&mut manager, &spill, "symbolic link");
}
