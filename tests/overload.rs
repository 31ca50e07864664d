//! More than can be taken: every datagram is still accounted for, by the layer that lost it, under every policy.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::delivery::SCALE;
use crate::util::daemon::{Daemon, free_address};
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count};
use crate::util::load::{Amount, Load, read_text_header};

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
    let address = free_address();
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Daemon::with_config_and_stdout(
        &format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            {engine}
            receive_buffer = "256KiB"
            sinks = ["out"]
            [sink.out]
            type = "stdout"
            queue_bytes = "64KiB"
            when_full = "{when_full}"
            "#
        ),
        Stdio::from(writer),
    );
    let mut load = Load::new(address, Amount::Seconds(0.3));
    (load.rate_per_second, load.overruns) = (300_000 / SCALE, true);
    load.payload_bytes = PAYLOAD_BYTES;
    let sent = load.send().sent;
    let drained = std::thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).expect("readable");
        text
    });
    daemon.stats_when("nothing is under way", |ledger| {
        let listener = &ledger["listeners"][0];
        count(listener, "arrived") == sent
            && count(&listener["lanes"][0], "receive_buffer_used_bytes") == 0
            && count(&listener["sinks"][0], "in_flight") == 0
    });
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    let listener = &ended.ledger["listeners"][0];
    let sink = &listener["sinks"][0];
    let lines = assert_in_order(&drained.join().expect("the reader ends"));
    assert_eq!(lines, count(sink, "delivered"), "delivered is what the reader got: {listener:#}");
    let full = count(&sink["dropped"], "queue_full");
    match when_full {
        "block" => {
            assert_eq!(full, 0, "a receiver that waits drops nothing itself: {listener:#}");
            assert!(count(listener, "kernel_dropped") > 0, "the wait shows up in the kernel: {listener:#}");
        }
        _ => assert!(full > 0, "the stall shows up at the channel: {listener:#}"),
    }
}

fn stalled_sinks(when_full: &str) {
    for engine in two_engines() {
        (0..RUNS).for_each(|_| stalled_sink(engine, when_full));
    }
}

#[test]
fn a_stalled_sink_with_drop_newest_loses_only_what_the_ledger_says() {
    stalled_sinks("drop_newest");
}

#[test]
fn a_stalled_sink_with_drop_oldest_loses_only_what_the_ledger_says() {
    stalled_sinks("drop_oldest");
}

#[test]
fn a_stalled_sink_with_block_loses_only_what_the_kernel_counts() {
    stalled_sinks("block");
}

#[test]
fn a_stalled_sink_costs_the_other_sink_nothing() {
    let address = free_address();
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Daemon::with_config_and_stdout(
        &format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            sinks = ["stalled", "archive"]
            [sink.stalled]
            type = "stdout"
            queue_bytes = "64KiB"
            [sink.archive]
            type = "file"
            rotate.every = "0s"
            path = "@DIR@/in.log"
            queue_bytes = "32MiB"
            "#
        ),
        Stdio::from(writer),
    );
    let mut load = Load::new(address, Amount::Seconds(0.5));
    load.rate_per_second = 100_000 / SCALE;
    load.payload_bytes = PAYLOAD_BYTES;
    let sent = load.send().sent;
    let ledger = daemon.stats_when("the file has everything", |ledger| {
        count(&ledger["listeners"][0]["sinks"][1], "delivered") == sent
    });
    assert!(count(&ledger["listeners"][0]["sinks"][0]["dropped"], "queue_full") > 0, "{ledger:#}");
    let drained = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()).expect("readable"));
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    drained.join().expect("the reader ends");
}

/// A pipe that is read only when udpd has ended: what is in it counts as delivered, and nothing else does.
fn given_up(kind: &str, stdout: Stdio, read_all: impl FnOnce() -> Vec<u8>) {
    let address = free_address();
    let text = format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        sinks = ["stalled"]
        [sink.stalled]
        type = "stdout"
        queue_bytes = "32MiB"
        "#
    );
    let daemon = Daemon::with_config_and_stdout(&text, stdout);
    let mut load = Load::new(address, Amount::Count(20_000));
    load.payload_bytes = PAYLOAD_BYTES;
    let sent = load.send().sent;
    daemon.stats_when("all is received", |ledger| count(&ledger["listeners"][0], "received") == sent);
    daemon.signal(Signal::SIGTERM);
    // The second does not wait for a sink.
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    let sink = &ended.ledger["listeners"][0]["sinks"][0];
    let text = read_all();
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = assert_in_order(&text[..whole]);
    assert!(lines > 0, "{kind}: it took something before it was full: {lines}");
    assert_eq!(
        (count(sink, "delivered"), count(&sink["dropped"], "sink_error")),
        (lines, sent - lines),
        "{kind}: {sink:#}"
    );
}

#[test]
fn what_a_pipe_took_before_its_sink_was_given_up_counts_as_delivered() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    given_up("pipe", writer.into(), || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).expect("readable");
        text
    });
    let (mut reader, writer) = UnixStream::pair().expect("sockets");
    given_up("socket", OwnedFd::from(writer).into(), || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).expect("readable");
        text
    });
}

#[test]
fn a_sink_that_never_takes_anything_again_is_given_up_and_the_ledger_still_closes() {
    let address = free_address();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Daemon::with_config_and_stdout(
        &format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            sinks = ["stalled", "archive"]
            [sink.stalled]
            type = "stdout"
            queue_bytes = "128KiB"
            when_full = "block"
            [sink.archive]
            type = "file"
            rotate.every = "0s"
            path = "@DIR@/in.log"
            queue_bytes = "32MiB"
            "#
        ),
        Stdio::from(writer),
    );
    let mut load = Load::new(address, Amount::Count(20_000));
    load.payload_bytes = PAYLOAD_BYTES;
    let sent = load.send().sent;
    daemon.stats_when("everything has arrived", |ledger| {
        count(&ledger["listeners"][0], "arrived") == sent || count(&ledger["listeners"][0], "received") > 0
    });
    let ended = daemon.terminate();
    drop(reader);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    assert!(ended.stderr.contains("did not take in time"), "{}", ended.stderr);
    // What the receiver had not handed over while it waited goes to the other sink in the end.
    let archive = &ended.ledger["listeners"][0]["sinks"][1];
    assert_eq!(count(archive, "delivered"), count(archive, "offered"), "{archive:#}");
    let file = std::fs::read(ended.directory.path().join("in.log")).expect("the file is there");
    assert_eq!(assert_in_order(&file), count(archive, "delivered"));
}

#[test]
fn a_reader_that_goes_away_ends_the_daemon_with_a_closed_ledger() {
    let address = free_address();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Daemon::with_config_and_stdout(
        &format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            sinks = ["out"]
            [sink.out]
            type = "stdout"
            "#
        ),
        Stdio::from(writer),
    );
    let before = Load::new(address, Amount::Count(100)).send().sent;
    daemon.stats_when("the reader has all", |ledger| count(&ledger["listeners"][0]["sinks"][0], "delivered") == before);
    drop(reader);
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"for nobody", address)).expect("sent");
    let ended = daemon.wait_for_end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("its reader has ended"), "{}", ended.stderr);
    assert_closed(&ended.ledger, before + 1);
    assert_eq!(count(&ended.ledger["listeners"][0]["sinks"][0]["dropped"], "sink_error"), 1);
}
