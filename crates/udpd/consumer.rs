//! The consumer: takes full batches from its channel, gives them to its sink, sends them home. One thread each.
//!
//! An idle consumer sleeps in the channel and is woken by the first batch. Waking a thread costs more than handling a
//! batch does, so a consumer that is woken very often stops asking for it: it naps for a fixed short time, handles
//! all that came meanwhile, and naps again, until a nap brings little. Receivers fill their batches up while it naps, so a
//! flood travels in full batches. A lone datagram is handed on at once, and no traffic means no wake-ups at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use crate::channel::{Inbox, Waited};
use crate::ledger::{ConsumerLedger, Tally};
use crate::pool::Parcel;
use crate::sink::Sink;

/// The length of a nap: what a flood may wait.
const NAP: Duration = Duration::from_micros(500);

/// Wake-ups closer together than this are too many.
const WAKE_INTERVAL_MIN: Duration = Duration::from_micros(50);

/// This many of them in a row, and naps begin.
const CLOSE_WAKES_MAX: u32 = 16;

/// A nap that brings fewer datagrams than this was the last.
const NAP_DATAGRAMS_MIN: u64 = 16;

/// A channel shorter than this could overflow during a nap.
const NAP_DEPTH_MIN: usize = 64;

/// Everything a consumer thread owns.
#[derive(Debug)]
pub struct Consumer {
    /// Full batches.
    pub channel: Inbox,
    /// Where they go.
    pub sink: Box<dyn Sink>,
    /// The way home for the batches of each lane, by index.
    pub homes: Arc<[Sender<Parcel>]>,
    /// What it counts, published.
    pub ledger: Arc<ConsumerLedger>,
    /// What it counts, by listener.
    pub tallies: Vec<Tally>,
}

/// Why a consumer ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Every receiver has ended and everything is handed on.
    Done,
    /// The sink can never take anything again.
    Closed(String),
}

impl Consumer {
    /// Consumes until every receiver of the channel has ended, or until the sink is closed for good; then what still comes is
    /// counted as failed, so that the ledger closes.
    pub fn run(mut self, closed: impl FnOnce(&str)) -> End {
        let mut closed = Some(closed);
        let mut reason = None;
        let mut pace = Pace::new(self.channel.depth());
        loop {
            let datagrams = self.consume_all();
            self.sink.flush(&mut self.tallies);
            self.ledger.publish(&self.tallies);
            if reason.is_none()
                && let Some(why) = self.sink.closed()
            {
                if let Some(closed) = closed.take() {
                    closed(&why);
                }
                reason = Some(why);
            }
            if pace.wants_nap(datagrams) {
                self.channel.nap(NAP);
            } else if !self.wait() {
                break;
            } else {
                pace.woken();
            }
        }
        self.sink.finish(&mut self.tallies);
        self.ledger.publish(&self.tallies);
        reason.map_or(End::Done, End::Closed)
    }

    /// Handles every batch that is in the channel; returns how many datagrams that were.
    fn consume_all(&mut self) -> u64 {
        let mut datagrams = 0;
        while let Some(parcel) = self.channel.take() {
            datagrams += parcel.datagrams.summary().datagrams;
            self.consume(parcel);
        }
        datagrams
    }

    fn consume(&mut self, parcel: Parcel) {
        let tally = &mut self.tallies[parcel.listener];
        let datagrams = parcel.datagrams.summary().datagrams;
        tally.taken += datagrams;
        tally.pending += datagrams;
        self.sink.accept(&parcel, &mut self.tallies);
        self.ledger.publish(&self.tallies);
        // The way home has room for every reference there is; it fails only when the lane has ended.
        let _ = self.homes[parcel.lane].try_send(parcel);
    }

    /// Sleeps until there is a batch or the sink has something due. False when no receiver is left.
    fn wait(&mut self) -> bool {
        loop {
            match self.channel.wait(self.sink.due()) {
                Waited::Batch(parcel) => {
                    self.consume(parcel);
                    return true;
                }
                Waited::Deadline => self.sink.when_due(&mut self.tallies),
                Waited::Ended => return false,
            }
        }
    }
}

/// Decides between sleeping in the channel and napping.
#[derive(Debug)]
struct Pace {
    last_wake: Option<Instant>,
    close_wakes: u32,
    napping: bool,
    may_nap: bool,
}

impl Pace {
    fn new(channel_depth: usize) -> Self {
        Self { last_wake: None, close_wakes: 0, napping: false, may_nap: channel_depth >= NAP_DEPTH_MIN }
    }

    /// A batch has just ended a sleep in the channel.
    fn woken(&mut self) {
        let now = Instant::now();
        let close = self.last_wake.is_some_and(|last| now - last < WAKE_INTERVAL_MIN);
        self.close_wakes = if close { self.close_wakes + 1 } else { 0 };
        self.last_wake = Some(now);
        self.napping = self.may_nap && self.close_wakes >= CLOSE_WAKES_MAX;
    }

    /// The channel is empty; the last round brought this many datagrams.
    fn wants_nap(&mut self, datagrams: u64) -> bool {
        if self.napping && datagrams < NAP_DATAGRAMS_MIN && self.close_wakes == 0 {
            self.napping = false;
        }
        if self.napping {
            self.close_wakes = 0;
        }
        self.napping
    }
}
