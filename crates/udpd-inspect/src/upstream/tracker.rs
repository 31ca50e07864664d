//! The thread of a listener that keeps its streams: takes the notes of all of its lanes, and publishes what they amount
//! to. Streams are kept here and not by lane, because one exporter may come by several lanes.
//!
//! What this host drops leaves gaps, too. The kernel says at each datagram how many it had dropped at the socket before
//! that. Where one stream alone comes by a lane, and nothing of it was repeated, those drops are numbers of this stream
//! that are gone, and they are taken off by count. Everywhere else they only widen the bounds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::convention::{Learning, Message, Records};
use super::note::{Key, Note, What};
use super::ring::{NOTES, Ring};
use super::settings::{Sequence, Unit};
use super::shared::Shared;
use super::stream::{Arrival, Counts, Rules, Stream};
use super::table::{NO_LANE, Place, STREAMS_MAX, Table};
use super::templates::Templates;
use udpd_base::ledger::tables::UpstreamTally;
use udpd_base::os::threads;

/// How long the thread rests while notes come. What one stream sends by several lanes meanwhile is taken lane by lane,
/// and should not be more than the window.
const REST: Duration = Duration::from_millis(4);

/// The same where there is one lane, whose ring had little in it of late and a note for each datagram at the most. One
/// message of IPFIX may be many notes, so a burst of those could fill a ring meanwhile.
const LONG_REST: Duration = Duration::from_millis(20);

/// How many notes are few.
const FEW: usize = NOTES / 16;

/// How often it looks for what has been open for too long.
const SWEEP: Duration = Duration::from_secs(1);

/// How many notes of a lane are taken before it is the turn of the next.
const TURN: usize = 4096;

/// How many numbers a datagram covers at the most, about, where it covers several.
const MANY: u64 = 32;

/// Whose drops those of a lane are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Only {
    Nobody,
    /// The stream of this place.
    One(usize),
    Several,
}

#[derive(Debug)]
struct Lane {
    ring: Arc<Ring>,
    only: Only,
    /// What the kernel had dropped when the last datagram came.
    dropped: Option<u32>,
    /// What it dropped between datagrams of the one stream: now, at the last sweep, and at the one before.
    between: [u64; 3],
    /// What counts as missing of that stream.
    missing: u64,
    /// The stream that the last note was of.
    last: usize,
    /// The records of the message whose sets are being read.
    data: Records,
    options: Records,
}

/// All that the thread owns.
#[derive(Debug)]
pub(super) struct Tracker {
    rules: Rules,
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    streams: Table,
    /// By place in the table; empty unless messages have to be learnt from.
    learning: Vec<Learning>,
    templates: Option<Templates>,
    counts: Counts,
    forgotten: u64,
    /// A lane had as many notes as are taken in a turn, and may have more.
    is_behind: bool,
}

impl Tracker {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self::with_limit(shared, STREAMS_MAX)
    }

    pub(super) fn with_limit(shared: &Arc<Shared>, limit: usize) -> Self {
        let sequence = shared.sequence;
        let scale = if sequence.unit() == Unit::Datagrams { 1 } else { MANY };
        let is_ipfix = sequence == Sequence::Ipfix;
        let lane = |ring: &Arc<Ring>| Lane {
            ring: Arc::clone(ring),
            only: if shared.knows_drops { Only::Nobody } else { Only::Several },
            dropped: None,
            between: [0; 3],
            missing: 0,
            last: 0,
            data: Records::default(),
            options: Records::default(),
        };
        Self {
            rules: Rules::new(sequence.bits(), scale),
            lanes: shared.rings.iter().map(lane).collect(),
            streams: Table::new(limit),
            learning: Vec::with_capacity(if is_ipfix { limit } else { 0 }),
            templates: is_ipfix.then(Templates::new),
            counts: Counts::default(),
            forgotten: 0,
            is_behind: false,
            shared: Arc::clone(shared),
        }
    }

    /// Takes notes until told to end, and then what is left of them: once, because a receiver that nobody could wake
    /// may go on.
    pub(super) fn run(mut self) {
        let mut swept = Instant::now();
        let mut is_unsettled = false;
        loop {
            if self.shared.is_ending.load(Ordering::Acquire) {
                self.take_notes(NOTES);
                self.settle_all();
                self.publish();
                return;
            }
            let taken = self.take_notes(TURN);
            is_unsettled |= taken > 0;
            if is_unsettled && swept.elapsed() >= SWEEP {
                is_unsettled = self.sweep();
                swept = Instant::now();
            }
            if taken > 0 {
                self.publish();
                if !self.is_behind() {
                    let is_calm = self.lanes.len() == 1 && taken <= FEW && self.templates.is_none();
                    let rest = if is_calm { LONG_REST } else { REST };
                    threads::blocking(|| std::thread::sleep(rest));
                }
            } else {
                self.sleep(is_unsettled);
            }
        }
    }

    /// Whether notes wait that the last turn had no room for.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Sleeps until a note comes, or until it is time to sweep.
    fn sleep(&self, is_unsettled: bool) {
        let is_idle =
            || self.lanes.iter().all(|lane| lane.ring.is_empty()) && !self.shared.is_ending.load(Ordering::Acquire);
        let park = || if is_unsettled { std::thread::park_timeout(SWEEP) } else { std::thread::park() };
        self.shared.bell.sleep(is_idle, || threads::blocking(park));
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

    fn take(&mut self, lane: usize, note: &Note) {
        let (key, number) = (&note.key, note.number);
        let Some(templates) = &mut self.templates else { return self.take_run(lane, note) };
        let bytes = note.units as u16;
        match note.what {
            What::Run => {}
            What::Template => templates.learn(key, number, bytes, false, false),
            What::TemplateVariable => templates.learn(key, number, bytes, true, false),
            What::OptionsTemplate => templates.learn(key, number, bytes, false, true),
            What::OptionsTemplateVariable => templates.learn(key, number, bytes, true, true),
            What::Records => {
                let counted = templates.count(key, number, bytes);
                let lane = &mut self.lanes[lane];
                let of_kind = if counted.is_options { &mut lane.options } else { &mut lane.data };
                of_kind.add(counted.records);
            }
            What::Message | What::MessageInPart => self.take_message(lane, note),
        }
    }

    /// The place of a stream, which is there from now on.
    fn place(&mut self, lane: usize, key: &Key) -> usize {
        let last = self.lanes[lane].last;
        if self.streams.is_at(last, key) {
            return last;
        }
        let place = match self.streams.find(key) {
            Place::Known(place) => place,
            Place::New(place) => {
                if self.templates.is_some() {
                    self.learning.push(Learning::NEW);
                }
                place
            }
            Place::Taken(place) => {
                self.forget(place);
                self.streams.replace(place, key);
                place
            }
        };
        self.lanes[lane].last = place;
        place
    }

    fn forget(&mut self, place: usize) {
        let before = self.counts;
        let entry = self.streams.entry(place);
        let lane = entry.lane;
        if let Some(learning) = self.learning.get_mut(place) {
            learning.flush(&mut entry.stream, &self.rules, &mut self.counts);
            *learning = Learning::NEW;
        }
        if let Some(stream) = &mut entry.stream {
            stream.settle_all(&mut self.counts);
        }
        self.forgotten += 1;
        self.attribute(lane, &before);
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.only = Only::Several;
        }
    }

    /// Datagrams that follow one another.
    fn take_run(&mut self, lane: usize, note: &Note) {
        let place = self.place(lane, &note.key);
        self.match_lane(lane, place, note.drops);
        let before = self.counts;
        let Note { number, units, datagrams, clock, .. } = *note;
        let arrival = Arrival { number, units, datagrams, clock, ..Arrival::default() };
        let entry = self.streams.entry(place);
        let (mut is_repeating, mut had_jump) = (false, false);
        match &mut entry.stream {
            None => entry.stream = Some(Stream::new(&arrival)),
            Some(stream) => {
                had_jump = stream.has_jump();
                stream.take(&self.rules, &arrival, &mut self.counts);
                is_repeating = stream.is_repeating();
            }
        }
        let is_plain = (self.counts.duplicate, self.counts.restarts) == (before.duplicate, before.restarts);
        // What jumped was not confirmed, and nobody knows whether drops went before it.
        let is_in_doubt = had_jump && self.counts.late > before.late;
        self.attribute(lane as u32, &before);
        if !is_plain || is_repeating || is_in_doubt {
            // A number that came twice may be the one that was dropped here.
            self.lanes[lane].only = Only::Several;
        }
    }

    fn take_message(&mut self, lane: usize, note: &Note) {
        let place = self.place(lane, &note.key);
        let own = &mut self.lanes[lane];
        let (mut data, options) = (std::mem::take(&mut own.data), std::mem::take(&mut own.options));
        if note.what == What::MessageInPart {
            data.most = u16::MAX;
        }
        let made_at = note.clock.made_at.unwrap_or(0);
        let message = Message { number: note.number as u32, made_at, data, options };
        let entry = self.streams.entry(place);
        entry.lane = lane as u32;
        self.learning[place].take(message, &mut entry.stream, &self.rules, &mut self.counts);
    }

    /// Notes by which lane a stream comes, and what the kernel dropped there since the last datagram.
    fn match_lane(&mut self, lane: usize, place: usize, drops: u32) {
        let entry = self.streams.entry(place);
        let came_by = std::mem::replace(&mut entry.lane, lane as u32);
        if came_by != NO_LANE && came_by != lane as u32 {
            self.lanes[came_by as usize].only = Only::Several;
            self.lanes[lane].only = Only::Several;
        }
        let own = &mut self.lanes[lane];
        own.only = match own.only {
            Only::Nobody => Only::One(place),
            Only::One(other) if other == place => own.only,
            _ => Only::Several,
        };
        match own.dropped.replace(drops) {
            // Another socket has taken the place of the one, or the count has wrapped.
            Some(last) if drops < last => own.only = Only::Several,
            Some(last) => own.between[0] += u64::from(drops - last),
            None => {}
        }
    }

    /// Writes down which lane the change of what is missing belongs to.
    fn attribute(&mut self, lane: u32, before: &Counts) {
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.missing = lane.missing.wrapping_add(self.counts.missing.wrapping_sub(before.missing));
        }
    }

    /// Settles what has been open since the last sweep; returns whether something still is.
    pub(super) fn sweep(&mut self) -> bool {
        let mut is_unsettled = false;
        for place in 0..self.streams.len() {
            let before = self.counts;
            let entry = &mut self.streams.all()[place];
            if let Some(learning) = self.learning.get_mut(place) {
                is_unsettled |= learning.sweep(&mut entry.stream, &self.rules, &mut self.counts);
            }
            let lane = entry.lane;
            let Some(stream) = entry.stream.as_mut().filter(|stream| stream.has_open_gaps()) else { continue };
            stream.sweep(&mut self.counts);
            is_unsettled |= stream.has_open_gaps();
            self.attribute(lane, &before);
        }
        for lane in &mut self.lanes {
            is_unsettled |= lane.between[0] != lane.between[2];
            lane.between = [lane.between[0], lane.between[0], lane.between[1]];
        }
        self.publish();
        is_unsettled
    }

    pub(super) fn settle_all(&mut self) {
        for place in 0..self.streams.len() {
            let before = self.counts;
            let entry = &mut self.streams.all()[place];
            let lane = entry.lane;
            if let Some(learning) = self.learning.get_mut(place) {
                learning.flush(&mut entry.stream, &self.rules, &mut self.counts);
            }
            if let Some(stream) = &mut entry.stream {
                if let Some(lane) = self.lanes.get_mut(lane as usize).filter(|_| stream.has_jump()) {
                    // Before what is not confirmed there may have been drops, which leave no gap now.
                    lane.only = Only::Several;
                }
                stream.settle_all(&mut self.counts);
            }
            self.attribute(lane, &before);
        }
        self.lanes.iter_mut().for_each(|lane| lane.between = [lane.between[0]; 3]);
    }

    pub(super) fn publish(&mut self) {
        let (mut dropped_sure, mut dropped_perhaps) = (0, 0);
        for (lane, is_matched) in self.lanes.iter().zip(&self.shared.is_matched) {
            let Ring { unnumbered, unseen, is_other_socket, .. } = &*lane.ring;
            // What has no number, or was not followed, comes by this lane as well: it may be what was dropped.
            let is_alone = unnumbered.load(Ordering::Relaxed) == 0 && unseen.load(Ordering::Relaxed) == 0;
            let is_one_count = !is_other_socket.load(Ordering::Relaxed);
            // What was dropped before a jump leaves no gap until that is confirmed.
            let has_gaps = match lane.only {
                Only::One(place) => !self.streams.entry(place).stream.as_ref().is_some_and(Stream::has_jump),
                Only::Nobody | Only::Several => false,
            };
            let matches = has_gaps && is_alone && is_one_count;
            is_matched.store(matches, Ordering::Relaxed);
            if matches {
                dropped_sure += lane.between[2].min(lane.missing);
                dropped_perhaps += lane.between[0].min(lane.missing);
            }
        }
        let Counts { missing, uncertain, reordered, late, duplicate, restarts } = self.counts;
        let forgotten = self.forgotten;
        self.shared.tally.publish(&UpstreamTally {
            reordered,
            late,
            duplicate,
            restarts,
            forgotten,
            streams: self.streams.len() as u64,
            gone: missing,
            uncertain,
            dropped_sure,
            dropped_perhaps,
        });
    }
}
