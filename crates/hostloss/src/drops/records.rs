//! The records in a ring that the kernel writes: where the new ones lie, and what each of them is.
//!
//! Pure: takes positions and bytes, follows no pointer, and trusts nothing. A record has its own length, so an
//! impossible length ends the reading of that piece, and what is behind it counts as torn.

use std::ops::Range;

/// `PERF_RECORD_SAMPLE`
const SAMPLE: u32 = 9;
/// `struct perf_event_header`: kind, misc, length.
const HEADER_BYTES: usize = 8;

/// Where the bytes between two positions lie in a ring of `bytes`: a piece up to its end and one from its beginning.
/// `None` when there would be more of them than the ring is long, which no kernel does.
pub(super) fn pieces(from: u64, to: u64, bytes: usize) -> Option<(Range<usize>, Range<usize>)> {
    let length = usize::try_from(to.wrapping_sub(from)).ok().filter(|length| *length <= bytes)?;
    if bytes == 0 {
        return Some((0..0, 0..0));
    }
    let start = usize::try_from(from % bytes as u64).ok()?;
    let before_the_end = length.min(bytes - start);
    Some((start..start + before_the_end, 0..length - before_the_end))
}

/// One record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PerfRecord<'a> {
    /// What a tracepoint wrote, without its envelope.
    Sample(&'a [u8]),
    /// A record of another kind, such as that some were lost: the counters of the events know that more exactly.
    Other,
    /// Bytes that are no record. Nothing is read after it.
    Torn,
}

/// The records in `bytes`, one behind the other.
#[derive(Debug)]
pub(super) struct PerfRecords<'a> {
    left: &'a [u8],
}

impl<'a> PerfRecords<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> PerfRecords<'a> {
        PerfRecords { left: bytes }
    }
}

impl<'a> Iterator for PerfRecords<'a> {
    type Item = PerfRecord<'a>;

    fn next(&mut self) -> Option<PerfRecord<'a>> {
        if self.left.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.left);
        let Some((kind, length)) = header(all) else { return Some(PerfRecord::Torn) };
        if length < HEADER_BYTES || length > all.len() {
            return Some(PerfRecord::Torn);
        }
        let (record, after) = all.split_at(length);
        self.left = after;
        if kind != SAMPLE {
            return Some(PerfRecord::Other);
        }
        Some(sample(&record[HEADER_BYTES..]).map_or(PerfRecord::Torn, PerfRecord::Sample))
    }
}

fn header(bytes: &[u8]) -> Option<(u32, usize)> {
    let kind = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
    let length = u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?);
    Some((kind, length.into()))
}

/// The payload of a sample that has nothing but `PERF_SAMPLE_RAW`: its length, then so many bytes.
fn sample(body: &[u8]) -> Option<&[u8]> {
    let length = u32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    body[4..].get(..usize::try_from(length).ok()?)
}
