//! The published side of a lane: what its receiver counts, what others count for it, and what the kernel counts at its
//! socket, whose count wraps and goes with the socket, or for its receive queue.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use mmsg::xdp::{Counter, Tally};
use mmsg::{MemoryInfo, RecvBatch, Refused, Socket, xdp};
use serde::{Deserialize, Serialize};

use super::counter::Published;
use super::counter::{Cells, CounterSet};
use super::counter_list::{LaneTally, SinkDropped};
use super::senders::{Echoes, EchoesSeen};
use super::senders::{SenderSnapshot, Senders};
use super::trains::{Trains, TrainsSeen};
use crate::os::threads::lock;
use crate::seams::clock;

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
            senders: Mutex::new(Senders::new(clock::now())),
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
        lock(&self.source)
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
        self.echoes.get().map(|echoes| lock(echoes).read())
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
        let mut senders = lock(&self.senders).busiest(clock::now());
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
        // This ledger may be open for longer than the socket is to be.
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

// What the kernel counts for a lane at its socket: a count of drops that wraps and goes with the socket, and beside it
// what the socket's own filters have refused, which is in both.
//
// The filter counts first and the kernel a moment later, and they are read in the other order. So drops less refusals
// are never more than what else was dropped, however many refusals come in between, and the highest of these
// differences is shown: it never falls, and it is exact as soon as nothing is under way.

/// The socket that it counts at, and the sums.
#[derive(Debug)]
pub(super) struct KernelSide {
    pub(super) socket: Arc<Socket>,
    pub(super) drops: KernelDrops,
    denied: Denied,
    /// Drops that are no refusals of a filter, as far as is certain.
    dropped: u64,
    /// Drops at sockets beside this one that are closed.
    pub(super) elsewhere: u64,
    /// Of the drops still to be seen here, those that the ledger before has counted as refused already.
    debt: u64,
    /// It tells nothing any more, and that has been said.
    pub(super) is_silent: bool,
    /// What was seen last, once another lane goes on with the socket.
    handed_on: Option<MemoryInfo>,
}

impl KernelSide {
    /// What was counted before is in the ledger of the process that read the socket then.
    pub(super) fn new(socket: Arc<Socket>) -> (Self, Option<u32>) {
        let before = socket.memory_info().ok().map(|memory| memory.drops);
        let drops = KernelDrops { last: before.unwrap_or(0), total: 0 };
        let denied = Denied { last: socket.refused(), total: None };
        // The pipeline says what the kernel does not tell from the beginning.
        let is_silent = before.is_none();
        (Self { socket, drops, denied, dropped: 0, elsewhere: 0, debt: 0, is_silent, handed_on: None }, before)
    }

    pub(super) fn observe(&mut self) -> Option<MemoryInfo> {
        if self.handed_on.is_some() {
            return self.handed_on;
        }
        match self.socket.memory_info() {
            Ok(info) => {
                self.drops.observe(info.drops);
                self.denied.observe(self.socket.refused());
                let denied = self.denied().map_or(0, |denied| denied.messages);
                self.dropped = self.dropped.max(self.drops.total.saturating_sub(denied + self.debt));
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

    /// What was dropped and not refused by a filter, as of the last look.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped + self.elsewhere
    }

    /// What its filters have refused, as of the last look; `None` where it never had one.
    pub(super) fn denied(&self) -> Option<Refused> {
        self.denied.total
    }

    /// Looks for the last time, because another ledger counts on. Returns whether the kernel's count could be read.
    pub(super) fn leave(&mut self) -> bool {
        self.handed_on = self.observe();
        self.handed_on.is_some()
    }

    /// Has `other` count on, to which the same socket was left. Each drop and each refusal is counted by one of them.
    pub(super) fn hand_on(&self, other: &mut Self) {
        other.drops = KernelDrops { last: self.drops.last, total: 0 };
        other.denied = Denied { last: self.denied.last, total: None };
        let counted = self.dropped + self.debt + self.denied().map_or(0, |denied| denied.messages);
        (other.dropped, other.debt) = (0, counted - self.drops.total);
    }

    /// Counts on with another socket.
    pub(super) fn replace(&mut self, socket: Arc<Socket>) -> Arc<Socket> {
        self.drops.last = 0;
        self.denied.last = None;
        std::mem::replace(&mut self.socket, socket)
    }
}

impl LaneTally {
    /// With what a filter in the kernel has denied: as if it had been read, and then dropped for that.
    pub fn with_denied(mut self, denied: Refused) -> Self {
        self.received += denied.datagrams;
        self.bytes += denied.bytes;
        self.dropped.denied += denied.datagrams;
        self
    }
}

/// What filters have refused since the ledger began.
#[derive(Debug, Default)]
struct Denied {
    last: Option<Refused>,
    total: Option<Refused>,
}

impl Denied {
    fn observe(&mut self, now: Option<Refused>) {
        let Some(now) = now else { return };
        let (last, total) = (self.last.unwrap_or_default(), self.total.unwrap_or_default());
        self.total = Some(Refused {
            messages: total.messages + (now.messages - last.messages),
            datagrams: total.datagrams + (now.datagrams - last.datagrams),
            bytes: total.bytes + (now.bytes - last.bytes),
        });
        self.last = Some(now);
    }
}

/// The kernel's 32-bit count of drops, continued past its wrap.
#[derive(Debug, Default)]
pub(super) struct KernelDrops {
    pub(super) last: u32,
    pub(super) total: u64,
}

impl KernelDrops {
    fn observe(&mut self, count: u32) {
        self.total += u64::from(count.wrapping_sub(self.last));
        self.last = count;
    }
}

/// The receive queue of a lane past the kernel's stack: what the kernel has lost of it, and how much of it waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpSnapshot {
    pub interface: String,
    /// "native": the program sits in the driver; "generic": above it.
    pub mode: String,
    /// Whether the device writes frames itself; null while there was no engine yet.
    pub zero_copy: Option<bool>,
    /// Whether there is an engine. Without one its queue passes to the sockets of the listener.
    pub is_running: bool,
    /// The same in a word, with the reason: "running", "no_interface", "retrying", "given_up" or "ended".
    #[serde(default)]
    pub state: String,
    /// Room for so many frames that have arrived and are not received yet.
    pub chunks: u64,
    /// How many of these waited when it was looked at last, which is some times a second.
    pub waiting: u64,
    /// Datagrams that were taken although their checksum covers addresses and length only: their sender is on this
    /// host and has left the rest to a device.
    pub checksum_left_to_device: u64,
}

/// How the engine of a queue fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    Running,
    /// There is none, and will not be one.
    Ended,
    /// The interface is gone, and is waited for.
    NoInterface,
    /// It is tried again and again to make it anew.
    Retrying,
    /// That was given up.
    GivenUp,
}

impl QueueState {
    fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended => "ended",
            Self::NoInterface => "no_interface",
            Self::Retrying => "retrying",
            Self::GivenUp => "given_up",
        }
    }
}

/// What the kernel tells of a queue. Its count ends with the engine.
#[derive(Debug)]
pub(super) struct QueueSide {
    counter: Option<Counter>,
    /// As of the last look; `None` where it is not known.
    lost: Option<u64>,
    is_zero_copy: Option<bool>,
    /// Why there is no engine.
    pub(super) without: QueueState,
    /// What the engine counts itself.
    pub(super) tally: Tally,
}

impl QueueSide {
    /// Of a queue without an engine yet, which loses nothing.
    pub(super) fn new() -> Self {
        Self { counter: None, lost: Some(0), is_zero_copy: None, without: QueueState::Ended, tally: Tally::default() }
    }

    pub(super) fn begin(&mut self, counter: Counter) {
        self.is_zero_copy = Some(counter.is_zero_copy());
        self.counter = Some(counter);
    }

    /// Frames that were handed over and never received; `None` where that is not known.
    pub(super) fn lost(&mut self) -> Option<u64> {
        if let Some(counter) = &self.counter {
            self.lost = counter.lost().ok().flatten();
        }
        self.lost
    }

    /// Looks for the last time and lets go of the queue.
    pub(super) fn end(&mut self) {
        self.lost();
        self.counter = None;
    }

    /// What it shows.
    pub(super) fn read(&self) -> XdpSnapshot {
        XdpSnapshot {
            zero_copy: self.is_zero_copy,
            is_running: self.counter.is_some(),
            state: if self.counter.is_some() { QueueState::Running } else { self.without }.name().to_owned(),
            waiting: u64::from(self.tally.waiting),
            checksum_left_to_device: self.tally.left_to_device,
            ..XdpSnapshot::default()
        }
    }
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
        // An earlier process has these in its ledger.
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

    #[test]
    fn kernel_drops_are_counted_on_past_the_wrap_of_the_kernels_counter() {
        let mut drops = KernelDrops::default();
        for count in [0, 10, u32::MAX - 4, 5] {
            drops.observe(count);
        }
        assert_eq!(drops.total, u64::from(u32::MAX) + 6);
    }

    /// A ledger that has seen so many drops and so many refusals.
    fn seen(side: &mut KernelSide, drops: u32, refused: u64) -> u64 {
        side.drops.observe(drops);
        side.denied.observe(Some(Refused { messages: refused, datagrams: refused, bytes: 0 }));
        side.dropped = side.dropped.max(side.drops.total.saturating_sub(side.denied().unwrap().messages + side.debt));
        side.dropped
    }

    fn side() -> KernelSide {
        KernelSide::new(Arc::new(Socket::new(mmsg::Family::V4).expect("a socket"))).0
    }

    #[test]
    fn refusals_under_way_never_count_as_drops_and_what_is_shown_never_falls() {
        let mut side = side();
        assert_eq!(seen(&mut side, 10, 4), 6);
        assert_eq!(seen(&mut side, 10, 9), 6, "five of them have yet to be among the drops");
        assert_eq!(seen(&mut side, 16, 9), 7);
    }

    #[test]
    fn a_refusal_that_was_under_way_when_the_ledger_changed_is_counted_once() {
        let (mut before, mut after) = (side(), side());
        assert_eq!(seen(&mut before, 3, 2), 1);
        assert_eq!(seen(&mut before, 3, 5), 1, "three are under way");
        before.hand_on(&mut after);
        assert_eq!(seen(&mut after, 6, 5), 0, "they have come");
        assert_eq!(seen(&mut after, 9, 6), 2);
        let denied = before.denied().unwrap().messages + after.denied().unwrap().messages;
        assert_eq!(before.dropped() + after.dropped() + denied, 9);
    }

    #[test]
    fn a_queue_without_an_engine_has_lost_nothing_and_says_that_it_has_none() {
        let mut queue = QueueSide::new();
        queue.tally.left_to_device = 3;
        assert_eq!(queue.lost(), Some(0), "everything passes to the sockets");
        let shown = queue.read();
        assert_eq!((shown.is_running, shown.zero_copy, shown.checksum_left_to_device), (false, None, 3));
        queue.without = QueueState::NoInterface;
        queue.end();
        assert_eq!((queue.lost(), queue.read().state.as_str()), (Some(0), "no_interface"));
    }
}
