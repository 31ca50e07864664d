//! How much is handed to the library at once where there is a spill, and what the library has of the datagrams that the
//! next attempt begins with.
//!
//! A broker takes or refuses a batch of the library as one: one that is too large is refused with every message in it.
//! Those that are small enough have to be sent again, before anything that came after them from the same sender. So the
//! sink hands messages over in rounds. A round is no more than one batch holds, the library waits a moment
//! (`linger.ms`) before it sends, and a round is over in less than that; hence each partition gets one batch of a
//! round, and nothing is under way behind a batch that is refused. The next round begins when everything of the last
//! one is reported. After a refusal it is half as large, down to one message for each round, which is then refused
//! alone. After rounds that are taken it grows again, so a limit that is raised is used without being told.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::client_properties::LINGER;
use super::message::{MessageOutcome, MessageRefusal, TICKET_SHIFT, refuse};
use udpd_base::ledger::SinkTally;
use udpd_base::seams::clock;
use udpd_base::sink::deliver;

/// For how long messages of a round are handed over: well below the time after which the library sends.
const HAND_OVER: Duration = LINGER.checked_div(2).expect("2 is not 0");

/// How many messages are handed over between two looks at the clock.
const LOOK_EVERY: usize = 32;

/// How long no round is as large as one that was refused.
const MEMORY: Duration = Duration::from_secs(60);

/// How much of a round is used.
#[derive(Debug)]
pub(super) struct RoundLimit {
    begun: Instant,
    messages: usize,
    bytes: usize,
    is_over: bool,
    /// Whether more would have been handed over in a larger round.
    is_cut: bool,
}

/// How large the next round may be.
#[derive(Debug)]
pub(super) struct DeliveryRounds {
    /// What a batch of the library holds.
    bytes_max: usize,
    messages_max: usize,
    bytes: usize,
    /// How large a round was that was refused, and when.
    refused: Option<(usize, Instant)>,
    /// From which size on a message was refused alone.
    refused_alone: Option<usize>,
    last: Option<RoundLimit>,
}

impl DeliveryRounds {
    /// For a library whose batches hold so much. The first round is one message: it finds the topic and its leader.
    pub(super) fn new((bytes_max, messages_max): (usize, usize)) -> Self {
        Self { bytes_max, messages_max, bytes: 1, refused: None, refused_alone: None, last: None }
    }

    pub(super) fn begin(&self) -> RoundLimit {
        RoundLimit { begun: clock::now(), messages: 0, bytes: 0, is_over: false, is_cut: false }
    }

    /// Whether a message of this size fits into the round.
    pub(super) fn has_room(&self, room: &mut RoundLimit, size: usize) -> bool {
        let is_doubtful = self.refused_alone.is_some_and(|refused| size >= refused);
        let fits = !room.is_over && room.messages < self.messages_max && room.bytes + size <= self.bytes;
        if room.messages > 0 && (is_doubtful || !fits) {
            room.is_cut |= !room.is_over && !is_doubtful;
            return false;
        }
        room.messages += 1;
        room.bytes += size;
        let is_late = room.messages.is_multiple_of(LOOK_EVERY) && clock::since(room.begun) >= HAND_OVER;
        room.is_over |= is_doubtful || is_late;
        true
    }

    /// All of a round is handed over.
    pub(super) fn under_way(&mut self, room: RoundLimit) {
        self.last = Some(room);
    }

    /// Each message of the round was taken, or was refused alone.
    pub(super) fn went_well(&mut self, now: Instant) {
        self.refused.take_if(|(_, when)| now.saturating_duration_since(*when) >= MEMORY);
        let Some(room) = self.last.take().filter(|room| room.is_cut) else { return };
        let grown = (2 * self.bytes).max(room.bytes).min(self.bytes_max);
        if self.refused.is_none_or(|(refused, _)| grown < refused) {
            self.bytes = grown;
        }
    }

    /// A batch of the round with several messages was refused.
    pub(super) fn was_refused(&mut self, now: Instant) {
        let bytes = self.last.take().map_or(self.bytes, |room| room.bytes);
        self.refused = Some((bytes, now));
        self.bytes = (self.bytes.min(bytes) / 2).max(1);
    }

    /// Something of the round came back for another reason than its size.
    pub(super) fn was_broken(&mut self) {
        self.last = None;
    }

    /// Another client begins, which has to find the topic.
    pub(super) fn begin_anew(&mut self) {
        (self.last, self.bytes) = (None, 1);
    }

    /// Whether not all of the last round is reported.
    pub(super) fn is_under_way(&self) -> bool {
        self.last.is_some()
    }

    /// A message of this size was refused for it, alone.
    pub(super) fn was_refused_alone(&mut self, size: usize) {
        self.refused_alone = Some(self.refused_alone.map_or(size, |refused| refused.min(size)));
    }

    /// A message of this size was taken.
    pub(super) fn was_taken(&mut self, size: usize) {
        self.refused_alone.take_if(|refused| size >= *refused);
    }
}

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

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RoundOutcome {
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

    /// Whether the outcome of the first `count` is known.
    pub(super) fn is_decided(&self, count: usize) -> bool {
        self.slots.len() >= count
            && self
                .slots
                .iter()
                .take(count)
                .all(|slot| matches!(slot, MessageSlot::Delivered | MessageSlot::Refused(_)))
    }

    /// When everything of the round is reported: tells messages that were refused alone from those in the same batch.
    pub(super) fn conclude(&mut self, now: Instant) -> RoundOutcome {
        let (mut outcome, mut is_split) = (RoundOutcome::default(), false);
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

    /// Another client has replaced the one that had the messages under way.
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

    /// Hands messages of these sizes over; how many of them found a place.
    fn round(rounds: &mut DeliveryRounds, sizes: &[usize]) -> usize {
        let mut room = rounds.begin();
        // The clock is no matter here.
        room.begun += Duration::from_secs(3600);
        let taken = sizes.iter().take_while(|size| rounds.has_room(&mut room, **size)).count();
        rounds.under_way(room);
        taken
    }

    #[test]
    fn rounds_grow_while_they_are_taken_as_far_as_a_batch_holds() {
        let (mut rounds, now) = (DeliveryRounds::new((1_000, 8)), Instant::now());
        let mut counts = Vec::new();
        for _ in 0..9 {
            counts.push(round(&mut rounds, &[100; 20]));
            rounds.went_well(now);
        }
        assert_eq!(counts, [1, 1, 2, 4, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn a_round_that_is_refused_is_halved_down_to_one_message_and_grows_only_after_a_while_as_large_as_it_was() {
        let (mut rounds, now) = (DeliveryRounds { bytes: 800, ..DeliveryRounds::new((1_000, 100)) }, Instant::now());
        let mut counts = Vec::new();
        for _ in 0..4 {
            counts.push(round(&mut rounds, &[100; 20]));
            rounds.was_refused(now);
        }
        assert_eq!(counts, [8, 4, 2, 1]);
        let mut rounds = DeliveryRounds { bytes: 300, refused: Some((800, now)), ..rounds };
        for later in [0, 0, 60] {
            round(&mut rounds, &[100; 20]);
            rounds.went_well(now + Duration::from_secs(later));
        }
        assert_eq!(rounds.bytes, 1_000);
    }

    #[test]
    fn what_was_refused_alone_is_alone_until_one_of_its_size_is_taken() {
        let mut rounds = DeliveryRounds { bytes: 1_000, ..DeliveryRounds::new((1_000, 100)) };
        rounds.was_refused_alone(500);
        assert_eq!(round(&mut rounds, &[100, 100, 500, 100]), 2);
        assert_eq!(round(&mut rounds, &[500, 100]), 1);
        rounds.was_taken(500);
        assert_eq!(round(&mut rounds, &[500, 100]), 2);
    }

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
    fn all_messages_of_a_refused_batch_are_sent_again_and_one_that_was_alone_is_refused() {
        let (mut slots, tickets) = under_way(4);
        for (ticket, partition) in tickets.iter().zip([0, 1, 0, 2]) {
            assert_eq!(slots.conclude(Instant::now()), RoundOutcome::default(), "not before all are reported");
            slots.note(*ticket, if partition == 2 { MessageOutcome::Delivered } else { TOO_LARGE }, partition);
        }
        let refused = vec![(MessageRefusal::TooLarge, 100)];
        assert_eq!(
            slots.conclude(Instant::now()),
            RoundOutcome { is_too_large: true, refused, ..RoundOutcome::default() }
        );
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
    fn a_message_that_a_broker_names_in_a_batch_is_refused_and_the_others_are_sent_again() {
        let (mut slots, tickets) = under_way(3);
        for (ticket, outcome) in tickets.iter().zip([
            MessageOutcome::Bystander,
            MessageOutcome::Refused(MessageRefusal::Policy),
            MessageOutcome::Bystander,
        ]) {
            slots.note(*ticket, outcome, 0);
        }
        let refused = vec![(MessageRefusal::Policy, 100)];
        assert_eq!(slots.conclude(Instant::now()), RoundOutcome { refused, ..RoundOutcome::default() });
        assert_eq!(slots.slots, [MessageSlot::Free, MessageSlot::Refused(MessageRefusal::Policy), MessageSlot::Free]);
    }
}
