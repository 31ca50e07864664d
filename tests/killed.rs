//! A daemon that is killed: the next one says how much the dead one may have lost, and what the kernel dropped while
//! no daemon ran is in its ledger.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::util::manager::RECORD;
use crate::util::*;

/// The words of the warning of a process that comes after one that was killed.
const KILLED: &str = "was killed or has crashed";

/// A listener that hands on to a Unix socket, `@DIR@/out.sock`.
fn service(address: SocketAddr, lines: &str) -> Setup {
    Setup::at(address).keys(lines).sink("out", "unix", "path = '@DIR@/out.sock'")
}

/// Takes what the daemon hands on.
fn destination(manager: &Manager) -> UnixDatagram {
    UnixDatagram::bind(manager.directory().join("out.sock")).expect("a name that is free")
}

/// A listener with a small receive buffer and a sink that only counts.
fn counting(address: SocketAddr, lanes: usize) -> Setup {
    Setup::at(address).keys(format!("receive_buffer = '64KiB'\nlanes = {lanes}")).null("out")
}

fn send(address: SocketAddr, datagrams: u64) {
    assert_eq!(Load::new(address, Amount::Count(datagrams)).rate(50_000).send().sent, datagrams);
}

/// Waits until nothing moves any more, and returns how many datagrams the daemon has written down as under way: the
/// same in both places of the record, of which it writes one after the other.
fn await_in_record(manager: &Manager) -> u64 {
    let (file, mut found) = (File::from(manager.copy_of(RECORD)), 0);
    until("both places say the same", || {
        let text = [0, 1 << 20].map(|place| {
            let mut bytes = vec![0; 4096];
            let length = file.read_at(&mut bytes, place).expect("it can be read");
            String::from_utf8_lossy(&bytes[..length]).trim_end_matches('\0').to_owned()
        });
        let in_flight = text.each_ref().map(|text| {
            let line = text.lines().find(|line| line.starts_with('{'))?;
            serde_json::from_str::<Value>(line).ok()?["in_flight"].as_u64()
        });
        found = in_flight[0].unwrap_or(0);
        found > 0 && in_flight[0] == in_flight[1]
    });
    found
}

fn before(ledger: &Value) -> &Value {
    &ledger["before"]
}

#[test]
fn what_a_killed_process_held_is_within_what_the_next_one_says_and_after_a_clean_end_nothing_is() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        let out = destination(&manager);
        manager.start(&service(address, engine));
        assert_eq!(manager.all_names(), ["in.0", RECORD]);
        // Nothing is taken from the destination, so all but a few wait in the daemon.
        send(address, 3000);
        let ledger = manager.stats_when("all is received, and what the destination took counts", |ledger| {
            let listener = listener(ledger);
            count(listener, "received") == 3000 && count(&listener["sinks"][0], "delivered") > 0
        });
        assert_eq!(*before(&ledger), Value::Null, "it is the first");
        let held = await_in_record(&manager);
        assert!(held > 1000, "{ledger:#}");
        let pid = manager.process().pid();
        assert!(!manager.end_by(Signal::SIGKILL).stderr.contains(KILLED));
        assert_eq!(3000 - out.count_all(), held, "{engine}: all that was under way is lost, and nothing else");
        manager.start(&service(address, engine));
        let ledger = manager.stats();
        let said = before(&ledger);
        assert_eq!((&said["pid"], &said["ended"], &said["in_flight"]), (&json!(pid), &json!(false), &json!(held)));
        assert!(count(said, "lost_datagrams_at_most") >= held, "{said:#}");
        assert!(count(said, "lost_bytes_at_most") >= held * 64, "{said:#}");
        let second = manager.end_by(Signal::SIGTERM);
        assert!(second.stderr.contains(KILLED) && second.stderr.contains(&format!("(pid {pid})")), "{}", second.stderr);
        manager.start(&service(address, engine));
        let third = manager.end_by(Signal::SIGTERM);
        assert!(!third.stderr.contains(KILLED), "{}", third.stderr);
        let said = before(&third.ledger);
        assert_eq!((&said["ended"], &said["lost_datagrams_at_most"]), (&json!(true), &json!(0)), "{said:#}");
    }
}

#[test]
fn a_start_that_fails_leaves_it_to_the_next_one_to_say() {
    let (mut manager, address) = (Manager::new(), free_address());
    let _out = destination(&manager);
    manager.start(&service(address, ""));
    let pid = manager.process().pid();
    manager.end_by(Signal::SIGKILL);
    let wrong = manager.start_in_vain(&service(address, "nonsense = 1"));
    assert_eq!(wrong.status.code(), Some(78), "{}", wrong.stderr);
    // This one fails when the first socket is made anew, after it has said what it had to.
    let both = service(address, "").named("first").also("in", "192.0.2.1:5140", &["out"]);
    let failed = manager.start_in_vain(&both);
    assert!(!failed.status.success() && failed.stderr.contains(KILLED), "{}", failed.stderr);
    manager.start(&service(address, ""));
    let ended = manager.end(0);
    ended.assert_logged(KILLED, 1);
    assert_eq!((&before(&ended.ledger)["pid"], &before(&ended.ledger)["ended"]), (&json!(pid), &json!(false)));
}

/// Sends more than the sockets have room for, from many ports.
fn flood(address: SocketAddr, datagrams: u64) {
    assert_eq!(Load::new(address, Amount::Count(datagrams)).overrunning().send().sent, datagrams);
}

#[test]
fn what_the_kernel_drops_while_no_daemon_runs_is_in_the_next_ledger_and_in_the_log() {
    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        for lanes in [2, 1] {
            let (mut manager, address) = (Manager::new(), free_address());
            manager.start(&counting(address, 2));
            manager.end_by(end);
            flood(address, 5000);
            let dropped = manager.dropped();
            assert!(dropped > 1000, "{dropped}");
            manager.start(&counting(address, lanes));
            let ended = manager.end_with(5000 - dropped);
            let listener = ended.listener();
            assert_eq!(count(listener, "kernel_dropped_between"), dropped, "{end}, {lanes} lanes: {listener:#}");
            ended.assert_logged(&format!("the kernel dropped {dropped} at its sockets"), 1);
            // Each is said by one process.
            manager.start(&counting(address, lanes));
            let ended = manager.end(0);
            assert_eq!(count(ended.listener(), "kernel_dropped_between"), 0);
            ended.assert_logged("while no process looked", 0);
        }
    }
}

#[test]
fn what_the_kernel_dropped_before_a_kill_is_in_the_next_ledger_however_long_ago_the_last_look_was() {
    for lanes in [1, 2] {
        let (mut manager, address) = (Manager::new(), free_address());
        let text = counting(address, lanes);
        manager.start(&text);
        let (mut said, mut at_last) = (0, 0);
        for round in 0..3 {
            // While it sleeps it reads nothing, and a kill before it has looked again is one of the three.
            manager.process().signal(Signal::SIGSTOP);
            flood(address, 5000);
            at_last = manager.dropped();
            if round > 0 {
                manager.process().signal(Signal::SIGCONT);
                let all = |ledger: &Value| {
                    let [own, between] = ["kernel_dropped", "kernel_dropped_between"].map(|key| &listener(ledger)[key]);
                    said + own.as_u64().unwrap_or(0) + between.as_u64().unwrap_or(0) == at_last
                };
                manager.stats_when("it has seen all drops", all);
            }
            let pid = manager.process().pid();
            manager.end_by(Signal::SIGKILL);
            manager.start(&text);
            let ledger = manager.stats();
            let (before, between) = (before(&ledger), count(listener(&ledger), "kernel_dropped_between"));
            assert_eq!((&before["pid"], &before["ended"], &before["dropped"]), (&json!(pid), &json!(false), &json!(0)));
            // What it says of the dead one, and of the time between.
            said += count(before, "kernel_dropped");
            assert_eq!(said + between, at_last, "{lanes} lanes, round {round}: {ledger:#}");
        }
        let ended = manager.end_by(Signal::SIGTERM);
        assert!(at_last > 3000 && ended.stderr.contains("by its last look the kernel had dropped"), "{}", ended.stderr);
        manager.start(&text);
        let ledger = manager.stats();
        assert_eq!(count(before(&ledger), "kernel_dropped"), 0, "that one has written its ledger");
        manager.end(0);
    }
}

#[test]
fn a_record_that_cannot_be_read_is_told_and_made_anew() {
    for wrong in [File::open("/dev/null").expect("every host has it").into(), OwnedFd::from(socket())] {
        let (mut manager, address) = (Manager::new(), free_address());
        let _out = destination(&manager);
        manager.start(&service(address, ""));
        manager.end(0);
        manager.replace(RECORD, wrong);
        manager.start(&service(address, ""));
        let ended = manager.end(0);
        ended.assert_logged("cannot read what the process before this one has left", 1);
        assert_eq!(*before(&ended.ledger), Value::Null);
        assert_eq!(manager.all_names(), ["in.0", RECORD], "there is one, which can be read");
        manager.start(&service(address, ""));
        assert_eq!(manager.end(0).before()["ended"], json!(true));
    }
}
