//! The receiver: takes an empty batch, lets the kernel fill it, counts, hands it over. One thread per lane.
//!
//! The loop is the bare receive loop of its engine with four things added, each once per batch and never per datagram:
//! a batch from the pool, the counts, the hand-over, and a look at the stop flag. It blocks in the kernel and nowhere
//! else, unless the operator chose `when_full = "block"`.
//!
//! A batch goes to an outlet: the channel of a consumer, or a sink that runs on this thread, see
//! [`outlet`](super::outlet).
//!
//! A short batch is handed over at once, with one exception: while every consumer naps or is behind, none would look
//! at it, and the receiver rests a moment as well and fills the batch up, because waking up and handing over between
//! cores both cost as much as receiving several datagrams. What waits for a consumer that is behind is packed, see
//! [`route`](udpd_base::handover::route), so a short batch takes no more memory than a full one has for its datagrams.
//!
//! Where datagrams gather, full batches are left quietly for as long as there may be more of them, and consumers are
//! woken once, before the next rest: they come in dozens then, and each wake-up costs as much as several of them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mmsg::{Engine, RecvBatch, Socket, Wait, xdp};

use super::latency_sampling::{BATCHES_PER_SAMPLE, BatchSampler};
use super::outlet::Outlet;
use udpd_base::handover::batch::LatencyStamp;
use udpd_base::handover::batch::{Parcel, exclusive, put_stamp};
use udpd_base::handover::pool::Pool;
use udpd_base::handover::route::RoomTimeout;
use udpd_base::ledger::{LaneLedger, LaneTally};
use udpd_base::os::threads;
use udpd_base::os::threads::lock;
use udpd_base::seams::{clock, waits};
use udpd_inspect::deduplicate::Deduplicator;
use udpd_inspect::policy::{Policy, Unwrapper};
use udpd_inspect::upstream::Observer;

/// How long the socket may still be read once the pipeline no longer waits. Only arrivals that could not be refused
/// make it as long as that.
const DRAIN_AFTER_GIVE_UP: Duration = Duration::from_millis(500);

/// How long a receiver rests while no consumer would look at what it receives.
const REST: Duration = Duration::from_micros(250);

/// The receive buffer that holds what may arrive during a rest, several times over, at two million a second.
const REST_BUFFER_BYTES: usize = 2 << 20;

/// How long a receiver rests after a receive call that failed, so that a lasting error is not a busy loop.
const ERROR_REST: Duration = Duration::from_millis(10);

/// How long the last datagrams may need from the interrupt to the socket once arrivals are refused.
const SETTLE: Duration = Duration::from_millis(2);

/// The least that the kernel charges a receive queue with for a message, however short it is.
const MESSAGE_BYTES_MIN: usize = 512;

/// The two flags by which the pipeline ends its threads.
#[derive(Debug, Default)]
pub struct StopSignal {
    /// Receive nothing new, hand over what is there, end.
    pub requested: AtomicBool,
    /// How long to wait for a consumer that does not take anything.
    pub patience: RoomTimeout,
}

/// Everything a receiver thread owns.
#[derive(Debug)]
pub(super) struct Receiver {
    /// What receives from the socket of the lane. It may belong to this thread alone.
    pub(super) engine: Engine,
    pub(super) pool: Pool,
    /// What the kernel granted as receive buffer.
    pub(super) receive_buffer_bytes: usize,
    /// Where its datagrams go, in the order of the listener's sinks.
    pub(super) outlets: Vec<Outlet>,
    /// The ledger of this lane.
    pub(super) ledger: Arc<LaneLedger>,
    /// The index of this lane, for the log.
    pub(super) lane: usize,
    /// Drop what is longer than a slot.
    pub(super) drop_truncated: bool,
    /// Takes off headers that name the true senders, where there are any.
    pub(super) unwrapper: Option<Unwrapper>,
    /// Reads the numbers of its datagrams, where they have any.
    pub(super) observer: Option<Box<Observer>>,
    /// Drops what the listener refuses, where it refuses anything.
    pub(super) policy: Option<Box<Policy>>,
    /// Drops copies, where its listener is a side of a feed.
    pub(super) deduplicator: Option<Deduplicator>,
    /// Let datagrams gather this long before a batch is taken that would not be full.
    pub(super) gather: Duration,
    pub(super) stop: Arc<StopSignal>,
    pub(super) sampler: BatchSampler,
    /// Trains are counted in the samples.
    pub(super) seeks_trains: bool,
    /// Where it finds a new socket.
    pub(super) socket_swap: Arc<SocketSwap>,
    /// Its socket is not read to the end, because another lane or process adopts it.
    pub(super) socket_survives: Arc<AtomicBool>,
    /// Sockets at which nothing arrives any more. They are read to their end before its own.
    pub(super) sockets_to_drain: Vec<Arc<Socket>>,
    /// Datagrams gather, and a full batch was taken: there may be more, which is looked at before the next rest, and
    /// before consumers are woken.
    pub(super) has_more: bool,
    /// The frames that its engine refuses.
    pub(super) refusals: EngineRefusals,
}

impl Receiver {
    /// Receives until told to stop, then drains the socket. What was published last is final.
    pub(super) fn run(mut self) {
        self.outlets.iter_mut().for_each(Outlet::begin);
        self.receive_all(&mut LaneTally::default());
        self.outlets.into_iter().for_each(Outlet::finish);
    }

    fn receive_all(&mut self, tally: &mut LaneTally) {
        self.drain_others(tally);
        let wait = if self.gather.is_zero() { Wait::Block } else { Wait::Gather(self.gather) };
        while !self.stop.requested.load(Ordering::Relaxed) {
            if self.step(tally, if self.has_more { Wait::No } else { wait }) == 0 {
                self.change_socket(tally);
                if self.refusals.has_lost_its_queue {
                    break;
                }
            }
        }
        if self.engine.xdp_tally().is_some() {
            // What arrives from now on goes to the sockets of the listener.
            self.leave_the_rest(tally);
            self.ledger.end_queue(self.engine.xdp_tally().unwrap_or_default());
            return;
        }
        self.change_socket(tally);
        if self.socket_survives.load(Ordering::Relaxed) {
            self.leave_the_rest(tally);
        } else {
            self.drain(tally);
        }
    }

    /// Delivers what waits in sockets that have no lane any more, before anything of its own, so that the order stays.
    fn drain_others(&mut self, tally: &mut LaneTally) {
        for socket in std::mem::take(&mut self.sockets_to_drain) {
            if let Err(error) = self.drain_other(&socket, tally) {
                self.ledger.note_uncountable();
                log::error!(
                    "lane {}: cannot read to its end a socket that has no lane any more: {error}; it is not known how \
                     much is lost, so arrived and residual are null",
                    self.lane
                );
            }
        }
    }

    /// Nothing arrives there any more. Where something does all the same, it takes no more than a socket can hold.
    fn drain_other(&mut self, socket: &Socket, tally: &mut LaneTally) -> io::Result<()> {
        let mut messages_left = messages_max(socket);
        loop {
            let mut parcel = self.pool.take().expect("the last batch is never given away");
            let batch = exclusive(&mut parcel);
            match batch.receive(socket, Wait::No) {
                Ok(0) => {
                    self.pool.put(parcel);
                    return Ok(());
                }
                Ok(_) => {
                    tally.calls += 1;
                    let messages = batch.messages();
                    self.hand_over(tally, parcel, None);
                    messages_left = messages_left
                        .checked_sub(messages)
                        .ok_or_else(|| io::Error::other("datagrams keep arriving there"))?;
                }
                Err(error) => {
                    self.pool.put(parcel);
                    return Err(error);
                }
            }
        }
    }

    /// Delivers what the engine has taken out of the socket and nothing more: the rest is for the next receiver.
    fn leave_the_rest(&mut self, tally: &mut LaneTally) {
        loop {
            let mut parcel = self.pool.take().expect("the last batch is never given away");
            match self.engine.receive_held(exclusive(&mut parcel)) {
                Ok(0) => {
                    self.refusals.count(&self.engine, tally);
                    self.ledger.publish(tally);
                    self.pool.put(parcel);
                    return;
                }
                Ok(_) => self.hand_over(tally, parcel, None),
                Err(error) => {
                    self.refusals.count(&self.engine, tally);
                    tally.receive_errors += 1;
                    self.ledger.publish(tally);
                    self.ledger.note_uncountable();
                    log::error!(
                        "lane {}: cannot take out of its ring what it has received: {error}; it is not known how much \
                         that is, so arrived and residual are null",
                        self.lane
                    );
                    self.pool.put(parcel);
                    return;
                }
            }
        }
    }

    /// Goes over to a new socket, if one was offered. Nothing arrives at the old one any more: what is in it is taken
    /// first.
    fn change_socket(&mut self, tally: &mut LaneTally) {
        let Some(socket) = self.socket_swap.take() else { return };
        self.engine.finish();
        // An interrupted socket may say once that it is empty when it is not.
        for _ in 0..2 {
            while self.step(tally, Wait::No) > 0 {}
        }
        if let Err(error) = self.engine.replace_socket(socket) {
            log::warn!("lane {}: goes on with recvmmsg, because its ring is stuck: {error}; restart udpd", self.lane);
        }
        self.observer.iter_mut().for_each(|observer| observer.note_other_socket());
    }

    /// Reads the socket to its end, when arrivals are refused. The engine hands out what it has taken out of the socket
    /// before what is still in it. What was on its way between interrupt and socket gets a moment, and two empty looks
    /// in a row mean that nothing is left.
    fn drain(&mut self, tally: &mut LaneTally) {
        self.engine.finish();
        let mut empty_looks = 0;
        let mut gave_up_at = None;
        while empty_looks < 2 {
            if self.stop.patience.gives_up.load(Ordering::Relaxed)
                && clock::since(*gave_up_at.get_or_insert_with(clock::now)) > DRAIN_AFTER_GIVE_UP
            {
                log::error!(
                    "lane {}: datagrams keep arriving while it ends; those in its socket count as unread",
                    self.lane
                );
                return;
            }
            if self.step(tally, Wait::No) > 0 {
                empty_looks = 0;
            } else {
                empty_looks += 1;
                clock::sleep(SETTLE);
            }
        }
    }

    /// One batch: receive, count, hand over. Returns the number of messages, 0 when there was nothing.
    fn step(&mut self, tally: &mut LaneTally, wait: Wait) -> usize {
        let mut parcel = self.pool.take().expect("the last batch is never given away");
        let batch = exclusive(&mut parcel);
        if receive(&mut self.engine, batch, wait, self.lane, tally, &mut self.refusals) == 0 {
            self.refusals.count(&self.engine, tally);
            self.ledger.publish(tally);
            self.pool.put(parcel);
            self.has_more = false;
            self.outlets.iter_mut().for_each(Outlet::ring);
            return 0;
        }
        tally.calls += 1;
        // The time before it rests: what came first has waited longest.
        let arrived = self.sampler.is_due().then(clock::now);
        self.fill_up(tally, batch);
        let messages = batch.messages();
        self.hand_over(tally, parcel, arrived);
        messages
    }

    /// Fills a short batch up for as long as no consumer would look at it and something comes.
    fn fill_up(&mut self, tally: &mut LaneTally, batch: &mut RecvBatch) {
        while !batch.is_full() && self.may_rest() {
            threads::blocking(|| clock::sleep(REST));
            // The next call meets a failure again, and handles it.
            if self.engine.receive_more(batch, Wait::No).unwrap_or(0) == 0 {
                return;
            }
            tally.calls += 1;
        }
    }

    /// True while no consumer would look at a batch and the socket has room for what arrives meanwhile. Where datagrams
    /// gather the engine has rested already.
    fn may_rest(&self) -> bool {
        self.gather.is_zero()
            && self.receive_buffer_bytes >= REST_BUFFER_BYTES
            && !self.outlets.iter().any(Outlet::is_awaited)
    }

    /// Whether consumers need not be woken for each batch: where datagrams gather, unless one of several might be left
    /// asleep while this waits for another.
    fn may_leave_quietly(&self) -> bool {
        !self.gather.is_zero() && (self.outlets.len() == 1 || !self.outlets.iter().any(Outlet::may_block))
    }

    /// Counts what is in the batch, publishes, and gives the batch to every sink. `arrived` is the time of its arrival
    /// where it is a sample.
    fn hand_over(&mut self, tally: &mut LaneTally, mut parcel: Parcel, arrived: Option<Instant>) {
        let batch = exclusive(&mut parcel);
        let summary = *batch.summary();
        if let Some(queue) = self.refusals.count(&self.engine, tally)
            && (arrived.is_some() || queue.waiting == 0)
        {
            self.ledger.note_queue(queue);
        }
        tally.received += summary.datagrams + summary.unsplit;
        tally.bytes += summary.bytes;
        tally.dropped.unsplit += summary.unsplit;
        tally.truncated += summary.truncated;
        if let Some(unwrapper) = &self.unwrapper {
            unwrapper.apply(batch, tally);
        }
        if let Some(now) = arrived {
            self.ledger.count_senders(batch, BATCHES_PER_SAMPLE, now);
            self.ledger.count_echo(batch);
            if self.seeks_trains {
                self.ledger.count_trains(batch);
            }
        }
        if let Some(observer) = &mut self.observer {
            observer.observe(batch);
        }
        if let Some(policy) = &mut self.policy {
            policy.apply(batch, &mut tally.dropped);
        }
        if self.drop_truncated && batch.summary().truncated > 0 {
            tally.dropped.truncated += batch.retain(|datagram| !datagram.is_truncated()) as u64;
        }
        if let Some(deduplicator) = &self.deduplicator {
            deduplicator.apply(batch, tally);
        }
        let offered = batch.summary().datagrams;
        if offered == 0 {
            self.ledger.publish(tally);
            self.pool.put(parcel);
            return;
        }
        for offer in &mut tally.offered[..self.outlets.len()] {
            *offer += offered;
        }
        self.ledger.publish(tally);
        let is_full = batch.is_full();
        self.has_more = is_full && self.may_leave_quietly();
        put_stamp(&mut parcel, arrived.map(|arrived| LatencyStamp { arrived, datagrams: offered }));
        for outlet in &mut self.outlets {
            outlet.hand(&parcel, is_full, self.has_more, &mut self.pool, &self.stop.patience, &self.ledger);
        }
        self.pool.put(parcel);
    }
}

/// More messages than a socket can hold. While it is read, the kernel may let in a quarter more than its buffer.
fn messages_max(socket: &Socket) -> usize {
    socket.receive_buffer(0).map_or(usize::MAX, |buffer| 2 * buffer.granted_bytes / MESSAGE_BYTES_MIN)
}

/// Fills the batch and returns the number of messages.
///
/// A failed call loses nothing, the datagrams stay in the socket; it is counted, and logged once. While the call for
/// many fails each datagram is received by a call of its own.
fn receive(
    engine: &mut Engine,
    batch: &mut RecvBatch,
    wait: Wait,
    lane: usize,
    tally: &mut LaneTally,
    refusals: &mut EngineRefusals,
) -> usize {
    let has_something = || engine.is_woken() || engine.wait_readable(Duration::ZERO).unwrap_or(true);
    let wait = if wait != Wait::No && waits::has_waited(has_something) { Wait::No } else { wait };
    threads::blocking(|| engine.receive(batch, wait)).unwrap_or_else(|error| {
        tally.receive_errors += 1;
        if engine.xdp_tally().is_some() {
            refusals.lose_queue(lane, &error);
            return 0;
        }
        if tally.receive_errors == 1 {
            log::warn!(
                "lane {lane}: a receive call failed: {error}; until it works again each datagram needs a call of its \
                 own; udpd only counts further failures"
            );
        }
        let messages = engine.receive_each(batch).unwrap_or(0);
        if messages == 0 {
            threads::blocking(|| clock::sleep(ERROR_REST));
        }
        messages
    })
}

/// Frames that the engine of an XDP queue has taken and refused. The kernel would have dropped them before they were in
/// a socket; past its stack no other counter has them, so here they are received and dropped, by reason.
#[derive(Debug, Default)]
pub(super) struct EngineRefusals {
    counted: xdp::Tally,
    /// Nothing comes out of the queue any more.
    pub(super) has_lost_its_queue: bool,
}

impl EngineRefusals {
    /// Counts what was refused since the last call as received and dropped. Returns the tally of the engine when its
    /// ring was not empty, or has become so.
    pub(super) fn count(&mut self, engine: &Engine, tally: &mut LaneTally) -> Option<xdp::Tally> {
        let now = engine.xdp_tally()?;
        let dropped = &mut tally.dropped;
        let before = &self.counted;
        for (now, before, counter) in [
            (now.malformed, before.malformed, &mut dropped.malformed),
            (now.header_checksum, before.header_checksum, &mut dropped.header_checksum),
            (now.checksum, before.checksum, &mut dropped.checksum),
            (now.no_checksum, before.no_checksum, &mut dropped.no_checksum),
        ] {
            *counter += now - before;
            tally.received += now - before;
        }
        let is_news = now.waiting > 0 || self.counted.waiting > 0;
        self.counted = now;
        is_news.then_some(now)
    }

    /// Notes that the interface is gone, or that the kernel denies a call without which no frame comes.
    pub(super) fn lose_queue(&mut self, lane: usize, error: &io::Error) {
        self.has_lost_its_queue = true;
        log::error!(
            "lane {lane}: its receive queue can be received no more: {error}; the interface was removed, or the kernel \
             denies a call; from now on the sockets of the listener receive what comes, until udpd can make its engine \
             anew"
        );
    }
}

/// The mailbox for a socket that takes the place of another under a running receiver: offered by the main thread, taken
/// by the receiver.
///
/// A receiver looks only when a receive call came back with nothing, which happens when its socket was interrupted. So
/// a lane whose socket is never replaced never looks.
#[derive(Debug, Default)]
pub(super) struct SocketSwap {
    is_full: AtomicBool,
    socket: Mutex<Option<Arc<Socket>>>,
}

impl SocketSwap {
    /// Offers a socket that is ready to be received from. One that was not taken yet is dropped.
    pub(super) fn offer(&self, socket: Arc<Socket>) {
        *lock(&self.socket) = Some(socket);
        self.is_full.store(true, Ordering::Release);
    }

    /// Takes what was offered, if anything was.
    pub(super) fn take(&self) -> Option<Arc<Socket>> {
        if !self.is_full.swap(false, Ordering::Acquire) {
            return None;
        }
        lock(&self.socket).take()
    }
}

#[cfg(test)]
mod tests {
    use mmsg::Family;

    use super::*;

    #[test]
    fn a_socket_is_taken_once_and_the_last_one_offered_counts() {
        let socket_swap = SocketSwap::default();
        assert!(socket_swap.take().is_none());
        let sockets = [(); 2].map(|()| Arc::new(Socket::new(Family::V4).expect("a socket")));
        sockets.iter().for_each(|socket| socket_swap.offer(Arc::clone(socket)));
        assert!(socket_swap.take().is_some_and(|socket| Arc::ptr_eq(&socket, &sockets[1])));
        assert!(socket_swap.take().is_none());
    }
}
