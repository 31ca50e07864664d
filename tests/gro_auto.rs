//! `gro = "auto"`: a listener finds out by itself whether its datagrams come in trains, and what it makes anew for that
//! while they arrive costs none of them.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::take_over::{assert_all_once, end_with, load, received_by, service};
use crate::util::daemon::{Daemon, free_address};
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count};
use crate::util::load::{Amount, Load};
use crate::util::manager::Manager;
use crate::util::succession::Succession;

/// Sends until the listener has decided and some more, and returns what it has decided and logged.
fn decision(engine: &str, segment: Option<u16>) -> (String, String) {
    let address = free_address();
    let daemon = Daemon::with_config(&format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\n{engine}\ngro = \"auto\"\nlanes = 2\n\
         sinks = [\"nothing\"]\n[sink.nothing]\ntype = \"null\"\n"
    ));
    let mut load = Load::new(address, Amount::Count(16_000));
    (load.segment, load.rate_per_second) = (segment, 40_000);
    let state = |ledger: &Value| ledger["listeners"][0]["gro"].as_str().unwrap_or_default().to_owned();
    let mut sent = 0;
    while state(&daemon.stats()) == "auto" {
        sent += load.clone().send().sent;
    }
    sent += load.clone().send().sent;
    let all_are_there = |ledger: &Value| count(&ledger["listeners"][0]["sinks"][0], "delivered") == sent;
    let ledger = daemon.stats_when("all are delivered", all_are_there);
    assert_closed(&ledger, sent);
    let decided = state(&ledger);
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    (decided, ended.stderr)
}

#[test]
fn trains_switch_gro_on_while_they_arrive_and_every_datagram_is_delivered() {
    for engine in two_engines() {
        let (decided, log) = decision(engine, Some(16));
        assert_eq!(decided, "auto: on", "{log}");
        assert!(log.contains("listener in: gro is on from now on: of "), "{log}");
    }
}

#[test]
fn what_was_found_out_outlives_a_restart_that_keeps_the_sockets() {
    let (mut manager, address) = (Manager::new(), free_address());
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\ngro = \"auto\"\nlanes = 2\n\
         sinks = [\"nothing\"]\n[sink.nothing]\ntype = \"null\"\n"
    );
    manager.start(&text);
    let mut load = Load::new(address, Amount::Count(16_000));
    (load.segment, load.rate_per_second) = (Some(16), 40_000);
    let received = |ledger: &Value| count(&ledger["listeners"][0], "received");
    let mut sent = 0;
    while manager.stats_when("it runs", |_| true)["listeners"][0]["gro"] == "auto" {
        sent += load.clone().send().sent;
    }
    manager.stats_when("all has come", |ledger| received(ledger) == sent);
    assert_closed(&manager.end_by(Signal::SIGTERM).ledger, sent);
    // What comes while nobody runs waits in sockets that take trains.
    let waiting = load.clone().send().sent;
    manager.start(&text);
    let ledger = manager.stats_when("all that has waited has come", |ledger| received(ledger) == waiting);
    assert_eq!(ledger["listeners"][0]["gro"], "auto: on");
    let ended = manager.end_by(Signal::SIGTERM);
    assert!(ended.status.success() && !ended.stderr.contains("cannot be switched off"), "{}", ended.stderr);
    assert_closed(&ended.ledger, waiting);
}

#[test]
fn what_was_found_out_outlives_a_take_over_under_load() {
    let (mut succession, address) = (Succession::new(), free_address());
    let text = service(address, 2, "gro = \"auto\"");
    let first = succession.start(&text);
    let mut load = load(address, 100_000);
    load.segment = Some(16);
    let sender = load.spawn();
    succession.stats_when("it has decided", |ledger| ledger["listeners"][0]["gro"] == "auto: on");
    let (second, ended) = succession.succeed(first, &text);
    let mut received = received_by(&ended);
    assert_eq!(succession.stats_when("it answers", |_| true)["listeners"][0]["gro"], "auto: on");
    let report = sender.join().expect("it has sent");
    received += end_with(&succession, second, report.sent - received);
    assert_eq!(received, report.sent, "each ledger has what its process received");
    assert_all_once(&succession, &report, "trains");
}

#[test]
fn single_datagrams_leave_gro_off_and_every_datagram_is_delivered() {
    for engine in two_engines() {
        let (decided, log) = decision(engine, None);
        assert_eq!(decided, "auto: off", "{log}");
        assert!(log.contains("looked at 0 % came in trains, of 0.0 on average"), "{log}");
    }
}
