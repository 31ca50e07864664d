//! The reader's side of a store: the next frame, once it is written down that it is handed on.
//!
//! What a disk does not give back it may give back a moment later, so nothing is given up before it was looked for
//! again and again. But one bad place may not hold up everything behind it for ever either, so it is passed over in the
//! end. The next one gets as many looks: a disk that fails as a whole, for a while, costs a place or two and not the
//! spill.

use super::Store;
use crate::find;
use crate::frame::{Frame, Place, Trouble};
use crate::layout::{HEAD_BYTES, HEADER_BYTES, Head};
use crate::places::Lane;

/// How often what cannot be read is looked at again; four times a second.
const TRIES: u32 = 20;

impl Store {
    /// Reads the next frame that has something undecided, and writes down that it is handed on.
    pub fn read(&mut self) -> Result<Option<Frame>, Trouble> {
        while let Some(index) = self.segments.iter().position(|segment| segment.number >= self.place.segment) {
            let number = self.segments[index].number;
            if number > self.place.segment || self.place.at == 0 {
                self.place = Place { segment: number, at: HEADER_BYTES as u64 };
            }
            if let Some((begin, head)) = self.head_in(index)? {
                if let Some(frame) = self.frame_at(index, begin, head)? {
                    return Ok(Some(frame));
                }
                continue;
            }
            let segment = &mut self.segments[index];
            let seen = std::mem::replace(&mut segment.seen, segment.held);
            if seen < segment.held {
                // A head that was there is not any more.
                return Ok(Some(Frame::lost(segment, segment.held - seen)));
            }
            if index + 1 == self.segments.len() {
                break;
            }
            self.place = Place { segment: number + 1, at: 0 };
        }
        self.remove_done();
        Ok(self.read_unwritten())
    }

    /// The next frame of what the disk does not take. Nothing that is on the disk waits before it.
    fn read_unwritten(&mut self) -> Option<Frame> {
        let (head, listener, lane) = self.out.first(&mut self.body).filter(|_| self.left() == 0)?;
        (self.names_bytes, self.is_lent) = (head.names_bytes(), true);
        let (datagrams, end) = (u64::from(head.records), head.end());
        Some(Frame { segment: 0, listener, lane, skipped: 0, datagrams, end, is_damaged: false, is_unwritten: true })
    }

    /// Of the frame that was read from memory only the datagrams at these places wait on; it is read again.
    pub fn keep_unwritten(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.out.keep_of_first(is_kept);
        self.is_lent = false;
    }

    /// The next head of a segment.
    fn head_in(&mut self, index: usize) -> Result<Option<(u64, Head)>, Trouble> {
        let mut error = None;
        let next = find::next(&self.segments[index], self.place.at, &mut error);
        match error {
            Some(error) if self.failures < TRIES => {
                self.failures += 1;
                Err(Trouble::Unread(error))
            }
            Some(_) => {
                self.failures = 0;
                Ok(next)
            }
            None => Ok(next),
        }
    }

    /// The frame with this head, and the place behind it; `None` where it is cut off, or all of it is decided.
    fn frame_at(&mut self, index: usize, begin: u64, head: Head) -> Result<Option<Frame>, Trouble> {
        let segment = &mut self.segments[index];
        let decided = u64::from(segment.mark.decided);
        let is_whole = find::is_whole(segment, begin, head);
        let behind = begin + if is_whole { head.frame_bytes() } else { HEAD_BYTES as u64 };
        if !is_whole || head.end() <= decided {
            self.place.at = behind;
            return Ok(None);
        }
        let read = find::body(segment, begin, head, &mut self.body);
        if let Err(error) = &read
            && find::is_of_the_disk(error)
            && self.failures < TRIES
        {
            self.failures += 1;
            return read.map(|()| None).map_err(Trouble::Unread);
        }
        self.failures = 0;
        segment.mark.handed = segment.mark.handed.max(u32::try_from(head.end()).unwrap_or(u32::MAX));
        segment.write_mark().map_err(Trouble::Unmarked)?;
        let skipped = decided.saturating_sub(head.first);
        let datagrams = u64::from(head.records) - skipped;
        segment.seen += datagrams;
        (self.place.at, self.names_bytes) = (behind, head.names_bytes());
        let (segment, is_damaged) = (segment.number, read.is_err());
        let unread = is_damaged.then(|| find::listener_of(&self.segments[index], begin, head).unwrap_or_default());
        let Lane { listener, lane, .. } = *self.lane_of(head, unread.as_deref());
        let (skipped, end) = (skipped as usize, head.end());
        Ok(Some(Frame { segment, listener, lane, skipped, datagrams, end, is_damaged, is_unwritten: false }))
    }

    /// Whose the frame is that was read; of one that could not be, the name of its listener is all that is known.
    fn lane_of(&self, head: Head, unread: Option<&str>) -> &Lane {
        let name = usize::from(head.listener_bytes);
        let text = |from: usize, to: usize| String::from_utf8_lossy(self.body.get(from..to).unwrap_or_default());
        match unread {
            Some(listener) => self.places.find(listener, ""),
            None => self.places.find(&text(0, name), &text(name, name + usize::from(head.bound_bytes))),
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
}
