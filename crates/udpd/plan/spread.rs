//! Which lane gets a datagram, and on which cores the datagrams of a lane should arrive.
//!
//! A core or a queue feeds one lane, and every core that udpd may use is in the table of `spread = "cpu"`, so that
//! nothing on them is left to the kernel's hash. A lane's own core comes first: the one where a plan for the interface
//! puts the interrupt of its queue, or, without such a plan, the one its receiver runs on. The other cores are dealt
//! out to the lanes nearest to them: same memory node first, then the lane with the fewest.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use mmsg::GroupSpread;
use steer::{Seat, Topology};

use crate::config::Spread;

/// How many queues `spread = "queue"` knows when no interface says how many there are. A program compares from the
/// first on, so those beyond the real ones cost nothing.
const QUEUES_ASSUMED: usize = 256;

/// The part of a group's datagrams that one lane takes in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intake {
    /// The one core where the datagrams of this lane arrive by the plan of its interface.
    pub arrival_core: Option<usize>,
    /// The receive queue of the interface that feeds it.
    pub queue: Option<usize>,
    /// The cores whose datagrams the program gives to it; empty unless `spread = "cpu"`.
    pub cores: Vec<usize>,
    /// The queues whose datagrams the program gives to it; empty unless `spread = "queue"`.
    pub queues: Vec<u32>,
    /// The cores on which the datagrams of each queue of its interface should arrive, whatever lane then gets them;
    /// empty where nobody plans that.
    pub cores_of_queue: BTreeMap<u32, Vec<usize>>,
}

impl Intake {
    /// The cores on which its datagrams should arrive. Empty when nobody says where they should, and then none of them
    /// arrives on a wrong one.
    pub fn expected_cores(&self) -> &[usize] {
        self.arrival_core.as_ref().map_or(&self.cores, slice::from_ref)
    }
}

/// The lanes of one address: one seat each, `None` where there is no core to sit on.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    pub seats: &'a [Option<Seat>],
    /// The cores that udpd may use.
    pub cores: &'a [usize],
    /// How many receive queues the interface has, when it is known.
    pub queues: Option<usize>,
    /// The core of arrival of each member by the plan of the interface; shorter where there is no plan.
    pub arrival_cores: &'a [Option<usize>],
    /// The cores of arrival of each queue by that plan; empty where there is none.
    pub cores_of_queue: &'a BTreeMap<u32, Vec<usize>>,
}

/// What each of the members gets.
pub fn intakes(spread: Spread, members: &Members<'_>, topology: &Topology) -> Vec<Intake> {
    let count = members.seats.len();
    let mut lanes = vec![Intake::default(); count];
    match spread {
        Spread::Flow | Spread::Random => {}
        Spread::Cpu => {
            plan_arrivals(&mut lanes, members);
            let wanted: Vec<Option<usize>> = lanes
                .iter()
                .zip(members.seats)
                .map(|(lane, seat)| lane.arrival_core.or(seat.map(|seat| seat.core)))
                .collect();
            for (lane, cores) in lanes.iter_mut().zip(deal(&wanted, members.cores, topology)) {
                lane.cores = cores;
            }
        }
        Spread::Queue => {
            plan_arrivals(&mut lanes, members);
            let queues = members.queues.unwrap_or(QUEUES_ASSUMED.max(count));
            for (queue, number) in (0..queues).zip(0_u32..) {
                lanes[queue % count].queues.push(number);
            }
            for (number, lane) in lanes.iter_mut().enumerate() {
                lane.queue = members.queues.filter(|&queues| number < queues).map(|_| number);
            }
        }
    }
    lanes
}

fn plan_arrivals(lanes: &mut [Intake], members: &Members<'_>) {
    for (lane, core) in lanes.iter_mut().zip(members.arrival_cores) {
        lane.arrival_core = *core;
    }
    for lane in lanes {
        lane.cores_of_queue.clone_from(members.cores_of_queue);
    }
}

/// Deals `cores` out: to each lane the core that it wants, and every other one to the nearest lane. A core that several
/// want goes to the first, and a lane that got none has an empty list.
fn deal(wanted: &[Option<usize>], cores: &[usize], topology: &Topology) -> Vec<Vec<usize>> {
    let mut dealt = vec![Vec::new(); wanted.len()];
    let mut taken = BTreeSet::new();
    for (lane, core) in wanted.iter().enumerate().filter_map(|(lane, core)| Some((lane, (*core)?))) {
        if taken.insert(core) {
            dealt[lane].push(core);
        }
    }
    for &core in cores.iter().filter(|core| !taken.contains(core)) {
        let node = |core: usize| topology.node_of_core.get(&core);
        let distance = |lane: &usize| {
            let own = dealt[*lane][0];
            (node(own) != node(core), dealt[*lane].len(), own.abs_diff(core))
        };
        // A lane without a core of its own would be near to nothing; it is for the caller to refuse it.
        let nearest = (0..dealt.len()).filter(|&lane| !dealt[lane].is_empty()).min_by_key(distance);
        if let Some(lane) = nearest {
            dealt[lane].push(core);
        }
    }
    dealt
}

/// The program of a group whose members take this in.
pub fn group_spread<'a>(spread: Spread, members: impl Iterator<Item = &'a Intake>) -> GroupSpread {
    let members = members.zip(0_u32..);
    match spread {
        Spread::Flow => GroupSpread::Flow,
        Spread::Random => GroupSpread::Random,
        Spread::Cpu => GroupSpread::Cpu(
            members.flat_map(|(lane, number)| lane.cores.iter().map(move |&core| (core, number))).collect(),
        ),
        Spread::Queue => {
            let mut table: Vec<(u32, u32)> =
                members.flat_map(|(lane, number)| lane.queues.iter().map(move |&queue| (queue, number))).collect();
            // The program compares in this order, and the low queues are those that exist.
            table.sort_unstable();
            GroupSpread::Queue(table)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_nodes() -> Topology {
        let nodes = (0..8).map(|core| (core, core / 4)).collect();
        Topology { online: (0..8).collect(), node_of_core: nodes, ..Topology::default() }
    }

    fn lanes(spread: Spread, seats: &[usize], queues: Option<usize>) -> Vec<Intake> {
        lanes_of_plan(spread, seats, queues, &[])
    }

    fn lanes_of_plan(
        spread: Spread,
        seats: &[usize],
        queues: Option<usize>,
        arrival_cores: &[Option<usize>],
    ) -> Vec<Intake> {
        let topology = two_nodes();
        let seat = |&core: &usize| Some(Seat { core, node: topology.node_of_core.get(&core).copied() });
        let seats: Vec<Option<Seat>> = seats.iter().map(seat).collect();
        let cores: Vec<usize> = (0..8).collect();
        let planned = (0..).zip(arrival_cores).filter_map(|(queue, core)| Some((queue, vec![(*core)?])));
        let cores_of_queue = &planned.collect();
        intakes(spread, &Members { seats: &seats, cores: &cores, queues, arrival_cores, cores_of_queue }, &topology)
    }

    #[test]
    fn every_core_feeds_exactly_one_lane_its_own_first_then_the_nearest() {
        let lanes = lanes(Spread::Cpu, &[7, 6, 1], None);
        let cores: Vec<&[usize]> = lanes.iter().map(|lane| lane.expected_cores()).collect();
        assert_eq!(cores, [&[7, 5][..], &[6, 4], &[1, 0, 2, 3]]);
        let table = group_spread(Spread::Cpu, lanes.iter());
        let expected = vec![(7, 0), (5, 0), (6, 1), (4, 1), (1, 2), (0, 2), (2, 2), (3, 2)];
        assert_eq!(table, GroupSpread::Cpu(expected));
    }

    #[test]
    fn a_node_without_a_lane_is_fed_to_the_lanes_of_the_other_in_turn() {
        let lanes = lanes(Spread::Cpu, &[3, 2], None);
        assert_eq!(lanes[0].cores, [3, 1, 4, 6]);
        assert_eq!(lanes[1].cores, [2, 0, 5, 7]);
    }

    #[test]
    fn two_lanes_on_one_core_leave_the_second_without() {
        let lanes = lanes(Spread::Cpu, &[3, 3], None);
        assert_eq!(lanes[0].cores.len(), 8);
        assert!(lanes[1].cores.is_empty());
    }

    #[test]
    fn a_planned_core_of_arrival_is_the_only_one_expected() {
        let lanes = lanes_of_plan(Spread::Cpu, &[7, 6], None, &[Some(5), None]);
        assert_eq!((&lanes[0].cores, &lanes[1].cores), (&vec![5, 0, 2, 4], &vec![6, 1, 3, 7]));
        assert_eq!((lanes[0].expected_cores(), lanes[1].expected_cores()), (&[5][..], &[6, 1, 3, 7][..]));
        assert!(Intake::default().expected_cores().is_empty());
        assert!(
            lanes.iter().all(|lane| lane.cores_of_queue == [(0, vec![5])].into()),
            "every lane may get any queue's"
        );
    }

    #[test]
    fn the_queues_of_an_interface_take_turns_and_each_lane_shows_its_first() {
        let lanes = lanes(Spread::Queue, &[7, 6], Some(3));
        assert_eq!((&lanes[0].queues, &lanes[1].queues), (&vec![0, 2], &vec![1]));
        assert_eq!((lanes[0].queue, lanes[1].queue), (Some(0), Some(1)));
        assert_eq!(group_spread(Spread::Queue, lanes.iter()), GroupSpread::Queue(vec![(0, 0), (1, 1), (2, 0)]));
    }

    #[test]
    fn without_an_interface_there_are_queues_enough_and_none_is_claimed() {
        let lanes = lanes(Spread::Queue, &[7, 6], None);
        assert_eq!(lanes.iter().map(|lane| lane.queues.len()).sum::<usize>(), QUEUES_ASSUMED);
        assert!(lanes.iter().all(|lane| lane.queue.is_none()));
    }

    #[test]
    fn a_spread_by_flow_or_at_random_expects_nothing_of_any_core() {
        for (spread, group) in [(Spread::Flow, GroupSpread::Flow), (Spread::Random, GroupSpread::Random)] {
            let lanes = lanes(spread, &[7, 6], Some(2));
            assert_eq!(lanes, [Intake::default(), Intake::default()]);
            assert_eq!(group_spread(spread, lanes.iter()), group);
        }
    }
}
