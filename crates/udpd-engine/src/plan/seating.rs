//! Which core each lane sits on, and where its datagrams should arrive.
//!
//! A listener with dedicated receive queues takes their seats, and no other listener does. The other listeners follow
//! in this order. Where the interface of a listener is steered, its lanes take the seats of that plan. Where it is not,
//! they sit near the memory of the interface and not where its interrupts fire now. Listeners without an interface get
//! what is left. A core of a receiver, of an interrupt or of another daemon is taken only when no other is free.

use std::collections::{BTreeMap, BTreeSet};

use steer::plan::{InterfacePlan, QueueSeat};
use steer::{Seat, Topology, place};

use super::interfaces::{Interfaces, Surroundings};
use super::spread::{self, ArrivalPlan, Intake, Members};
use crate::config::feeders::LaneFeeds;
use crate::config::{Config, ListenerConfig, Spread};

/// The machine on which lanes are placed.
#[derive(Debug, Clone, Copy)]
pub struct PlacementInput<'a> {
    pub topology: &'a Topology,
    /// The cores that udpd may use.
    pub allowed: &'a [usize],
    pub interfaces: &'a Interfaces,
}

impl PlacementInput<'_> {
    /// The cores that udpd may use and that are online.
    pub fn usable(&self) -> Vec<usize> {
        self.allowed.iter().copied().filter(|core| self.topology.online.contains(core)).collect()
    }

    /// Which lanes feed which sinks on this machine.
    pub fn feeders<'c>(&self, config: &'c Config) -> LaneFeeds<'c> {
        let queues = |name: &str| self.interfaces.queues.get(name).copied();
        LaneFeeds::new(&config.listeners, &config.steer, queues, Some(self.usable().len()))
    }
}

/// Where all lanes sit.
#[derive(Debug)]
pub(super) struct Placements {
    /// By listener: one for each of its lanes.
    pub lanes: Vec<Vec<LanePlacement>>,
    /// The cores that consumers may run on.
    pub consumer_cores: Vec<usize>,
    /// Whether receivers share cores: there are more of them than cores, or several listeners or addresses on one
    /// steered interface.
    pub shared: bool,
}

/// Where one lane sits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LanePlacement {
    pub seat: Option<Seat>,
    /// The cores that its thread may run on, where the scheduler picks one.
    pub cores: Vec<usize>,
    /// The receive queues of its interface that it takes, where they are known.
    pub queues: Vec<usize>,
    /// The cores where the datagrams of these queues arrive by the plan; empty where there is none.
    pub arrivals: Vec<usize>,
}

impl LanePlacement {
    /// On the seat that a plan has for a receive queue.
    fn on(seat: &QueueSeat) -> Self {
        Self {
            seat: Some(Seat { core: seat.receiver_core, node: seat.node }),
            cores: seat.receiver_cores.clone(),
            queues: vec![seat.queue],
            arrivals: seat.cores_of_queue().to_vec(),
        }
    }
}

/// Seats every lane.
pub(super) fn seat(config: &Config, feeders: &LaneFeeds<'_>, input: &PlacementInput<'_>) -> Placements {
    let (listeners, interfaces) = (&config.listeners, input.interfaces);
    let mut seater = Seater::new(input);
    let mut lanes = vec![Vec::new(); listeners.len()];
    let part = |listener: &ListenerConfig| listener.interface.as_deref().and_then(|name| interfaces.plan_of(name));
    for (index, listener) in listeners.iter().enumerate() {
        let (queues, count) = (feeders.lanes_past_the_stack(index), feeders.lanes_on_address(index));
        if queues > 0 {
            if let Some(part) = part(listener) {
                let group = on_queues(part, queues);
                seater.take(&group, 1);
                lanes[index] = with_lanes_of_addresses(group, listener.addresses.len());
            }
            continue;
        }
        let dedicated = config.steer.dedicated_to(listener);
        let own = dedicated.map(|(dedication, _)| on_dedicated_queues(listener, interfaces, dedication, count));
        let group = match (own.filter(|own| !own.is_empty()), part(listener)) {
            (Some(own), _) => own,
            (None, Some(part)) => on_shared_queues(&without_dedicated(part), listener.spread, count),
            (None, None) => continue,
        };
        seater.take(&group, listener.addresses.len());
        lanes[index] = (0..listener.addresses.len()).flat_map(|_| group.clone()).collect();
    }
    for (index, listener) in listeners.iter().enumerate() {
        let Some(name) = listener.interface.as_deref().filter(|_| part(listener).is_none()) else { continue };
        let around = interfaces.around.get(name);
        let past_the_stack = feeders.lanes_past_the_stack(index);
        if past_the_stack > 0 {
            let seats = seater.near(past_the_stack, around).into_iter().enumerate();
            let group = seats.map(|(queue, seat)| LanePlacement { seat, queues: vec![queue], ..Default::default() });
            lanes[index] = with_lanes_of_addresses(group.collect(), listener.addresses.len());
            continue;
        }
        let queues = interfaces.queues.get(name).copied().unwrap_or(0);
        let count = feeders.lanes_on_address(index);
        let seats = seater.near(feeders.lanes(index), around).into_iter().enumerate();
        let placed = seats.map(|(lane, seat)| LanePlacement {
            seat,
            queues: (0..queues).filter(|queue| queue % count == lane % count).collect(),
            ..LanePlacement::default()
        });
        lanes[index] = placed.collect();
    }
    let is_left = |index: &usize| listeners[*index].interface.is_none() && lanes[*index].is_empty();
    let left: Vec<usize> = (0..listeners.len()).filter(is_left).collect();
    let mut seats = seater.near(left.iter().map(|&index| feeders.lanes(index)).sum(), None).into_iter();
    for index in left {
        let seats = seats.by_ref().take(feeders.lanes(index));
        lanes[index] = seats.map(|seat| LanePlacement { seat, ..LanePlacement::default() }).collect();
    }
    Placements { lanes, consumer_cores: seater.consumer_cores(), shared: seater.shared }
}

/// The lanes of addresses, and behind them those of the AF_XDP queues. The program at the interface usually lets few
/// datagrams pass to the addresses, so their lanes share the seats of the queues.
fn with_lanes_of_addresses(of_queues: Vec<LanePlacement>, addresses: usize) -> Vec<LanePlacement> {
    let shared = |placed: &LanePlacement| LanePlacement { queues: Vec::new(), arrivals: Vec::new(), ..placed.clone() };
    let of_addresses: Vec<LanePlacement> = of_queues.iter().cycle().take(addresses).map(shared).collect();
    of_addresses.into_iter().chain(of_queues).collect()
}

/// Lanes that each take one receive queue with AF_XDP: on the seat of that queue, also of a dedicated one. A queue that
/// came after the plan takes the seat of another.
fn on_queues(part: &InterfacePlan, count: usize) -> Vec<LanePlacement> {
    let of_queue = |queue: usize| {
        let seat = part.seats.iter().find(|seat| seat.queue == queue);
        let seat = seat.or_else(|| part.seats.get(queue % part.seats.len().max(1)));
        seat.map_or_else(LanePlacement::default, |seat| LanePlacement {
            queues: vec![queue],
            ..LanePlacement::on(seat)
        })
    };
    (0..count).map(of_queue).collect()
}

/// `count` lanes of one address on the receive queues that are dedicated to their listener, in turn. Empty where no
/// card keeps any.
fn on_dedicated_queues(
    listener: &ListenerConfig,
    interfaces: &Interfaces,
    dedication: usize,
    count: usize,
) -> Vec<LanePlacement> {
    let is_meant = |part: &&InterfacePlan| listener.interface.as_ref().is_none_or(|name| *name == part.name);
    let is_kept = |part: &InterfacePlan, seat: &QueueSeat| {
        part.dedicated.iter().any(|kept| (kept.dedication, kept.queue) == (dedication, seat.queue))
    };
    let parts = interfaces.steered.iter().filter(is_meant);
    let seats = parts.flat_map(|part| part.seats.iter().filter(move |seat| is_kept(part, seat)));
    let placed: Vec<LanePlacement> = seats.map(LanePlacement::on).collect();
    // Of an empty list a cycle is empty, too.
    placed.iter().cycle().take(count).cloned().collect()
}

/// The plan of an interface without its dedicated queues. The receivers are numbered anew, or several lanes would share
/// a seat while another stays empty.
fn without_dedicated(part: &InterfacePlan) -> InterfacePlan {
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

/// `count` lanes of one address on the seats of the plan of their interface.
fn on_shared_queues(part: &InterfacePlan, spread: Spread, count: usize) -> Vec<LanePlacement> {
    let seats = part.all_seats();
    let of_lane = |lane: usize| {
        // A running daemon may have other receivers; then the seats take turns.
        let own = seats.iter().find(|seat| seat.receiver == lane).or_else(|| seats.get(lane % seats.len().max(1)))?;
        // By their index among the shared queues: dedicated ones may lie between them.
        let taken: Vec<&QueueSeat> = part.seats.iter().skip(lane).step_by(count).collect();
        let mut arrivals: Vec<usize> = match spread {
            // RPS moves the datagrams of each receiver to the receiver's own core, if that is not isolated.
            Spread::Cpu if !own.rps_cores.is_empty() => own.arrival_core().into_iter().collect(),
            _ => taken.iter().flat_map(|seat| seat.cores_of_queue()).copied().collect(),
        };
        let mut seen = BTreeSet::new();
        arrivals.retain(|core| seen.insert(*core));
        Some(LanePlacement {
            queues: taken.iter().map(|seat| seat.queue).collect(),
            arrivals,
            ..LanePlacement::on(own)
        })
    };
    (0..count).map(|lane| of_lane(lane).unwrap_or_default()).collect()
}

/// The cores on which the datagrams of each queue of an interface arrive, where the plan says it.
fn cores_of_queues(part: &InterfacePlan) -> BTreeMap<u32, Vec<usize>> {
    let of_queue = |seat: &QueueSeat| Some((u32::try_from(seat.queue).ok()?, seat.cores_of_queue().to_vec()));
    part.seats.iter().filter_map(of_queue).filter(|(_, cores)| !cores.is_empty()).collect()
}

/// What each of the lanes of one address takes in.
pub(super) fn intakes(listener: &ListenerConfig, placed: &[LanePlacement], input: &PlacementInput<'_>) -> Vec<Intake> {
    let interfaces = input.interfaces;
    let part = listener.interface.as_deref().and_then(|name| interfaces.plan_of(name));
    let of_members: Vec<Vec<usize>> = placed.iter().map(|lane| lane.arrivals.clone()).collect();
    let of_queues = &part.map(cores_of_queues).unwrap_or_default();
    let arrivals = match (&listener.interface, part) {
        (None, _) => ArrivalPlan::Anywhere,
        (Some(_), None) => ArrivalPlan::Unplanned,
        (Some(_), Some(_)) => ArrivalPlan::Planned { of_members: &of_members, of_queues },
    };
    let found = listener.interface.as_ref().and_then(|name| interfaces.queues.get(name)).copied();
    let seats: Vec<Option<Seat>> = placed.iter().map(|lane| lane.seat).collect();
    let own_queues: Vec<Vec<usize>> = placed.iter().map(|lane| lane.queues.clone()).collect();
    let members = Members {
        seats: &seats,
        cores: &input.usable(),
        queues: part.map(|part| part.seats.len()).or(found),
        own_queues: &own_queues,
        arrivals,
    };
    spread::intakes(listener.spread, &members, input.topology)
}

/// Assigns cores and remembers which are in use.
struct Seater<'a> {
    input: &'a PlacementInput<'a>,
    online: Vec<usize>,
    /// Where the interrupts of steered interfaces are put.
    interrupts: Vec<usize>,
    /// Where receivers sit.
    receivers: Vec<Seat>,
    shared: bool,
}

impl<'a> Seater<'a> {
    fn new(input: &'a PlacementInput<'a>) -> Self {
        let seats = input.interfaces.steered.iter().flat_map(|part| &part.seats);
        let interrupts = seats.filter_map(|seat| seat.interrupt_core).collect();
        Self { input, online: input.usable(), interrupts, receivers: Vec::new(), shared: false }
    }

    /// Notes the seats of lanes that a plan has placed, once for each of so many addresses.
    fn take(&mut self, group: &[LanePlacement], addresses: usize) {
        let earlier = self.receivers.clone();
        for (number, placed) in group.iter().enumerate() {
            // Where the scheduler picks among several cores, lanes do not share one for good.
            let is_same = |other: &LanePlacement| other.seat == placed.seat && other.cores.len() < 2;
            self.shared |= group[..number].iter().any(is_same);
            // Every address and every listener of a steered interface has its lanes on the same seats.
            let is_taken = || placed.seat.is_some_and(|seat| earlier.contains(&seat));
            self.shared |= placed.cores.len() < 2 && (addresses > 1 || is_taken());
            self.receivers.extend(placed.seat);
        }
    }

    /// Seats for `count` receivers near an interface that is not steered, or of none: free cores first, and those of
    /// the interface's memory node before others.
    fn near(&mut self, count: usize, around: Option<&Surroundings>) -> Vec<Option<Seat>> {
        let topology = self.input.topology;
        let is_taken = |core: &usize| self.input.interfaces.taken.contains(core);
        let is_seat = |core: &usize| self.receivers.iter().any(|seat| seat.core == *core);
        let fires_on = around.map_or(&[][..], |around| &around.fires_on);
        let interrupts = || self.interrupts.iter().chain(fires_on).copied();
        let in_use = || interrupts().chain(self.receivers.iter().map(|seat| seat.core));
        let fires = |core: &usize| interrupts().any(|other| other == *core);
        // The sibling thread of a core slows what runs on the core.
        let is_beside = |core: &usize| in_use().any(|other| topology.are_siblings(*core, other));
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
            // Seats of other receivers come last, and then there are more receivers than cores.
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

    /// The cores for consumers: the best of all that are online. Free ones come first, of these the ones that are no
    /// sibling of a receiver's core, and of these the ones on a memory node with receivers. Then follow cores of other
    /// daemons, of interrupts and of receivers.
    fn consumer_cores(&self) -> Vec<usize> {
        let topology = self.input.topology;
        let rank = |core: usize| {
            if self.receivers.iter().any(|seat| seat.core == core) {
                return (3, false, false);
            }
            if self.interrupts.contains(&core) {
                return (2, false, false);
            }
            if self.input.interfaces.taken.contains(&core) {
                return (1, false, false);
            }
            let node = topology.node_of_core.get(&core).copied();
            let is_beside = self.receivers.iter().any(|seat| topology.are_siblings(core, seat.core));
            (0, is_beside, !self.receivers.iter().any(|seat| seat.node == node))
        };
        let best = self.online.iter().map(|core| rank(*core)).min();
        self.online.iter().copied().filter(|core| Some(rank(*core)) == best).collect()
    }
}

#[cfg(test)]
#[path = "seating_tests.rs"]
mod tests;
