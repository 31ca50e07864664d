//! What every sink does: it takes batches, and moves each datagram once in the books.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::format::encoder::Scene;
use crate::handover::batch::LaneBatch;
use crate::ledger::{SinkTally, Tallies};

/// One destination, as its consumer uses it.
pub trait Sink: Send + fmt::Debug {
    /// The first call, and the only one of its kind: no other sink writes any more what this one writes. It may wait.
    fn begin(&mut self) {}

    /// Takes every datagram of the batch. It may keep copies; it does not keep the batch.
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies);

    /// The channel is empty: decide the fate of all that is pending, or be due until it is decided.
    fn flush(&mut self, _tallies: &mut Tallies) {}

    /// When the sink wants [`Sink::when_due`] to be called although nothing arrives.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The moment that [`Sink::due`] named has come.
    fn when_due(&mut self, _tallies: &mut Tallies) {}

    /// Why this sink can never take anything again, if so: the daemon then ends.
    fn closed(&self) -> Option<String> {
        None
    }

    /// Goes on for other lanes, as [`SinkSettings::goes_on`](super::SinkSettings::goes_on) allows. What is pending was
    /// decided before, or its listener has the same index as before.
    fn go_on_for(&mut self, _feeders: &ConsumerFeeders) {}

    /// The last call: everything is flushed; make it last. One that takes long publishes what it knows by then, because
    /// the wait for it is bounded.
    fn finish(&mut self, _tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {}
}

/// Who feeds a consumer.
#[derive(Debug, Clone)]
pub struct ConsumerFeeders {
    pub sink: String,
    pub consumer: usize,
    /// Of all lanes.
    pub scenes: Arc<[Scene]>,
    /// Which of them feed the consumer.
    pub feeds: Vec<bool>,
}

/// Moves `datagrams` of a listener from pending to delivered.
pub fn deliver(tally: &mut SinkTally, datagrams: u64) {
    tally.pending -= datagrams;
    tally.delivered += datagrams;
}

/// Moves `datagrams` of a listener from pending to failed.
pub fn fail(tally: &mut SinkTally, datagrams: u64) {
    tally.pending -= datagrams;
    tally.dropped.sink_error += datagrams;
}
