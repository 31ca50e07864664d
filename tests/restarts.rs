//! Restarts under load: one daemon after another goes on with the same sockets, and every datagram is in a file once.
//!
//! The sender waits while the sockets fill up, so what is lost is lost by a restart and not by a slow machine.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::util::*;

/// A listener with so many lanes, and a file for each of them.
fn service(address: SocketAddr, lanes: usize, engine: &str) -> Setup {
    Setup::at(address)
        .keys(format!("{engine}\nlanes = {lanes}\nreceive_buffer = '64MiB'"))
        .file("archive", "in-{consumer}.log")
        .keys("consumers = 'per_lane'")
}

/// The lines in all files of the service.
fn lines_in_files(manager: &Manager) -> u64 {
    contents(manager.directory(), "in-").iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Checks that a daemon has ended with a ledger that closes and has kept its socket; returns what it received.
#[track_caller]
fn assert_ended_well(ended: &Ended) -> u64 {
    ended.logged(&["its socket is kept for the next process"]);
    ended.received()
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_over_restarts_under_load_whatever_the_number_of_lanes() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        manager.start(&service(address, 2, engine));
        let sender = Load::steady(address, 60_000).spawn();
        let mut received = 0;
        for lanes in [2, 4, 1, 3, 2] {
            received += assert_ended_well(&manager.end_by(Signal::SIGTERM));
            manager.start(&service(address, lanes, engine));
            let names: Vec<String> = (0..lanes).map(|lane| format!("in.{lane}")).collect();
            assert_eq!(manager.names(), names, "{engine}: what is gone is not kept");
        }
        let report = sender.join().expect("it has sent");
        received += assert_ended_well(&manager.end_with(report.sent - received));
        assert_eq!(received, report.sent, "{engine}: each ledger has what its process received");
        report.assert_each_once(&contents(manager.directory(), "in-"));
    }
}

#[test]
fn a_process_that_is_killed_loses_what_it_held_and_nothing_that_waits_in_its_sockets() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        manager.start(&service(address, 2, engine));
        let first = Load::steady(address, 2000).send();
        manager.until_delivered(first.sent);
        manager.end_by(Signal::SIGKILL);
        // No daemon reads now: what comes waits for the next process.
        let second = Load::steady(address, 400).send();
        manager.start(&service(address, 2, engine));
        let ended = manager.end_with(second.sent);
        assert_eq!(assert_ended_well(&ended), second.sent, "{engine}");
        assert_eq!(lines_in_files(&manager), first.sent + second.sent, "{engine}");
    }
}

#[test]
fn another_number_of_lanes_is_said_because_it_may_break_the_order_of_a_sender() {
    let (mut manager, address) = (Manager::new(), free_address());
    let mut had = 0;
    for (lanes, lines) in [(2, ""), (2, ""), (4, ""), (1, ""), (3, "spread = 'random'")] {
        manager.start(&service(address, lanes, lines));
        let ended = manager.end_by(Signal::SIGTERM);
        let is_said = ended.stderr.contains(&format!("it has {lanes} lanes now and had {had}"));
        let is_another = had > 0 && lanes != had && lines.is_empty();
        assert_eq!(is_said, is_another, "{had} and then {lanes}: {}", ended.stderr);
        had = lanes;
    }
}

#[test]
fn what_waits_in_a_socket_that_no_lane_goes_on_with_is_counted_and_said() {
    let [address, other] = [free_address(), free_address()];
    for (before, after, to, said) in [
        (service(address, 1, ""), service(other, 1, ""), other, address.to_string()),
        // It is made anew at the same address.
        (service(address, 1, "gro = 'on'"), service(address, 1, "gro = 'off'"), address, "gro on".to_owned()),
    ] {
        let mut manager = Manager::new();
        manager.start(&before);
        assert_ended_well(&manager.end_by(Signal::SIGTERM));
        Load::steady(address, 100).send();
        manager.start(&after);
        assert_eq!(manager.names(), ["in.0"], "the new one is kept");
        let sent = Load::steady(to, 100).send().sent;
        let ended = manager.end_with(sent + 100);
        assert_eq!(assert_ended_well(&ended), sent + 100, "{said}");
        assert_eq!(dropped(ended.listener(), "unread"), 100, "{said}");
        ended.logged(&["dropped 100 datagrams that waited in it", &said]);
    }
}

/// As [`service`], with buffers that are soon full.
fn small(address: SocketAddr, lanes: usize, lines: &str) -> Setup {
    service(address, lanes, lines).replace("64MiB", "64KiB")
}

/// More than the sockets have room for, from several ports.
fn flood(address: SocketAddr) -> u64 {
    Load::steady(address, 5_000).rate(1_000_000).overrunning().send().sent
}

#[test]
fn what_the_kernel_dropped_at_a_socket_that_is_closed_is_in_the_next_ledger_and_in_the_log() {
    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        for lanes in [1, 2] {
            let (mut manager, address) = (Manager::new(), free_address());
            manager.start(&small(address, lanes, "gro = 'on'"));
            manager.end_by(end);
            let sent = flood(address);
            let dropped = manager.dropped();
            assert!(dropped > 1000, "{dropped} of {sent}");
            manager.start(&small(address, lanes, "gro = 'off'"));
            let ended = manager.end_with(sent - dropped);
            let listener = ended.listener();
            assert_eq!(count(listener, "kernel_dropped_between"), dropped, "{end}: {listener:#}");
            assert_eq!(listener["kernel_dropped_unit"], "buffers", "trains may be among them");
            assert_eq!(count(&listener["dropped"], "unread"), sent - dropped, "{end}: {listener:#}");
            ended.assert_logged(&format!("the kernel dropped {dropped} at its sockets"), 1);
        }
    }
}

#[test]
fn what_the_kernel_dropped_for_a_listener_that_is_gone_is_in_the_next_ledger_under_its_name() {
    let (mut manager, address, other) = (Manager::new(), free_address(), free_address());
    manager.start(&small(address, 2, ""));
    manager.end_by(Signal::SIGKILL);
    let sent = flood(address);
    let dropped = manager.dropped();
    assert!(dropped > 1000, "{dropped} of {sent}");
    manager.start(&small(other, 1, "").named("other"));
    let ended = manager.end_by(Signal::SIGTERM);
    let [now, gone] = list(&ended.ledger, "listeners") else { panic!("{:#}", ended.ledger) };
    assert_eq!((&now["name"], &gone["name"], &gone["removed"]), (&json!("other"), &json!("in"), &json!(true)));
    assert_eq!(now["kernel_dropped_between"], json!(null), "none of its sockets was there before");
    assert_eq!((count(gone, "kernel_dropped_between"), count(gone, "arrived")), (dropped, sent - dropped));
    assert_eq!((count(&gone["dropped"], "unread"), &gone["residual"]), (sent - dropped, &json!(0)));
    ended.logged(&["listener in: while no process looked"]);
}

#[test]
fn a_socket_that_is_made_anew_under_load_leaves_no_moment_without_a_socket() {
    let (mut manager, address) = (Manager::new(), free_address());
    let wide = SocketAddr::from(([0, 0, 0, 0], address.port()));
    manager.start(&service(address, 2, "gro = 'on'"));
    let sender = Load::steady(address, 60_000).spawn();
    let (mut received, mut unread, mut lanes) = (0, 0, 2);
    for (to, lines) in [(address, "gro = 'off'"), (wide, ""), (address, ""), (address, "gro = 'on'"), (wide, "")] {
        received += assert_ended_well(&manager.end_by(Signal::SIGTERM));
        lanes = 3 - lanes;
        manager.start(&service(to, lanes, lines));
        unread += dropped(listener(&manager.stats()), "unread");
    }
    let report = sender.join().expect("it has sent");
    received += assert_ended_well(&manager.end_with(report.sent - received));
    assert_eq!(received, report.sent, "each datagram came to a socket");
    assert_eq!(lines_in_files(&manager) + unread, report.sent, "what waited in a socket that was closed is counted");
}

#[test]
fn the_program_of_a_group_that_is_made_anew_numbers_its_lanes_in_order() {
    let Some(cores) = two_cores() else { return };
    let (mut manager, address) = (Manager::new(), free_address());
    let text = |lanes, gro| service(address, lanes, &format!("spread = 'cpu'\ngro = '{gro}'"));
    for before in [1, 2, 1] {
        manager.start(&text(before, "on"));
        manager.end_by(Signal::SIGTERM);
        manager.start(&text(2, "off"));
        for core in cores {
            assert_eq!(Load::steady(address, 100).on_core(core).send().sent, 100);
        }
        let ended = manager.end_with(200);
        for lane in lanes(&ended.ledger) {
            let own = cores.iter().filter(|core| list(lane, "planned_cpus").contains(&json!(core))).count() as u64;
            assert_eq!(count(lane, "received"), own * 100, "after {before} lanes: {:#}", ended.ledger);
        }
    }
}

#[test]
fn a_configuration_that_is_wrong_leaves_the_sockets_to_the_next_that_is_right() {
    let (mut manager, address) = (Manager::new(), free_address());
    manager.start(&service(address, 2, ""));
    assert_ended_well(&manager.end_by(Signal::SIGTERM));
    let report = Load::steady(address, 400).send();
    let refused = manager.start_in_vain(&service(address, 2, "nonsense = 1"));
    assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
    let refused = manager.start_in_vain(&service(address, 2, "").replace("@DIR@/in", "/proc/udpd/in"));
    assert!(!refused.status.success(), "{}", refused.stderr);
    manager.start(&service(address, 2, ""));
    assert_eq!(assert_ended_well(&manager.end_with(report.sent)), report.sent);
    report.assert_each_once(&contents(manager.directory(), "in-"));
}

#[test]
fn a_store_that_is_too_small_keeps_all_sockets_or_none_and_it_is_said() {
    // Half of a group would be worse than none. What says what a killed process may have lost comes last.
    for (room, kept, said) in
        [(1, &[][..], "FileDescriptorStoreMax="), (2, &["in.0", "in.1"], "one for each lane: there is no place")]
    {
        let (mut manager, address) = (Manager::new(), free_address());
        manager.keep_at_most(room);
        manager.start(&service(address, 2, ""));
        assert_eq!(manager.all_names(), kept);
        let sent = Load::steady(address, 500).send().sent;
        manager.end_with(sent).logged(&[said]);
    }
}

#[test]
fn sockets_that_change_their_names_or_places_stay_in_a_store_without_room_to_spare() {
    let [first, second] = [free_address(), free_address()];
    let config = |name: &str, addresses: [SocketAddr; 2]| service(first, 1, "").named(name).listens_at_each(&addresses);
    let mut manager = Manager::new();
    // Two sockets and the record.
    manager.keep_at_most(3);
    let assert_kept = |manager: &Manager, name: &str, addresses: [SocketAddr; 2]| {
        let names = [0, 1].map(|lane| format!("{name}.{lane}"));
        assert_eq!(manager.names(), names);
        let address = |name: &String| address_of(&UdpSocket::from(manager.copy_of(name)));
        assert_eq!(names.each_ref().map(address), addresses);
        assert_eq!(manager.all_names().len(), 3, "the record is kept as well");
    };
    manager.start(&config("in", [first, second]));
    assert_kept(&manager, "in", [first, second]);
    let changes = [("in", [second, first]), ("out", [second, first]), ("in", [first, second])];
    for (name, addresses) in changes {
        assert_ended_well(&manager.end_by(Signal::SIGTERM));
        manager.start(&config(name, addresses));
        assert_kept(&manager, name, addresses);
    }
    for (name, addresses) in changes {
        manager.reload_and_hear(&config(name, addresses));
        assert_kept(&manager, name, addresses);
        let sent = Load::steady(second, 100).send().sent;
        let of_name = |ledger: &serde_json::Value| count(listener_named(ledger, name), "received");
        manager.stats_when("all has come", |ledger| of_name(ledger) >= sent);
    }
}

#[test]
fn a_socket_unit_is_gone_on_with_and_what_no_lane_can_use_is_refused() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        let of_unit = UdpSocket::bind(address).expect("a free port");
        manager.hold("udpd.socket", OwnedFd::from(of_unit.try_clone().expect("a copy")));
        // What came before the daemon was started is the first that it gets.
        let early = Load::steady(address, 50).send();
        manager.start(&service(address, 1, engine));
        let ended = manager.end_with(early.sent);
        assert_eq!(assert_ended_well(&ended), early.sent, "{engine}");
        assert_eq!(manager.names(), ["udpd.socket"], "it is not kept a second time");
        // It is neither deaf nor at its end.
        let later = Load::steady(address, 50).send();
        manager.start(&service(address, 1, engine));
        assert_eq!(assert_ended_well(&manager.end_with(later.sent)), later.sent, "{engine}");
        let refused = manager.start_in_vain(&service(free_address(), 1, engine));
        assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
        assert!(refused.stderr.contains("\"udpd.socket\"") && refused.stderr.contains("no listener has its address"));
        drop(of_unit);
    }
}
