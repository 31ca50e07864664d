//! When datagrams arrived, for the few batches of which that is measured.

use std::time::Instant;

/// What a sampled batch carries to every consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyStamp {
    /// When the receive call returned that brought the first of its datagrams.
    pub arrived: Instant,
    /// For how many datagrams this stands: those of the load that carries it, and none that was dropped before.
    pub datagrams: u64,
}

impl LatencyStamp {
    /// One block has datagrams of both: all of them count as old as the oldest, so that nothing seems faster than it
    /// was.
    pub(super) fn join(self, other: Self) -> Self {
        Self { arrived: self.arrived.min(other.arrived), datagrams: self.datagrams + other.datagrams }
    }
}
