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
use super::parts::{Note, Placement, QueueSeat, Wish};
use crate::corelist::format_core_list;
use crate::model::{Interface, Known};

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

/// What of one interface is to be seated.
pub(super) struct Demand<'a> {
    pub(super) interface: &'a Interface,
    /// How many queues there will be.
    pub(super) queues: usize,
    /// How many receivers there will be; those that run already count for themselves.
    pub(super) receivers: usize,
    /// Where receivers run already.
    pub(super) seated: &'a [QueueSeat],
}

/// Whose the interrupt of a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// Its own, and ours to place.
    Own,
    /// That of an earlier queue of the same interface.
    OfQueue(usize),
    /// That of an interface that was seated before: the number of the interrupt.
    OfAnother(u32),
    /// The kernel keeps it where it is.
    Managed,
    /// None that we could place: why.
    Unknown(String),
}

/// Fewer free physical cores than interrupts and receivers.
#[derive(Debug, Clone)]
pub(super) struct Shortage {
    pub(super) needed: usize,
    pub(super) free: usize,
    /// The interfaces that share them.
    pub(super) interfaces: Vec<String>,
}

/// One interface while it is being seated.
pub(super) struct Party<'a> {
    pub(super) interface: &'a Interface,
    pub(super) placement: Placement,
    /// The cores nearest to the device.
    pub(super) home: Vec<usize>,
    /// Where receivers run already.
    pub(super) seated: &'a [QueueSeat],
    /// By queue.
    pub(super) lines: Vec<Line>,
    /// The core of each queue's interrupt, as far as it has one.
    pub(super) interrupts: Vec<Option<usize>>,
    /// The numbers of the receivers. Those that run may have gaps between theirs.
    pub(super) numbers: Vec<usize>,
    /// The core of each receiver, as far as it has one.
    pub(super) receivers: Vec<Option<usize>>,
    /// True when RPS hands datagrams on to all receivers.
    pub(super) is_spread_by_rps: bool,
    pub(super) shortage: Option<Shortage>,
    pub(super) notes: Vec<Note>,
}

impl<'a> Party<'a> {
    /// Takes what is not ours to choose: interrupts that stay, receivers that run. `lines` are the numbers of the
    /// interrupts that some party has.
    pub(super) fn new(
        demand: &Demand<'a>,
        placement: Placement,
        cores: &mut Cores<'_>,
        lines: &mut BTreeSet<u32>,
    ) -> Self {
        let Demand { interface, queues, receivers, seated } = *demand;
        let mut party = Self {
            interface,
            placement,
            home: cores.home(interface.node),
            seated,
            lines: Vec::new(),
            interrupts: vec![None; queues],
            numbers: (0..receivers).collect(),
            receivers: vec![None; receivers],
            is_spread_by_rps: receivers > queues,
            shortage: None,
            notes: Vec::new(),
        };
        for queue in 0..queues {
            let line = party.line(queue, lines);
            if line == Line::Managed {
                let fires = interface.queues[queue].interrupt.get().and_then(|own| own.effective.first().copied());
                party.interrupts[queue] = fires.map(|core| cores.add_interrupt(core));
            }
            party.lines.push(line);
        }
        if !seated.is_empty() {
            party.take_seated(cores);
        }
        party
    }

    fn line(&self, queue: usize, lines: &mut BTreeSet<u32>) -> Line {
        let interrupt_of = |queue: usize| self.interface.queues.get(queue).map(|queue| &queue.interrupt);
        match interrupt_of(queue) {
            // A queue that does not exist yet has no interrupt to look at.
            None => Line::Own,
            Some(Known::Unknown(reason)) => Line::Unknown(format!("the interrupt is unknown: {reason}")),
            Some(Known::NotSupported) => Line::Unknown("there is no interrupt to set".to_owned()),
            Some(Known::Is(own)) if !own.is_settable => Line::Managed,
            Some(Known::Is(own)) => {
                let is_it = |&earlier: &usize| {
                    interrupt_of(earlier).and_then(Known::get).is_some_and(|other| other.number == own.number)
                };
                match (0..queue).find(is_it) {
                    Some(first) => Line::OfQueue(first),
                    None if lines.insert(own.number) => Line::Own,
                    None => Line::OfAnother(own.number),
                }
            }
        }
    }

    /// The place of the receiver of a queue: with fewer receivers than queues they take turns.
    pub(super) fn receiver_of(&self, queue: usize) -> usize {
        let runs = self.seated.iter().find(|seat| seat.queue == queue);
        let known = runs.and_then(|seat| self.numbers.iter().position(|&number| number == seat.receiver));
        known.unwrap_or(queue % self.receivers.len())
    }

    fn queues_of(&self, receiver: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.interrupts.len()).filter(move |&queue| self.receiver_of(queue) == receiver)
    }

    /// How many receivers have a queue; those behind them have none.
    pub(super) fn with_a_queue(&self) -> usize {
        (0..self.interrupts.len()).map(|queue| self.receiver_of(queue) + 1).max().unwrap_or(0)
    }

    /// A queue of the receiver whose interrupt is ours to place and has no core yet.
    pub(super) fn open_queue(&self, receiver: usize) -> Option<usize> {
        self.queues_of(receiver).find(|&queue| self.lines[queue] == Line::Own && self.interrupts[queue].is_none())
    }

    /// The same, as long as none of its queues has a core.
    pub(super) fn first_queue(&self, receiver: usize) -> Option<usize> {
        self.open_queue(receiver).filter(|_| self.own_interrupt_of(receiver).is_none())
    }

    /// Where an interrupt fires that is the receiver's alone.
    pub(super) fn own_interrupt_of(&self, receiver: usize) -> Option<usize> {
        let is_own = |queue: &usize| matches!(self.lines[*queue], Line::Own | Line::Managed);
        self.queues_of(receiver).filter(is_own).find_map(|queue| self.interrupts[queue])
    }

    /// Where the first interrupt of a receiver fires, whoever has it too.
    pub(super) fn interrupt_of(&self, receiver: usize) -> Option<usize> {
        self.queues_of(receiver).find_map(|queue| match self.lines[queue] {
            Line::OfQueue(first) => self.interrupts[first],
            _ => self.interrupts[queue],
        })
    }

    /// How many physical cores it takes to keep everything apart that has no core yet.
    pub(super) fn needs(&self) -> usize {
        let needs = |receiver: usize| {
            usize::from(self.first_queue(receiver).is_some()) + usize::from(self.receivers[receiver].is_none())
        };
        (0..self.with_a_queue()).map(needs).sum()
    }

    /// The interrupts that it has placed, with their cores.
    pub(super) fn lines(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        (0..self.lines.len()).filter(|&queue| self.lines[queue] == Line::Own).filter_map(|queue| {
            let number = self.interface.queues.get(queue)?.interrupt.get()?.number;
            Some((number, self.interrupts[queue]?))
        })
    }

    /// Queues with an interrupt of somebody else have it where he has it.
    pub(super) fn share_lines(&mut self, placed: &BTreeMap<u32, usize>) {
        for queue in 0..self.lines.len() {
            match self.lines[queue] {
                Line::OfQueue(first) => self.interrupts[queue] = self.interrupts[first],
                Line::OfAnother(number) => self.interrupts[queue] = placed.get(&number).copied(),
                _ => {}
            }
        }
    }
}

// Receivers that run already keep their seats, and interrupts are put to suit, because a receiver expects its datagrams
// where its program told when it started. A note says what no longer fits; no seat is made up for a receiver that does
// not run.

/// What makes a program's receivers fit again.
const CURE: &str = "restart the program that receives, so that it plans anew";

impl Party<'_> {
    /// Gives each receiver the core that it has, and each interrupt that is ours to place the core that is expected.
    pub(super) fn take_seated(&mut self, cores: &mut Cores<'_>) {
        self.numbers = self.seated.iter().map(|seat| seat.receiver).collect();
        self.numbers.sort_unstable();
        self.numbers.dedup();
        let core_of = |number: &usize| {
            self.seated.iter().find(|seat| seat.receiver == *number).map(|seat| cores.add_receiver(seat.receiver_core))
        };
        self.receivers = self.numbers.iter().map(core_of).collect();
        self.is_spread_by_rps = self.seated.iter().any(|seat| !seat.rps_cores.is_empty());
        for queue in 0..self.interrupts.len() {
            if self.lines[queue] == Line::Managed {
                self.say_where_managed(queue);
            }
            if self.lines[queue] != Line::Own {
                continue;
            }
            let number = self.numbers[self.receiver_of(queue)];
            let seat = self.seated.iter().find(|seat| seat.queue == queue);
            let seat = seat.or_else(|| self.seated.iter().find(|seat| seat.receiver == number));
            match seat.and_then(|seat| seat.interrupt_core) {
                Some(core) if cores.is_online(core) => self.interrupts[queue] = Some(cores.add_interrupt(core)),
                Some(core) => self.say(format!(
                    "the running receiver {number} expects the datagrams of queue {queue} on core {core}, which is \
                     off: they arrive on another one until the core is back; or {CURE}"
                )),
                None => {}
            }
        }
        self.say_what_does_not_fit(cores);
    }

    /// An interrupt that stays where the kernel has it fires elsewhere than when its receiver was started.
    fn say_where_managed(&mut self, queue: usize) {
        let Some(seat) = self.seated.iter().find(|seat| seat.queue == queue && seat.rps_cores.is_empty()) else {
            return;
        };
        if let (Some(expected), Some(fires)) = (seat.interrupt_core, self.interrupts[queue])
            && expected != fires
        {
            self.say(format!(
                "the running receiver {} expects the datagrams of queue {queue} on core {expected}, and the kernel, \
                 which manages that interrupt, has it on core {fires}; {CURE}",
                seat.receiver
            ));
        }
    }

    fn say_what_does_not_fit(&mut self, cores: &Cores<'_>) {
        let (queues, started_for) = (self.interrupts.len(), self.seated.len());
        let name = &self.interface.name;
        let mut texts = Vec::new();
        for (number, core) in self.numbers.iter().zip(&self.receivers) {
            if let Some(core) = core.filter(|&core| !cores.is_online(core)) {
                texts.push(format!(
                    "core {core} of the running receiver {number} is off: the receiver runs elsewhere until it is back"
                ));
            }
        }
        let has_queue = |&receiver: &usize| (0..queues).any(|queue| self.receiver_of(queue) == receiver);
        let idle: Vec<usize> = (0..self.numbers.len())
            .filter(|receiver| !has_queue(receiver))
            .map(|receiver| self.numbers[receiver])
            .collect();
        if !idle.is_empty() && !self.is_spread_by_rps {
            texts.push(format!(
                "{name} has {queues} queue(s), and its running receivers were started for {started_for}: the receivers \
                 {} have none; {CURE}",
                format_core_list(&idle)
            ));
        }
        if queues > started_for {
            let new: Vec<usize> = (started_for..queues).collect();
            texts.push(format!(
                "{name} has {queues} queues, and its running receivers were started for {started_for}: they take the \
                 queues {} too, in turn; {CURE}",
                format_core_list(&new)
            ));
        }
        texts.into_iter().for_each(|text| self.say(text));
    }

    fn say(&mut self, text: String) {
        self.notes.push(Note { text, wishes: Vec::<Wish>::new() });
    }
}
