//! A pipeline replaces another under load in one process, on the same sockets and files: nothing is lost, nothing is
//! twice, what stays is not touched, and a file has one writer at a time.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::Value;

use crate::util::pipeline::{Bed, assert_numbers, numbers};
use crate::util::*;

/// A listener with these keys, and the sink that stays.
fn with(keys: &str) -> Setup {
    Setup::new().keys(keys).file("stays", "stays.log")
}

/// The same listener with other keys.
fn at(bed: &Bed, keys: &str) -> Setup {
    Setup::at(bed.address).keys(keys).file("stays", "stays.log")
}

/// Checks that the sink that stays was offered and has delivered so many.
#[track_caller]
fn assert_stays_delivered(ledger: &Value, sent: u64) {
    let stays = sink_named(ledger, "stays");
    let counts = ["offered", "delivered", "in_flight"].map(|key| count(stays, key));
    assert_eq!(counts, [sent, sent, 0], "{stays:#}");
}

fn loses_nothing(engine: &str) {
    let mut bed = Bed::start(&with(&format!("{engine}\nlanes = 2")));
    let inode = fs::metadata(bed.file("stays.log")).expect("the file").ino();
    let load = bed.load();
    let mut before = [0; 3];
    let with = |bed: &Bed, keys: &str| at(bed, &format!("{engine}\n{keys}"));
    let second_first = Setup::at(bed.address).keys(format!("{engine}\nlanes = 1")).null("nowhere");
    let second_first = second_first.file("second", "second.log").file("stays", "stays.log");
    for setup in [
        with(&bed, "lanes = 4"),
        with(&bed, "lanes = 4\nmax_length = '4KiB'").null("nowhere"),
        second_first,
        with(&bed, "lanes = 1\ndeny = ['192.0.2.0/24']").file("second", "second.log"),
        with(&bed, "lanes = 3"),
        with(&bed, "lanes = 2\nbatch_size = 16"),
    ] {
        load.wait_for(2_000);
        bed = bed.reload(&setup);
        let ledger = bed.stats();
        let now = [received(&ledger), arrived(&ledger), count(sink_named(&ledger, "stays"), "delivered")];
        assert!(before.iter().zip(&now).all(|(before, now)| before <= now), "from {before:?} to {now:?}");
        before = now;
    }
    load.wait_for(2_000);
    let sent = load.end();
    let (ledger, directory) = bed.stop_after(sent);
    assert_eq!(count(listener(&ledger), "kernel_dropped"), 0, "{ledger:#}");
    assert_stays_delivered(&ledger, sent);
    assert_eq!(count(&sink_named(&ledger, "stays")["files"], "written_bytes"), sent * 9);
    let path = directory.path().join("stays.log");
    assert_numbers(&path, sent);
    assert_eq!(fs::metadata(&path).expect("the file").ino(), inode, "the same file");
    let second = sink_named(&ledger, "second");
    let offered = count(second, "offered");
    assert!(second["removed"] == true && count(second, "delivered") == offered && offered > 2_000, "{second:#}");
    assert_eq!(numbers(&directory.path().join("second.log")).len() as u64, offered);
}

#[test]
fn a_reload_under_load_loses_nothing_and_leaves_the_file_of_a_sink_that_stays_alone() {
    two_engines().into_iter().for_each(loses_nothing);
}

#[test]
fn a_listener_comes_and_goes_and_stays_in_the_ledger() {
    let other = free_address();
    let mut bed = Bed::start(&with(""));
    let alone = at(&bed, "");
    bed = bed.reload(&alone.clone().also("guest", other, &["stays"]));
    send_numbers(other, 0..50);
    // At once: what waits in its socket is delivered before that is closed.
    bed = bed.reload(&alone);
    bed.pipeline.wait_for_earlier_pipelines(PATIENCE);
    // Soon: a program that another test starts has what this one has open for the moment between fork and exec.
    until("its address is free again", || UdpSocket::bind(other).is_ok());
    let (ledger, directory) = bed.stop();
    let guest = listener_named(&ledger, "guest");
    assert!(guest["removed"] == true && listener_named(&ledger, "in")["removed"] != true);
    assert_eq!((count(guest, "arrived"), &guest["residual"]), (50, &Value::from(0)), "{guest:#}");
    assert_eq!(count(named(list(guest, "sinks"), "stays"), "delivered"), 50);
    assert_numbers(&directory.path().join("stays.log"), 50);
}

#[test]
fn a_connection_of_a_sink_that_stays_is_not_made_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("peer.sock");
    let peer = UnixListener::bind(&path).expect("a socket");
    let keys = format!("socket = 'stream'\npath = '{}'", path.display());
    let mut bed = Bed::start(&with("lanes = 2").sink("peer", "unix", &keys));
    let (connection, _) = peer.accept().expect("it connects at its start");
    let load = bed.load();
    let reader = std::thread::spawn(move || std::io::read_to_string(connection).expect("text"));
    for lanes in [1, 3] {
        load.wait_for(500);
        let setup = Setup::at(bed.address).keys(format!("lanes = {lanes}")).sink("peer", "unix", &keys);
        bed = bed.reload(&setup.file("stays", "stays.log"));
    }
    let sent = load.end();
    bed.stop_after(sent);
    assert_eq!(reader.join().expect("the reader").lines().count() as u64, sent);
    peer.set_nonblocking(true).expect("an option");
    assert!(peer.accept().is_err(), "it connected once more");
}

#[test]
fn a_replacement_that_was_given_up_takes_no_address() {
    let bed = Bed::start(&with("lanes = 2"));
    let more = at(&bed, "lanes = 4");
    let refused = bed.make_next_unless(&more, true).expect_err("it was given up");
    assert!(refused.message.contains("this reload was given up"), "{refused}");
    let next = bed.make_next(&more).expect("made");
    let bed = bed.go_on_with(next);
    assert_eq!(bed.pipeline.lanes().len(), 4);
    bed.stop();
}

#[test]
fn what_cannot_be_had_is_refused_and_the_pipeline_goes_on() {
    let taken = socket();
    let mut bed = Bed::start(&with("lanes = 2"));
    let inodes = bed.pipeline.socket_inodes();
    let load = bed.load();
    for (setup, reason) in [
        (at(&bed, "lanes = 3").also("other", address_of(&taken), &["stays"]), "cannot bind"),
        (at(&bed, "").keys("format = 'pcapng'"), "it is not a capture"),
        (at(&bed, "").sink("bad", "file", "path = '/proc/no/such.log'"), "/proc/no/such.log"),
    ] {
        load.wait_for(500);
        let (same, refused) = bed.try_reload(&setup);
        let failure = refused.unwrap_or_else(|| panic!("it is not refused: {}", setup.text()));
        assert!(failure.message.contains(reason), "{failure}");
        bed = same;
        assert_eq!(bed.pipeline.socket_inodes(), inodes);
    }
    load.wait_for(500);
    let sent = load.end();
    let (ledger, directory) = bed.stop_after(sent);
    assert_eq!(list(&ledger, "listeners").len(), 1, "{ledger:#}");
    assert_numbers(&directory.path().join("stays.log"), sent);
}

#[test]
fn two_hundred_reloads_leave_one_ledger_and_no_thread() {
    let mut bed = Bed::start(&with("lanes = 2"));
    let load = bed.load();
    let mut most = 0;
    for round in 0..200 {
        let setup = at(&bed, &format!("lanes = {}", 1 + round % 2));
        bed = bed.reload(&setup);
        most = most.max(bed.threads());
    }
    assert!(most < 20, "{most} threads");
    let sent = load.end();
    let (ledger, directory) = bed.stop_after(sent);
    assert_eq!(lanes(&ledger).len(), 2);
    assert_numbers(&directory.path().join("stays.log"), sent);
}

/// The numbers in a file of lines and of jsonl, in their order, and whether each is in a line of jsonl.
fn records(path: &Path) -> Vec<(u64, bool)> {
    let record = |line: &str| match line.parse() {
        Ok(number) => (number, false),
        Err(_) => {
            let line: Value = serde_json::from_str(line).expect("a line, or jsonl");
            (line["payload"].as_str().expect("a payload").parse().expect("a number"), true)
        }
    };
    fs::read_to_string(path).expect("the file").lines().map(record).collect()
}

#[test]
fn other_settings_of_a_file_are_in_force_when_the_writer_of_before_has_closed_it_and_nothing_is_lost() {
    let mut bed = Bed::start(&with("lanes = 2"));
    let load = bed.load();
    for (lanes, keys) in [
        (1, "format = 'jsonl'"),
        (2, "format = 'lines'\nrotate = { bytes = '1GiB', every = '0s' }\nqueue_bytes = '4MiB'"),
        (1, "format = 'jsonl'\nkeep = { files = 3, bytes = 0 }"),
        (2, "format = 'lines'\nsync = 'never'"),
    ] {
        load.wait_for(2_000);
        let setup = at(&bed, &format!("lanes = {lanes}")).keys(keys);
        bed = bed.reload(&setup);
    }
    load.wait_for(2_000);
    let sent = load.end();
    let (ledger, directory) = bed.stop_after(sent);
    assert_eq!(count(listener(&ledger), "kernel_dropped"), 0, "{ledger:#}");
    assert_stays_delivered(&ledger, sent);
    let records = records(&directory.path().join("stays.log"));
    let mut numbers: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>(), "each once");
    // Two writers at a time would have mixed their lines.
    let changes = records.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert_eq!(changes, 4);
}

#[test]
fn a_replacement_that_is_dropped_leaves_the_file_of_the_running_pipeline_alone_and_no_empty_one_behind() {
    let mut bed = Bed::start(&with(""));
    let threads = bed.threads();
    let load = bed.load();
    load.wait_for(500);
    let other_format = at(&bed, "").keys("format = 'jsonl'").file("second", "second.log");
    let next = bed.make_next(&other_format).expect("made");
    assert!(bed.file("second.log").exists());
    drop(next);
    until("the empty file is gone", || !bed.file("second.log").exists());
    until("no thread is left", || bed.threads() == threads);
    load.wait_for(500);
    let setup = at(&bed, "").file("second", "second.log");
    bed = bed.reload(&setup);
    load.wait_for(500);
    let sent = load.end();
    let (_, directory) = bed.stop_after(sent);
    let records = records(&directory.path().join("stays.log"));
    assert_eq!(records.len() as u64, sent);
    assert!(records.iter().all(|(_, is_jsonl)| !is_jsonl), "the dropped one wrote nothing");
    assert!(directory.path().join("second.log").metadata().expect("the file").len() > 0);
}

#[test]
fn a_file_that_cannot_be_opened_any_more_costs_what_is_counted_until_it_can() {
    let mut bed = Bed::start(&with(""));
    let next = bed.make_next(&at(&bed, "").keys("format = 'jsonl'")).expect("nothing is in the way yet");
    fs::rename(bed.file("stays.log"), bed.file("moved.log")).expect("moved");
    fs::create_dir(bed.file("stays.log")).expect("a directory is in the way");
    bed = bed.go_on_with(next);
    let mut numbers = 0..;
    let mut send_next =
        || send(bed.address, numbers.next().map(|number: u64| number.to_string()).expect("one").as_bytes(), 1);
    send_next();
    until("what could not be written is counted", || dropped(sink(&bed.stats()), "sink_error") == 1);
    fs::remove_dir(bed.file("stays.log")).expect("it is empty");
    until("the file is begun", || bed.file("stays.log").exists());
    // The file is there before its writer has it, so a few more may be counted as lost.
    until("it is written again", || {
        send_next();
        delivered(&bed.stats()) >= 1
    });
    let (ledger, directory) = bed.stop();
    assert_eq!(listener(&ledger)["residual"], 0, "{ledger:#}");
    let records = records(&directory.path().join("stays.log"));
    assert_eq!(records.len() as u64, delivered(&ledger), "{records:?}");
    assert!(records.iter().all(|(_, is_json)| *is_json), "{records:?}");
}
