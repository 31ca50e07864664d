//! What a store returns from its segments: a frame at a time, or why none can be read.

use std::io;

use super::segment::Segment;

/// A frame that was read. Its datagrams are with the store until the next one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The number of its segment.
    pub segment: u64,
    pub listener: usize,
    pub lane: usize,
    /// So many of its datagrams, the first ones, were decided before.
    pub skipped: usize,
    /// So many are not decided.
    pub datagrams: u64,
    /// Its place behind the last of its datagrams.
    pub end: u64,
    /// Its content is damaged and cannot be sent.
    pub is_damaged: bool,
    /// It waits in memory, because the disk does not take it, and stays there until `Store::keep_unwritten`.
    pub is_unwritten: bool,
}

impl Frame {
    /// What is at this place of the frame, as a place among the datagrams of the segment.
    pub fn in_segment(&self, place: usize) -> u64 {
        (self.end + place as u64).saturating_sub(self.skipped as u64 + self.datagrams)
    }

    /// Stands for so many datagrams that cannot be read.
    pub(super) fn lost(segment: &Segment, datagrams: u64) -> Self {
        let (listener, lane) = (segment.left.first().map_or(0, |(listener, _)| *listener), 0);
        let end = segment.records;
        Self {
            segment: segment.number,
            listener,
            lane,
            skipped: 0,
            datagrams,
            end,
            is_damaged: true,
            is_unwritten: false,
        }
    }
}

/// Where the next frame is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadPosition {
    pub(super) segment: u64,
    pub(super) at: u64,
}

/// Why nothing can be read now. The reader retries later.
#[derive(Debug)]
pub enum SpillReadError {
    /// The disk does not return it.
    Unread(io::Error),
    /// It cannot be marked as handed on, so a crash would hide what comes twice.
    Unmarked(io::Error),
}
