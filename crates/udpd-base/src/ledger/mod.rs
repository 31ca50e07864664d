//! The ledger: what happened to every datagram, counted by the thread that saw it happen and summed by the reader.
//!
//! A lane's receiver counts what it read, dropped and offered; a consumer counts what it took, handed on, dropped and
//! still holds; the kernel counts what did not fit the socket. No thread computes its term from another's, so the sums
//! of [`snapshot`] are a check; what waits in a channel, which no thread counts, is what they leave over.
//!
//! Every counter is one line of [`counter_list`]. It is published, read, summed, exported and printed from there, so a
//! new one is that line and the line that counts.
//!
//! Order matters and is part of the contract: a receiver publishes what it offers *before* it hands over, and a reader
//! reads consumers before lanes. So a reader never sees a datagram taken that was not yet offered.

mod consumer;
mod counter;
pub mod counter_list;
mod exit_stats;
mod files;
mod lane;
mod peers;
mod residence;
pub mod senders;
mod sides;
pub mod snapshot;
mod trains;

pub use consumer::{ConsumerLedger, DestinationLedger, Tallies};
pub use counter::{Cells, CounterSet, CounterTable, LedgerCounter, Published, cells};
pub use counter_list::{DestinationTally, LaneTally, SINKS_PER_LISTENER_MAX, SinkTally};
pub use files::FileLedger;
pub use lane::{LaneLedger, LaneReading, QueueState, XdpSnapshot};
pub use peers::{ConnectionLedger, ConnectionSnapshot, ConnectionState, PeerLedger, PeersSnapshot, RefusalSnapshot};
pub use residence::{ResidenceBucket, ResidenceSnapshot, ResidenceTally};
pub use senders::{Echoes, Keyed, SENDERS_SHOWN, SenderSnapshot};
pub use sides::SideCounts;
pub use snapshot::Snapshot;
pub use trains::Trains;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
