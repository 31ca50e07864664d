//! The sink with a spill: it hands datagrams to the sink below, or to the spill.
//!
//! It sends the spill frame by frame, in its order.
//!
//! A destination that tells at once whether it has a datagram is simply tried. One that does not, such as a UDP port,
//! gets a single datagram first, which stays in the spill until its answer time has passed without a refusal. So a
//! retry of a destination that is gone costs nothing.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use mmsg::PackedBatch;

use super::SpillableSink;
use super::settings::{Spill, refusal};
use super::writer::{SpillWriter, WriteOutcome};
use crate::{FRAME_BYTES_MAX, Frame, SpillReadError, SpillStore};
use udpd_base::exit::Failure;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::{CounterSet as _, CounterTable as _, SinkTally, Tallies};
use udpd_base::os::threads;
use udpd_base::seams::clock;
use udpd_base::sink::settings::Opening;
use udpd_base::sink::{ConsumerFeeders, Sink, fail};

/// The pause before a destination is retried.
const RETRY: Duration = Duration::from_millis(250);

/// The least that one turn sends, if there is as much.
const TURN_BYTES_MIN: u64 = 1 << 20;

/// The longest turn: meanwhile new datagrams for the sink wait in its queue.
const TURN: Duration = Duration::from_millis(50);

/// How often a full spill is checked while a sink waits for space.
pub(super) const FULL_WAIT: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// It takes everything, and nothing is in the spill.
    Up,
    /// It took nothing at the last attempt.
    Down { retry: Instant },
    /// It was sent one datagram, and may still refuse it.
    Trial { until: Instant },
    /// It takes what is in the spill.
    Draining,
}

/// Where a frame is while it is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameLocation {
    /// In a segment: it counts as spilled.
    OnDisk,
    /// First in the buffer that the disk does not take: it is pending.
    InMemory,
    /// Given up, except for its first datagram, which was sent, may still be refused, and is pending.
    Nowhere,
}

/// A frame of the spill that is being sent.
#[derive(Debug)]
pub(super) struct FrameInDelivery {
    frame: Frame,
    pub(super) held: FrameLocation,
    /// The places of the datagrams that are not decided, in their order.
    todo: Vec<usize>,
}

impl FrameInDelivery {
    /// The place in its segment up to which all datagrams are decided.
    fn decided(&self) -> u64 {
        self.todo.first().map_or(self.frame.end, |&first| self.frame.in_segment(first))
    }

    /// Whether no datagram behind that place is decided.
    fn is_a_rest(&self) -> bool {
        self.decided() + self.todo.len() as u64 == self.frame.end
    }
}

/// A sink in front of another, with a spill.
pub struct Spilling<S> {
    pub(super) inner: S,
    pub(super) disk: SpillWriter,
    /// The pause before a destination is retried.
    pub(super) retry: Duration,
    pub(super) link: LinkState,
    /// The frame of the spill that is being sent.
    pub(super) work: Option<FrameInDelivery>,
    pub(super) batch: LaneBatch,
    /// The places in the current batch that the sink below did not take.
    pub(super) left: Vec<usize>,
    /// What the sink below counts of datagrams from the spill.
    pub(super) scratch: Tallies,
    /// Bytes that came into the spill since something was last sent from it.
    pub(super) added_bytes: u64,
}

impl<S: fmt::Debug> fmt::Debug for Spilling<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Spilling").field("inner", &self.inner).field("link", &self.link).finish_non_exhaustive()
    }
}

impl<S: SpillableSink> Spilling<S> {
    /// Opens the spill, unless another sink has it and ends before this one begins.
    pub fn open(inner: S, spill: &Spill, opening: &Opening<'_>) -> Result<Self, Failure> {
        Self::around(inner, SpillWriter::open(spill, opening)?)
            .map_err(|error| refusal(opening.sink, spill.place().map_or(Path::new(""), |place| place.path), &error))
    }

    fn around(inner: S, disk: SpillWriter) -> io::Result<Self> {
        let batch = PackedBatch::pool(1, FRAME_BYTES_MAX, false)?.0.remove(0);
        let mut sink = Self {
            inner,
            link: LinkState::Up,
            retry: RETRY,
            work: None,
            batch: LaneBatch::unpacked(batch),
            left: Vec::new(),
            scratch: Tallies::new(0..disk.listeners()),
            added_bytes: 0,
            disk,
        };
        sink.note_found();
        Ok(sink)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn new(
        inner: S,
        name: &str,
        location: Option<super::settings::SpillLocation>,
        when_full: FullPolicy,
    ) -> io::Result<Self> {
        Self::around(inner, SpillWriter::new(name, location, when_full))
    }

    /// A sink that a single listener feeds, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_listener(inner: S, (listener, name): (usize, &str), directory: &std::path::Path) -> Self {
        let bound = "127.0.0.1:514".to_owned();
        let lane = crate::SpillLane { lane: 0, listener, name: name.to_owned(), bound };
        let lanes = crate::SpillLanes::of(vec![lane]).expect("a lane");
        let bytes_max = crate::BYTES_MIN;
        let location =
            super::settings::SpillLocation { directory: directory.to_owned(), bytes_max, lanes, others: Vec::new() };
        let mut sink = Self::new(inner, "stream", Some(location), FullPolicy::DropNewest).expect("memory");
        sink.open_store().expect("it opens");
        sink
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn open_store(&mut self) -> io::Result<()> {
        self.disk.open_store()?;
        self.note_found();
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn count_opened(&mut self, tallies: &mut Tallies) {
        self.disk.count_opened(tallies);
    }

    /// What was found in the spill is sent first.
    fn note_found(&mut self) {
        if self.disk.store.as_ref().is_some_and(|store| !store.is_empty()) {
            self.link = LinkState::Down { retry: clock::now() };
        }
    }

    /// Whether new datagrams need not wait behind older ones.
    fn goes_straight(&self) -> bool {
        self.link == LinkState::Up
    }

    /// Puts datagrams of a batch into the spill: those that the sink below did not take, or all.
    fn put(&mut self, batch: &LaneBatch, only_left: bool, tallies: &mut Tallies) {
        let mut left = std::mem::take(&mut self.left);
        {
            let mut wanted = left.iter().peekable();
            for (place, datagram) in batch.datagrams.datagrams().enumerate() {
                if only_left && wanted.next_if_eq(&&place).is_none() {
                    continue;
                }
                match &mut self.disk.store {
                    None => {
                        self.inner.forget_left();
                        fail(&mut tallies[batch.listener], 1);
                    }
                    Some(store) if self.disk.is_given_up => {
                        if store.is_empty() {
                            self.inner.forget_left();
                        }
                        fail(&mut tallies[batch.listener], 1);
                    }
                    Some(store) => {
                        if self.link == LinkState::Up {
                            // The spill has become empty within this batch; the rest of it still comes before others.
                            self.link = LinkState::Draining;
                        }
                        if store.push(batch.lane, &datagram) {
                            self.write_out(tallies);
                        }
                    }
                }
            }
        }
        left.clear();
        self.left = left;
    }

    /// Writes the buffer to the spill, or acts by `when_full`.
    fn write_out(&mut self, tallies: &mut Tallies) {
        loop {
            let bytes = self.disk.store.as_ref().map_or(0, SpillStore::unwritten_bytes);
            match self.disk.write_out(tallies) {
                WriteOutcome::Nothing => return,
                WriteOutcome::Written(lent) => {
                    self.added_bytes += bytes;
                    return self.note_written(lent);
                }
                WriteOutcome::NoRoom => {}
            }
            let goes_on = match self.disk.when_full {
                FullPolicy::DropNewest => false,
                FullPolicy::DropOldest => self.give_up_oldest(tallies),
                FullPolicy::Block if (self.disk.is_unawaited)() => {
                    self.disk.give_up();
                    false
                }
                FullPolicy::Block => {
                    self.drain(tallies);
                    // This may take as long as the destination does.
                    tallies.publish();
                    threads::blocking(|| clock::sleep(FULL_WAIT.min(self.retry)));
                    true
                }
            };
            if !goes_on {
                return self.forget_unwritten(tallies);
            }
        }
    }

    /// Notes that the frame being sent from memory is on the disk now.
    fn note_written(&mut self, lent: Option<(u64, u64)>) {
        if let (Some(work), Some((segment, end))) = (&mut self.work, lent) {
            work.held = FrameLocation::OnDisk;
            (work.frame.segment, work.frame.end) = (segment, end);
        }
    }

    /// Gives up what could not be written.
    fn forget_unwritten(&mut self, tallies: &mut Tallies) {
        if self.disk.store.as_ref().is_none_or(|store| store.unwritten_bytes() == 0) {
            self.disk.refused_since = None;
            return;
        }
        if self.work.as_ref().is_some_and(|work| work.held == FrameLocation::InMemory) {
            self.detach_work(tallies);
        }
        let Some(store) = &mut self.disk.store else { return };
        if store.left() == 0 {
            self.inner.forget_left();
        }
        self.disk.forget_unwritten(tallies);
    }

    fn expect_handed(&mut self, datagrams: u64) {
        if let Some(store) = &mut self.disk.store {
            store.expect_handed(datagrams);
        }
    }

    /// Frees space; returns false when there is nothing to give up.
    fn give_up_oldest(&mut self, tallies: &mut Tallies) -> bool {
        let Some(oldest) = self.disk.store.as_ref().and_then(SpillStore::oldest) else { return false };
        let is_hit = |work: &FrameInDelivery| work.held == FrameLocation::OnDisk && work.frame.segment == oldest;
        if self.work.as_ref().is_some_and(is_hit) {
            self.detach_work(tallies);
        }
        for (listener, datagrams) in self.disk.store.as_mut().map(SpillStore::drop_oldest).unwrap_or_default() {
            tallies[listener].spilled -= datagrams;
            tallies[listener].dropped.spill_full += datagrams;
        }
        self.inner.forget_left();
        true
    }
}

// Sending from the spill.

impl<S: SpillableSink> Spilling<S> {
    /// The destination has not taken everything.
    fn has_left(&mut self) {
        match self.inner.goes_on() {
            true => self.link = LinkState::Draining,
            false => self.note_down(),
        }
    }

    /// Marks the destination as down.
    fn note_down(&mut self) {
        self.link = LinkState::Down { retry: clock::now() + self.retry };
    }

    /// One turn: sends from the spill while the destination takes it, for a limited time.
    fn drain(&mut self, tallies: &mut Tallies) {
        if self.link == LinkState::Up || self.disk.store.is_none() {
            return;
        }
        let begun = clock::now();
        let mut left_bytes = TURN_BYTES_MIN.max(2 * std::mem::take(&mut self.added_bytes));
        while left_bytes > 0 && clock::since(begun) < TURN {
            let Some(bytes) = self.step(begun, tallies) else { break };
            left_bytes = left_bytes.saturating_sub(bytes.max(1));
        }
    }

    /// Sends one frame, or the one datagram of a trial. `None` when there is nothing to do now.
    fn step(&mut self, now: Instant, tallies: &mut Tallies) -> Option<u64> {
        match self.link {
            LinkState::Up => return None,
            LinkState::Down { retry } if now < retry => return None,
            LinkState::Trial { .. } if self.inner.has_refused() => {
                self.take_counted();
                self.note_down();
                self.give_up_detached(tallies);
                return None;
            }
            LinkState::Trial { until } if now < until => return None,
            LinkState::Trial { .. } => {
                self.link = LinkState::Draining;
                self.settle(tallies);
                self.finish_first(1);
                return Some(0);
            }
            LinkState::Down { .. } | LinkState::Draining => {}
        }
        if self.work.is_none() && !self.read() {
            return None;
        }
        let answer_time = self.inner.answer_time();
        let is_trial = matches!(self.link, LinkState::Down { .. }) && !answer_time.is_zero();
        if is_trial {
            // Forget refusals from before the trial.
            self.inner.has_refused();
        }
        let bytes = self.attempt(is_trial, tallies)?;
        if !self.left.is_empty() {
            self.has_left();
            return (self.link == LinkState::Draining).then_some(bytes);
        }
        if is_trial {
            self.link = LinkState::Trial { until: now + answer_time };
            return None;
        }
        self.link = LinkState::Draining;
        Some(bytes)
    }

    /// Reads the next frame. Returns false when there is none, or none can be read now.
    fn read(&mut self) -> bool {
        let Some(store) = &mut self.disk.store else { return false };
        match store.read() {
            Ok(Some(frame)) => {
                let todo = frame.skipped..frame.skipped + usize::try_from(frame.datagrams).unwrap_or(0);
                let held = if frame.is_unwritten { FrameLocation::InMemory } else { FrameLocation::OnDisk };
                self.work = Some(FrameInDelivery { frame, held, todo: todo.collect() });
                true
            }
            Ok(None) if store.unwritten_bytes() == 0 => {
                self.link = LinkState::Up;
                self.disk.log_lines.is_empty();
                false
            }
            Ok(None) => {
                // The buffer waits behind datagrams that are neither sent nor given up.
                self.note_down();
                false
            }
            Err(error) => {
                if matches!(error, SpillReadError::Unread(_)) {
                    // What comes next may be behind what cannot be read.
                    self.inner.forget_left();
                }
                self.disk.log_lines.log_read_error(store.directory(), &error);
                self.note_down();
                false
            }
        }
    }

    /// Gives up the frame that is being sent, because it cannot be read.
    fn give_up_work(&mut self, tallies: &mut Tallies) {
        let (Some(FrameInDelivery { frame, todo, held }), Some(store)) = (self.work.take(), &mut self.disk.store)
        else {
            return;
        };
        // Else it takes what comes next for what it has in hand.
        self.inner.forget_left();
        if held != FrameLocation::OnDisk {
            // What is in memory can always be read.
            fail(&mut tallies[frame.listener], todo.len() as u64);
            return store.keep_unwritten(|_| false);
        }
        store.give_up(frame.segment, frame.listener, todo.len() as u64, |listener, datagrams| {
            tallies[listener].spilled -= datagrams;
            tallies[listener].dropped.spill_torn += datagrams;
        });
        store.acknowledge(frame.segment, frame.end);
        self.disk.log_lines.damaged(store.directory(), todo.len() as u64);
    }

    /// Hands the frame, or only its first datagram, to the sink below, and counts the outcome unless it is open.
    /// Returns the number of bytes.
    fn attempt(&mut self, only_first: bool, tallies: &mut Tallies) -> Option<u64> {
        self.left.clear();
        let (Some(work), Some(store)) = (&self.work, &self.disk.store) else { return None };
        let count = if only_first { 1 } else { work.todo.len() };
        let mut wanted = work.todo[..count.min(work.todo.len())].iter().peekable();
        let (listener, lane) = (work.frame.listener, work.frame.lane);
        let is_wanted = |place: usize| wanted.next_if_eq(&&place).is_some();
        let is_readable = !work.frame.is_damaged;
        if !(is_readable && self.batch.unpack((listener, lane), store.datagrams(), is_wanted)) {
            self.give_up_work(tallies);
            return Some(0);
        }
        let summary = *self.batch.datagrams.summary();
        self.scratch[listener] = SinkTally { pending: summary.datagrams, ..SinkTally::default() };
        self.inner.attempt(&self.batch, &mut self.scratch, &mut self.left);
        if only_first && self.left.is_empty() {
            return Some(summary.bytes);
        }
        self.settle(tallies);
        let mut left = std::mem::take(&mut self.left);
        if !only_first {
            if let Some(work) = &mut self.work {
                work.todo = left.iter().map(|place| work.todo[*place]).collect();
            }
            self.finish_work();
        }
        // Tells the caller whether any was left.
        left.truncate(1);
        self.left = left;
        Some(summary.bytes)
    }

    /// Takes what the sink below has counted for the current frame.
    fn take_counted(&mut self) -> SinkTally {
        let Some(work) = &self.work else { return SinkTally::default() };
        std::mem::take(&mut self.scratch[work.frame.listener])
    }

    /// Adds what the sink below has counted to the ledger.
    fn settle(&mut self, tallies: &mut Tallies) {
        let counted = self.take_counted();
        let (Some(work), Some(store)) = (&self.work, &mut self.disk.store) else { return };
        let Frame { segment, listener, .. } = work.frame;
        let decided = counted.delivered + counted.dropped.total();
        let tally = &mut tallies[listener];
        match work.held {
            FrameLocation::OnDisk => tally.spilled -= decided,
            FrameLocation::InMemory | FrameLocation::Nowhere => tally.pending -= decided,
        }
        tally.delivered += counted.delivered;
        tally.stream_repeats_at_most += counted.stream_repeats_at_most;
        tally.dropped.add(&counted.dropped);
        store.decide(segment, listener, decided);
        self.disk.log_lines.sent(counted.delivered);
    }

    /// Marks the first datagrams of the frame as decided.
    fn finish_first(&mut self, count: usize) {
        if let Some(work) = &mut self.work {
            work.todo.drain(..count.min(work.todo.len()));
        }
        self.finish_work();
    }

    /// Acknowledges what is decided of the frame, so that it is not sent again.
    fn finish_work(&mut self) {
        let in_hand = self.inner.in_hand() as u64;
        let (Some(work), Some(store)) = (&self.work, &mut self.disk.store) else { return };
        match work.held {
            FrameLocation::OnDisk => store.acknowledge(work.frame.segment, work.decided()),
            FrameLocation::InMemory => {
                store.keep_unwritten(|place| work.todo.binary_search(&place).is_ok());
                // It may be written before it is read again.
                store.expect_handed(in_hand);
                self.work = None;
            }
            FrameLocation::Nowhere => {}
        }
        self.work.take_if(|work| work.todo.is_empty());
    }

    /// Gives up the frame that is being sent. If its first datagram is on trial, that one still waits for its answer.
    fn detach_work(&mut self, tallies: &mut Tallies) {
        let is_trial = matches!(self.link, LinkState::Trial { .. });
        let (Some(work), Some(store), true) = (&mut self.work, &mut self.disk.store, is_trial) else {
            self.work = None;
            return;
        };
        match work.held {
            FrameLocation::OnDisk => {
                let tally = &mut tallies[work.frame.listener];
                (tally.spilled, tally.pending) = (tally.spilled - 1, tally.pending + 1);
                store.decide(work.frame.segment, work.frame.listener, 1);
            }
            FrameLocation::InMemory => store.keep_unwritten(|place| place > 0),
            FrameLocation::Nowhere => {}
        }
        work.held = FrameLocation::Nowhere;
        work.todo.truncate(1);
    }

    /// Counts the datagram of a given-up frame as refused.
    fn give_up_detached(&mut self, tallies: &mut Tallies) {
        let Some(work) = self.work.take_if(|work| work.held == FrameLocation::Nowhere) else { return };
        let tally = &mut tallies[work.frame.listener];
        tally.pending -= work.todo.len() as u64;
        tally.dropped.spill_full += work.todo.len() as u64;
    }
}

impl<S: SpillableSink> Sink for Spilling<S> {
    fn begin(&mut self) {
        self.inner.begin();
        self.disk.open_late();
        self.note_found();
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.disk.count_opened(tallies);
        if !self.goes_straight() {
            return self.put(batch, false, tallies);
        }
        // An attempt from the spill may have left a place here, and the spill was given up since.
        self.left.clear();
        self.inner.attempt(batch, tallies, &mut self.left);
        if self.left.is_empty() {
            return;
        }
        if let Some(store) = &self.disk.store {
            self.disk.log_lines.log_in_use(store);
            self.has_left();
        }
        let in_hand = self.inner.in_hand() as u64;
        self.expect_handed(in_hand);
        self.put(batch, true, tallies);
        if in_hand > 0 {
            self.write_out(tallies);
            let Some(store) = self.disk.store.as_mut().filter(|store| store.unwritten_bytes() == 0) else { return };
            store.expect_handed(0);
            if let Err(error) = store.note_handed(in_hand) {
                self.disk.log_lines.log_sync_error(store.directory(), &error);
            }
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.disk.count_opened(tallies);
        self.write_out(tallies);
        self.drain(tallies);
        self.disk.sync_when_due();
        if self.inner.due().is_some_and(|due| due <= clock::now()) {
            self.inner.when_due();
        }
    }

    fn due(&self) -> Option<Instant> {
        let link = match self.link {
            _ if self.disk.has_news() => Some(clock::now()),
            LinkState::Up => None,
            LinkState::Down { retry } => Some(retry),
            LinkState::Trial { until } => Some(until),
            LinkState::Draining => Some(clock::now()),
        };
        link.into_iter().chain(self.disk.next_sync).chain(self.inner.due()).min()
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush(tallies);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.inner.go_on_for(feeders);
    }

    fn finish(&mut self, tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {
        self.disk.count_opened(tallies);
        self.inner.finish(tallies);
        self.disk.is_last = true;
        self.write_out(tallies);
        self.forget_unwritten(tallies);
        if self.work.as_ref().is_some_and(|work| work.held == FrameLocation::Nowhere) && !self.inner.has_refused() {
            // No refusal is known.
            self.settle(tallies);
            self.work = None;
        }
        self.give_up_detached(tallies);
        let is_a_rest = self.work.as_ref().is_none_or(FrameInDelivery::is_a_rest);
        let may_be_twice = matches!(self.link, LinkState::Trial { .. }) || self.inner.in_hand() > 0 || !is_a_rest;
        self.disk.close(may_be_twice);
    }
}
