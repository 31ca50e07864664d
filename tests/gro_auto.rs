//! `gro = "auto"`: a listener finds out by itself whether its datagrams come in trains, and what it makes anew for that
//! while they arrive costs none of them.

use serde_json::Value;

use crate::take_over::service;
use crate::util::*;

/// A listener that decides by itself.
fn deciding(keys: &str) -> Setup {
    Setup::new().keys("gro = 'auto'\nlanes = 2").keys(keys).null("nothing")
}

/// What the listener has decided.
fn state(ledger: &Value) -> &str {
    listener(ledger)["gro"].as_str().unwrap_or_default()
}

/// Sends until the listener has decided, and returns how many were sent.
fn send_until_decided(load: &Load, daemon: &impl Ask) -> u64 {
    let mut sent = 0;
    while state(&daemon.stats()) == "auto" {
        sent += load.clone().send().sent;
    }
    sent
}

/// What a listener that gets datagrams in such trains decides and logs.
#[track_caller]
fn assert_decides(trains: Option<u16>, decided: &str, logged: &str) {
    for engine in two_engines() {
        let daemon = deciding(engine).start();
        let mut load = daemon.load(16_000).rate(40_000);
        load.segment = trains;
        let sent = send_until_decided(&load, &daemon) + load.send().sent;
        assert_eq!(state(&daemon.until_delivered(sent)), decided);
        assert_eq!(daemon.end(sent).lines(logged).len(), 1, "{engine}");
    }
}

#[test]
fn trains_switch_gro_on_while_they_arrive_and_every_datagram_is_delivered() {
    assert_decides(Some(16), "auto: on", "listener in: gro is on from now on: of ");
}

#[test]
fn single_datagrams_leave_gro_off_and_every_datagram_is_delivered() {
    assert_decides(None, "auto: off", "looked at 0 % came in trains, of 0.0 on average");
}

#[test]
fn what_was_found_out_outlives_a_restart_that_keeps_the_sockets() {
    let (mut manager, setup) = (Manager::new(), deciding(""));
    manager.start(&setup);
    let load = Load::new(setup.address, Amount::Count(16_000)).rate(40_000).trains(16);
    let sent = send_until_decided(&load, &manager);
    manager.end_with(sent);
    // What comes while no process runs waits in sockets that take trains.
    let waiting = load.send().sent;
    manager.start(&setup);
    assert_eq!(state(&manager.until_received(waiting)), "auto: on");
    manager.end(waiting).assert_logged("cannot be switched off", 0);
}

#[test]
fn what_was_found_out_outlives_a_take_over_under_load() {
    let (mut site, setup) = (Site::new(), service(free_address(), 2, "gro = 'auto'"));
    let first = site.start(&setup);
    let sender = Load::new(setup.address, Amount::Count(100_000)).rate(20_000).flows(8).trains(16).spawn();
    site.stats_when("it has decided", |ledger| state(ledger) == "auto: on");
    let (second, ended) = site.succeed(first, &setup);
    assert_eq!(state(&site.stats()), "auto: on");
    let report = sender.join().expect("it has sent");
    let before = ended.received();
    assert_eq!(before + site.end_with(second, report.sent - before), report.sent, "each process has what it received");
    report.assert_each_once(&contents(site.directory(), "in.log"));
}
