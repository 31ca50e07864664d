//! Which cores the queues and receivers of all interfaces get, dealt out together so that the first interface does not
//! take what the last one needs.
//!
//! With `adjacent` the interrupt and the receiver of a queue sit on two physical cores of the device's node, under one
//! last-level cache where there is one: the softirq and the receiver then run at the same time and the datagram crosses
//! a cache that both have. Where the interfaces of a node need more physical cores than it has, every queue first gets
//! a thread for its interrupt, in turn over the interfaces: on as many physical cores as leave the receivers whole ones
//! too. Receivers that find none then go to the nearest node, because two cores far apart do more than one that an
//! interrupt keeps busy. Only when no thread is free at all does a receiver sit on the core of its interrupt, and only
//! then do queues share cores.

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
            seat_interrupts(cores, &mut group);
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

/// An interrupt for everybody, in turn, as long as there are free threads at home.
fn seat_interrupts(cores: &mut Cores<'_>, group: &mut [&mut Party<'_>]) {
    let wanted = |party: &Party<'_>, receiver: usize| party.first_queue(receiver).is_some();
    let interrupts: usize =
        group.iter().map(|party| (0..party.with_a_queue()).filter(|&receiver| wanted(party, receiver)).count()).sum();
    let apart = group.iter().filter(|party| party.placement == Placement::Adjacent);
    let receivers = apart.map(|party| party.needs()).sum::<usize>().saturating_sub(interrupts);
    let Some(home) = group.first().map(|party| party.home.clone()) else { return };
    let theirs = cores.for_interrupts(&home, interrupts, receivers);
    for receiver in 0..most(group.iter().map(|party| party.with_a_queue())) {
        for party in group.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            let Some(queue) = party.first_queue(receiver) else { continue };
            let core = cores.free_for_interrupt(&theirs).or_else(|| cores.free_for_interrupt(&home));
            party.interrupts[queue] = core.map(|core| cores.add_interrupt(core));
        }
    }
}

/// What found no place at home: interrupts elsewhere or in turn, and then the receivers, at home as far as they can.
fn seat_elsewhere(cores: &mut Cores<'_>, parties: &mut [Party<'_>]) {
    let most = most(parties.iter().map(Party::with_a_queue));
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            let Some(queue) = party.first_queue(receiver) else { continue };
            let core = cores.any_for_interrupt(&party.home, party.interface.node);
            party.interrupts[queue] = Some(cores.add_interrupt(core));
        }
    }
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            if party.placement != Placement::SameCore || party.own_interrupt_of(receiver).is_none() {
                seat_receiver_apart(cores, party, receiver);
            }
        }
    }
    for receiver in 0..most {
        for party in parties.iter_mut().filter(|party| receiver < party.with_a_queue()) {
            if party.receivers[receiver].is_none() {
                let core = elsewhere_or_together(cores, party, receiver);
                party.receivers[receiver] = Some(cores.add_receiver(core));
            }
        }
    }
}

fn elsewhere_or_together(cores: &Cores<'_>, party: &Party<'_>, receiver: usize) -> usize {
    let anywhere = cores.any_for_receiver(&party.home, party.interface.node);
    let Some(interrupt) = party.own_interrupt_of(receiver).filter(|core| cores.usable().contains(core)) else {
        return anywhere;
    };
    if party.placement == Placement::SameCore {
        return interrupt;
    }
    // Away from home the neighbours of the interrupt are the home.
    let near = cores.home(cores.topology.node_of_core.get(&interrupt).copied());
    let near = cores.apart_for_receiver(&near, Some(interrupt));
    near.unwrap_or(if cores.is_free(anywhere) { anywhere } else { interrupt })
}

fn most(counts: impl Iterator<Item = usize>) -> usize {
    counts.max().unwrap_or(0)
}

/// Receivers beyond the queues, in turn; then the interrupts of further queues of the same receiver.
fn seat_the_rest(cores: &mut Cores<'_>, parties: &mut [Party<'_>], placement: Placement) {
    let most = most(parties.iter().map(|party| party.receivers.len()));
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
