//! Which cores the queues and receivers of all interfaces get. All interfaces are seated together, so that the first
//! one does not take what the last one needs.
//!
//! With `adjacent` the interrupt and the receiver of a queue sit on two physical cores of the device's node, under one
//! last-level cache where there is one: the softirq and the receiver then run at the same time and the datagram crosses
//! a cache that both have. Where the interfaces of a node need more physical cores than it has, every queue first gets
//! a thread for its interrupt, in turn over the interfaces: on as many physical cores as leave the receivers whole ones
//! too. Receivers that find none then go to the nearest node, because two cores far apart do more than one that an
//! interrupt keeps busy. Only when no thread is free at all does a receiver sit on the core of its interrupt, and only
//! then do queues share cores.

use std::borrow::BorrowMut;
use std::collections::{BTreeMap, BTreeSet};

use super::cores::Cores;
use super::parts::{Note, Placement, QueueSeat};
use crate::corelist::format_core_list;
use crate::model::{Interface, Known};

/// Seats the receivers and interrupts of all interfaces.
pub(super) fn assign<'a>(
    cores: &mut Cores<'_>,
    requests: &[SeatRequest<'a>],
    placement: Placement,
) -> Vec<InterfaceSeats<'a>> {
    let mut numbers = BTreeSet::new();
    let new = |request| InterfaceSeats::new(request, placement, cores, &mut numbers);
    let mut interfaces: Vec<InterfaceSeats<'a>> = requests.iter().map(new).collect();
    // The smallest home first, because the others have more to choose from.
    let mut homes: Vec<Vec<usize>> = interfaces.iter().map(|seats| seats.home.clone()).collect();
    homes.sort_by_key(|home| (home.len(), home.clone()));
    homes.dedup();
    for home in homes {
        let mut group: Vec<&mut InterfaceSeats<'a>> =
            interfaces.iter_mut().filter(|seats| seats.home == home).collect();
        let shortage = Shortage {
            needed: group.iter().map(|seats| seats.needs()).sum(),
            free: cores.free_physical(&home).len(),
            interfaces: group.iter().map(|seats| seats.interface.name.clone()).collect(),
        };
        if placement == Placement::Adjacent && shortage.needed <= shortage.free {
            seat_apart(cores, &mut group);
        } else {
            group.iter_mut().for_each(|seats| seats.shortage = Some(shortage.clone()));
            seat_interrupts(cores, &mut group);
        }
    }
    seat_elsewhere(cores, &mut interfaces);
    seat_the_rest(cores, &mut interfaces, placement);
    let placed: BTreeMap<u32, usize> = interfaces.iter().flat_map(InterfaceSeats::placed_interrupts).collect();
    interfaces.iter_mut().for_each(|seats| seats.share_interrupts(&placed));
    interfaces
}

/// Interrupts and receivers on physical cores of their own.
fn seat_apart(cores: &mut Cores<'_>, group: &mut [&mut InterfaceSeats<'_>]) {
    for seats in group.iter_mut() {
        let home = seats.home.clone();
        for receiver in 0..seats.with_a_queue() {
            let Some(queue) = seats.first_queue(receiver) else { continue };
            let pair = cores.pairs(&home).first().copied();
            if let (Some((interrupt, beside)), None) = (pair, seats.receivers[receiver]) {
                seats.interrupts[queue] = Some(cores.add_interrupt(interrupt));
                seats.receivers[receiver] = Some(cores.add_receiver(beside));
            } else {
                seats.interrupts[queue] = cores.free_for_interrupt(&home).map(|core| cores.add_interrupt(core));
            }
        }
    }
    // Last, so that they take no half of a pair.
    for seats in group.iter_mut() {
        for receiver in 0..seats.with_a_queue() {
            seat_receiver_apart(cores, seats, receiver);
        }
    }
}

fn seat_receiver_apart(cores: &mut Cores<'_>, seats: &mut InterfaceSeats<'_>, receiver: usize) {
    if seats.receivers[receiver].is_none() {
        let found = cores.apart_for_receiver(&seats.home, seats.interrupt_of(receiver));
        seats.receivers[receiver] = found.map(|core| cores.add_receiver(core));
    }
}

/// An interrupt for every receiver, in turn over the interfaces, as long as there are free threads at home.
fn seat_interrupts(cores: &mut Cores<'_>, group: &mut [&mut InterfaceSeats<'_>]) {
    let wanted = |seats: &InterfaceSeats<'_>, receiver: usize| seats.first_queue(receiver).is_some();
    let interrupts: usize =
        group.iter().map(|seats| (0..seats.with_a_queue()).filter(|&receiver| wanted(seats, receiver)).count()).sum();
    let apart = group.iter().filter(|seats| seats.placement == Placement::Adjacent);
    let receivers = apart.map(|seats| seats.needs()).sum::<usize>().saturating_sub(interrupts);
    let Some(home) = group.first().map(|seats| seats.home.clone()) else { return };
    let theirs = cores.for_interrupts(&home, interrupts, receivers);
    in_turn(group, InterfaceSeats::with_a_queue, |seats, receiver| {
        let Some(queue) = seats.first_queue(receiver) else { return };
        let core = cores.free_for_interrupt(&theirs).or_else(|| cores.free_for_interrupt(&home));
        seats.interrupts[queue] = core.map(|core| cores.add_interrupt(core));
    });
}

/// Seats what has no core yet: interrupts elsewhere or in turn, and then receivers, at home as far as possible.
fn seat_elsewhere(cores: &mut Cores<'_>, interfaces: &mut [InterfaceSeats<'_>]) {
    in_turn(interfaces, InterfaceSeats::with_a_queue, |seats, receiver| {
        let Some(queue) = seats.first_queue(receiver) else { return };
        let core = cores.any_for_interrupt(&seats.home, seats.interface.node);
        seats.interrupts[queue] = Some(cores.add_interrupt(core));
    });
    in_turn(interfaces, InterfaceSeats::with_a_queue, |seats, receiver| {
        if seats.placement != Placement::SameCore || seats.own_interrupt_of(receiver).is_none() {
            seat_receiver_apart(cores, seats, receiver);
        }
    });
    in_turn(interfaces, InterfaceSeats::with_a_queue, |seats, receiver| {
        if seats.receivers[receiver].is_none() {
            let core = elsewhere_or_together(cores, seats, receiver);
            seats.receivers[receiver] = Some(cores.add_receiver(core));
        }
    });
}

fn elsewhere_or_together(cores: &Cores<'_>, seats: &InterfaceSeats<'_>, receiver: usize) -> usize {
    let anywhere = cores.any_for_receiver(&seats.home, seats.interface.node);
    let Some(interrupt) = seats.own_interrupt_of(receiver).filter(|core| cores.usable().contains(core)) else {
        return anywhere;
    };
    if seats.placement == Placement::SameCore {
        return interrupt;
    }
    // Away from home the neighbours of the interrupt are the home.
    let near = cores.home(cores.topology.node_of_core.get(&interrupt).copied());
    let near = cores.apart_for_receiver(&near, Some(interrupt));
    near.unwrap_or(if cores.is_free(anywhere) { anywhere } else { interrupt })
}

/// Calls `seat` for the first receiver of every interface, then for the second, and so on; `count` says how many an
/// interface has.
fn in_turn<'a, S: BorrowMut<InterfaceSeats<'a>>>(
    interfaces: &mut [S],
    count: fn(&InterfaceSeats<'a>) -> usize,
    mut seat: impl FnMut(&mut InterfaceSeats<'a>, usize),
) {
    let most = interfaces.iter().map(|seats| count(seats.borrow())).max().unwrap_or(0);
    for receiver in 0..most {
        for seats in interfaces.iter_mut().map(BorrowMut::borrow_mut).filter(|seats| receiver < count(seats)) {
            seat(seats, receiver);
        }
    }
}

/// Receivers beyond the queues, in turn; then the interrupts of further queues of the same receiver.
fn seat_the_rest(cores: &mut Cores<'_>, interfaces: &mut [InterfaceSeats<'_>], placement: Placement) {
    in_turn(
        interfaces,
        |seats| seats.receivers.len(),
        |seats, receiver| {
            if seats.receivers[receiver].is_none() {
                let core = cores.any_for_receiver(&seats.home, seats.interface.node);
                seats.receivers[receiver] = Some(cores.add_receiver(core));
            }
        },
    );
    in_turn(interfaces, InterfaceSeats::with_a_queue, |seats, receiver| {
        while let Some(queue) = seats.open_queue(receiver) {
            let core = match placement {
                Placement::SameCore => seats.receivers[receiver],
                Placement::Adjacent => cores.free_physical(&seats.home).first().copied(),
                Placement::Node => cores.free_for_interrupt(&seats.home),
            };
            let core = core.or(seats.interrupt_of(receiver));
            let core = core.unwrap_or_else(|| cores.any_for_interrupt(&seats.home, seats.interface.node));
            seats.interrupts[queue] = Some(cores.add_interrupt(core));
        }
    });
}

/// The queues and receivers of one interface that need cores.
pub(super) struct SeatRequest<'a> {
    pub(super) interface: &'a Interface,
    /// How many queues there will be.
    pub(super) queues: usize,
    /// How many receivers there will be, unless some run already.
    pub(super) receivers: usize,
    /// Where receivers run already.
    pub(super) seated: &'a [QueueSeat],
}

/// Which queue, interface or program decides where the interrupt of a queue fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InterruptOwner {
    /// Its own, and ours to place.
    Own,
    /// That of an earlier queue of the same interface.
    OfQueue(usize),
    /// That of an interface that was seated before: the number of the interrupt.
    OfAnother(u32),
    /// The kernel keeps it where it is.
    Managed,
    /// There is none that we could place: why.
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

/// One interface while its queues and receivers get their cores.
pub(super) struct InterfaceSeats<'a> {
    pub(super) interface: &'a Interface,
    pub(super) placement: Placement,
    /// The cores nearest to the device.
    pub(super) home: Vec<usize>,
    /// Where receivers run already.
    pub(super) seated: &'a [QueueSeat],
    /// By queue.
    pub(super) owners: Vec<InterruptOwner>,
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

impl<'a> InterfaceSeats<'a> {
    /// Takes what is not ours to choose: interrupts that stay, receivers that run. `numbers` are the interrupts that
    /// some interface has already.
    pub(super) fn new(
        request: &SeatRequest<'a>,
        placement: Placement,
        cores: &mut Cores<'_>,
        numbers: &mut BTreeSet<u32>,
    ) -> Self {
        let SeatRequest { interface, queues, receivers, seated } = *request;
        let mut seats = Self {
            interface,
            placement,
            home: cores.home(interface.node),
            seated,
            owners: Vec::new(),
            interrupts: vec![None; queues],
            numbers: (0..receivers).collect(),
            receivers: vec![None; receivers],
            is_spread_by_rps: receivers > queues,
            shortage: None,
            notes: Vec::new(),
        };
        for queue in 0..queues {
            let owner = seats.owner(queue, numbers);
            if owner == InterruptOwner::Managed {
                let fires = interface.queues[queue].interrupt.get().and_then(|own| own.effective.first().copied());
                seats.interrupts[queue] = fires.map(|core| cores.add_interrupt(core));
            }
            seats.owners.push(owner);
        }
        if !seated.is_empty() {
            seats.take_seated(cores);
        }
        seats
    }

    fn owner(&self, queue: usize, numbers: &mut BTreeSet<u32>) -> InterruptOwner {
        let interrupt_of = |queue: usize| self.interface.queues.get(queue).map(|queue| &queue.interrupt);
        match interrupt_of(queue) {
            // A queue that does not exist yet has no interrupt to look at.
            None => InterruptOwner::Own,
            Some(Known::Unknown(reason)) => InterruptOwner::Unknown(format!("the interrupt is unknown: {reason}")),
            Some(Known::NotSupported) => InterruptOwner::Unknown("there is no interrupt to set".to_owned()),
            Some(Known::Is(own)) if !own.is_settable => InterruptOwner::Managed,
            Some(Known::Is(own)) => {
                let is_it = |&earlier: &usize| {
                    interrupt_of(earlier).and_then(Known::get).is_some_and(|other| other.number == own.number)
                };
                match (0..queue).find(is_it) {
                    Some(first) => InterruptOwner::OfQueue(first),
                    None if numbers.insert(own.number) => InterruptOwner::Own,
                    None => InterruptOwner::OfAnother(own.number),
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
        self.queues_of(receiver)
            .find(|&queue| self.owners[queue] == InterruptOwner::Own && self.interrupts[queue].is_none())
    }

    /// The same, as long as none of its queues has a core.
    pub(super) fn first_queue(&self, receiver: usize) -> Option<usize> {
        self.open_queue(receiver).filter(|_| self.own_interrupt_of(receiver).is_none())
    }

    /// Where an interrupt fires that the receiver does not share.
    pub(super) fn own_interrupt_of(&self, receiver: usize) -> Option<usize> {
        let is_own = |queue: &usize| matches!(self.owners[*queue], InterruptOwner::Own | InterruptOwner::Managed);
        self.queues_of(receiver).filter(is_own).find_map(|queue| self.interrupts[queue])
    }

    /// Where the first interrupt of a receiver fires, also where it shares that interrupt.
    pub(super) fn interrupt_of(&self, receiver: usize) -> Option<usize> {
        self.queues_of(receiver).find_map(|queue| match self.owners[queue] {
            InterruptOwner::OfQueue(first) => self.interrupts[first],
            _ => self.interrupts[queue],
        })
    }

    /// How many physical cores are needed to keep apart all interrupts and receivers that have no core yet.
    pub(super) fn needs(&self) -> usize {
        let needs = |receiver: usize| {
            usize::from(self.first_queue(receiver).is_some()) + usize::from(self.receivers[receiver].is_none())
        };
        (0..self.with_a_queue()).map(needs).sum()
    }

    /// The interrupts that it has placed, with their cores.
    pub(super) fn placed_interrupts(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        (0..self.owners.len()).filter(|&queue| self.owners[queue] == InterruptOwner::Own).filter_map(|queue| {
            let number = self.interface.queues.get(queue)?.interrupt.get()?.number;
            Some((number, self.interrupts[queue]?))
        })
    }

    /// A queue that shares the interrupt of another queue has it on the core of that queue.
    pub(super) fn share_interrupts(&mut self, placed: &BTreeMap<u32, usize>) {
        for queue in 0..self.owners.len() {
            match self.owners[queue] {
                InterruptOwner::OfQueue(first) => self.interrupts[queue] = self.interrupts[first],
                InterruptOwner::OfAnother(number) => self.interrupts[queue] = placed.get(&number).copied(),
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

impl InterfaceSeats<'_> {
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
            if self.owners[queue] == InterruptOwner::Managed {
                self.say_where_managed(queue);
            }
            if self.owners[queue] != InterruptOwner::Own {
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

    /// Notes an interrupt that the kernel manages and that fires elsewhere than when its receiver was started.
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
        self.notes.push(Note { text, fields: Vec::new() });
    }
}
