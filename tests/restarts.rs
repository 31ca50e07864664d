//! Restarts under load: one daemon after another goes on with the same sockets, and every datagram is in a file once.
//!
//! The sender waits while the sockets fill up, so what is lost is lost by a restart and not by a slow machine.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::util::daemon::free_address;
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load, read_text_header};
use crate::util::manager::{Finished, Manager};

/// A listener with so many lanes, and a file for each of them.
fn service(address: SocketAddr, lanes: usize, engine: &str) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        {engine}
        lanes = {lanes}
        receive_buffer = "64MiB"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        consumers = "per_lane"
        rotate.every = "0s"
        path = "@DIR@/in-{{consumer}}.log"
        "#
    )
}

/// The numbers of each flow in all files of the service, sorted.
fn numbers_in_files(manager: &Manager, flows: usize) -> Vec<Vec<u64>> {
    let mut numbers = vec![Vec::new(); flows];
    for entry in std::fs::read_dir(manager.directory()).expect("a directory").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            let text = std::fs::read_to_string(entry.path()).expect("the load is text");
            for line in text.lines() {
                let (flow, number) = read_text_header(line).expect("a line of the load");
                numbers[flow].push(number);
            }
        }
    }
    numbers.iter_mut().for_each(|numbers| numbers.sort_unstable());
    numbers
}

/// Checks that every datagram is in a file, and none twice.
#[track_caller]
fn assert_all_once(manager: &Manager, per_flow: &[u64], what: &str) {
    for (flow, (found, &sent)) in numbers_in_files(manager, per_flow.len()).iter().zip(per_flow).enumerate() {
        let (all, distinct) = (found.len() as u64, found.iter().collect::<BTreeSet<_>>().len() as u64);
        assert_eq!((distinct, all), (sent, sent), "{what}: flow {flow} as (distinct, all) against what was sent");
    }
}

/// Checks that a daemon has ended with books that are whole: what it received it delivered.
#[track_caller]
fn assert_ended_well(ended: &Finished) -> u64 {
    assert!(ended.status.success(), "{}", ended.stderr);
    let listener = &ended.ledger["listeners"][0];
    assert_eq!(count(listener, "kernel_dropped"), 0, "{listener:#}");
    assert_closed(&ended.ledger, count(listener, "received"));
    assert!(ended.stderr.contains("its socket is kept for the next process"), "{}", ended.stderr);
    count(listener, "received")
}

/// A load at a small rate that lasts over some restarts.
fn load(address: SocketAddr, count: u64) -> Load {
    let mut load = Load::new(address, Amount::Count(count));
    load.rate_per_second = 20_000;
    load.flows = 8;
    load
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_over_five_restarts_under_load() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        manager.start(&service(address, 2, engine));
        assert_eq!(manager.names(), ["in.0", "in.1"], "both sockets are kept");
        let sender = load(address, 60_000).spawn();
        let mut received = 0;
        for _ in 0..5 {
            received += assert_ended_well(&manager.end_by(Signal::SIGTERM));
            manager.start(&service(address, 2, engine));
        }
        let report = sender.join().expect("it has sent");
        received += assert_ended_well(&wait_and_end(&mut manager, report.sent - received));
        assert_eq!(received, report.sent, "{engine}: each ledger has what its process received");
        assert_all_once(&manager, &report.per_flow, engine);
    }
}

/// Ends the daemon when it has received so much, which is all there is.
fn wait_and_end(manager: &mut Manager, received: u64) -> Finished {
    manager.stats_when("the rest has come", |ledger| count(&ledger["listeners"][0], "received") >= received);
    manager.end_by(Signal::SIGTERM)
}

#[test]
fn a_process_that_is_killed_loses_what_it_held_and_nothing_that_waits_in_its_sockets() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        manager.start(&service(address, 2, engine));
        let first = load(address, 2000).send();
        manager.stats_when("all is delivered", |ledger| {
            count(&ledger["listeners"][0]["sinks"][0], "delivered") == first.sent
        });
        manager.end_by(Signal::SIGKILL);
        // Nobody reads now: what comes waits for the next process.
        let second = load(address, 400).send();
        manager.start(&service(address, 2, engine));
        let ended = wait_and_end(&mut manager, second.sent);
        assert_eq!(assert_ended_well(&ended), second.sent, "{engine}");
        let twice: Vec<u64> = first.per_flow.iter().zip(&second.per_flow).map(|(one, other)| one + other).collect();
        let found: Vec<u64> = numbers_in_files(&manager, 8).iter().map(|numbers| numbers.len() as u64).collect();
        assert_eq!(found, twice, "{engine}");
    }
}

#[test]
fn lanes_come_and_go_over_restarts_and_nothing_is_lost() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        manager.start(&service(address, 2, engine));
        let sender = load(address, 60_000).spawn();
        let mut received = 0;
        for lanes in [4, 1, 3, 2] {
            received += assert_ended_well(&manager.end_by(Signal::SIGTERM));
            manager.start(&service(address, lanes, engine));
            let names: Vec<String> = (0..lanes).map(|lane| format!("in.{lane}")).collect();
            let mut kept = manager.names();
            kept.sort_unstable();
            assert_eq!(kept, names, "{engine}: what is gone is not kept");
        }
        let report = sender.join().expect("it has sent");
        received += assert_ended_well(&wait_and_end(&mut manager, report.sent - received));
        assert_eq!(received, report.sent, "{engine}");
        assert_all_once(&manager, &report.per_flow, engine);
    }
}

#[test]
fn another_number_of_lanes_is_said_because_it_may_break_the_order_of_a_sender() {
    let (mut manager, address) = (Manager::new(), free_address());
    let mut had = 0;
    for (lanes, lines) in [(2, ""), (2, ""), (4, ""), (1, ""), (3, "spread = \"random\"")] {
        manager.start(&service(address, lanes, lines));
        let ended = manager.end_by(Signal::SIGTERM);
        let is_said = ended.stderr.contains(&format!("it has {lanes} lanes now and had {had}"));
        let is_another = had > 0 && lanes != had && lines.is_empty();
        assert_eq!(is_said, is_another, "{had} and then {lanes}: {}", ended.stderr);
        had = lanes;
    }
}

#[test]
fn what_waits_for_a_listener_that_is_gone_is_counted_and_said() {
    let (mut manager, address, other) = (Manager::new(), free_address(), free_address());
    manager.start(&service(address, 1, ""));
    assert_ended_well(&manager.end_by(Signal::SIGTERM));
    load(address, 100).send();
    manager.start(&service(other, 1, ""));
    let sent = load(other, 100).send().sent;
    let ended = wait_and_end(&mut manager, sent);
    assert_eq!(assert_ended_well(&ended), sent + 100);
    assert_eq!(count(&ended.ledger["listeners"][0]["dropped"], "unread"), 100, "of the listener's other address");
    assert!(ended.stderr.contains("dropped 100 datagrams that waited in it"), "{}", ended.stderr);
    assert!(ended.stderr.contains(&address.to_string()), "{}", ended.stderr);
}

#[test]
fn a_socket_that_fits_no_more_is_counted_out_and_made_anew_at_the_same_address() {
    let (mut manager, address) = (Manager::new(), free_address());
    manager.start(&service(address, 1, "gro = \"on\""));
    assert_ended_well(&manager.end_by(Signal::SIGTERM));
    load(address, 100).send();
    manager.start(&service(address, 1, "gro = \"off\""));
    assert_eq!(manager.names(), ["in.0"], "the new one is kept");
    let sent = load(address, 100).send().sent;
    let ended = wait_and_end(&mut manager, sent + 100);
    assert_eq!(assert_ended_well(&ended), sent + 100);
    assert_eq!(count(&ended.ledger["listeners"][0]["dropped"], "unread"), 100);
    assert!(ended.stderr.contains("gro on") && ended.stderr.contains("dropped 100 datagrams"), "{}", ended.stderr);
}

/// As [`service`], with buffers that are soon full.
fn small(address: SocketAddr, lanes: usize, lines: &str) -> String {
    service(address, lanes, lines).replace("64MiB", "64KiB")
}

/// More than the sockets have room for, from several ports.
fn flood(address: SocketAddr) -> u64 {
    let mut load = load(address, 5_000);
    (load.overruns, load.rate_per_second) = (true, 1_000_000);
    load.send().sent
}

/// What the kernel has dropped at the sockets that are kept, asked without udpd.
fn dropped_at(manager: &Manager) -> u64 {
    let socket = |name: &&str| mmsg::Socket::try_from(manager.copy_of(name)).expect("a socket");
    manager.names().iter().map(|name| u64::from(socket(name).memory_info().expect("the kernel tells").drops)).sum()
}

#[test]
fn what_the_kernel_dropped_at_a_socket_that_is_closed_is_in_the_next_ledger_and_in_the_log() {
    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        for lanes in [1, 2] {
            let (mut manager, address) = (Manager::new(), free_address());
            manager.start(&small(address, lanes, "gro = \"on\""));
            manager.end_by(end);
            let sent = flood(address);
            let dropped = dropped_at(&manager);
            assert!(dropped > 1000, "{dropped} of {sent}");
            manager.start(&small(address, lanes, "gro = \"off\""));
            let ended = wait_and_end(&mut manager, sent - dropped);
            let listener = &ended.ledger["listeners"][0];
            assert_eq!(count(listener, "kernel_dropped_between"), dropped, "{end}: {listener:#}");
            assert_eq!(listener["kernel_dropped_unit"], "buffers", "trains may be among them");
            assert_eq!(count(&listener["dropped"], "unread"), sent - dropped, "{end}: {listener:#}");
            assert_closed(&ended.ledger, sent - dropped);
            let line = format!("the kernel dropped {dropped} at its sockets");
            assert_eq!(ended.stderr.matches(&line).count(), 1, "{}", ended.stderr);
        }
    }
}

#[test]
fn what_the_kernel_dropped_for_a_listener_that_is_gone_is_in_the_next_ledger_under_its_name() {
    let (mut manager, address, other) = (Manager::new(), free_address(), free_address());
    manager.start(&small(address, 2, ""));
    manager.end_by(Signal::SIGKILL);
    let sent = flood(address);
    let dropped = dropped_at(&manager);
    assert!(dropped > 1000, "{dropped} of {sent}");
    manager.start(&small(other, 1, "").replace("name = \"in\"", "name = \"other\""));
    let ended = manager.end_by(Signal::SIGTERM);
    let [now, gone] = list(&ended.ledger, "listeners") else { panic!("{:#}", ended.ledger) };
    assert_eq!((&now["name"], &gone["name"], &gone["removed"]), (&json!("other"), &json!("in"), &json!(true)));
    assert_eq!(now["kernel_dropped_between"], json!(null), "none of its sockets was there before");
    assert_eq!((count(gone, "kernel_dropped_between"), count(gone, "arrived")), (dropped, sent - dropped));
    assert_eq!((count(&gone["dropped"], "unread"), &gone["residual"]), (sent - dropped, &json!(0)));
    assert!(ended.stderr.contains("listener in: while no process looked"), "{}", ended.stderr);
}

#[test]
fn a_socket_that_is_made_anew_under_load_leaves_no_moment_without_a_socket() {
    let (mut manager, address) = (Manager::new(), free_address());
    let wide = SocketAddr::from(([0, 0, 0, 0], address.port()));
    manager.start(&service(address, 2, "gro = \"on\""));
    let sender = load(address, 60_000).spawn();
    let (mut received, mut unread, mut lanes) = (0, 0, 2);
    for (to, lines) in [(address, "gro = \"off\""), (wide, ""), (address, ""), (address, "gro = \"on\""), (wide, "")] {
        received += assert_ended_well(&manager.end_by(Signal::SIGTERM));
        lanes = 3 - lanes;
        manager.start(&service(to, lanes, lines));
        let ledger = manager.stats_when("it answers", |_| true);
        unread += count(&ledger["listeners"][0]["dropped"], "unread");
    }
    let report = sender.join().expect("it has sent");
    received += assert_ended_well(&wait_and_end(&mut manager, report.sent - received));
    assert_eq!(received, report.sent, "each datagram came to a socket");
    let in_files: usize = numbers_in_files(&manager, report.per_flow.len()).iter().map(Vec::len).sum();
    assert_eq!(in_files as u64 + unread, report.sent, "what waited in a socket that was closed is counted");
}

#[test]
fn the_program_of_a_group_that_is_made_anew_numbers_its_lanes_in_order() {
    let cores: Vec<usize> =
        core_affinity::get_core_ids().expect("the cores of this process").into_iter().map(|core| core.id).collect();
    let Some(cores) = cores.first_chunk::<2>().copied() else { return not_checked() };
    let (mut manager, address) = (Manager::new(), free_address());
    let text = |lanes, gro| service(address, lanes, &format!("spread = \"cpu\"\ngro = \"{gro}\""));
    for before in [1, 2, 1] {
        manager.start(&text(before, "on"));
        manager.end_by(Signal::SIGTERM);
        manager.start(&text(2, "off"));
        for core in cores {
            let mut load = load(address, 100);
            load.cpu = Some(core);
            assert_eq!(load.send().sent, 100);
        }
        let ended = wait_and_end(&mut manager, 200);
        for lane in list(&ended.ledger["listeners"][0], "lanes") {
            let own = cores.iter().filter(|core| list(lane, "planned_cpus").contains(&json!(core))).count() as u64;
            assert_eq!(count(lane, "received"), own * 100, "after {before} lanes: {:#}", ended.ledger);
        }
    }
}

#[allow(clippy::print_stderr)]
fn not_checked() {
    eprintln!("NOT CHECKED: a sender on each of two cores needs two cores");
}

#[test]
fn a_configuration_that_is_wrong_leaves_the_sockets_to_the_next_that_is_right() {
    let (mut manager, address) = (Manager::new(), free_address());
    manager.start(&service(address, 2, ""));
    assert_ended_well(&manager.end_by(Signal::SIGTERM));
    let report = load(address, 400).send();
    let refused = manager.start_in_vain(&service(address, 2, "nonsense = 1"));
    assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
    let refused = manager.start_in_vain(&service(address, 2, "").replace("@DIR@/in", "/proc/udpd/in"));
    assert!(!refused.status.success(), "{}", refused.stderr);
    manager.start(&service(address, 2, ""));
    assert_eq!(assert_ended_well(&wait_and_end(&mut manager, report.sent)), report.sent);
    assert_all_once(&manager, &report.per_flow, "after two starts in vain");
}

#[test]
fn a_store_that_is_too_small_is_said_and_the_end_is_as_ever() {
    let (mut manager, address) = (Manager::new(), free_address());
    manager.keep_at_most(1);
    manager.start(&service(address, 2, ""));
    assert_eq!(manager.names(), [""; 0], "half of a group would be worse than none");
    let sent = load(address, 500).send().sent;
    let ended = manager.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, sent);
    assert!(ended.stderr.contains("FileDescriptorStoreMax="), "{}", ended.stderr);
}

#[test]
fn sockets_that_change_their_names_or_places_stay_in_a_store_without_room_to_spare() {
    let [first, second] = [free_address(), free_address()];
    let config = |name: &str, addresses: [SocketAddr; 2]| {
        let addresses = addresses.map(|address| format!("\"{address}\"")).join(", ");
        service(first, 1, "")
            .replace(&format!("\"{first}\""), &format!("[{addresses}]"))
            .replace("name = \"in\"", &format!("name = \"{name}\""))
    };
    let mut manager = Manager::new();
    // Two sockets and the record.
    manager.keep_at_most(3);
    let assert_kept = |manager: &Manager, names: [&str; 2], addresses: [SocketAddr; 2]| {
        let mut kept = manager.names();
        kept.sort_unstable();
        assert_eq!(kept, names);
        let address = |name| UdpSocket::from(manager.copy_of(name)).local_addr().expect("an address");
        assert_eq!(names.map(address), addresses);
        assert_eq!(manager.all_names().len(), 3, "the record is kept as well");
    };
    manager.start(&config("in", [first, second]));
    assert_kept(&manager, ["in.0", "in.1"], [first, second]);
    for (name, addresses) in [("in", [second, first]), ("out", [second, first]), ("in", [first, second])] {
        assert_ended_well(&manager.end_by(Signal::SIGTERM));
        manager.start(&config(name, addresses));
        let names = [format!("{name}.0"), format!("{name}.1")];
        assert_kept(&manager, names.each_ref().map(String::as_str), addresses);
    }
    for (name, addresses) in [("in", [second, first]), ("out", [second, first]), ("in", [first, second])] {
        manager.reload(&config(name, addresses));
        let names = [format!("{name}.0"), format!("{name}.1")];
        assert_kept(&manager, names.each_ref().map(String::as_str), addresses);
        let sent = load(second, 100).send().sent;
        manager.stats_when("all has come", |ledger| {
            let of_name = |listener: &&serde_json::Value| listener["name"] == name && listener["removed"] != true;
            let listener = list(ledger, "listeners").iter().find(of_name).expect("it is there").clone();
            count(&listener, "received") >= sent
        });
    }
}

#[test]
fn a_socket_unit_is_gone_on_with_and_what_no_lane_can_use_is_refused() {
    for engine in two_engines() {
        let (mut manager, address) = (Manager::new(), free_address());
        let of_unit = UdpSocket::bind(address).expect("a free port");
        manager.hold("udpd.socket", OwnedFd::from(of_unit.try_clone().expect("a copy")));
        // What came before the daemon was started is the first that it gets.
        let early = load(address, 50).send();
        manager.start(&service(address, 1, engine));
        let ended = wait_and_end(&mut manager, early.sent);
        assert_eq!(assert_ended_well(&ended), early.sent, "{engine}");
        assert_eq!(manager.names(), ["udpd.socket"], "it is not kept a second time");
        // It is neither deaf nor at its end.
        let later = load(address, 50).send();
        manager.start(&service(address, 1, engine));
        assert_eq!(assert_ended_well(&wait_and_end(&mut manager, later.sent)), later.sent, "{engine}");
        let refused = manager.start_in_vain(&service(free_address(), 1, engine));
        assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
        assert!(refused.stderr.contains("\"udpd.socket\"") && refused.stderr.contains("no listener has its address"));
        drop(of_unit);
    }
}
