//! The streams of a listener, in fixed memory. When a new stream finds no room it replaces an idle one by the clock
//! algorithm: a hand goes round, and takes the first that has sent nothing since the hand last passed.

use std::collections::HashMap;

use super::note_ring::StreamKey;
use super::stream::NumberedStream;
use udpd_base::ledger::Keyed;

/// How many streams are remembered.
pub const STREAMS_MAX: usize = 1 << 14;

/// The buckets of the index for twice as many keys, so that it never grows: an eighth stays free, and the whole is a
/// power of two.
const BUCKETS: usize = (2 * STREAMS_MAX * 8 / 7).next_power_of_two();

/// The memory of the table: an entry for each stream, and for each bucket of the index a pair and a byte.
pub(super) const TABLE_BYTES: usize =
    STREAMS_MAX * size_of::<StreamEntry>() + BUCKETS * (size_of::<(StreamKey, u32)>() + 1);

/// The number of no lane.
pub(super) const NO_LANE: u32 = u32::MAX;

/// One stream.
#[derive(Debug)]
pub(super) struct StreamEntry {
    key: StreamKey,
    is_recent: bool,
    /// The lane that it last came by.
    pub(super) lane: u32,
    /// `None` until its first datagram has been taken: messages of IPFIX wait first.
    pub(super) stream: Option<NumberedStream>,
}

/// All streams of a listener.
#[derive(Debug)]
pub(super) struct StreamTable {
    index: HashMap<StreamKey, u32, Keyed>,
    entries: Vec<StreamEntry>,
    limit: usize,
    hand: usize,
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
        Self { index, entries: Vec::with_capacity(limit), limit, hand: 0 }
    }

    pub(super) fn find(&mut self, key: &StreamKey) -> StreamSlot {
        if let Some(&place) = self.index.get(key) {
            let place = place as usize;
            self.entries[place].is_recent = true;
            return StreamSlot::Known(place);
        }
        if self.entries.len() < self.limit {
            self.index.insert(*key, self.entries.len() as u32);
            self.entries.push(StreamEntry { key: *key, is_recent: false, lane: NO_LANE, stream: None });
            return StreamSlot::New(self.entries.len() - 1);
        }
        loop {
            self.hand = (self.hand + 1) % self.limit;
            if !std::mem::replace(&mut self.entries[self.hand].is_recent, false) {
                return StreamSlot::Taken(self.hand);
            }
        }
    }

    /// Gives a place to another stream.
    pub(super) fn replace(&mut self, place: usize, key: &StreamKey) {
        self.index.remove(&self.entries[place].key);
        self.index.insert(*key, place as u32);
        self.entries[place] = StreamEntry { key: *key, is_recent: false, lane: NO_LANE, stream: None };
    }

    /// Whether the stream is in this place. If so it is marked as recent.
    pub(super) fn is_at(&mut self, place: usize, key: &StreamKey) -> bool {
        let entry = self.entries.get_mut(place).filter(|entry| entry.key == *key);
        entry.map(|entry| entry.is_recent = true).is_some()
    }

    pub(super) fn entry(&mut self, place: usize) -> &mut StreamEntry {
        &mut self.entries[place]
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
        let key = |stream| StreamKey { source: 1, stream };
        for stream in 0..8 {
            assert_eq!(table.find(&key(stream)), StreamSlot::New(stream as usize));
        }
        for stream in 8..10_000 {
            // The first is always busy.
            assert_eq!(table.find(&key(0)), StreamSlot::Known(0));
            let StreamSlot::Taken(place) = table.find(&key(stream)) else { panic!("there is room for {stream}") };
            assert_ne!(place, 0);
            table.replace(place, &key(stream));
            assert_eq!(table.index[&key(stream)] as usize, place);
        }
        assert_eq!((table.len(), table.index.len(), table.index.capacity()), (8, 8, capacity));
    }
}
