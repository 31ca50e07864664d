//! The relay itself: hands each datagram to its destination, and has the queues that the kernel did not take tried
//! again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::choice;
use super::destination::Destination;
use super::error::RelayError;
use crate::capture::headers;
use crate::handover::batch::LaneBatch;
use crate::ledger::{DestinationLedger, Tallies};
use crate::sink::Sink;

/// How soon a queue that the kernel did not take is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// How long the end waits for a kernel that takes nothing.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// Sends datagrams on.
#[derive(Debug)]
pub(super) struct RelaySink {
    destinations: Vec<Destination>,
    /// When a queue that was not taken is tried again.
    retry: Option<Instant>,
}

impl RelaySink {
    /// Opens a socket for each destination; nothing is sent yet. The ledgers are those of the destinations, in order.
    pub(super) fn open(
        sink: &str,
        destinations: &[SocketAddr],
        keep_source: bool,
    ) -> Result<(Self, Vec<Arc<DestinationLedger>>), RelayError> {
        let is_alone = destinations.len() == 1;
        let open = |address: &SocketAddr| Destination::open(sink, *address, keep_source, is_alone);
        let destinations = destinations.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let ledgers = destinations.iter().map(Destination::ledger).collect();
        Ok((Self { destinations, retry: None }, ledgers))
    }

    fn flush_all(&mut self, tallies: &mut Tallies) {
        let mut waits = false;
        for destination in &mut self.destinations {
            waits |= !destination.flush(tallies);
        }
        self.retry = waits.then(|| Instant::now() + RETRY);
    }
}

impl Sink for RelaySink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let count = self.destinations.len();
        for datagram in batch.datagrams.datagrams() {
            let chosen = if count == 1 { 0 } else { choice::of_source(headers::source(&datagram).ip(), count) };
            self.destinations[chosen].push(batch.listener, &datagram, tallies);
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.flush_all(tallies);
    }

    fn due(&self) -> Option<Instant> {
        self.retry
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush_all(tallies);
    }

    fn finish(&mut self, tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {
        let limit = Instant::now() + FINISH_LIMIT;
        self.flush_all(tallies);
        while self.retry.is_some() && Instant::now() < limit {
            std::thread::sleep(RETRY);
            self.flush_all(tallies);
        }
        self.destinations.iter_mut().for_each(|destination| destination.give_up(tallies));
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
