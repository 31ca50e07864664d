//! A port that another program is on, too: refused at the start, noticed while running by the one that was there first
//! and by the one that came, and counted where it is meant.

use std::net::SocketAddr;
use std::sync::Arc;

use mmsg::{Family, Group, GroupSpread, Socket};
use serde_json::Value;

use crate::util::*;

/// A configuration with one listener and these lines in it.
fn listening(address: SocketAddr, lines: &str) -> Setup {
    Setup::at(address).keys(lines).null("nothing")
}

/// The same without a sandbox, in which udpd cannot look into other processes.
fn outside(address: SocketAddr, lines: &str) -> Setup {
    listening(address, lines).daemon("sandbox = 'off'")
}

/// A socket of this test that others of its user may share an address with.
fn join(address: SocketAddr) -> Arc<Socket> {
    let socket = Arc::new(Socket::new(Family::V4).expect("a socket"));
    let mut group = Group::new(vec![Arc::clone(&socket)], GroupSpread::Flow).expect("a group");
    group.bind(address).expect("the kernel lets it join");
    socket
}

fn shared_with(ledger: &Value) -> &Vec<Value> {
    ledger["listeners"][0]["shared_with"].as_array().expect("they can be seen")
}

/// Sends each from a port of its own, so that the kernel's hash has something to choose by.
fn send_each(address: SocketAddr, datagrams: u64) {
    (0..datagrams).for_each(|_| send(address, b"hello", 1));
}

#[test]
fn a_start_into_a_foreign_group_is_exit_69_and_takes_nothing_from_the_one_that_is_there() {
    let address = free_address();
    let daemon = listening(address, "lanes = 2").start();
    for (lanes, cure) in [("1", ""), ("2", "share_port = true")] {
        let second = udpd(&["run", "--listen", &address.to_string(), "--to", "null:", "--lanes", lanes]);
        second.ends(69, &[&format!("udpd (pid {})", daemon.pid()), cure]);
    }
    send_each(address, 100);
    daemon.until_received(100);
    let ended = daemon.end(100);
    assert_eq!(shared_with(&ended.ledger).len(), 0);
}

#[test]
fn a_start_beside_a_group_whose_address_overlaps_is_exit_69_too() {
    let address = free_address();
    let everywhere: SocketAddr = ([0, 0, 0, 0], address.port()).into();
    for (theirs, ours) in [(everywhere, address), (address, everywhere)] {
        let _there = join(theirs);
        let refused = udpd(&["run", "--listen", &ours.to_string(), "--to", "null:", "--lanes", "2"]);
        refused.ends(69, &[&format!("(pid {})", std::process::id())]);
    }
}

#[test]
fn a_program_that_joins_a_running_daemon_is_seen_in_the_ledger_and_said_once_and_once_when_it_leaves() {
    for is_outside in [false, true] {
        let address = free_address();
        let setup = if is_outside { outside } else { listening };
        let daemon = setup(address, "lanes = 2").start();
        assert_eq!(shared_with(&daemon.stats()).len(), 0);
        let joined = [join(address), join(address)];
        let sockets = |sharer: &Value| sharer["sockets"].as_u64();
        let ledger = daemon
            .stats_when("the two are seen", |ledger| shared_with(ledger).iter().filter_map(sockets).sum::<u64>() == 2);
        let sharer = &shared_with(&ledger)[0];
        assert_eq!((&sharer["address"], &sharer["takes"]), (&address.to_string().into(), &"share".into()));
        if is_outside {
            assert_eq!((sharer["pid"].as_u64(), sockets(sharer)), (Some(std::process::id().into()), Some(2)));
            let line = format!("(pid {}): 2 sockets on {address}", std::process::id());
            daemon.command("stats").succeeds(&[&line]);
        }
        drop(joined);
        daemon.stats_when("they are gone", |ledger| shared_with(ledger).is_empty());
        let ended = daemon.terminate();
        assert_eq!(ended.lines("splits the datagrams").len(), 1, "outside: {is_outside}: {}", ended.stderr);
        assert_eq!(ended.lines("has closed").len(), 1, "outside: {is_outside}: {}", ended.stderr);
    }
}

#[test]
fn a_program_that_takes_one_address_of_a_wildcard_is_named_and_so_is_one_that_has_the_rest() {
    let address = free_address();
    let everywhere: SocketAddr = ([0, 0, 0, 0], address.port()).into();
    for (ours, theirs, takes) in [(everywhere, address, "part"), (address, everywhere, "nothing")] {
        let daemon = listening(ours, "lanes = 2").start();
        let joined = join(theirs);
        let ledger = daemon.stats_when("it is seen", |ledger| !shared_with(ledger).is_empty());
        assert_eq!(shared_with(&ledger)[0]["takes"], takes, "{ours} beside {theirs}");
        send_each(address, 20);
        if takes == "nothing" {
            daemon.until_received(20);
        } else {
            assert!(
                joined.wait_readable(std::time::Duration::from_secs(60)).expect("poll"),
                "it is what the kernel does"
            );
        }
        daemon.end(if takes == "nothing" { 20 } else { 0 });
    }
}

#[test]
fn two_that_both_say_share_port_see_each_other_and_between_them_nothing_is_lost() {
    let address = free_address();
    let first = outside(address, "share_port = true").start();
    let second = outside(address, "lanes = 2\nshare_port = true").start();
    let metrics = free_address();
    let third = listening(address, "share_port = true").daemon(&format!("metrics_address = '{metrics}'")).start();
    let sees = |daemon: &Daemon, sockets: u64| {
        daemon.stats_when("the others are seen", |ledger| {
            shared_with(ledger).iter().map(|sharer| count(sharer, "sockets")).sum::<u64>() == sockets
        })
    };
    let ledger = sees(&first, 3);
    let pids: Vec<&Value> = shared_with(&ledger).iter().map(|sharer| &sharer["pid"]).collect();
    assert!(pids.contains(&&second.pid().into()) && pids.contains(&&third.pid().into()), "{pids:?}");
    sees(&second, 2);
    sees(&third, 3);
    let scraped = http(metrics, "/metrics", "");
    assert!(scraped.contains("udpd_foreign_sockets{listener=\"in\"} 3\n"), "{scraped}");
    send_each(address, 300);
    let received = |daemon: &Daemon| count(&daemon.stats()["listeners"][0], "received");
    first.stats_when("all have come", |_| received(&first) + received(&second) + received(&third) == 300);
    assert!(third.terminate().status.success() && second.terminate().status.success());
    sees(&first, 0);
    let ended = first.terminate();
    ended.assert_logged("stop one of the two", 0);
    assert!(ended.lines("info: listener in: udpd (pid ").len() >= 4, "two came and two went: {}", ended.stderr);
}

#[test]
fn a_listener_on_an_interface_and_one_on_none_share_a_port_and_neither_is_foreign() {
    let port = free_address().port();
    for lanes in ["", "lanes = 2"] {
        let setup = Setup::new().listens_at(format!("0.0.0.0:{port}")).keys(lanes).null("nothing");
        let setup = setup.also("loopback", format!("0.0.0.0:{port}"), &["nothing"]).more("interface = 'lo'");
        let daemon = setup.start();
        send_each(([127, 0, 0, 1], port).into(), 10);
        let ledger = daemon.stats_when("all have come", |ledger| count(&ledger["listeners"][1], "received") == 10);
        for listener in ledger["listeners"].as_array().expect("two") {
            assert_eq!(listener["shared_with"].as_array().map(Vec::len), Some(0), "{listener:#}");
        }
        assert!(daemon.terminate().status.success());
    }
}
