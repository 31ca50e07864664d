//! The memory of a plan as one sum: what is taken at the start and never grows, and what the kernel may take on top.

use std::fmt;

use serde::Serialize;

/// What the process takes besides the plan: its own pages, log and endpoints. Measured: 1.2 MiB. The rest is for the
/// kernel's share, above all page tables, which a control group counts too.
const OWN_BYTES: usize = 4 << 20;

/// What each thread takes, with its counters. Measured: 34 KiB for a lane, and the kernel's stack is added.
const THREAD_BYTES: usize = 64 << 10;

/// The parts, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// What lanes receive into.
    pub batches_bytes: usize,
    /// The blocks for what waits.
    pub waiting_bytes: usize,
    /// The part of them that `absorb` and `queue_bytes` ask for.
    pub asked_bytes: usize,
    /// The administration of blocks and of the places in queues.
    #[serde(skip)]
    pub places_bytes: usize,
    /// The tables of all rate limits.
    pub policy_bytes: usize,
    /// The tables of `allow`, `deny` and their files.
    pub list_bytes: usize,
    /// What feeds remember of their datagrams, for `deduplicate`.
    pub deduplicate_bytes: usize,
    /// The streams of `sequence`, and the notes about them.
    pub upstream_bytes: usize,
    /// What the sinks may take at most.
    pub sink_bytes: usize,
    /// What the thread that compresses files may take at most.
    pub compression_bytes: usize,
    /// The most memory of all receive buffers, which is the kernel's.
    pub receive_buffer_bytes: usize,
    #[serde(skip)]
    pub threads: usize,
}

impl MemoryPlan {
    /// All memory for datagrams.
    pub fn pool_bytes(&self) -> usize {
        self.batches_bytes.saturating_add(self.waiting_bytes)
    }

    pub fn own_bytes(&self) -> usize {
        (OWN_BYTES + self.threads * THREAD_BYTES).saturating_add(self.places_bytes)
    }

    pub fn total_bytes(&self) -> usize {
        let of_sinks = [self.sink_bytes, self.compression_bytes];
        let parts = [self.policy_bytes, self.list_bytes, self.deduplicate_bytes, self.upstream_bytes, self.own_bytes()];
        of_sinks.into_iter().chain(parts).fold(self.pool_bytes(), usize::saturating_add)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (batches, waiting) = (Bytes(self.batches_bytes), Bytes(self.waiting_bytes));
        write!(formatter, "{batches} in batches, {waiting} for what waits")?;
        if self.asked_bytes > 0 {
            write!(formatter, " ({} of it for absorb and queue_bytes)", Bytes(self.asked_bytes))?;
        }
        let others = [
            ("up to ", self.sink_bytes, "in sinks"),
            ("up to ", self.compression_bytes, "for compressing files"),
            ("", self.policy_bytes, "in tables of rate limits and proxies"),
            ("", self.list_bytes, "in lists of networks"),
            ("", self.deduplicate_bytes, "for finding copies"),
            ("up to ", self.upstream_bytes, "for sequence numbers"),
        ];
        others
            .into_iter()
            .filter(|(_, taken, _)| *taken > 0)
            .try_for_each(|(bound, taken, what)| write!(formatter, ", {bound}{} {what}", Bytes(taken)))
    }
}

/// A number of bytes as people read it.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MEBIBYTE: f64 = 1_048_576.0;
        match self.0 {
            count @ 0..=9999 => write!(formatter, "{count} B"),
            count @ 10_000..=1_048_575 => write!(formatter, "{:.1} KiB", count as f64 / 1024.0),
            count => write!(formatter, "{:.1} MiB", count as f64 / MEBIBYTE),
        }
    }
}
