//! The receiver's side: reads the sequence number of each datagram of a batch and writes notes, before anything of the
//! batch is dropped.
//!
//! Consecutive datagrams of a stream share a note: a run. A few runs of a batch may be open at a time, each in the
//! place that the key of its stream selects or in the place next to it, so many streams that alternate cost one note
//! each and not one a datagram. A stream that finds both places in use closes a run: that costs a note, and nothing is
//! lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mmsg::{Datagram, RecvBatch};

use super::header::{self, SequenceHeader};
use super::ipfix::{self, Set};
use super::note_ring::{NoteKind, NoteRing, NoteWriter, SequenceNote, StreamKey, TrackerWaker};
use super::settings::Sequence;
use udpd_base::capture::headers;

/// How many sets and templates of a message are noted. How many records further sets have is not known.
const SETS_MAX: usize = 31;

/// Reads the sequence numbers of one lane.
#[derive(Debug)]
pub struct Observer {
    sequence: Sequence,
    /// Whether the kernel tells with each datagram how many it has dropped before.
    knows_drops: bool,
    ring: Arc<NoteRing>,
    writer: NoteWriter,
    waker: Arc<TrackerWaker>,
    runs: Runs,
    /// A copy of what the ring has.
    units_max: u64,
    /// The notes of a message, until they are written in one piece.
    notes: [SequenceNote; SETS_MAX + 1],
}

impl Observer {
    pub(super) fn new(sequence: Sequence, knows_drops: bool, ring: Arc<NoteRing>, waker: Arc<TrackerWaker>) -> Self {
        let writer = NoteWriter::new(Arc::clone(&ring));
        let units_max = ring.units_max.load(Ordering::Relaxed);
        Self {
            sequence,
            knows_drops,
            ring,
            writer,
            waker,
            runs: Runs::new(sequence.bits()),
            units_max,
            notes: [SequenceNote::default(); SETS_MAX + 1],
        }
    }

    /// Notes the numbers of a batch. To be called before anything of it is discarded.
    pub fn observe(&mut self, batch: &RecvBatch) {
        self.observe_each(batch.datagrams());
    }

    /// The same for any datagrams.
    pub(super) fn observe_each<'a>(&mut self, all: impl Iterator<Item = Datagram<'a>>) {
        // A loop for each protocol, so that no protocol pays for what only others have.
        match self.sequence {
            Sequence::NetFlow5 => self.note_runs(all, |payload, _| header::netflow5(payload)),
            Sequence::NetFlow9 => self.note_runs(all, |payload, _| header::netflow9(payload)),
            Sequence::Ipfix => self.note_messages(all),
            Sequence::Sflow => self.note_runs(all, |payload, _| header::sflow(payload)),
            Sequence::Rtp => self.note_runs(all, |payload, _| header::rtp(payload)),
            Sequence::Fixed(place) => self.note_runs(all, |payload, port| header::fixed(place, payload, port)),
        }
        self.writer.publish();
        self.waker.wake();
    }

    /// Notes that the lane receives from another socket from now on. The kernel counts the drops of that one from zero.
    pub fn note_other_socket(&mut self) {
        self.ring.is_other_socket.store(true, Ordering::Relaxed);
    }

    /// Notes each run of consecutive numbers. `parse` reads a header, given the sender's port.
    #[inline]
    fn note_runs<'a>(
        &mut self,
        all: impl Iterator<Item = Datagram<'a>>,
        parse: impl Fn(&[u8], u16) -> Option<SequenceHeader>,
    ) {
        for datagram in all {
            let source = headers::source(&datagram);
            let Some(header) = parse(datagram.payload(), source.port()) else {
                add(&self.ring.unnumbered, 1);
                continue;
            };
            let key = StreamKey::new(source.ip(), header.stream);
            let drops = if self.knows_drops { datagram.drop_overflow().unwrap_or(0) } else { 0 };
            if !self.runs.go_on(&key, &header, drops) {
                self.begin(key, header, drops);
            }
            if u64::from(header.units) > self.units_max {
                self.units_max = header.units.into();
                self.ring.units_max.store(self.units_max, Ordering::Relaxed);
            }
        }
        while let Some(run) = self.runs.pop() {
            write_run(&mut self.writer, &self.ring, run);
        }
    }

    /// Begins a run with this datagram. Not inlined, so that a datagram that continues a run never builds a note in
    /// memory.
    #[inline(never)]
    fn begin(&mut self, key: StreamKey, header: SequenceHeader, drops: u32) {
        let SequenceHeader { number, units, clock, .. } = header;
        let run = SequenceNote { key, kind: NoteKind::Run, number, units, datagrams: 1, clock, drops };
        self.runs.begin(&run, |closed| write_run(&mut self.writer, &self.ring, closed));
    }

    /// Notes IPFIX messages. What a message covers is known only when its sets have been read, so there are no runs.
    fn note_messages<'a>(&mut self, all: impl Iterator<Item = Datagram<'a>>) {
        for datagram in all {
            let Some(header) = header::ipfix(datagram.payload()) else {
                add(&self.ring.unnumbered, 1);
                continue;
            };
            let key = StreamKey::new(headers::source(&datagram).ip(), header.stream);
            self.note_message(key, &header, datagram.payload());
        }
    }

    /// Notes a message and its sets in one piece.
    fn note_message(&mut self, key: StreamKey, header: &SequenceHeader, payload: &[u8]) {
        let SequenceHeader { number, clock, .. } = *header;
        let notes = &mut self.notes;
        let mut count = 0;
        let is_whole = ipfix::each_set(payload, |set| {
            let Some(note) = notes[..SETS_MAX].get_mut(count) else { return false };
            let (kind, number, units) = match set {
                Set::Records { template, bytes } => (NoteKind::Records, template, bytes.into()),
                Set::Template { template, format } => (NoteKind::Template, template, format.to_units()),
            };
            *note = SequenceNote { key, kind, number: number.into(), units, ..SequenceNote::default() };
            count += 1;
            true
        });
        let kind = if is_whole { NoteKind::Message } else { NoteKind::MessageInPart };
        notes[count] = SequenceNote { key, kind, number, units: 0, datagrams: 1, clock, drops: 0 };
        if !self.writer.write(&notes[..=count]) {
            add(&self.ring.unseen, 1);
        }
    }
}

fn write_run(writer: &mut NoteWriter, ring: &NoteRing, run: &SequenceNote) {
    if !writer.write(std::slice::from_ref(run)) {
        add(&ring.unseen, run.datagrams.into());
    }
}

/// Adds to a count that only this thread changes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// How many runs may be open: one bit each, and few enough to stay in the first cache.
const PLACES: usize = u64::BITS as usize;

/// The open runs of one receiver. None is open between batches.
#[derive(Debug)]
struct Runs {
    /// One bit for each place in use.
    open: u64,
    places: [SequenceNote; PLACES],
    /// The bits of the protocol's numbers, which wrap.
    mask: u64,
}

impl Runs {
    fn new(bits: u32) -> Self {
        Self { open: 0, places: [SequenceNote::default(); PLACES], mask: u64::MAX >> (64 - bits) }
    }

    /// Adds this datagram to the open run of its stream. False where there is none, or where it does not continue it.
    #[inline]
    fn go_on(&mut self, key: &StreamKey, header: &SequenceHeader, drops: u32) -> bool {
        let first = place(key);
        let is_there = |place: usize| self.places[place].key == *key && self.is_open(place);
        let place = if is_there(first) {
            first
        } else if is_there(first ^ 1) {
            first ^ 1
        } else {
            return false;
        };
        let run = &mut self.places[place];
        if run.number.wrapping_add(run.units.into()) & self.mask == header.number
            && run.drops == drops
            // A run has the clock of its last datagram, and the first one must not seem later than it is.
            && run.clock.made_at == header.clock.made_at
            && let Some(units) = run.units.checked_add(header.units)
            && let Some(datagrams) = run.datagrams.checked_add(1)
        {
            (run.units, run.datagrams, run.clock) = (units, datagrams, header.clock);
            return true;
        }
        false
    }

    /// Begins a run. A run that has its place is closed.
    #[inline]
    fn begin(&mut self, run: &SequenceNote, close: impl FnOnce(&SequenceNote)) {
        let first = place(&run.key);
        let neighbour = first ^ 1;
        let is_for = |place: usize| !self.is_open(place) || self.places[place].key == run.key;
        // The neighbour takes what finds its place in use.
        let place = if !is_for(first) && is_for(neighbour) { neighbour } else { first };
        if self.is_open(place) {
            close(&self.places[place]);
        }
        self.open |= 1 << place;
        self.places[place] = *run;
    }

    #[inline]
    fn is_open(&self, place: usize) -> bool {
        self.open >> place & 1 == 1
    }

    /// Closes one of the runs that are open.
    fn pop(&mut self) -> Option<&SequenceNote> {
        let place = (self.open != 0).then(|| self.open.trailing_zeros() as usize)?;
        self.open &= self.open - 1;
        Some(&self.places[place])
    }
}

/// The place of a stream. A sender that aims at the place of another only causes a note for each datagram.
#[inline]
fn place(key: &StreamKey) -> usize {
    let source = (key.source >> 64) as u64 ^ key.source as u64;
    // The fractions of the golden ratio and of the root of 2: multiples of either lie far from each other.
    let mixed = key.stream.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(source.wrapping_mul(0x6a09_e667_f3bc_c909));
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a datagram as the receiver does; returns the run that this closes.
    fn push(runs: &mut Runs, note: &SequenceNote) -> Option<SequenceNote> {
        let header =
            SequenceHeader { stream: note.key.stream, number: note.number, units: note.units, clock: note.clock };
        let mut closed = None;
        if !runs.go_on(&note.key, &header, note.drops) {
            runs.begin(note, |run| closed = Some(*run));
        }
        closed
    }

    fn note(stream: u64, number: u64) -> SequenceNote {
        SequenceNote { key: StreamKey { source: 7, stream }, number, units: 1, datagrams: 1, ..SequenceNote::default() }
    }

    fn rest(runs: &mut Runs) -> Vec<(u64, u64, u32, u16)> {
        let mut closed: Vec<_> = std::iter::from_fn(|| runs.pop().copied()).map(|note| short(&note)).collect();
        closed.sort_unstable();
        closed
    }

    fn short(note: &SequenceNote) -> (u64, u64, u32, u16) {
        (note.key.stream, note.number, note.units, note.datagrams)
    }

    #[test]
    fn streams_that_come_by_turns_have_a_run_each() {
        let mut runs = Runs::new(16);
        for number in 65_530..65_550 {
            for stream in 0..3 {
                assert_eq!(push(&mut runs, &note(stream, number & 0xffff)), None);
            }
        }
        assert_eq!(rest(&mut runs), [(0, 65_530, 20, 20), (1, 65_530, 20, 20), (2, 65_530, 20, 20)]);
        assert_eq!(rest(&mut runs), []);
    }

    #[test]
    fn a_gap_a_step_back_and_a_drop_close_a_run_and_begin_another() {
        let mut runs = Runs::new(32);
        let mut closed = |note: &SequenceNote| push(&mut runs, note).as_ref().map(short);
        assert_eq!(closed(&note(1, 5)), None);
        assert_eq!(closed(&note(1, 6)), None);
        assert_eq!(closed(&note(1, 8)), Some((1, 5, 2, 2)));
        assert_eq!(closed(&note(1, 7)), Some((1, 8, 1, 1)));
        assert_eq!(closed(&SequenceNote { drops: 1, ..note(1, 8) }), Some((1, 7, 1, 1)));
        assert_eq!(rest(&mut runs), [(1, 8, 1, 1)]);
    }

    #[test]
    fn more_streams_than_places_lose_nothing_and_keep_the_order_of_each() {
        let mut runs = Runs::new(64);
        let mut seen = vec![Vec::new(); 1000];
        let mut write = |note: &SequenceNote| {
            let numbers = note.number..note.number + u64::from(note.units);
            seen[note.key.stream as usize].extend(numbers);
        };
        for number in 0..50 {
            for stream in 0..1000 {
                push(&mut runs, &note(stream, number)).iter().for_each(&mut write);
            }
        }
        while let Some(note) = runs.pop() {
            write(note);
        }
        let expected: Vec<u64> = (0..50).collect();
        assert!(seen.iter().all(|numbers| *numbers == expected));
    }

    #[test]
    fn neighbours_hardly_share_a_place() {
        let v4 = |number: u64| u128::from(0xffff_0a00_0000 + number);
        let by_port = |port: u64| StreamKey { source: v4(1), stream: 40_000 + port };
        let by_address = |number: u64| StreamKey { source: v4(number), stream: 0 };
        for keys in [(0..16).map(by_port).collect::<Vec<_>>(), (0..16).map(by_address).collect()] {
            let places: std::collections::HashSet<_> = keys.iter().map(place).collect();
            assert!(places.len() >= 14, "{places:?}");
        }
    }
}
