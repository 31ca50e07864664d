//! Which cores a queue gets.
//!
//! With `adjacent` the interrupt and the receiver of a queue sit on two physical cores of the device's node, under one
//! last-level cache where there is one: the softirq and the receiver then run at the same time and the datagram crosses
//! a cache that both have. Never on two threads of one core, which would share the very thing that is short. When the
//! node has fewer than two physical cores for each queue, all queues fall back to one core each, and a note says so.

use std::collections::BTreeSet;

use super::note::{Note, PlanError, Wish, refuse};
use super::parts::QueueSeat;
use super::request::{Placement, Request};
use crate::corelist::format_core_list;
use crate::model::{Host, Interface, Known};
use crate::topology::Topology;

/// Queues with one interrupt between them are all processed where that fires.
fn share_interrupts(interface: &Interface, seats: &mut [QueueSeat]) {
    let number = |queue: usize| Some(interface.queues.get(queue)?.interrupt.get()?.number);
    for queue in 1..seats.len() {
        let Some(first) = (0..queue).find(|&earlier| number(queue).is_some() && number(earlier) == number(queue))
        else {
            continue;
        };
        seats[queue].interrupt_core = seats[first].interrupt_core;
        seats[queue].why = format!("shares its interrupt with queue {first}; the receiver has a core of its own");
    }
}

/// The cores that are left, while interface after interface takes some.
pub(super) struct Seats<'a> {
    topology: &'a Topology,
    usable: Vec<usize>,
    taken: BTreeSet<usize>,
    placement: Placement,
}

impl<'a> Seats<'a> {
    pub(super) fn new(host: &'a Host, allowed: &[usize], request: &Request) -> Result<Self, PlanError> {
        let topology = &host.topology;
        if let Some(cores) = &request.cores {
            let offline: Vec<usize> = cores.iter().copied().filter(|core| !topology.online.contains(core)).collect();
            if !offline.is_empty() {
                let what = format!("the request names the cores {}, which are not online", format_core_list(&offline));
                let cure = format!("name some of those that are: {}", format_core_list(&topology.online));
                return Err(refuse(&[Wish::Cores], what, cure));
            }
        }
        let wanted = |core: &usize| request.cores.as_ref().is_none_or(|cores| cores.contains(core));
        let usable: Vec<usize> =
            allowed.iter().copied().filter(|core| topology.online.contains(core)).filter(wanted).collect();
        if usable.is_empty() {
            let may = format_core_list(allowed);
            let what = format!("this process may run on the cores {may}, and the request leaves none of them");
            let cure = "name some of them, or widen the affinity or cpuset that the process starts in";
            return Err(refuse(&[Wish::Cores], what, cure));
        }
        Ok(Self { topology, usable, taken: BTreeSet::new(), placement: request.placement })
    }

    /// One seat for each of `queues`.
    pub(super) fn assign(
        &mut self,
        interface: &Interface,
        queues: usize,
        notes: &mut Vec<Note>,
    ) -> Result<Vec<QueueSeat>, PlanError> {
        if queues > self.usable.len() {
            let what = format!(
                "{} has {queues} queues and there are {} cores for them ({})",
                interface.name,
                self.usable.len(),
                format_core_list(&self.usable)
            );
            let cure = format!("ask for {} queues at most, or for more cores", self.usable.len());
            return Err(refuse(&[Wish::RxQueues, Wish::Cores], what, cure));
        }
        let physical = self.free_physical_cores(interface.node);
        let pairs = if self.placement == Placement::Adjacent { self.pairs(&physical, queues) } else { Vec::new() };
        if self.placement == Placement::Adjacent && pairs.len() < queues {
            let place = interface.node.map_or("there are".to_owned(), |node| format!("node {node} has"));
            let text = format!(
                "{queues} queues need two free physical cores each to keep interrupt and receiver apart, and {place} \
                 {}: each receiver shares the core of its interrupt",
                physical.len()
            );
            notes.push(Note { text, wishes: vec![Wish::Placement] });
        }
        let singles = self.singles(interface.node, &physical, queues);
        let seat = |queue: usize| {
            let (interrupt, receiver) =
                if pairs.len() >= queues { pairs[queue] } else { (singles[queue], singles[queue]) };
            self.seat(interface, queue, interrupt, receiver)
        };
        let mut seats: Vec<QueueSeat> = (0..queues).map(seat).collect();
        share_interrupts(interface, &mut seats);
        self.taken.extend(seats.iter().flat_map(|seat| seat.interrupt_core.into_iter().chain([seat.receiver_core])));
        Ok(seats)
    }

    /// Up to `count` cores, the nearest to the node first.
    pub(super) fn near(&self, node: Option<usize>, count: usize) -> Vec<usize> {
        let mut cores = self.usable.clone();
        self.sort_by_distance(&mut cores, node);
        cores.truncate(count);
        cores.sort_unstable();
        cores
    }

    fn sort_by_distance(&self, cores: &mut [usize], node: Option<usize>) {
        cores.sort_by_key(|&core| (node.map_or(0, |node| self.topology.distance(core, node)), core));
    }

    /// One thread of each physical core on the node that nobody has taken yet, grouped by last-level cache.
    fn free_physical_cores(&self, node: Option<usize>) -> Vec<usize> {
        let physical = |core: usize| self.topology.physical_of_core.get(&core).copied().unwrap_or(core);
        let cache = |core: usize| self.topology.cache_of_core.get(&core).copied().unwrap_or(0);
        let taken: BTreeSet<usize> = self.taken.iter().map(|&core| physical(core)).collect();
        let on_node = |core: &usize| {
            node.is_none_or(|node| self.topology.node_of_core.get(core).is_none_or(|&other| other == node))
        };
        let mut seen = BTreeSet::new();
        let mut cores: Vec<usize> = self.usable.iter().copied().filter(on_node).collect();
        cores.retain(|&core| !taken.contains(&physical(core)) && seen.insert(physical(core)));
        cores.sort_by_key(|&core| (cache(core), core));
        cores
    }

    /// Pairs of neighbours under one cache; what is left over under each is paired across caches.
    fn pairs(&self, cores: &[usize], count: usize) -> Vec<(usize, usize)> {
        let (mut pairs, mut odd) = (Vec::new(), Vec::new());
        for group in cores.chunk_by(|&one, &other| self.topology.share_cache(one, other)) {
            let chunks = group.chunks_exact(2);
            odd.extend(chunks.remainder());
            pairs.extend(chunks.map(|pair| (pair[0], pair[1])));
        }
        pairs.extend(odd.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        pairs.truncate(count);
        pairs
    }

    /// One core for each queue: physical cores of the node, then its other threads, then the nearest elsewhere.
    fn singles(&self, node: Option<usize>, physical: &[usize], count: usize) -> Vec<usize> {
        let mut cores = physical.to_vec();
        let mut others: Vec<usize> = self.usable.iter().copied().filter(|core| !cores.contains(core)).collect();
        self.sort_by_distance(&mut others, node);
        others.sort_by_key(|core| self.taken.contains(core));
        cores.extend(others);
        cores.truncate(count);
        cores
    }

    fn seat(&self, interface: &Interface, queue: usize, interrupt: usize, receiver: usize) -> QueueSeat {
        let found = interface.queues.get(queue).map(|queue| &queue.interrupt);
        let (interrupt_core, because) = match found {
            Some(Known::Unknown(reason)) => (None, format!("the interrupt is unknown: {reason}")),
            Some(Known::NotSupported) => (None, "there is no interrupt to set".to_owned()),
            Some(Known::Is(own)) if !own.is_settable => {
                (own.effective.first().copied(), "the kernel manages the interrupt and keeps it where it is".to_owned())
            }
            // A queue that does not exist yet has no interrupt to look at.
            _ if interrupt == receiver => (Some(interrupt), "interrupt and receiver share one core".to_owned()),
            _ if self.topology.share_cache(interrupt, receiver) => {
                (Some(interrupt), "interrupt and receiver have a physical core each under one cache".to_owned())
            }
            _ => (Some(interrupt), "interrupt and receiver have a physical core each".to_owned()),
        };
        // Where the interrupt is not ours to place, its sibling thread is the worst place for the receiver.
        let receiver_core = match interrupt_core {
            Some(core) if self.topology.are_siblings(core, receiver) => core,
            _ => receiver,
        };
        let node = self.topology.node_of_core.get(&receiver_core).copied();
        let home = match interface.node {
            Some(device) if node == Some(device) => format!("on the device's node {device}"),
            Some(device) => format!("away from the device's node {device}, which has no core left"),
            None => "the device's node is unknown".to_owned(),
        };
        QueueSeat {
            queue,
            receiver: queue,
            interrupt_core,
            receiver_core,
            receiver_cores: vec![receiver_core],
            rps_cores: Vec::new(),
            node,
            why: format!("{because}; {home}"),
        }
    }
}
