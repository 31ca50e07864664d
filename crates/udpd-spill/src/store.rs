//! The spill of one consumer: appends, removes, and knows how much of which listener is in it; and the reader's side,
//! which returns the next frame once it is written down that it is handed on.
//!
//! A disk that cannot sync what it was given has it all the same, so that is told and costs nothing. Each segment
//! number is tried once: what a failure has left behind under one never stands in the way.
//!
//! A disk may return a moment later what it does not return now, so a read is retried many times before it is given up.
//! But one bad place must not hold up everything behind it for ever, so it is skipped in the end. The next place gets
//! as many retries: a disk that fails as a whole, for a while, costs a place or two and not the spill.
//!
//! A spill outlives the configuration that filled it, so it names listeners and lanes by name and bound address, while
//! the rest of the program numbers them ([`SpillLanes`]).

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use mmsg::Datagram;

use super::layout::{FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, HEADER_BYTES, RECORDS_MAX};
use super::recover::Recovered;
use super::segment::Segment;
use super::write_buffer::Outgoing;
use super::{recover, segment_reader, write_buffer};
use udpd_base::seams::disk;

/// How often an unreadable place is read again, four times a second.
const TRIES: u32 = 20;

/// The memory of one store and its reader.
pub const MEMORY_BYTES: usize = write_buffer::MEMORY_BYTES + 2 * FRAME_BYTES_MAX;

/// The smallest limit that is useful: a few segments of a few frames.
pub const BYTES_MIN: u64 = 4 << 20;

/// A segment takes this fraction of the limit.
const SEGMENTS: u64 = 16;

/// How many files it has open: its segments, each of which can be a little shorter than planned, and its lock.
pub const FILES_MAX: usize = 2 * SEGMENTS as usize + 2;

/// The number of the first segment. Segments of other directories that are moved in later get smaller numbers.
const FIRST_NUMBER: u64 = 1 << 40;

/// The directory of one consumer.
#[derive(Debug)]
pub struct SpillStore {
    directory: PathBuf,
    _lock: File,
    lanes: SpillLanes,
    bytes_max: u64,
    /// The oldest first.
    segments: VecDeque<Segment>,
    /// The last of them is of this process, and takes more.
    is_begun: bool,
    next_number: u64,
    out: Outgoing,
    /// Its first frame was read, and its outcome is open.
    is_lent: bool,
    /// So many of the next datagrams are handed on before they are written.
    handed: u32,
    /// Why the last sync failed, until [`SpillStore::take_sync_error`] takes it.
    sync_error: Option<io::Error>,
    place: ReadPosition,
    /// The frame that was read last, and where its datagrams begin.
    body: Vec<u8>,
    names_bytes: usize,
    /// How many reads in a row have failed.
    failures: u32,
}

impl SpillStore {
    /// Opens the spill in this directory, which is created if it is missing, and moves in the segments of `others`.
    pub fn open(
        directory: &Path,
        bytes_max: u64,
        lanes: SpillLanes,
        others: &[PathBuf],
    ) -> io::Result<(Self, Recovered)> {
        let lock = recover::claim(directory)?;
        for other in others {
            recover::move_in(other, directory, FIRST_NUMBER)?;
        }
        let (segments, found) = recover::recover(directory, &lanes)?;
        let next_number = segments.last().map_or(FIRST_NUMBER, |last| last.number + 1);
        let store = Self {
            directory: directory.to_owned(),
            _lock: lock,
            lanes,
            bytes_max,
            segments: segments.into(),
            is_begun: false,
            next_number,
            out: Outgoing::new(),
            is_lent: false,
            handed: 0,
            sync_error: None,
            place: ReadPosition { segment: 0, at: 0 },
            body: Vec::with_capacity(FRAME_BYTES_MAX),
            names_bytes: 0,
            failures: 0,
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

    /// Whether it holds no datagrams, on the disk or in memory.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty() && self.segments.iter().all(Segment::is_done)
    }

    /// Adds a datagram of this lane. Returns true when it is time to write.
    pub fn push(&mut self, lane: usize, datagram: &Datagram<'_>) -> bool {
        self.out.push(self.lanes.lane(lane), datagram);
        self.out.is_full()
    }

    /// Whether it is time to write.
    pub fn is_write_due(&self) -> bool {
        self.out.is_full()
    }

    /// How many bytes wait to be written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.out.len() as u64
    }

    /// How many datagrams wait to be written.
    pub fn unwritten_datagrams(&self) -> u64 {
        self.out.by_listener().map(|(_, datagrams)| datagrams).sum()
    }

    /// Writes what was added, and calls `written` with the number of datagrams by listener. An error of the kind
    /// `QuotaExceeded` means that the limit is reached. On an error everything waits as before. Returns the segment of
    /// the frame that was read from memory and is on the disk now, and its place after the last datagram there.
    pub fn write_out(&mut self, mut written: impl FnMut(usize, u64)) -> io::Result<Option<(u64, u64)>> {
        if self.out.is_empty() {
            return Ok(None);
        }
        let records: u64 = self.out.by_listener().map(|(_, datagrams)| datagrams).sum();
        let takes_more =
            |last: &Segment| last.bytes < self.segment_bytes() && last.records.saturating_add(records) <= RECORDS_MAX;
        let is_new = !self.is_begun || !self.segments.back().is_some_and(takes_more);
        let more = self.out.len() as u64 + if is_new { HEADER_BYTES as u64 } else { 0 };
        if self.bytes() + more > self.bytes_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if is_new {
            self.begin_segment()?;
        }
        let Some(last) = self.segments.back_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        let (number, begin, first) = (last.number, last.bytes, last.records);
        if first == 0 && last.mark.handed != self.handed {
            // The segment was created before, and then the disk took no more.
            last.mark.handed = self.handed;
            last.write_mark()?;
        }
        last.append(self.out.sealed(last.header, last.bytes, last.records), records)?;
        self.handed = 0;
        for (listener, datagrams) in self.out.by_listener() {
            last.add_left(listener, datagrams);
            written(listener, datagrams);
        }
        let lent = std::mem::take(&mut self.is_lent).then(|| self.out.first_size()).map(|(bytes, datagrams)| {
            last.seen += datagrams;
            self.place = ReadPosition { segment: number, at: begin + bytes };
            (number, first + datagrams)
        });
        self.out.clear();
        Ok(lent)
    }

    /// Drops what waits to be written, and calls `lost` with the number of datagrams by listener.
    pub fn forget_unwritten(&mut self, mut lost: impl FnMut(usize, u64)) {
        self.out.by_listener().for_each(|(listener, datagrams)| lost(listener, datagrams));
        self.out.clear();
        (self.is_lent, self.handed) = (false, 0);
    }

    fn segment_bytes(&self) -> u64 {
        self.bytes_max / SEGMENTS
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        if self.is_begun
            && let Some(last) = self.segments.back_mut()
        {
            self.sync_error = last.sync().err().or(self.sync_error.take());
        }
        let number = self.next_number;
        self.next_number += 1;
        self.segments.push_back(Segment::create(&self.directory, number, self.handed)?);
        self.is_begun = true;
        // A power loss must not lose the name.
        let forced = File::open(&self.directory).and_then(|directory| disk::sync_all(&directory));
        self.sync_error = forced.err().or(self.sync_error.take());
        Ok(())
    }

    /// Why a sync has failed since the last call, if one has.
    pub fn take_sync_error(&mut self) -> Option<io::Error> {
        self.sync_error.take()
    }

    /// The destination may still deliver so many of the next datagrams. To be called before they are added, so that the
    /// mark reaches the disk no later than they do.
    pub fn expect_handed(&mut self, datagrams: u64) {
        self.handed = u32::try_from(datagrams).unwrap_or(u32::MAX);
    }

    /// All datagrams before this place of a segment are decided. Segments that are decided are removed.
    pub fn acknowledge(&mut self, segment: u64, end: u64) {
        if let Some(segment) = self.segments.iter_mut().find(|own| own.number == segment) {
            segment.mark.decide(u32::try_from(end).unwrap_or(u32::MAX));
        }
        self.remove_done();
    }

    /// The same for a destination that takes batches: also on the disk, so that a crash does not send them again.
    pub fn acknowledge_batch(&mut self, segment: u64, end: u64) -> io::Result<()> {
        self.acknowledge(segment, end);
        let left = self.segments.iter_mut().find(|own| own.number == segment);
        left.map_or(Ok(()), Segment::write_mark)
    }

    /// The batch that ends here is about to be sent: a later process finds it with the same limits. Returns false when
    /// as many as may be are on their way.
    pub fn freeze(&mut self, segment: u64, end: u64) -> io::Result<bool> {
        let Some(segment) = self.segments.iter_mut().find(|own| own.number == segment) else { return Ok(true) };
        let is_frozen = segment.mark.freeze(u32::try_from(end).unwrap_or(u32::MAX));
        segment.write_mark().map(|()| is_frozen)
    }

    /// Where the batch ends that an earlier process has frozen from this place on, if it has.
    pub fn frozen_end(&self, segment: u64, begin: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|own| own.number == segment)?;
        segment.mark.ends.into_iter().map(u64::from).filter(|end| *end > begin).min()
    }

    /// A number that no other segment has, on this host or another.
    pub fn origin(&self, segment: u64) -> u64 {
        let key = self.segments.iter().find(|own| own.number == segment).map_or(0, |own| own.header.key);
        u64::from(key) << 32 | (segment & u64::from(u32::MAX))
    }

    /// Removes each segment without waiting datagrams. The last one, which takes more, is removed only when none wait
    /// in any: on a full disk its space is all that there is for new ones.
    fn remove_done(&mut self) {
        let all = self.segments.iter().all(Segment::is_done);
        let last = self.segments.back().map(|last| last.number);
        let is_over = |segment: &Segment| segment.is_done() && (all || Some(segment.number) != last);
        while let Some(place) = self.segments.iter().position(is_over) {
            let Some(mut segment) = self.segments.remove(place) else { break };
            if let Err(error) = segment.remove() {
                // Its mark tells that it is done.
                let marked = segment.write_mark();
                let and_sends = if marked.is_err() { ", or the next udpd sends it again" } else { "" };
                log::warn!(
                    "cannot remove {}: {error}; all of it is sent: remove it{and_sends}",
                    segment.path.display()
                );
            }
        }
        self.is_begun &= !self.segments.is_empty();
    }

    /// The number of the oldest segment with datagrams: to give up another frees no space.
    pub fn oldest(&self) -> Option<u64> {
        self.segments.front().filter(|oldest| oldest.records > 0).map(|oldest| oldest.number)
    }

    /// Gives up the oldest segment; returns the lost datagrams by listener.
    pub fn drop_oldest(&mut self) -> Vec<(usize, u64)> {
        let Some(mut oldest) = self.segments.pop_front() else { return Vec::new() };
        if let Err(error) = oldest.remove() {
            // Its mark tells that nothing of it is to be sent.
            oldest.mark.decided = u32::try_from(oldest.records).unwrap_or(u32::MAX);
            let marked = oldest.write_mark();
            let and_sends = if marked.is_err() { ", or the next udpd sends them" } else { "" };
            log::warn!(
                "cannot remove {}: {error}; its datagrams are given up: remove it{and_sends}",
                oldest.path.display()
            );
        }
        self.is_begun &= !self.segments.is_empty();
        oldest.left
    }

    /// The destination may still deliver so many of the first waiting datagrams.
    pub fn note_handed(&mut self, mut datagrams: u64) -> io::Result<()> {
        all(self.segments.iter_mut().map(|segment| {
            let decided = u64::from(segment.mark.decided);
            let handed = datagrams.min(segment.records - decided.min(segment.records));
            datagrams -= handed;
            segment.mark.handed = segment.mark.handed.max(u32::try_from(decided + handed).unwrap_or(u32::MAX));
            segment.write_mark()
        }))
    }

    /// Syncs everything to the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        all(self.segments.iter_mut().map(Segment::sync))
    }

    /// Ends it: nothing more is handed on, and `acknowledge` has marked what is decided. Unless the destination may
    /// still deliver some of the rest (`may_be_twice`), none of it will be sent twice.
    pub fn close(&mut self, may_be_twice: bool) -> io::Result<()> {
        let marked = all(self.segments.iter_mut().map(|segment| {
            if !may_be_twice {
                segment.take_back();
            }
            segment.write_mark()
        }));
        marked.and(self.sync())
    }
}

/// Evaluates all results, and returns the first error.
fn all(mut results: impl Iterator<Item = io::Result<()>>) -> io::Result<()> {
    let first = results.try_for_each(|result| result);
    results.for_each(drop);
    first
}

impl SpillStore {
    /// Reads the next frame with undecided datagrams, and marks it as handed on.
    pub fn read(&mut self) -> Result<Option<Frame>, SpillReadError> {
        self.read_next(true)
    }

    /// The same for a destination that takes batches, which are marked by `freeze`.
    pub fn read_for_batch(&mut self) -> Result<Option<Frame>, SpillReadError> {
        self.read_next(false)
    }

    fn read_next(&mut self, is_marked: bool) -> Result<Option<Frame>, SpillReadError> {
        while let Some(index) = self.segments.iter().position(|segment| segment.number >= self.place.segment) {
            let number = self.segments[index].number;
            if number > self.place.segment || self.place.at == 0 {
                self.place = ReadPosition { segment: number, at: HEADER_BYTES as u64 };
            }
            if let Some((begin, head)) = self.head_in(index)? {
                if let Some(frame) = self.frame_at(index, begin, head, is_marked)? {
                    return Ok(Some(frame));
                }
                continue;
            }
            let segment = &mut self.segments[index];
            let seen = std::mem::replace(&mut segment.seen, segment.held);
            if seen < segment.held {
                // A head that was readable before is not any more.
                return Ok(Some(Frame::lost(segment, segment.held - seen)));
            }
            if index + 1 == self.segments.len() {
                break;
            }
            self.place = ReadPosition { segment: number + 1, at: 0 };
        }
        self.remove_done();
        Ok(self.read_unwritten())
    }

    /// The next frame of those that the disk does not take, if none wait on the disk.
    fn read_unwritten(&mut self) -> Option<Frame> {
        let (head, listener, lane) = self.out.first(&mut self.body).filter(|_| self.left() == 0)?;
        (self.names_bytes, self.is_lent) = (head.names_bytes(), true);
        let (datagrams, end) = (u64::from(head.records), head.end());
        // It may be written before its outcome is known.
        self.handed = head.records;
        Some(Frame { segment: 0, listener, lane, skipped: 0, datagrams, end, is_damaged: false, is_unwritten: true })
    }

    /// Keeps only the datagrams at these places of the frame that was read from memory; it is read again.
    pub fn keep_unwritten(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.out.keep_of_first(is_kept);
        (self.is_lent, self.handed) = (false, 0);
    }

    /// The next head of a segment.
    fn head_in(&mut self, index: usize) -> Result<Option<(u64, FrameHead)>, SpillReadError> {
        let mut error = None;
        let next = segment_reader::next(&self.segments[index], self.place.at, &mut error);
        match error {
            Some(error) if self.failures < TRIES => {
                self.failures += 1;
                Err(SpillReadError::Unread(error))
            }
            Some(_) => {
                self.failures = 0;
                Ok(next)
            }
            None => Ok(next),
        }
    }

    /// The frame with this head; `None` if it is cut off, or all of it is decided.
    fn frame_at(
        &mut self,
        index: usize,
        begin: u64,
        head: FrameHead,
        is_marked: bool,
    ) -> Result<Option<Frame>, SpillReadError> {
        let segment = &mut self.segments[index];
        let decided = u64::from(segment.mark.decided);
        let is_whole = segment_reader::is_whole(segment, begin, head);
        let behind = begin + if is_whole { head.frame_bytes() } else { HEAD_BYTES as u64 };
        if !is_whole || head.end() <= decided {
            self.place.at = behind;
            return Ok(None);
        }
        let read = segment_reader::body(segment, begin, head, &mut self.body);
        if let Err(error) = &read
            && segment_reader::is_of_the_disk(error)
            && self.failures < TRIES
        {
            self.failures += 1;
            return read.map(|()| None).map_err(SpillReadError::Unread);
        }
        self.failures = 0;
        if is_marked {
            segment.mark.handed = segment.mark.handed.max(u32::try_from(head.end()).unwrap_or(u32::MAX));
            segment.write_mark().map_err(SpillReadError::Unmarked)?;
        }
        let skipped = decided.saturating_sub(head.first);
        let datagrams = u64::from(head.records) - skipped;
        segment.seen += datagrams;
        (self.place.at, self.names_bytes) = (behind, head.names_bytes());
        let (segment, is_damaged) = (segment.number, read.is_err());
        let unread =
            is_damaged.then(|| segment_reader::listener_of(&self.segments[index], begin, head).unwrap_or_default());
        let SpillLane { listener, lane, .. } = *self.lane_of(head, unread.as_deref());
        let (skipped, end) = (skipped as usize, head.end());
        Ok(Some(Frame { segment, listener, lane, skipped, datagrams, end, is_damaged, is_unwritten: false }))
    }

    /// The lane of the frame that was read; of an unreadable one only the name of the listener is known.
    fn lane_of(&self, head: FrameHead, unread: Option<&str>) -> &SpillLane {
        let name = usize::from(head.listener_bytes);
        let text = |from: usize, to: usize| String::from_utf8_lossy(self.body.get(from..to).unwrap_or_default());
        match unread {
            Some(listener) => self.lanes.find(listener, ""),
            None => self.lanes.find(&text(0, name), &text(name, name + usize::from(head.bound_bytes))),
        }
    }

    /// The datagrams of the frame that was read last, as `mmsg::pack` has them.
    pub fn datagrams(&self) -> &[u8] {
        self.body.get(self.names_bytes..).unwrap_or_default()
    }

    /// So many datagrams of a listener that were read from this segment are decided.
    pub fn decide(&mut self, segment: u64, listener: usize, datagrams: u64) {
        let Some(segment) = self.segments.iter_mut().find(|own| own.number == segment) else { return };
        if let Some((_, left)) = segment.left.iter_mut().find(|(own, _)| *own == listener) {
            *left = left.saturating_sub(datagrams);
        }
    }

    /// So many datagrams of a segment cannot be read. Calls `lost` with their number by listener; they count for this
    /// listener as far as it has any.
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
}

/// A frame that was read. Its datagrams are with the store until the next one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub segment: u64,
    pub listener: usize,
    pub lane: usize,
    /// How many of its first datagrams were decided before.
    pub skipped: usize,
    /// How many are not decided.
    pub datagrams: u64,
    /// The place after its last datagram.
    pub end: u64,
    /// Its content is damaged and cannot be sent.
    pub is_damaged: bool,
    /// It waits in memory, because the disk does not take it, and stays there until `SpillStore::keep_unwritten`.
    pub is_unwritten: bool,
}

impl Frame {
    /// The place in the segment of the datagram at this place of the frame.
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

/// Why no frame can be read now. The reader retries later.
#[derive(Debug)]
pub enum SpillReadError {
    /// The disk does not return it.
    Unread(io::Error),
    /// It cannot be marked as handed on, so after a crash repeats would not be counted.
    Unmarked(io::Error),
}

/// A lane that feeds the consumer whose spill it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillLane {
    pub lane: usize,
    pub listener: usize,
    pub name: String,
    /// What its socket is bound to.
    pub bound: String,
}

/// All lanes that feed the consumer, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillLanes(Vec<SpillLane>);

impl SpillLanes {
    /// `None` where there is no lane.
    pub fn of(lanes: Vec<SpillLane>) -> Option<Self> {
        (!lanes.is_empty()).then_some(Self(lanes))
    }

    /// The lane with this name and address; else one of that listener; and if that is gone, the first of all.
    pub(super) fn find(&self, name: &str, bound: &str) -> &SpillLane {
        let of_listener = || self.0.iter().filter(|lane| lane.name == name);
        let exact = of_listener().find(|lane| lane.bound == bound);
        exact.or_else(|| of_listener().next()).unwrap_or(&self.0[0])
    }

    pub(super) fn lane(&self, lane: usize) -> &SpillLane {
        self.0.iter().find(|own| own.lane == lane).unwrap_or(&self.0[0])
    }

    /// One more than the place of the last listener.
    pub fn listeners(&self) -> usize {
        self.0.iter().map(|lane| lane.listener + 1).max().unwrap_or(0)
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.0.iter().any(|lane| lane.name == name)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
