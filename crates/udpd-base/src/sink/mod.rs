//! Sinks: where datagrams go. A sink is owned by one consumer and called with batches, never with single datagrams, so
//! it can pay once per batch for what is dear: a system call, a lock, a look at the clock.
//!
//! The contract of the ledger: the consumer adds a batch to `taken` and `pending` before [`Sink::accept`]; the sink
//! moves each datagram exactly once from `pending` to `delivered` or `failed`, at the latest in [`Sink::flush`]. The
//! consumer flushes whenever its channel is empty, so nothing waits in a buffer while there is nothing else to do. A
//! sink whose destination acknowledges may hold them until the answer comes, and is then due until all have come.
//!
//! A type of sink is one folder (or file) of `udpd-sinks` and one line of the table in its `types`. It implements the
//! traits of [`settings`]: what an operator may write, what that asks of the machine, and how the sink is opened.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use self::settings::{Needs, OpenedSink, Opening, SinkTarget};
use crate::exit::Failure;
use crate::format::Scene;
use crate::handover::batch::LaneBatch;
use crate::ledger::{SinkTally, Tallies};
use crate::os::role::ThreadRole;

pub mod outbox;
pub mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use settings::{AnySettings, Differs, SinkSettings};

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

    /// Goes on for other lanes, as [`SinkSettings::goes_on`] allows. What is pending was
    /// decided before, or its listener has the same index as before.
    fn go_on_for(&mut self, _feeders: &ConsumerFeeders) {}

    /// The last call: everything is flushed; make it last. One that takes long publishes what it knows by then, because
    /// the wait for it is bounded.
    fn finish(&mut self, _tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {}
}

/// The lanes that feed a consumer.
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

/// The situation in which a sink is opened: it may never be used, and it may have to wait for another.
#[derive(Debug, Clone)]
pub struct OpenContext {
    /// Set when its pipeline receives. What was made for one that never does is removed again.
    pub is_in_force: Arc<AtomicBool>,
    /// A sink of before writes the same, and has ended when [`Sink::begin`] is called. Until then
    /// this one finds out what would keep it from writing there, and changes nothing.
    pub has_predecessor: bool,
}

impl Default for OpenContext {
    /// For a sink that is used whatever comes, and that replaces no other.
    fn default() -> Self {
        Self { is_in_force: Arc::new(AtomicBool::new(true)), has_predecessor: false }
    }
}

// Sinks that a program makes for itself and gives to a pipeline: the bench, and tests. No configuration can name one.

/// Makes the sink of each consumer.
pub struct Supplied<F>(pub F);

impl<F> fmt::Debug for Supplied<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Supplied")
    }
}

impl<F, S> SinkSettings for Supplied<F>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Sink + 'static,
{
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Nowhere
    }

    fn never_waits(&self) -> bool {
        true
    }

    fn needs(&self) -> Needs {
        Needs::only(ThreadRole::Unconfined)
    }

    fn open(&self, _: Opening<'_>) -> Result<OpenedSink, Failure> {
        Ok(OpenedSink::new(self.0()))
    }
}
