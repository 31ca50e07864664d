//! The datagrams that the next attempt begins with, where there is a spill, and what the library has of them.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::outcome::{MessageOutcome, MessageRefusal, TICKET_SHIFT, refuse};
use super::rounds::DeliveryRounds;
use udpd_base::ledger::SinkTally;
use udpd_base::sink::deliver;

/// A datagram that is to be attempted, in the order of the spill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageSlot {
    /// The library does not have it.
    Free,
    UnderWay {
        ticket: usize,
        size: usize,
    },
    /// It was in a batch of this partition that was refused, because of it or, with `None`, of another one.
    Doubtful {
        partition: i32,
        size: usize,
        refusal: Option<MessageRefusal>,
    },
    Delivered,
    Refused(MessageRefusal),
}

/// What became of a round.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// A batch was refused for its size, and its messages are sent again in smaller ones.
    pub(super) is_too_large: bool,
    /// A broker has given something back for now.
    pub(super) is_broken: bool,
    /// Messages that no broker takes, and how large they are.
    pub(super) refused: Vec<(MessageRefusal, usize)>,
}

/// The datagrams that the next attempt begins with.
#[derive(Debug)]
pub(super) struct MessageSlots {
    pub(super) slots: VecDeque<MessageSlot>,
    pub(super) rounds: DeliveryRounds,
    /// Where the next report is looked for first.
    next: usize,
    /// The last ticket that was given out.
    last: usize,
    /// Something of the round that is under way came back.
    is_broken: bool,
    /// What was left of the last attempt was only left because its time was over.
    pub(super) goes_on: bool,
    pub(super) idle_due: Option<Instant>,
}

impl MessageSlots {
    pub(super) fn new(rounds: DeliveryRounds) -> Self {
        Self { slots: VecDeque::new(), rounds, next: 0, last: 0, is_broken: false, goes_on: false, idle_due: None }
    }

    pub(super) fn ticket(&mut self) -> usize {
        // Told apart from others that are under way; 0 is none.
        self.last = self.last % (usize::MAX >> TICKET_SHIFT) + 1;
        self.last
    }

    /// A report has come, of a message in this partition.
    pub(super) fn note(&mut self, ticket: usize, outcome: MessageOutcome, partition: i32) {
        // Reports come nearly in the order of tickets.
        let begin = self.next.min(self.slots.len());
        let is_own = |slot: &MessageSlot| matches!(slot, MessageSlot::UnderWay { ticket: own, .. } if *own == ticket);
        let place = (begin..self.slots.len()).chain(0..begin).find(|&place| is_own(&self.slots[place]));
        let Some(place) = place else { return };
        let MessageSlot::UnderWay { size, .. } = self.slots[place] else { return };
        self.next = place + 1;
        self.is_broken |= outcome == MessageOutcome::Again;
        self.slots[place] = match outcome {
            MessageOutcome::Delivered => {
                self.rounds.was_taken(size);
                MessageSlot::Delivered
            }
            MessageOutcome::Again => MessageSlot::Free,
            MessageOutcome::Refused(refusal) => MessageSlot::Doubtful { partition, size, refusal: Some(refusal) },
            MessageOutcome::Bystander => MessageSlot::Doubtful { partition, size, refusal: None },
        };
    }

    pub(super) fn under_way(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, MessageSlot::UnderWay { .. })).count()
    }

    /// Whether it is known what became of the first `count`.
    pub(super) fn is_decided(&self, count: usize) -> bool {
        self.slots.len() >= count
            && self
                .slots
                .iter()
                .take(count)
                .all(|slot| matches!(slot, MessageSlot::Delivered | MessageSlot::Refused(_)))
    }

    /// When everything of the round is reported: tells who was refused alone from who was only in the same batch.
    pub(super) fn conclude(&mut self, now: Instant) -> Outcome {
        let (mut outcome, mut is_split) = (Outcome::default(), false);
        if !self.rounds.is_under_way() || self.under_way() > 0 {
            return outcome;
        }
        // A round has one batch for each partition, so those that were refused together were in one.
        let mut batches: HashMap<i32, (usize, usize)> = HashMap::new();
        for slot in &self.slots {
            if let MessageSlot::Doubtful { partition, refusal, .. } = slot {
                let (refused, bystanders) = batches.entry(*partition).or_default();
                *(if refusal.is_some() { refused } else { bystanders }) += 1;
            }
        }
        for slot in &mut self.slots {
            let MessageSlot::Doubtful { partition, size, refusal } = *slot else { continue };
            *slot = match (refusal, batches[&partition]) {
                // Alone in its batch, or named by the broker as the one that is wrong.
                (Some(refusal), (1, _) | (_, 1..)) => {
                    if batches[&partition] == (1, 0) && refusal == MessageRefusal::TooLarge {
                        self.rounds.was_refused_alone(size);
                    }
                    outcome.refused.push((refusal, size));
                    MessageSlot::Refused(refusal)
                }
                (Some(refusal), _) => {
                    is_split = true;
                    outcome.is_too_large |= refusal == MessageRefusal::TooLarge;
                    MessageSlot::Free
                }
                (None, _) => MessageSlot::Free,
            };
        }
        outcome.is_broken = std::mem::take(&mut self.is_broken);
        match outcome.is_broken {
            _ if is_split => self.rounds.was_refused(now),
            true => self.rounds.was_broken(),
            false => self.rounds.went_well(now),
        }
        outcome
    }

    /// Another client has taken the place of the one that had what is under way.
    pub(super) fn begin_anew(&mut self) {
        self.slots
            .iter_mut()
            .filter(|slot| matches!(slot, MessageSlot::UnderWay { .. } | MessageSlot::Doubtful { .. }))
            .for_each(|slot| *slot = MessageSlot::Free);
        self.is_broken = false;
        self.rounds.begin_anew();
    }

    /// Counts what is decided of the first `count`; the others are left.
    pub(super) fn settle(&mut self, count: usize, tally: &mut SinkTally, left: &mut Vec<usize>) {
        self.next = 0;
        let mut rest = self.slots.split_off(count.min(self.slots.len()));
        for (place, slot) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            match slot {
                MessageSlot::Delivered => deliver(tally, 1),
                MessageSlot::Refused(refusal) => refuse(tally, refusal, 1),
                MessageSlot::Free | MessageSlot::UnderWay { .. } | MessageSlot::Doubtful { .. } => {
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

    /// So many slots that are under way, as a round, with their tickets.
    fn under_way(count: usize) -> (MessageSlots, Vec<usize>) {
        let mut slots = MessageSlots::new(DeliveryRounds::new((1_000, 100)));
        let tickets: Vec<usize> = (0..count).map(|_| slots.ticket()).collect();
        slots.slots.extend(tickets.iter().map(|&ticket| MessageSlot::UnderWay { ticket, size: 100 }));
        let room = slots.rounds.begin();
        slots.rounds.under_way(room);
        (slots, tickets)
    }

    const TOO_LARGE: MessageOutcome = MessageOutcome::Refused(MessageRefusal::TooLarge);

    #[test]
    fn what_is_left_keeps_its_place_and_what_is_decided_is_counted_once() {
        let (mut slots, tickets) = under_way(4);
        slots.note(tickets[0], MessageOutcome::Delivered, 0);
        slots.note(tickets[2], MessageOutcome::Again, 0);
        let (mut tally, mut left) = (SinkTally { pending: 4, ..SinkTally::default() }, Vec::new());
        slots.settle(3, &mut tally, &mut left);
        assert_eq!((tally.delivered, tally.pending, left.as_slice()), (1, 3, &[1, 2][..]));
        let held = |ticket| MessageSlot::UnderWay { ticket, size: 100 };
        assert_eq!(slots.slots, [held(tickets[1]), MessageSlot::Free, held(tickets[3])]);
        slots.note(tickets[1], TOO_LARGE, 0);
        slots.note(tickets[3], MessageOutcome::Delivered, 0);
        assert_eq!(slots.conclude(Instant::now()).refused, [(MessageRefusal::TooLarge, 100)]);
        left.clear();
        slots.settle(3, &mut tally, &mut left);
        assert_eq!((tally.delivered, tally.dropped.too_large, tally.pending, left.as_slice()), (2, 1, 1, &[1][..]));
        assert_eq!((slots.slots.len(), slots.under_way()), (1, 0));
    }

    #[test]
    fn of_a_batch_that_is_refused_all_are_sent_again_and_who_was_alone_in_another_is_refused() {
        let (mut slots, tickets) = under_way(4);
        for (ticket, partition) in tickets.iter().zip([0, 1, 0, 2]) {
            assert_eq!(slots.conclude(Instant::now()), Outcome::default(), "not before all are reported");
            slots.note(*ticket, if partition == 2 { MessageOutcome::Delivered } else { TOO_LARGE }, partition);
        }
        let refused = vec![(MessageRefusal::TooLarge, 100)];
        assert_eq!(slots.conclude(Instant::now()), Outcome { is_too_large: true, refused, ..Outcome::default() });
        assert_eq!(
            slots.slots,
            [
                MessageSlot::Free,
                MessageSlot::Refused(MessageRefusal::TooLarge),
                MessageSlot::Free,
                MessageSlot::Delivered
            ]
        );
    }

    #[test]
    fn whom_a_broker_names_in_a_batch_is_refused_and_the_others_are_sent_again() {
        let (mut slots, tickets) = under_way(3);
        for (ticket, outcome) in tickets.iter().zip([
            MessageOutcome::Bystander,
            MessageOutcome::Refused(MessageRefusal::Policy),
            MessageOutcome::Bystander,
        ]) {
            slots.note(*ticket, outcome, 0);
        }
        let refused = vec![(MessageRefusal::Policy, 100)];
        assert_eq!(slots.conclude(Instant::now()), Outcome { refused, ..Outcome::default() });
        assert_eq!(slots.slots, [MessageSlot::Free, MessageSlot::Refused(MessageRefusal::Policy), MessageSlot::Free]);
    }
}
