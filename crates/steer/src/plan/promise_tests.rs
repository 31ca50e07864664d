//! What holds of the seats of every plan, tried on hosts made up at random: of one to sixteen physical cores with and
//! without siblings, one to three nodes, one to three interfaces, more and fewer queues and receivers than cores.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{InterfacePlan, Plan, Request};
use crate::model::{Host, Interface, Known, Queue, Work, WorkBy};
use crate::testing::{Machine, Random};
use crate::topology::Topology;

fn topology(random: &mut Random) -> Topology {
    let (nodes, threads) = (1 + random.below(3), 1 + random.below(2));
    let physical = (1 + random.below(16)).max(nodes);
    let mut topology = Topology::default();
    for core in 0..physical * threads {
        let own = core % physical;
        topology.online.push(core);
        topology.physical_of_core.insert(core, own);
        topology.node_of_core.insert(core, own * nodes / physical);
        topology.cache_of_core.insert(core, own * nodes / physical);
    }
    for one in 0..nodes {
        for other in 0..one {
            let distance = u32::try_from(15 + random.below(20)).expect("a small number");
            topology.distances.insert((one, other), distance);
            topology.distances.insert((other, one), distance);
        }
    }
    topology
}

fn interface(base: &Interface, number: usize, random: &mut Random, topology: &Topology) -> Interface {
    let queues = 1 + random.below(9);
    let shares = random.below(8) == 0;
    let queue = |index: usize| {
        let line = if shares { 0 } else { index };
        let mut queue = Queue { index, ..base.queues[0].clone() };
        if let Known::Is(interrupt) = &mut queue.interrupt {
            interrupt.number = u32::try_from(100 * number + line).expect("a small number");
        }
        queue
    };
    let nodes: BTreeSet<usize> = topology.node_of_core.values().copied().collect();
    Interface {
        name: format!("eth{number}"),
        node: (random.below(4) > 0).then(|| random.below(nodes.len())),
        queues: (0..queues).map(queue).collect(),
        ..base.clone()
    }
}

fn host(base: &Interface, random: &mut Random) -> (Host, Request) {
    let topology = topology(random);
    let count = 1 + random.below(3);
    let interfaces: Vec<Interface> = (0..count).map(|number| interface(base, number, random, &topology)).collect();
    let mut request = Request::default();
    for interface in &interfaces {
        if random.below(3) == 0 {
            request.receivers.insert(interface.name.clone(), 1 + random.below(9));
        }
    }
    (Host { topology, interfaces }, request)
}

const HOSTS: usize = 200;

fn every_host(mut check: impl FnMut(&Host, &Request, &Plan)) {
    let base = Machine::named("vm-virtio-single").read(&[]).expect("a host").interfaces.remove(0);
    let mut random = Random::default();
    for _ in 0..HOSTS {
        let (host, request) = host(&base, &mut random);
        let plan = Plan::new(&host, &host.topology.online, &request).expect("a plan");
        check(&host, &request, &plan);
    }
}

/// The cores of interrupts, and how many receivers each core has.
fn used(plan: &Plan) -> (BTreeSet<usize>, BTreeMap<usize, usize>) {
    let (mut interrupts, mut receivers) = (BTreeSet::new(), BTreeMap::new());
    for part in &plan.interfaces {
        interrupts.extend(part.seats.iter().filter_map(|seat| seat.interrupt_core));
        let own: BTreeMap<usize, usize> =
            part.all_seats().iter().map(|seat| (seat.receiver, seat.receiver_core)).collect();
        own.values().for_each(|&core| *receivers.entry(core).or_insert(0) += 1);
    }
    (interrupts, receivers)
}

#[test]
fn no_receiver_shares_a_core_while_another_is_free() {
    every_host(|host, request, plan| {
        let (interrupts, receivers) = used(plan);
        let online = || host.topology.online.iter().copied();
        let idle = || online().filter(|core| !interrupts.contains(core) && !receivers.contains_key(core));
        let beside = |core: usize| interrupts.iter().any(|&other| host.topology.are_siblings(core, other));
        for (&core, &count) in &receivers {
            let text = || format!("core {core}\n{request:?}\n{:?}\n{plan}", host.topology);
            assert!(count == 1 || idle().next().is_none(), "two receivers on {}", text());
            assert!(!interrupts.contains(&core) || idle().next().is_none(), "a receiver with an interrupt: {}", text());
            assert!(!beside(core) || idle().all(beside), "a receiver beside an interrupt: {}", text());
        }
    });
}

#[test]
fn the_same_host_has_the_same_plan_also_after_it_was_applied() {
    every_host(|host, request, plan| {
        let mut after = host.clone();
        for (interface, part) in after.interfaces.iter_mut().zip(&plan.interfaces) {
            for (queue, seat) in interface.queues.iter_mut().zip(&part.seats) {
                if let (Known::Is(interrupt), Some(core)) = (&mut queue.interrupt, seat.interrupt_core) {
                    (interrupt.requested, interrupt.effective) = (vec![core], vec![core]);
                }
                queue.rps_cores.clone_from(&seat.rps_cores);
                queue.work = Known::Is(Work { by: WorkBy::Interrupt, cores: seat.cores_of_queue().to_vec() });
            }
        }
        let again = Plan::new(&after, &host.topology.online, request).expect("a plan");
        assert_eq!(&again, plan);
    });
}

#[test]
fn beside_receivers_that_run_as_planned_the_plan_is_the_same() {
    every_host(|host, request, plan| {
        let seated = plan.interfaces.iter().map(|part| (part.name.clone(), part.all_seats())).collect();
        let again = Request { seated, ..request.clone() };
        let again = Plan::new(host, &host.topology.online, &again).expect("a plan");
        for (one, other) in plan.interfaces.iter().zip(&again.interfaces) {
            let plain = |part: &InterfacePlan| -> Vec<_> {
                let seats = part.all_seats().into_iter();
                seats.map(|seat| (seat.receiver, seat.interrupt_core, seat.receiver_core, seat.rps_cores)).collect()
            };
            assert_eq!(plain(one), plain(other), "{plan}{again}");
            let targets = |part: &InterfacePlan| -> Vec<_> { part.wanted.iter().map(|it| it.target.clone()).collect() };
            assert_eq!(targets(one), targets(other));
        }
    });
}

#[test]
fn with_fewer_receivers_than_queues_they_take_turns_and_with_more_rps_feeds_every_one() {
    every_host(|_, request, plan| {
        for part in &plan.interfaces {
            let queues = part.seats.len();
            let receivers = request.receivers.get(&part.name).copied().unwrap_or(queues);
            let turns: Vec<usize> = (0..queues).map(|queue| queue % receivers).collect();
            assert_eq!(part.seats.iter().map(|seat| seat.receiver).collect::<Vec<_>>(), turns);
            assert_eq!(part.spare_seats.len(), receivers.saturating_sub(queues));
            for seat in part.all_seats() {
                assert_eq!(seat.rps_cores.is_empty(), receivers <= queues);
                assert!(receivers <= queues || seat.arrival_core() == Some(seat.receiver_core));
            }
        }
    });
}
