//! What waits on the disk while no peer takes it: nothing of it is lost, and the order of each sender stays; and a
//! spill that is full, damaged, or cannot be used.

use std::collections::HashSet;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::util::*;

/// A listener that hands on to a Unix socket, `@DIR@/out.sock`, with a spill.
fn to_unix(address: SocketAddr, keys: &str) -> Setup {
    let setup = Setup::at(address).keys("receive_buffer = '16MiB'").sink("out", "unix", "path = '@DIR@/out.sock'");
    setup.keys("spill = { path = '@DIR@/spill', bytes = '64MiB' }").keys(keys)
}

const STREAM: &str = "socket = 'stream'";

/// Sends numbered datagrams in small trains, so that nothing overruns.
fn load(address: SocketAddr, datagrams: u64) -> Load {
    Load::new(address, Amount::Count(datagrams)).rate(20_000).bytes(100)
}

/// Whether the ledger shows so many datagrams in the spill and none under way.
fn is_spilled(ledger: &Value, datagrams: u64) -> bool {
    count(sink(ledger), "spilled") == datagrams && count(sink(ledger), "in_flight") == 0
}

fn is_delivered(ledger: &Value, datagrams: u64) -> bool {
    delivered(ledger) == datagrams && is_spilled(ledger, 0)
}

/// The segments in the spill of the first consumer.
fn segments(directory: &Path) -> usize {
    let spill = directory.join("spill/0");
    let names = std::fs::read_dir(spill).expect("the spill").map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".spill")).count()
}

/// Takes every connection of a stream, and keeps the lines that came whole.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(usize, u64)>>>);

impl Lines {
    fn listen(path: &Path) -> Self {
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
    fn await_count(&self, datagrams: u64) -> Vec<(usize, u64)> {
        until(&format!("{datagrams} have come"), || self.taken().len() as u64 >= datagrams);
        self.taken()
    }
}

/// Checks that each number of each flow came once and in its order.
fn assert_each_in_order(taken: &[(usize, u64)], per_flow: &[u64]) {
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
    let daemon = to_unix(address, STREAM).start();
    let first = load(address, 5_000).send();
    daemon.stats_when("all wait on the disk", |ledger| is_spilled(ledger, first.sent));
    assert!(segments(daemon.directory()) > 0);
    let lines = Lines::listen(&daemon.directory().join("out.sock"));
    daemon.stats_when("all are sent", |ledger| is_delivered(ledger, first.sent));
    assert_each_in_order(&lines.await_count(first.sent), &first.per_flow);
    assert_eq!(segments(daemon.directory()), 0, "what is sent leaves nothing behind");
    let ended = daemon.end(first.sent);
    for words in ["now waits in", "spill is empty again; 5000 datagrams were sent from it"] {
        ended.assert_logged(words, 1);
    }
}

#[test]
fn messages_for_a_peer_that_is_gone_or_reads_nothing_wait_and_come_in_order() {
    let address = free_address();
    let daemon = to_unix(address, "").start();
    let peer = UnixDatagram::bind(daemon.directory().join("out.sock")).expect("a free name");
    // A few fit the queue of a socket that is not read.
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
    daemon.end(report.sent);
}

#[test]
fn a_port_without_a_listener_gets_everything_once_when_there_is_one() {
    let (address, to) = (free_address(), free_address());
    let daemon = Setup::at(address)
        .sink("out", "udp", format!("destinations = ['{to}']\nspill = {{ path = '@DIR@/spill', bytes = '64MiB' }}"))
        .start();
    // As many as an ordinary socket holds when they come all at once.
    let report = load(address, 160).send();
    let ledger = daemon.stats_when("all wait on the disk", |ledger| is_spilled(ledger, report.sent));
    assert!(count(&sink(&ledger)["destinations"][0], "icmp_errors") > 0, "{ledger:#}");
    let socket = socket_at(to);
    let taker = std::thread::spawn(move || {
        let (mut bytes, mut taken) = ([0; 2048], Vec::new());
        while (taken.len() as u64) < report.sent {
            let length = socket.recv(&mut bytes).expect("a datagram");
            taken.push(read_text_header(&String::from_utf8_lossy(&bytes[..length])).expect("a number"));
        }
        assert_eq!(socket.count_all(), 0, "nothing comes twice");
        assert_each_in_order(&taken, &report.per_flow);
        report.sent
    });
    let sent = taker.join().expect("the order and the numbers");
    daemon.stats_when("all are sent", |ledger| is_delivered(ledger, sent));
    daemon.end(sent);
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
    ended.logged(&["4000 datagrams stay in"]);
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    manager.start(&to_unix(address, STREAM));
    let ledger = manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_eq!(count(sink(&ledger), "spilled_before"), report.sent);
    assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
    let ended = manager.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, 0);
    let words = "sends 4000 datagrams first that waited in";
    ended.logged(&[words, "at most 0 of them"]);
}

#[test]
fn a_full_spill_is_what_when_full_says_and_every_datagram_is_in_the_ledger() {
    for policy in ["drop_newest", "drop_oldest"] {
        let address = free_address();
        let setup = to_unix(address, &format!("when_full = '{policy}'\n{STREAM}")).replace("64MiB", "4MiB");
        let daemon = setup.start();
        let report = load(address, 8_000).bytes(1_000).send();
        let ledger = daemon.until_settled(report.sent);
        let (spilled, lost) = (count(sink(&ledger), "spilled"), dropped(sink(&ledger), "spill_full"));
        assert_eq!(spilled + lost, report.sent, "{ledger:#}");
        assert!(spilled > 2_000 && lost > 2_000, "{ledger:#}");
        let lines = Lines::listen(&daemon.directory().join("out.sock"));
        daemon.stats_when("all are sent", |ledger| is_delivered(ledger, spilled));
        let taken = lines.await_count(spilled);
        let is_first = |(flow, number): &(usize, u64)| (*flow, *number) == (0, 0);
        assert_eq!(taken.iter().any(is_first), policy == "drop_newest", "who made room");
        let ended = daemon.end(report.sent);
        ended.assert_logged("is full (", 1);
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
    manager.reload_and_hear(&larger);
    let ledger = manager.stats_when("it is the new sink's", |ledger| is_spilled(ledger, report.sent));
    assert_eq!((count(sink(&ledger), "offered"), count(sink(&ledger), "spilled_before")), (report.sent, 0));
    let without = larger.text().lines().filter(|line| !line.contains("spill =")).collect::<Vec<_>>().join("\n");
    manager.reload_and_hear(without);
    assert!(segments(manager.directory()) > 0, "what was not sent stays");
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    manager.reload_and_hear(&larger);
    manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
    let ended = manager.end_by(Signal::SIGTERM);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, report.sent);
    ended.logged(&["3000 datagrams stay in"]);
}

#[test]
fn a_daemon_that_takes_over_goes_on_with_the_spill_and_the_order_stays() {
    let (address, mut site) = (free_address(), Site::new());
    let text = to_unix(address, STREAM);
    let first = site.start(&text);
    let sending = load(address, 20_000).spawn();
    site.stats_when("it spills", |ledger| count(sink(ledger), "spilled") > 3_000);
    let (second, ended) = site.succeed(first, &text);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, received(&ended.ledger));
    let lines = Lines::listen(&site.directory().join("out.sock"));
    let report = sending.join().expect("it sends");
    let taken = lines.await_count(report.sent);
    assert_each_in_order(&taken, &report.per_flow);
    let before = count(sink(&ended.ledger), "spilled");
    let is_over = |ledger: &Value| is_spilled(ledger, 0) && count(sink(ledger), "spilled_before") == before;
    site.stats_when("all are sent", is_over);
    let ended = second.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, received(&ended.ledger));
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
    let torn = dropped(sink, "spill_torn");
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
        // What waits on the disk is in the ledger before it is gone from there.
        let is_over = segments(&directory) == 0 && is_spilled(ledger, 0);
        is_over && received(ledger) == count(sink(ledger), "offered")
    });
    had += accepted(&ledger);
    counted += count(sink(&ledger), "spill_repeats_at_most");
    ends.push(manager.end_by(Signal::SIGTERM));
    for ended in &ends {
        twice += said_twice(&ended.stderr);
        ended.assert_logged("panicked", 0);
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

#[test]
fn a_full_spill_that_blocks_loses_nothing_while_it_runs_and_at_the_end_only_what_waits_in_memory() {
    let address = free_address();
    let text = to_unix(address, &format!("when_full = 'block'\nqueue_bytes = '16MiB'\n{STREAM}"));
    let text = text.replace("64MiB", "4MiB");
    let mut manager = Manager::new();
    let load = load(address, 8_000).bytes(1_000);
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
            assert_eq!(dropped(sink(&ended.ledger), "sink_error"), report.sent - spilled);
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
            ended.assert_logged("the sink waits for room", 1);
            std::fs::remove_file(manager.directory().join("out.sock")).expect("its name");
        }
    }
}

#[test]
fn a_spill_that_was_damaged_while_no_daemon_ran_is_sent_but_for_the_damage_which_is_counted_and_named() {
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
    std::fs::write(spill.join("00000000000000000009.spill"), vec![b'x'; 4096]).expect("not udpd's");
    let lines = Lines::listen(&manager.directory().join("out.sock"));
    manager.start(&to_unix(address, STREAM));
    let ledger = manager.stats_when("all that is whole is sent", |ledger| {
        let sink = sink(ledger);
        count(sink, "spilled_before") > 0 && is_spilled(ledger, 0)
    });
    let (delivered, torn) = (count(sink(&ledger), "delivered"), dropped(sink(&ledger), "spill_torn"));
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
        "is damaged or not a spill, and udpd cannot read it",
        "are damaged and count",
    ] {
        ended.assert_logged(words, 1);
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
