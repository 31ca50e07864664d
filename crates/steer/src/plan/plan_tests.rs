//! Tests of plans: on every machine in tests/trees the plan equals the text beside it that a person has reviewed, and
//! what the plan must never do has tests of its own.

#[path = "promise_tests.rs"]
mod promises;

use std::collections::BTreeMap;

use super::*;
use crate::ethtool::FlowHash;
use crate::model::{Host, Known};
use crate::testing::rig::dedication;
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
    let own = Request {
        indirection: Shares::Keep,
        coalesce: Some(std::time::Duration::from_micros(50)),
        dedicated: vec![dedication(&["0.0.0.0:2055", "[::]:2055"])],
        ..Request::default()
    };
    for name in all_machines() {
        let mut text = String::new();
        for (title, request) in [
            ("as it is", &as_is),
            ("with the most queues, the longest ring and a hash of addresses and ports", &more),
            ("with the weights kept, an interrupt after 50 us and a queue for port 2055", &own),
        ] {
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
        machine.write(&format!("proc/irq/{number}/effective_affinity_list"), "3");
    }
    assert_eq!(plan_on(&machine).interfaces[0].seats, before.interfaces[0].seats);
}

fn plan_on(machine: &Machine) -> Plan {
    let host = machine.read(&["eth0"]).expect("a host");
    Plan::new(&host, &[2, 3, 0, 1], &Request::default()).expect("a plan")
}

fn table_of(plan: &Plan) -> Vec<u32> {
    let tables = plan.interfaces[0].wanted.iter().filter_map(|wanted| match &wanted.target {
        Target::Indirection(table) => Some(table.clone()),
        _ => None,
    });
    let tables: Vec<Vec<u32>> = tables.collect();
    let [table] = tables.as_slice() else { panic!("one table: {tables:?}") };
    table.clone()
}

#[test]
fn weights_are_kept_as_long_as_the_number_of_queues_stays() {
    let machine = Machine::named("two-socket-smt-ixgbe");
    let weighted: Vec<u32> = [0, 0, 0, 1].repeat(32);
    machine.change_device(|state| state.rss.as_mut().expect("RSS").indirection = weighted.clone());
    let host = machine.read(&["eth0"]).expect("a host");
    let plan = |request: &Request| Plan::new(&host, &all_cores(&host), request).expect("a plan");
    let keep = Request { indirection: Shares::Keep, ..Request::default() };
    assert_eq!(table_of(&plan(&keep)), weighted);
    let idle = "the table gives no flows to the queues 2, 3, 4, 5, 6, 7: their receivers idle";
    assert!(plan(&keep).interfaces[0].notes.iter().any(|note| note.text == idle), "{}", plan(&keep));
    let even: Vec<u32> = (0..8).cycle().take(128).collect();
    assert_eq!(table_of(&plan(&Request::default())), even);
    let other = Request { rx_queues: Amount::Number(4), ..keep };
    assert_eq!(table_of(&plan(&other)), (0..4).cycle().take(128).collect::<Vec<u32>>(), "for another number of queues");
}

#[test]
fn weights_are_kept_among_the_others_when_a_queue_is_taken_out() {
    let machine = Machine::named("two-socket-smt-ixgbe");
    // Queue 0 has three times what queue 1 has; queue 7 has half of everything.
    let weighted: Vec<u32> = [0, 7, 0, 7, 0, 7, 1, 7].repeat(16);
    machine.change_device(|state| state.rss.as_mut().expect("RSS").indirection = weighted);
    let host = machine.read(&["eth0"]).expect("a host");
    let dedicated = vec![dedication(&["192.0.2.1:514"])];
    let request = Request { indirection: Shares::Keep, dedicated, ..Request::default() };
    let table = table_of(&Plan::new(&host, &all_cores(&host), &request).expect("a plan"));
    let share = |queue: u32| table.iter().filter(|&&entry| entry == queue).count();
    assert_eq!([share(0), share(1), share(7)], [96, 32, 0]);
}

#[test]
fn a_queue_of_its_own_is_the_highest_and_gets_nothing_else() {
    let dedicated = vec![dedication(&["0.0.0.0:2055", "[::]:2055"]), dedication(&["192.0.2.1:514"])];
    let plan = plan_of("two-socket-smt-ixgbe", &Request { dedicated, ..Request::default() }).expect("a plan");
    let part = &plan.interfaces[0];
    let queues: Vec<(usize, usize)> = part.dedicated.iter().map(|it| (it.queue, it.dedication)).collect();
    assert_eq!(queues, [(7, 0), (6, 1)]);
    assert_eq!(table_of(&plan).iter().max(), Some(&5));
    let rules: Vec<String> = (part.wanted.iter())
        .filter(|wanted| matches!(wanted.target, Target::Rule(_)))
        .map(|wanted| wanted.target.to_string())
        .collect();
    assert_eq!(
        rules,
        [
            "a rule that sends UDP over IPv4 to port 2055 to queue 7",
            "a rule that sends UDP over IPv4 to port 514 at 192.0.2.1 to queue 6",
            "a rule that sends UDP over IPv6 to port 2055 to queue 7",
        ]
    );
}

#[test]
fn queues_of_their_own_that_cannot_be_had_are_noted_and_planned_without() {
    let ours = || dedication(&["0.0.0.0:2055"]);
    let cases = [
        ("virtio-multi", vec![ours()], "the driver keeps its rules (ntuple) turned off"),
        ("unknown-driver", vec![ours()], "the driver does not support rules (ntuple)"),
        ("managed-interrupts-igc", vec![ours(), ours()], "2 queues, and one must be left for everything else"),
        ("managed-interrupts-igc", vec![dedication(&["0.0.0.0:1", "0.0.0.0:2"])], "which has 1 left (0 are taken)"),
        ("one-socket-single-queue", vec![ours()], "the driver keeps its rules (ntuple) turned off"),
    ];
    for (machine, dedicated, expected) in cases {
        let plan = plan_of(machine, &Request { dedicated, ..Request::default() }).expect("a plan all the same");
        let without = plan_of(machine, &Request::default()).expect("a plan");
        let part = &plan.interfaces[0];
        let is_ours = |note: &&Note| note.fields == [RequestField::Dedicated];
        let notes: Vec<&str> = part.notes.iter().filter(is_ours).map(|note| note.text.as_str()).collect();
        assert!(notes.len() == 1 && notes[0].contains(expected), "{machine}: {notes:?}");
        assert_eq!((&part.wanted, &part.dedicated), (&without.interfaces[0].wanted, &Vec::new()), "{machine}");
    }
    let several = Dedication { queues: 2, ..ours() };
    let error = plan_of("mlx5", &Request { dedicated: vec![several], ..Request::default() }).expect_err("two queues");
    assert!(error.to_string().contains("a rule of a network card names one queue"), "{error}");
}

#[test]
fn a_core_with_a_seat_sends_through_its_own_queue_and_no_other() {
    let machine = Machine::named("virtio-multi");
    // A fifth send queue that a driver gave every core to, as some do.
    machine.write("sys/class/net/eth0/queues/tx-4/xps_cpus", "0000000f");
    let host = machine.read(&["eth0"]).expect("a host");
    let request = Request { cores: Some(vec![0, 1, 2]), rx_queues: Amount::Number(3), ..Request::default() };
    let plan = Plan::new(&host, &all_cores(&host), &request).expect("a plan");
    let masks: Vec<(usize, Vec<usize>)> = (plan.interfaces[0].wanted.iter())
        .filter_map(|wanted| match &wanted.target {
            Target::Xps { queue, cores } => Some((*queue, cores.clone())),
            _ => None,
        })
        .collect();
    // The fourth has the mask of core 3, which has no seat: that one stays and is not in the plan.
    assert_eq!(masks, [(0, vec![0]), (1, vec![1]), (2, vec![2]), (4, vec![3])]);
}

#[test]
fn the_wait_for_an_interrupt_is_told_with_what_it_costs_and_rounded_up() {
    let wait_ns = |machine: &str, nanos: u64| {
        let coalesce = Some(std::time::Duration::from_nanos(nanos));
        let plan = plan_of(machine, &Request { coalesce, ..Request::default() }).expect("a plan");
        let wanted = plan.interfaces[0].wanted.iter().find(|wanted| matches!(wanted.target, Target::Coalescing(_)));
        wanted.map(|wanted| format!("{}: {}", wanted.target, wanted.why)).ok_or_else(|| plan.to_string())
    };
    let wait = |machine: &str, usecs: u64| wait_ns(machine, 1000 * usecs);
    assert!(wait_ns("two-socket-smt-ixgbe", 500).expect("it can").starts_with("an interrupt after 1 us"));
    assert_eq!(
        wait("two-socket-smt-ixgbe", 50).expect("it can"),
        "an interrupt after 50 us: a datagram then waits 50 us at most for its interrupt, and 8 queues make at most \
         20000 interrupts a second each"
    );
    assert!(wait("mlx5", 50).expect("it can").contains(" or until 128 datagrams are there"));
    assert!(wait("mlx5", 0).expect("it can").contains("nothing bounds the interrupts"));
    let virtio = wait("virtio-multi", 50).expect_err("no such feature");
    assert!(virtio.contains("stays as it is: the host of this virtual card gave it no coalescing"), "{virtio}");
    assert!(wait("gve", 50).expect_err("no such driver").contains("the driver does not support coalescing"));
}

#[test]
fn rps_is_planned_onto_no_isolated_core_and_a_receiver_there_is_told() {
    let mut host = Machine::named("four-cores-one-queue").read(&["eth0"]).expect("a host");
    let request = Request { receivers: [("eth0".to_owned(), 3)].into(), ..Request::default() };
    let cores_of =
        |plan: &Plan| -> Vec<usize> { plan.interfaces[0].all_seats().iter().map(|seat| seat.receiver_core).collect() };
    let before = Plan::new(&host, &all_cores(&host), &request).expect("a plan");
    let isolated = *cores_of(&before).last().expect("a receiver");
    for all in [false, true] {
        host.topology.isolated = if all { all_cores(&host) } else { vec![isolated] };
        let plan = Plan::new(&host, &all_cores(&host), &request).expect("a plan");
        let part = &plan.interfaces[0];
        let mut fed = cores_of(&plan);
        fed.retain(|core| !host.topology.isolated.contains(core));
        fed.sort_unstable();
        assert!(
            part.wanted.iter().any(|wanted| wanted.target == Target::Rps { queue: 0, cores: fed.clone() }),
            "{plan}"
        );
        for seat in &part.spare_seats {
            assert_eq!(seat.arrival_core(), fed.contains(&seat.core).then_some(seat.core), "{plan}");
        }
        assert!(part.notes.iter().any(|note| note.text.contains("lets RPS hand nothing to isolated cores")), "{plan}");
    }
}

#[test]
fn a_managed_interrupt_that_fires_elsewhere_than_a_running_receiver_expects_is_told() {
    let plan = plan_of("managed-interrupts-igc", &Request::default()).expect("a plan");
    let part = &plan.interfaces[0];
    let mut seats = part.all_seats();
    let managed = seats.iter_mut().find(|seat| seat.why.contains("the kernel manages")).expect("a managed interrupt");
    let fires = managed.interrupt_core.expect("a core");
    let text = |expected: usize, queue: usize| {
        format!(
            "queue {queue} on core {expected}, and the kernel, which manages that interrupt, has it on core {fires}"
        )
    };
    managed.interrupt_core = Some(fires + 1);
    let expected = text(fires + 1, managed.queue);
    let request = Request { seated: [(part.name.clone(), seats)].into(), ..Request::default() };
    let plan = plan_of("managed-interrupts-igc", &request).expect("a plan");
    assert_eq!(plan.interfaces[0].notes.iter().filter(|note| note.text.contains(&expected)).count(), 1, "{plan}");
}
