//! Kafka with a spill. A batch is handed to the library in rounds, and the reports of one are waited for before the
//! next: so it is known of each datagram whether a broker has it, and nothing is under way behind one that is refused.
//!
//! What no broker has acknowledged when the wait is over is left, but the library still has it and goes on trying. The
//! next attempt begins with the same datagrams, because the spill keeps the order. So those are not handed over again,
//! and nothing comes twice while the client lives. The library gives up no message by itself; what it gives back
//! because a broker refuses it for now, or its topic is not there, is handed over again.

use std::thread;
use std::time::{Duration, Instant};

use super::client::Offered;
use super::outcome::MessageRefusal;
use super::sink::KafkaSink;
use super::slots::MessageSlot;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::sink::ConsumerFeeders;
use udpd_spill::spilling::Attempt;

/// How long the reports of a batch are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same of one that was waited for before.
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);

/// How long one look for reports is from the next.
const LOOK: Duration = Duration::from_millis(1);

/// How often the library is heard while nothing is under way.
const IDLE_WAIT: Duration = Duration::from_secs(1);

impl KafkaSink {
    /// Hears what became of messages. True when a broker has given some back, which it will not take at once.
    fn hear_fates(&mut self) -> bool {
        let slots = &mut self.slots;
        let was_renewed =
            self.client.hear_fates(&mut |ticket, outcome, partition| slots.note(ticket, outcome, partition));
        if was_renewed {
            // The client of before has nothing under way any more.
            slots.begin_anew();
        }
        let outcome = slots.conclude(Instant::now());
        if outcome.is_too_large {
            self.client.say_split();
        }
        outcome.refused.into_iter().for_each(|(refusal, size)| self.client.say_refused(refusal, size));
        outcome.is_broken
    }

    /// Hands a round over of those that the library does not have. False where nothing can be handed over now.
    fn hand_over(&mut self, batch: &LaneBatch) -> bool {
        let (mut now, mut any) = (None, false);
        let mut room = self.slots.rounds.begin();
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if self.slots.slots.len() == place {
                self.slots.slots.push_back(MessageSlot::Free);
            }
            if self.slots.slots[place] != MessageSlot::Free {
                continue;
            }
            let size = self.size_at_most(batch.listener, &datagram);
            if !self.slots.rounds.has_room(&mut room, size) {
                break;
            }
            let ticket = self.slots.ticket();
            self.slots.slots[place] = match self.offer(batch.listener, ticket, &datagram, &mut now) {
                Offered::Taken => MessageSlot::UnderWay { ticket, size },
                Offered::TooLarge => MessageSlot::Refused(MessageRefusal::TooLarge),
                Offered::NotNow => break,
            };
            any = true;
        }
        // What comes later does not overtake.
        let missing = batch.datagrams.datagrams().count().saturating_sub(self.slots.slots.len());
        self.slots.slots.extend(std::iter::repeat_n(MessageSlot::Free, missing));
        if self.slots.under_way() > 0 {
            self.slots.rounds.under_way(room);
        }
        any
    }
}

impl Attempt for KafkaSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let was_tried = !self.slots.slots.is_empty();
        let count = batch.datagrams.datagrams().count();
        let deadline = Instant::now() + if was_tried { PATIENCE_AGAIN } else { PATIENCE };
        let mut is_over = false;
        loop {
            let is_given_back = self.hear_fates();
            if is_given_back || self.slots.is_decided(count) {
                break;
            }
            if self.slots.under_way() == 0 && !self.hand_over(batch) {
                break;
            }
            is_over = Instant::now() >= deadline;
            if is_over {
                break;
            }
            self.client.hurry();
            threads::blocking(|| thread::sleep(LOOK));
        }
        self.client.review(Instant::now());
        self.slots.settle(count, &mut tallies[batch.listener], left);
        self.slots.goes_on = is_over && left.len() < count;
        self.slots.idle_due = Some(Instant::now() + IDLE_WAIT);
    }

    fn goes_on(&self) -> bool {
        self.slots.goes_on
    }

    fn in_hand(&self) -> usize {
        self.slots.under_way()
    }

    fn forget_left(&mut self) {
        self.client.take_back();
        self.slots.begin_anew();
        self.slots.slots.clear();
    }

    fn due(&self) -> Option<Instant> {
        Some(self.slots.idle_due.unwrap_or_else(Instant::now))
    }

    fn when_due(&mut self) {
        self.hear_fates();
        self.client.review(Instant::now());
        self.slots.idle_due = Some(Instant::now() + IDLE_WAIT);
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}
