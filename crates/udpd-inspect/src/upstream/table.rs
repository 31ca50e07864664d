//! The streams of a listener, in fixed memory. When a new stream finds no room it takes the place of one that is young
//! or idle: of the one that has been so for longest and has sent nothing since it was last looked at. A stream that is
//! established keeps its place until it has been idle for an hour, so however many streams a sender makes up, those
//! that were there before are followed on. An eighth of the places is always left to young ones.

use std::borrow::{Borrow, BorrowMut};
use std::collections::{HashMap, VecDeque};

use super::note_ring::StreamKey;
use super::records::StreamRecord;
use super::stream::NumberedStream;
use udpd_base::ledger::Keyed;

/// How many streams are remembered.
pub const STREAMS_MAX: usize = 1 << 14;

/// The buckets of the index for twice as many keys, so that it never grows: an eighth stays free, and the whole is a
/// power of two.
const BUCKETS: usize = (2 * STREAMS_MAX * 8 / 7).next_power_of_two();

/// The memory of the table: an entry for each stream, with a copy of its record for readers, a place in the queue and
/// one among those that are heard, and for each bucket of the index a pair and a byte.
pub(super) const TABLE_BYTES: usize = STREAMS_MAX * (size_of::<(StreamEntry, StreamRecord)>() + 2 * size_of::<u32>())
    + BUCKETS * (size_of::<(StreamKey, u32)>() + 1);

/// For how long an established stream keeps its place without a datagram.
const IDLE_S: u32 = 3600;

/// The number of no lane.
pub(super) const NO_LANE: u32 = u32::MAX;

/// One stream.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) record: StreamRecord,
    is_recent: bool,
    /// It stands in the queue.
    is_queued: bool,
    /// The lane that it last came by.
    pub(super) lane: u32,
    /// `None` until its first datagram has been taken: messages of IPFIX wait first.
    pub(super) stream: Option<NumberedStream>,
}

impl StreamEntry {
    fn new(key: StreamKey, now_s: u32) -> Self {
        let record = StreamRecord::new(key, now_s);
        Self { record, is_recent: false, is_queued: true, lane: NO_LANE, stream: None }
    }
}

impl Borrow<StreamRecord> for StreamEntry {
    fn borrow(&self) -> &StreamRecord {
        &self.record
    }
}

impl BorrowMut<StreamRecord> for StreamEntry {
    fn borrow_mut(&mut self) -> &mut StreamRecord {
        &mut self.record
    }
}

/// All streams of a listener.
#[derive(Debug)]
pub(super) struct StreamTable {
    index: HashMap<StreamKey, u32, Keyed>,
    entries: Vec<StreamEntry>,
    limit: usize,
    /// The streams that may have to go; those that are established by now are passed over.
    young: VecDeque<u32>,
    established: usize,
    /// For how long an idle one stays.
    pub(super) idle_s: u32,
}

/// Where a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamSlot {
    Known(usize),
    New(usize),
    /// It has to take this place, whose stream has to be forgotten first.
    Taken(usize),
}

impl StreamTable {
    pub(super) fn new(limit: usize) -> Self {
        let index = HashMap::with_capacity_and_hasher(2 * limit, Keyed::new());
        let (entries, young) = (Vec::with_capacity(limit), VecDeque::with_capacity(limit));
        Self { index, entries, limit, young, established: 0, idle_s: IDLE_S }
    }

    /// `now_s` is when a new one is heard first.
    pub(super) fn find(&mut self, key: &StreamKey, now_s: u32) -> StreamSlot {
        if let Some(&place) = self.index.get(key) {
            let place = place as usize;
            self.entries[place].is_recent = true;
            return StreamSlot::Known(place);
        }
        if self.entries.len() < self.limit {
            let place = self.entries.len();
            self.index.insert(*key, place as u32);
            self.entries.push(StreamEntry::new(*key, now_s));
            self.young.push_back(place as u32);
            return StreamSlot::New(place);
        }
        loop {
            // An eighth of all is young, so this never ends without one.
            let place = self.young.pop_front().unwrap_or(0);
            let entry = &mut self.entries[place as usize];
            entry.is_queued = false;
            if entry.record.is_established {
                continue;
            }
            if !std::mem::replace(&mut entry.is_recent, false) {
                return StreamSlot::Taken(place as usize);
            }
            entry.is_queued = true;
            self.young.push_back(place);
        }
    }

    /// Gives a place to another stream.
    pub(super) fn replace(&mut self, place: usize, key: &StreamKey, now_s: u32) {
        self.index.remove(&self.entries[place].record.key);
        self.index.insert(*key, place as u32);
        self.entries[place] = StreamEntry::new(*key, now_s);
        self.young.push_back(place as u32);
    }

    /// Establishes a stream that has been heard for long, as far as there is room, and ends that of an idle one.
    pub(super) fn establish(&mut self, place: usize, now_s: u32) {
        let StreamEntry { record, is_queued, .. } = &mut self.entries[place];
        let may_more = self.established < self.limit - self.limit.div_ceil(8);
        if !record.is_established
            && may_more
            && record.has_been_heard_for_long()
            && now_s - record.heard_s < self.idle_s
        {
            record.is_established = true;
            self.established += 1;
        } else if record.is_established && now_s - record.heard_s >= self.idle_s {
            record.is_established = false;
            self.established -= 1;
            if !std::mem::replace(is_queued, true) {
                self.young.push_back(place as u32);
            }
        }
    }

    /// Whether the stream is in this place. If so it is marked as recent.
    pub(super) fn is_at(&mut self, place: usize, key: &StreamKey) -> bool {
        let entry = self.entries.get_mut(place).filter(|entry| entry.record.key == *key);
        entry.map(|entry| entry.is_recent = true).is_some()
    }

    pub(super) fn entry(&mut self, place: usize) -> &mut StreamEntry {
        &mut self.entries[place]
    }

    pub(super) fn at(&self, place: usize) -> &StreamEntry {
        &self.entries[place]
    }

    pub(super) fn entries(&mut self) -> &mut [StreamEntry] {
        &mut self.entries
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_takes_as_much_as_is_told() {
        assert_eq!(StreamTable::new(STREAMS_MAX).index.capacity(), BUCKETS / 8 * 7);
    }

    #[test]
    fn a_full_table_gives_the_place_of_an_idle_stream_and_never_grows() {
        let mut table = StreamTable::new(8);
        let capacity = table.index.capacity();
        let key = |stream| StreamKey { source: 1, stream, ..StreamKey::default() };
        for stream in 0..8 {
            assert_eq!(table.find(&key(stream), 0), StreamSlot::New(stream as usize));
        }
        for stream in 8..10_000 {
            // The first is always busy.
            assert_eq!(table.find(&key(0), 0), StreamSlot::Known(0));
            let StreamSlot::Taken(place) = table.find(&key(stream), 0) else { panic!("there is room for {stream}") };
            assert_ne!(place, 0);
            table.replace(place, &key(stream), 0);
            assert_eq!(table.index[&key(stream)] as usize, place);
        }
        assert_eq!((table.len(), table.index.len(), table.index.capacity()), (8, 8, capacity));
    }
}
