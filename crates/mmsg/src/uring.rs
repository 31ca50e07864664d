//! The io_uring engine: the kernel puts messages into blocks of the pool by itself, and a receive call picks them up.
//!
//! A filled block is exchanged for the empty block of the batch's slot, which goes to the kernel in its place. So no
//! payload is copied, a batch always owns as many blocks as at first, and the pool is not drawn upon. A message of up
//! to `copy_up_to` bytes is copied instead, and its block goes back at once.
//!
//! Who may touch a block when: `&mut RecvBatch` gives the slots of a batch, a completion gives a block of the ring, and
//! all of them are of one arena, which the engine keeps alive with its own batches. When the engine is dropped it waits
//! until the kernel has released its blocks; if the kernel does not, the arena is leaked and not unmapped.
//!
//! The end: once the socket is [interrupted](Socket::interrupt), or the engine told to finish, the ring is taken down,
//! what it has received is handed out first, and `recvmmsg` receives what is still in the socket. Nothing is lost
//! between the two.
#![allow(unsafe_code)]
// The lengths in a header have other types in other C libraries; which of them need a cast depends on that.
#![allow(clippy::unnecessary_cast)]

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use libc::mmsghdr;

use crate::batch::{RecvBatch, receive_each_into, receive_into};
use crate::refusal::Refusal;
use crate::region::{Layout, PREFACE_BYTES};
use crate::ring::{self, Completion, MAX_BLOCKS, Preface, Ring, WaitFor};
use crate::socket::Socket;
use crate::wait::{Wait, WakeFlag, left_until};

/// How many messages the kernel takes from a socket in one pass, besides those that were waited for
/// (`MULTISHOT_MAX_RETRY`).
const KERNEL_PASS: usize = 32;

/// The io_uring engine: whether this host has it, and what it needs. [`Engine::uring`](crate::Engine::uring) makes one.
pub struct Uring {
    ring: Ring,
    socket: Arc<Socket>,
    /// The blocks of the ring, by number.
    blocks: Box<[*mut u8]>,
    /// What `blocks` were taken from; keeps the arena alive.
    reserve: ManuallyDrop<Vec<RecvBatch>>,
    layout: Layout,
    copy_up_to: usize,
    /// The ring is taken down; what is left is received by `recvmmsg`.
    finishing: bool,
    /// An error that came after messages, for the next call.
    error: Option<i32>,
}

impl Uring {
    /// Whether this kernel has, and permits, what the engine needs. The call makes a ring and removes it again.
    pub fn supported() -> Result<(), Refusal> {
        ring::probe()
    }

    /// How many batches of so many slots to give to a ring, so that it has blocks to fill while a batch of filled ones
    /// is picked up.
    pub fn reserve_batches(slots: usize) -> usize {
        (slots + KERNEL_PASS).div_ceil(slots.max(1))
    }

    /// What a ring for batches of so many slots takes of the memory that a process may lock (RLIMIT_MEMLOCK), on
    /// kernels that charge rings to it. With 0 slots: the ring of [`supported`](Self::supported), whose memory the
    /// kernel frees a moment later.
    pub fn locked_bytes(slots: usize) -> usize {
        ring::pinned_bytes((Uring::reserve_batches(slots) * slots).min(MAX_BLOCKS))
    }

    /// See [`Engine::uring`](crate::Engine::uring).
    pub(crate) fn new(socket: Arc<Socket>, reserve: Vec<RecvBatch>, copy_up_to: usize) -> io::Result<Uring> {
        let Some(first) = reserve.first() else {
            let text = "the ring needs at least one batch of its own";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        if reserve.iter().any(|batch| !batch.region().shares_arena_with(first.region())) {
            return Err(other_pool());
        }
        first.check_gro(&socket)?;
        let layout = *first.region().layout();
        let slots = reserve.iter().flat_map(|batch| (0..batch.slots()).map(move |slot| (batch, slot)));
        // SAFETY: existing slots of batches that are ours.
        let blocks = slots.map(|(batch, slot)| unsafe { batch.region().block(slot) });
        let blocks: Box<[*mut u8]> = blocks.take(MAX_BLOCKS).collect();
        // SAFETY: the socket is kept beside the ring. The blocks are of one layout, because batches of one pool are;
        // `reserve` owns them and is released only after the ring has released them, see `drop`.
        let ring = unsafe { Ring::new(socket.as_fd().as_raw_fd(), &layout, blocks.len()) };
        let mut ring = ring?;
        for (number, &block) in (0..).zip(&blocks) {
            // SAFETY: as above, each under a number of its own.
            unsafe { ring.provide(number, block) };
        }
        let reserve = ManuallyDrop::new(reserve);
        Ok(Uring { ring, socket, blocks, reserve, layout, copy_up_to, finishing: false, error: None })
    }

    /// See [`Engine::receive_more`](crate::Engine::receive_more). The batch must be of the pool of the ring's own.
    pub(crate) fn receive_more(
        &mut self,
        batch: &mut RecvBatch,
        wait: Wait,
        wake_flag: &WakeFlag,
    ) -> io::Result<usize> {
        self.check(batch)?;
        batch.fill(|headers, count| {
            // SAFETY: `fill` passes `count` armed headers of a region that the batch borrows mutably, so there is no
            // other reference to it or to the blocks they point at. It is of our arena, as just checked, and so of our
            // layout.
            unsafe { self.take(headers, count, wait, wake_flag) }
        })
    }

    /// See [`Engine::receive_held`](crate::Engine::receive_held).
    pub(crate) fn receive_held(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.check(batch)?;
        self.finish();
        batch.fill(|headers, count| {
            if let Some(errno) = self.error.take() {
                return Err(io::Error::from_raw_os_error(errno));
            }
            let mut taken = 0;
            loop {
                // SAFETY: as in `receive_more`, for the headers that are left.
                taken += unsafe { self.pick_up(headers.add(taken), count - taken) };
                // The completion that says that the receive has ended comes after all of its messages.
                if taken == count || self.error.is_some() || !self.ring.is_receiving() {
                    return match self.error.take_if(|_| taken == 0) {
                        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                        None => Ok(taken),
                    };
                }
                if let Err(error) = self.ring.enter(WaitFor::One) {
                    return self.keep(taken, Err(error));
                }
            }
        })
    }

    /// See [`Engine::receive_each`](crate::Engine::receive_each). Completions that the kernel has posted need no call.
    pub(crate) fn receive_each(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.check(batch)?;
        self.error = None;
        batch.fill(|headers, count| {
            // SAFETY: as in `receive_more`, for the headers that are left.
            let taken = unsafe { self.pick_up(headers, count) };
            // SAFETY: the same.
            let left = unsafe { receive_each_into(&self.socket, headers.add(taken), count - taken) };
            self.keep(taken, left)
        })
    }

    /// Whether its messages may go into this batch.
    fn check(&self, batch: &RecvBatch) -> io::Result<()> {
        batch.check_gro(&self.socket)?;
        if batch.region().shares_arena_with(self.reserve[0].region()) { Ok(()) } else { Err(other_pool()) }
    }

    /// See [`Engine::finish`](crate::Engine::finish).
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
        self.ring.begin_end();
    }

    /// Receives from another socket from now on, by the same ring. What it holds is lost: [`finish`](Self::finish)
    /// first.
    pub(crate) fn replace_socket(&mut self, socket: Arc<Socket>) -> io::Result<()> {
        self.reserve[0].check_gro(&socket)?;
        let Some(back) = self.ring.shut_down() else {
            return Err(io::Error::other("the kernel does not release the memory of the previous socket"));
        };
        for number in back {
            // SAFETY: its completion has made the block ours, and it goes back under its number.
            unsafe { self.ring.provide(number, self.blocks[usize::from(number)]) };
        }
        // SAFETY: the socket is kept beside the ring, and the one before until the ring has released it.
        unsafe { self.ring.aim(socket.as_fd().as_raw_fd()) };
        (self.socket, self.finishing, self.error) = (socket, false, None);
        Ok(())
    }

    /// See [`Engine::set_busy_poll_us`](crate::Engine::set_busy_poll_us).
    pub(crate) fn set_busy_poll_us(&mut self, microseconds: u32) -> io::Result<()> {
        self.ring.set_busy_poll_us(microseconds)
    }

    /// See [`Engine::wait_readable`](crate::Engine::wait_readable).
    pub(crate) fn wait_readable(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.error.is_some() || self.ring.has_completions() {
            return Ok(true);
        }
        self.socket.wait_readable(timeout)
    }

    /// Fills up to `count` headers and returns how many it has filled.
    ///
    /// # Safety
    /// The headers are armed, of our layout and arena, and nothing else reads them or what they point at.
    unsafe fn take(
        &mut self,
        headers: *mut mmsghdr,
        count: usize,
        wait: Wait,
        wake_flag: &WakeFlag,
    ) -> io::Result<usize> {
        if let Some(errno) = self.error.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let mut gather = match wait {
            Wait::Gather(time) => Some(time),
            Wait::Block | Wait::UpTo(_) | Wait::No => None,
        };
        let (mut taken, mut entered, end) = (0, false, wait.end());
        loop {
            // SAFETY: as the caller says, for the headers that are left.
            let pass = unsafe { self.pick_up(headers.add(taken), count - taken) };
            taken += pass;
            if taken == count {
                return Ok(taken);
            }
            if let Some(errno) = self.error.take_if(|_| taken == 0) {
                return Err(io::Error::from_raw_os_error(errno));
            }
            if self.finishing && !self.ring.is_receiving() {
                let wait = if taken == 0 && !wake_flag.is_set() { wait } else { Wait::No };
                // SAFETY: as the caller says, for the headers that are left.
                let left =
                    unsafe { receive_into(&self.socket, headers.add(taken), count - taken, wait, Some(wake_flag)) };
                return self.keep(taken, left);
            }
            let until = match gather.take() {
                // The ring is on its way down, which takes no noticeable time.
                _ if self.finishing => WaitFor::One,
                // Messages that were taken already may wait for more, for a limited time.
                Some(time) if taken > 0 => WaitFor::Filled((count - taken).min(self.blocks.len()), time),
                Some(time) => WaitFor::Gathered(count.min(self.blocks.len()), time),
                None if taken == 0 && wait != Wait::No && !wake_flag.is_set() => match left_until(end) {
                    Duration::MAX => WaitFor::One,
                    Duration::ZERO if entered => return Ok(0),
                    left => WaitFor::Limit(left),
                },
                None if self.may_have_more(entered, pass) => WaitFor::Now,
                None => return Ok(taken),
            };
            if let Err(error) = self.ring.enter(until) {
                return self.keep(taken, Err(error));
            }
            entered = true;
        }
    }

    /// Whether another call is likely to bring enough to be worth it, or has to be made for anything to come at all.
    /// Under load there is always one more datagram, and fetching it alone costs more than waiting for its successors.
    fn may_have_more(&mut self, entered: bool, pass: usize) -> bool {
        let worth_it = !entered || pass >= KERNEL_PASS / 2 || (pass > 0 && !self.ring.is_receiving());
        worth_it && self.error.is_none() && self.ring.has_work()
    }

    /// The result of a call that got `taken` messages before something else happened: an error waits for the next call.
    fn keep(&mut self, taken: usize, rest: io::Result<usize>) -> io::Result<usize> {
        match rest {
            Ok(more) => Ok(taken + more),
            Err(failure) if taken == 0 => Err(failure),
            Err(failure) => {
                self.error = Some(failure.raw_os_error().unwrap_or(libc::EIO));
                Ok(taken)
            }
        }
    }

    /// Puts the messages of completions that are there under up to `count` headers.
    ///
    /// # Safety
    /// As for [`take`](Self::take).
    unsafe fn pick_up(&mut self, headers: *mut mmsghdr, count: usize) -> usize {
        let mut taken = 0;
        while taken < count && self.error.is_none() {
            match self.ring.next() {
                None => break,
                Some(Completion::Message { number }) => {
                    // SAFETY: as the caller says; the completion has made the block ours.
                    unsafe { self.deposit(headers.add(taken), number) };
                    taken += 1;
                }
                Some(Completion::Failed { errno, unused }) => {
                    self.error = Some(errno);
                    if let Some(number) = unused {
                        // SAFETY: the completion has made the block ours, and it goes back under its number.
                        unsafe { self.ring.provide(number, self.blocks[usize::from(number)]) };
                    }
                }
                Some(Completion::Interrupted) => self.finish(),
                Some(Completion::Housekeeping) => {}
            }
        }
        taken
    }

    /// Puts the message of block `number` under a header, as `recvmmsg` would have, and provides a block in exchange.
    ///
    /// # Safety
    /// The header is as for [`take`](Self::take); block `number` holds a message and is not the kernel's.
    unsafe fn deposit(&mut self, header: *mut mmsghdr, number: u16) {
        let filled = self.blocks[usize::from(number)];
        // SAFETY: the block is ours, by the caller, and so is what the header points at. Both are blocks of one layout
        // and arena, and they are not the same one: a block is either the ring's or a batch's.
        unsafe {
            let preface = Preface::of(filled);
            let inner = &raw mut (*header).msg_hdr;
            (*header).msg_len = preface.payload_bytes;
            (*inner).msg_namelen = preface.name_bytes as libc::socklen_t;
            (*inner).msg_controllen = preface.control_bytes as _;
            (*inner).msg_flags = preface.flags.cast_signed();
            let length = preface.payload_bytes as usize;
            let own = Layout::block_of(header);
            if length <= self.copy_up_to.min(self.layout.slot_bytes) {
                let until = self.layout.payload_offset() + length;
                ptr::copy_nonoverlapping(filled.add(PREFACE_BYTES), own.add(PREFACE_BYTES), until - PREFACE_BYTES);
            } else {
                self.layout.point(header, filled);
                self.blocks[usize::from(number)] = own;
            }
            self.ring.provide(number, self.blocks[usize::from(number)]);
        }
    }
}

fn other_pool() -> io::Error {
    let text = "an io_uring engine exchanges memory with the batches it fills: all of them, and those it was made \
                with, must come from one RecvBatch::pool";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.ring.shut_down().is_some() {
            // SAFETY: this is the only place that drops it, and it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.reserve) };
        }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Uring").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
