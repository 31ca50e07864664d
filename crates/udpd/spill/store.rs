//! The spill of one consumer: appends, reads, and knows how much of which listener is in it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mmsg::Datagram;

use super::find;
use super::layout::{FRAME_BYTES_MAX, HEAD_BYTES, HEADER_BYTES};
use super::outgoing::{self, Outgoing};
use super::places::Places;
use super::recover::{self, Recovered};
use super::segment::Segment;

/// The memory that one takes, with that of whoever reads it.
pub const MEMORY_BYTES: usize = outgoing::MEMORY_BYTES + 2 * FRAME_BYTES_MAX;

/// The least that one can do with: a few segments of a few frames.
pub const BYTES_MIN: u64 = 4 << 20;

/// A segment is this part of what the spill may take.
const SEGMENTS: u64 = 16;

/// How many files it has open: its segments, of which each can be a little shorter than planned, and its lock.
pub const FILES_MAX: usize = 2 * SEGMENTS as usize + 2;

/// The number of the first segment ever. What was taken before can still get a number before it.
const FIRST_NUMBER: u64 = 1 << 40;

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
}

impl Frame {
    /// What stands for so many datagrams that nobody can read.
    fn lost(segment: &Segment, datagrams: u64) -> Self {
        let (listener, lane) = (segment.left.first().map_or(0, |(listener, _)| *listener), 0);
        let end = segment.records;
        Self { segment: segment.number, listener, lane, skipped: 0, datagrams, end, is_damaged: true }
    }
}

/// Where the next frame is read.
#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u64,
    at: u64,
}

/// The directory of one consumer.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    _lock: File,
    places: Places,
    bytes_max: u64,
    /// The oldest first.
    segments: VecDeque<Segment>,
    /// The last of them is of this process, and takes more.
    is_begun: bool,
    next_number: u64,
    out: Outgoing,
    place: Place,
    /// The frame that was read last, and where its datagrams begin.
    body: Vec<u8>,
    names_bytes: usize,
}

impl Store {
    /// Opens the spill in this directory, which is made where it is missing, and takes what is in `others` as well.
    pub fn open(directory: &Path, bytes_max: u64, places: Places, others: &[PathBuf]) -> io::Result<(Self, Recovered)> {
        fs::create_dir_all(directory)?;
        let lock = recover::claim(directory)?;
        for other in others {
            recover::move_in(other, directory, FIRST_NUMBER)?;
        }
        let (segments, found) = recover::recover(directory, &places)?;
        let next_number = segments.last().map_or(FIRST_NUMBER, |last| last.number + 1);
        let store = Self {
            directory: directory.to_owned(),
            _lock: lock,
            places,
            bytes_max,
            segments: segments.into(),
            is_begun: false,
            next_number,
            out: Outgoing::new(),
            place: Place { segment: 0, at: 0 },
            body: Vec::with_capacity(FRAME_BYTES_MAX),
            names_bytes: 0,
        };
        Ok((store, found))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How many bytes it has on the disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Datagrams on the disk that are not decided.
    pub fn left(&self) -> u64 {
        self.segments.iter().flat_map(|segment| &segment.left).map(|(_, left)| left).sum()
    }

    /// Whether nothing is in it, and nothing on its way there.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty() && self.segments.iter().all(Segment::is_done)
    }

    /// Adds a datagram of this lane. True when it is time to write.
    pub fn push(&mut self, lane: usize, datagram: &Datagram<'_>) -> bool {
        self.out.push(self.places.lane(lane), datagram);
        self.out.is_full()
    }

    /// How many bytes wait to be written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.out.len() as u64
    }

    /// Writes what was added, and tells how many datagrams of which listener that was; an error of the kind
    /// `QuotaExceeded` says that it may have no more room. On an error all of it waits as before.
    pub fn write_out(&mut self, mut written: impl FnMut(usize, u64)) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let is_new = !self.is_begun || self.segments.back().is_none_or(|last| last.bytes >= self.segment_bytes());
        let more = self.out.len() as u64 + if is_new { HEADER_BYTES as u64 } else { 0 };
        if self.bytes() + more > self.bytes_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if is_new {
            self.begin_segment()?;
        }
        let Some(last) = self.segments.back_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        let records = self.out.by_listener().map(|(_, datagrams)| datagrams).sum();
        last.append(self.out.sealed(last.header, last.bytes, last.records), records)?;
        for (listener, datagrams) in self.out.by_listener() {
            last.add_left(listener, datagrams);
            written(listener, datagrams);
        }
        self.out.clear();
        Ok(())
    }

    /// Forgets what waits to be written, and tells how many datagrams of which listener that was.
    pub fn forget_unwritten(&mut self, mut lost: impl FnMut(usize, u64)) {
        self.out.by_listener().for_each(|(listener, datagrams)| lost(listener, datagrams));
        self.out.clear();
    }

    fn segment_bytes(&self) -> u64 {
        self.bytes_max / SEGMENTS
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        if self.is_begun
            && let Some(last) = self.segments.back_mut()
        {
            last.sync()?;
        }
        self.segments.push_back(Segment::create(&self.directory, self.next_number)?);
        self.next_number += 1;
        self.is_begun = true;
        // So that a power loss does not take the name.
        File::open(&self.directory)?.sync_all()
    }

    /// Reads the next frame that has something undecided, and writes down that it is handed on.
    pub fn read(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let Some(index) = self.segments.iter().position(|segment| segment.number >= self.place.segment) else {
                return Ok(None);
            };
            let is_last = index + 1 == self.segments.len();
            let segment = &mut self.segments[index];
            if segment.number > self.place.segment || self.place.at == 0 {
                self.place = Place { segment: segment.number, at: HEADER_BYTES as u64 };
            }
            let Some((begin, head)) = find::next(segment, self.place.at) else {
                // A head that was there is not any more.
                let unseen = std::mem::replace(&mut segment.seen, segment.held);
                if unseen < segment.held {
                    return Ok(Some(Frame::lost(segment, segment.held - unseen)));
                }
                if is_last {
                    return Ok(None);
                }
                self.place = Place { segment: segment.number + 1, at: 0 };
                continue;
            };
            if !find::is_whole(segment, begin, head) {
                self.place.at = begin + HEAD_BYTES as u64;
                continue;
            }
            self.place.at = begin + head.frame_bytes();
            let decided = u64::from(segment.mark.decided);
            if head.end() <= decided {
                continue;
            }
            let is_damaged = find::body(segment, begin, head, &mut self.body).is_err();
            self.names_bytes = head.names_bytes();
            segment.mark.handed = segment.mark.handed.max(u32::try_from(head.end()).unwrap_or(u32::MAX));
            segment.write_mark()?;
            let name = usize::from(head.listener_bytes);
            let text = |from: usize, to: usize| String::from_utf8_lossy(self.body.get(from..to).unwrap_or_default());
            let lane = match is_damaged {
                true => self.places.find(&find::listener_of(segment, begin, head), ""),
                false => self.places.find(&text(0, name), &text(name, name + usize::from(head.bound_bytes))),
            };
            let skipped = decided.saturating_sub(head.first);
            segment.seen += u64::from(head.records) - skipped;
            return Ok(Some(Frame {
                segment: segment.number,
                listener: lane.listener,
                lane: lane.lane,
                skipped: skipped as usize,
                datagrams: u64::from(head.records) - skipped,
                end: head.end(),
                is_damaged,
            }));
        }
    }

    /// The datagrams of the frame that was read last, as `mmsg::pack` has them.
    pub fn datagrams(&self) -> &[u8] {
        self.body.get(self.names_bytes..).unwrap_or_default()
    }

    /// So many datagrams of a listener, of those that were read from this segment, are decided.
    pub fn decide(&mut self, segment: u64, listener: usize, datagrams: u64) {
        let Some(segment) = self.segments.iter_mut().find(|own| own.number == segment) else { return };
        if let Some((_, left)) = segment.left.iter_mut().find(|(own, _)| *own == listener) {
            *left = left.saturating_sub(datagrams);
        }
    }

    /// So many datagrams of a segment cannot be read. Tells whose they are taken to be, which is this listener's as far
    /// as it has any.
    pub fn give_up(&mut self, segment: u64, listener: usize, mut datagrams: u64, mut lost: impl FnMut(usize, u64)) {
        let Some(segment) = self.segments.iter_mut().find(|own| own.number == segment) else { return };
        segment.left.sort_by_key(|(own, _)| *own != listener);
        for (listener, left) in &mut segment.left {
            let given_up = datagrams.min(*left);
            *left -= given_up;
            datagrams -= given_up;
            lost(*listener, given_up);
        }
    }

    /// All before this place of a segment are decided. What is decided as a whole is removed.
    pub fn acknowledge(&mut self, segment: u64, end: u64) {
        if let Some(segment) = self.segments.iter_mut().find(|own| own.number == segment) {
            segment.mark.decided = segment.mark.decided.max(u32::try_from(end).unwrap_or(u32::MAX));
        }
        self.remove_done();
    }

    fn remove_done(&mut self) {
        let all = self.is_empty();
        let last = self.segments.back().map(|last| last.number);
        let is_over = |segment: &Segment| segment.is_done() && (all || Some(segment.number) != last);
        while let Some(place) = self.segments.iter().position(is_over) {
            let Some(mut segment) = self.segments.remove(place) else { break };
            // Should it stay, it says that it is done.
            let marked = segment.write_mark();
            let path = segment.path.clone();
            if let Err(error) = marked.and_then(|()| segment.remove()) {
                log::warn!("cannot remove {}: {error}; all of it is sent: remove it", path.display());
            }
        }
        self.is_begun &= !self.segments.is_empty();
    }

    /// Gives up the oldest segment; returns its number, and what is lost with it by listener.
    pub fn drop_oldest(&mut self) -> Option<(u64, Vec<(usize, u64)>)> {
        let oldest = self.segments.pop_front()?;
        let (number, left, path) = (oldest.number, oldest.left.clone(), oldest.path.clone());
        if let Err(error) = oldest.remove() {
            log::warn!("cannot remove {}: {error}; its datagrams are given up: remove it", path.display());
        }
        self.is_begun &= !self.segments.is_empty();
        Some((number, left))
    }

    /// So many of the datagrams that wait, the first ones, are with somebody who may still deliver them.
    pub fn note_handed(&mut self, mut datagrams: u64) -> io::Result<()> {
        for segment in &mut self.segments {
            let decided = u64::from(segment.mark.decided);
            let handed = datagrams.min(segment.records - decided.min(segment.records));
            segment.mark.handed = segment.mark.handed.max(u32::try_from(decided + handed).unwrap_or(u32::MAX));
            segment.write_mark()?;
            datagrams -= handed;
        }
        Ok(())
    }

    /// Forces everything to the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.segments.iter_mut().try_for_each(Segment::sync)
    }

    /// The end: nothing is handed on any more, and what was is decided as far as `acknowledge` was told. Unless
    /// something may be with somebody all the same, nothing will be sent twice.
    pub fn close(&mut self, may_be_twice: bool) -> io::Result<()> {
        for segment in &mut self.segments {
            if !may_be_twice {
                segment.mark.handed = segment.mark.decided;
            }
            segment.write_mark()?;
        }
        self.sync()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
