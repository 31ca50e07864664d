//! The ledger: what happened to every datagram, counted by the thread that saw it and summed by whoever asks.

pub mod snapshot;

pub use snapshot::Snapshot;
