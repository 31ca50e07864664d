//! Frames that are not written yet. They are gathered, so that one write carries thousands of datagrams.

use mmsg::Datagram;

use super::layout::{ALIGNMENT, FRAME_BYTES_MAX, FRAME_FULL_BYTES, HEAD_BYTES, Head, Header};
use super::places::Lane;

/// From this fill on they are written.
const WRITE_AT_BYTES: usize = 256 << 10;

/// The memory that they take.
pub(super) const MEMORY_BYTES: usize = WRITE_AT_BYTES + FRAME_BYTES_MAX;

/// A frame in the buffer.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    begin: usize,
    listener: usize,
    lane: usize,
    records: u32,
    names: (u8, u8),
}

/// What waits to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    frames: Vec<Waiting>,
    /// The last frame takes more.
    is_open: bool,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(MEMORY_BYTES), frames: Vec::with_capacity(64), is_open: false }
    }

    /// Adds a datagram of a lane. Whoever does so writes when it is full.
    pub(super) fn push(&mut self, lane: &Lane, datagram: &Datagram<'_>) {
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

    fn begin(&mut self, lane: &Lane) {
        let begin = self.bytes.len();
        // A name is not longer than the 64 bytes that a configuration allows.
        let short = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
        let names = (short(&lane.name), short(&lane.bound));
        self.bytes.resize(begin + HEAD_BYTES, 0);
        self.bytes.extend_from_slice(&lane.name.as_bytes()[..names.0.into()]);
        self.bytes.extend_from_slice(&lane.bound.as_bytes()[..names.1.into()]);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        self.frames.push(Waiting { begin, listener: lane.listener, lane: lane.lane, records: 0, names });
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

    /// The bytes as they lie in the segment with this header, which has so many bytes and has had so many datagrams.
    pub(super) fn sealed(&mut self, header: Header, at: u64, mut first: u64) -> &[u8] {
        self.is_open = false;
        let ends = self.frames.iter().skip(1).map(|frame| frame.begin).chain([self.bytes.len()]).collect::<Vec<_>>();
        for (frame, end) in self.frames.iter().zip(ends) {
            let (head, body) = self.bytes[frame.begin..end].split_at_mut(HEAD_BYTES);
            let sealed = Head {
                records: frame.records,
                body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
                listener_bytes: frame.names.0,
                bound_bytes: frame.names.1,
                first,
                body_sum: crc32fast::hash(body),
            };
            head.copy_from_slice(&sealed.encode(header, at + frame.begin as u64));
            first = sealed.end();
        }
        &self.bytes
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        self.is_open = false;
    }
}
