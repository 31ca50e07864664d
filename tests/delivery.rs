//! What was sent arrives, byte for byte and number for number, in every sink, and the ledger says so.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use udpd_base::format::lines::unescape;

use crate::util::daemon::{Daemon, free_address};
use crate::util::engines::{engines, name_in, two_engines};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load, LoadReport, read_text_header};

/// A debug build receives at a tenth of the speed and is asked for a tenth of it.
pub(crate) const SCALE: u64 = if cfg!(debug_assertions) { 10 } else { 1 };

/// Checks that the lines hold each number of each flow exactly once, and nothing else.
#[track_caller]
pub(crate) fn assert_each_once(text: &[u8], report: &LoadReport) {
    let mut missing: Vec<BTreeSet<u64>> = report.per_flow.iter().map(|&count| (0..count).collect()).collect();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let line = std::str::from_utf8(line).expect("the load is text");
        let (flow, number) = read_text_header(line).unwrap_or_else(|| panic!("not a line of the load: {line:?}"));
        assert!(missing[flow].remove(&number), "flow {flow}: number {number} is there twice, or was never sent");
    }
    assert!(missing.iter().all(BTreeSet::is_empty), "missing: {missing:?}");
}

fn read_all(directory: &Path, prefix: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in std::fs::read_dir(directory).expect("readable").flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            text.extend(std::fs::read(entry.path()).expect("readable"));
        }
    }
    text
}

#[test]
fn two_lanes_feed_a_file_and_a_null_sink_without_losing_one() {
    for engine in two_engines() {
        let address = free_address();
        let daemon = Daemon::with_config(&format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            {engine}
            lanes = 2
            sinks = ["archive", "nothing"]
            [sink.archive]
            type = "file"
            rotate.every = "0s"
            path = "@DIR@/{{listener}}-{{consumer}}.log"
            # A disk that others keep busy may take nothing for a tenth of a second and more, and the load waits.
            when_full = "block"
            [sink.nothing]
            type = "null"
            "#
        ));
        let mut load = Load::new(address, Amount::Seconds(10.0 / SCALE as f64));
        load.rate_per_second = 200_000 / SCALE;
        let report = load.send();
        let sent = report.sent;
        daemon.stats_when("all are delivered", |ledger| {
            list(&ledger["listeners"][0], "sinks").iter().all(|sink| count(sink, "delivered") == sent)
        });
        let ended = daemon.terminate();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert_closed(&ended.ledger, sent);
        let listener = &ended.ledger["listeners"][0];
        assert!(
            list(listener, "lanes").iter().all(|lane| count(lane, "received") > 0),
            "both lanes took part: {listener:#}"
        );
        assert!(list(listener, "lanes").iter().all(|lane| lane["engine"] == name_in(engine)), "{listener:#}");
        assert_each_once(&read_all(ended.directory.path(), "in-0.log"), &report);
    }
}

#[test]
fn datagrams_of_every_size_arrive_byte_for_byte() {
    for engine in engines() {
        let address = free_address();
        let daemon = Daemon::with_config(&format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            {engine}
            max_length = 65535
            batch_size = 8
            sinks = ["archive"]
            [sink.archive]
            type = "file"
            rotate.every = "0s"
            path = "@DIR@/in.log"
            "#
        ));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let payloads: Vec<Vec<u8>> = [0, 1, 2, 63, 64, 65, 512, 1472, 1473, 9000, 65_507]
            .map(|size: usize| (0..size).map(|index| (index * 7 + size) as u8).collect())
            .into();
        for payload in &payloads {
            socket.send_to(payload, address).expect("sent");
        }
        daemon.stats_when("all are delivered", |ledger| {
            count(&ledger["listeners"][0]["sinks"][0], "delivered") == payloads.len() as u64
        });
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, payloads.len() as u64);
        let text = std::fs::read(ended.directory.path().join("in.log")).expect("the file");
        let lines: Vec<&[u8]> = text.strip_suffix(b"\n").expect("whole lines").split(|&byte| byte == b'\n').collect();
        assert_eq!(lines.len(), payloads.len());
        for (line, payload) in lines.iter().zip(&payloads) {
            let expected = payload.strip_suffix(b"\n").unwrap_or(payload);
            assert_eq!(unescape(line).as_deref(), Some(expected), "{} bytes", payload.len());
        }
    }
}

#[test]
fn what_is_longer_than_max_length_is_counted_and_kept_or_dropped_as_told() {
    let policies = [("keep", 3, 0), ("drop", 2, 1)];
    let ways = ["gro = \"off\"", "gro = \"on\""].map(|gro| policies.map(|policy| (gro, policy)));
    for (engine, (gro, (policy, delivered, dropped))) in
        engines().into_iter().flat_map(|engine| ways.concat().into_iter().map(move |way| (engine, way)))
    {
        let address = free_address();
        let daemon = Daemon::with_config(&format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            {engine}
            {gro}
            max_length = 100
            on_truncate = "{policy}"
            sinks = ["archive"]
            [sink.archive]
            type = "file"
            rotate.every = "0s"
            path = "@DIR@/in.log"
            "#
        ));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for size in [99, 101, 100] {
            socket.send_to(&vec![b'x'; size], address).expect("sent");
        }
        daemon.stats_when("all are received", |ledger| count(&ledger["listeners"][0], "received") == 3);
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, 3);
        let listener = &ended.ledger["listeners"][0];
        assert_eq!(count(listener, "truncated"), 1, "{policy}");
        assert_eq!(count(&listener["dropped"], "truncated"), dropped, "{policy}");
        assert_eq!(count(&listener["sinks"][0], "delivered"), delivered, "{policy}");
        let text = std::fs::read(ended.directory.path().join("in.log")).expect("the file");
        let marked = [b"x".repeat(100), b"\\~101".to_vec()].concat();
        let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
        assert_eq!(lines.iter().filter(|line| **line == marked).count(), delivered as usize - 2, "{policy}");
        assert!(lines.iter().all(|line| line.len() <= 100 || **line == marked), "{policy}");
    }
}

#[test]
fn a_dual_stack_listener_takes_both_families() {
    let port = free_address().port();
    let daemon = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "[::]:{port}"
        sinks = ["nothing"]
        [sink.nothing]
        type = "null"
        "#
    ));
    for target in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let target: SocketAddr = target.parse().expect("an address");
        let local = if target.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        UdpSocket::bind(local).expect("a socket").send_to(b"hello", target).expect("sent");
    }
    daemon.stats_when("both are delivered", |ledger| count(&ledger["listeners"][0]["sinks"][0], "delivered") == 2);
    assert_closed(&daemon.terminate().ledger, 2);
}

#[test]
fn several_listeners_share_a_sink_and_each_has_its_own_books() {
    let (first, second) = (free_address(), free_address());
    let daemon = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "one"
        address = "{first}"
        sinks = ["archive"]
        [[listener]]
        name = "two"
        address = "{second}"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        rotate.every = "0s"
        path = "@DIR@/{{listener}}.log"
        "#
    ));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for (address, text) in [(first, "to one"), (second, "to two"), (second, "to two again")] {
        socket.send_to(text.as_bytes(), address).expect("sent");
    }
    daemon.stats_when("all are delivered", |ledger| {
        list(ledger, "listeners").iter().map(|listener| count(&listener["sinks"][0], "delivered")).sum::<u64>() == 3
    });
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 3);
    assert_eq!(count(&ended.ledger["listeners"][1]["sinks"][0], "delivered"), 2);
    assert_eq!(std::fs::read(ended.directory.path().join("one.log")).expect("the file"), b"to one\n");
    assert_eq!(std::fs::read(ended.directory.path().join("two.log")).expect("the file"), b"to two\nto two again\n");
}

#[test]
fn the_arguments_alone_are_enough_to_receive_into_a_file() {
    let address = free_address();
    let daemon = Daemon::with_arguments(&["--listen", &address.to_string(), "--to", "file:@DIR@/in.log"]);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.send_to(b"one line\n", address).expect("sent");
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, 1);
    assert_eq!(std::fs::read(ended.directory.path().join("in.log")).expect("the file"), b"one line\n");
}
