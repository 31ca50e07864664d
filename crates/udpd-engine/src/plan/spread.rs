//! Which lane gets a datagram, and on which cores the datagrams of a lane should arrive.
//!
//! A core or a queue feeds one lane, and every core that udpd may use is in the table of `spread = "cpu"`, so that the
//! kernel's hash decides for none of them. A lane's own cores come first: those where a plan for the interface puts the
//! interrupts of its queues, or, without such a plan, the core of its receiver. Each other core goes to the nearest
//! lane: one on the same memory node first, then the one with the fewest cores.
//!
//! Where datagrams should arrive is known only of a steered interface. Of another one nothing is expected, because udpd
//! did not place its interrupts.

use std::collections::{BTreeMap, BTreeSet};

use mmsg::GroupSpread;
use steer::{Seat, Topology};

use crate::config::Spread;

/// How many queues `spread = "queue"` knows when no interface says how many there are. A program compares from the
/// first on, so those beyond the real ones cost nothing.
const QUEUES_ASSUMED: usize = 256;

/// The part of a group's datagrams that one lane takes in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intake {
    /// The cores on which its datagrams should arrive.
    pub expected: Vec<usize>,
    /// The receive queue of the interface that feeds it; the first of several.
    pub queue: Option<usize>,
    /// The cores whose datagrams the program gives to it; empty unless `spread = "cpu"`.
    pub cores: Vec<usize>,
    /// The queues whose datagrams the program gives to it; empty unless `spread = "queue"`.
    pub queues: Vec<u32>,
    /// The cores on which the datagrams of each queue of its interface should arrive, whatever lane then gets them;
    /// empty where the interface is not steered.
    pub cores_of_queue: BTreeMap<u32, Vec<usize>>,
}

impl Intake {
    /// The cores on which its datagrams should arrive. Where it is empty nothing is expected, and no core is wrong.
    pub fn expected_cores(&self) -> &[usize] {
        &self.expected
    }

    /// The cores on which a datagram of this lane from this queue should arrive. `None` is for datagrams whose queue no
    /// device has recorded. Empty where nothing is expected.
    pub fn cores_for(&self, queue: Option<u32>) -> &[usize] {
        let planned = queue.and_then(|queue| self.cores_of_queue.get(&queue));
        planned.map_or_else(|| self.expected_cores(), Vec::as_slice)
    }

    /// Whether a datagram from this queue should not arrive on this core.
    pub fn is_wrong(&self, queue: Option<u32>, core: usize) -> bool {
        let wanted = self.cores_for(queue);
        !wanted.is_empty() && !wanted.contains(&core)
    }

    /// Whether it is known where its datagrams should arrive.
    pub fn is_planned(&self) -> bool {
        !self.expected_cores().is_empty() || !self.cores_of_queue.is_empty()
    }

    /// How many queues have to be counted separately to know which datagrams are on a wrong core.
    pub fn queues_planned(&self) -> u32 {
        self.cores_of_queue.last_key_value().map_or(0, |(last, _)| last.saturating_add(1))
    }
}

/// What is known of where the datagrams of lanes should arrive.
#[derive(Debug, Clone, Copy)]
pub enum ArrivalPlan<'a> {
    /// They come from any interface: each lane expects the cores in its table.
    Anywhere,
    /// Nothing: their interface is not steered.
    Unplanned,
    /// The plan of their interface says it: the cores of each member, or none where that is not known.
    Planned {
        of_members: &'a [Vec<usize>],
        /// The cores of each queue, whatever lane then gets its datagrams.
        of_queues: &'a BTreeMap<u32, Vec<usize>>,
    },
}

/// The lanes of one address: one seat each, `None` where there is no core to sit on.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    pub seats: &'a [Option<Seat>],
    /// The cores that udpd may use.
    pub cores: &'a [usize],
    /// How many receive queues the interface has, when it is known.
    pub queues: Option<usize>,
    /// Which of them each member takes. The others, such as dedicated ones, go to the members in turn.
    pub own_queues: &'a [Vec<usize>],
    pub arrivals: ArrivalPlan<'a>,
}

/// What each of the members takes in.
pub fn intakes(spread: Spread, members: &Members<'_>, topology: &Topology) -> Vec<Intake> {
    let count = members.seats.len();
    let mut lanes = vec![Intake::default(); count];
    match spread {
        Spread::Flow | Spread::Random => return lanes,
        Spread::Cpu => {
            let wanted = members.seats.iter().enumerate().map(|(number, seat)| match members.arrivals {
                ArrivalPlan::Planned { of_members, .. } if !of_members[number].is_empty() => of_members[number].clone(),
                _ => seat.iter().map(|seat| seat.core).collect(),
            });
            let wanted: Vec<Vec<usize>> = wanted.collect();
            for (lane, cores) in lanes.iter_mut().zip(deal(&wanted, members.cores, topology)) {
                lane.cores = cores;
            }
        }
        Spread::Queue => {
            let queues = members.queues.unwrap_or(QUEUES_ASSUMED.max(count));
            for (queue, number) in (0..queues).zip(0_u32..) {
                let own = members.own_queues.iter().position(|own| own.contains(&queue));
                lanes[own.unwrap_or(queue % count)].queues.push(number);
            }
            for (lane, own) in lanes.iter_mut().zip(members.own_queues) {
                lane.queue = own.first().copied();
            }
        }
    }
    expect(&mut lanes, spread, members.arrivals);
    lanes
}

/// Sets where the datagrams of each lane should arrive, once it is known which of them it gets.
fn expect(lanes: &mut [Intake], spread: Spread, arrivals: ArrivalPlan<'_>) {
    match arrivals {
        ArrivalPlan::Unplanned => {}
        ArrivalPlan::Anywhere => lanes.iter_mut().for_each(|lane| lane.expected.clone_from(&lane.cores)),
        ArrivalPlan::Planned { of_members, of_queues } => {
            for (lane, cores) in lanes.iter_mut().zip(of_members) {
                // By core the table decides the lane, so a core that it gives to another lane is not expected.
                let own = cores.iter().copied().filter(|core| spread != Spread::Cpu || lane.cores.contains(core));
                lane.expected = own.collect();
                lane.cores_of_queue.clone_from(of_queues);
            }
        }
    }
}

/// Deals `cores` out: to each lane the cores that it wants, one in turn; to a lane that then has none the nearest one
/// left; and every other core to the nearest lane. A core that several lanes want goes to the first. With more lanes
/// than cores the last lanes get none, which the caller has to refuse.
fn deal(wanted: &[Vec<usize>], cores: &[usize], topology: &Topology) -> Vec<Vec<usize>> {
    let mut dealt = vec![Vec::new(); wanted.len()];
    let mut taken = BTreeSet::new();
    let turns = wanted.iter().map(Vec::len).max().unwrap_or(0);
    for turn in 0..turns {
        for (lane, core) in wanted.iter().enumerate().filter_map(|(lane, wanted)| Some((lane, *wanted.get(turn)?))) {
            if taken.insert(core) {
                dealt[lane].push(core);
            }
        }
    }
    let node = |core: usize| topology.node_of_core.get(&core);
    for lane in (0..dealt.len()).filter(|&lane| !wanted[lane].is_empty()) {
        let own = wanted[lane][0];
        let left = cores.iter().copied().filter(|core| dealt[lane].is_empty() && !taken.contains(core));
        if let Some(core) = left.min_by_key(|&core| (node(own) != node(core), own.abs_diff(core))) {
            taken.insert(core);
            dealt[lane].push(core);
        }
    }
    for &core in cores.iter().filter(|core| !taken.contains(core)) {
        let distance = |lane: &usize| {
            let own = dealt[*lane][0];
            (node(own) != node(core), dealt[*lane].len(), own.abs_diff(core))
        };
        // The distance to a lane without a core is not defined.
        let nearest = (0..dealt.len()).filter(|&lane| !dealt[lane].is_empty()).min_by_key(distance);
        if let Some(lane) = nearest {
            dealt[lane].push(core);
        }
    }
    dealt
}

/// The spread program of a group whose members take this in.
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
        lanes_fed(spread, seats, queues, ArrivalPlan::Anywhere)
    }

    fn lanes_of_plan(spread: Spread, seats: &[usize], of_members: &[Vec<usize>]) -> Vec<Intake> {
        let planned = (0..).zip(of_members).map(|(queue, cores)| (queue, cores.clone()));
        let of_queues = &planned.collect();
        lanes_fed(spread, seats, Some(4), ArrivalPlan::Planned { of_members, of_queues })
    }

    fn lanes_fed(spread: Spread, seats: &[usize], queues: Option<usize>, arrivals: ArrivalPlan<'_>) -> Vec<Intake> {
        let topology = two_nodes();
        let seat = |&core: &usize| Some(Seat { core, node: topology.node_of_core.get(&core).copied() });
        let seats: Vec<Option<Seat>> = seats.iter().map(seat).collect();
        let cores: Vec<usize> = (0..8).collect();
        let own = |lane: usize| (0..queues.unwrap_or(0)).filter(|queue| queue % seats.len() == lane).collect();
        let own_queues: &Vec<Vec<usize>> = &(0..seats.len()).map(own).collect();
        intakes(spread, &Members { seats: &seats, cores: &cores, queues, own_queues, arrivals }, &topology)
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
    fn two_lanes_on_one_core_get_different_cores_to_take_in_from() {
        let lanes = lanes(Spread::Cpu, &[3, 3], None);
        assert_eq!((&lanes[0].cores, &lanes[1].cores), (&vec![3, 1, 4, 6], &vec![2, 0, 5, 7]));
    }

    #[test]
    fn more_lanes_than_cores_leave_the_last_without() {
        let lanes = lanes(Spread::Cpu, &[7, 6, 5, 4, 3, 2, 1, 0, 7], None);
        assert!(lanes[..8].iter().all(|lane| lane.cores.len() == 1) && lanes[8].cores.is_empty(), "{lanes:?}");
    }

    #[test]
    fn a_planned_core_of_arrival_is_the_only_one_expected() {
        let lanes = lanes_of_plan(Spread::Cpu, &[7, 6], &[vec![5], vec![]]);
        assert_eq!((&lanes[0].cores, &lanes[1].cores), (&vec![5, 0, 2, 4], &vec![6, 1, 3, 7]));
        assert_eq!(
            (lanes[0].expected_cores(), lanes[1].expected_cores()),
            (&[5][..], &[][..]),
            "nothing is known of 1"
        );
        let of_queue = [(0, vec![5]), (1, vec![])].into();
        assert!(lanes.iter().all(|lane| lane.cores_of_queue == of_queue), "every lane may get any queue's");
    }

    #[test]
    fn a_lane_that_takes_several_queues_expects_the_cores_of_all_of_them() {
        let arrivals = [vec![0, 2], vec![1, 3]];
        for spread in [Spread::Cpu, Spread::Queue] {
            let lanes = lanes_of_plan(spread, &[7, 6], &arrivals);
            let expected: Vec<&[usize]> = lanes.iter().map(|lane| lane.expected_cores()).collect();
            assert_eq!(expected, arrivals, "{spread:?}");
        }
    }

    #[test]
    fn where_queues_of_two_lanes_share_a_core_only_the_lane_that_gets_it_expects_it() {
        let lanes = lanes_of_plan(Spread::Cpu, &[7, 6], &[vec![0, 1], vec![1, 0]]);
        assert_eq!((lanes[0].expected_cores(), lanes[1].expected_cores()), (&[0][..], &[1][..]));
    }

    #[test]
    fn nothing_is_expected_where_the_interface_is_not_steered() {
        for spread in [Spread::Cpu, Spread::Queue] {
            let lanes = lanes_fed(spread, &[7, 6], Some(2), ArrivalPlan::Unplanned);
            assert!(lanes.iter().all(|lane| lane.expected_cores().is_empty()), "{lanes:?}");
            assert!(lanes.iter().all(|lane| !lane.cores.is_empty() || !lane.queues.is_empty()), "and all are fed");
        }
    }

    #[test]
    fn whether_a_core_is_wrong_is_for_the_queue_to_say_and_for_the_lane_where_there_is_none() {
        let lanes = lanes_of_plan(Spread::Cpu, &[7, 6], &[vec![5], vec![4]]);
        for (own, lane) in (0..).zip(&lanes) {
            let wrong = |queue| (0..8).filter(|&core| lane.is_wrong(queue, core)).collect::<Vec<_>>();
            assert_eq!(wrong(Some(0)), [0, 1, 2, 3, 4, 6, 7], "queue 0 is planned on core 5, whatever the lane");
            assert_eq!(wrong(Some(1)), [0, 1, 2, 3, 5, 6, 7]);
            assert_eq!(wrong(None).len(), 8 - lane.expected_cores().len(), "lane {own}");
            assert_eq!(wrong(Some(2)), wrong(None), "a queue that no plan knows");
            assert_eq!(lane.queues_planned(), 2);
        }
        let unplanned = Intake::default();
        assert!(!unplanned.is_wrong(None, 3) && !unplanned.is_wrong(Some(3), 3) && !unplanned.is_planned());
        assert_eq!(unplanned.queues_planned(), 0);
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
