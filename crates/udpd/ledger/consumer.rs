//! What a consumer publishes: its counts for each listener and, where its sink is a relay, those of each destination.
//! It is the only writer.

use std::net::SocketAddr;

use super::counter::Counters;
use super::published::Published;
use super::snapshot::DestinationSnapshot;
use super::tables::{DestinationTally, Tally};

/// The published side of one consumer: its counts for each listener of the configuration.
#[derive(Debug)]
pub struct ConsumerLedger {
    counts: Box<[Published<Tally>]>,
}

impl ConsumerLedger {
    /// An empty ledger in a configuration with `listeners` listeners.
    pub fn new(listeners: usize) -> Self {
        Self { counts: (0..listeners).map(|_| Published::default()).collect() }
    }

    /// Publishes the counts of the consumer that owns this ledger.
    pub fn publish(&self, tallies: &[Tally]) {
        self.counts.iter().zip(tallies).for_each(|(published, tally)| published.publish(tally));
    }

    /// The counts for one listener as last published.
    pub fn read(&self, listener: usize) -> Tally {
        self.counts[listener].read()
    }
}

/// The published side of one destination.
#[derive(Debug)]
pub struct DestinationLedger {
    address: SocketAddr,
    counts: Published<DestinationTally>,
}

impl DestinationLedger {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, counts: Published::default() }
    }

    pub fn publish(&self, tally: &DestinationTally) {
        self.counts.publish(tally);
    }

    /// The sums by destination, in the order of the first mention: each consumer of a sink has sockets of its own.
    pub fn sum<'l>(ledgers: impl Iterator<Item = &'l DestinationLedger>) -> Vec<DestinationSnapshot> {
        let mut sums: Vec<DestinationSnapshot> = Vec::new();
        for ledger in ledgers {
            let (address, counts) = (ledger.address.to_string(), ledger.counts.read());
            match sums.iter_mut().find(|sum| sum.address == address) {
                Some(sum) => sum.counts.add(&counts),
                None => sums.push(DestinationSnapshot { address, counts }),
            }
        }
        sums
    }
}
