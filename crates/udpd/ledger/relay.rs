//! What a relay has sent to each of its destinations, and what came back. The consumer that owns the relay is the only
//! writer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::snapshot::DestinationSnapshot;

/// What was counted for one destination.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DestinationTally {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it did not.
    pub failed: u64,
    /// Of those, the ones longer than the route takes whole.
    pub too_long: u64,
    /// Answers of the network: nobody listens, no route to the host.
    pub icmp_errors: u64,
}

/// The published side of one destination.
#[derive(Debug)]
pub struct DestinationLedger {
    address: SocketAddr,
    counts: [AtomicU64; 4],
}

impl DestinationLedger {
    /// Nothing is counted yet.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, counts: Default::default() }
    }

    /// Publishes what was counted.
    pub fn publish(&self, tally: &DestinationTally) {
        let DestinationTally { sent, failed, too_long, icmp_errors } = *tally;
        for (count, value) in self.counts.iter().zip([sent, failed, too_long, icmp_errors]) {
            count.store(value, Ordering::Relaxed);
        }
    }

    /// The sums by destination, in the order of the first mention: each consumer of a sink has sockets of its own.
    pub fn sum<'l>(ledgers: impl Iterator<Item = &'l DestinationLedger>) -> Vec<DestinationSnapshot> {
        let mut sums: Vec<DestinationSnapshot> = Vec::new();
        for ledger in ledgers {
            let address = ledger.address.to_string();
            let [sent, failed, too_long, icmp_errors] =
                ledger.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            match sums.iter_mut().find(|sum| sum.address == address) {
                Some(sum) => {
                    sum.sent += sent;
                    sum.failed += failed;
                    sum.too_long += too_long;
                    sum.icmp_errors += icmp_errors;
                }
                None => sums.push(DestinationSnapshot { address, sent, failed, too_long, icmp_errors }),
            }
        }
        sums
    }
}
