//! Which core each lane sits on, and where its datagrams should arrive.
//!
//! A listener with receive queues of its own takes their seats, and nobody else does. Of the others there are three
//! kinds, served in this order. Where somebody steers the interface of a listener its lanes take the
//! seats of that plan. Where nobody does they sit near the interface's memory, and not where its interrupts fire now.
//! All others are dealt out from what is left. Whoever comes later leaves a core alone that is somebody's as long as
//! there is another: that of a receiver or of an interrupt, and those of other daemons on this host.

use std::collections::{BTreeMap, BTreeSet};

use steer::plan::{InterfacePlan, QueueSeat};
use steer::{Seat, Topology, place};

use super::interfaces::{Interfaces, Surroundings};
use super::spread::{self, ArrivalPlan, Intake, Members};
use crate::config::feeders::LaneFeeds;
use crate::config::{Config, ListenerConfig, Spread};

/// What lanes are placed on.
#[derive(Debug, Clone, Copy)]
pub struct PlacementInput<'a> {
    pub topology: &'a Topology,
    /// The cores that udpd may use.
    pub allowed: &'a [usize],
    pub interfaces: &'a Interfaces,
}

impl PlacementInput<'_> {
    /// The cores that udpd may use and that are there.
    pub fn usable(&self) -> Vec<usize> {
        self.allowed.iter().copied().filter(|core| self.topology.online.contains(core)).collect()
    }

    /// Who feeds whom here.
    pub fn feeders<'c>(&self, config: &'c Config) -> LaneFeeds<'c> {
        let queues = |name: &str| self.interfaces.queues.get(name).copied();
        LaneFeeds::new(&config.listeners, &config.steer, queues, Some(self.usable().len()))
    }
}

/// Where everything sits.
#[derive(Debug)]
pub(super) struct Placements {
    /// By listener: one place for each of its lanes.
    pub lanes: Vec<Vec<LanePlacement>>,
    /// The cores that consumers may run on.
    pub consumer_cores: Vec<usize>,
    /// True when receivers share cores: there are more of them than cores, or several listeners or addresses on one
    /// steered interface.
    pub shared: bool,
}

/// Where one lane sits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LanePlacement {
    pub seat: Option<Seat>,
    /// The cores that its thread may run on, where the scheduler picks one.
    pub cores: Vec<usize>,
    /// The receive queues of its interface that it takes, where the number of those is known.
    pub queues: Vec<usize>,
    /// Where the datagrams of these arrive by the plan; empty where nobody can say.
    pub arrivals: Vec<usize>,
}

/// Seats every lane.
pub(super) fn seat(config: &Config, feeders: &LaneFeeds<'_>, ground: &PlacementInput<'_>) -> Placements {
    let (listeners, interfaces) = (&config.listeners, ground.interfaces);
    let mut seating = Seater::new(ground);
    let mut lanes = vec![Vec::new(); listeners.len()];
    let part = |listener: &ListenerConfig| listener.interface.as_deref().and_then(|name| interfaces.plan_of(name));
    for (index, listener) in listeners.iter().enumerate() {
        let (queues, count) = (feeders.lanes_past_the_stack(index), feeders.lanes_on_address(index));
        if let (1.., Some(part)) = (queues, part(listener)) {
            let group = of_queues(part, queues);
            seating.take(&group, 1);
            lanes[index] = beside_queues(group, listener.addresses.len());
            continue;
        }
        if queues > 0 {
            continue;
        }
        let own = config.steer.dedicated_to(listener).map(|(place, _)| own_places(listener, interfaces, place, count));
        let group = match (own.filter(|own| !own.is_empty()), part(listener)) {
            (Some(own), _) => own,
            (None, Some(part)) => of_plan(&shared(part), listener.spread, count),
            (None, None) => continue,
        };
        seating.take(&group, listener.addresses.len());
        lanes[index] = (0..listener.addresses.len()).flat_map(|_| group.clone()).collect();
    }
    for (index, listener) in listeners.iter().enumerate() {
        let Some(name) = listener.interface.as_deref().filter(|_| part(listener).is_none()) else { continue };
        let around = interfaces.around.get(name);
        let queues = interfaces.queues.get(name).copied().unwrap_or(0);
        let past_the_stack = feeders.lanes_past_the_stack(index);
        if past_the_stack > 0 {
            let seats = seating.near(past_the_stack, around).into_iter().enumerate();
            let places =
                seats.map(|(queue, seat)| LanePlacement { seat, queues: vec![queue], ..LanePlacement::default() });
            lanes[index] = beside_queues(places.collect(), listener.addresses.len());
            continue;
        }
        let count = feeders.lanes_on_address(index);
        let place = |(lane, seat): (usize, Option<Seat>)| LanePlacement {
            seat,
            queues: (0..queues).filter(|queue| queue % count == lane % count).collect(),
            ..LanePlacement::default()
        };
        lanes[index] = seating.near(feeders.lanes(index), around).into_iter().enumerate().map(place).collect();
    }
    let is_left = |index: &usize| listeners[*index].interface.is_none() && lanes[*index].is_empty();
    let counts: Vec<usize> = (0..listeners.len()).filter(is_left).collect();
    let mut seats = seating.near(counts.iter().map(|&index| feeders.lanes(index)).sum(), None).into_iter();
    for index in counts {
        let place = |seat| LanePlacement { seat, ..LanePlacement::default() };
        lanes[index] = seats.by_ref().take(feeders.lanes(index)).map(place).collect();
    }
    let consumer_cores = seating.consumer_cores();
    Placements { lanes, consumer_cores, shared: seating.shared }
}

/// The places of a listener whose queues go past the kernel's stack. What is let pass is little as a rule, so the
/// lanes of its addresses have no cores of their own: they sit on those of the queues.
fn beside_queues(of_queues: Vec<LanePlacement>, addresses: usize) -> Vec<LanePlacement> {
    let beside = |place: &LanePlacement| LanePlacement { queues: Vec::new(), arrivals: Vec::new(), ..place.clone() };
    let of_addresses: Vec<LanePlacement> = of_queues.iter().cycle().take(addresses).map(beside).collect();
    of_addresses.into_iter().chain(of_queues).collect()
}

/// The places of lanes that each take one receive queue past the kernel's stack, by the plan of their interface: the
/// seat of that queue, also where the queue is kept for somebody. A queue that came after the plan has none.
fn of_queues(part: &InterfacePlan, count: usize) -> Vec<LanePlacement> {
    let of_queue = |queue: usize| {
        let seat = part.seats.iter().find(|seat| seat.queue == queue);
        let seat = seat.or_else(|| part.seats.get(queue % part.seats.len().max(1)));
        seat.map_or_else(LanePlacement::default, |seat| LanePlacement {
            seat: Some(Seat { core: seat.receiver_core, node: seat.node }),
            cores: seat.receiver_cores.clone(),
            queues: vec![queue],
            arrivals: seat.cores_of_queue().to_vec(),
        })
    };
    (0..count).map(of_queue).collect()
}

/// The places of `count` lanes of one address on the receive queues that are kept for their listener: the first on the
/// first of them and so on, in turn. None where no card keeps any.
fn own_places(listener: &ListenerConfig, interfaces: &Interfaces, place: usize, count: usize) -> Vec<LanePlacement> {
    let is_meant = |part: &&InterfacePlan| listener.interface.as_ref().is_none_or(|name| *name == part.name);
    let is_kept = |part: &InterfacePlan, seat: &QueueSeat| {
        part.dedicated.iter().any(|kept| (kept.dedication, kept.queue) == (place, seat.queue))
    };
    let parts = interfaces.steered.iter().filter(is_meant);
    let seats = parts.flat_map(|part| part.seats.iter().filter(move |seat| is_kept(part, seat)));
    let places: Vec<LanePlacement> = seats
        .map(|seat| LanePlacement {
            seat: Some(Seat { core: seat.receiver_core, node: seat.node }),
            cores: seat.receiver_cores.clone(),
            queues: vec![seat.queue],
            arrivals: seat.cores_of_queue().to_vec(),
        })
        .collect();
    if places.is_empty() { Vec::new() } else { places.into_iter().cycle().take(count).collect() }
}

/// The plan of an interface for those who have no receive queue of their own. Its receivers are numbered without those
/// of the queues that are kept, or lanes would stack on one seat while another is nobody's.
fn shared(part: &InterfacePlan) -> InterfacePlan {
    let mut part = part.clone();
    let InterfacePlan { seats, spare_seats, dedicated, .. } = &mut part;
    let mut gone: BTreeSet<usize> = seats.iter().map(|seat| seat.receiver).collect();
    seats.retain(|seat| dedicated.iter().all(|kept| kept.queue != seat.queue));
    for seat in &*seats {
        gone.remove(&seat.receiver);
    }
    let receivers = seats.iter_mut().map(|seat| &mut seat.receiver);
    for receiver in receivers.chain(spare_seats.iter_mut().map(|seat| &mut seat.receiver)) {
        *receiver -= gone.range(..*receiver).count();
    }
    part
}

/// The places of `count` lanes of one address, by the plan of their interface.
fn of_plan(part: &InterfacePlan, spread: Spread, count: usize) -> Vec<LanePlacement> {
    let seats = part.all_seats();
    let of_lane = |lane: usize| {
        // A running receiver may have been told otherwise; then the seats take turns.
        let own = seats.iter().find(|seat| seat.receiver == lane).or_else(|| seats.get(lane % seats.len().max(1)))?;
        // By their place among those that are not kept for somebody: the kept ones may lie between them.
        let taken: Vec<&QueueSeat> = part.seats.iter().skip(lane).step_by(count).collect();
        let mut arrivals: Vec<usize> = match spread {
            // RPS brings each receiver what it shall get to the receiver's own core, if that is not isolated.
            Spread::Cpu if !own.rps_cores.is_empty() => own.arrival_core().into_iter().collect(),
            _ => taken.iter().flat_map(|seat| seat.cores_of_queue()).copied().collect(),
        };
        let mut seen = Vec::new();
        arrivals.retain(|core| {
            !seen.contains(core) && {
                seen.push(*core);
                true
            }
        });
        Some(LanePlacement {
            seat: Some(Seat { core: own.receiver_core, node: own.node }),
            cores: own.receiver_cores.clone(),
            queues: taken.iter().map(|seat| seat.queue).collect(),
            arrivals,
        })
    };
    (0..count).map(|lane| of_lane(lane).unwrap_or_default()).collect()
}

/// The cores on which the datagrams of each queue of an interface arrive, where somebody can say it.
pub(super) fn cores_of_queues(part: &InterfacePlan) -> BTreeMap<u32, Vec<usize>> {
    let of_queue = |seat: &QueueSeat| Some((u32::try_from(seat.queue).ok()?, seat.cores_of_queue().to_vec()));
    part.seats.iter().filter_map(of_queue).filter(|(_, cores)| !cores.is_empty()).collect()
}

/// What each of the lanes of one address gets.
pub(super) fn intakes(listener: &ListenerConfig, places: &[LanePlacement], ground: &PlacementInput<'_>) -> Vec<Intake> {
    let interfaces = ground.interfaces;
    let part = listener.interface.as_deref().and_then(|name| interfaces.plan_of(name));
    let of_members: Vec<Vec<usize>> = places.iter().map(|place| place.arrivals.clone()).collect();
    let of_queues = &part.map(cores_of_queues).unwrap_or_default();
    let arrivals = match (&listener.interface, part) {
        (None, _) => ArrivalPlan::Anywhere,
        (Some(_), None) => ArrivalPlan::Unplanned,
        (Some(_), Some(_)) => ArrivalPlan::Planned { of_members: &of_members, of_queues },
    };
    let found = listener.interface.as_ref().and_then(|name| interfaces.queues.get(name)).copied();
    let queues = part.map(|part| part.seats.len()).or(found);
    let seats: Vec<Option<Seat>> = places.iter().map(|place| place.seat).collect();
    let cores = ground.usable();
    let own_queues: &Vec<Vec<usize>> = &places.iter().map(|place| place.queues.clone()).collect();
    let members = Members { seats: &seats, cores: &cores, queues, own_queues, arrivals };
    spread::intakes(listener.spread, &members, ground.topology)
}

/// Deals out cores and remembers whose they are.
struct Seater<'a> {
    ground: &'a PlacementInput<'a>,
    online: Vec<usize>,
    /// Where the interrupts of steered interfaces are put.
    interrupts: Vec<usize>,
    /// Where receivers sit.
    receivers: Vec<Seat>,
    shared: bool,
}

impl<'a> Seater<'a> {
    fn new(ground: &'a PlacementInput<'a>) -> Self {
        let seats = ground.interfaces.steered.iter().flat_map(|part| &part.seats);
        let interrupts = seats.filter_map(|seat| seat.interrupt_core).collect();
        Self { ground, online: ground.usable(), interrupts, receivers: Vec::new(), shared: false }
    }

    /// Notes the lanes of a plan, which each of so many addresses has.
    fn take(&mut self, group: &[LanePlacement], addresses: usize) {
        let earlier = self.receivers.clone();
        for (number, place) in group.iter().enumerate() {
            // Where the scheduler picks the core nobody shares one for good.
            let is_same = |other: &LanePlacement| other.seat == place.seat && other.cores.len() < 2;
            self.shared |= group[..number].iter().any(is_same);
            // Every address and every listener of a steered interface has its lanes on the same seats.
            let is_others = || place.seat.is_some_and(|seat| earlier.contains(&seat));
            self.shared |= place.cores.len() < 2 && (addresses > 1 || is_others());
            self.receivers.extend(place.seat);
        }
    }

    /// Seats for `count` receivers near an interface that nobody steers, or of none: what is free first, and on the
    /// interface's memory node before elsewhere.
    fn near(&mut self, count: usize, around: Option<&Surroundings>) -> Vec<Option<Seat>> {
        let topology = self.ground.topology;
        let is_taken = |core: &usize| self.ground.interfaces.taken.contains(core);
        let is_seat = |core: &usize| self.receivers.iter().any(|seat| seat.core == *core);
        let fires_on = around.map_or(&[][..], |around| &around.fires_on);
        let interrupts = || self.interrupts.iter().chain(fires_on).copied();
        let somebody = || interrupts().chain(self.receivers.iter().map(|seat| seat.core));
        let fires = |core: &usize| interrupts().any(|other| other == *core);
        // Its other thread takes from a core what it gives to one of them.
        let is_beside = |core: &usize| somebody().any(|other| topology.are_siblings(*core, other));
        let rank = |core: &usize| (is_seat(core), fires(core), is_taken(core), is_beside(core));
        let distance = |core: usize| match around.and_then(|around| around.node) {
            Some(node) => topology.distance(core, node),
            None => 0,
        };
        let mut ranks: Vec<_> = self.online.iter().map(|core| (rank(core), distance(*core))).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let mut seats: Vec<Seat> = Vec::new();
        for wanted in ranks {
            let tier = self.online.iter().copied().filter(|core| (rank(core), distance(*core)) == wanted);
            let tier: Vec<usize> = tier.collect();
            // The seats of others come last, and then there are more receivers than cores.
            self.shared |= seats.len() < count && is_seat(&tier[0]);
            seats.extend(place((count - seats.len()).min(tier.len()), &tier, topology).receivers);
        }
        self.shared |= seats.len() < count && !seats.is_empty();
        let seats: Vec<Option<Seat>> = match seats.len() {
            0 => vec![None; count],
            _ => seats.into_iter().map(Some).cycle().take(count).collect(),
        };
        self.receivers.extend(seats.iter().flatten());
        seats
    }

    /// The cores for consumers: those that are nobody's, and near the receivers where there are such.
    fn consumer_cores(&self) -> Vec<usize> {
        let node = |core: usize| self.ground.topology.node_of_core.get(&core).copied();
        let is_seat = |core: usize| self.receivers.iter().any(|seat| seat.core == core);
        let is_near = |core: usize| self.receivers.iter().any(|seat| seat.node == node(core));
        let is_interrupt = |core: usize| self.interrupts.contains(&core);
        let is_taken = |core: usize| self.ground.interfaces.taken.contains(&core);
        // The other thread of a receiver's core takes from the receiver.
        let topology = self.ground.topology;
        let is_beside = |core: usize| self.receivers.iter().any(|seat| topology.are_siblings(core, seat.core));
        let is_free = |core: usize| !is_seat(core) && !is_interrupt(core) && !is_taken(core);
        let mut chosen = Vec::new();
        let tiers: [&dyn Fn(usize) -> bool; 6] = [
            &|core| is_free(core) && !is_beside(core) && is_near(core),
            &|core| is_free(core) && !is_beside(core),
            &|core| is_free(core) && is_near(core),
            &|core| is_free(core),
            &|core| !is_seat(core) && !is_interrupt(core),
            &|core| !is_seat(core),
        ];
        for tier in tiers {
            if chosen.is_empty() {
                chosen = self.online.iter().copied().filter(|&core| tier(core)).collect();
            }
        }
        if chosen.is_empty() { self.online.clone() } else { chosen }
    }
}

#[cfg(test)]
#[path = "seating_tests.rs"]
mod tests;
