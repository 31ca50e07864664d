//! Whether each address of one family is accepted: the addresses where the answer changes, and an index into them.
//!
//! Prefixes nest and never cross, so together they cut the addresses into ranges that are accepted and refused in turn.
//! Only the addresses where the answer changes (turns) are kept. The number of turns up to an address gives the answer:
//! with an even number it is that of the lowest address, with an odd one the opposite. A million prefixes are at most
//! two million turns.
//!
//! A binary search through all turns would miss the cache at every step. So an index cuts a window of the addresses
//! into equal slots and holds how many turns come before each slot: one look at it leaves a few adjacent turns to
//! search. The window is the smallest prefix that holds three quarters of all turns, because lists are dense in some
//! part of the space (all routed IPv6 begins with the same three bits). With any list a search takes no more steps than
//! without it.

use std::fmt::Debug;

/// An address of one family as a number.
pub(super) trait Number: Copy + Ord + Debug {
    const WIDTH: u8;
    const ZERO: Self;

    /// The highest address of the network of this length that begins here.
    fn last_of(self, bits: u8) -> Self;

    /// The next address, if there is one.
    fn next(self) -> Option<Self>;

    /// The same with the bit at this place from the left set.
    fn with_bit(self, place: u8) -> Self;

    /// The slot that holds it, where slots begin at `base` and have 2^`shift` addresses each. For addresses from `base`
    /// on.
    fn slot(self, base: Self, shift: u32) -> usize;

    /// Where slot `slot` begins.
    fn slot_start(base: Self, shift: u32, slot: usize) -> Option<Self>;
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            const WIDTH: u8 = <$type>::BITS as u8;
            const ZERO: Self = 0;

            fn last_of(self, bits: u8) -> Self {
                self | <$type>::MAX.checked_shr(bits.into()).unwrap_or(0)
            }

            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }

            fn with_bit(self, place: u8) -> Self {
                self | 1 << (Self::WIDTH - 1 - place)
            }

            fn slot(self, base: Self, shift: u32) -> usize {
                usize::try_from(self.wrapping_sub(base) >> shift).unwrap_or(usize::MAX)
            }

            fn slot_start(base: Self, shift: u32, slot: usize) -> Option<Self> {
                let offset = <$type>::try_from(slot).ok()?.checked_mul(1 << shift)?;
                base.checked_add(offset)
            }
        }
    };
}

number!(u32);
number!(u128);

/// A network of one family, and whether it is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListedNetwork<T> {
    pub(super) first: T,
    pub(super) bits: u8,
    pub(super) accept: bool,
    /// Which text it is from, and which line; for messages only.
    pub(super) text: u16,
    pub(super) line: u32,
}

/// The answer for every address of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges<T> {
    /// The answer for the lowest address.
    first: bool,
    /// The addresses at which the answer changes, in order.
    pub(super) turns: Box<[T]>,
    /// Where the first slot begins, and how large each is.
    base: T,
    shift: u32,
    /// How many turns come before each slot, and before the end of the last.
    index: Box<[u32]>,
}

/// More slots take more of the cache than they save steps.
const SLOT_BITS_MAX: u32 = 16;

impl<T: Number> Ranges<T> {
    /// The longest network that holds an address decides, and `otherwise` where none does. The entries are in order of
    /// `first` and `bits`, and equal ones agree.
    pub(super) fn of(entries: &[ListedNetwork<T>], otherwise: bool) -> Self {
        let mut made = Turns { first: otherwise, at: Vec::new() };
        let mut open: Vec<(T, bool)> = Vec::new();
        let mut before = None;
        for entry in entries {
            if before.replace((entry.first, entry.bits)) == Some((entry.first, entry.bits)) {
                continue;
            }
            while let Some((last, _)) = open.pop_if(|(last, _)| *last < entry.first) {
                made.close(last, open.last().map_or(otherwise, |(_, accept)| *accept));
            }
            made.turn(entry.first, entry.accept);
            open.push((entry.first.last_of(entry.bits), entry.accept));
        }
        while let Some((last, _)) = open.pop() {
            made.close(last, open.last().map_or(otherwise, |(_, accept)| *accept));
        }
        Self::with_index(made.first, made.at.into())
    }

    pub(super) fn with_index(first: bool, turns: Box<[T]>) -> Self {
        let (base, prefix) = window(&turns);
        let wanted = turns.len().max(2).ilog2().min(SLOT_BITS_MAX);
        let bits = wanted.min(u32::from(T::WIDTH - prefix));
        let shift = u32::from(T::WIDTH - prefix) - bits;
        let before = |slot: usize| match T::slot_start(base, shift, slot) {
            Some(start) => turns.partition_point(|turn| *turn < start) as u32,
            None => turns.len() as u32,
        };
        let index = (0..=1 << bits).map(before).collect();
        Self { first, turns, base, shift, index }
    }

    pub(super) fn accepts(&self, address: T) -> bool {
        let (from, to) = match self.index.as_ref() {
            [first, ..] if address < self.base => (0, *first as usize),
            index => {
                let slot = address.slot(self.base, self.shift).min(index.len() - 1);
                (index[slot] as usize, index.get(slot + 1).map_or(self.turns.len(), |next| *next as usize))
            }
        };
        let passed = from + self.turns[from..to].partition_point(|turn| *turn <= address);
        self.first == passed.is_multiple_of(2)
    }

    /// The same, but with all from `start` to `last` accepted.
    pub(super) fn also_accepting(&self, start: T, last: T) -> Self {
        let before = self.turns.partition_point(|turn| *turn < start);
        let mut turns = self.turns[..before].to_vec();
        let is_accepting = self.first == before.is_multiple_of(2);
        if !is_accepting && start != T::ZERO {
            turns.push(start);
        }
        if let Some(next) = last.next() {
            turns.extend((!self.accepts(next)).then_some(next));
            turns.extend(self.turns.iter().filter(|turn| **turn > next));
        }
        Self::with_index(self.first || start == T::ZERO, turns.into())
    }

    /// The answer for the lowest address, and where it changes.
    pub(super) fn turns(&self) -> (bool, &[T]) {
        (self.first, &self.turns)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.turns.as_ref()) + size_of_val(self.index.as_ref())
    }
}

/// Collects answers in order of their addresses, and keeps those that change something.
struct Turns<T> {
    first: bool,
    at: Vec<T>,
}

impl<T: Number> Turns<T> {
    /// From `at` on this is the answer, whatever was said of `at` before.
    fn turn(&mut self, at: T, answer: bool) {
        if at == T::ZERO {
            self.first = answer;
            return;
        }
        self.at.pop_if(|last| *last == at);
        let so_far = self.first == self.at.len().is_multiple_of(2);
        if so_far != answer {
            self.at.push(at);
        }
    }

    /// A network ends with `last`; `answer` is that of the network around it.
    fn close(&mut self, last: T, answer: bool) {
        if let Some(next) = last.next() {
            self.turn(next, answer);
        }
    }
}

/// The smallest prefix that holds three quarters of all turns: where it begins, and its length.
fn window<T: Number>(turns: &[T]) -> (T, u8) {
    let (mut base, mut prefix, mut inside) = (T::ZERO, 0, turns);
    // Shorter than the width, so that it has two slots at least.
    while prefix < T::WIDTH - 1 {
        let middle = base.with_bit(prefix);
        let (low, high) = inside.split_at(inside.partition_point(|turn| *turn < middle));
        if low.len() >= turns.len().div_ceil(4) * 3 && !low.is_empty() {
            inside = low;
        } else if high.len() >= turns.len().div_ceil(4) * 3 && !high.is_empty() {
            (base, inside) = (middle, high);
        } else {
            break;
        }
        prefix += 1;
    }
    (base, prefix)
}
