//! A port that somebody else is on, too: refused at the start, noticed while running by whoever was there first and by
//! whoever came, and counted where it is meant.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use mmsg::{Family, Group, GroupSpread, Socket};
use serde_json::Value;

use crate::util::daemon::{Daemon, Ended, free_address, udpd};
use crate::util::ledger::{assert_closed, count};

/// A configuration with one listener and these lines in it.
fn listening(address: SocketAddr, lines: &str) -> String {
    format!(
        "[[listener]]\n\
         name = \"in\"\n\
         address = \"{address}\"\n\
         {lines}\n\
         sinks = [\"nothing\"]\n\
         [sink.nothing]\n\
         type = \"null\"\n"
    )
}

/// The same without a sandbox, in which udpd cannot look into other processes.
fn outside(text: &str) -> String {
    format!("[daemon]\nsandbox = \"off\"\n{text}")
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

fn lines_with(ended: &Ended, words: &str) -> usize {
    ended.stderr.lines().filter(|line| line.contains(words)).count()
}

fn send(address: SocketAddr, datagrams: usize) {
    for _ in 0..datagrams {
        // Each from a port of its own, so that the kernel's hash has something to choose by.
        UdpSocket::bind("127.0.0.1:0").expect("a socket").send_to(b"hello", address).expect("sent");
    }
}

#[test]
fn a_start_into_a_foreign_group_is_exit_69_and_takes_nothing_from_who_is_there() {
    let address = free_address();
    let daemon = Daemon::with_config(&listening(address, "lanes = 2"));
    for lanes in ["1", "2"] {
        let output = udpd(&["run", "--listen", &address.to_string(), "--to", "null:", "--lanes", lanes]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{stderr}");
        assert!(stderr.contains(&format!("udpd (pid {})", daemon.pid())), "{stderr}");
        assert!(lanes == "1" || stderr.contains("share_port = true"), "{stderr}");
    }
    send(address, 100);
    daemon.stats_when("all have come", |ledger| count(&ledger["listeners"][0], "received") == 100);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 100);
    assert_eq!(shared_with(&ended.ledger).len(), 0);
}

#[test]
fn a_start_beside_a_group_whose_address_overlaps_is_exit_69_too() {
    let address = free_address();
    let everywhere: SocketAddr = ([0, 0, 0, 0], address.port()).into();
    for (theirs, ours) in [(everywhere, address), (address, everywhere)] {
        let _there = join(theirs);
        let output = udpd(&["run", "--listen", &ours.to_string(), "--to", "null:", "--lanes", "2"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{ours} beside {theirs}: {stderr}");
        assert!(stderr.contains(&format!("(pid {})", std::process::id())), "{stderr}");
    }
}

#[test]
fn who_joins_a_running_daemon_is_seen_in_the_ledger_and_said_once_and_once_when_it_leaves() {
    let address = free_address();
    let daemon = Daemon::with_config(&outside(&listening(address, "lanes = 2")));
    assert_eq!(shared_with(&daemon.stats()).len(), 0);
    let joined = [join(address), join(address)];
    let ledger = daemon.stats_when("the two are seen", |ledger| {
        shared_with(ledger).first().is_some_and(|one| count(one, "sockets") == 2)
    });
    let [sharer] = shared_with(&ledger).as_slice() else { panic!("{ledger:#}") };
    assert_eq!(sharer["pid"], std::process::id());
    assert_eq!((&sharer["address"], &sharer["takes"]), (&address.to_string().into(), &"share".into()));
    let socket = daemon.control_socket();
    let table = udpd(&["stats", "--socket", socket.to_str().expect("UTF-8")]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains(&format!("(pid {}): 2 sockets on {address}", std::process::id())), "{table}");
    drop(joined);
    daemon.stats_when("they are gone", |ledger| shared_with(ledger).is_empty());
    let ended = daemon.terminate();
    assert_eq!(lines_with(&ended, "splits the datagrams"), 1, "{}", ended.stderr);
    assert_eq!(lines_with(&ended, "has closed"), 1, "{}", ended.stderr);
}

#[test]
fn inside_the_sandbox_who_joins_is_seen_as_well_by_its_user() {
    let address = free_address();
    let daemon = Daemon::with_config(&listening(address, "lanes = 2"));
    let joined = join(address);
    let ledger = daemon.stats_when("it is seen", |ledger| !shared_with(ledger).is_empty());
    assert_eq!(shared_with(&ledger)[0]["takes"], "share");
    drop(joined);
    daemon.stats_when("it is gone", |ledger| shared_with(ledger).is_empty());
    let ended = daemon.terminate();
    assert_eq!(lines_with(&ended, "splits the datagrams"), 1, "{}", ended.stderr);
}

#[test]
fn who_takes_one_address_of_a_wildcard_is_named_and_so_is_who_has_the_rest() {
    let address = free_address();
    let everywhere: SocketAddr = ([0, 0, 0, 0], address.port()).into();
    for (ours, theirs, takes) in [(everywhere, address, "part"), (address, everywhere, "nothing")] {
        let daemon = Daemon::with_config(&listening(ours, "lanes = 2"));
        let joined = join(theirs);
        let ledger = daemon.stats_when("it is seen", |ledger| !shared_with(ledger).is_empty());
        assert_eq!(shared_with(&ledger)[0]["takes"], takes, "{ours} beside {theirs}");
        send(address, 20);
        if takes == "nothing" {
            daemon.stats_when("nothing is lost to it", |ledger| count(&ledger["listeners"][0], "received") == 20);
        } else {
            assert!(
                joined.wait_readable(std::time::Duration::from_secs(60)).expect("poll"),
                "it is what the kernel does"
            );
        }
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, if takes == "nothing" { 20 } else { 0 });
    }
}

#[test]
fn two_that_both_say_share_port_see_each_other_and_between_them_nothing_is_lost() {
    let address = free_address();
    let first = Daemon::with_config(&outside(&listening(address, "share_port = true")));
    let second = Daemon::with_config(&outside(&listening(address, "lanes = 2\nshare_port = true")));
    let metrics = free_address();
    let third = Daemon::with_config(&format!(
        "[daemon]\nmetrics_address = \"{metrics}\"\n{}",
        listening(address, "share_port = true")
    ));
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
    let scraped = scrape(metrics);
    assert!(scraped.contains("udpd_foreign_sockets{listener=\"in\"} 3\n"), "{scraped}");
    send(address, 300);
    let received = |daemon: &Daemon| count(&daemon.stats()["listeners"][0], "received");
    first.stats_when("all have come", |_| received(&first) + received(&second) + received(&third) == 300);
    assert!(third.terminate().status.success() && second.terminate().status.success());
    sees(&first, 0);
    let ended = first.terminate();
    assert!(!ended.stderr.contains("stop one of the two"), "what is meant is no warning: {}", ended.stderr);
    assert!(lines_with(&ended, "info: listener in: udpd (pid ") >= 4, "two came and two went: {}", ended.stderr);
}

fn scrape(address: SocketAddr) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("the endpoint");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn a_listener_on_an_interface_and_one_on_none_share_a_port_and_neither_is_foreign() {
    let port = free_address().port();
    for lanes in ["", "lanes = 2"] {
        let daemon = Daemon::with_config(&format!(
            r#"
            [[listener]]
            name = "any"
            address = "0.0.0.0:{port}"
            {lanes}
            sinks = ["nothing"]
            [[listener]]
            name = "loopback"
            address = "0.0.0.0:{port}"
            interface = "lo"
            sinks = ["nothing"]
            [sink.nothing]
            type = "null"
            "#
        ));
        send(([127, 0, 0, 1], port).into(), 10);
        let ledger = daemon.stats_when("all have come", |ledger| count(&ledger["listeners"][1], "received") == 10);
        for listener in ledger["listeners"].as_array().expect("two") {
            assert_eq!(listener["shared_with"].as_array().map(Vec::len), Some(0), "{listener:#}");
        }
        assert!(daemon.terminate().status.success());
    }
}
