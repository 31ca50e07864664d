//! Which cores the queues and receivers of all interfaces get, dealt out together so that the first interface does not
//! take what the last one needs.
//!
//! With `adjacent` the interrupt and the receiver of a queue sit on two physical cores of the device's node, under one
//! last-level cache where there is one: the softirq and the receiver then run at the same time and the datagram crosses
//! a cache that both have. Where the interfaces of a node need more physical cores than it has, every queue first gets
//! a core for its interrupt, in turn over the interfaces; the receivers then share what is free, and those that get
//! nothing sit on the core of their own interrupt: nearer than on another node. Interrupts leave the node only when it
//! has no thread left, and share cores only when no core is left at all.

use std::collections::{BTreeMap, BTreeSet};

use super::cores::Cores;
use super::party::{Demand, Party, Shortage};
use super::request::Placement;

/// Seats all of them. Each party then knows its seats and has its notes.
pub(super) fn assign<'a>(cores: &mut Cores<'_>, demands: &[Demand<'a>], placement: Placement) -> Vec<Party<'a>> {
    let mut lines = BTreeSet::new();
    let new = |demand| Party::new(demand, placement, cores, &mut lines);
    let mut parties: Vec<Party<'a>> = demands.iter().map(new).collect();
    // The smallest home first, because the others have more to choose from.
    let mut homes: Vec<Vec<usize>> = parties.iter().map(|party| party.home.clone()).collect();
    homes.sort_by_key(|home| (home.len(), home.clone()));
    homes.dedup();
    for home in homes {
        let mut group: Vec<&mut Party<'a>> = parties.iter_mut().filter(|party| party.home == home).collect();
        let shortage = Shortage {
            needed: group.iter().map(|party| party.needs()).sum(),
            free: cores.free_physical(&home).len(),
            interfaces: group.iter().map(|party| party.interface.name.clone()).collect(),
        };
        if placement == Placement::Adjacent && shortage.needed <= shortage.free {
            seat_apart(cores, &mut group);
        } else {
            group.iter_mut().for_each(|party| party.shortage = Some(shortage.clone()));
            seat_at_home(cores, &mut group);
        }
    }
    seat_elsewhere(cores, &mut parties);
    seat_the_rest(cores, &mut parties, placement);
    let lines: BTreeMap<u32, usize> = parties.iter().flat_map(Party::lines).collect();
    parties.iter_mut().for_each(|party| party.share_lines(&lines));
    parties
}

/// Interrupts and receivers on physical cores of their own.
fn seat_apart(cores: &mut Cores<'_>, group: &mut [&mut Party<'_>]) {
    for party in group.iter_mut() {
        let home = party.home.clone();
        for receiver in 0..party.with_a_queue() {
            let Some(queue) = party.first_queue(receiver) else { continue };
            let pair = cores.pairs(&home).first().copied();
            if let (Some((interrupt, beside)), None) = (pair, party.receivers[receiver]) {
                party.interrupts[queue] = Some(cores.add_interrupt(interrupt));
                party.receivers[receiver] = Some(cores.add_receiver(beside));
            } else {
                party.interrupts[queue] = cores.free_for_interrupt(&home).map(|core| cores.add_interrupt(core));
            }
        }
    }
    // Last, so that they take no half of a pair.
    for party in group.iter_mut() {
        for receiver in 0..party.with_a_queue() {
            seat_receiver_apart(cores, party, receiver);
        }
    }
}

fn seat_receiver_apart(cores: &mut Cores<'_>, party: &mut Party<'_>, receiver: usize) {
    if party.receivers[receiver].is_none() {
        let found = cores.apart_for_receiver(&party.home, party.interrupt_of(receiver));
        party.receivers[receiver] = found.map(|core| cores.add_receiver(core));
    }
}

/// First an interrupt for everybody, in turn, as long as there are free threads at home; then the receivers.
fn seat_at_home(cores: &mut Cores<'_>, group: &mut [&mut Party<'_>]) {
    let most = group.iter().map(|party| party.with_a_queue()).max().unwrap_or(0);
    for receiver in 0..most {
        for party in group.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            let Some(queue) = party.first_queue(receiver) else { continue };
            party.interrupts[queue] = cores.free_for_interrupt(&party.home).map(|core| cores.add_interrupt(core));
        }
    }
    for receiver in 0..most {
        for party in group.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            if party.placement != Placement::SameCore || party.own_interrupt_of(receiver).is_none() {
                seat_receiver_apart(cores, party, receiver);
            }
        }
    }
}

/// What found no place at home: interrupts elsewhere or in turn, receivers with their interrupt.
fn seat_elsewhere(cores: &mut Cores<'_>, parties: &mut [Party<'_>]) {
    let most = parties.iter().map(Party::with_a_queue).max().unwrap_or(0);
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            let Some(queue) = party.first_queue(receiver) else { continue };
            let core = cores.any_for_interrupt(&party.home, party.interface.node);
            party.interrupts[queue] = Some(cores.add_interrupt(core));
        }
    }
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            if party.receivers[receiver].is_none() {
                let core = beside_or_with(cores, party, receiver);
                party.receivers[receiver] = Some(cores.add_receiver(core));
            }
        }
    }
}

fn beside_or_with(cores: &Cores<'_>, party: &Party<'_>, receiver: usize) -> usize {
    let anywhere = || cores.any_for_receiver(&party.home, party.interface.node);
    let Some(interrupt) = party.own_interrupt_of(receiver).filter(|core| cores.usable().contains(core)) else {
        return anywhere();
    };
    // Away from home the neighbours of the interrupt are the home.
    if !party.home.contains(&interrupt) && party.placement != Placement::SameCore {
        let near = cores.home(cores.topology.node_of_core.get(&interrupt).copied());
        if let Some(core) = cores.apart_for_receiver(&near, Some(interrupt)) {
            return core;
        }
    }
    let is_crowded = cores.receivers_on(interrupt) > 0;
    let other = anywhere();
    if is_crowded && cores.is_free(other) { other } else { interrupt }
}

/// Receivers beyond the queues, in turn; then the interrupts of further queues of the same receiver.
fn seat_the_rest(cores: &mut Cores<'_>, parties: &mut [Party<'_>], placement: Placement) {
    let most = parties.iter().map(|party| party.receivers.len()).max().unwrap_or(0);
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.receivers.len()) {
            if party.receivers[receiver].is_none() {
                let core = cores.any_for_receiver(&party.home, party.interface.node);
                party.receivers[receiver] = Some(cores.add_receiver(core));
            }
        }
    }
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            while let Some(queue) = party.open_queue(receiver) {
                let core = match placement {
                    Placement::SameCore => party.receivers[receiver],
                    Placement::Adjacent => cores.free_physical(&party.home).first().copied(),
                    Placement::Node => cores.free_for_interrupt(&party.home),
                };
                let core = core.or(party.interrupt_of(receiver));
                let core = core.unwrap_or_else(|| cores.any_for_interrupt(&party.home, party.interface.node));
                party.interrupts[queue] = Some(cores.add_interrupt(core));
            }
        }
    }
}
