//! What waits on the disk while no peer takes it: nothing of it is lost, and the order of each sender stays; and a
//! spill that is full, damaged, or cannot be used.

use std::collections::{HashMap, HashSet};
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::util::*;

/// A listener that hands on to a Unix socket, `@DIR@/out.sock`, with a spill.
fn to_unix(keys: &str) -> Setup {
    let setup = Setup::new().keys("receive_buffer = '16MiB'").sink("out", "unix", "path = '@DIR@/out.sock'");
    setup.keys("spill = { path = '@DIR@/spill', bytes = '64MiB' }").keys(keys)
}

const STREAM: &str = "socket = 'stream'";

/// So many numbered datagrams at a rate at which nothing overruns.
fn load(to: &Setup, datagrams: u64) -> Load {
    Load::new(to.address, Amount::Count(datagrams)).rate(20_000).bytes(100)
}

/// A service with this configuration that runs, and what of so many datagrams waits on its disk: all.
fn spilled(setup: &Setup, datagrams: u64) -> (Manager, LoadReport) {
    let mut manager = Manager::new();
    manager.start(setup);
    let report = load(setup, datagrams).send();
    manager.stats_when("all wait on the disk", |ledger| is_spilled(ledger, report.sent));
    (manager, report)
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
    let names = std::fs::read_dir(directory.join("spill/0")).expect("the spill").flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().ends_with(".spill")).count()
}

/// Takes one connection of a stream after the other, and keeps the lines that came whole.
struct Lines {
    path: PathBuf,
    taken: Arc<Mutex<Vec<(usize, u64)>>>,
    taking: JoinHandle<()>,
}

/// What the test says to it in the end.
const END: &str = "end\n";

impl Lines {
    /// Listens where the daemon in this directory hands on.
    fn listen(directory: &Path) -> Self {
        let path = directory.join("out.sock");
        let _ = std::fs::remove_file(&path);
        let (listener, taken) = (UnixListener::bind(&path).expect("a free name"), Arc::default());
        let own: Arc<Mutex<Vec<(usize, u64)>>> = Arc::clone(&taken);
        let taking = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.expect("a connection"));
                let mut line = String::new();
                // The last line of a daemon that was killed may have no end.
                while reader.read_line(&mut line).is_ok_and(|length| length > 0) && line.ends_with('\n') {
                    if line == END {
                        return;
                    }
                    own.lock().expect("no panic").push(read_text_header(&line).expect("a numbered line"));
                    line.clear();
                }
            }
        });
        Self { path, taken, taking }
    }

    /// All that has come, when no daemon sends any more.
    fn end(self) -> Vec<(usize, u64)> {
        let mut stream = UnixStream::connect(&self.path).expect("it listens");
        stream.write_all(END.as_bytes()).expect("it takes every line");
        self.taking.join().expect("numbered lines");
        std::mem::take(&mut *self.taken.lock().expect("no panic"))
    }

    fn taken(&self) -> Vec<(usize, u64)> {
        self.taken.lock().expect("no panic").clone()
    }

    /// Waits until so many have come.
    fn await_count(&self, datagrams: u64) -> Vec<(usize, u64)> {
        until(&format!("{datagrams} have come"), || self.taken().len() as u64 >= datagrams);
        self.taken()
    }
}

/// Checks that the numbers of each flow only grow.
fn assert_in_order(taken: &[(usize, u64)]) {
    let mut last = HashMap::new();
    for &(flow, number) in taken {
        let before = last.insert(flow, number);
        assert!(before < Some(number), "flow {flow}: {number} came after {before:?}");
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
    let setup = to_unix(STREAM);
    let daemon = setup.start();
    let first = load(&setup, 5_000).send();
    daemon.stats_when("all wait on the disk", |ledger| is_spilled(ledger, first.sent));
    assert!(segments(daemon.directory()) > 0);
    let lines = Lines::listen(daemon.directory());
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
    let setup = to_unix("");
    let daemon = setup.start();
    let peer = UnixDatagram::bind(daemon.directory().join("out.sock")).expect("a free name");
    // A few fit the queue of a socket that is not read.
    let report = load(&setup, 3_000).send();
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
    let to = free_address();
    let setup = Setup::new().relay("out", &[to]).keys("spill = { path = '@DIR@/spill', bytes = '64MiB' }");
    let daemon = setup.start();
    // As many as an ordinary socket holds when they come all at once.
    let report = load(&setup, 160).send();
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
    let setup = to_unix(STREAM);
    let (mut manager, report) = spilled(&setup, 4_000);
    let ended = manager.end(report.sent);
    assert_eq!(count(sink(&ended.ledger), "spilled"), report.sent);
    ended.logged(&["4000 datagrams stay in"]);
    let lines = Lines::listen(manager.directory());
    manager.start(&setup);
    let ledger = manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_eq!(count(sink(&ledger), "spilled_before"), report.sent);
    assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
    manager.end(0).logged(&["sends 4000 datagrams first that waited in", "at most 0 of them"]);
}

#[test]
fn a_full_spill_is_what_when_full_says_and_every_datagram_is_in_the_ledger() {
    for policy in ["drop_newest", "drop_oldest"] {
        let setup = to_unix(&format!("when_full = '{policy}'\n{STREAM}")).replace("64MiB", "4MiB");
        let daemon = setup.start();
        let report = load(&setup, 8_000).bytes(1_000).send();
        let ledger = daemon.until_settled(report.sent);
        let (spilled, lost) = (count(sink(&ledger), "spilled"), dropped(sink(&ledger), "spill_full"));
        assert_eq!(spilled + lost, report.sent, "{ledger:#}");
        assert!(spilled > 2_000 && lost > 2_000, "{ledger:#}");
        let lines = Lines::listen(daemon.directory());
        daemon.stats_when("all are sent", |ledger| is_delivered(ledger, spilled));
        let taken = lines.await_count(spilled);
        let is_first = |(flow, number): &(usize, u64)| (*flow, *number) == (0, 0);
        assert_eq!(taken.iter().any(is_first), policy == "drop_newest", "who made room");
        daemon.end(report.sent).assert_logged("is full (", 1);
    }
}

#[test]
fn a_reload_hands_a_spill_over_to_the_changed_sink_and_keeps_the_files_of_one_that_is_gone() {
    let setup = to_unix(STREAM);
    let (mut manager, report) = spilled(&setup, 3_000);
    // Another limit is another sink, which has the same spill.
    let larger = setup.replace("64MiB", "32MiB");
    manager.reload_and_hear(&larger);
    let ledger = manager.stats_when("it is the new sink's", |ledger| is_spilled(ledger, report.sent));
    assert_eq!((count(sink(&ledger), "offered"), count(sink(&ledger), "spilled_before")), (report.sent, 0));
    let without = larger.text().lines().filter(|line| !line.contains("spill =")).collect::<Vec<_>>().join("\n");
    manager.reload_and_hear(without);
    assert!(segments(manager.directory()) > 0, "what was not sent stays");
    let lines = Lines::listen(manager.directory());
    manager.reload_and_hear(&larger);
    manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
    assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
    manager.end(report.sent).logged(&["3000 datagrams stay in"]);
}

#[test]
fn a_daemon_that_takes_over_goes_on_with_the_spill_and_the_order_stays() {
    let (setup, mut site) = (to_unix(STREAM), Site::new());
    let first = site.start(&setup);
    let sending = load(&setup, 20_000).spawn();
    site.stats_when("it spills", |ledger| count(sink(ledger), "spilled") > 3_000);
    let (second, ended) = site.succeed(first, &setup);
    ended.received();
    let lines = Lines::listen(site.directory());
    let report = sending.join().expect("it sends");
    let taken = lines.await_count(report.sent);
    assert_each_in_order(&taken, &report.per_flow);
    let before = count(sink(&ended.ledger), "spilled");
    let is_over = |ledger: &Value| is_spilled(ledger, 0) && count(sink(ledger), "spilled_before") == before;
    site.stats_when("all are sent", is_over);
    second.terminate().received();
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
    let (setup, mut manager) = (to_unix(STREAM), Manager::new());
    manager.start(&setup);
    let (mut lines, mut loads, mut sent, mut had, mut twice) = (None, Vec::new(), 0_u64, 0, 0);
    for round in 0..7 {
        // Each has a load of its own, so that it has something to take, however slow the machine is.
        let own = Load { first_flow: 16 * round, ..load(&setup, 10_000) };
        loads.push(own.spawn());
        let is_last = round == 6;
        if is_last {
            sent = loads.drain(..).map(|load| load.join().expect("it sends").sent).sum();
        }
        let directory = manager.directory().to_owned();
        let ledger = manager.stats_when("the moment of its end", |ledger| match round {
            ..3 => accepted(ledger) > 2_000,
            3..6 => count(sink(ledger), "delivered") > 0,
            // What waits on the disk is in the ledger before it is gone from there.
            _ => {
                let is_over = segments(&directory) == 0 && is_spilled(ledger, 0);
                is_over && received(ledger) == count(sink(ledger), "offered")
            }
        });
        had += accepted(&ledger);
        let repeats = count(sink(&ledger), "spill_repeats_at_most");
        if repeats > 0 {
            // What a killed daemon was about to log is lost.
            manager.await_line(" of them were sent before");
        }
        let ended = manager.end_by(if is_last { Signal::SIGTERM } else { Signal::SIGKILL });
        assert_eq!(said_twice(&ended.stderr), repeats, "the ledger and the log say the same");
        ended.assert_logged("panicked", 0);
        twice += repeats;
        if round == 2 {
            lines = Some(Lines::listen(&directory));
        }
        if !is_last {
            manager.start(&setup);
        }
    }
    let all = lines.expect("since the third kill").end();
    let mut seen = HashSet::new();
    let taken: Vec<_> = all.iter().copied().filter(|one| seen.insert(*one)).collect();
    assert_in_order(&taken);
    let repeats = (all.len() - taken.len()) as u64;
    assert!(repeats <= twice, "{repeats} came twice, and {twice} were said to");
    assert!(taken.len() as u64 >= had, "{} came of {had} that were accepted", taken.len());
    assert!(taken.len() as u64 <= sent, "{} came of {sent}", taken.len());
}

#[test]
fn a_full_spill_that_blocks_loses_nothing_while_it_runs_and_at_the_end_only_what_waits_in_memory() {
    let setup = to_unix(&format!("when_full = 'block'\nqueue_bytes = '16MiB'\n{STREAM}")).replace("64MiB", "4MiB");
    let mut manager = Manager::new();
    let load = load(&setup, 8_000).bytes(1_000);
    for ends_while_full in [false, true] {
        manager.start(&setup);
        let report = load.clone().send();
        let is_full = |ledger: &Value| {
            let sink = sink(ledger);
            count(sink, "offered") == report.sent && count(sink, "in_flight") > 2_000 && count(sink, "spilled") > 2_000
        };
        let ledger = manager.stats_when("the spill is full and the rest waits", is_full);
        let spilled = count(sink(&ledger), "spilled");
        assert_eq!(spilled + count(sink(&ledger), "in_flight"), report.sent, "{ledger:#}");
        if ends_while_full {
            let ended = manager.end(report.sent);
            // On a busy host the spill is full only after the last look.
            let before = spilled;
            let spilled = count(sink(&ended.ledger), "spilled");
            assert!(spilled >= before, "{spilled} of {before} are still there");
            // Four mebibytes hold no more of a kilobyte each.
            assert!(spilled <= (4 << 20) / 1_000, "{spilled} are more than the spill holds");
            assert_eq!(dropped(sink(&ended.ledger), "sink_error"), report.sent - spilled);
            let lines = Lines::listen(manager.directory());
            manager.start(&setup);
            manager.stats_when("what was in the spill is sent", |ledger| is_delivered(ledger, spilled));
            let taken = lines.await_count(spilled);
            assert_eq!(taken.iter().collect::<HashSet<_>>().len() as u64, spilled);
            manager.end(0);
        } else {
            let lines = Lines::listen(manager.directory());
            manager.stats_when("all are sent", |ledger| is_delivered(ledger, report.sent));
            assert_each_in_order(&lines.await_count(report.sent), &report.per_flow);
            manager.end(report.sent).assert_logged("the sink waits for room", 1);
            std::fs::remove_file(manager.directory().join("out.sock")).expect("its name");
        }
    }
}

#[test]
fn a_spill_that_was_damaged_while_no_daemon_ran_is_sent_but_for_the_damage_which_is_counted_and_named() {
    let setup = to_unix(STREAM);
    let (mut manager, report) = spilled(&setup, 20_000);
    manager.end(report.sent);
    let spill = manager.directory().join("spill/0");
    let (segment, mut bytes) = files(&spill, "0").into_iter().find(|(name, _)| name.ends_with(".spill")).expect("one");
    // In what fills a payload: damage to a header is told by another line.
    let middle = (bytes.len() / 2..).find(|&at| bytes[at..].starts_with(b"xxx")).expect("a payload is filled up");
    let end = bytes.len() - 5;
    bytes[middle] ^= 1;
    std::fs::write(spill.join(segment), &bytes[..end]).expect("a bit flipped, and the end cut off");
    std::fs::write(spill.join("00000000000000000009.spill"), vec![b'x'; 4096]).expect("not udpd's");
    let lines = Lines::listen(manager.directory());
    manager.start(&setup);
    let ledger = manager.stats_when("all that is whole is sent", |ledger| {
        let sink = sink(ledger);
        count(sink, "spilled_before") > 0 && is_spilled(ledger, 0)
    });
    let (delivered, torn) = (count(sink(&ledger), "delivered"), dropped(sink(&ledger), "spill_torn"));
    assert_eq!(delivered + torn, report.sent, "the heads of its frames say what is lost: {ledger:#}");
    assert!(torn > 0 && delivered > 10_000, "{ledger:#}");
    let taken = lines.await_count(delivered);
    assert_in_order(&taken);
    let ended = manager.end(0);
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
    let text = to_unix(STREAM);
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
        finished.logged(&["cannot use the spill", path.to_str().expect("UTF-8")]);
        if is_directory { std::fs::remove_dir_all(spill.join("0")) } else { std::fs::remove_file(path) }
            .expect("removed");
    }
    manager.start(&text);
    manager.end(0);
}

#[test]
fn a_spill_that_others_may_have_written_or_that_is_a_link_is_a_start_refused_and_what_udpd_makes_is_its_owners() {
    let text = to_unix(STREAM);
    let mut manager = Manager::new();
    manager.start(&text);
    let spill = manager.directory().join("spill");
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o7777;
    assert_eq!([mode(&spill), mode(&spill.join("0")), mode(&spill.join("0/lock"))], [0o700, 0o700, 0o600]);
    assert_eq!(mode(&manager.directory().join("control.sock")), 0o660);
    manager.end(0);
    assert_eq!(mode(&manager.directory().join("ledger.json")) & !0o640, 0);
    let refused = |manager: &mut Manager, path: &Path, words: &str| {
        let finished = manager.start_in_vain(&text);
        assert_eq!(finished.status.code(), Some(77), "{}", finished.stderr);
        finished.logged(&[path.to_str().expect("UTF-8"), words]);
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
