//! The receiver: takes an empty batch, lets the kernel fill it, counts, hands it over. One thread per lane.
//!
//! The loop is the bare `recvmmsg` loop with four things added, each once per batch and never per datagram: a batch from
//! the pool, the counts, the hand-over, and a look at the stop flag. It blocks in the kernel and nowhere else, unless the
//! operator chose `when_full = "block"`.
//!
//! A short batch is handed over at once, unless nobody would look at it: while every consumer naps the receiver holds it
//! and fills it up with what comes next, because handing over between cores costs as much as receiving several datagrams.
//! A batch is held for one more wait of bounded length and no longer, so the end of a flood arrives as well.
//!
//! While a consumer is behind, too, a short batch is filled up first: the places in a channel are counted in batches,
//! and a place is worth most when the batch is full.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use mmsg::{RecvBatch, Socket, Wait};

use crate::channel::Feed;
use crate::ledger::{LaneLedger, LaneTally};
use crate::pool::{Parcel, Pool, exclusive};

/// How long a short batch may be filled up while a consumer is behind.
const FILL_UP: Duration = Duration::from_millis(1);

/// How long a wait may last while a short batch is held. The kernel rounds it up to its timer tick.
const HOLD: Duration = Duration::from_millis(1);

/// How long a receiver rests after a receive call that failed, so that a lasting error is not a busy loop.
const ERROR_REST: Duration = Duration::from_millis(10);

/// How long the last datagrams may need from the interrupt to the socket once arrivals are refused.
const SETTLE: Duration = Duration::from_millis(2);

/// The two flags by which the pipeline ends its threads.
#[derive(Debug, Default)]
pub struct Stop {
    /// Receive nothing new, hand over what is there, end.
    pub requested: AtomicBool,
    /// Stop waiting for a consumer that does not take anything.
    pub give_up: AtomicBool,
}

/// One channel of the receiver and the sink behind it.
#[derive(Debug)]
pub struct Route {
    /// The way to the consumer.
    pub feed: Feed,
    /// The sink, by its index in the configuration.
    pub sink: usize,
}

/// The way home and the books of a lane, for batches of other lanes that had to make room.
#[derive(Debug, Clone)]
pub struct LaneHome {
    /// The way home.
    pub home: Sender<Parcel>,
    /// Its books.
    pub ledger: Arc<LaneLedger>,
}

/// Everything a receiver thread owns.
#[derive(Debug)]
pub struct Receiver {
    /// The socket of the lane.
    pub socket: Arc<Socket>,
    /// Its empty batches.
    pub pool: Pool,
    /// A batch that is never handed over: what is received into it is dropped and counted.
    pub spare: RecvBatch,
    /// A short batch that is being filled up while the consumers nap.
    pub held: Option<Parcel>,
    /// Whether receive calls are bounded by [`HOLD`] at present.
    pub bounded: bool,
    /// Where its datagrams go, in the order of the listener's sinks.
    pub routes: Vec<Route>,
    /// Every lane of the daemon, by index.
    pub lanes: Arc<[LaneHome]>,
    /// The index of this lane.
    pub lane: usize,
    /// Drop what is longer than a slot.
    pub drop_truncated: bool,
    /// Let datagrams gather this long after a short batch.
    pub gather: Duration,
    /// When to end.
    pub stop: Arc<Stop>,
}

impl Receiver {
    /// Receives until told to stop, then drains the socket. What was published last is final.
    pub fn run(mut self) {
        let mut tally = LaneTally::default();
        while !self.stop.requested.load(Ordering::Relaxed) {
            let messages = self.step(&mut tally, Wait::Block);
            if messages > 0 && messages < self.spare.slots() && !self.gather.is_zero() {
                std::thread::sleep(self.gather);
            }
        }
        self.drain(&mut tally);
    }

    /// Arrivals are refused by now. What was on its way between interrupt and socket gets a moment, and two empty looks in a
    /// row mean that nothing is left.
    fn drain(&mut self, tally: &mut LaneTally) {
        let mut empty_looks = 0;
        while empty_looks < 2 {
            if self.step(tally, Wait::No) > 0 {
                empty_looks = 0;
            } else {
                empty_looks += 1;
                std::thread::sleep(SETTLE);
            }
        }
    }

    /// One receive call and what follows from it. Returns the number of messages, 0 when there was nothing.
    fn step(&mut self, tally: &mut LaneTally, wait: Wait) -> usize {
        let Some(mut parcel) = self.held.take().or_else(|| self.empty_batch()) else {
            return self.receive_to_drop(tally, wait);
        };
        let batch = exclusive(&mut parcel);
        let messages = self.count_errors(tally, batch.receive_more(&self.socket, wait));
        if messages == 0 {
            self.bound_waits(false);
            match batch.is_empty() {
                true => self.pool.put(parcel),
                false => self.hand_over(tally, parcel),
            }
            return 0;
        }
        tally.calls += 1;
        if !batch.is_full() {
            if self.routes.iter().all(|route| route.feed.consumer_naps()) && self.bound_waits(true) {
                self.held = Some(parcel);
                return messages;
            }
            if self.routes.iter().any(|route| route.feed.is_behind()) {
                self.fill_up(tally, batch);
            }
        }
        self.hand_over(tally, parcel);
        messages
    }

    fn empty_batch(&mut self) -> Option<Parcel> {
        let mut parcel = self.pool.take()?;
        exclusive(&mut parcel).clear();
        Some(parcel)
    }

    /// Makes receive calls return after [`HOLD`], or wait for ever. A system call only where it changes something, which is
    /// at the beginning and at the end of a flood. False when the kernel refuses.
    fn bound_waits(&mut self, bounded: bool) -> bool {
        if self.bounded != bounded && self.socket.set_receive_timeout(bounded.then_some(HOLD)).is_ok() {
            self.bounded = bounded;
        }
        self.bounded == bounded
    }

    /// Fills a short batch for at most [`FILL_UP`], while a consumer is behind.
    fn fill_up(&self, tally: &mut LaneTally, batch: &mut RecvBatch) {
        while !batch.is_full() && self.socket.wait_readable(FILL_UP).unwrap_or(false) {
            let before = batch.messages();
            let after = self.count_errors(tally, batch.receive_more(&self.socket, Wait::No)) + before;
            if after == before {
                return;
            }
            tally.calls += 1;
        }
    }

    /// Counts what is in the batch, publishes, and gives the batch to every sink.
    fn hand_over(&mut self, tally: &mut LaneTally, mut parcel: Parcel) {
        let batch = exclusive(&mut parcel);
        let summary = *batch.summary();
        tally.received += summary.datagrams + summary.unsplit;
        tally.bytes += summary.bytes;
        tally.dropped_unsplit += summary.unsplit;
        tally.truncated += summary.truncated;
        if summary.truncated > 0 && self.drop_truncated {
            tally.dropped_truncated += batch.retain(|datagram| !datagram.is_truncated()) as u64;
        }
        let offered = batch.summary().datagrams;
        if offered == 0 {
            self.publish(tally);
            self.pool.put(parcel);
            return;
        }
        for offer in &mut tally.offered[..self.routes.len()] {
            *offer += offered;
        }
        self.publish(tally);
        let (last, others) = self.routes.split_last().expect("a listener has at least one sink");
        for route in others {
            self.offer(route, Arc::clone(&parcel));
        }
        self.offer(last, parcel);
    }

    /// Gives one reference to one sink. What the channel will not hold is counted for the lane it came from and sent home.
    fn offer(&self, route: &Route, parcel: Parcel) {
        route.feed.offer(parcel, &self.stop.give_up, |dropped| {
            let lane = &self.lanes[dropped.lane];
            lane.ledger.count_queue_full(route.sink, dropped.datagrams.summary().datagrams);
            // The way home has room for every reference there is; it fails only when the lane has ended.
            let _ = lane.home.try_send(dropped);
        });
    }

    /// No batch is at hand: the kernel's queue must move on all the same, and each datagram is counted.
    fn receive_to_drop(&mut self, tally: &mut LaneTally, wait: Wait) -> usize {
        let result = self.spare.receive(&self.socket, wait);
        let messages = self.count_errors(tally, result);
        if messages > 0 {
            let summary = *self.spare.summary();
            tally.calls += 1;
            tally.received += summary.datagrams + summary.unsplit;
            tally.bytes += summary.bytes;
            tally.truncated += summary.truncated;
            tally.dropped_unsplit += summary.unsplit;
            tally.dropped_no_batch += summary.datagrams;
            self.publish(tally);
        }
        messages
    }

    fn publish(&self, tally: &LaneTally) {
        self.lanes[self.lane].ledger.publish(tally);
    }

    /// A failed receive call loses nothing, the datagrams stay in the socket; it is counted, and said once.
    fn count_errors(&self, tally: &mut LaneTally, result: io::Result<usize>) -> usize {
        result.unwrap_or_else(|error| {
            tally.errors += 1;
            if tally.errors == 1 {
                log::warn!(
                    "lane {}: a receive call failed: {error}; trying again, further failures are only counted",
                    self.lane
                );
            }
            self.publish(tally);
            std::thread::sleep(ERROR_REST);
            0
        })
    }
}
