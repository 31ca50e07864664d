//! One interface while it is being seated: whose interrupt is whose, which receiver a queue belongs to, and which of
//! them have a core already, because the kernel keeps an interrupt where it is or because a receiver runs.

use std::collections::{BTreeMap, BTreeSet};

use super::cores::Cores;
use super::note::Note;
use super::parts::QueueSeat;
use super::request::Placement;
use crate::model::{Interface, Known};

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
