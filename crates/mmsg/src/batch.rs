//! A batch of received messages: one `recvmmsg` call fills it, iterating it yields datagrams.
//!
//! The life of a slot: *armed* (its header says how much room there is), filled by the kernel (which overwrites the
//! header with how much it used), read, and armed again before the next call. Only slots the kernel has touched since
//! they were last armed are armed again, and nothing else in a header ever changes.
//!
//! The borrow checker decides who may touch the memory when: filling takes `&mut RecvBatch`, and every [`Datagram`]
//! borrows the batch, so the kernel never writes what is being read.
//!
//! A batch without GRO keeps no table while nothing is discarded: each slot is one datagram. That is the hot path, and
//! its counts take one loop over the lengths.
#![allow(unsafe_code)]
// The lengths in a header have other types in other C libraries; which of them need a cast depends on that.
#![allow(clippy::unnecessary_cast)]

use std::fmt;
use std::io::{self, ErrorKind::Interrupted, ErrorKind::WouldBlock};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::ptr;

use libc::mmsghdr;

use crate::addr::{self, NAME_BYTES};
use crate::arena::Arena;
use crate::arena::Backing;
use crate::datagram::{Datagram, Message, Summary, Train, ordinals};
use crate::region::Region;
use crate::shape::BatchShape;
use crate::socket::Socket;
use crate::sys;
use crate::wait::{Wait, WakeFlag, left_until};

/// A fixed set of slots for received messages, and what is in them.
pub struct RecvBatch {
    region: Region,
    gro: bool,
    /// How many bytes of a datagram are kept: a slot, or less where a slot has room for a train.
    longest: usize,
    /// Slots in use: what was received and not cleared.
    used: usize,
    /// Slots whose headers the kernel may have changed since they were armed. Never below `used`.
    touched: usize,
    /// Slots in use without a datagram: the answers of a shut-down socket.
    void: usize,
    /// Slots whose PROXY headers were judged and are not shown.
    unwrapped: usize,
    /// Whether `kept` is valid for the slots in use. While it is not, each of them holds one datagram.
    masked: bool,
    /// One bit for each datagram of a slot that is to be yielded.
    kept: Box<[u128]>,
    /// The segment size of each slot's train. Empty without GRO.
    segments: Box<[usize]>,
    summary: Summary,
}

impl RecvBatch {
    /// One batch with an arena of its own.
    pub fn new(shape: &BatchShape) -> io::Result<RecvBatch> {
        let (mut batches, _) = RecvBatch::pool(1, shape)?;
        Ok(batches.remove(0))
    }

    /// `count` batches in one arena. The calling thread touches its pages: call it where the batches will be filled.
    pub fn pool(count: usize, shape: &BatchShape) -> io::Result<(Vec<RecvBatch>, Backing)> {
        shape.check()?;
        let layout = shape.layout();
        let bytes = layout.bytes().checked_mul(count).filter(|bytes| *bytes > 0).ok_or_else(|| {
            let text = format!("a pool of {count} batches of {} bytes is not possible: ask for fewer", layout.bytes());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let (arena, backing) = Arena::new(bytes, shape.huge_pages)?;
        let regions = Region::carve(arena, &vec![layout; count]);
        let batches = regions.into_iter().map(|region| RecvBatch::over(region, shape)).collect();
        Ok((batches, backing))
    }

    fn over(region: Region, shape: &BatchShape) -> RecvBatch {
        let (slots, gro) = (region.layout().slots, shape.control.gro);
        RecvBatch {
            region,
            gro,
            longest: shape.slot_bytes,
            used: 0,
            touched: 0,
            void: 0,
            unwrapped: 0,
            masked: false,
            kept: vec![0; slots].into_boxed_slice(),
            segments: vec![Train::SINGLE.segment_bytes; if gro { slots } else { 0 }].into_boxed_slice(),
            summary: Summary::default(),
        }
    }

    /// Clears the batch, fills it with one call and returns the number of messages. 0: nothing was there (with
    /// [`Wait::No`]) or came in time ([`Wait::UpTo`]), or the socket has been [interrupted](Socket::interrupt) and is
    /// empty.
    pub fn receive(&mut self, socket: &Socket, wait: Wait) -> io::Result<usize> {
        self.clear();
        self.receive_more(socket, wait)
    }

    /// Fills the free slots and keeps the others. A full batch returns 0 without waiting.
    pub fn receive_more(&mut self, socket: &Socket, wait: Wait) -> io::Result<usize> {
        self.receive_until_woken(socket, wait, None)
    }

    /// The same, and setting the wake flag ends a wait.
    pub(crate) fn receive_until_woken(
        &mut self,
        socket: &Socket,
        wait: Wait,
        wake_flag: Option<&WakeFlag>,
    ) -> io::Result<usize> {
        self.check_gro(socket)?;
        self.fill(|headers, count| {
            if let Wait::Gather(time) = wait {
                std::thread::sleep(time);
            }
            // SAFETY: `fill` passes `count` armed headers of a region that it borrows mutably.
            unsafe { receive_into(socket, headers, count, wait, wake_flag) }
        })
    }

    /// Fills the free slots with one call for each message (`recvmsg`), without waiting. Use it where `recvmmsg` fails
    /// and the socket must still be read. An error after the first message is returned by the next call.
    pub fn receive_each(&mut self, socket: &Socket) -> io::Result<usize> {
        self.check_gro(socket)?;
        // SAFETY: as in `receive_more`.
        self.fill(|headers, count| unsafe { receive_each_into(socket, headers, count) })
    }

    /// Refuses a socket that sends trains to a batch that cannot split them.
    pub(crate) fn check_gro(&self, socket: &Socket) -> io::Result<()> {
        if socket.has_gro() && !self.gro {
            let text = "the socket glues datagrams into trains (set_gro) and this batch cannot split them: \
                        build it with control.gro";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }

    /// The memory of the batch.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Lets `call` fill the free slots and counts what it has put there. It is given armed headers and their number,
    /// and returns how many it has filled, in order; an error fills none.
    pub(crate) fn fill(&mut self, call: impl FnOnce(*mut mmsghdr, usize) -> io::Result<usize>) -> io::Result<usize> {
        let first = self.used;
        let free = self.slots() - first;
        if free == 0 {
            return Ok(0);
        }
        self.arm(first);
        // If the call does not return, any header may have changed.
        self.touched = self.slots();
        let outcome = call(self.region.header(first), free);
        // Whatever the outcome, the kernel may have begun on the first one.
        let received = outcome.as_ref().map_or(0, |received| *received.min(&free));
        self.used = first + received;
        self.touched = self.used.max(first + 1);
        outcome?;
        let void = if self.gro { self.account_trains(first) } else { self.account(first) };
        if void > 0 {
            self.set_void_aside(first, void);
        }
        Ok(received - void)
    }

    /// Restores what the kernel has overwritten in the headers from `first` on.
    fn arm(&mut self, first: usize) {
        for slot in first..self.touched {
            // SAFETY: `touched` never exceeds the number of slots; `&mut self` excludes readers.
            unsafe { self.region.arm(slot) };
        }
        self.touched = first;
    }

    /// Counts the slots from `first` on, one datagram each. Returns how many of them are void.
    fn account(&mut self, first: usize) -> usize {
        let slot_bytes = self.region.layout().slot_bytes;
        let (mut bytes, mut truncated, mut void) = (0, 0, 0);
        for slot in first..self.used {
            let (length, name_bytes) = self.lengths(slot);
            bytes += length.min(slot_bytes) as u64;
            truncated += u64::from(length > slot_bytes);
            void += usize::from(name_bytes == 0);
        }
        self.summary.datagrams += (self.used - first - void) as u64;
        self.summary.bytes += bytes;
        self.summary.truncated += truncated;
        if self.masked {
            self.kept[first..self.used].fill(1);
        }
        void
    }

    /// The same for a batch that may hold trains.
    fn account_trains(&mut self, first: usize) -> usize {
        self.masked = true;
        let mut void = 0;
        for slot in first..self.used {
            let (_, name_bytes) = self.lengths(slot);
            void += usize::from(name_bytes == 0);
            let message = self.message(slot);
            let train = Train::read(message.length, message.control, self.is_control_cut(slot));
            let (bytes, length, single) = (message.payload.len(), message.length, Train::SINGLE);
            self.kept[slot] = train.map_or(0, Train::all);
            self.segments[slot] = train.unwrap_or(single).segment_bytes;
            match train {
                None if name_bytes > 0 => self.summary.unsplit += 1,
                Some(train) if name_bytes > 0 => {
                    self.summary.datagrams += train.segments as u64;
                    match length > bytes || train.segment_bytes.min(length) > self.longest {
                        true => self.account_truncated(slot),
                        false => self.summary.bytes += bytes as u64,
                    }
                }
                _ => {}
            }
        }
        void
    }

    fn account_truncated(&mut self, slot: usize) {
        let (message, mut summary) = (self.message(slot), self.summary);
        for ordinal in ordinals(self.kept[slot]) {
            let datagram = self.datagram(&message, slot, ordinal);
            summary.bytes += datagram.payload().len() as u64;
            summary.truncated += u64::from(datagram.is_truncated());
        }
        self.summary = summary;
    }

    /// One datagram of what is in a slot.
    pub(crate) fn datagram<'a>(&self, message: &Message<'a>, slot: usize, ordinal: usize) -> Datagram<'a> {
        let datagram = Datagram::cut(message, self.segment_bytes(slot), self.longest, ordinal);
        if slot < self.unwrapped { datagram.unwrapped() } else { datagram }
    }

    /// An empty socket that was shut down answers with a message without sender and bytes. It is no datagram (an empty
    /// datagram has a sender), so it must not be counted or shown.
    #[cold]
    fn set_void_aside(&mut self, first: usize, mut void: usize) {
        self.mask();
        for slot in first..self.used {
            if self.lengths(slot).1 == 0 {
                self.kept[slot] = 0;
            }
        }
        while void > 0 && self.lengths(self.used - 1).1 == 0 {
            self.used -= 1;
            void -= 1;
        }
        self.void += void;
    }

    /// Makes `kept` valid for all slots in use.
    fn mask(&mut self) {
        if !self.masked {
            self.kept[..self.used].fill(1);
            self.masked = true;
        }
    }

    /// Message length and name length as the kernel wrote them.
    #[inline]
    fn lengths(&self, slot: usize) -> (usize, usize) {
        assert!(slot < self.slots());
        let header = self.region.header(slot);
        // SAFETY: an existing slot; the kernel writes headers only during `fill`, which has `&mut self`.
        unsafe { ((*header).msg_len as usize, (*header).msg_hdr.msg_namelen as usize) }
    }

    fn is_control_cut(&self, slot: usize) -> bool {
        assert!(slot < self.slots());
        // SAFETY: as in `lengths`.
        unsafe { (*self.region.header(slot)).msg_hdr.msg_flags & libc::MSG_CTRUNC != 0 }
    }

    /// What is in a slot. Lengths are cut to the room there is, whatever the header says.
    #[inline]
    pub(crate) fn message(&self, slot: usize) -> Message<'_> {
        let (length, name_bytes) = self.lengths(slot);
        let layout = self.region.layout();
        // SAFETY: an existing slot (checked by `lengths`). Each part starts within the block, is no longer than its
        // room there, and was zeroed memory before the kernel wrote to it. The block is this slot's alone, and its
        // arena lives as long as the region. The slices borrow `self`, and filling needs `&mut self`.
        unsafe {
            let control_bytes = ((*self.region.header(slot)).msg_hdr.msg_controllen as usize).min(layout.control_bytes);
            let (name, control, payload) = self.region.parts(slot);
            Message {
                name: std::slice::from_raw_parts(name, name_bytes.min(NAME_BYTES)),
                control: std::slice::from_raw_parts(control, control_bytes),
                payload: std::slice::from_raw_parts(payload, length.min(layout.slot_bytes)),
                length,
            }
        }
    }

    fn segment_bytes(&self, slot: usize) -> usize {
        self.segments.get(slot).copied().unwrap_or(Train::SINGLE.segment_bytes)
    }

    pub(crate) fn kept(&self, slot: usize) -> u128 {
        if self.masked { self.kept[slot] } else { 1 }
    }

    /// Whether some datagrams are not to be shown.
    pub(crate) fn is_masked(&self) -> bool {
        self.masked
    }

    /// The slots that were filled, from the first.
    pub(crate) fn used_slots(&self) -> usize {
        self.used
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.used = 0;
        self.void = 0;
        self.unwrapped = 0;
        self.masked = false;
        self.summary = Summary::default();
    }

    /// How many messages were received since the batch was cleared. A train is one message; discarding changes nothing.
    pub fn messages(&self) -> usize {
        self.used - self.void
    }

    /// Whether there is no free slot left.
    pub fn is_full(&self) -> bool {
        self.used == self.slots()
    }

    /// Whether nothing was received since the batch was cleared.
    pub fn is_empty(&self) -> bool {
        self.messages() == 0
    }

    /// How many messages it can hold.
    pub fn slots(&self) -> usize {
        self.region.layout().slots
    }

    /// Counts of what [`datagrams`](Self::datagrams) yields.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Asks `judge` about every datagram in the slots from `first` on: how many bytes of its payload to hide, or `None`
    /// to discard it. Returns how many were discarded.
    pub(crate) fn sift(&mut self, first: usize, mut judge: impl FnMut(&Datagram<'_>) -> Option<usize>) -> usize {
        self.sift_renaming(first, |datagram, _| judge(datagram))
    }

    /// The same, and `judge` may name another sender for all that is in the slot: at first it is none.
    pub(crate) fn sift_renaming(
        &mut self,
        first: usize,
        mut judge: impl FnMut(&Datagram<'_>, &mut Option<SocketAddr>) -> Option<usize>,
    ) -> usize {
        self.mask();
        let (mut summary, mut discarded) = (self.summary, 0);
        for slot in first..self.used {
            let (mut kept, mut sender) = (self.kept[slot], None);
            let message = self.message(slot);
            for ordinal in ordinals(kept) {
                let datagram = self.datagram(&message, slot, ordinal);
                let payload_bytes = datagram.payload().len();
                let taken = judge(&datagram, &mut sender);
                if taken.is_none() {
                    kept &= !(1 << ordinal);
                    discarded += 1;
                    summary.datagrams -= 1;
                    summary.truncated -= u64::from(datagram.is_truncated());
                }
                summary.bytes -= taken.unwrap_or(payload_bytes) as u64;
            }
            self.kept[slot] = kept;
            if let Some(sender) = sender {
                self.rename(slot, sender);
            }
        }
        self.summary = summary;
        discarded
    }

    /// From now on what is in this slot is from another sender.
    fn rename(&mut self, slot: usize, sender: SocketAddr) {
        assert!(slot < self.slots());
        let name = addr::encode(sender);
        let (bytes, header) = (name.as_bytes(), self.region.header(slot));
        // SAFETY: an existing slot of a region that is borrowed mutably; its header points at a name with room for
        // NAME_BYTES, the most that an address takes, which the kernel writes only during `fill`.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), (*header).msg_hdr.msg_name.cast::<u8>(), bytes.len());
            (*header).msg_hdr.msg_namelen = bytes.len() as libc::socklen_t;
        }
    }

    /// The first slot whose PROXY headers are not judged yet.
    pub(crate) fn unwrapped_slots(&self) -> usize {
        self.unwrapped
    }

    /// From now on the datagrams of all slots in use are shown without their headers.
    pub(crate) fn show_unwrapped(&mut self) {
        self.unwrapped = self.used;
    }
}

/// Receives by `recvmmsg`. 0: nothing was there or came in time, or the wake flag has ended the wait.
///
/// # Safety
/// As for [`sys::recvmmsg`].
pub(crate) unsafe fn receive_into(
    socket: &Socket,
    headers: *mut mmsghdr,
    count: usize,
    wait: Wait,
    wake_flag: Option<&WakeFlag>,
) -> io::Result<usize> {
    // MSG_TRUNC as an argument: report the real length also of what did not fit.
    let flags = libc::MSG_TRUNC
        | match wait {
            Wait::Block | Wait::Gather(_) => libc::MSG_WAITFORONE,
            Wait::UpTo(_) | Wait::No => libc::MSG_DONTWAIT,
        };
    let (end, fd) = (wait.end(), socket.as_fd());
    let (mut is_last, mut events) = (wait == Wait::No, 0);
    loop {
        // SAFETY: the caller vouches for it.
        match unsafe { sys::recvmmsg(fd, headers, count, flags) } {
            Err(error) if error.kind() == Interrupted && !wake_flag.is_some_and(WakeFlag::is_set) => {}
            // The call did not wait: the wait has a limit, or the socket is nonblocking. A poll does it instead.
            Err(error) if error.kind() == WouldBlock && !is_last => {
                if events & libc::POLLERR != 0 {
                    // An answer of the network that the socket keeps was told once. It would end every wait.
                    sys::drop_error_record(fd);
                }
                match sys::poll_readable(fd, left_until(end)) {
                    // One look after the end of the time, or of the socket.
                    Ok(now) => (events, is_last) = (now, now == 0 || now & libc::POLLRDHUP != 0),
                    Err(error) if error.kind() == Interrupted => is_last = wake_flag.is_some_and(WakeFlag::is_set),
                    Err(error) => return Err(error),
                }
            }
            Err(error) if matches!(error.kind(), Interrupted | WouldBlock) => return Ok(0),
            result => return result,
        }
    }
}

/// Receives by `recvmsg`, message by message, until a call finds nothing. 0: nothing was there.
///
/// # Safety
/// As for [`sys::recvmmsg`].
pub(crate) unsafe fn receive_each_into(socket: &Socket, headers: *mut mmsghdr, count: usize) -> io::Result<usize> {
    let mut received = 0;
    while received < count {
        // SAFETY: the caller vouches for `count` headers, and this is one of them.
        let result =
            unsafe { sys::recvmsg(socket.as_fd(), headers.add(received), libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
        match result {
            Ok(true) => received += 1,
            // An empty socket that was shut down answers with a message without a sender, which `fill` sets aside.
            Ok(false) => return Ok(received + 1),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if received > 0 || error.kind() == WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(received)
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RecvBatch")
            .field("slots", &self.slots())
            .field("messages", &self.messages())
            .field("gro", &self.gro)
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
