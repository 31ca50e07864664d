//! The published side of a lane: what its receiver counts, what others count for it, and what the kernel counts at its
//! socket, whose count wraps and goes with the socket, or for its receive queue.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use mmsg::{RecvBatch, Refused, Socket, xdp};

use super::counter::{Cells, CounterSet};
use super::echoes::{Echoes, EchoesSeen};
use super::kernel_side::KernelSide;
use super::published::Published;
use super::queue::{QueueSide, QueueState, XdpSnapshot};
use super::senders::{SenderSnapshot, Senders};
use super::tables::{LaneTally, SinkDropped};
use super::trains::{Trains, TrainsSeen};

/// The published side of one lane.
#[derive(Debug)]
pub struct LaneLedger {
    counts: Published<LaneTally>,
    /// What the end found in the socket and took out only to count it.
    left_over: Cells<LaneTally>,
    not_taken: Box<[Cells<SinkDropped>]>,
    /// Some datagrams of this lane are gone, and their number cannot be known.
    is_uncountable: AtomicBool,
    /// The one core where its receiver runs, or [`NO_CORE`].
    core: AtomicUsize,
    source: Mutex<LaneSource>,
    /// What the kernel had dropped when arrivals were refused.
    dropped_at_end: AtomicU64,
    /// What it counted at the socket when this ledger began.
    began_at: Option<u32>,
    senders: Mutex<Senders>,
    trains: TrainsSeen,
    /// Where its listener relays.
    echoes: OnceLock<Mutex<EchoesSeen>>,
}

/// What no core is called.
const NO_CORE: usize = usize::MAX;

impl LaneLedger {
    /// An empty ledger for a lane that reads `socket` in a configuration with `sinks` sinks.
    pub fn new(socket: Arc<Socket>, sinks: usize) -> Self {
        let (kernel, began_at) = KernelSide::new(socket);
        Self { began_at, ..Self::of(LaneSource::Socket(kernel), sinks) }
    }

    /// The same for a lane that takes a receive queue past the kernel's stack.
    pub fn of_queue(sinks: usize) -> Self {
        Self::of(LaneSource::Queue(QueueSide::new()), sinks)
    }

    fn of(source: LaneSource, sinks: usize) -> Self {
        Self {
            counts: Published::default(),
            left_over: Cells::<LaneTally>::default(),
            not_taken: (0..sinks).map(|_| Cells::<SinkDropped>::default()).collect(),
            is_uncountable: AtomicBool::new(false),
            core: AtomicUsize::new(NO_CORE),
            source: Mutex::new(source),
            dropped_at_end: AtomicU64::new(u64::MAX),
            began_at: None,
            senders: Mutex::new(Senders::new(Instant::now())),
            trains: TrainsSeen::default(),
            echoes: OnceLock::new(),
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
    /// its other end was closed. The route that makes room in a shared channel counts here, for the lane it came from.
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

    /// From now on the number of datagrams that arrived here cannot be known.
    pub fn note_uncountable(&self) {
        self.is_uncountable.store(true, Ordering::Relaxed);
    }

    /// Whether the counts of this lane are all there is.
    pub fn is_countable(&self) -> bool {
        !self.is_uncountable.load(Ordering::Relaxed)
    }

    /// What the kernel has dropped since this ledger began, and how much it has in hand. To be called at least once in
    /// the time that 2^32 drops at a socket take, because the kernel's own count wraps.
    pub fn kernel(&self) -> LaneReading {
        match &mut *self.source() {
            LaneSource::Socket(kernel) => {
                let info = kernel.observe();
                let used_bytes = info.map_or(0, |info| u64::from(info.receive_used_bytes));
                LaneReading { dropped: info.map(|_| kernel.dropped()), denied: kernel.denied(), used_bytes }
            }
            LaneSource::Queue(queue) => LaneReading { dropped: queue.lost(), ..LaneReading::default() },
            LaneSource::Closed(last) => *last,
        }
    }

    /// Lets go of its socket, at which nothing arrives any more: what the kernel has counted there by now is the last
    /// look.
    pub fn close(&self) {
        let last = LaneReading { used_bytes: 0, ..self.kernel() };
        let mut source = self.source();
        if matches!(*source, LaneSource::Socket(_)) {
            *source = LaneSource::Closed(last);
        }
    }

    /// A receive queue has an engine from now on.
    pub fn begin_queue(&self, counter: xdp::Counter) {
        if let LaneSource::Queue(queue) = &mut *self.source() {
            queue.begin(counter);
        }
    }

    /// What the engine counts itself, unless another thread reads at this moment.
    pub fn note_queue(&self, tally: xdp::Tally) {
        if let Ok(mut source) = self.source.try_lock()
            && let LaneSource::Queue(queue) = &mut *source
        {
            queue.tally = tally;
        }
    }

    /// Nothing comes to the engine any more, and everything was received: the last look.
    pub fn end_queue(&self, tally: xdp::Tally) {
        if let LaneSource::Queue(queue) = &mut *self.source() {
            queue.tally = tally;
            queue.end();
        }
    }

    /// Why it has no engine, as long as it has none.
    pub fn note_queue_state(&self, state: QueueState) {
        if let LaneSource::Queue(queue) = &mut *self.source() {
            queue.without = state;
        }
    }

    /// What is known of a receive queue past the kernel's stack; the rest is for who knows the plan.
    pub fn queue(&self) -> Option<XdpSnapshot> {
        match &*self.source() {
            LaneSource::Socket(_) | LaneSource::Closed(_) => None,
            LaneSource::Queue(queue) => Some(queue.read()),
        }
    }

    fn source(&self) -> MutexGuard<'_, LaneSource> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arrivals are refused from now on, which the kernel counts as drops as well.
    pub fn note_refusing(&self) {
        if let Some(dropped) = self.kernel().dropped {
            self.dropped_at_end.store(dropped, Ordering::Relaxed);
        }
    }

    /// What the kernel had dropped by then, and more than it can drop before.
    pub fn dropped_at_end(&self) -> u64 {
        self.dropped_at_end.load(Ordering::Relaxed)
    }

    /// What the kernel counted at the socket when this ledger began; `None` where it does not say.
    pub fn began_at(&self) -> Option<u32> {
        self.began_at
    }

    /// How far the kernel had counted and this ledger with it, as of one moment: the last look.
    pub fn look(&self) -> LaneProgress {
        match &mut *self.source() {
            LaneSource::Socket(kernel) => {
                let denied = kernel.denied().map_or(0, |denied| denied.datagrams);
                if kernel.is_silent {
                    return LaneProgress { denied, ..LaneProgress::default() };
                }
                let seen = Some((Arc::clone(&kernel.socket), kernel.drops.last));
                LaneProgress { seen, dropped: Some(kernel.dropped()), denied }
            }
            LaneSource::Queue(queue) => LaneProgress { dropped: queue.lost(), ..LaneProgress::default() },
            LaneSource::Closed(last) => {
                let denied = last.denied.map_or(0, |denied| denied.datagrams);
                LaneProgress { seen: None, dropped: last.dropped, denied }
            }
        }
    }

    /// Counts what came to a socket beside its own that is closed: what the kernel has dropped there, and what was in
    /// it.
    pub fn count_elsewhere(&self, dropped: Option<u64>, unread: Option<u64>) {
        self.count_unread(unread.unwrap_or(0));
        match (&mut *self.source(), dropped, unread) {
            (LaneSource::Socket(kernel), Some(dropped), Some(_)) => kernel.elsewhere += dropped,
            (_, Some(0), Some(_)) => {}
            _ => self.note_uncountable(),
        }
    }

    /// The socket and how many drops there this ledger has seen, denied ones among them, as of the last look.
    pub fn counted(&self) -> Option<(Arc<Socket>, u64)> {
        match &*self.source() {
            LaneSource::Socket(kernel) => Some((Arc::clone(&kernel.socket), kernel.drops.total)),
            LaneSource::Queue(_) | LaneSource::Closed(_) => None,
        }
    }

    /// Counts the senders of a batch that stands for `weight` batches; not at all while another thread reads.
    pub fn count_senders(&self, batch: &RecvBatch, weight: u64, now: Instant) {
        if let Ok(mut senders) = self.senders.try_lock() {
            senders.count(batch.datagrams().filter_map(|datagram| datagram.source()), weight, now);
        }
    }

    /// Has it counted in the samples what has come before.
    pub fn seek_echoes(&self) {
        self.echoes.get_or_init(|| Mutex::new(EchoesSeen::new()));
    }

    /// Counts whether the first datagram of a batch has come before, where that is sought; not at all in the moment
    /// that another thread reads.
    pub fn count_echo(&self, batch: &RecvBatch) {
        if let Some(Ok(mut echoes)) = self.echoes.get().map(Mutex::try_lock)
            && let Some(first) = batch.datagrams().next()
        {
            echoes.count(first.payload());
        }
    }

    /// What has come before; `None` where that is not sought.
    pub fn echoes(&self) -> Option<Echoes> {
        self.echoes.get().map(|echoes| echoes.lock().unwrap_or_else(PoisonError::into_inner).read())
    }

    /// Counts the trains of a batch that the kernel has cut into datagrams.
    pub fn count_trains(&self, batch: &RecvBatch) {
        let datagrams = batch.datagrams();
        self.trains.count(datagrams.map(|datagram| (datagram.arrival_since_epoch(), datagram.source())));
    }

    /// The trains in the batches of the sample.
    pub fn trains(&self) -> Trains {
        self.trains.read()
    }

    /// Who sends most to this lane, the busiest first.
    pub fn senders(&self) -> Vec<SenderSnapshot> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner).busiest(Instant::now());
        // What a sample stands for can be more than there was at all.
        let received = self.read().received;
        senders.iter_mut().for_each(|sender| sender.datagrams = sender.datagrams.min(received));
        senders
    }

    /// Leaves the counting at its socket to another ledger, which goes on with it.
    pub fn leave(&self) {
        let mut source = self.source();
        let LaneSource::Socket(own) = &mut *source else { return };
        if !own.leave() {
            // What was dropped since the last look is counted by the other one.
            self.note_uncountable();
        }
    }

    /// Leaves it to the ledger of the lane that goes on with it. Each drop is counted by one of them.
    pub fn hand_on(&self, to: &Self) {
        self.leave();
        if let (LaneSource::Socket(own), LaneSource::Socket(other)) = (&*self.source(), &mut *to.source()) {
            own.hand_on(other);
        }
        // These books may be open for longer than the socket is to be.
        self.close();
    }

    /// What it reads from; `None` for a receive queue past the kernel's stack, and when its socket is closed.
    pub fn socket(&self) -> Option<Arc<Socket>> {
        match &*self.source() {
            LaneSource::Socket(kernel) => Some(Arc::clone(&kernel.socket)),
            LaneSource::Queue(_) | LaneSource::Closed(_) => None,
        }
    }

    /// Counts on with another socket. Nothing may arrive at the one before any more, or its drops would not be counted.
    pub fn replace_socket(&self, socket: Arc<Socket>) -> Option<Arc<Socket>> {
        let mut source = self.source();
        let LaneSource::Socket(kernel) = &mut *source else { return None };
        if kernel.observe().is_none() {
            // What it dropped since the last look is gone with it.
            self.note_uncountable();
        }
        Some(kernel.replace(socket))
    }
}

/// How far a lane has counted.
#[derive(Debug, Default)]
pub struct LaneProgress {
    /// The socket and the kernel's count there, for the process that goes on with it.
    pub seen: Option<(Arc<Socket>, u32)>,
    /// What the ledger has of the kernel's drops; `None` when the kernel does not say.
    pub dropped: Option<u64>,
    /// The datagrams that filters in the kernel have denied.
    pub denied: u64,
}

/// What the kernel says of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneReading {
    /// Without what it has denied for us; `None` when it does not say.
    pub dropped: Option<u64>,
    /// What its filter at the socket has denied; `None` where there never was one.
    pub denied: Option<Refused>,
    pub used_bytes: u64,
}

/// Where a lane has its datagrams from.
#[derive(Debug)]
enum LaneSource {
    Socket(KernelSide),
    Queue(QueueSide),
    /// The last look at a socket that is closed.
    Closed(LaneReading),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_closed_stays_in_the_books_as_it_was_seen_last() {
        let socket = Arc::new(Socket::new(mmsg::Family::V4).expect("a socket"));
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        socket.refuse_arrivals().expect("a filter");
        let (sender, to) = (std::net::UdpSocket::bind("127.0.0.1:0"), socket.local_addr().expect("bound"));
        let lane = LaneLedger::new(socket, 0);
        let sender = sender.expect("a free port");
        (0..3).for_each(|_| assert_eq!(sender.send_to(b"x", to).expect("loopback takes it"), 1));
        // There was no look since.
        lane.close();
        assert_eq!((lane.kernel().dropped, lane.socket().is_none()), (Some(3), true));
        drop(std::net::UdpSocket::bind(to).expect("its port is free"));
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
        // There was no look since the first drop.
        let before = lane.replace_socket(second).expect("it has a socket");
        assert!(Arc::ptr_eq(&before, &first));
        let drops = || lane.kernel().dropped.expect("the kernel tells");
        assert_eq!(drops(), 5);
        assert_eq!(drops(), 5, "each is counted once");
    }
}
