//! How a consumer moves to the next pipeline: a sink that a reload retains keeps its consumer, its files and its
//! connections. What changes is which lanes feed it, and in which ledger it counts.
//!
//! The consumer goes on until every lane of its pipeline has ended and it has handed on all that they gave it. Only
//! then does it look for a new channel, so the order stays. What its sink still holds, because its peer has not
//! acknowledged it yet, moves into the new ledger in one step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::latency_sampling::ResidenceTracker;
use udpd_base::handover::channel::ConsumerInbox;
use udpd_base::handover::pool::Homes;
use udpd_base::ledger::{ConsumerLedger, Tallies};
use udpd_base::os::threads::lock;
use udpd_base::sink::ConsumerFeeders;

/// Where a consumer finds what it goes on with.
#[derive(Debug, Default)]
pub(super) struct ConsumerHandoff {
    state: Mutex<Option<HandoffState>>,
    /// A state was offered and the consumer does not count in its ledger yet.
    is_pending: AtomicBool,
}

/// What a consumer goes on with.
#[derive(Debug)]
pub(super) struct HandoffState {
    /// The successor of its channel.
    pub(super) channel: ConsumerInbox,
    pub(super) homes: Homes,
    pub(super) ledger: Arc<ConsumerLedger>,
    pub(super) tallies: Tallies,
    pub(super) residence: ResidenceTracker,
    pub(super) feeders: ConsumerFeeders,
    /// Where the listeners of the earlier pipeline are now, by their index; `None` where one is gone.
    pub(super) listeners: Arc<[Option<usize>]>,
    /// Held while pending datagrams are in neither ledger, and by a reader of both.
    pub(super) transfer: Arc<Mutex<()>>,
}

impl ConsumerHandoff {
    /// To be called before the last lane has ended that feeds the consumer now.
    pub(super) fn offer(&self, state: HandoffState) {
        self.is_pending.store(true, Ordering::Release);
        *lock(&self.state) = Some(state);
    }

    pub(super) fn take(&self) -> Option<HandoffState> {
        lock(&self.state).take()
    }

    /// The consumer counts in the ledger that was offered.
    pub(super) fn note_done(&self) {
        self.is_pending.store(false, Ordering::Release);
    }

    pub(super) fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }
}

impl HandoffState {
    /// Whether every listener of which the sink holds datagrams has the index in the new ledger that the sink knows.
    pub(super) fn fits(&self, before: &Tallies) -> bool {
        before.held().all(|(listener, ..)| self.listeners.get(listener) == Some(&Some(listener)))
    }

    pub(super) fn carry_over(&mut self, before: &mut Tallies, ledger: &ConsumerLedger) {
        let _transfer = lock(&self.transfer);
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
