//! `udpd run --take-over`: one daemon takes the place of another under load, without a service manager, and every
//! datagram is in a file once. The sandbox is on as it is by default.
//!
//! A service manager, a sink that takes nothing and a kill of the process that is to end may have a say.
//!
//! The sender waits while the sockets fill up, so what is lost is lost by the take-over and not by a slow machine.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::util::*;

/// A listener with so many lanes, which all write one file.
pub(crate) fn service(address: SocketAddr, lanes: usize, lines: &str) -> Setup {
    Setup::at(address).keys(format!("{lines}\nlanes = {lanes}\nreceive_buffer = '64MiB'")).file("archive", "in.log")
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_over_take_overs_under_load_with_more_lanes_and_with_fewer() {
    for engine in two_engines() {
        let (mut site, address) = (Site::new(), free_address());
        let mut running = site.start(&service(address, 2, engine));
        let sender = Load::steady(address, 60_000).spawn();
        let mut received = 0;
        for lanes in [2, 4, 2, 1, 3] {
            let pid = running.pid();
            let (next, ended) = site.succeed(running, &service(address, lanes, engine));
            ended.logged(&[&format!("process {} has taken over", next.pid())]);
            received += ended.received();
            let before = &site.stats()["before"];
            assert_eq!((&before["pid"], &before["ended"]), (&json!(pid), &json!(true)), "{before:#}");
            running = next;
        }
        let report = sender.join().expect("it has sent");
        received += site.end_with(running, report.sent - received);
        assert_eq!(received, report.sent, "{engine}: each ledger has what its process received");
        report.assert_each_once(&contents(site.directory(), "in.log"));
    }
}

#[test]
fn the_new_process_says_how_many_sockets_it_has_from_which_process_and_how_long_no_process_received() {
    let (mut site, address) = (Site::new(), free_address());
    let first = site.start(&service(address, 3, ""));
    let pid = first.pid();
    let (second, _) = site.succeed(first, &service(address, 3, ""));
    let second = second.terminate();
    let line = second.lines("took over")[0];
    assert!(line.contains(&format!("took over 3 sockets from process {pid}; ")) && line.contains(" ms "), "{line}");
}

#[test]
fn what_the_kernel_drops_meanwhile_is_in_one_ledger_whatever_becomes_of_the_lanes() {
    let (mut site, address) = (Site::new(), free_address());
    let text = |lanes| service(address, lanes, "").replace("64MiB", "32KiB");
    let mut running = site.start(&text(3));
    let sender = Load::steady(address, 600_000).rate(200_000).overrunning().spawn();
    let mut ended = Vec::new();
    for lanes in [3, 1, 2] {
        let (next, before) = site.succeed(running, &text(lanes));
        ended.push(before);
        running = next;
    }
    let sent = sender.join().expect("it has sent").sent;
    ended.push(running.terminate());
    let (mut arrived, mut dropped) = (0, 0);
    for one in &ended {
        let listener = &one.ledger["listeners"][0];
        let between = listener["kernel_dropped_between"].as_u64().unwrap_or(0);
        assert_closed(&one.ledger, count(listener, "arrived"));
        arrived += count(listener, "arrived") + between;
        dropped += count(listener, "kernel_dropped") + between;
    }
    assert_eq!(arrived, sent, "each drop is counted once");
    assert!(dropped > 0, "it was too little to fill a buffer of 32 KiB");
}

#[test]
fn without_a_daemon_to_take_over_from_it_starts_as_ever() {
    let (mut site, address) = (Site::new(), free_address());
    let mut first = site.challenge(&service(address, 1, ""));
    let line = first.await_line("nothing to take over");
    assert!(line.contains("control.sock"), "{line}");
    first.await_line("ready: ");
    // The file of a dead daemon is no daemon either.
    first.end_by(Signal::SIGKILL);
    let mut second = site.challenge(&service(address, 1, ""));
    second.await_line("nothing to take over");
    second.await_line("ready: ");
    let sent = Load::steady(address, 100).send().sent;
    assert_eq!(site.end_with(second, sent), sent);
}

#[test]
fn what_waits_in_a_socket_that_the_new_configuration_has_no_lane_for_is_delivered_by_the_process_that_ends() {
    let (mut site, gone, stays) = (Site::new(), free_address(), free_address());
    let first = site.start(&service(stays, 1, "").also("gone", gone, &["archive"]));
    let sender = Load::steady(gone, 20_000).spawn();
    let (second, ended) = site.succeed(first, &service(stays, 1, ""));
    // It goes on sending to a closed port, and the kernel tells a sender of loopback so.
    drop(sender.join());
    let of_gone = listener_named(&ended.ledger, "gone");
    assert_eq!(of_gone["residual"], json!(0), "{of_gone:#}");
    assert_eq!(count(&of_gone["sinks"][0], "delivered"), count(of_gone, "received"), "{of_gone:#}");
    assert!(second.terminate().status.success());
}

#[test]
fn an_address_within_one_of_before_can_be_had_when_the_process_before_has_ended() {
    let (mut site, address) = (Site::new(), free_address());
    let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
    let first = site.start(&service(everywhere, 2, ""));
    let (second, _) = site.succeed(first, &service(address, 2, ""));
    let sent = Load::steady(address, 200).send().sent;
    assert_eq!(site.end_with(second, sent), sent);
}

#[test]
fn many_sockets_come_in_several_messages_and_all_of_them_go_on() {
    // More than the kernel passes with one message.
    const LANES: usize = 260;
    let (mut site, address) = (Site::new(), free_address());
    let text = service(address, LANES, "batch_size = 8\ngro = 'off'").replace("64MiB", "64KiB");
    let first = site.start(&text);
    let (second, _) = site.succeed(first, &text);
    // As many as fit a buffer of 64 KiB, should all flows have the same lane.
    let sent = Load::steady(address, 160).send().sent;
    let last = site.until_received(sent);
    assert_eq!(lanes(&last).len(), LANES);
    assert_eq!(second.terminate().received(), sent);
}

/// What a service manager hears, message by message.
fn manager(site: &Site) -> (String, Receiver<String>) {
    let path = site.directory().join("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("a name that is free");
    let (tell, heard) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // What comes with a message is closed here, which is what a barrier waits for.
        while let Ok(length) = socket.recv(&mut bytes) {
            if tell.send(String::from_utf8_lossy(&bytes[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    (format!("NOTIFY_SOCKET={}", path.display()), heard)
}

#[test]
fn a_service_is_taken_over_from_only_from_within_and_the_manager_is_told_which_process_it_is() {
    let (mut site, address) = (Site::new(), free_address());
    let (variable, heard) = manager(&site);
    let text = service(address, 2, "");
    let own = ["env", &variable, "INVOCATION_ID=1"];
    let mut old = site.launch(&text, &own, &[]);
    old.await_line("ready: ");
    let others = ["env", &variable, "INVOCATION_ID=2"];
    for by in [&[][..], &others] {
        let refused = site.launch(&text, by, &["--take-over"]).wait();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("systemctl restart"), "{}", refused.stderr);
        old.await_line("wanted to take over and does not: cannot take over from process");
    }
    let mut new = site.launch(&text, &own, &["--take-over"]);
    new.await_line("ready: ");
    let old = old.wait();
    assert!(old.status.success(), "{}", old.stderr);
    let main = format!("MAINPID={}", new.pid());
    let mut told: Vec<String> = Vec::new();
    // It comes by a thread of its own, and so maybe after the line in the log.
    let is_complete = |told: &[String]| {
        told.iter().position(|line| *line == main).is_some_and(|place| told[place..].contains(&"READY=1".to_owned()))
    };
    while !is_complete(&told) {
        let text = heard.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("not told: {told:?}"));
        told.extend(text.lines().map(str::to_owned));
    }
    let place = |line: &str| told.iter().position(|told| told == line);
    assert_eq!(place("STOPPING=1"), None, "the service goes on: {told:?}");
    let sent = Load::steady(address, 300).send().sent;
    assert_eq!(site.end_with(new, sent), sent);
}

/// A listener that hands on to a Unix socket from which nothing is taken.
fn stuck(address: SocketAddr) -> Setup {
    Setup::at(address).sink("out", "unix", "path = '@DIR@/out.sock'")
}

#[test]
fn a_process_that_is_killed_while_it_stops_leaves_its_sockets_to_the_new_one() {
    let (mut site, address) = (Site::new(), free_address());
    let out = UnixDatagram::bind(site.directory().join("out.sock")).expect("a name that is free");
    let mut old = site.start(&stuck(address));
    Load::steady(address, 3000).send();
    site.until_received(3000);
    let mut new = site.challenge(&service(address, 1, ""));
    // It waits for its sink now, which takes nothing.
    old.await_line("is ready to take over: this process receives no more");
    let pid = old.pid();
    assert!(!old.end_by(Signal::SIGKILL).status.success());
    new.await_line("has died before it could be taken over from");
    new.await_line("was killed or has crashed");
    new.await_line("ready: ");
    let lost = 3000 - out.count_all();
    let sent = Load::steady(address, 400).send().sent;
    let ledger = site.until_received(sent);
    let before = &ledger["before"];
    assert_eq!((&before["pid"], &before["ended"]), (&json!(pid), &json!(false)), "{before:#}");
    assert!(lost > 0 && count(before, "lost_datagrams_at_most") >= lost, "{lost} are lost: {before:#}");
    assert_eq!(site.end_with(new, sent), sent);
}

#[test]
fn a_sink_that_takes_nothing_delays_a_take_over_and_is_in_the_books() {
    let (mut site, address) = (Site::new(), free_address());
    let out = UnixDatagram::bind(site.directory().join("out.sock")).expect("a name that is free");
    let old = site.start(&stuck(address));
    Load::steady(address, 3000).send();
    site.until_received(3000);
    let (new, ended) = site.succeed(old, &service(address, 1, ""));
    assert_closed(&ended.ledger, 3000);
    let sink = ended.sink();
    let delivered = count(sink, "delivered");
    assert_eq!(delivered + sum(&sink["dropped"]), 3000, "{sink:#}");
    // One that was sent in the last moment may not have been counted as delivered any more.
    assert!(out.count_all() >= delivered, "{sink:#}");
    let sent = Load::steady(address, 400).send().sent;
    assert_eq!(site.end_with(new, sent), sent);
}
