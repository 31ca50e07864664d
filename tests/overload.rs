//! More than can be taken: every datagram is still accounted for, by the layer that lost it, under every policy.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::util::*;

/// All that comes until the other end is closed.
fn read_all(mut reader: impl Read) -> Vec<u8> {
    let mut text = Vec::new();
    reader.read_to_end(&mut text).expect("readable");
    text
}

/// How often each policy is tried.
const RUNS: usize = if cfg!(debug_assertions) { 2 } else { 20 };

/// The length of a datagram: in debug builds, too, the load takes ten times the memory of the queue and the pipe.
const PAYLOAD_BYTES: usize = 400;

/// Checks that the numbers of each flow only grow, so that none is there twice, and returns how many lines there are.
fn assert_in_order(text: &[u8]) -> u64 {
    let mut next = BTreeMap::new();
    let mut lines = 0;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        assert_eq!(line.len(), PAYLOAD_BYTES + 1, "a whole line: {:?}", String::from_utf8_lossy(line));
        let line = std::str::from_utf8(line).expect("the load is text");
        let (flow, number) = read_text_header(line).unwrap_or_else(|| panic!("not a line of the load: {line:?}"));
        let least = next.insert(flow, number + 1).unwrap_or(0);
        assert!(number >= least, "flow {flow}: {number} comes after {}", least - 1);
        lines += 1;
    }
    lines
}

/// One run: a sink that takes nothing while the load is sent, and everything afterwards.
fn stalled_sink(engine: &str, when_full: &str) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Setup::new()
        .keys(format!("{engine}\nreceive_buffer = '256KiB'"))
        .sink("out", "stdout", format!("queue_bytes = '64KiB'\nwhen_full = '{when_full}'"))
        .start_with_stdout(writer);
    let load = Load::new(daemon.address(), Amount::Seconds(0.3)).rate(300_000 / SCALE).bytes(PAYLOAD_BYTES);
    let sent = load.overrunning().send().sent;
    let drained = std::thread::spawn(move || read_all(reader));
    let ended = daemon.end_after(sent);
    let listener = ended.listener();
    let sink = ended.sink();
    let lines = assert_in_order(&drained.join().expect("the reader ends"));
    assert_eq!(lines, count(sink, "delivered"), "delivered is what the reader got: {listener:#}");
    let full = dropped(sink, "queue_full");
    match when_full {
        "block" => {
            assert_eq!(full, 0, "a receiver that waits drops nothing itself: {listener:#}");
            assert!(count(listener, "kernel_dropped") > 0, "the wait shows up in the kernel: {listener:#}");
        }
        _ => assert!(full > 0, "the stall shows up at the channel: {listener:#}"),
    }
}

#[test]
fn a_stalled_sink_loses_only_what_the_ledger_says_whatever_when_full_is() {
    for when_full in ["drop_newest", "drop_oldest", "block"] {
        two_engines().into_iter().for_each(|engine| (0..RUNS).for_each(|_| stalled_sink(engine, when_full)));
    }
}

#[test]
fn a_stalled_sink_costs_the_other_sink_nothing() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Setup::new()
        .sink("stalled", "stdout", "queue_bytes = '64KiB'")
        .file("archive", "in.log")
        .keys("queue_bytes = '32MiB'")
        .start_with_stdout(writer);
    let sent = Load::new(daemon.address(), Amount::Seconds(0.5)).rate(100_000 / SCALE).bytes(PAYLOAD_BYTES).send().sent;
    let ledger = daemon.stats_when("the file has everything", |ledger| count(&sinks(ledger)[1], "delivered") == sent);
    assert!(dropped(sink(&ledger), "queue_full") > 0, "{ledger:#}");
    let drained = std::thread::spawn(move || read_all(reader));
    daemon.end(sent);
    drained.join().expect("the reader ends");
}

/// A pipe that is read only when udpd has ended: what is in it counts as delivered, and nothing else does.
fn given_up(kind: &str, stdout: Stdio, reader: impl Read) {
    let daemon = Setup::new().sink("stalled", "stdout", "queue_bytes = '32MiB'").start_with_stdout(stdout);
    let sent = daemon.load(20_000).bytes(PAYLOAD_BYTES).send().sent;
    daemon.until_received(sent);
    daemon.signal(Signal::SIGTERM);
    // The second does not wait for a sink.
    let ended = daemon.end(sent);
    let sink = ended.sink();
    let text = read_all(reader);
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = assert_in_order(&text[..whole]);
    assert!(lines > 0, "{kind}: it took something before it was full: {lines}");
    assert_eq!((count(sink, "delivered"), dropped(sink, "sink_error")), (lines, sent - lines), "{kind}: {sink:#}");
}

#[test]
fn what_a_pipe_took_before_its_sink_was_given_up_counts_as_delivered() {
    let pipe = std::io::pipe().expect("a pipe");
    let pair = UnixStream::pair().expect("sockets");
    std::thread::scope(|scope| {
        scope.spawn(|| given_up("pipe", pipe.1.into(), pipe.0));
        scope.spawn(|| given_up("socket", OwnedFd::from(pair.1).into(), pair.0));
    });
}

#[test]
fn a_sink_that_never_takes_anything_again_is_given_up_and_the_ledger_still_closes() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Setup::new()
        .sink("stalled", "stdout", "queue_bytes = '128KiB'\nwhen_full = 'block'")
        .file("archive", "in.log")
        .keys("queue_bytes = '32MiB'")
        .start_with_stdout(writer);
    let sent = daemon.load(20_000).bytes(PAYLOAD_BYTES).overrunning().send().sent;
    daemon.stats_when("the receiver waits", |ledger| received(ledger) > 0);
    let ended = daemon.end(sent);
    drop(reader);
    ended.logged(&["did not take in time"]);
    // What the receiver had not handed over while it waited goes to the other sink in the end.
    let archive = &sinks(&ended.ledger)[1];
    assert_eq!(count(archive, "delivered"), count(archive, "offered"), "{archive:#}");
    let file = ended.read("in.log");
    assert_eq!(assert_in_order(&file), count(archive, "delivered"));
}
