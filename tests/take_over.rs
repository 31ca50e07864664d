//! `udpd run --take-over`: one daemon takes the place of another under load, without a service manager, and every
//! datagram is in a file once. The sandbox is on as it is by default.
//!
//! The sender waits while the sockets fill up, so what is lost is lost by the take-over and not by a slow machine.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::util::daemon::free_address;
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load, LoadReport, read_text_header};
use crate::util::succession::{Finished, Running, Succession};

/// A listener with so many lanes, which all write one file.
pub(crate) fn service(address: SocketAddr, lanes: usize, lines: &str) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        {lines}
        lanes = {lanes}
        receive_buffer = "64MiB"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        rotate.every = "0s"
        path = "@DIR@/in.log"
        "#
    )
}

/// A load at a small rate that lasts over some take-overs.
pub(crate) fn load(address: SocketAddr, count: u64) -> Load {
    let mut load = Load::new(address, Amount::Count(count));
    (load.rate_per_second, load.flows) = (20_000, 8);
    load
}

/// Checks that every datagram is in the file once.
#[track_caller]
pub(crate) fn assert_all_once(succession: &Succession, report: &LoadReport, what: &str) {
    let text = std::fs::read_to_string(succession.directory().join("in.log")).expect("the load is text");
    let mut numbers = vec![Vec::new(); report.per_flow.len()];
    for line in text.lines() {
        let (flow, number) = read_text_header(line).expect("a line of the load");
        numbers[flow].push(number);
    }
    for (flow, (found, &sent)) in numbers.iter().zip(&report.per_flow).enumerate() {
        let (all, distinct) = (found.len() as u64, found.iter().collect::<BTreeSet<_>>().len() as u64);
        assert_eq!((distinct, all), (sent, sent), "{what}: flow {flow} as (distinct, all) against what was sent");
    }
}

/// Checks that a daemon has ended well and with whole books, and returns what it received.
#[track_caller]
pub(crate) fn received_by(ended: &Finished) -> u64 {
    assert!(ended.status.success(), "{}", ended.stderr);
    let listener = &ended.ledger["listeners"][0];
    assert_eq!(count(listener, "kernel_dropped"), 0, "{listener:#}");
    assert_closed(&ended.ledger, count(listener, "received"));
    count(listener, "received")
}

/// Ends the last one when it has received so much, which is all there is.
pub(crate) fn end_with(succession: &Succession, last: Running, datagrams: u64) -> u64 {
    let all = |ledger: &Value| count(&ledger["listeners"][0], "received") >= datagrams;
    succession.stats_when("the rest has come", all);
    received_by(&last.end_by(Signal::SIGTERM))
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_over_take_overs_under_load_with_more_lanes_and_with_fewer() {
    for engine in two_engines() {
        let (mut succession, address) = (Succession::new(), free_address());
        let mut running = succession.start(&service(address, 2, engine));
        let sender = load(address, 60_000).spawn();
        let mut received = 0;
        for lanes in [2, 4, 2, 1, 3] {
            let pid = running.pid();
            let (next, ended) = succession.succeed(running, &service(address, lanes, engine));
            assert!(ended.stderr.contains(&format!("process {} has taken over", next.pid())), "{}", ended.stderr);
            received += received_by(&ended);
            let before = &succession.stats_when("it answers", |_| true)["before"];
            assert_eq!((&before["pid"], &before["ended"]), (&json!(pid), &json!(true)), "{before:#}");
            running = next;
        }
        let report = sender.join().expect("it has sent");
        received += end_with(&succession, running, report.sent - received);
        assert_eq!(received, report.sent, "{engine}: each ledger has what its process received");
        assert_all_once(&succession, &report, engine);
    }
}

#[test]
fn the_new_process_says_how_many_sockets_it_has_from_whom_and_how_long_nobody_received() {
    let (mut succession, address) = (Succession::new(), free_address());
    let first = succession.start(&service(address, 3, ""));
    let pid = first.pid();
    let (second, _) = succession.succeed(first, &service(address, 3, ""));
    let second = second.end_by(Signal::SIGTERM);
    let line = second.stderr.lines().find(|line| line.contains("took over")).expect("it is said");
    assert!(line.contains(&format!("took over 3 sockets from process {pid}; ")) && line.contains(" ms "), "{line}");
}

#[test]
fn what_the_kernel_drops_meanwhile_is_in_one_ledger_whatever_becomes_of_the_lanes() {
    let (mut succession, address) = (Succession::new(), free_address());
    let text = |lanes| service(address, lanes, "").replace("64MiB", "32KiB");
    let mut running = succession.start(&text(3));
    let mut flood = load(address, 600_000);
    (flood.overruns, flood.rate_per_second) = (true, 200_000);
    let (sender, mut ended) = (flood.spawn(), Vec::new());
    for lanes in [3, 1, 2] {
        let (next, before) = succession.succeed(running, &text(lanes));
        ended.push(before);
        running = next;
    }
    let sent = sender.join().expect("it has sent").sent;
    ended.push(running.end_by(Signal::SIGTERM));
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
    let (mut succession, address) = (Succession::new(), free_address());
    let mut first = succession.challenge(&service(address, 1, ""));
    let line = first.await_line("nothing to take over");
    assert!(line.contains("control.sock"), "{line}");
    first.await_line("ready: ");
    // A stale file is nobody either.
    first.end_by(Signal::SIGKILL);
    let mut second = succession.challenge(&service(address, 1, ""));
    second.await_line("nothing to take over");
    second.await_line("ready: ");
    let sent = load(address, 100).send().sent;
    assert_eq!(end_with(&succession, second, sent), sent);
}

#[test]
fn what_waits_in_a_socket_that_the_new_configuration_has_no_lane_for_is_delivered_by_the_process_that_ends() {
    let (mut succession, gone, stays) = (Succession::new(), free_address(), free_address());
    let both = |address: SocketAddr| {
        let more = format!("[[listener]]\nname = \"gone\"\naddress = \"{gone}\"\nsinks = [\"archive\"]\n");
        format!("{more}{}", service(address, 1, ""))
    };
    let first = succession.start(&both(stays));
    let sender = load(gone, 20_000).spawn();
    let (second, ended) = succession.succeed(first, &service(stays, 1, ""));
    // It goes on sending to nobody, and the kernel tells a sender of loopback so.
    drop(sender.join());
    assert!(ended.status.success(), "{}", ended.stderr);
    let of_gone = &list(&ended.ledger, "listeners")[0];
    assert_eq!(of_gone["residual"], json!(0), "{of_gone:#}");
    assert_eq!(count(&of_gone["sinks"][0], "delivered"), count(of_gone, "received"), "{of_gone:#}");
    assert!(second.end_by(Signal::SIGTERM).status.success());
}

#[test]
fn an_address_within_one_of_before_can_be_had_when_the_process_before_has_ended() {
    let (mut succession, address) = (Succession::new(), free_address());
    let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
    let first = succession.start(&service(everywhere, 2, ""));
    let (second, ended) = succession.succeed(first, &service(address, 2, ""));
    assert!(ended.status.success(), "{}", ended.stderr);
    let sent = load(address, 200).send().sent;
    assert_eq!(end_with(&succession, second, sent), sent);
}

#[test]
fn many_sockets_come_in_several_messages_and_all_of_them_go_on() {
    // More than the kernel passes with one message.
    const LANES: usize = 260;
    let (mut succession, address) = (Succession::new(), free_address());
    let text = service(address, LANES, "batch_size = 8\ngro = \"off\"").replace("64MiB", "64KiB");
    let first = succession.start(&text);
    let (second, ended) = succession.succeed(first, &text);
    assert!(ended.status.success(), "{}", ended.stderr);
    let sent = load(address, 800).send().sent;
    let last = succession.stats_when("all has come", |ledger| count(&ledger["listeners"][0], "received") == sent);
    assert_eq!(list(&last["listeners"][0], "lanes").len(), LANES);
    assert_eq!(received_by(&second.end_by(Signal::SIGTERM)), sent);
}
