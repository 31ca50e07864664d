//! The records of a stream that its peer has not acknowledged: those that were written, and those that are to be.
//!
//! Positions count the bytes of all records since the start, so they mean the same on every connection. All memory is
//! there from the start. The buffer has twice the bytes that may be in it: so what is in use is moved to its beginning
//! only when as much was written as it has room for.

use std::collections::VecDeque;

use super::relp;
use udpd_base::format::Format;

/// How many bytes may wait for their acknowledgement. A connection writes no faster than this in one round trip.
const BYTES_MAX: usize = 2 << 20;

/// The same in records.
const RECORDS_MAX: usize = 1 << 16;

/// The longest payload there is.
const PAYLOAD_BYTES_MAX: usize = 65_535;

/// The memory of a window, from its start to its end.
pub(super) fn memory_bytes_max(format: Format) -> usize {
    2 * BYTES_MAX + record_bytes_max(format) + RECORDS_MAX * size_of::<WindowRecord>()
}

fn record_bytes_max(format: Format) -> usize {
    format.record_bytes_max(PAYLOAD_BYTES_MAX) + relp::FRAME_BYTES
}

#[derive(Debug, Clone, Copy)]
struct WindowRecord {
    /// The position behind it.
    end: u64,
    listener: usize,
}

#[derive(Debug)]
pub(super) struct SendWindow {
    bytes: Vec<u8>,
    /// Where the first record begins in `bytes`.
    head: usize,
    /// The same, and what was acknowledged of it, written, and encoded, as positions.
    begin: u64,
    written: u64,
    end: u64,
    /// What is behind it is not to be written yet.
    released: u64,
    records: VecDeque<WindowRecord>,
    record_bytes_max: usize,
    /// The number of the next record, where each begins with one.
    next_number: u32,
    is_numbered: bool,
}

impl SendWindow {
    pub(super) fn new(format: Format, is_numbered: bool) -> Self {
        let record_bytes_max = record_bytes_max(format);
        Self {
            bytes: Vec::with_capacity(2 * BYTES_MAX + record_bytes_max),
            head: 0,
            begin: 0,
            written: 0,
            end: 0,
            released: 0,
            records: VecDeque::with_capacity(RECORDS_MAX),
            record_bytes_max,
            next_number: relp::FIRST_RECORD,
            is_numbered,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn records(&self) -> usize {
        self.records.len()
    }

    /// Whether the longest record there is can be added.
    pub(super) fn has_room(&self) -> bool {
        self.has_room_for(0, 0)
    }

    /// The same after so many records and bytes more.
    pub(super) fn has_room_for(&self, records: usize, bytes: usize) -> bool {
        self.bytes.len() - self.head + bytes < BYTES_MAX && self.records.len() + records < RECORDS_MAX
    }

    /// How many bytes are to be written.
    pub(super) fn unwritten_bytes(&self) -> usize {
        self.unwritten().len()
    }

    /// Adds a record of this listener, which `encode` appends, with its number. There has to be room.
    pub(super) fn push(&mut self, listener: usize, encode: impl FnOnce(&mut Vec<u8>, u32)) {
        self.hold(listener, encode);
        self.release();
    }

    /// The same of one that is not to be written before it is released.
    pub(super) fn hold(&mut self, listener: usize, encode: impl FnOnce(&mut Vec<u8>, u32)) {
        if self.bytes.capacity() - self.bytes.len() < self.record_bytes_max {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
        let before = self.bytes.len();
        encode(&mut self.bytes, self.next_number);
        self.next_number = relp::after(self.next_number);
        self.end += (self.bytes.len() - before) as u64;
        self.records.push_back(WindowRecord { end: self.end, listener });
    }

    /// Everything may be written.
    pub(super) fn release(&mut self) {
        self.released = self.end;
    }

    /// Whether the peer has everything that was written.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.written == self.begin
    }

    /// The rest of a record of which a part is written.
    pub(super) fn rest_of_begun(&self) -> &[u8] {
        let place = self.records.partition_point(|record| record.end <= self.written);
        let begin = place.checked_sub(1).map_or(self.begin, |before| self.records[before].end);
        let rest =
            self.records.get(place).filter(|_| begin < self.written).map_or(0, |record| record.end - self.written);
        &self.unwritten()[..rest as usize]
    }

    /// What is to be written.
    pub(super) fn unwritten(&self) -> &[u8] {
        // All of it is in memory.
        let place = |position| self.head + (position - self.begin) as usize;
        &self.bytes[place(self.written)..place(self.released)]
    }

    /// So many bytes more are written.
    pub(super) fn note_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
        debug_assert!(self.written <= self.end, "more is written than there is");
    }

    /// Of what was written, the peer has not acknowledged so many bytes. Names the listener of each record that it has
    /// whole, which leaves the window.
    pub(super) fn acknowledge(&mut self, unacknowledged: u64, mut acknowledged: impl FnMut(usize)) {
        // A connection begins with a record, so nothing before the first one is in doubt.
        let known = self.written.saturating_sub(unacknowledged);
        while let Some(listener) = self.take_first(known) {
            acknowledged(listener);
        }
    }

    /// The peer has answered for the first record: names its listener, unless it was not written to its end.
    pub(super) fn take_answered(&mut self) -> Option<usize> {
        self.take_first(self.written)
    }

    /// Takes out the first record, if it ends there or before.
    fn take_first(&mut self, known: u64) -> Option<usize> {
        let record = self.records.front().copied().filter(|record| record.end <= known)?;
        self.records.pop_front();
        self.head += (record.end - self.begin) as usize;
        self.begin = record.end;
        if self.records.is_empty() {
            self.bytes.clear();
            self.head = 0;
        }
        Some(record.listener)
    }

    /// The next connection begins with the first record. Names the listener of each one that the peer may have,
    /// which are sent again.
    pub(super) fn begin_anew(&mut self, repeated: impl FnMut(usize)) {
        let mut begin = self.begin;
        let written = self.written;
        let was_begun = |record: &&WindowRecord| std::mem::replace(&mut begin, record.end) < written;
        self.records.iter().take_while(was_begun).map(|record| record.listener).for_each(repeated);
        self.written = self.begin;
        if self.is_numbered {
            self.number_anew();
        }
    }

    /// The records are the first of a session.
    fn number_anew(&mut self) {
        self.next_number = relp::FIRST_RECORD;
        let mut place = self.head;
        for record in &self.records {
            relp::write_number(&mut self.bytes[place..place + relp::NUMBER_DIGITS], self.next_number);
            place = self.head + (record.end - self.begin) as usize;
            self.next_number = relp::after(self.next_number);
        }
    }

    /// Takes back the last records, at most so many, of which nothing is written; returns how many.
    pub(super) fn take_back(&mut self, records_max: usize) -> usize {
        let mut taken = 0;
        while taken < records_max && !self.records.is_empty() {
            let before = self.records.len().checked_sub(2).map_or(self.begin, |place| self.records[place].end);
            if before < self.written {
                break;
            }
            self.records.pop_back();
            self.bytes.truncate(self.head + (before - self.begin) as usize);
            self.end = before;
            self.released = self.released.min(before);
            self.next_number = relp::before(self.next_number);
            taken += 1;
        }
        taken
    }

    /// Gives up all that is in it, and names the listener of each record.
    pub(super) fn forget(&mut self, forgotten: impl FnMut(usize)) {
        self.records.drain(..).map(|record| record.listener).for_each(forgotten);
        self.bytes.clear();
        self.head = 0;
        (self.begin, self.written, self.released) = (self.end, self.end, self.end);
    }
}
