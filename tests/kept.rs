//! Kept sockets of every kind: joined groups, interfaces, shared ports and programs go on over a restart as they were.

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use mmsg::{Family, Socket};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::util::daemon::free_address;
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load};
use crate::util::manager::{Finished, Manager};

/// A listener with these lines, and a sink that counts.
fn service(lines: &str) -> String {
    format!("[[listener]]\nname = \"in\"\nsinks = [\"out\"]\n{lines}\n[sink.out]\ntype = \"null\"\n")
}

fn received(ledger: &Value) -> u64 {
    count(&ledger["listeners"][0], "received")
}

/// Ends the daemon when it has received so much, which is all there is.
#[track_caller]
fn end_with(manager: &mut Manager, datagrams: u64) -> Finished {
    manager.stats_when("all has come", |ledger| received(ledger) >= datagrams);
    let ended = manager.end_by(Signal::SIGTERM);
    assert!(ended.status.success() && !ended.stderr.contains("closed the socket"), "{}", ended.stderr);
    assert_closed(&ended.ledger, datagrams);
    ended
}

#[test]
fn joined_groups_are_heard_while_nobody_runs_and_after_a_restart_once() {
    for engine in two_engines() {
        let mut manager = Manager::new();
        let port = free_address().port();
        let groups = "[\"239.255.77.3\", \"239.255.77.4\"]";
        let text = service(&format!(
            "address = \"0.0.0.0:{port}\"\nlanes = 2\nmulticast_groups = {groups}\nmulticast_interface = \"lo\"\n{engine}"
        ));
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let send = |datagrams: u64| {
            for group in ["239.255.77.3", "239.255.77.4"] {
                (0..datagrams / 2).for_each(|_| assert_eq!(sender.send_to(b"x", (group, port)).expect("sent"), 1));
            }
        };
        manager.start(&text);
        send(100);
        end_with(&mut manager, 100);
        for round in 0..3 {
            send(60);
            manager.start(&text);
            send(40);
            let ended = end_with(&mut manager, 100);
            let by_lane: Vec<u64> =
                list(&ended.ledger["listeners"][0], "lanes").iter().map(|l| count(l, "received")).collect();
            assert_eq!(by_lane, [50, 50], "{engine}, round {round}: one group each, nothing twice");
        }
    }
}

#[test]
fn a_listener_on_an_interface_goes_on_with_its_sockets() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        let text = service(&format!("address = \"{address}\"\ninterface = \"lo\"\nlanes = 2\n{engine}"));
        manager.start(&text);
        send(address, 200);
        end_with(&mut manager, 200);
        send(address, 300);
        manager.start(&text);
        assert_eq!(manager.names(), ["in.0", "in.1"]);
        end_with(&mut manager, 300);
    }
}

#[test]
fn who_shares_the_port_keeps_its_place_beside_a_daemon_that_is_restarted() {
    let (mut manager, address) = (Manager::new(), free_address());
    let text = service(&format!("address = \"{address}\"\nshare_port = true\nlanes = 2"));
    manager.start(&text);
    let other = Socket::new(Family::V4).expect("a socket");
    other.set_reuse_port(true).expect("an option");
    other.bind(address).expect("the port is shared");
    manager.end_by(Signal::SIGTERM);
    send(address, 320);
    manager.start(&text);
    // On a busy machine the kernel may still be delivering.
    let (other, theirs) = (UdpSocket::from(OwnedFd::from(other)), Cell::new(0));
    other.set_nonblocking(true).expect("it can be set");
    manager.stats_when("all has come", |ledger| {
        theirs.update(|taken| taken + take_all(&other));
        received(ledger) + theirs.get() >= 320
    });
    assert!(theirs.get() > 0 && theirs.get() < 320, "{} of 320 are a share", theirs.get());
    end_with(&mut manager, 320 - theirs.get());
}

/// How many datagrams wait there; they wait no more.
fn take_all(socket: &UdpSocket) -> u64 {
    let mut bytes = [0; 2048];
    std::iter::from_fn(|| socket.recv(&mut bytes).ok()).map(|_| 1).sum()
}

/// Sends from 32 ports.
fn send(address: SocketAddr, datagrams: u64) {
    let mut load = Load::new(address, Amount::Count(datagrams));
    (load.rate_per_second, load.flows) = (50_000, 32);
    assert_eq!(load.send().sent, datagrams);
}

#[test]
fn the_program_that_chooses_the_lane_is_right_after_a_restart_with_as_many_lanes_and_with_others() {
    let cores: Vec<usize> =
        core_affinity::get_core_ids().expect("the cores of this process").into_iter().map(|core| core.id).collect();
    let Some(cores) = cores.first_chunk::<2>().copied() else { return not_checked() };
    let (mut manager, address) = (Manager::new(), free_address());
    let text = |lanes| service(&format!("address = \"{address}\"\nspread = \"cpu\"\nlanes = {lanes}"));
    manager.start(&text(2));
    manager.end_by(Signal::SIGTERM);
    for lanes in [2, 1, 2, 2] {
        // Half of it while nobody runs: the program of the group chooses then as well.
        let is_as_before = lanes == 2 && manager.names().len() == 2;
        let early = if is_as_before { 150 } else { 0 };
        let send_from = |core, datagrams| {
            let mut load = Load::new(address, Amount::Count(datagrams));
            (load.cpu, load.rate_per_second) = (Some(core), 50_000);
            assert_eq!(load.send().sent, datagrams);
        };
        cores.iter().for_each(|core| send_from(*core, early));
        manager.start(&text(lanes));
        cores.iter().for_each(|core| send_from(*core, 100));
        let ended = end_with(&mut manager, 2 * (early + 100));
        for lane in list(&ended.ledger["listeners"][0], "lanes") {
            let own = cores.iter().filter(|core| list(lane, "planned_cpus").contains(&json!(core))).count() as u64;
            assert_eq!(count(lane, "received"), own * (early + 100), "{lanes} lanes: {:#}", ended.ledger);
        }
    }
}

#[allow(clippy::print_stderr)]
fn not_checked() {
    eprintln!("NOT CHECKED: a sender on each of two cores needs two cores");
}
