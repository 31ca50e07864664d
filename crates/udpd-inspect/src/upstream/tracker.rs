//! The thread of a listener that tracks its streams: it takes the notes of all lanes and publishes the counts. Streams
//! are not tracked by lane, because one exporter may come by several lanes.
//!
//! What this host drops leaves gaps, too. The kernel tells with each datagram how many it had dropped at the socket
//! before. Where a lane has one stream only and nothing of it was repeated, those drops are missing numbers of that
//! stream, and their count is subtracted. Everywhere else they only widen the bounds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ipfix::{CountedStream, IpfixMessage, Learning, MessageRecords, RecordFormat, Templates};
use super::note_ring::{NOTES, NoteKind, NoteRing, SequenceNote, StreamKey};
use super::records::{self, HostLoss, HostLossChange, JUDGED_AFTER_S};
use super::settings::SequenceUnit;
use super::stream::{Arrival, NumberedStream, SequenceRules, StreamCounts};
use super::table::{NO_LANE, STREAMS_MAX, StreamEntry, StreamSlot, StreamTable};
use super::{MonitorState, NOT_MATCHED};
use udpd_base::ledger::counter_list::UpstreamTally;
use udpd_base::os::threads;
use udpd_base::seams::{clock, waits};

/// How long the thread rests while notes come. What one stream sends by several lanes meanwhile is taken lane by lane,
/// and should be less than the window.
const REST: Duration = Duration::from_millis(4);

/// The same with one lane whose ring had few notes. Not for IPFIX: a message may be many notes, so a burst could fill
/// the ring meanwhile.
const LONG_REST: Duration = Duration::from_millis(20);

/// How many notes are few.
const FEW: usize = NOTES / 16;

/// How often gaps are checked that have been open for too long.
const SWEEP: Duration = Duration::from_secs(1);

/// How many notes of a lane are taken before the next lane's.
const TURN: usize = 4096;

/// About how many numbers a datagram covers at the most, where it covers several.
const MANY: u64 = 32;

/// The streams that came by a lane, and so which stream its kernel drops belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneStreams {
    None,
    /// The stream at this place of the table.
    One(usize),
    /// Several, or drops and gaps of the one cannot be compared.
    Several,
}

#[derive(Debug)]
struct LaneNotes {
    ring: Arc<NoteRing>,
    streams: LaneStreams,
    /// What the kernel had dropped when the last datagram came.
    dropped: Option<u32>,
    /// What it dropped between datagrams of the one stream: until now, the last sweep, and the sweep before.
    between: [u64; 3],
    /// How many numbers of that stream count as missing.
    missing: u64,
    /// The place of the stream of the last note.
    last: usize,
    /// The records of the message whose sets are being read.
    records: MessageRecords,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct StreamTracker {
    /// For protocols that number datagrams, and for those that number what is in them.
    rules: [SequenceRules; 2],
    shared: Arc<MonitorState>,
    lanes: Vec<LaneNotes>,
    streams: StreamTable,
    /// By place in the table; empty unless the protocol is IPFIX.
    learning: Vec<Learning>,
    templates: Option<Templates>,
    counts: StreamCounts,
    forgotten: u64,
    losing: u64,
    silent: u64,
    silences: u64,
    /// What may be missing of messages of IPFIX that wait, as of the last sweep.
    held: u64,
    /// What this host had lost when streams were judged last; `None` before the first time.
    host_loss: Option<HostLoss>,
    /// When that was, and when it was known last that this host had lost more.
    judged_s: u32,
    dropped_s: u32,
    /// Room for the places of the streams that are heard.
    heard: Vec<u32>,
    /// Seconds since the listener was made.
    pub(super) now_s: u32,
    /// Whether a lane had as many notes as are taken in a turn, and may have more.
    pub(super) is_behind: bool,
}

impl StreamTracker {
    pub(super) fn new(shared: &Arc<MonitorState>) -> Self {
        Self::with_limit(shared, STREAMS_MAX)
    }

    pub(super) fn with_limit(shared: &Arc<MonitorState>, limit: usize) -> Self {
        let sequence = shared.sequence;
        let has_messages = sequence.has_messages();
        let lane = |ring: &Arc<NoteRing>| LaneNotes {
            ring: Arc::clone(ring),
            streams: if shared.knows_drops { LaneStreams::None } else { LaneStreams::Several },
            dropped: None,
            between: [0; 3],
            missing: 0,
            last: 0,
            records: MessageRecords::default(),
        };
        threads::lock(&shared.records).reserve_exact(limit);
        let mut streams = StreamTable::new(limit);
        streams.idle_s = streams.idle_s.max(shared.silence_s.saturating_mul(2));
        Self {
            rules: [1, MANY].map(|scale| SequenceRules::new(sequence.bits(), scale)),
            lanes: shared.rings.iter().map(lane).collect(),
            streams,
            learning: Vec::with_capacity(if has_messages { limit } else { 0 }),
            templates: has_messages.then(Templates::new),
            counts: StreamCounts::default(),
            forgotten: 0,
            losing: 0,
            silent: 0,
            silences: 0,
            held: 0,
            host_loss: None,
            judged_s: 0,
            dropped_s: 0,
            heard: Vec::with_capacity(limit),
            now_s: 0,
            is_behind: false,
            shared: Arc::clone(shared),
        }
    }

    /// Takes notes until told to end, and then the remaining ones once: a receiver may still be running.
    pub(super) fn run(mut self) {
        let mut swept = clock::now();
        let watches_silence = self.shared.silence_s > 0;
        let mut is_unsettled = watches_silence;
        loop {
            self.now_s = clock::since(self.shared.started).as_secs() as u32;
            if self.shared.is_ending.load(Ordering::Acquire) {
                self.take_notes(NOTES);
                self.settle_all();
                self.publish();
                return;
            }
            let taken = self.take_notes(TURN);
            is_unsettled |= taken > 0;
            if is_unsettled && clock::since(swept) >= SWEEP {
                is_unsettled = self.sweep() || watches_silence;
                swept = clock::now();
            }
            if taken > 0 {
                self.publish();
                if !self.is_behind {
                    let is_calm = self.lanes.len() == 1 && taken <= FEW && self.templates.is_none();
                    let rest = if is_calm { LONG_REST } else { REST };
                    threads::blocking(|| clock::sleep(rest));
                }
            } else {
                self.sleep(is_unsettled);
            }
        }
    }

    /// Sleeps until a note comes, or until it is time to sweep.
    fn sleep(&self, is_unsettled: bool) {
        let is_idle =
            || self.lanes.iter().all(|lane| lane.ring.is_empty()) && !self.shared.is_ending.load(Ordering::Acquire);
        let park = || waits::park(is_unsettled.then(|| clock::now() + SWEEP));
        self.shared.waker.sleep(is_idle, || threads::blocking(park));
    }

    /// Takes what the lanes have left, at most `limit` of each; returns how many notes that was.
    pub(super) fn take_notes(&mut self, limit: usize) -> usize {
        let mut taken = 0;
        self.is_behind = false;
        for lane in 0..self.lanes.len() {
            let ring = Arc::clone(&self.lanes[lane].ring);
            let of_lane = ring.read(limit, |note| self.take(lane, &note));
            self.is_behind |= of_lane == limit;
            taken += of_lane;
        }
        taken
    }

    fn take(&mut self, lane: usize, note: &SequenceNote) {
        let (key, number) = (&note.key, note.number);
        let Some(templates) = &mut self.templates else { return self.take_run(lane, note) };
        match note.kind {
            NoteKind::Run => self.take_run(lane, note),
            NoteKind::Template => templates.learn(key, number, RecordFormat::from_units(note.units)),
            NoteKind::Records => {
                templates.count(key, number, note.units as u16, &mut self.lanes[lane].records);
            }
            NoteKind::Message | NoteKind::MessageInPart => self.take_message(lane, note),
        }
    }

    /// The place of a stream in the table. A new one gets a place.
    fn place(&mut self, lane: usize, key: &StreamKey) -> usize {
        let last = self.lanes[lane].last;
        if self.streams.is_at(last, key) {
            return last;
        }
        let place = match self.streams.find(key, self.now_s) {
            StreamSlot::Known(place) => place,
            StreamSlot::New(place) => {
                if self.templates.is_some() {
                    self.learning.push(Learning::default());
                }
                place
            }
            StreamSlot::Taken(place) => {
                self.forget(place);
                self.streams.replace(place, key, self.now_s);
                place
            }
        };
        self.lanes[lane].last = place;
        place
    }

    fn forget(&mut self, place: usize) {
        self.settle(place);
        if let Some(learning) = self.learning.get_mut(place) {
            *learning = Learning::default();
        }
        self.forgotten += 1;
        let lane = self.streams.entry(place).lane;
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.streams = LaneStreams::Several;
        }
    }

    /// What the numbers of a stream allow.
    fn rules(&self, place: usize) -> SequenceRules {
        let unit = self.shared.sequence.of_stream(self.streams.at(place).record.key.stream).unit();
        self.rules[usize::from(unit != SequenceUnit::Datagrams)]
    }

    /// Settles all gaps of a stream, and what waits to be taken of it.
    fn settle(&mut self, place: usize) {
        let rules = self.rules(place);
        let StreamEntry { stream, lane, record, .. } = self.streams.entry(place);
        let (lane, before) = (*lane, record.counts);
        if let Some(learning) = self.learning.get_mut(place) {
            learning.flush(&mut CountedStream { stream, rules: &rules, counts: &mut record.counts });
        }
        if let Some(stream) = stream {
            if let Some(lane) = self.lanes.get_mut(lane as usize).filter(|_| stream.has_jump()) {
                // Drops may have preceded the unconfirmed jump, and they leave no gap now.
                lane.streams = LaneStreams::Several;
            }
            stream.settle_all(&mut record.counts);
        }
        record.held = 0;
        let now = record.counts;
        self.attribute(lane, &before, &now);
    }

    /// Takes a run of consecutive datagrams.
    fn take_run(&mut self, lane: usize, note: &SequenceNote) {
        let place = self.place(lane, &note.key);
        self.match_lane(lane, place, note.drops);
        let (rules, now_s) = (self.rules(place), self.now_s);
        let SequenceNote { number, units, datagrams, clock, .. } = *note;
        let arrival = Arrival { number, units, datagrams, clock, ..Arrival::default() };
        let StreamEntry { stream, record, .. } = self.streams.entry(place);
        let before = record.counts;
        record.arrived += u64::from(units);
        record.heard_s = now_s;
        let (mut is_repeating, mut had_jump) = (false, false);
        match stream {
            None => *stream = Some(NumberedStream::new(&arrival)),
            Some(stream) => {
                had_jump = stream.has_jump();
                stream.take(&rules, &arrival, &mut record.counts);
                is_repeating = stream.is_repeating();
            }
        }
        record.span = stream.as_ref().map(NumberedStream::span);
        let now = record.counts;
        let is_plain = (now.duplicate, now.restarts) == (before.duplicate, before.restarts);
        // The jump was not confirmed, and it is not known whether drops preceded it.
        let is_in_doubt = had_jump && now.late > before.late;
        self.attribute(lane as u32, &before, &now);
        if !is_plain || is_repeating || is_in_doubt {
            // Of a number that came twice, one copy may have been dropped here.
            self.lanes[lane].streams = LaneStreams::Several;
        }
    }

    fn take_message(&mut self, lane: usize, note: &SequenceNote) {
        let place = self.place(lane, &note.key);
        let mut records = std::mem::take(&mut self.lanes[lane].records);
        if note.kind == NoteKind::MessageInPart {
            records.data.most = u16::MAX;
        }
        let made_at = note.clock.made_at.unwrap_or(0);
        let message = IpfixMessage { number: note.number as u32, made_at, records };
        let (rules, now_s) = (self.rules(place), self.now_s);
        let StreamEntry { stream, record, lane: of_stream, .. } = self.streams.entry(place);
        *of_stream = lane as u32;
        let before = record.counts;
        record.arrived += u64::from(message.records.data.least);
        record.heard_s = now_s;
        self.learning[place].take(message, &mut CountedStream { stream, rules: &rules, counts: &mut record.counts });
        let now = record.counts;
        self.attribute(lane as u32, &before, &now);
    }

    /// Notes by which lane a stream came, and what the kernel dropped there since the last datagram.
    fn match_lane(&mut self, lane: usize, place: usize, drops: u32) {
        let entry = self.streams.entry(place);
        let came_by = std::mem::replace(&mut entry.lane, lane as u32);
        if came_by != NO_LANE && came_by != lane as u32 {
            self.lanes[came_by as usize].streams = LaneStreams::Several;
            self.lanes[lane].streams = LaneStreams::Several;
        }
        let own = &mut self.lanes[lane];
        own.streams = match own.streams {
            LaneStreams::None => LaneStreams::One(place),
            LaneStreams::One(other) if other == place => own.streams,
            _ => LaneStreams::Several,
        };
        match own.dropped.replace(drops) {
            // The lane has another socket, or the count has wrapped.
            Some(last) if drops < last => own.streams = LaneStreams::Several,
            Some(last) => own.between[0] += u64::from(drops - last),
            None => {}
        }
    }

    /// Counts what a stream has counted for all streams, and attributes the missing numbers to a lane.
    fn attribute(&mut self, lane: u32, before: &StreamCounts, now: &StreamCounts) {
        self.counts.add_change(before, now);
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.missing = lane.missing.wrapping_add(now.missing.wrapping_sub(before.missing));
        }
    }

    /// Settles gaps that have been open since the last sweep; returns whether some are still open, or a stream loses.
    pub(super) fn sweep(&mut self) -> bool {
        self.shared.swept_s.store(self.now_s, Ordering::Release);
        let mut is_unsettled = false;
        self.held = 0;
        for place in 0..self.streams.len() {
            self.streams.establish(place, self.now_s);
            let rules = self.rules(place);
            let StreamEntry { stream, lane, record, .. } = self.streams.entry(place);
            let (lane, before) = (*lane, record.counts);
            if let Some(learning) = self.learning.get_mut(place) {
                let mut stream = CountedStream { stream, rules: &rules, counts: &mut record.counts };
                let (is_open, held) = learning.sweep(&mut stream);
                is_unsettled |= is_open;
                record.held = held;
                self.held += held;
            }
            if let Some(stream) = stream.as_mut().filter(|stream| stream.has_open_gaps()) {
                stream.sweep(&mut record.counts);
                is_unsettled |= stream.has_open_gaps();
            }
            let now = record.counts;
            self.attribute(lane, &before, &now);
        }
        for lane in &mut self.lanes {
            is_unsettled |= lane.between[0] != lane.between[2];
            lane.between = [lane.between[0], lane.between[0], lane.between[1]];
        }
        is_unsettled |= self.look_at_streams();
        self.publish();
        is_unsettled
    }

    /// Notes what has changed with each stream, and shows readers what was counted of it. Returns whether one loses, or
    /// is to be judged.
    fn look_at_streams(&mut self) -> bool {
        self.streams.entries().iter_mut().for_each(|entry| entry.record.dropped = [0; 2]);
        for lane in &self.lanes {
            if let Some(place) = self.matching(lane) {
                let dropped = [lane.between[2], lane.between[0]].map(|dropped| dropped.min(lane.missing));
                self.streams.entry(place).record.dropped = dropped;
            }
        }
        self.judge_streams();
        let (now_s, silence_s) = (self.now_s, self.shared.silence_s);
        self.losing = 0;
        let mut is_unsettled = false;
        for StreamEntry { record, .. } in self.streams.entries() {
            if let Some(change) = record.look(now_s) {
                self.shared.note(change, record);
            }
            self.losing += u64::from(record.is_losing());
            is_unsettled |= record.is_established && record.is_unsettled();
        }
        if silence_s > 0 {
            records::look_for_silence(self.streams.entries(), &mut self.heard, (now_s, silence_s), |change, record| {
                self.silences += u64::from(record.is_silent());
                self.shared.note(change, record);
            });
        }
        let mut shown = threads::lock(&self.shared.records);
        shown.clear();
        shown.extend(self.streams.entries().iter().map(|entry| entry.record));
        self.silent = shown.iter().filter(|record| record.is_silent()).count() as u64;
        is_unsettled
    }

    /// Judges of each stream whether it loses on its way, once a reading tells of all that this host had lost when the
    /// streams were judged last.
    fn judge_streams(&mut self) {
        let Some(here) = *threads::lock(&self.shared.host_loss) else { return };
        if self.host_loss.is_some() && here.swept_s < self.judged_s + JUDGED_AFTER_S {
            return;
        }
        // What was lost before the first time may have been of any stream that there is.
        let none = HostLoss { datagrams: Some(0), ..here };
        let change = HostLossChange::between(self.host_loss.as_ref().unwrap_or(&none), &here);
        let now_s = self.now_s;
        (self.host_loss, self.judged_s) = (Some(here), now_s);
        if change.more > 0 {
            self.dropped_s = now_s;
        }
        for place in 0..self.streams.len() {
            let is_waiting = self.learning.get(place).is_some_and(Learning::is_waiting);
            let StreamEntry { record, stream, .. } = self.streams.entry(place);
            if record.is_established {
                if let Some(change) = record.judge(now_s, change) {
                    self.shared.note(change, record);
                }
            } else {
                record.excuse(change);
            }
            let is_complete =
                !is_waiting && stream.as_ref().is_some_and(|stream| !stream.has_open_gaps() && !stream.has_jump());
            if is_complete && record.heard_s > self.dropped_s {
                record.excuse_no_more();
            }
        }
    }

    pub(super) fn settle_all(&mut self) {
        (0..self.streams.len()).for_each(|place| self.settle(place));
        self.lanes.iter_mut().for_each(|lane| lane.between = [lane.between[0]; 3]);
        self.held = 0;
        self.look_at_streams();
    }

    /// The one stream of a lane, where the drops of the lane are missing numbers of it.
    fn matching(&self, lane: &LaneNotes) -> Option<usize> {
        let NoteRing { unnumbered, unseen, is_other_socket, .. } = &*lane.ring;
        // Datagrams without a number, or unseen ones, come by this lane as well: they may be what was dropped.
        let is_alone = unnumbered.load(Ordering::Relaxed) == 0 && unseen.load(Ordering::Relaxed) == 0;
        let is_one_count = !is_other_socket.load(Ordering::Relaxed);
        match lane.streams {
            // Drops before a jump leave no gap until the jump is confirmed.
            LaneStreams::One(place) if is_alone && is_one_count => {
                let has_jump = self.streams.at(place).stream.as_ref().is_some_and(NumberedStream::has_jump);
                (!has_jump).then_some(place)
            }
            _ => None,
        }
    }

    pub(super) fn publish(&mut self) {
        let (mut dropped_sure, mut dropped_perhaps) = (0, 0);
        for (lane, matched) in self.lanes.iter().zip(&self.shared.matched) {
            let matches = self.matching(lane).is_some();
            matched.store(if matches { lane.between[0] } else { NOT_MATCHED }, Ordering::Relaxed);
            if matches {
                dropped_sure += lane.between[2].min(lane.missing);
                dropped_perhaps += lane.between[0].min(lane.missing);
            }
        }
        let StreamCounts { missing, uncertain, reordered, late, duplicate, restarts } = self.counts;
        let forgotten = self.forgotten;
        self.shared.tally.publish(&UpstreamTally {
            reordered,
            late,
            duplicate,
            restarts,
            forgotten,
            streams: self.streams.len() as u64,
            losing: self.losing,
            silent: self.silent,
            silences: self.silences,
            gone: missing,
            uncertain: uncertain + self.held,
            dropped_sure,
            dropped_perhaps,
        });
    }
}
