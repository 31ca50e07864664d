//! Frames that are not written yet, gathered so that one write carries thousands of datagrams.

use std::ops::Range;

use mmsg::{Datagram, PackedDatagrams};

use super::layout::{ALIGNMENT, FRAME_BYTES_MAX, FRAME_FULL_BYTES, FrameHead, HEAD_BYTES, SegmentHeader};
use super::store::SpillLane;

/// From this fill on they are written.
const WRITE_AT_BYTES: usize = 256 << 10;

pub(super) const MEMORY_BYTES: usize = WRITE_AT_BYTES + FRAME_BYTES_MAX;

#[derive(Debug, Clone, Copy)]
struct UnwrittenFrame {
    begin: usize,
    listener: usize,
    lane: usize,
    records: u32,
    names: (u8, u8),
}

impl UnwrittenFrame {
    /// Its head, before its place and its checksum are known.
    fn head(self, body_bytes: usize) -> FrameHead {
        let body_bytes = u32::try_from(body_bytes).unwrap_or(u32::MAX);
        let (records, (listener_bytes, bound_bytes)) = (self.records, self.names);
        FrameHead { records, body_bytes, listener_bytes, bound_bytes, first: 0, body_sum: 0 }
    }
}

/// The frames that wait to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    frames: Vec<UnwrittenFrame>,
    /// The last frame takes more.
    is_open: bool,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(MEMORY_BYTES), frames: Vec::with_capacity(64), is_open: false }
    }

    /// Adds a datagram of a lane. The caller writes when the buffer is full.
    pub(super) fn push(&mut self, lane: &SpillLane, datagram: &Datagram<'_>) {
        match self.frames.last() {
            Some(last)
                if self.is_open && last.lane == lane.lane && self.bytes.len() - last.begin < FRAME_FULL_BYTES => {}
            _ => self.begin(lane),
        }
        mmsg::pack(datagram, &mut self.bytes);
        if let Some(frame) = self.frames.last_mut() {
            frame.records += 1;
        }
    }

    fn begin(&mut self, lane: &SpillLane) {
        let begin = self.bytes.len();
        // A name is not longer than the 64 bytes that a configuration allows.
        let short = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
        let names = (short(&lane.name), short(&lane.bound));
        self.bytes.resize(begin + HEAD_BYTES, 0);
        self.bytes.extend_from_slice(&lane.name.as_bytes()[..names.0.into()]);
        self.bytes.extend_from_slice(&lane.bound.as_bytes()[..names.1.into()]);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        self.frames.push(UnwrittenFrame { begin, listener: lane.listener, lane: lane.lane, records: 0, names });
        self.is_open = true;
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= WRITE_AT_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many datagrams of which listener wait, frame by frame.
    pub(super) fn by_listener(&self) -> impl Iterator<Item = (usize, u64)> {
        self.frames.iter().map(|frame| (frame.listener, u64::from(frame.records)))
    }

    /// The bytes for the segment with this header, which has so many bytes and has had so many datagrams.
    pub(super) fn sealed(&mut self, header: SegmentHeader, at: u64, mut first: u64) -> &[u8] {
        self.is_open = false;
        let ends = self.frames.iter().skip(1).map(|frame| frame.begin).chain([self.bytes.len()]).collect::<Vec<_>>();
        for (frame, end) in self.frames.iter().zip(ends) {
            let (head, body) = self.bytes[frame.begin..end].split_at_mut(HEAD_BYTES);
            let sealed = FrameHead { first, body_sum: crc32fast::hash(body), ..frame.head(body.len()) };
            head.copy_from_slice(&sealed.encode(header, at + frame.begin as u64));
            first = sealed.end();
        }
        &self.bytes
    }

    /// Where the first frame is, with its head.
    fn first_range(&self) -> Range<usize> {
        let end = self.frames.get(1).map_or(self.bytes.len(), |second| second.begin);
        0..end
    }

    /// The head of the first frame as far as it is known, with its listener and its lane; its body goes to `body`. The
    /// frame takes no more datagrams.
    pub(super) fn first(&mut self, body: &mut Vec<u8>) -> Option<(FrameHead, usize, usize)> {
        let first = *self.frames.first()?;
        self.is_open &= self.frames.len() > 1;
        body.clear();
        body.extend_from_slice(&self.bytes[self.first_range()][HEAD_BYTES..]);
        Some((first.head(body.len()), first.listener, first.lane))
    }

    /// The size of the first frame on the disk, and its number of datagrams.
    pub(super) fn first_size(&self) -> (u64, u64) {
        (self.first_range().len() as u64, self.frames.first().map_or(0, |first| u64::from(first.records)))
    }

    /// Keeps those datagrams of the first frame whose places `is_kept` picks.
    pub(super) fn keep_of_first(&mut self, is_kept: impl Fn(usize) -> bool) {
        let Some(first) = self.frames.first() else { return };
        let (range, names_end) = (self.first_range(), HEAD_BYTES + first.head(0).names_bytes());
        let mut kept = self.bytes[..names_end].to_vec();
        let mut records = 0;
        for (_, datagram) in
            PackedDatagrams::of(&self.bytes[names_end..range.end]).enumerate().filter(|(place, _)| is_kept(*place))
        {
            mmsg::pack(&datagram, &mut kept);
            records += 1;
        }
        self.frames[0].records = records;
        if records == 0 {
            self.frames.remove(0);
            kept.clear();
        }
        let gone = range.len() - kept.len();
        self.bytes.splice(range, kept);
        let behind = usize::from(records > 0);
        self.frames.iter_mut().skip(behind).for_each(|frame| frame.begin -= gone);
        self.is_open &= !self.frames.is_empty();
    }

    /// Drops all frames.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        self.is_open = false;
    }
}
