//! The records of all sources that wait to be written, in one buffer of fixed size. The records of each source form a
//! chain in their order of arrival; a write copies a chain together, so that it carries all of it.

use udpd_base::format::{Encoder, Format};

/// No record.
pub(super) const NONE: u32 = u32::MAX;

/// The list of records has one entry for so many bytes of the buffer; with shorter records the list is full first.
const BYTES_A_RECORD: usize = 64;

/// The longest payload there is.
const PAYLOAD_BYTES_MAX: usize = 65_535;

/// One write carries at most this and one record.
const WRITE_BYTES: usize = 256 << 10;

/// A record in the buffer, and the next one of the same source.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatheredRecord {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) listener: u32,
    pub(super) next: u32,
}

/// The records of one source, the first and the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordChain {
    pub(super) first: u32,
    last: u32,
}

#[derive(Debug)]
pub(super) struct GatheredRecords {
    bytes: Vec<u8>,
    records: Vec<GatheredRecord>,
    bytes_max: usize,
    /// Where a chain is copied together for a write.
    together: Vec<u8>,
}

impl RecordChain {
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE };

    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

fn record_bytes_max(format: Format) -> usize {
    format.record_bytes_max(PAYLOAD_BYTES_MAX)
}

/// The memory for so many bytes of records.
pub(super) fn memory_bytes_max(buffer_bytes: usize, format: Format) -> usize {
    let records = buffer_bytes / BYTES_A_RECORD * size_of::<GatheredRecord>();
    buffer_bytes + WRITE_BYTES + 2 * record_bytes_max(format) + records
}

impl GatheredRecords {
    /// Allocates all the memory it ever uses.
    pub(super) fn new(buffer_bytes: usize, format: Format) -> Self {
        let longest = record_bytes_max(format);
        Self {
            bytes: Vec::with_capacity(buffer_bytes + longest),
            records: Vec::with_capacity(buffer_bytes / BYTES_A_RECORD),
            bytes_max: buffer_bytes,
            together: Vec::with_capacity(WRITE_BYTES + longest),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether it has to be written now.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= self.bytes_max || self.records.len() == self.records.capacity()
    }

    /// Adds a record to a chain; `append` writes it.
    pub(super) fn push(
        &mut self,
        chain: &mut RecordChain,
        listener: usize,
        encoder: &mut Encoder,
        append: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) {
        let start = place(self.bytes.len());
        append(encoder, &mut self.bytes);
        let own = place(self.records.len());
        self.records.push(GatheredRecord {
            start,
            end: place(self.bytes.len()),
            listener: place(listener),
            next: NONE,
        });
        match self.records.get_mut(chain.last as usize) {
            Some(last) if chain.last != NONE => last.next = own,
            _ => chain.first = own,
        }
        chain.last = own;
    }

    /// Puts the records of one chain before those of another, and leaves it empty.
    pub(super) fn move_before(&mut self, from: &mut RecordChain, to: &mut RecordChain) {
        let moved = std::mem::replace(from, RecordChain::EMPTY);
        if let Some(last) = self.records.get_mut(moved.last as usize) {
            last.next = to.first;
            *to = RecordChain { first: moved.first, last: if to.is_empty() { moved.last } else { to.last } };
        }
    }

    pub(super) fn record(&self, index: u32) -> Option<GatheredRecord> {
        self.records.get(index as usize).copied()
    }

    /// Copies the records from `first` on together, as many as one write carries; returns them and the next record.
    pub(super) fn together(&mut self, first: u32) -> (&[u8], u32) {
        self.together.clear();
        let mut next = first;
        while let Some(record) = self.records.get(next as usize)
            && self.together.len() < WRITE_BYTES
        {
            self.together.extend_from_slice(&self.bytes[record.start as usize..record.end as usize]);
            next = record.next;
        }
        (&self.together, next)
    }

    /// All chains are written.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
    }
}

/// The settings hold the buffer below what 32 bits count.
fn place(index: usize) -> u32 {
    u32::try_from(index).expect("the buffer is shorter than 4 GiB")
}
