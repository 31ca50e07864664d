//! The datagrams that the next attempt begins with, where there is a spill, and what the library has of them.

use std::collections::VecDeque;
use std::time::Instant;

use super::fate::{Fate, TICKET_SHIFT};
use crate::ledger::Tally;
use crate::sink::{deliver, fail};

/// A datagram that is to be attempted, in the order of the spill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The library does not have it.
    Free,
    UnderWay(usize),
    Decided(Fate),
}

/// The datagrams that the next attempt begins with.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) slots: VecDeque<Slot>,
    /// Where the next report is looked for first.
    next: usize,
    /// The last ticket that was given out.
    last: usize,
    pub(super) idle_due: Option<Instant>,
}

impl Slots {
    pub(super) fn ticket(&mut self) -> usize {
        // Told apart from others that are under way; 0 is none.
        self.last = self.last % (usize::MAX >> TICKET_SHIFT) + 1;
        self.last
    }

    /// A report has come.
    pub(super) fn note(&mut self, ticket: usize, fate: Fate) {
        // Reports come nearly in the order of tickets.
        let begin = self.next.min(self.slots.len());
        let place = (begin..self.slots.len()).chain(0..begin).find(|&own| self.slots[own] == Slot::UnderWay(ticket));
        if let Some(place) = place {
            self.slots[place] = if fate == Fate::Again { Slot::Free } else { Slot::Decided(fate) };
            self.next = place + 1;
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::UnderWay(_))).count()
    }

    /// Counts what is decided of the first `count`; the others are left.
    pub(super) fn settle(&mut self, count: usize, tally: &mut Tally, left: &mut Vec<usize>) {
        self.next = 0;
        let mut rest = self.slots.split_off(count.min(self.slots.len()));
        for (place, slot) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            match slot {
                Slot::Decided(Fate::Delivered) => deliver(tally, 1),
                Slot::Decided(_) => fail(tally, 1),
                Slot::Free | Slot::UnderWay(_) => {
                    left.push(place);
                    self.slots.push_back(slot);
                }
            }
        }
        self.slots.append(&mut rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_keeps_its_place_and_what_is_decided_is_counted_once() {
        let mut slots = Slots::default();
        let tickets = [slots.ticket(), slots.ticket(), slots.ticket(), slots.ticket()];
        slots.slots.extend(tickets.map(Slot::UnderWay));
        slots.note(tickets[0], Fate::Delivered);
        slots.note(tickets[2], Fate::Again);
        let (mut tally, mut left) = (Tally { pending: 4, ..Tally::default() }, Vec::new());
        slots.settle(3, &mut tally, &mut left);
        assert_eq!((tally.delivered, tally.pending, left.as_slice()), (1, 3, &[1, 2][..]));
        assert_eq!(slots.slots, [Slot::UnderWay(tickets[1]), Slot::Free, Slot::UnderWay(tickets[3])]);
        slots.note(tickets[1], Fate::Failed);
        slots.note(tickets[3], Fate::Delivered);
        left.clear();
        slots.settle(3, &mut tally, &mut left);
        assert_eq!((tally.delivered, tally.dropped.sink_error, left.as_slice()), (2, 1, &[1][..]));
        assert_eq!((slots.slots.len(), slots.under_way()), (1, 0));
    }
}
