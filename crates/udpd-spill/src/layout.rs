//! How a segment lies on the disk. Pure: bytes in, bytes out.
//!
//! ```text
//! header (208): magic 8, version 1, machine 1, 0 x 6, number 8, key 4, checksum 4, mark 88, mark 88
//! mark    (88): decided 4, handed 4, turn 4, ends 16 x 4, 0 x 8, checksum 4
//! frame  (32):  magic 4, records 4, body 4, listener 1, bound 1, 0 x 2, first 8, checksum of the body 4, of the head 4
//! body:         name of the listener, address it is bound to, 0 to a multiple of 8, datagrams as `mmsg::pack` has them
//! ```
//!
//! A datagram lies as the kernel and this machine have it, so writing one is copying it. `machine` refuses a segment
//! that another kind of machine has written. The checksum of a head also covers the key, which is random and only in
//! the header, and where the frame lies: no payload can look like a frame to a reader that looks for the next one.

/// The version that this udpd writes, and the newest that it reads.
pub(super) const VERSION: u8 = 1;

pub(super) const HEADER_BYTES: usize = 208;
pub(super) const HEAD_BYTES: usize = 32;

/// The places of the two marks, which are written in turn.
pub(super) const MARKS: [u64; 2] = [32, 120];
pub(super) const MARK_BYTES: usize = 88;

/// How many batches of a segment may be on their way at once.
pub const BATCHES_MAX: usize = 16;

/// Where frames and datagrams begin: at a multiple of this.
pub(super) const ALIGNMENT: usize = 8;

/// A frame of so many bytes gets no more datagrams.
pub(super) const FRAME_FULL_BYTES: usize = 128 << 10;

/// The longest frame: one that is nearly full, plus the longest datagram.
pub const FRAME_BYTES_MAX: usize = FRAME_FULL_BYTES + (72 << 10);

/// The most datagrams of a segment: marks have four bytes for their number.
pub(super) const RECORDS_MAX: u64 = u32::MAX as u64;

/// The least that a datagram takes, see `mmsg::pack`.
const RECORD_BYTES_MIN: u64 = 16;

/// A mark with a larger number was never written: each frame has one, and no segment has so many.
const TURN_MAX: u32 = u32::MAX / 2;

const MAGIC: [u8; 8] = *b"udpdspil";
const FRAME_MAGIC: [u8; 4] = *b"fram";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The number with which it was created. Its name may have another by now.
    pub(super) number: u64,
    pub(super) key: u32,
}

/// Why a segment cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// A newer udpd has written it, with this version of the layout.
    Newer(u8),
    OtherMachine,
    Damaged,
}

/// How far the datagrams of a segment are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SegmentMark {
    /// How many of the first datagrams are decided.
    pub(super) decided: u32,
    /// How many of the first have been handed on, or are about to be.
    pub(super) handed: u32,
    /// Grows with each mark.
    pub(super) turn: u32,
    /// Where the batches end that were frozen behind those that are decided, the first one first; then zeros.
    pub(super) ends: [u32; BATCHES_MAX],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) records: u32,
    pub(super) body_bytes: u32,
    pub(super) listener_bytes: u8,
    pub(super) bound_bytes: u8,
    /// The place of its first datagram among those of the segment.
    pub(super) first: u64,
    pub(super) body_sum: u32,
}

impl FrameHead {
    /// Where the datagrams begin in the body.
    pub(super) fn names_bytes(self) -> usize {
        (usize::from(self.listener_bytes) + usize::from(self.bound_bytes)).next_multiple_of(ALIGNMENT)
    }

    pub(super) fn frame_bytes(self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.body_bytes)
    }

    /// The place behind its last datagram.
    pub(super) fn end(self) -> u64 {
        self.first + u64::from(self.records)
    }

    pub(super) fn encode(self, header: SegmentHeader, at: u64) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4..8].copy_from_slice(&self.records.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        (bytes[12], bytes[13]) = (self.listener_bytes, self.bound_bytes);
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_sum.to_le_bytes());
        let sum = head_sum(&bytes, header, at);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the head of a frame at `at`, if there is one.
    pub(super) fn decode(bytes: &[u8; HEAD_BYTES], header: SegmentHeader, at: u64) -> Option<Self> {
        if four(bytes, 28) != head_sum(bytes, header, at) {
            return None;
        }
        Self::unsealed(bytes)
    }

    /// The same, without the check that it was written there.
    pub(super) fn unsealed(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        if !may_be_head(bytes) {
            return None;
        }
        let (records, body_bytes, first, body_sum) =
            (four(bytes, 4), four(bytes, 8), eight(bytes, 16), four(bytes, 24));
        let head = Self { records, body_bytes, listener_bytes: bytes[12], bound_bytes: bytes[13], first, body_sum };
        // Any other head was never written.
        let for_records = u64::from(body_bytes).checked_sub(head.names_bytes() as u64)?;
        let is_possible = head.frame_bytes() <= FRAME_BYTES_MAX as u64
            && (body_bytes as usize).is_multiple_of(ALIGNMENT)
            && u64::from(records) * RECORD_BYTES_MIN <= for_records
            && first.checked_add(u64::from(records)).is_some_and(|end| end <= RECORDS_MAX);
        is_possible.then_some(head)
    }
}

/// Whether a frame may begin with these bytes.
pub(super) fn may_be_head(bytes: &[u8]) -> bool {
    bytes.starts_with(&FRAME_MAGIC)
}

fn head_sum(bytes: &[u8; HEAD_BYTES], header: SegmentHeader, at: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..28]);
    hasher.update(&header.number.to_le_bytes());
    hasher.update(&header.key.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.finalize()
}

/// The kind of machine that has written the datagrams: its byte order and the length of its numbers.
fn machine() -> u8 {
    u8::try_from(usize::BITS).unwrap_or(u8::MAX) | u8::from(cfg!(target_endian = "big"))
}

impl SegmentHeader {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        (bytes[8], bytes[9]) = (VERSION, machine());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.key.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Unreadable> {
        if bytes[..8] != MAGIC || four(bytes, 28) != crc32fast::hash(&bytes[..28]) {
            return Err(Unreadable::Damaged);
        }
        if bytes[8] != VERSION {
            return Err(Unreadable::Newer(bytes[8]));
        }
        if bytes[9] != machine() {
            return Err(Unreadable::OtherMachine);
        }
        Ok(Self { number: eight(bytes, 16), key: four(bytes, 24) })
    }
}

impl SegmentMark {
    pub(super) fn encode(self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        let numbers = [self.decided, self.handed, self.turn].into_iter().chain(self.ends);
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes[..MARK_BYTES - 4]);
        bytes[MARK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let ends = std::array::from_fn(|place| four(bytes, 12 + 4 * place));
        let mark = Self { decided: four(bytes, 0), handed: four(bytes, 4), turn: four(bytes, 8), ends };
        let is_sound = four(bytes, MARK_BYTES - 4) == crc32fast::hash(&bytes[..MARK_BYTES - 4]);
        (is_sound && (1..=TURN_MAX).contains(&mark.turn)).then_some(mark)
    }

    /// The later of the two marks of a header. A torn one is ignored: then more is sent twice, and none is lost.
    pub(super) fn latest(header: &[u8; HEADER_BYTES]) -> Self {
        let mark = |at: u64| Self::decode(&header[at as usize..at as usize + MARK_BYTES]);
        MARKS.into_iter().filter_map(mark).max_by_key(|mark| mark.turn).unwrap_or_default()
    }

    /// A batch ends here that is about to be sent. Returns false when as many as may be are on their way.
    pub(super) fn freeze(&mut self, end: u32) -> bool {
        let is_known = self.ends.contains(&end);
        if !is_known {
            let Some(free) = self.ends.iter_mut().find(|place| **place == 0) else { return false };
            *free = end;
        }
        self.handed = self.handed.max(end);
        true
    }

    /// All before this place is decided.
    pub(super) fn decide(&mut self, end: u32) {
        self.decided = self.decided.max(end);
        self.keep_ends(|end, decided| end > decided);
    }

    /// The destination has none of what is not decided, except of the first so many.
    pub(super) fn take_back(&mut self, handed: u32) {
        self.handed = self.decided.max(handed);
        self.keep_ends(|end, _| end <= handed);
    }

    fn keep_ends(&mut self, is_kept: impl Fn(u32, u32) -> bool) {
        let mut kept = [0; BATCHES_MAX];
        let left = self.ends.into_iter().filter(|&end| end > 0 && is_kept(end, self.decided));
        kept.iter_mut().zip(left).for_each(|(place, end)| *place = end);
        self.ends = kept;
    }
}

fn four(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|found| found.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn eight(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|found| found.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader { number: 7, key: 0xdead_beef };

    #[test]
    fn a_head_is_read_where_it_was_written_and_nowhere_else_and_not_with_any_bit_changed() {
        let head = FrameHead { records: 3, body_bytes: 96, listener_bytes: 2, bound_bytes: 9, first: 40, body_sum: 5 };
        let bytes = head.encode(HEADER, 64);
        assert_eq!(FrameHead::decode(&bytes, HEADER, 64), Some(head));
        assert_eq!((head.names_bytes(), head.frame_bytes(), head.end()), (16, 128, 43));
        assert_eq!(FrameHead::decode(&bytes, HEADER, 72), None);
        assert_eq!(FrameHead::decode(&bytes, SegmentHeader { key: 1, ..HEADER }, 64), None);
        for bit in 0..8 * HEAD_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHead::decode(&changed, HEADER, 64), None, "bit {bit}");
        }
    }

    #[test]
    fn numbers_that_no_udpd_has_written_are_refused_before_they_are_added_up() {
        let head = FrameHead { records: 2, body_bytes: 96, listener_bytes: 2, bound_bytes: 9, first: 40, body_sum: 5 };
        let is_read = |head: FrameHead| FrameHead::decode(&head.encode(HEADER, 64), HEADER, 64).is_some();
        assert!(is_read(head) && is_read(FrameHead { records: 5, ..head }));
        // More datagrams than there is room for, and places that no mark can name.
        assert!(!is_read(FrameHead { records: 6, ..head }) && !is_read(FrameHead { records: u32::MAX, ..head }));
        for first in [u64::MAX, u64::MAX - 1, RECORDS_MAX - 1] {
            assert!(!is_read(FrameHead { first, ..head }), "{first}");
        }
        assert!(is_read(FrameHead { first: RECORDS_MAX - 2, ..head }));
        let mut header = HEADER.encode();
        let own = SegmentMark { decided: 1, handed: 1, turn: 1, ..SegmentMark::default() };
        for (mark, at) in [own, SegmentMark { turn: u32::MAX, ..own }].into_iter().zip(MARKS) {
            header[at as usize..at as usize + MARK_BYTES].copy_from_slice(&mark.encode());
        }
        assert_eq!(SegmentMark::latest(&header), own);
    }

    #[test]
    fn a_header_of_a_newer_udpd_and_of_another_machine_is_refused_as_such() {
        let bytes = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(HEADER));
        let with = |at: usize, value: u8| {
            let mut other = bytes;
            other[at] = value;
            let sum = crc32fast::hash(&other[..28]);
            other[28..32].copy_from_slice(&sum.to_le_bytes());
            SegmentHeader::decode(&other)
        };
        assert_eq!(with(8, VERSION + 1), Err(Unreadable::Newer(VERSION + 1)));
        assert_eq!(with(9, 0), Err(Unreadable::OtherMachine));
        let mut damaged = bytes;
        damaged[20] ^= 1;
        assert_eq!(SegmentHeader::decode(&damaged), Err(Unreadable::Damaged));
    }

    #[test]
    fn the_later_of_two_marks_counts_and_a_torn_one_does_not() {
        let mut header = HEADER.encode();
        assert_eq!(SegmentMark::latest(&header), SegmentMark::default());
        let marks = [(10, 20, 1), (20, 30, 2)].map(|(decided, handed, turn)| {
            let mut mark = SegmentMark { decided, handed, turn, ..SegmentMark::default() };
            assert!(mark.freeze(handed));
            mark
        });
        for (mark, at) in marks.into_iter().zip(MARKS) {
            header[at as usize..at as usize + MARK_BYTES].copy_from_slice(&mark.encode());
        }
        assert_eq!(SegmentMark::latest(&header), marks[1]);
        header[MARKS[1] as usize] ^= 1;
        assert_eq!(SegmentMark::latest(&header), marks[0]);
    }
}
