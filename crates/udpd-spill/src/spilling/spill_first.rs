//! A sink whose destination takes batches and answers later, with a spill that everything goes through.
//!
//! Every datagram is written to the disk first. Batches are filled from there, and each keeps where it begins and ends
//! in its segment: what a crash leaves undecided is sent again in the same batches, under the same ids, so a
//! destination that knows ids takes each datagram once. Several batches may be on their way; their answers count in the
//! order of the batches, so what is decided is always a beginning of what is on the disk.
//!
//! While the disk takes nothing, what waits in memory is sent from there, one frame at a time.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use mmsg::{Datagram, PackedDatagrams};

use super::settings::Spill;
use super::sink::{FULL_WAIT, FrameLocation};
use super::writer::{SpillWriter, WriteOutcome};
use crate::{BATCHES_MAX, Frame, SpillReadError, SpillStore};
use udpd_base::exit::Failure;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::seams::clock;
use udpd_base::sink::settings::Opening;
use udpd_base::sink::{ConsumerFeeders, Sink, fail};

/// The pause after a disk could not be read or marked.
const RETRY: Duration = Duration::from_millis(250);

/// How long answers are waited for at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(4);

/// How long one wait for an answer is.
const ANSWER_WAIT: Duration = Duration::from_millis(20);

/// When a batch is sent.
#[derive(Debug, Clone, Copy)]
pub struct BatchTriggers {
    pub datagrams: u64,
    /// Of payloads.
    pub bytes: u64,
    /// After its first datagram came.
    pub every: Duration,
}

/// What a destination says of a batch.
#[derive(Debug, Default)]
pub struct BatchAnswer {
    pub ticket: u64,
    /// It has decided; otherwise it may have the batch or not, and is not asked again.
    pub is_decided: bool,
    /// How many datagrams it will never take, by listener; it has the others.
    pub refused: Vec<(usize, u64)>,
    /// How many were sent again although it may have had them, by listener.
    pub repeats: Vec<(usize, u64)>,
}

/// A destination that takes batches and answers later.
pub trait BatchDestination: Send + fmt::Debug {
    /// The first call, as for a sink.
    fn begin(&mut self) {}

    fn triggers(&self) -> BatchTriggers;

    /// Whether a batch can be filled and sent now.
    fn has_room(&self) -> bool;

    /// Whether it takes nothing for now, and batches on their way are tried again.
    fn is_failing(&self) -> bool;

    /// Begins a batch. The two numbers and how many datagrams it has name it, and are the same when it is sent again.
    fn begin_batch(&mut self, origin: u64, begin: u64);

    /// Adds a datagram of this listener and lane. Returns true when the batch takes no more.
    fn add(&mut self, listener: usize, lane: usize, datagram: &Datagram<'_>) -> bool;

    /// Sends what was added; returns the ticket that its answer will have.
    fn send(&mut self) -> u64;

    /// An answer, if there is one.
    fn take_answer(&mut self) -> Option<BatchAnswer>;

    /// Waits for an answer, at most so long.
    fn wait(&mut self, limit: Duration);

    /// When an answer is to be looked for, unless what ends on the way wakes the consumer.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Nothing is tried again any more.
    fn stop(&mut self);

    fn go_on_for(&mut self, feeders: &ConsumerFeeders);
}

/// A frame that batches are filled from.
#[derive(Debug)]
struct FrameCursor {
    frame: Frame,
    /// The place in the frame of the next datagram.
    next: usize,
}

impl FrameCursor {
    fn held(&self) -> FrameLocation {
        if self.frame.is_unwritten { FrameLocation::InMemory } else { FrameLocation::OnDisk }
    }

    fn place(&self) -> u64 {
        self.frame.in_segment(self.next)
    }

    fn is_at_end(&self) -> bool {
        self.place() >= self.frame.end
    }
}

/// A batch whose answer is open, or waits for those before it.
#[derive(Debug)]
struct BatchOnItsWay {
    ticket: Option<u64>,
    held: FrameLocation,
    segment: u64,
    end: u64,
    /// How many datagrams it has, by listener.
    counts: Vec<(usize, u64)>,
    answer: Option<BatchAnswer>,
}

impl BatchOnItsWay {
    fn datagrams(&self) -> u64 {
        self.counts.iter().map(|(_, datagrams)| datagrams).sum()
    }
}

/// Adds to the count of a listener.
pub fn add_count(counts: &mut Vec<(usize, u64)>, listener: usize, datagrams: u64) {
    match counts.iter_mut().find(|(own, _)| *own == listener) {
        Some((_, count)) => *count += datagrams,
        None => counts.push((listener, datagrams)),
    }
}

/// A sink that writes everything to its spill first.
#[derive(Debug)]
pub struct SpillFirst<D> {
    pub(super) destination: D,
    pub(super) disk: SpillWriter,
    cursor: Option<FrameCursor>,
    on_their_way: VecDeque<BatchOnItsWay>,
    /// A batch that is filled and could not be marked yet.
    filled: Option<BatchOnItsWay>,
    /// Name the batches that are sent from memory.
    memory_origin: u64,
    memory_batches: u64,
    /// Bytes of payloads that came since the last batch was filled.
    unsent_bytes: u64,
    /// Since when something waits that is not on its way.
    unsent_since: Option<Instant>,
    /// The disk is tried again then.
    retry: Option<Instant>,
}

impl<D: BatchDestination> SpillFirst<D> {
    /// Opens the spill, unless another sink has it and ends before this one begins.
    pub fn open(destination: D, spill: &Spill, opening: &Opening<'_>) -> Result<Self, Failure> {
        Ok(Self::around(destination, SpillWriter::open(spill, opening)?))
    }

    pub(super) fn around(destination: D, disk: SpillWriter) -> Self {
        Self {
            destination,
            disk,
            cursor: None,
            on_their_way: VecDeque::with_capacity(BATCHES_MAX),
            filled: None,
            // The seed of a hash table is the only random number of the standard library.
            memory_origin: RandomState::new().hash_one(0),
            memory_batches: 0,
            unsent_bytes: 0,
            unsent_since: None,
            retry: None,
        }
    }

    /// How many datagrams wait that are in no batch on its way.
    fn unsent(&self) -> u64 {
        let Some(store) = &self.disk.store else { return 0 };
        let is_of_store = |batch: &&BatchOnItsWay| batch.held != FrameLocation::Nowhere;
        let sent: u64 = self.on_their_way.iter().filter(is_of_store).map(BatchOnItsWay::datagrams).sum();
        (store.left() + store.unwritten_datagrams()).saturating_sub(sent)
    }

    /// Whether a batch is to be filled now.
    fn is_batch_due(&self, now: Instant) -> bool {
        let triggers = self.destination.triggers();
        let is_old = self.unsent_since.is_some_and(|since| now.saturating_duration_since(since) >= triggers.every);
        let waits_for_disk = self.retry.is_some_and(|retry| now < retry);
        !waits_for_disk && (is_old || self.unsent_bytes >= triggers.bytes || self.unsent() >= triggers.datagrams)
    }

    /// Sends batches while they are due and there is room for them, or all that waits.
    fn send_due(&mut self, is_all: bool, tallies: &mut Tallies) {
        while self.has_room() && (is_all || self.is_batch_due(clock::now())) {
            if self.send_batch(tallies) {
                continue;
            }
            match self.unsent() {
                0 => self.unsent_since = None,
                // It cannot be read now, or waits for an answer.
                _ => self.retry = self.retry.max(Some(clock::now() + ANSWER_WAIT)),
            }
            return;
        }
    }

    fn has_room(&self) -> bool {
        self.destination.has_room() && self.on_their_way.len() < BATCHES_MAX
    }

    /// Fills a batch from the spill and sends it. Returns false when there is nothing to send now.
    fn send_batch(&mut self, tallies: &mut Tallies) -> bool {
        if self.filled.is_none() {
            if !self.find_frame() {
                return false;
            }
            self.fill_batch(tallies);
        }
        let (Some(batch), Some(store)) = (self.filled.take(), &mut self.disk.store) else { return true };
        if let (FrameLocation::OnDisk, Err(error)) = (batch.held, store.freeze(batch.segment, batch.end)) {
            // A crash would send it under another id.
            self.disk.log_lines.log_read_error(store.directory(), &SpillReadError::Unmarked(error));
            self.filled = Some(batch);
            self.retry = Some(clock::now() + RETRY);
            return false;
        }
        self.retry = None;
        let ticket = Some(self.destination.send());
        self.on_their_way.push_back(BatchOnItsWay { ticket, ..batch });
        self.unsent_bytes = 0;
        if self.unsent() == 0 {
            self.unsent_since = None;
        }
        true
    }

    /// Makes sure that there is a frame to fill a batch from. Returns false when there is none, or none can be read.
    fn find_frame(&mut self) -> bool {
        // What is in memory is read again and again until it is decided.
        let is_lent = self.on_their_way.iter().any(|batch| batch.held == FrameLocation::InMemory);
        let Some(store) = self.disk.store.as_mut().filter(|_| !is_lent) else { return false };
        if self.cursor.is_some() {
            return true;
        }
        match store.read_for_batch() {
            Ok(Some(frame)) => {
                self.cursor = Some(FrameCursor { next: frame.skipped, frame });
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.disk.log_lines.log_read_error(store.directory(), &error);
                self.retry = Some(clock::now() + RETRY);
                false
            }
        }
    }

    /// Fills a batch from the frame in hand and those behind it in its segment.
    fn fill_batch(&mut self, tallies: &mut Tallies) {
        let (Some(mut cursor), Some(store)) = (self.cursor.take(), &mut self.disk.store) else { return };
        let (segment, begin, held) = (cursor.frame.segment, cursor.place(), cursor.held());
        let frozen = store.frozen_end(segment, begin);
        match held {
            FrameLocation::InMemory => {
                self.memory_batches += 1;
                self.destination.begin_batch(self.memory_origin, self.memory_batches);
            }
            _ => self.destination.begin_batch(store.origin(segment), begin),
        }
        let mut batch = BatchOnItsWay { ticket: None, held, segment, end: begin, counts: Vec::new(), answer: None };
        loop {
            let filled = fill(&mut self.destination, store, &mut cursor, frozen, &mut batch.counts);
            batch.end = cursor.place();
            if filled == Filled::Torn {
                if batch.counts.is_empty() {
                    self.give_up_frame(&cursor.frame, cursor.next, tallies);
                } else {
                    self.cursor = Some(cursor);
                }
                break;
            }
            if filled == Filled::Full {
                self.cursor = Some(cursor).filter(|cursor| !cursor.is_at_end());
                break;
            }
            if held == FrameLocation::InMemory {
                break;
            }
            // An error comes again when the next batch is filled.
            let Ok(Some(frame)) = store.read_for_batch() else { break };
            cursor = FrameCursor { next: frame.skipped, frame };
            let is_at_limit = frozen.is_some_and(|frozen| cursor.place() >= frozen);
            if frame.segment != segment || frame.is_unwritten || frame.is_damaged || is_at_limit {
                self.cursor = Some(cursor);
                break;
            }
        }
        self.filled = Some(batch).filter(|batch| !batch.counts.is_empty());
    }

    /// Gives up what of a frame cannot be read, in its turn.
    fn give_up_frame(&mut self, frame: &Frame, next: usize, tallies: &mut Tallies) {
        let Some(store) = &mut self.disk.store else { return };
        let lost = frame.end.saturating_sub(frame.in_segment(next));
        store.give_up(frame.segment, frame.listener, lost, |listener, datagrams| {
            tallies[listener].spilled -= datagrams;
            tallies[listener].dropped.spill_torn += datagrams;
        });
        self.disk.log_lines.damaged(store.directory(), lost);
        let answer = Some(BatchAnswer { is_decided: true, ..BatchAnswer::default() });
        let (segment, end) = (frame.segment, frame.end);
        let held = FrameLocation::OnDisk;
        self.on_their_way.push_back(BatchOnItsWay { ticket: None, held, segment, end, counts: Vec::new(), answer });
    }

    /// Takes the answers that have come, and counts those that are in their turn.
    fn take_answers(&mut self, tallies: &mut Tallies) {
        while let Some(answer) = self.destination.take_answer() {
            for &(listener, datagrams) in &answer.repeats {
                tallies[listener].stream_repeats_at_most += datagrams;
            }
            let batch = self.on_their_way.iter_mut().find(|batch| batch.ticket == Some(answer.ticket));
            if let Some(batch) = batch.filter(|_| answer.is_decided) {
                batch.answer = Some(answer);
            }
        }
        while self.on_their_way.front().is_some_and(|batch| batch.answer.is_some()) {
            let Some(batch) = self.on_their_way.pop_front() else { return };
            self.settle(&batch, tallies);
        }
    }

    /// Counts a batch that is decided, and marks it as such on the disk.
    fn settle(&mut self, batch: &BatchOnItsWay, tallies: &mut Tallies) {
        let (Some(store), Some(answer)) = (&mut self.disk.store, &batch.answer) else { return };
        for &(listener, datagrams) in &batch.counts {
            let refused = answer.refused.iter().find(|(own, _)| *own == listener).map_or(0, |(_, refused)| *refused);
            let tally = &mut tallies[listener];
            match batch.held {
                FrameLocation::OnDisk => {
                    tally.spilled -= datagrams;
                    store.decide(batch.segment, listener, datagrams);
                }
                FrameLocation::InMemory | FrameLocation::Nowhere => tally.pending -= datagrams,
            }
            tally.delivered += datagrams - refused;
            tally.dropped.refused += refused;
            self.disk.log_lines.sent(datagrams - refused);
        }
        match batch.held {
            FrameLocation::OnDisk => {
                if let Err(error) = store.acknowledge_batch(batch.segment, batch.end) {
                    self.disk.log_lines.log_sync_error(store.directory(), &error);
                }
            }
            FrameLocation::InMemory => store.keep_unwritten(|_| false),
            FrameLocation::Nowhere => {}
        }
        if store.is_empty() {
            self.disk.log_lines.is_empty();
        }
    }

    /// Writes the buffer to the spill, or acts by `when_full`.
    fn write_out(&mut self, tallies: &mut Tallies) {
        loop {
            match self.disk.write_out(tallies) {
                WriteOutcome::Nothing => return,
                WriteOutcome::Written(lent) => return self.note_written(lent),
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
                    self.take_answers(tallies);
                    self.send_due(true, tallies);
                    // This may take as long as the destination does.
                    tallies.publish();
                    threads::blocking(|| self.destination.wait(FULL_WAIT));
                    self.take_answers(tallies);
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
        let lent_batch = self.on_their_way.iter_mut().chain(&mut self.filled);
        let batch = lent_batch.into_iter().find(|batch| batch.held == FrameLocation::InMemory);
        let (Some(batch), Some((segment, end)), Some(store)) = (batch, lent, &mut self.disk.store) else { return };
        (batch.held, batch.segment, batch.end) = (FrameLocation::OnDisk, segment, end);
        if let Err(error) = store.freeze(segment, end) {
            self.disk.log_lines.log_sync_error(store.directory(), &error);
        }
    }

    /// Gives up what could not be written. A frame of it that is on its way is decided by its answer.
    fn forget_unwritten(&mut self, tallies: &mut Tallies) {
        if let Some(store) = &mut self.disk.store
            && let Some(batch) = self.on_their_way.iter_mut().find(|batch| batch.held == FrameLocation::InMemory)
        {
            batch.held = FrameLocation::Nowhere;
            store.keep_unwritten(|_| false);
        }
        self.filled.take_if(|batch| batch.held == FrameLocation::InMemory);
        self.disk.forget_unwritten(tallies);
    }

    /// Frees space; returns false when there is nothing to give up. What is on its way is decided by its answer.
    fn give_up_oldest(&mut self, tallies: &mut Tallies) -> bool {
        let Some(store) = &mut self.disk.store else { return false };
        let Some(oldest) = store.oldest() else { return false };
        let is_hit = |batch: &&mut BatchOnItsWay| batch.held == FrameLocation::OnDisk && batch.segment == oldest;
        for batch in self.on_their_way.iter_mut().filter(is_hit) {
            batch.held = FrameLocation::Nowhere;
            for &(listener, datagrams) in &batch.counts {
                let tally = &mut tallies[listener];
                (tally.spilled, tally.pending) = (tally.spilled - datagrams, tally.pending + datagrams);
                store.decide(oldest, listener, datagrams);
            }
        }
        self.cursor.take_if(|cursor| cursor.frame.segment == oldest);
        self.filled.take_if(|batch| batch.held == FrameLocation::OnDisk && batch.segment == oldest);
        for (listener, datagrams) in store.drop_oldest() {
            tallies[listener].spilled -= datagrams;
            tallies[listener].dropped.spill_full += datagrams;
        }
        true
    }

    /// Waits for answers at the end, and sends what is there as long as batches are taken.
    fn drain_at_end(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        let limit = clock::now() + FINISH_LIMIT;
        loop {
            self.take_answers(tallies);
            self.send_due(true, tallies);
            let is_over = self.on_their_way.is_empty() && self.unsent() == 0;
            if is_over || self.on_their_way.is_empty() || self.destination.is_failing() || clock::now() >= limit {
                break;
            }
            publish(tallies);
            threads::blocking(|| self.destination.wait(ANSWER_WAIT));
        }
        self.destination.stop();
        let limit = clock::now() + FULL_WAIT;
        while !self.on_their_way.is_empty() && clock::now() < limit {
            threads::blocking(|| self.destination.wait(ANSWER_WAIT));
            self.take_answers(tallies);
        }
    }
}

/// How filling a batch from a frame has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// The batch takes no more, or ends here because it did before.
    Full,
    /// The frame has no more.
    FrameOver,
    /// The rest of the frame cannot be read.
    Torn,
}

/// Adds datagrams of a frame to the batch. One that was frozen before has the limits that it had then.
fn fill(
    destination: &mut impl BatchDestination,
    store: &SpillStore,
    cursor: &mut FrameCursor,
    frozen: Option<u64>,
    counts: &mut Vec<(usize, u64)>,
) -> Filled {
    let Frame { listener, lane, is_damaged, is_unwritten, .. } = cursor.frame;
    if is_damaged {
        return Filled::Torn;
    }
    let mut added = 0;
    let mut is_full = false;
    for datagram in PackedDatagrams::of(store.datagrams()).skip(cursor.next) {
        if is_full || cursor.is_at_end() {
            break;
        }
        let takes_no_more = destination.add(listener, lane, &datagram);
        cursor.next += 1;
        added += 1;
        is_full = match frozen {
            Some(frozen) => cursor.place() >= frozen,
            // What is in memory is decided as a whole.
            None => takes_no_more && !is_unwritten,
        };
    }
    if added > 0 {
        add_count(counts, listener, added);
    }
    match is_full {
        true => Filled::Full,
        false if cursor.is_at_end() => Filled::FrameOver,
        false => Filled::Torn,
    }
}

impl<D: BatchDestination> Sink for SpillFirst<D> {
    fn begin(&mut self) {
        self.destination.begin();
        self.disk.open_late();
        if self.unsent() > 0 {
            // It waits since an earlier process.
            self.unsent_since = clock::now().checked_sub(self.destination.triggers().every);
        }
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.disk.count_opened(tallies);
        for datagram in batch.datagrams.datagrams() {
            match &mut self.disk.store {
                Some(store) if !self.disk.is_given_up => {
                    self.unsent_bytes += datagram.payload().len() as u64;
                    if store.push(batch.lane, &datagram) {
                        self.write_out(tallies);
                    }
                }
                _ => fail(&mut tallies[batch.listener], 1),
            }
        }
        if self.unsent_since.is_none() {
            self.unsent_since = Some(clock::now());
        }
        if self.unsent_bytes >= self.destination.triggers().bytes {
            self.write_out(tallies);
            self.take_answers(tallies);
            self.send_due(false, tallies);
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.disk.count_opened(tallies);
        self.write_out(tallies);
        self.take_answers(tallies);
        self.send_due(false, tallies);
        self.disk.sync_when_due();
    }

    fn due(&self) -> Option<Instant> {
        let news = self.disk.has_news().then(clock::now);
        let batch = self.unsent_since.filter(|_| self.has_room()).map(|since| {
            let due = since + self.destination.triggers().every;
            self.retry.map_or(due, |retry| due.max(retry))
        });
        [news, batch, self.disk.next_sync, self.destination.due()].into_iter().flatten().min()
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush(tallies);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.destination.go_on_for(feeders);
    }

    fn finish(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        self.disk.count_opened(tallies);
        self.disk.is_last = true;
        self.write_out(tallies);
        self.drain_at_end(tallies, publish);
        self.write_out(tallies);
        self.forget_unwritten(tallies);
        for batch in self.on_their_way.iter().filter(|batch| batch.held == FrameLocation::Nowhere) {
            // It may have them or not.
            batch.counts.iter().for_each(|&(listener, datagrams)| fail(&mut tallies[listener], datagrams));
        }
        self.disk.close(!self.on_their_way.is_empty());
    }
}

#[cfg(test)]
#[path = "spill_first_tests.rs"]
mod tests;
