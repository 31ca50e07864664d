//! Sinks: where datagrams go. A sink is owned by one consumer and called with batches, never with single datagrams, so
//! it can pay once per batch for what is dear: a system call, a lock, a look at the clock.
//!
//! The contract of the books: the consumer adds a batch to `taken` and `pending` before [`Sink::accept`]; the sink
//! moves each datagram exactly once from `pending` to `delivered` or `failed`, at the latest in [`Sink::flush`]. The
//! consumer flushes whenever its channel is empty, so nothing waits in a buffer while there is nothing else to do. A
//! sink whose destination acknowledges may hold them until the answer comes, and is then due until all have come.

pub mod file;
#[cfg(feature = "kafka")]
pub mod kafka;
mod null;
pub mod outbox;
pub mod relay;
pub mod stdout;
#[cfg(test)]
mod testing;
pub mod unix;

use std::fmt;
use std::time::Instant;

use crate::handover::pool::LaneBatch;
use crate::ledger::Tally;

pub use null::NullSink;

/// One destination, as its consumer uses it.
pub trait Sink: Send + fmt::Debug {
    /// Takes every datagram of the batch. It may keep copies; it does not keep the batch.
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]);

    /// The channel is empty: decide the fate of all that is pending, or be due until it is decided.
    fn flush(&mut self, _tallies: &mut [Tally]) {}

    /// When the sink wants [`Sink::when_due`] to be called although nothing arrives.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The moment that [`Sink::due`] named has come.
    fn when_due(&mut self, _tallies: &mut [Tally]) {}

    /// Why this sink can never take anything again, if so: the daemon then ends.
    fn closed(&self) -> Option<String> {
        None
    }

    /// The last call: everything is flushed; make it last. One that takes long publishes what it knows by then, because
    /// nobody waits for it for ever.
    fn finish(&mut self, _tallies: &mut [Tally], _publish: &mut dyn FnMut(&[Tally])) {}
}

/// Moves `datagrams` of a listener from pending to delivered.
pub(crate) fn deliver(tally: &mut Tally, datagrams: u64) {
    tally.pending -= datagrams;
    tally.delivered += datagrams;
}

/// Moves `datagrams` of a listener from pending to failed.
fn fail(tally: &mut Tally, datagrams: u64) {
    tally.pending -= datagrams;
    tally.dropped.sink_error += datagrams;
}
