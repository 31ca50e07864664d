//! The relief of a consumer: a sink that stays as it is when the pipeline is made anew keeps its consumer, its files
//! and its connections. What changes is who feeds it, and in whose books it counts.
//!
//! The consumer goes on until every lane of before has ended and all of theirs is handed on. Only then does it look
//! whether somebody has left it a new channel, so the order stays. What its sink still holds, because nobody has
//! acknowledged it yet, goes over into the new books in one step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::stay::Stays;
use udpd_base::handover::channel::ConsumerInbox;
use udpd_base::handover::pool::Homes;
use udpd_base::ledger::{ConsumerLedger, Tallies};
use udpd_base::sink::ConsumerFeeders;

/// Where the next shift is left for a consumer.
#[derive(Debug, Default)]
pub struct Relief {
    shift: Mutex<Option<Shift>>,
    /// A shift was left that the consumer has not begun.
    is_due: AtomicBool,
}

/// What a consumer goes on with.
#[derive(Debug)]
pub(super) struct Shift {
    /// An heir of its channel.
    pub(super) channel: ConsumerInbox,
    pub(super) homes: Homes,
    pub(super) ledger: Arc<ConsumerLedger>,
    pub(super) tallies: Tallies,
    pub(super) stays: Stays,
    pub(super) feeders: ConsumerFeeders,
    /// Where the listeners of before are now, by their index; `None` where one is gone.
    pub(super) listeners: Arc<[Option<usize>]>,
    /// Held while pending datagrams are in neither books, and by whoever reads both.
    pub(super) transfer: Arc<Mutex<()>>,
}

impl Relief {
    /// To be called before the last lane of the shift before has ended.
    pub(super) fn leave(&self, shift: Shift) {
        self.is_due.store(true, Ordering::Release);
        *self.shift.lock().unwrap_or_else(PoisonError::into_inner) = Some(shift);
    }

    pub(super) fn take(&self) -> Option<Shift> {
        self.shift.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The consumer counts in the books of the shift that was left.
    pub(super) fn note_begun(&self) {
        self.is_due.store(false, Ordering::Release);
    }

    /// Whether the consumer has yet to begin the shift that was left for it.
    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }
}

impl Shift {
    /// Whether everything pending has the place in the new books that the sink believes it has.
    pub(super) fn fits(&self, before: &Tallies) -> bool {
        before.held().all(|(listener, ..)| self.listeners.get(listener) == Some(&Some(listener)))
    }

    /// Moves what the sink holds over.
    pub(super) fn carry_over(&mut self, before: &mut Tallies, ledger: &ConsumerLedger) {
        let _transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        let held: Vec<(usize, u64, u64)> = before.held().collect();
        for (listener, pending, spilled) in held {
            before[listener].pending -= pending;
            before[listener].spilled -= spilled;
            self.tallies[listener].pending += pending;
            self.tallies[listener].spilled += spilled;
        }
        ledger.publish(before);
        self.ledger.publish(&mut self.tallies);
    }
}
