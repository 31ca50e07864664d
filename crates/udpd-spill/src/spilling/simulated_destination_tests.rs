//! The destination of the simulation, in its kinds: what a stream, a UDP port or a broker does. It checks what comes:
//! each datagram is one that was accepted, whole, under its listener, in its order, and not twice in one process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use seeds::Chance;

use super::SpillableSink;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{SinkTally, Tallies};
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;
use udpd_base::sink::{ConsumerFeeders, deliver, fail};
use udpd_base::testing::simulated_disk::SimulatedDisk;

/// How long a broker is waited for.
const PATIENCE: Duration = Duration::from_millis(20);

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..70_000_u32).map(|at| (at % 251) as u8).collect());

/// What a datagram carries: it depends on its number.
pub(super) fn payload(id: u32, length: usize) -> &'static [u8] {
    let begin = id as usize % 1_000;
    &PATTERN[begin..begin + length]
}

/// Whether it refuses this one for good.
fn refuses(id: u32) -> bool {
    id.wrapping_mul(0x9e37_79b9) >> 26 == 0
}

/// The number of a datagram is in the address of its source, because its payload may be empty.
pub(super) fn address(id: u32, sender: usize) -> SocketAddr {
    SocketAddr::from((id.to_be_bytes(), u16::try_from(sender).expect("few senders")))
}

pub(super) fn numbers_of(address: SocketAddr) -> (u32, usize) {
    match address {
        SocketAddr::V4(address) => (u32::from_be_bytes(address.ip().octets()), address.port().into()),
        SocketAddr::V6(_) => panic!("no such sender: {address}"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Tells at once what it takes: the first ones.
    AtOnce,
    /// The same, and it may take any of a batch.
    Any,
    /// Tells within this time that it did not get what was sent.
    Answers(Duration),
    /// Acknowledges later; what was sent meanwhile stays in hand.
    InHand,
}

/// What is known beyond the processes.
#[derive(Debug)]
pub(super) struct World {
    disk: Arc<SimulatedDisk>,
    pub(super) chance: Chance,
    pub(super) down_until: Duration,
    /// It takes parts of what it gets.
    pub(super) is_narrow: bool,
    /// It does everything that is asked.
    pub(super) is_good: bool,
    pub(super) is_ordered: bool,
    /// Of each datagram its sender and its length.
    accepted: BTreeMap<u32, (usize, usize)>,
    arrived: BTreeSet<u32>,
    in_process: BTreeSet<u32>,
    repeats: u64,
    last: BTreeMap<usize, u32>,
    /// Sent while nothing was there, and counted as delivered.
    nowhere: BTreeSet<u32>,
}

impl World {
    pub(super) fn new(disk: Arc<SimulatedDisk>) -> Self {
        Self {
            disk,
            chance: Chance::new(0),
            down_until: Duration::ZERO,
            is_narrow: false,
            is_good: false,
            is_ordered: true,
            accepted: BTreeMap::new(),
            arrived: BTreeSet::new(),
            in_process: BTreeSet::new(),
            repeats: 0,
            last: BTreeMap::new(),
            nowhere: BTreeSet::new(),
        }
    }

    pub(super) fn accept(&mut self, id: u32, sender: usize, length: usize) {
        self.accepted.insert(id, (sender, length));
    }

    fn is_down(&self) -> bool {
        self.disk.clock.passed() < self.down_until
    }

    fn arrive(&mut self, id: u32, is_ordered: bool) {
        let sender = self.accepted[&id].0;
        assert!(self.in_process.insert(id), "datagram {id} came twice from one process");
        if !self.arrived.insert(id) {
            self.repeats += 1;
            return;
        }
        if self.nowhere.contains(&id) {
            // It was sent before, and what came behind it then may have arrived.
            return;
        }
        let last = self.last.insert(sender, id).unwrap_or(0);
        assert!(!(is_ordered && self.is_ordered) || last < id, "datagram {id} of sender {sender} came behind {last}");
    }

    fn check(&self, id: u32, sender: usize, payload_found: &[u8]) {
        let known = self.accepted.get(&id).copied();
        assert_eq!(known, Some((sender, payload_found.len())), "datagram {id} was sent");
        assert!(payload_found == payload(id, payload_found.len()), "datagram {id} is what was sent");
    }

    /// Returns how many came again that an earlier process had sent.
    pub(super) fn end_of_process(&mut self) -> u64 {
        self.in_process.clear();
        std::mem::take(&mut self.repeats)
    }

    /// How many have not come, apart from those that were sent into the void.
    pub(super) fn missing(&self) -> u64 {
        self.accepted.keys().filter(|id| !self.arrived.contains(id) && !self.nowhere.contains(id)).count() as u64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    UnderWay,
    Arrived,
    Refused,
}

/// A sink for it.
#[derive(Debug)]
pub(super) struct Destination {
    kind: Kind,
    world: Arc<Mutex<World>>,
    has_refused: bool,
    goes_on: bool,
    slots: VecDeque<(u32, SlotState)>,
}

impl Destination {
    pub(super) fn new(kind: Kind, world: Arc<Mutex<World>>) -> Self {
        Self { kind, world, has_refused: false, goes_on: false, slots: VecDeque::new() }
    }

    /// The process is gone; some of what is under way comes.
    pub(super) fn die(&mut self) {
        let under_way = self.slots.iter().filter(|(_, state)| *state == SlotState::UnderWay).count();
        let mut world = lock(&self.world);
        let come = world.chance.index(under_way + 1);
        for (id, _) in self.slots.drain(..).filter(|(_, state)| *state == SlotState::UnderWay).take(come) {
            world.arrive(id, true);
        }
    }

    fn take_at_once(&self, ids: &[u32], tally: &mut SinkTally, left: &mut Vec<usize>) {
        let mut world = lock(&self.world);
        let world = &mut *world;
        let takes = match () {
            () if world.is_down() => 0,
            () if world.is_narrow && world.chance.happens(1, 2) => world.chance.index(ids.len() + 1),
            () => ids.len(),
        };
        let is_any = self.kind == Kind::Any;
        for (place, id) in ids.iter().enumerate() {
            let is_taken = match is_any && !world.is_good && takes > 0 {
                true => world.chance.index(ids.len()) < takes,
                false => place < takes,
            };
            if !is_taken {
                left.push(place);
            } else if refuses(*id) {
                fail(tally, 1);
            } else {
                world.arrive(*id, !is_any);
                deliver(tally, 1);
            }
        }
    }

    fn take_with_answers(&mut self, ids: &[u32], tally: &mut SinkTally, left: &mut Vec<usize>) {
        let mut world = lock(&self.world);
        let takes = if world.is_down() { world.chance.index(ids.len().min(3) + 1) } else { ids.len() };
        for (place, id) in ids.iter().enumerate() {
            if place >= takes {
                left.push(place);
                continue;
            }
            deliver(tally, 1);
            if world.is_down() {
                // It is known only later.
                self.has_refused = true;
                world.nowhere.insert(*id);
            } else {
                world.arrive(*id, true);
            }
        }
    }

    fn take_in_hand(&mut self, ids: &[u32], tally: &mut SinkTally, left: &mut Vec<usize>) {
        let mut world = lock(&self.world);
        let world = &mut *world;
        for (place, id) in ids.iter().enumerate() {
            match self.slots.get(place) {
                None => self.slots.push_back((*id, SlotState::Free)),
                Some((own, _)) => assert_eq!(own, id, "what was left is attempted next, in its order"),
            }
        }
        if !world.is_down() {
            let mut given_back = !world.is_good && world.chance.happens(1, 12);
            let mut room = if world.is_narrow { world.chance.index(ids.len() + 1) } else { ids.len() };
            for (_, state) in self.slots.iter_mut().take(ids.len()) {
                if room == 0 {
                    break;
                }
                if *state == SlotState::Free {
                    *state = SlotState::UnderWay;
                    room -= 1;
                }
            }
            let mut arrives = if world.is_good { usize::MAX } else { world.chance.index(2 * ids.len()) };
            for (id, state) in self.slots.iter_mut().filter(|(_, state)| *state == SlotState::UnderWay) {
                if arrives > 0 {
                    arrives -= 1;
                    let is_refused = refuses(*id);
                    *state = if is_refused { SlotState::Refused } else { SlotState::Arrived };
                    if !is_refused {
                        world.arrive(*id, true);
                    }
                } else if given_back {
                    *state = SlotState::Free;
                }
            }
            given_back &= arrives == 0;
            self.goes_on = !given_back;
        }
        let count = ids.len();
        let mut kept = VecDeque::new();
        for (place, slot) in self.slots.drain(..).enumerate() {
            match slot.1 {
                SlotState::Arrived if place < count => deliver(tally, 1),
                SlotState::Refused if place < count => fail(tally, 1),
                _ => {
                    if place < count {
                        left.push(place);
                    }
                    kept.push_back(slot);
                }
            }
        }
        self.slots = kept;
        self.goes_on &= left.len() < count && !left.is_empty();
        if !left.is_empty() {
            world.disk.clock.advance(PATIENCE);
        }
    }
}

impl SpillableSink for Destination {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let mut ids = Vec::new();
        for datagram in batch.datagrams.datagrams() {
            let (id, sender) = numbers_of(datagram.source().expect("it has a source"));
            lock(&self.world).check(id, sender, datagram.payload());
            ids.push(id);
        }
        let tally = &mut tallies[batch.listener];
        match self.kind {
            Kind::AtOnce | Kind::Any => self.take_at_once(&ids, tally, left),
            Kind::Answers(_) => self.take_with_answers(&ids, tally, left),
            Kind::InHand => self.take_in_hand(&ids, tally, left),
        }
    }

    fn answer_time(&self) -> Duration {
        match self.kind {
            Kind::Answers(time) => time,
            _ => Duration::ZERO,
        }
    }

    fn has_refused(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    fn in_hand(&self) -> usize {
        self.slots.iter().filter(|(_, state)| *state == SlotState::UnderWay).count()
    }

    fn goes_on(&self) -> bool {
        self.goes_on
    }

    fn due(&self) -> Option<std::time::Instant> {
        (self.kind == Kind::InHand).then(|| clock::now() + Duration::from_secs(1))
    }

    fn forget_left(&mut self) {
        self.slots.clear();
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}
