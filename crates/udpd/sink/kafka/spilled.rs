//! Kafka with a spill. A batch is handed to the library, and its reports are waited for before the next one: so it is
//! known of each datagram whether a broker has it.
//!
//! What no broker has acknowledged when the wait is over is left, but the library still has it and goes on trying. The
//! next attempt begins with the same datagrams, because the spill keeps the order. So those are not handed over again,
//! and nothing comes twice while the client lives. The library gives up no message by itself; what it gives back
//! because a broker refuses it for now is handed over again.

use std::thread;
use std::time::{Duration, Instant};

use super::client::Offered;
use super::fate::Fate;
use super::sink::KafkaSink;
use super::slots::{Slot, Slots};
use crate::handover::batch::LaneBatch;
use crate::ledger::Tallies;
use crate::os::crew;
use crate::sink::Feeders;
use crate::sink::spilling::Attempt;

/// How long the reports of a batch are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same of one that was waited for before.
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);

/// How long one look for reports is from the next.
const LOOK: Duration = Duration::from_millis(1);

/// How often the library is heard while nothing is under way.
const IDLE_WAIT: Duration = Duration::from_secs(1);

impl KafkaSink {
    /// Hears what became of messages.
    fn hear_fates(&mut self) {
        let was_renewed = self.client.hear_fates();
        let slots = &mut self.slots;
        self.client.take_fates(|ticket, fate| slots.note(ticket, fate));
        if was_renewed {
            // The client of before has nothing under way any more.
            slots.slots.iter_mut().filter(|slot| matches!(slot, Slot::UnderWay(_))).for_each(|slot| *slot = Slot::Free);
        }
    }

    /// Hands over those of the first datagrams that the library does not have, for as long as it takes them.
    fn hand_over(&mut self, batch: &LaneBatch) {
        let mut now = None;
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if self.slots.slots.len() == place {
                self.slots.slots.push_back(Slot::Free);
            }
            if self.slots.slots[place] != Slot::Free {
                continue;
            }
            let ticket = self.slots.ticket();
            self.slots.slots[place] = match self.offer(batch.listener, ticket, &datagram, &mut now) {
                Offered::Taken => Slot::UnderWay(ticket),
                Offered::Refused => Slot::Decided(Fate::Failed),
                Offered::Full => {
                    // What comes later does not overtake.
                    let count = batch.datagrams.datagrams().count();
                    let missing = count.saturating_sub(self.slots.slots.len());
                    self.slots.slots.extend(std::iter::repeat_n(Slot::Free, missing));
                    return;
                }
            };
        }
    }
}

impl Attempt for KafkaSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        self.hear_fates();
        let was_tried = !self.slots.slots.is_empty();
        self.hand_over(batch);
        let count = batch.datagrams.datagrams().count();
        let deadline = Instant::now() + if was_tried { PATIENCE_AGAIN } else { PATIENCE };
        let is_open = |slots: &Slots| slots.slots.iter().take(count).any(|slot| matches!(slot, Slot::UnderWay(_)));
        self.hear_fates();
        while is_open(&self.slots) && Instant::now() < deadline {
            self.client.hurry();
            crew::at_rest(|| thread::sleep(LOOK));
            self.hear_fates();
        }
        self.client.review(Instant::now());
        self.slots.settle(count, &mut tallies[batch.listener], left);
        self.slots.idle_due = Some(Instant::now() + IDLE_WAIT);
    }

    fn in_hand(&self) -> usize {
        self.slots.under_way()
    }

    fn forget_left(&mut self) {
        self.slots.slots.clear();
        self.client.take_back();
    }

    fn due(&self) -> Option<Instant> {
        Some(self.slots.idle_due.unwrap_or_else(Instant::now))
    }

    fn when_due(&mut self) {
        self.hear_fates();
        self.client.review(Instant::now());
        self.slots.idle_due = Some(Instant::now() + IDLE_WAIT);
    }

    fn go_on_for(&mut self, _: &Feeders) {}
}
