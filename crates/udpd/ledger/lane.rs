//! The published side of a lane: what its receiver counts, what others count for it, and what the kernel counts at its
//! socket, whose count wraps and goes with the socket.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use mmsg::{MemoryInfo, RecvBatch, Socket};

use super::counter::{Cells, Counters};
use super::published::Published;
use super::senders::{SenderSnapshot, Senders};
use super::tables::{LaneTally, SinkDropped};

/// The published side of one lane.
#[derive(Debug)]
pub struct LaneLedger {
    counts: Published<LaneTally>,
    /// What the end found in the socket and took out only to count it.
    left_over: Cells<LaneTally>,
    not_taken: Box<[Cells<SinkDropped>]>,
    /// Some datagrams of this lane are gone and nobody can say how many.
    is_uncountable: AtomicBool,
    /// The one core where its receiver runs, or [`NO_CORE`].
    core: AtomicUsize,
    kernel: Mutex<KernelSide>,
    /// What the kernel had dropped when arrivals were refused.
    dropped_at_end: AtomicU64,
    /// What it counted at the socket when this ledger began.
    began_at: Option<u32>,
    /// What it dropped between the last look of the process before and that, once that is known.
    dropped_between: OnceLock<u64>,
    senders: Mutex<Senders>,
}

/// What no core is called.
const NO_CORE: usize = usize::MAX;

impl LaneLedger {
    /// An empty ledger for a lane that reads `socket` in a configuration with `sinks` sinks.
    pub fn new(socket: Arc<Socket>, sinks: usize) -> Self {
        // The pipeline says what the kernel does not tell from the beginning. What was dropped before is in the books
        // of those who read the socket then.
        let before = socket.memory_info().map(|memory| memory.drops);
        let (is_silent, drops) = (before.is_err(), KernelDrops { last: *before.as_ref().unwrap_or(&0), total: 0 });
        Self {
            counts: Published::default(),
            left_over: Cells::<LaneTally>::default(),
            not_taken: (0..sinks).map(|_| Cells::<SinkDropped>::default()).collect(),
            is_uncountable: AtomicBool::new(false),
            core: AtomicUsize::new(NO_CORE),
            kernel: Mutex::new(KernelSide { socket, drops, is_silent, handed_on: None }),
            dropped_at_end: AtomicU64::new(u64::MAX),
            began_at: before.ok(),
            dropped_between: OnceLock::new(),
            senders: Mutex::new(Senders::new(Instant::now())),
        }
    }

    /// Publishes the counts of the receiver that owns this lane.
    pub fn publish(&self, tally: &LaneTally) {
        self.counts.publish(tally);
    }

    /// The counts as last published, and what the end found.
    pub fn read(&self) -> LaneTally {
        LaneTally::sum([self.counts.read(), LaneTally::load(&self.left_over)])
    }

    /// Datagrams of this lane that a sink of the configuration, by its index, never took: its channel was full, or
    /// nobody was at its other end. Whoever makes room in a shared channel counts here, for the lane it came from.
    pub fn not_taken(&self, sink: usize) -> &Cells<SinkDropped> {
        &self.not_taken[sink]
    }

    /// Counts datagrams that were still in the socket when the receiver had ended.
    pub fn count_unread(&self, datagrams: u64) {
        self.left_over.received.fetch_add(datagrams, Ordering::Relaxed);
        self.left_over.dropped.unread.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Writes down on which core its receiver runs; `None` when that is not one alone.
    pub fn note_core(&self, core: Option<usize>) {
        self.core.store(core.unwrap_or(NO_CORE), Ordering::Relaxed);
    }

    /// The core as it was last written down.
    pub fn core(&self) -> Option<usize> {
        Some(self.core.load(Ordering::Relaxed)).filter(|&core| core != NO_CORE)
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

    /// Arrivals are refused from now on, which the kernel counts as drops as well.
    pub fn note_refusing(&self) {
        if let Some((dropped, _)) = self.kernel() {
            self.dropped_at_end.store(dropped, Ordering::Relaxed);
        }
    }

    /// What the kernel had dropped by then, and more than it can drop before.
    pub fn dropped_at_end(&self) -> u64 {
        self.dropped_at_end.load(Ordering::Relaxed)
    }

    /// Takes what the kernel had counted at the socket when the process before looked last, and returns what it has
    /// dropped from then on until this ledger began, with `others`; `None` where the kernel does not say.
    pub fn note_before(&self, seen: u32, others: u64) -> Option<u64> {
        let between = u64::from(self.began_at?.wrapping_sub(seen)) + others;
        Some(*self.dropped_between.get_or_init(|| between))
    }

    /// The same once it is known.
    pub fn dropped_between(&self) -> Option<u64> {
        self.dropped_between.get().copied()
    }

    /// The socket and the kernel's count as of the last look, for whoever goes on with it.
    pub fn seen(&self) -> Option<(Arc<Socket>, u32)> {
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        (!kernel.is_silent).then(|| (Arc::clone(&kernel.socket), kernel.drops.last))
    }

    /// The socket and how many drops there this ledger has counted, as of the last look.
    pub fn counted(&self) -> (Arc<Socket>, u64) {
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&kernel.socket), kernel.drops.total)
    }

    /// Counts the senders of a batch that stands for `weight` batches; not at all in the moment that somebody reads.
    pub fn count_senders(&self, batch: &RecvBatch, weight: u64, now: Instant) {
        if let Ok(mut senders) = self.senders.try_lock() {
            senders.count(batch.datagrams().filter_map(|datagram| datagram.source()), weight, now);
        }
    }

    /// Who sends most to this lane, the busiest first.
    pub fn senders(&self) -> Vec<SenderSnapshot> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner).busiest(Instant::now());
        // What a sample stands for can be more than there was at all.
        let received = self.read().received;
        senders.iter_mut().for_each(|sender| sender.datagrams = sender.datagrams.min(received));
        senders
    }

    /// Leaves the counting at its socket to somebody else, who goes on with it.
    pub fn leave(&self) {
        let mut own = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let last = own.observe();
        if last.is_none() {
            // What was dropped since the last look is counted by the other one.
            self.note_uncountable();
        }
        own.handed_on = last;
    }

    /// Leaves it to the ledger of the lane that goes on with it. Each drop is counted by one of them.
    pub fn hand_on(&self, to: &Self) {
        self.leave();
        let own = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let mut other = to.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        other.drops = KernelDrops { last: own.drops.last, total: 0 };
    }

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
    /// What was seen last, once another lane goes on with the socket.
    handed_on: Option<MemoryInfo>,
}

impl KernelSide {
    fn observe(&mut self) -> Option<MemoryInfo> {
        if self.handed_on.is_some() {
            return self.handed_on;
        }
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
        let socket = || {
            let socket = Arc::new(Socket::new(mmsg::Family::V4).expect("a socket"));
            socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
            socket.refuse_arrivals().expect("a filter");
            socket
        };
        let drop_at = |socket: &Socket, drops: usize| {
            let (sender, to) = (std::net::UdpSocket::bind("127.0.0.1:0"), socket.local_addr().expect("bound"));
            let sender = sender.expect("a free port");
            (0..drops).for_each(|_| assert_eq!(sender.send_to(b"x", to).expect("loopback takes it"), 1));
        };
        let (first, second) = (socket(), socket());
        // An earlier process has these in its books.
        drop_at(&first, 7);
        let lane = LaneLedger::new(Arc::clone(&first), 0);
        drop_at(&first, 3);
        drop_at(&second, 2);
        // Nobody has looked since the first drop.
        let before = lane.replace_socket(second);
        assert!(Arc::ptr_eq(&before, &first));
        let drops = || lane.kernel().expect("the kernel tells").0;
        assert_eq!(drops(), 5);
        assert_eq!(drops(), 5, "each is counted once");
    }
}
