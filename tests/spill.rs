//! What waits on the disk while nobody takes it: nothing of it is lost, and the order of each sender stays.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::util::daemon::{Daemon, free_address};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load, read_text_header};
use crate::util::manager::Manager;
use crate::util::succession::Succession;

/// A listener that hands on to a Unix socket, `@DIR@/out.sock`, with a spill.
pub(crate) fn to_unix(address: SocketAddr, lines: &str) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        receive_buffer = "16MiB"
        sinks = ["out"]
        [sink.out]
        type = "unix"
        path = "@DIR@/out.sock"
        spill = {{ path = "@DIR@/spill", bytes = "64MiB" }}
        {lines}
        "#
    )
}

pub(crate) const STREAM: &str = "socket = \"stream\"";

/// Sends numbered datagrams in small trains, so that nothing overruns.
pub(crate) fn load(address: SocketAddr, datagrams: u64) -> Load {
    let mut load = Load::new(address, Amount::Count(datagrams));
    (load.rate_per_second, load.payload_bytes) = (20_000, 100);
    load
}

pub(crate) fn sink(ledger: &Value) -> &Value {
    &list(&ledger["listeners"][0], "sinks")[0]
}

/// Whether the ledger shows so many datagrams in the spill and none under way.
pub(crate) fn is_spilled(ledger: &Value, datagrams: u64) -> bool {
    count(sink(ledger), "spilled") == datagrams && count(sink(ledger), "in_flight") == 0
}

pub(crate) fn is_delivered(ledger: &Value, datagrams: u64) -> bool {
    count(sink(ledger), "delivered") == datagrams && is_spilled(ledger, 0)
}

/// The segments in the spill of the first consumer.
pub(crate) fn segments(directory: &Path) -> usize {
    let spill = directory.join("spill/0");
    let names = std::fs::read_dir(spill).expect("the spill").map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".spill")).count()
}

/// Takes every connection of a stream, and keeps the lines that came whole.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<(usize, u64)>>>);

impl Lines {
    pub(crate) fn listen(path: &Path) -> Self {
        let _ = std::fs::remove_file(path);
        let (lines, listener) = (Self::default(), UnixListener::bind(path).expect("a free name"));
        let own = lines.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.expect("a connection"));
                let mut line = String::new();
                // The last line of a daemon that was killed may have no end.
                while reader.read_line(&mut line).is_ok_and(|length| length > 0) && line.ends_with('\n') {
                    own.0.lock().expect("no panic").push(read_text_header(&line).expect("a numbered line"));
                    line.clear();
                }
            }
        });
        lines
    }

    fn taken(&self) -> Vec<(usize, u64)> {
        self.0.lock().expect("no panic").clone()
    }

    /// Waits until so many have come.
    pub(crate) fn await_count(&self, datagrams: u64) -> Vec<(usize, u64)> {
        let begun = std::time::Instant::now();
        loop {
            let taken = self.taken();
            if taken.len() as u64 >= datagrams {
                return taken;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{} of {datagrams} have come", taken.len());
            std::thread::yield_now();
        }
    }
}

/// Checks that each number of each flow came once and in its order.
pub(crate) fn assert_each_in_order(taken: &[(usize, u64)], per_flow: &[u64]) {
    let mut next = vec![0; per_flow.len()];
    for &(flow, number) in taken {
        assert_eq!(number, next[flow], "flow {flow}");
        next[flow] += 1;
    }
    assert_eq!(next, per_flow);
}

#[test]
fn a_peer_of_a_stream_that_is_away_for_a_while_misses_nothing_and_gets_it_in_order() {
    let address = free_address();
    let daemon = Daemon::with_config(&to_unix(address, STREAM));
    let first = load(address, 5_000).send();
    daemon.stats_when("all wait on the disk", |ledger| is_spilled(ledger, first.sent));
    assert!(segments(daemon.directory()) > 0);
    let lines = Lines::listen(&daemon.directory().join("out.sock"));
    daemon.stats_when("all are sent", |ledger| is_delivered(ledger, first.sent));
    assert_each_in_order(&lines.await_count(first.sent), &first.per_flow);
    assert_eq!(segments(daemon.directory()), 0, "what is sent leaves nothing behind");
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, first.sent);
    for words in ["now waits in", "spill is empty again; 5000 datagrams were sent from it"] {
        assert_eq!(ended.stderr.matches(words).count(), 1, "{words}: {}", ended.stderr);
    }
}

#[test]
fn messages_for_a_peer_that_is_gone_or_reads_nothing_wait_and_come_in_order() {
    let address = free_address();
    let daemon = Daemon::with_config(&to_unix(address, ""));
    let peer = UnixDatagram::bind(daemon.directory().join("out.sock")).expect("a free name");
    // A few fit the queue of a socket that nobody reads.
    let report = load(address, 3_000).send();
    let ledger = daemon.stats_when("all others wait on the disk", |ledger| {
        count(sink(ledger), "spilled") + count(sink(ledger), "delivered") == report.sent
    });
    assert!(count(sink(&ledger), "spilled") > 2_000, "{ledger:#}");
    let mut taken = Vec::new();
    let mut bytes = [0; 2048];
    while (taken.len() as u64) < report.sent {
        let length = peer.recv(&mut bytes).expect("a message");
        taken.push(read_text_header(&String::from_utf8_lossy(&bytes[..length])).expect("a number"));
    }
    assert_each_in_order(&taken, &report.per_flow);
    daemon.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_closed(&daemon.terminate().ledger, report.sent);
}

#[test]
fn a_port_that_nobody_listens_on_gets_everything_once_when_somebody_does() {
    let (address, to) = (free_address(), free_address());
    let daemon = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        sinks = ["out"]
        [sink.out]
        type = "udp"
        destinations = ["{to}"]
        spill = {{ path = "@DIR@/spill", bytes = "64MiB" }}
        "#
    ));
    // As many as an ordinary socket holds when they come all at once.
    let report = load(address, 160).send();
    let ledger = daemon.stats_when("all wait on the disk", |ledger| is_spilled(ledger, report.sent));
    assert!(count(&sink(&ledger)["destinations"][0], "icmp_errors") > 0, "{ledger:#}");
    let socket = UdpSocket::bind(to).expect("still free");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
    let taker = std::thread::spawn(move || {
        let (mut bytes, mut taken) = ([0; 2048], Vec::new());
        while (taken.len() as u64) < report.sent {
            let length = socket.recv(&mut bytes).expect("a datagram");
            taken.push(read_text_header(&String::from_utf8_lossy(&bytes[..length])).expect("a number"));
        }
        socket.set_nonblocking(true).expect("it can be");
        assert!(socket.recv(&mut bytes).is_err(), "nothing comes twice");
        assert_each_in_order(&taken, &report.per_flow);
        report.sent
    });
    let sent = taker.join().expect("the order and the numbers");
    daemon.stats_when("all are sent", |ledger| is_delivered(ledger, sent));
    assert_closed(&daemon.terminate().ledger, sent);
}

#[test]
fn what_waits_at_the_end_is_the_opening_balance_of_the_next_daemon_which_sends_it_first() {
    let address = free_address();
    let mut manager = Manager::new();
    manager.start(&to_unix(address, STREAM));
    let report = load(address, 4_000).send();
    manager.stats_when("all wait on the disk", |ledger| is_spilled(ledger, report.sent));
    let ended = manager.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, report.sent);
    assert_eq!(count(sink(&ended.ledger), "spilled"), report.sent);
    assert!(ended.stderr.contains("4000 datagrams stay in"), "{}", ended.stderr);
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    manager.start(&to_unix(address, STREAM));
    let ledger = manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_eq!(count(sink(&ledger), "spilled_before"), report.sent);
    assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
    let ended = manager.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, 0);
    let words = "sends 4000 datagrams first that waited in";
    assert!(ended.stderr.contains(words) && ended.stderr.contains("at most 0 of them"), "{}", ended.stderr);
}

#[test]
fn a_full_spill_is_what_when_full_says_and_every_datagram_is_in_the_ledger() {
    for policy in ["drop_newest", "drop_oldest"] {
        let address = free_address();
        let text = to_unix(address, &format!("when_full = \"{policy}\"\n{STREAM}")).replace("64MiB", "4MiB");
        let daemon = Daemon::with_config(&text);
        let mut load = load(address, 8_000);
        load.payload_bytes = 1_000;
        let report = load.send();
        let ledger = daemon.stats_when("all are decided", |ledger| count(sink(ledger), "in_flight") == 0);
        let (spilled, lost) = (count(sink(&ledger), "spilled"), count(&sink(&ledger)["dropped"], "spill_full"));
        assert_eq!(spilled + lost, report.sent, "{ledger:#}");
        assert!(spilled > 2_000 && lost > 2_000, "{ledger:#}");
        let lines = Lines::listen(&daemon.directory().join("out.sock"));
        daemon.stats_when("all are sent", |ledger| is_delivered(ledger, spilled));
        let taken = lines.await_count(spilled);
        let is_first = |(flow, number): &(usize, u64)| (*flow, *number) == (0, 0);
        assert_eq!(taken.iter().any(is_first), policy == "drop_newest", "who made room");
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, report.sent);
        assert_eq!(ended.stderr.matches("is full (").count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_reload_hands_a_spill_over_to_the_changed_sink_and_keeps_the_files_of_one_that_is_gone() {
    let address = free_address();
    let mut manager = Manager::new();
    manager.start(&to_unix(address, STREAM));
    let report = load(address, 3_000).send();
    manager.stats_when("all wait on the disk", |ledger| is_spilled(ledger, report.sent));
    // Another limit is another sink, which has the same spill.
    let larger = to_unix(address, STREAM).replace("64MiB", "32MiB");
    manager.reload(&larger);
    let ledger = manager.stats_when("it is the new sink's", |ledger| is_spilled(ledger, report.sent));
    assert_eq!((count(sink(&ledger), "offered"), count(sink(&ledger), "spilled_before")), (report.sent, 0));
    let without = larger.lines().filter(|line| !line.contains("spill =")).collect::<Vec<_>>().join("\n");
    manager.reload(&without);
    assert!(segments(manager.directory()) > 0, "what nobody has sent stays");
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    manager.reload(&larger);
    manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
    let ended = manager.end_by(Signal::SIGTERM);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, report.sent);
    assert!(ended.stderr.contains("3000 datagrams stay in"), "{}", ended.stderr);
}

#[test]
fn a_daemon_that_takes_over_goes_on_with_the_spill_and_the_order_stays() {
    let (address, mut succession) = (free_address(), Succession::new());
    let text = to_unix(address, STREAM);
    let first = succession.start(&text);
    let sending = load(address, 20_000).spawn();
    succession.stats_when("it spills", |ledger| count(sink(ledger), "spilled") > 3_000);
    let (second, ended) = succession.succeed(first, &text);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, count(&ended.ledger["listeners"][0], "received"));
    let lines = Lines::listen(&succession.directory().join("out.sock"));
    let report = sending.join().expect("it sends");
    let taken = lines.await_count(report.sent);
    assert_each_in_order(&taken, &report.per_flow);
    let before = count(sink(&ended.ledger), "spilled");
    let is_over = |ledger: &Value| is_spilled(ledger, 0) && count(sink(ledger), "spilled_before") == before;
    succession.stats_when("all are sent", is_over);
    let ended = second.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, count(&ended.ledger["listeners"][0], "received"));
}

/// How many datagrams the daemon that has just begun may send a second time.
fn said_twice(stderr: &str) -> u64 {
    let before = stderr.split(" of them were sent before").next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// What a daemon has put into its spill or delivered from what it received itself.
fn accepted(ledger: &Value) -> u64 {
    let sink = sink(ledger);
    // What a kill has torn is in the opening balance, too.
    let torn = count(&sink["dropped"], "spill_torn");
    count(sink, "spilled") + count(sink, "delivered") + torn - count(sink, "spilled_before")
}

#[test]
fn a_daemon_that_is_killed_while_it_spills_and_while_it_sends_loses_nothing_it_had_and_says_what_comes_twice() {
    let address = free_address();
    let text = to_unix(address, STREAM);
    let mut manager = Manager::new();
    manager.start(&text);
    let sending = load(address, 60_000).spawn();
    let (mut had, mut twice, mut counted, mut ends) = (0, 0, 0, Vec::new());
    for _ in 0..3 {
        let ledger = manager.stats_when("it spills", |ledger| accepted(ledger) > 5_000);
        had += accepted(&ledger);
        counted += count(sink(&ledger), "spill_repeats_at_most");
        ends.push(manager.end_by(Signal::SIGKILL));
        manager.start(&text);
    }
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    for _ in 0..3 {
        let delivers = |ledger: &Value| count(sink(ledger), "delivered") > 0;
        let ledger = manager.stats_when("it sends", delivers);
        had += accepted(&ledger);
        counted += count(sink(&ledger), "spill_repeats_at_most");
        ends.push(manager.end_by(Signal::SIGKILL));
        manager.start(&text);
    }
    let report = sending.join().expect("it sends");
    let directory = manager.directory().to_owned();
    let ledger = manager.stats_when("all are sent", |ledger| {
        // What waits on the disk is in the books before it is gone from there.
        let is_over = segments(&directory) == 0 && is_spilled(ledger, 0);
        is_over && count(&ledger["listeners"][0], "received") == count(sink(ledger), "offered")
    });
    had += accepted(&ledger);
    counted += count(sink(&ledger), "spill_repeats_at_most");
    ends.push(manager.end_by(Signal::SIGTERM));
    for ended in &ends {
        twice += said_twice(&ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
    assert_eq!(counted, twice, "the ledger and the log say the same");
    let mut taken = lines.await_count(had.min(report.sent));
    let (mut last, mut seen) = (vec![None; report.per_flow.len()], HashSet::new());
    taken.retain(|&one| seen.insert(one));
    for &(flow, number) in &taken {
        assert!(last[flow] < Some(number), "flow {flow}: {number} came after {:?}", last[flow]);
        last[flow] = Some(number);
    }
    let repeats = (lines.taken().len() - taken.len()) as u64;
    assert!(repeats <= twice, "{repeats} came twice, and {twice} were said to");
    assert!(taken.len() as u64 >= had, "{} came of {had} that were accepted", taken.len());
}
