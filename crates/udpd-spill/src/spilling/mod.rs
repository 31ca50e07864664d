//! A sink with a spill: datagrams that its destination does not take now wait on a disk, and are sent before newer
//! ones.
//!
//! The sink below tells which datagrams of a batch it could not hand on ([`SpillableSink`]). From the first of them on
//! everything goes to the spill, and from there to the sink below, frame by frame, until the spill is empty; then
//! batches go straight through again. So the order stays, and while all is well the spill costs only a check whether it
//! is empty.
//!
//! The consumer's own thread does all of it. It reads and writes in turn, so neither can wait for the other; each turn
//! sends at least twice what came since the last one, so the spill shrinks while more comes.
//!
//! In the ledger a datagram is pending until it is written to the spill, then `spilled` until its destination has it.
//! What is in the spill when the sink begins is the opening balance, `spilled_before`.

#[cfg(test)]
#[path = "simulated_destination_tests.rs"]
mod destination;
mod log_lines;
mod settings;
#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation;
mod sink;
mod spill_first;
#[cfg(test)]
mod tests;
mod writer;

pub use settings::Spill;
pub use sink::Spilling;
pub use spill_first::{BatchAnswer, BatchDestination, BatchTriggers, SpillFirst, add_count};

use std::fmt;
use std::time::{Duration, Instant};

use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::sink::ConsumerFeeders;

/// What a sink must do to have a spill: it tells which datagrams it could not hand on.
pub trait SpillableSink: Send + fmt::Debug {
    /// The first call, as for a sink.
    fn begin(&mut self) {}

    /// Hands on what it can of a batch before it returns. What its destination does not take now stays pending, and the
    /// places of those datagrams in the batch go to `left`, in their order.
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>);

    /// For how long after a datagram was sent no refusal may come until its destination counts as working. Zero if an
    /// attempt tells at once.
    fn answer_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the destination has refused something since the last call.
    fn has_refused(&mut self) -> bool {
        false
    }

    /// How many of those that were left may still arrive, and are not handed on again by the next attempt.
    fn in_hand(&self) -> usize {
        0
    }

    /// Whether the last attempt left something only because its time was over.
    fn goes_on(&self) -> bool {
        false
    }

    /// When [`SpillableSink::when_due`] is to be called although there is nothing to attempt.
    fn due(&self) -> Option<Instant> {
        None
    }

    fn when_due(&mut self) {}

    /// The last call: what was handed on is to arrive. It is decided already; what else is counted of it goes to
    /// `tallies`.
    fn finish(&mut self, _tallies: &mut Tallies) {}

    /// What was left will not be attempted next: it is given up.
    fn forget_left(&mut self) {}

    fn go_on_for(&mut self, feeders: &ConsumerFeeders);
}
