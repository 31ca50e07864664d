//! A batch of datagrams to send.
//!
//! `sendmmsg` sends from the front and stops at the first message that it cannot send. If that is not the first of the
//! call it returns a count without the error; the next call begins with that message and gets the error. So an error is
//! about the first unsent message or about the call as a whole, and [`SendBatch::flush`] has to tell which:
//!
//! - about the message (too long, no route, not permitted): noted, skipped, on with the rest;
//! - about an earlier message (an ICMP answer waits on the socket and is returned by the next call): try again once;
//! - about segmentation (the route or device cannot do it, which may begin at any time when a route changes): the same
//!   bytes go out as single datagrams, and stay that way;
//! - about the call (no buffers, no socket): return, keep the rest queued.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::ptr;

use crate::addr;
use crate::arena::Arena;
use crate::cmsg::{self, SEGMENT_SPACE, SOURCE_SPACE};
use crate::datagram::MAX_SEGMENTS;
use crate::region::{Layout, Region};
use crate::send_report::{PushError, SendError, SendFailure, SendReport};
use crate::shape::check_slots;
use crate::socket::Socket;
use crate::sys;

/// `sendmmsg` takes no more messages at a time (`UIO_MAXIOV`).
const MAX_MESSAGES_PER_CALL: usize = 1024;

/// The most datagrams that [`SendBatch::join`] puts together: what every kernel with segmentation takes
/// (`UDP_MAX_SEGMENTS` before it was doubled).
const JOINED_MAX: usize = 64;

/// The longest payload that any UDP message has: 65,535 bytes less the headers of IPv4 and UDP.
const TRAIN_BYTES_MAX: usize = 65_507;

/// What is queued in a slot besides the bytes in its arena.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    length: usize,
    /// 0: one datagram.
    segment_bytes: usize,
    /// Bytes of the control message that names the source, at the start of the control space. 0: the kernel chooses.
    source_bytes: usize,
}

impl Queued {
    fn datagrams(self) -> usize {
        if self.segment_bytes == 0 { 1 } else { self.length.div_ceil(self.segment_bytes) }
    }
}

/// Datagrams queued for sending, in one arena with headers built once.
pub struct SendBatch {
    region: Region,
    /// Headers for the segments of one message when they go out one by one. What they point at is in `region`.
    singles: Region,
    queue: Box<[Queued]>,
    /// Slots filled.
    queued: usize,
    /// The first message not sent.
    next: usize,
    /// How many segments of `next` have gone out one by one.
    next_segment: usize,
    /// The error number with which segmentation of `next` was refused.
    refused: Option<i32>,
    /// Whether `next` was tried again after an error that may have been an earlier message's.
    retried: bool,
    /// Whether a segment of `next` has failed already: a message fails once.
    failed: bool,
    segmentation_off: bool,
    failures: Vec<SendFailure>,
    answers: Vec<i32>,
}

impl SendBatch {
    /// Room for `slots` messages of up to `slot_bytes`.
    pub fn new(slots: usize, slot_bytes: usize) -> io::Result<SendBatch> {
        check_slots(slots, slot_bytes)?;
        let messages = Layout { slots, slot_bytes, control_bytes: SOURCE_SPACE + SEGMENT_SPACE };
        let singles = Layout { slots: MAX_SEGMENTS, slot_bytes: 0, control_bytes: 0 };
        let (arena, _) = Arena::new(messages.bytes().saturating_add(singles.bytes()), false)?;
        let mut regions = Region::carve(arena, &[messages, singles]).into_iter();
        let (Some(region), Some(singles)) = (regions.next(), regions.next()) else {
            unreachable!("two layouts make two regions")
        };
        Ok(SendBatch {
            region,
            singles,
            queue: vec![Queued::default(); slots].into_boxed_slice(),
            queued: 0,
            next: 0,
            next_segment: 0,
            refused: None,
            retried: false,
            failed: false,
            segmentation_off: false,
            failures: Vec::with_capacity(slots),
            answers: Vec::with_capacity(slots),
        })
    }

    /// Queues one datagram; `to` is `None` on a connected socket.
    pub fn push(&mut self, payload: &[u8], to: Option<SocketAddr>) -> Result<(), PushError> {
        self.enqueue([&[], payload], 0, to, None)
    }

    /// Queues one datagram made of two parts, such as a header and what it is for; see [`push`](Self::push).
    pub fn push_prefixed(&mut self, prefix: &[u8], payload: &[u8], to: Option<SocketAddr>) -> Result<(), PushError> {
        self.enqueue([prefix, payload], 0, to, None)
    }

    /// Queues one datagram that leaves with the source address `from`, one of this host's, so that a host with several
    /// answers from the one that was asked, [`Datagram::local_address`](crate::Datagram::local_address). The port is
    /// the socket's. A foreign source fails in [`flush`](Self::flush), as an error of that message; the unspecified
    /// address leaves the choice to the kernel.
    pub fn push_from(&mut self, payload: &[u8], from: IpAddr, to: SocketAddr) -> Result<(), PushError> {
        // The kernel would ignore a source of the other family.
        let from = from.to_canonical();
        if from.is_ipv4() != to.ip().to_canonical().is_ipv4() {
            return Err(PushError::OtherFamily { from, to });
        }
        self.enqueue([&[], payload], 0, Some(to), Some(from))
    }

    /// Queues a payload that the kernel cuts into datagrams of `segment_bytes`, the last one perhaps shorter: one trip
    /// through the network stack for all of them. Kernels take 64 or 128 segments; a kernel that takes fewer, or a
    /// route that cannot segment, gets them one by one.
    pub fn push_segmented(
        &mut self,
        payload: &[u8],
        segment_bytes: u16,
        to: Option<SocketAddr>,
    ) -> Result<(), PushError> {
        let segment_bytes = usize::from(segment_bytes);
        if segment_bytes == 0 {
            return Err(PushError::EmptySegments);
        }
        let segments = payload.len().div_ceil(segment_bytes);
        if segments > MAX_SEGMENTS {
            return Err(PushError::TooManySegments { segments });
        }
        self.enqueue([&[], payload], if segments > 1 { segment_bytes } else { 0 }, to, None)
    }

    /// Adds a datagram to the message queued last, which the kernel then cuts. `false`: it must be pushed by itself,
    /// because datagrams of one message must be equally long, but for the last, which may be shorter, and the message
    /// must not get too long.
    pub fn join(&mut self, payload: &[u8]) -> bool {
        self.join_prefixed(&[], payload)
    }

    /// The same for a datagram made of two parts, each with its own first part.
    pub fn join_prefixed(&mut self, prefix: &[u8], payload: &[u8]) -> bool {
        let Some(slot) = self.queued.checked_sub(1).filter(|slot| *slot >= self.next) else { return false };
        let Queued { length, segment_bytes, source_bytes } = self.queue[slot];
        let first = if segment_bytes == 0 { length } else { segment_bytes };
        let is_open = first > 0 && length % first == 0 && length / first < JOINED_MAX;
        let added = prefix.len() + payload.len();
        let total = length + added;
        let fits = total <= self.region.layout().slot_bytes.min(TRAIN_BYTES_MAX);
        if !is_open || !fits || added == 0 || added > first || (slot == self.next && self.is_begun()) {
            return false;
        }
        // SAFETY: `slot` exists and holds `length` bytes; what is added ends within it (checked above). Both parts come
        // from outside the arena, and `&mut self` excludes all others.
        unsafe {
            self.region.write_payload(slot, length, [prefix, payload]);
            (*self.region.iovec(slot)).iov_len = total;
        }
        self.queue[slot] = Queued { length: total, segment_bytes: first, source_bytes };
        self.end_control(slot);
        true
    }

    /// Whether a part of message `next` has gone out, or an error about it is remembered.
    fn is_begun(&self) -> bool {
        self.next_segment > 0 || self.refused.is_some() || self.retried || self.failed
    }

    fn enqueue(
        &mut self,
        parts: [&[u8]; 2],
        segment_bytes: usize,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
    ) -> Result<(), PushError> {
        let length = parts[0].len() + parts[1].len();
        let (slot, slot_bytes) = (self.queued, self.region.layout().slot_bytes);
        if slot == self.slots() {
            return Err(PushError::Full);
        }
        if length > slot_bytes {
            return Err(PushError::TooLong { length, slot_bytes });
        }
        let name = to.map(addr::encode);
        let source = from.map(cmsg::encode_source);
        let source = source.as_ref().map_or(&[][..], |(bytes, length)| &bytes[..*length]);
        let header = self.region.header(slot);
        // SAFETY: `slot` exists. The parts, name and source have room for what is copied (checked above, and by the
        // layout for the other two), come from outside the arena, and `&mut self` excludes all others.
        unsafe {
            self.region.write_payload(slot, 0, parts);
            (*self.region.iovec(slot)).iov_len = length;
            let inner = &raw mut (*header).msg_hdr;
            (*inner).msg_name = ptr::null_mut();
            (*inner).msg_namelen = 0;
            if let Some(name) = name {
                let bytes = name.as_bytes();
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.region.name(slot), bytes.len());
                (*inner).msg_name = self.region.name(slot).cast();
                (*inner).msg_namelen = bytes.len() as libc::socklen_t;
            }
            ptr::copy_nonoverlapping(source.as_ptr(), self.region.control(slot), source.len());
        }
        self.queue[slot] = Queued { length, segment_bytes, source_bytes: source.len() };
        self.end_control(slot);
        self.queued += 1;
        Ok(())
    }

    /// Puts the segment size, if there is one, behind the source of a slot, and sets the length of the control space.
    fn end_control(&mut self, slot: usize) {
        let Queued { segment_bytes, source_bytes, .. } = self.queue[slot];
        let segment = cmsg::encode_segment(u16::try_from(segment_bytes).unwrap_or(u16::MAX));
        let segment = if segment_bytes > 0 { &segment[..] } else { &[] };
        let bytes = source_bytes + segment.len();
        let control = self.region.control(slot);
        // SAFETY: `slot` exists, as just seen. The control space has room for the longest source and a segment size, by
        // the layout; the segment size comes from outside the arena, and `&mut self` excludes all others.
        unsafe {
            ptr::copy_nonoverlapping(segment.as_ptr(), control.add(source_bytes), segment.len());
            let inner = &raw mut (*self.region.header(slot)).msg_hdr;
            (*inner).msg_control = if bytes > 0 { control.cast() } else { ptr::null_mut() };
            (*inner).msg_controllen = bytes as _;
        }
    }

    /// Messages queued and not yet sent.
    pub fn len(&self) -> usize {
        self.queued - self.next
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a push would be refused. After a [`SendError`] slots become free only when all of the batch is sent.
    pub fn is_full(&self) -> bool {
        self.queued == self.slots()
    }

    fn slots(&self) -> usize {
        self.region.layout().slots
    }

    /// Forgets what is queued.
    pub fn clear(&mut self) {
        self.queued = 0;
        self.next = 0;
        self.begin_message();
    }

    fn begin_message(&mut self) {
        self.next_segment = 0;
        self.refused = None;
        self.retried = false;
        self.failed = false;
    }

    /// The messages that the last [`flush`](Self::flush) had to skip.
    pub fn failures(&self) -> &[SendFailure] {
        &self.failures
    }

    /// The error numbers of the last [`flush`](Self::flush) that were about earlier datagrams, such as the answer of a
    /// closed port. The messages that they interrupted were sent after all.
    pub fn answers(&self) -> &[i32] {
        &self.answers
    }

    /// Sends all that is queued, and is empty afterwards. Errors about a message skip that message and are counted in
    /// the report; an error about the call ends it, says how much was sent, and leaves the rest queued.
    pub fn flush(&mut self, socket: &Socket) -> Result<SendReport, SendError> {
        self.failures.clear();
        self.answers.clear();
        let mut report = SendReport::default();
        while self.next < self.queued {
            let step = if self.goes_singly(self.next) {
                self.send_segments(socket, &mut report)
            } else {
                self.send_run(socket, &mut report)
            };
            let outcome = step.or_else(|error| self.judge(error));
            (report.failed, report.first_failure) = (self.failures.len(), self.failures.first().copied());
            report.segmentation_refused = self.segmentation_off;
            outcome.map_err(|error| SendError { report, error })?;
        }
        report.segmentation_refused = self.segmentation_off;
        self.clear();
        Ok(report)
    }

    fn goes_singly(&self, slot: usize) -> bool {
        let refused = self.segmentation_off || (slot == self.next && self.refused.is_some());
        refused && self.queue[slot].segment_bytes > 0
    }

    /// One call for as many messages as can go together.
    fn send_run(&mut self, socket: &Socket, report: &mut SendReport) -> io::Result<()> {
        let limit = self.queued.min(self.next + MAX_MESSAGES_PER_CALL);
        let end = (self.next + 1..limit).find(|slot| self.goes_singly(*slot)).unwrap_or(limit);
        let headers = self.region.header(self.next);
        report.calls += 1;
        // SAFETY: the headers from `next` to `end` were filled by `enqueue` and point at parts of the region.
        let sent = unsafe { sys::sendmmsg(socket.as_fd(), headers, end - self.next, libc::MSG_NOSIGNAL) }?;
        let sent = progress(sent)?.min(end - self.next);
        report.sent += sent;
        report.datagrams +=
            self.queue[self.next..self.next + sent].iter().map(|queued| queued.datagrams()).sum::<usize>();
        self.next += sent;
        self.begin_message();
        Ok(())
    }

    /// One call for the remaining segments of message `next`, each as a datagram.
    fn send_segments(&mut self, socket: &Socket, report: &mut SendReport) -> io::Result<()> {
        let segments = self.queue[self.next].datagrams();
        let count = segments - self.next_segment;
        self.build_singles(count);
        report.calls += 1;
        // SAFETY: `build_singles` has just pointed the first `count` headers at the segments, the name and the source
        // of `next`.
        let sent = unsafe { sys::sendmmsg(socket.as_fd(), self.singles.header(0), count, libc::MSG_NOSIGNAL) }?;
        let sent = progress(sent)?.min(count);
        report.datagrams += sent;
        self.retried = false;
        self.next_segment += sent;
        // Only now is it certain that the route refused segmentation and not the address. A message that was merely too
        // long to be segmented says nothing about the next one.
        self.segmentation_off |= matches!(self.refused, Some(libc::EIO | libc::EINVAL));
        if self.next_segment == segments {
            report.sent += usize::from(!self.failed);
            self.next += 1;
            self.begin_message();
        }
        Ok(())
    }

    fn build_singles(&mut self, count: usize) {
        let Queued { length, segment_bytes, source_bytes } = self.queue[self.next];
        for single in 0..count {
            let start = (self.next_segment + single) * segment_bytes;
            let (header, iovec) = (self.singles.header(single), self.singles.iovec(single));
            // SAFETY: `single` is below MAX_SEGMENTS, because no message has more segments. The segment starts within
            // the payload of slot `next`, and `&mut self` excludes all others.
            unsafe {
                let whole = &raw const (*self.region.header(self.next)).msg_hdr;
                (*iovec).iov_base = self.region.payload(self.next).add(start).cast();
                (*iovec).iov_len = segment_bytes.min(length - start);
                (*header).msg_hdr.msg_name = (*whole).msg_name;
                (*header).msg_hdr.msg_namelen = (*whole).msg_namelen;
                // The source comes first, so it can be used without the segment size.
                (*header).msg_hdr.msg_control = if source_bytes > 0 { (*whole).msg_control } else { ptr::null_mut() };
                (*header).msg_hdr.msg_controllen = source_bytes as _;
            }
        }
    }

    /// Decides what an error was about. `Ok`: go on; `Err`: the call is over.
    fn judge(&mut self, error: io::Error) -> io::Result<()> {
        let Some(errno) = error.raw_os_error() else { return Err(error) };
        let segmented = self.queue[self.next].segment_bytes > 0 && !self.goes_singly(self.next);
        if errno == libc::EINTR {
            return Ok(());
        }
        if segmented && matches!(errno, libc::EIO | libc::EINVAL | libc::EMSGSIZE) {
            self.refused = Some(errno);
            return Ok(());
        }
        if !is_about_a_message(errno) {
            return Err(error);
        }
        if is_pending(errno) && !self.retried {
            self.retried = true;
            self.answers.push(errno);
            return Ok(());
        }
        self.skip(errno);
        Ok(())
    }

    /// Gives up on message `next`, or on one segment of it when they go out one by one.
    fn skip(&mut self, errno: i32) {
        if self.retried && self.answers.last() == Some(&errno) {
            // Twice in a row: it was about this message and no other.
            self.answers.pop();
        }
        let segments = self.queue[self.next].datagrams();
        let goes_singly = self.goes_singly(self.next);
        let datagrams = if goes_singly { 1 } else { segments };
        match self.failures.last_mut() {
            Some(failure) if failure.index == self.next => failure.datagrams += datagrams,
            _ => self.failures.push(SendFailure { index: self.next, datagrams, errno }),
        }
        self.failed = true;
        self.retried = false;
        if goes_singly && self.next_segment + 1 < segments {
            self.next_segment += 1;
        } else {
            self.next += 1;
            self.begin_message();
        }
    }
}

/// The kernel never answers 0 to a call with messages; if it did, an endless loop would be wrong.
fn progress(sent: usize) -> io::Result<usize> {
    if sent == 0 { Err(io::Error::from_raw_os_error(libc::EAGAIN)) } else { Ok(sent) }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SendBatch")
            .field("slots", &self.slots())
            .field("queued", &self.len())
            .field("segmentation_off", &self.segmentation_off)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;

// The kernel does not say what an error number of `sendmmsg` is about: this message, an earlier one, or the call. These
// lists do.

/// Errors that may stem from the ICMP answer to an earlier datagram.
fn is_pending(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
            | libc::EMSGSIZE
            | libc::EOPNOTSUPP
    )
}

/// Errors that say something of the message or its destination, and nothing of the socket.
fn is_about_a_message(errno: i32) -> bool {
    is_pending(errno)
        || matches!(
            errno,
            libc::ENETDOWN
                | libc::EPERM
                | libc::EINVAL
                | libc::EIO
                | libc::EDESTADDRREQ
                | libc::EAFNOSUPPORT
                | libc::EADDRNOTAVAIL
        )
}
