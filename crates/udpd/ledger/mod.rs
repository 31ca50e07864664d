//! The ledger: what happened to every datagram, counted by the thread that saw it happen and summed by whoever asks.
//!
//! A lane's receiver counts what it read, dropped and offered; a consumer counts what it took, handed on, failed to
//! hand on and still holds; the kernel counts what did not fit the socket. No thread computes its term from another's,
//! so the sums of [`snapshot`] are a check; what waits in a channel, which no thread counts, is what they leave over.
//!
//! Order matters and is part of the contract: a receiver publishes what it offers *before* it hands over, and a reader
//! reads consumers before lanes. So a reader never sees a datagram taken that was not yet offered.

mod files;
mod group;
mod relay;
mod save;
pub mod snapshot;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use files::FileLedger;
pub use group::Group;
use mmsg::{MemoryInfo, Socket};
pub use relay::{DestinationLedger, DestinationTally};
pub use snapshot::Snapshot;

/// How many sinks one listener can feed; the width of [`LaneTally::offered`].
pub const SINKS_PER_LISTENER_MAX: usize = 16;

/// The counters of a lane before `offered`.
const LANE_FIXED: usize = 10;

/// What a receiver counts, in its own memory; published once per batch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LaneTally {
    /// Datagrams read.
    pub received: u64,
    /// Payload bytes read.
    pub bytes: u64,
    /// Receive calls that returned datagrams.
    pub calls: u64,
    /// Datagrams longer than the slots, kept or dropped.
    pub truncated: u64,
    /// Of those, the dropped ones.
    pub dropped_truncated: u64,
    /// Datagrams of sources that the listener refuses.
    pub dropped_denied: u64,
    /// Datagrams beyond what their source may send.
    pub dropped_rate_limited: u64,
    /// Datagrams read while every batch was under way.
    pub dropped_no_batch: u64,
    /// GRO trains that could not be split.
    pub dropped_unsplit: u64,
    /// Receive calls that failed.
    pub errors: u64,
    /// Datagrams handed to each sink of the listener, by its place in the listener's list.
    pub offered: [u64; SINKS_PER_LISTENER_MAX],
}

/// What a consumer counts for one listener, in its own memory; published once per batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Datagrams in the batches it took from its channel.
    pub taken: u64,
    /// Datagrams handed on.
    pub delivered: u64,
    /// Datagrams that could not be handed on.
    pub failed: u64,
    /// Datagrams taken and not yet decided.
    pub pending: u64,
}

/// The published side of one lane.
#[derive(Debug)]
pub struct LaneLedger {
    counts: Group<{ LANE_FIXED + SINKS_PER_LISTENER_MAX }>,
    /// Datagrams dropped because a channel was full, by sink of the configuration. Another lane that makes room in a
    /// shared channel counts here too, hence not part of the group.
    queue_full: Box<[AtomicU64]>,
    /// Datagrams that waited for a consumer that never took them, by sink of the configuration.
    given_up: Box<[AtomicU64]>,
    /// Datagrams that the end found in the socket and took out only to count them.
    unread: AtomicU64,
    /// Some datagrams of this lane are gone and nobody can say how many.
    is_uncountable: AtomicBool,
    kernel: Mutex<KernelSide>,
}

impl LaneLedger {
    /// An empty ledger for a lane that reads `socket` in a configuration with `sinks` sinks.
    pub fn new(socket: Arc<Socket>, sinks: usize) -> Self {
        // The pipeline says what the kernel does not tell from the beginning.
        let is_silent = socket.memory_info().is_err();
        Self {
            counts: Group::default(),
            queue_full: (0..sinks).map(|_| AtomicU64::new(0)).collect(),
            given_up: (0..sinks).map(|_| AtomicU64::new(0)).collect(),
            unread: AtomicU64::new(0),
            is_uncountable: AtomicBool::new(false),
            kernel: Mutex::new(KernelSide { socket, drops: KernelDrops::default(), is_silent }),
        }
    }

    /// Publishes the counts of the receiver that owns this lane.
    pub fn publish(&self, tally: &LaneTally) {
        let mut values = [0; LANE_FIXED + SINKS_PER_LISTENER_MAX];
        values[..LANE_FIXED].copy_from_slice(&[
            tally.received,
            tally.bytes,
            tally.calls,
            tally.truncated,
            tally.dropped_truncated,
            tally.dropped_denied,
            tally.dropped_rate_limited,
            tally.dropped_no_batch,
            tally.dropped_unsplit,
            tally.errors,
        ]);
        values[LANE_FIXED..].copy_from_slice(&tally.offered);
        self.counts.publish(&values);
    }

    /// The counts as last published.
    pub fn read(&self) -> LaneTally {
        let values = self.counts.read();
        let [received, bytes, calls, truncated, dropped_truncated, dropped_denied, dropped_rate_limited, ..] = values;
        let [.., dropped_no_batch, dropped_unsplit, errors] = *values.first_chunk::<LANE_FIXED>().expect("a prefix");
        let mut offered = [0; SINKS_PER_LISTENER_MAX];
        offered.copy_from_slice(&values[LANE_FIXED..]);
        LaneTally {
            received,
            bytes,
            calls,
            truncated,
            dropped_truncated,
            dropped_denied,
            dropped_rate_limited,
            dropped_no_batch,
            dropped_unsplit,
            errors,
            offered,
        }
    }

    /// Counts datagrams of this lane that a full channel of `sink` cost.
    pub fn count_queue_full(&self, sink: usize, datagrams: u64) {
        self.queue_full[sink].fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Datagrams of this lane that a full channel of `sink` has cost.
    pub fn queue_full(&self, sink: usize) -> u64 {
        self.queue_full[sink].load(Ordering::Relaxed)
    }

    /// Counts datagrams of this lane that `sink` did not take before the end, or because its consumer is gone.
    pub fn count_given_up(&self, sink: usize, datagrams: u64) {
        self.given_up[sink].fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Datagrams of this lane that `sink` never took.
    pub fn given_up(&self, sink: usize) -> u64 {
        self.given_up[sink].load(Ordering::Relaxed)
    }

    /// Counts datagrams that were still in the socket when the receiver had ended.
    pub fn count_unread(&self, datagrams: u64) {
        self.unread.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Datagrams that were still in the socket when the receiver had ended.
    pub fn unread(&self) -> u64 {
        self.unread.load(Ordering::Relaxed)
    }

    /// From now on nobody can say how many datagrams have arrived here.
    pub fn note_uncountable(&self) {
        self.is_uncountable.store(true, Ordering::Relaxed);
    }

    /// Whether the counts of this lane are all there is.
    pub fn is_countable(&self) -> bool {
        !self.is_uncountable.load(Ordering::Relaxed)
    }

    /// What the kernel has dropped at the socket since it was made, and how full its buffer is; `None` when the kernel
    /// does not say. To be called at least once in the time that 2^32 drops take, because the kernel's own count wraps.
    pub fn kernel(&self) -> Option<(u64, MemoryInfo)> {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let info = kernel.observe()?;
        Some((kernel.drops.total, info))
    }

    /// The socket of this lane.
    pub fn socket(&self) -> Arc<Socket> {
        Arc::clone(&self.kernel.lock().unwrap_or_else(PoisonError::into_inner).socket)
    }

    /// Counts on with another socket. Nothing may arrive at the one before any more, or its drops would not be counted.
    pub fn replace_socket(&self, socket: Arc<Socket>) -> Arc<Socket> {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if kernel.observe().is_none() {
            // What it dropped since the last look is gone with it.
            self.note_uncountable();
        }
        kernel.drops.last = 0;
        std::mem::replace(&mut kernel.socket, socket)
    }
}

/// What the kernel counts for a lane: the socket that it counts at, and the sum.
#[derive(Debug)]
struct KernelSide {
    socket: Arc<Socket>,
    drops: KernelDrops,
    /// It tells nothing any more, and that has been said.
    is_silent: bool,
}

impl KernelSide {
    fn observe(&mut self) -> Option<MemoryInfo> {
        match self.socket.memory_info() {
            Ok(info) => {
                self.drops.observe(info.drops);
                self.is_silent = false;
                Some(info)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_silent, true) {
                    log::warn!(
                        "the kernel stopped reporting what it drops at a socket (SO_MEMINFO: {error}); \
                         kernel_dropped, arrived and residual are null until it reports again"
                    );
                }
                None
            }
        }
    }
}

/// The kernel's 32-bit count of drops, continued past its wrap.
#[derive(Debug, Default)]
struct KernelDrops {
    last: u32,
    total: u64,
}

impl KernelDrops {
    fn observe(&mut self, count: u32) {
        self.total += u64::from(count.wrapping_sub(self.last));
        self.last = count;
    }
}

/// The published side of one consumer: a group for each listener of the configuration.
#[derive(Debug)]
pub struct ConsumerLedger {
    counts: Box<[Group<4>]>,
}

impl ConsumerLedger {
    /// An empty ledger in a configuration with `listeners` listeners.
    pub fn new(listeners: usize) -> Self {
        Self { counts: (0..listeners).map(|_| Group::default()).collect() }
    }

    /// Publishes the counts of the consumer that owns this ledger.
    pub fn publish(&self, tallies: &[Tally]) {
        for (group, tally) in self.counts.iter().zip(tallies) {
            group.publish(&[tally.taken, tally.delivered, tally.failed, tally.pending]);
        }
    }

    /// The counts for one listener as last published.
    pub fn read(&self, listener: usize) -> Tally {
        let [taken, delivered, failed, pending] = self.counts[listener].read();
        Tally { taken, delivered, failed, pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_drops_are_counted_on_past_the_wrap_of_the_kernels_counter() {
        let mut drops = KernelDrops::default();
        for count in [0, 10, u32::MAX - 4, 5] {
            drops.observe(count);
        }
        assert_eq!(drops.total, u64::from(u32::MAX) + 6);
    }

    #[test]
    fn kernel_drops_are_counted_on_when_another_socket_takes_the_place_of_one() {
        let socket_with_drops = |drops: usize| {
            let socket = Arc::new(Socket::new(mmsg::Family::V4).expect("a socket"));
            socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
            socket.refuse_arrivals().expect("a filter");
            let (sender, to) = (std::net::UdpSocket::bind("127.0.0.1:0"), socket.local_addr().expect("bound"));
            let sender = sender.expect("a free port");
            (0..drops).for_each(|_| assert_eq!(sender.send_to(b"x", to).expect("loopback takes it"), 1));
            socket
        };
        let first = socket_with_drops(3);
        let lane = LaneLedger::new(Arc::clone(&first), 0);
        // Nobody has looked since the first drop.
        let before = lane.replace_socket(socket_with_drops(2));
        assert!(Arc::ptr_eq(&before, &first));
        let drops = || lane.kernel().expect("the kernel tells").0;
        assert_eq!(drops(), 5);
        assert_eq!(drops(), 5, "each is counted once");
    }

    #[test]
    fn a_lane_reads_back_what_it_published() {
        let socket = Arc::new(Socket::new(mmsg::Family::V4).expect("a socket"));
        let lane = LaneLedger::new(socket, 3);
        let mut tally = LaneTally {
            received: 1,
            bytes: 2,
            calls: 3,
            truncated: 4,
            dropped_truncated: 5,
            dropped_denied: 11,
            dropped_rate_limited: 12,
            dropped_no_batch: 6,
            dropped_unsplit: 7,
            errors: 8,
            ..LaneTally::default()
        };
        tally.offered[0] = 9;
        tally.offered[SINKS_PER_LISTENER_MAX - 1] = 10;
        lane.publish(&tally);
        assert_eq!(lane.read(), tally);
        lane.count_queue_full(2, 7);
        assert_eq!((lane.queue_full(2), lane.queue_full(0)), (7, 0));
    }
}
