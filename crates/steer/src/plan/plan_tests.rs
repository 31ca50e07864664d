//! Tests of plans: on every machine in tests/trees the plan equals the text beside it that a person has reviewed, and
//! what the plan must never do has tests of its own.

use std::collections::BTreeMap;

use super::*;
use crate::ethtool::FlowHash;
use crate::model::{Host, Known};
use crate::testing::{Machine, all_machines, assert_reviewed};

fn all_cores(host: &Host) -> Vec<usize> {
    host.topology.online.clone()
}

/// The plan for all physical interfaces of a machine.
fn plan_of(machine: &str, request: &Request) -> Result<Plan, PlanError> {
    let host = Machine::named(machine).read(&[]).expect("a host");
    Plan::new(&host, &all_cores(&host), request)
}

#[test]
fn the_plan_of_every_machine_is_as_it_was_reviewed() {
    let as_is = Request::default();
    let more = Request {
        rx_queues: Amount::Max,
        ring: Amount::Max,
        flow_hash_udp: Some(FlowHash::ADDRESSES_AND_PORTS),
        ..Request::default()
    };
    for name in all_machines() {
        let mut text = String::new();
        for (title, request) in
            [("as it is", &as_is), ("with the most queues, the longest ring and a hash of addresses and ports", &more)]
        {
            let plan = plan_of(&name, request);
            let shown = plan.map_or_else(|error| format!("refused: {error}\n"), |plan| plan.to_string());
            text.push_str(&format!("== {title}\n{shown}\n"));
        }
        assert_reviewed(&format!("{name}.plan"), &text);
    }
}

#[test]
fn a_receiver_never_sits_on_the_sibling_thread_of_its_interrupt() {
    for name in all_machines() {
        let host = Machine::named(&name).read(&[]).expect("a host");
        let Ok(plan) = Plan::new(&host, &all_cores(&host), &Request::default()) else { continue };
        for seat in plan.interfaces.iter().flat_map(|interface| &interface.seats) {
            let (interrupt, receiver) = (seat.arrival_core().unwrap_or(seat.receiver_core), seat.receiver_core);
            assert!(interrupt == receiver || !host.topology.are_siblings(interrupt, receiver), "{name}: {seat:?}");
            assert!(host.topology.online.contains(&receiver), "{name}: {seat:?}");
        }
    }
}

#[test]
fn same_core_puts_both_on_one_and_different_queues_on_different_ones() {
    let request = Request { placement: Placement::SameCore, ..Request::default() };
    let plan = plan_of("two-socket-smt-ixgbe", &request).expect("a plan");
    let seats = &plan.interfaces[0].seats;
    assert!(seats.iter().all(|seat| seat.interrupt_core == Some(seat.receiver_core)));
    let cores: Vec<usize> = seats.iter().map(|seat| seat.receiver_core).collect();
    assert_eq!(cores, [4, 5, 6, 7, 12, 13, 14, 15], "physical cores of node 1 first, then their other threads");
}

#[test]
fn what_cannot_be_is_refused_with_a_cure() {
    let machine = "two-socket-smt-ixgbe";
    let cases = [
        (Request { rx_queues: Amount::Number(17), ..Request::default() }, "can have 1 to 16"),
        (Request { rx_queues: Amount::Number(0), ..Request::default() }, "can have 1 to 16"),
        (Request { ring: Amount::Number(9999), ..Request::default() }, "can have 1 to 4096"),
        (Request { cores: Some(vec![3, 99]), ..Request::default() }, "cores 99, which are not online"),
    ];
    for (request, expected) in cases {
        let error = plan_of(machine, &request).expect_err(expected);
        assert!(error.to_string().contains(expected) && !error.cure.is_empty(), "{error}");
    }
    let host = Machine::named("offline-cores-i40e").read(&[]).expect("a host");
    let request = Request { cores: Some(vec![2]), ..Request::default() };
    assert!(Plan::new(&host, &all_cores(&host), &request).is_err(), "core 2 is offline");
}

#[test]
fn what_has_nothing_to_steer_says_so_and_names_what_has() {
    let machine = Machine::named("vm-virtio-single");
    let host = machine.read(&["lo"]).expect("a host");
    let error = Plan::new(&host, &[0], &Request::default()).expect_err("loopback");
    assert!(error.to_string().contains("loopback"), "{error}");
    let bond = Machine::unpack(
        "sys/devices/system/cpu/online = 0\nsys/class/net/bond0/ifindex = 4\nsys/class/net/bond0/bonding/slaves = a\n\
         sys/class/net/bond0/lower_eth0 = x\nsys/class/net/bond0/flags = 0x1003\n",
    );
    let host = bond.read(&["bond0"]).expect("a host");
    let error = Plan::new(&host, &[0], &Request::default()).expect_err("a bond");
    assert!(error.cure.ends_with("instead: eth0"), "{error}");
}

#[test]
fn a_single_queue_with_more_receivers_is_spread_by_rps() {
    let rps = |receivers: BTreeMap<String, usize>| {
        let plan = plan_of("vm-virtio-single", &Request { receivers, ..Request::default() }).expect("a plan");
        plan.interfaces[0].wanted.last().expect("something wanted").target.clone()
    };
    assert_eq!(rps([("eth0".to_owned(), 2)].into()), Target::Rps { queue: 0, cores: vec![0, 1] });
    assert_eq!(rps(BTreeMap::new()), Target::Rps { queue: 0, cores: vec![] });
}

#[test]
fn two_interfaces_share_no_core_while_there_are_enough() {
    let host = Machine::named("two-socket-smt-ixgbe").read(&["eth0"]).expect("a host");
    let mut twice = host.clone();
    twice.interfaces[0].queues.truncate(1);
    twice.interfaces.push(twice.interfaces[0].clone());
    if let Known::Is(interrupt) = &mut twice.interfaces[1].queues[0].interrupt {
        interrupt.number += 1000;
    }
    let plan = Plan::new(&twice, &all_cores(&twice), &Request::default()).expect("a plan");
    let seats: Vec<&QueueSeat> = plan.interfaces.iter().flat_map(|interface| &interface.seats).collect();
    let mut cores: Vec<usize> =
        seats.iter().flat_map(|seat| seat.arrival_core().into_iter().chain([seat.receiver_core])).collect();
    cores.sort_unstable();
    cores.dedup();
    assert_eq!(cores.len(), 4);
}

#[test]
fn on_several_nodes_a_device_of_unknown_node_has_the_same_plan_wherever_its_interrupts_fire() {
    let machine = Machine::named("virtio-multi");
    let before = plan_on(&machine);
    for number in [25, 27, 29, 31] {
        let path = machine.proc().join(format!("irq/{number}/effective_affinity_list"));
        std::fs::write(path, "3\n").expect("a file");
    }
    assert_eq!(plan_on(&machine).interfaces[0].seats, before.interfaces[0].seats);
}

fn plan_on(machine: &Machine) -> Plan {
    let host = machine.read(&["eth0"]).expect("a host");
    Plan::new(&host, &[2, 3, 0, 1], &Request::default()).expect("a plan")
}
