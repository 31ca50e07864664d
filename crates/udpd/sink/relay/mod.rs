//! Datagrams sent on to other addresses.
//!
//! Each destination has a socket and a queue of its own: what the kernel does not take at once stays in the queue and
//! is tried again a millisecond later. When the queue is full, a destination that is alone in its relay waits for up to
//! ten milliseconds, for the channel before it keeps what comes meanwhile; one of several does not wait, and what comes
//! is counted as failed. So a destination that is dead, slow or refusing costs only its own datagrams.
//!
//! Datagrams are sent in batches, and runs of one length as one message that the kernel cuts. `delivered` means that
//! the kernel took it: there is no more to be known of UDP, but for the answers of the network, which are counted by
//! destination.

mod choice;
mod destination;
mod spoof;
#[cfg(test)]
mod tests;
mod voice;
mod way;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Sink, deliver, fail};
use crate::capture::headers;
use crate::handover::pool::LaneBatch;
use crate::ledger::{DestinationLedger, Tally};
use destination::Destination;

/// How soon a queue that the kernel did not take is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// How long the end waits for a kernel that takes nothing.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// What a relay needs to know.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// The name of the sink, for messages.
    pub sink: String,
    /// At least one. With several each source address has one of them.
    pub destinations: Vec<SocketAddr>,
    /// Send with the original source address and port.
    pub keep_source: bool,
}

/// An operation that a [`RelayError`] is about: it needs a right.
pub const MAKE_RAW_SOCKET: &str = "make a raw socket";

/// Another: the address is one that can be sent to.
pub const FIND_WAY: &str = "find a way";

/// The memory of one relay, from its start to its end.
pub fn memory_bytes(destinations: usize, keep_source: bool) -> usize {
    destinations * destination::memory_bytes(keep_source)
}

/// Why a relay could not be opened.
#[derive(Debug)]
pub struct RelayError {
    /// Where to.
    pub destination: SocketAddr,
    /// What was tried.
    pub operation: &'static str,
    /// Why it did not work.
    pub error: io::Error,
}

impl fmt::Display for RelayError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot {} for {}: {}", self.operation, self.destination, self.error)
    }
}

impl Error for RelayError {}

/// Sends datagrams on.
#[derive(Debug)]
pub struct RelaySink {
    destinations: Vec<Destination>,
    /// When a queue that was not taken is tried again.
    retry: Option<Instant>,
}

impl RelaySink {
    /// Opens a socket for each destination; nothing is sent yet. The ledgers are those of the destinations, in order.
    pub fn open(settings: &RelaySettings) -> Result<(Self, Vec<Arc<DestinationLedger>>), RelayError> {
        let is_alone = settings.destinations.len() == 1;
        let open = |address: &SocketAddr| Destination::open(&settings.sink, *address, settings.keep_source, is_alone);
        let destinations = settings.destinations.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let ledgers = destinations.iter().map(Destination::ledger).collect();
        Ok((Self { destinations, retry: None }, ledgers))
    }

    fn flush_all(&mut self, tallies: &mut [Tally]) {
        let mut waits = false;
        for destination in &mut self.destinations {
            waits |= !destination.flush(tallies);
        }
        self.retry = waits.then(|| Instant::now() + RETRY);
    }
}

impl Sink for RelaySink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        let count = self.destinations.len();
        for datagram in batch.datagrams.datagrams() {
            let chosen = if count == 1 { 0 } else { choice::of_source(headers::source(&datagram).ip(), count) };
            self.destinations[chosen].push(batch.listener, &datagram, tallies);
        }
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        self.flush_all(tallies);
    }

    fn due(&self) -> Option<Instant> {
        self.retry
    }

    fn when_due(&mut self, tallies: &mut [Tally]) {
        self.flush_all(tallies);
    }

    fn finish(&mut self, tallies: &mut [Tally], _publish: &mut dyn FnMut(&[Tally])) {
        let limit = Instant::now() + FINISH_LIMIT;
        self.flush_all(tallies);
        while self.retry.is_some() && Instant::now() < limit {
            std::thread::sleep(RETRY);
            self.flush_all(tallies);
        }
        self.destinations.iter_mut().for_each(|destination| destination.give_up(tallies));
    }
}
