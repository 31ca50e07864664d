//! The receiver's side: reads the sequence number of each datagram of a batch and writes notes, before anything of the
//! batch is dropped.
//!
//! Consecutive datagrams of a stream share a note: a run. A few runs of a batch may be open at a time, each in the
//! place that the key of its stream selects or in the place next to it, so many streams that alternate cost one note
//! each and not one a datagram. A stream that finds both places in use closes a run: that costs a note, and nothing is
//! lost.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mmsg::{Datagram, RecvBatch};

use super::header::{self, SequenceHeader, VERSION_AT};
use super::ipfix::{self, Set};
use super::note_ring::{NoteKind, NoteRing, NoteWriter, SequenceNote, StreamKey, TrackerWaker};
use super::settings::Sequence;
use udpd_base::capture::headers;
use udpd_base::os::threads;

/// How many sets and templates of a message are noted. How many records further sets have is not known.
const SETS_MAX: usize = 31;

/// The version of a message of IPFIX.
const IPFIX: u16 = 10;

/// Reads the sequence numbers of one lane.
#[derive(Debug)]
pub struct Observer {
    sequence: Sequence,
    /// Whether the kernel tells with each datagram how many it has dropped before.
    knows_drops: bool,
    ring: Arc<NoteRing>,
    writer: NoteWriter,
    waker: Arc<TrackerWaker>,
    destinations: LaneDestinations,
    runs: Runs,
    /// A copy of what the ring has.
    units_max: u64,
    /// The notes of a message, until they are written in one piece.
    notes: [SequenceNote; SETS_MAX + 1],
}

impl Observer {
    pub(super) fn new(
        sequence: Sequence,
        knows_drops: bool,
        ring: Arc<NoteRing>,
        waker: Arc<TrackerWaker>,
        destinations: LaneDestinations,
    ) -> Self {
        let writer = NoteWriter::new(Arc::clone(&ring));
        let units_max = ring.units_max.load(Ordering::Relaxed);
        Self {
            sequence,
            knows_drops,
            ring,
            writer,
            waker,
            destinations,
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
            Sequence::NetFlow => self.note_versions(all),
            Sequence::NetFlow5 => self.note_runs(all, header::netflow5),
            Sequence::NetFlow9 => self.note_runs(all, header::netflow9),
            Sequence::Ipfix => self.note_messages(all),
            Sequence::Sflow => self.note_runs(all, header::sflow),
            Sequence::Rtp => self.note_runs(all, header::rtp),
            Sequence::Fixed(place) => self.note_runs(all, |payload| header::fixed(place, payload)),
        }
        while let Some(run) = self.runs.pop() {
            write_run(&mut self.writer, &self.ring, run);
        }
        self.writer.publish();
        self.waker.wake();
    }

    /// Notes that the lane receives from another socket from now on. The kernel counts the drops of that one from zero.
    pub fn note_other_socket(&mut self) {
        self.ring.is_other_socket.store(true, Ordering::Relaxed);
    }

    /// Notes each run of consecutive numbers. `parse` reads a header.
    #[inline]
    fn note_runs<'a>(
        &mut self,
        all: impl Iterator<Item = Datagram<'a>>,
        parse: impl Fn(&[u8]) -> Option<SequenceHeader>,
    ) {
        for datagram in all {
            match parse(datagram.payload()) {
                Some(header) => self.note_datagram(&datagram, header),
                None => add(&self.ring.unnumbered, 1),
            }
        }
    }

    #[inline]
    fn note_datagram(&mut self, datagram: &Datagram<'_>, header: SequenceHeader) {
        let key = self.key(datagram, header.stream);
        let drops = if self.knows_drops { datagram.drop_overflow().unwrap_or(0) } else { 0 };
        if !self.runs.go_on(&key, &header, drops) {
            self.begin(key, header, drops);
        }
        if u64::from(header.units) > self.units_max {
            self.units_max = header.units.into();
            self.ring.units_max.store(self.units_max, Ordering::Relaxed);
        }
    }

    #[inline]
    fn key(&mut self, datagram: &Datagram<'_>, stream: u64) -> StreamKey {
        StreamKey::new(headers::source(datagram), self.destinations.number_of(datagram), stream)
    }

    /// Notes what comes of NetFlow, each datagram by its version.
    fn note_versions<'a>(&mut self, all: impl Iterator<Item = Datagram<'a>>) {
        for datagram in all {
            let payload = datagram.payload();
            let version = header::version(payload);
            let header = match version {
                Some(5) => header::netflow5(payload),
                Some(9) => header::netflow9(payload),
                Some(IPFIX) => header::ipfix(payload),
                _ => None,
            };
            match (header, version) {
                (Some(mut header), Some(version)) => {
                    header.stream |= u64::from(version) << VERSION_AT;
                    if version == IPFIX {
                        self.note_message(&datagram, &header);
                    } else {
                        self.note_datagram(&datagram, header);
                    }
                }
                _ => add(&self.ring.unnumbered, 1),
            }
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
            match header::ipfix(datagram.payload()) {
                Some(header) => self.note_message(&datagram, &header),
                None => add(&self.ring.unnumbered, 1),
            }
        }
    }

    /// Notes a message and its sets in one piece.
    fn note_message(&mut self, datagram: &Datagram<'_>, header: &SequenceHeader) {
        let SequenceHeader { stream, number, clock, .. } = *header;
        let key = self.key(datagram, stream);
        if self.units_max != u64::MAX {
            // It has any number of records.
            self.units_max = u64::MAX;
            self.ring.units_max.store(u64::MAX, Ordering::Relaxed);
        }
        let notes = &mut self.notes;
        let mut count = 0;
        let is_whole = ipfix::each_set(datagram.payload(), |set| {
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

/// Where the streams of a listener are sent to, by the numbers that keys have for it: addresses of this host, groups.
pub(super) type Destinations = Mutex<Vec<SocketAddr>>;

/// How many have a number. A host has few; more come where any address of a network is its own, and are then taken for
/// one destination, the last.
pub(super) const DESTINATIONS_MAX: usize = 256;

/// The destinations of one lane.
#[derive(Debug)]
pub(super) struct LaneDestinations {
    bound: SocketAddr,
    /// Of what comes without its destination: the address that the lane is bound to.
    own: u16,
    /// Bound to every address, so that each datagram has to say where it went.
    is_any: bool,
    last: (IpAddr, u16),
    known: Vec<(IpAddr, u16)>,
    of_listener: Arc<Destinations>,
}

impl LaneDestinations {
    pub(super) fn new(bound: SocketAddr, of_listener: Arc<Destinations>) -> Self {
        let own = number_of(&of_listener, bound);
        let known = Vec::with_capacity(DESTINATIONS_MAX);
        Self { bound, own, is_any: bound.ip().is_unspecified(), last: (bound.ip(), own), known, of_listener }
    }

    #[inline]
    fn number_of(&mut self, datagram: &Datagram<'_>) -> u16 {
        if !self.is_any {
            return self.own;
        }
        match datagram.destination() {
            None => self.own,
            Some(address) if address == self.last.0 => self.last.1,
            Some(address) => self.other(address),
        }
    }

    /// Asks the listener, with its lock, at most once for each number.
    #[inline(never)]
    fn other(&mut self, address: IpAddr) -> u16 {
        let known = self.known.iter().find(|known| known.0 == address).copied();
        self.last = known.unwrap_or_else(|| {
            if self.known.len() == DESTINATIONS_MAX {
                return (address, DESTINATIONS_MAX as u16 - 1);
            }
            let number = number_of(&self.of_listener, SocketAddr::new(address, self.bound.port()));
            self.known.push((address, number));
            (address, number)
        });
        self.last.1
    }
}

fn number_of(destinations: &Destinations, wanted: SocketAddr) -> u16 {
    let mut known = threads::lock(destinations);
    let place = known.iter().position(|known| *known == wanted).unwrap_or_else(|| {
        if known.len() < DESTINATIONS_MAX {
            known.push(wanted);
        }
        known.len() - 1
    });
    place as u16
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
    // The fractions of the golden ratio and of the roots of 2 and 3: multiples of either lie far from each other.
    let mixed = key
        .stream
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(source.wrapping_mul(0x6a09_e667_f3bc_c909))
        .wrapping_add(key.session.bits().wrapping_mul(0xbb67_ae85_84ca_a73b));
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::note_ring::Session;

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
        SequenceNote {
            key: StreamKey { source: 7, stream, ..StreamKey::default() },
            number,
            units: 1,
            datagrams: 1,
            ..SequenceNote::default()
        }
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
        let key = |source, stream, port| StreamKey { source, stream, session: Session { port, destination: 0 } };
        let by_port = |port: u64| key(v4(1), 0, 40_000 + port as u16);
        let by_stream = |stream: u64| key(v4(1), stream, 40_000);
        let by_address = |number: u64| key(v4(number), 0, 40_000);
        let all = [
            (0..16).map(by_port).collect::<Vec<_>>(),
            (0..16).map(by_stream).collect(),
            (0..16).map(by_address).collect(),
        ];
        for keys in all {
            let places: std::collections::HashSet<_> = keys.iter().map(place).collect();
            assert!(places.len() >= 14, "{places:?}");
        }
    }
}
