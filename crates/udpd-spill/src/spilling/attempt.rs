//! What a sink must do to have a spill.

use std::fmt;
use std::time::{Duration, Instant};

use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::sink::ConsumerFeeders;

/// A sink that says what it could not hand on.
pub trait Attempt: Send + fmt::Debug {
    /// The first call, as that of a sink.
    fn begin(&mut self) {}

    /// Hands on what it can of a batch before it returns. What its destination does not take now stays pending, and the
    /// places of those datagrams in the batch go to `left`, in their order.
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>);

    /// How long after a datagram was sent nothing may be heard of it until its destination is taken to work. Zero where
    /// an attempt tells at once.
    fn answer_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the destination has refused something since this was last asked.
    fn has_refused(&mut self) -> bool {
        false
    }

    /// How many of those that were left may still get there, and are not handed on again by the next attempt.
    fn in_hand(&self) -> usize {
        0
    }

    /// Whether the last attempt left something only because its time was over.
    fn goes_on(&self) -> bool {
        false
    }

    /// When [`Attempt::when_due`] wants to be called although there is nothing to attempt.
    fn due(&self) -> Option<Instant> {
        None
    }

    fn when_due(&mut self) {}

    /// What was left will not be the next to be attempted: it is given up.
    fn forget_left(&mut self) {}

    /// Goes on for other lanes.
    fn go_on_for(&mut self, feeders: &ConsumerFeeders);
}
