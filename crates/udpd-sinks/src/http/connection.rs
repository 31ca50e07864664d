//! The threads that send requests and wait for answers, so that a consumer never does.

use udpd_base::exit::Failure;
use udpd_base::handover::Caller;

use super::HttpSettings;
use super::request::{FinishedBatch, RequestBatch};
use crate::target::Lookup;

/// The memory of one connection besides its batch.
pub(super) fn memory_bytes(_settings: &HttpSettings) -> usize {
    256 << 10
}

/// The connections of one consumer.
#[derive(Debug)]
pub(super) struct HttpConnections {}

impl HttpConnections {
    /// Starts the threads. None of them has to reach the server for that.
    pub(super) fn start(_: &HttpSettings, _: Lookup<'_>, _: usize, _: Caller) -> Result<Self, Failure> {
        Ok(Self {})
    }

    /// Sends a batch; there are never more than connections on the way.
    pub(super) fn send(&mut self, _ticket: u64, _batch: RequestBatch) {}

    /// A batch that has ended, if any has.
    pub(super) fn take_finished(&mut self) -> Option<FinishedBatch> {
        None
    }

    /// Whether the server takes nothing for now.
    pub(super) fn is_failing(&self) -> bool {
        false
    }

    /// Waits until a batch has ended, at most so long.
    pub(super) fn wait(&mut self, _limit: std::time::Duration) {}

    /// What is on the way now is not sent again: each batch ends with the answer to its request, or undecided.
    pub(super) fn stop(&mut self) {}
}
