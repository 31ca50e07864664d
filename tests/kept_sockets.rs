//! Kept sockets of every kind: joined groups, interfaces, shared ports and programs go on over a restart as they were.

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use mmsg::{Family, Socket};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::util::*;

/// Ends the daemon when it has received so many, which are all that there are; it keeps its sockets.
#[track_caller]
fn end_with(manager: &mut Manager, datagrams: u64) -> Ended {
    let ended = manager.end_with(datagrams);
    ended.assert_logged("closed the socket", 0);
    ended
}

#[test]
fn joined_groups_are_heard_while_no_daemon_runs_and_after_a_restart_once() {
    let groups = ["239.255.77.3", "239.255.77.4"];
    for engine in two_engines() {
        let (mut manager, port) = (Manager::new(), free_address().port());
        let keys = format!("lanes = 2\nmulticast_groups = {groups:?}\nmulticast_interface = 'lo'\n{engine}");
        let setup = Setup::new().listens_at(format!("0.0.0.0:{port}")).keys(keys).null("out");
        let sender = socket();
        let send = |datagrams: u64| {
            for group in groups {
                (0..datagrams / 2).for_each(|_| assert_eq!(sender.send_to(b"x", (group, port)).expect("sent"), 1));
            }
        };
        manager.start(&setup);
        send(100);
        end_with(&mut manager, 100);
        for round in 0..3 {
            send(60);
            manager.start(&setup);
            send(40);
            let ended = end_with(&mut manager, 100);
            let by_lane: Vec<u64> = lanes(&ended.ledger).iter().map(|lane| count(lane, "received")).collect();
            assert_eq!(by_lane, [50, 50], "{engine}, round {round}: one group each, nothing twice");
        }
    }
}

/// Sends from 32 ports, ten datagrams each at a time.
fn send_from_many(address: SocketAddr, datagrams: u64) {
    let mut load = Load::new(address, Amount::Count(datagrams)).rate(50_000).flows(32);
    load.burst = 10;
    assert_eq!(load.send().sent, datagrams);
}

#[test]
fn a_listener_on_an_interface_goes_on_with_its_sockets() {
    for engine in two_engines() {
        let (mut manager, setup) = (Manager::new(), Setup::new().keys(engine).keys("interface = 'lo'\nlanes = 2"));
        let setup = setup.null("out");
        manager.start(&setup);
        send_from_many(setup.address, 200);
        end_with(&mut manager, 200);
        send_from_many(setup.address, 300);
        manager.start(&setup);
        assert_eq!(manager.names(), ["in.0", "in.1"]);
        end_with(&mut manager, 300);
    }
}

#[test]
fn another_program_on_a_shared_port_keeps_its_share_beside_a_daemon_that_is_restarted() {
    let (mut manager, setup) = (Manager::new(), Setup::new().keys("share_port = true\nlanes = 2").null("out"));
    manager.start(&setup);
    let other = Socket::new(Family::V4).expect("a socket");
    other.set_reuse_port(true).expect("an option");
    other.bind(setup.address).expect("the port is shared");
    manager.end_by(Signal::SIGTERM);
    // Of 32 ports all or none go to one of three sockets less than once in 400,000 runs.
    send_from_many(setup.address, 320);
    manager.start(&setup);
    // On a busy machine the kernel may still be delivering.
    let (other, theirs) = (UdpSocket::from(OwnedFd::from(other)), Cell::new(0));
    manager.stats_when("all has come", |ledger| {
        theirs.update(|taken| taken + other.count_all());
        received(ledger) + theirs.get() >= 320
    });
    assert!(theirs.get() > 0 && theirs.get() < 320, "{} of 320 are a share", theirs.get());
    end_with(&mut manager, 320 - theirs.get());
}

#[test]
fn the_program_that_chooses_the_lane_is_right_after_a_restart_with_as_many_lanes_and_with_others() {
    let Some(cores) = two_cores() else { return };
    let (mut manager, address) = (Manager::new(), free_address());
    let setup = |lanes| Setup::at(address).keys(format!("spread = 'cpu'\nlanes = {lanes}")).null("out");
    manager.start(&setup(2));
    manager.end_by(Signal::SIGTERM);
    for number in [2, 1, 2, 2] {
        // Half of it while no daemon runs: the program of the group chooses then as well.
        let is_as_before = number == 2 && manager.names().len() == 2;
        let early = if is_as_before { 150 } else { 0 };
        let send_from = |core, datagrams| {
            let load = Load::new(address, Amount::Count(datagrams)).rate(50_000).on_core(core);
            assert_eq!(load.send().sent, datagrams);
        };
        cores.iter().for_each(|core| send_from(*core, early));
        manager.start(&setup(number));
        cores.iter().for_each(|core| send_from(*core, 100));
        let ended = end_with(&mut manager, 2 * (early + 100));
        for lane in lanes(&ended.ledger) {
            let own = cores.iter().filter(|core| list(lane, "planned_cpus").contains(&json!(core))).count() as u64;
            assert_eq!(count(lane, "received"), own * (early + 100), "{number} lanes: {:#}", ended.ledger);
        }
    }
}
