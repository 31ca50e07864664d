//! What a store hands out of its segments: a frame at a time, or why none can be had.

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
    /// What it holds is not what was written: nobody can send it.
    pub is_damaged: bool,
    /// It waits in memory, because the disk does not take it, and stays there until `Store::keep_unwritten`.
    pub is_unwritten: bool,
}

impl Frame {
    /// What is at this place of the frame, as a place among the datagrams of the segment.
    pub fn in_segment(&self, place: usize) -> u64 {
        (self.end + place as u64).saturating_sub(self.skipped as u64 + self.datagrams)
    }

    /// What stands for so many datagrams that nobody can read.
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
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) at: u64,
}

/// Why nothing can be read now. It is worth another look later.
#[derive(Debug)]
pub enum Trouble {
    /// The disk does not give it back.
    Unread(io::Error),
    /// It cannot be written down that it is handed on, so nobody would know what comes twice after a crash.
    Unmarked(io::Error),
}
