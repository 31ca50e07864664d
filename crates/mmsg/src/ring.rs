//! An io_uring that receives from one socket into blocks of an arena: the part of the engine that talks to the kernel.
//!
//! Two requests are in flight. A multishot receive takes a block from the buffer ring for every message and posts a
//! completion for it; it ends when there is no block, after an empty datagram, and on an error, and is then made again.
//! A poll for the end of the socket completes on [`Socket::interrupt`](crate::Socket::interrupt), which the receive
//! alone would sleep through.
//!
//! A block has one owner at a time: the kernel from [`Ring::provide`] on, the caller from the completion that names it.
//! The kernel runs both requests only inside [`Ring::enter`], on the thread that made the ring. That makes them cheap,
//! and is why a ring cannot change its thread.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, Napi, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use crate::arena::Arena;
use crate::refusal::Refusal;
use crate::region::{Layout, PREFACE_BYTES};
use crate::sys::{Call, gate, page_bytes};

/// The most blocks a buffer ring takes: their number is a power of two below 65,536.
pub(crate) const MAX_BLOCKS: usize = 1 << 15;

/// The two requests and their cancellations.
const SUBMISSIONS: u32 = 8;

/// Completions besides one for each block: the end of either request, and cancellations.
const OTHER_COMPLETIONS: usize = 16;

/// The only buffer ring of a ring.
const BUFFER_GROUP: u16 = 0;

/// The limit of a wait that has none: the kernel wants one where it also lets messages gather.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// The limit for the end of a request that is being cancelled. It takes microseconds.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// `IORING_REGISTER_NAPI`: the only registration that a running ring still takes.
const REGISTER_NAPI: u8 = 27;

/// Results with which a receive ends without having failed.
const HARMLESS: [i32; 4] = [0, -libc::ENOBUFS, -libc::ECANCELED, -libc::EINTR];

const RECEIVE: u64 = 1;
const WATCH: u64 = 2;
const CANCEL: u64 = 3;

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// A message is in block `number`, which is the caller's until it is provided again.
    Message { number: u16 },
    /// The receive has ended with this error number; the next [`Ring::enter`] makes it again. A block that it had taken
    /// is the caller's, and empty.
    Failed { errno: i32, unused: Option<u16> },
    /// The socket has been shut down.
    Interrupted,
    /// Nothing for the caller.
    Housekeeping,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Nothing: run what is due.
    Now,
    /// One completion.
    One,
    /// So many completions, or this time and then one.
    Gathered(usize, Duration),
    /// So many completions or this time.
    Filled(usize, Duration),
    /// One completion or this time.
    Limit(Duration),
}

/// The ring. `!Send`: the kernel takes calls only from the thread that made it.
pub(crate) struct Ring {
    uring: IoUring,
    fd: RawFd,
    buffers: BufferRing,
    /// Tells the kernel how a block is divided, each time the receive is made; so it must not move.
    division: Box<libc::msghdr>,
    /// One call can let messages gather and then go on waiting.
    has_minimum_wait: bool,
    /// The receive, or the watch, is in flight.
    receiving: bool,
    watching: bool,
    /// No request is made any more; those in flight are being cancelled.
    ending: bool,
    cancel_due: bool,
    of_this_thread: PhantomData<*const ()>,
}

impl Ring {
    /// A ring for the socket `fd`, with room for `blocks` blocks of `layout`.
    ///
    /// # Safety
    /// `fd` stays open as long as the ring lives. Every provided block is a block of `layout` that stays mapped, and
    /// that no other code touches, until a completion names it or [`Ring::shut_down`] has returned `Some`.
    pub(crate) unsafe fn new(fd: RawFd, layout: &Layout, blocks: usize) -> Result<Ring, Refusal> {
        let uring = build(blocks).map_err(|error| Refusal::of_uring("io_uring_setup", error))?;
        let has_minimum_wait = uring.params().is_feature_min_timeout();
        let buffers = BufferRing::register(&uring, blocks, layout.block_bytes())
            .and_then(|buffers| restrict(&uring).map(|()| buffers))
            .map_err(|error| Refusal::of_uring("io_uring_register", error))?;
        // SAFETY: all zeroes is a valid header: no name, no buffers, no control.
        let mut division: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
        division.msg_namelen = layout.name_room() as libc::socklen_t;
        division.msg_controllen = layout.control_bytes as _;
        Ok(Ring {
            uring,
            fd,
            buffers,
            division,
            has_minimum_wait,
            receiving: false,
            watching: false,
            ending: false,
            cancel_due: false,
            of_this_thread: PhantomData,
        })
    }

    /// Makes waits poll the device's queue for so long before they sleep. `EINVAL` before Linux 6.9.
    pub(crate) fn set_busy_poll_us(&self, microseconds: u32) -> io::Result<()> {
        gate(Call::IoUringRegister, 0)?;
        let mut napi = Napi::new().set_busy_poll_timeout(microseconds).set_prefer_busy_poll(true);
        self.uring.submitter().register_napi(&mut napi)
    }

    /// Gives block `number` to the kernel, from the next [`Ring::enter`] on.
    ///
    /// # Safety
    /// See [`Ring::new`]. No block is provided under a number that is already the kernel's.
    pub(crate) unsafe fn provide(&mut self, number: u16, block: *mut u8) {
        // SAFETY: the caller vouches for it.
        unsafe { self.buffers.put(number, block) };
    }

    /// The next completion, without a system call.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        let entry = self.uring.completion().next()?;
        Some(match entry.user_data() {
            RECEIVE => self.received(&entry),
            WATCH => {
                self.watching = false;
                let ended = entry.result() > 0 && entry.result() & i32::from(libc::POLLRDHUP) != 0;
                if ended { Completion::Interrupted } else { Completion::Housekeeping }
            }
            _ => {
                self.cancel_due = self.ending && self.is_in_flight();
                Completion::Housekeeping
            }
        })
    }

    fn received(&mut self, entry: &cqueue::Entry) -> Completion {
        self.receiving = cqueue::more(entry.flags());
        match (entry.result(), cqueue::buffer_select(entry.flags())) {
            (length, Some(number)) if length > 0 => Completion::Message { number },
            // A cancelled receive has done its work; one without blocks goes on when there are some.
            (result, None) if HARMLESS.contains(&result) => Completion::Housekeeping,
            (result, unused) => Completion::Failed { errno: if result < 0 { -result } else { libc::EIO }, unused },
        }
    }

    /// Whether completions are there that can be taken without a system call.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Whether [`Ring::enter`] has anything to do before it waits: a request to make, or kernel work for this thread.
    pub(crate) fn has_work(&mut self) -> bool {
        let queue = self.uring.submission();
        let kernel_has_work = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        let all_made = self.ending || (self.receiving && self.watching);
        kernel_has_work || self.cancel_due || !all_made
    }

    /// Whether a request is in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.receiving || self.watching
    }

    /// Whether the receive is in flight, so that more messages may come.
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// Makes the requests that are not in flight, runs what the kernel has to do on this thread, and waits.
    pub(crate) fn enter(&mut self, until: WaitFor) -> io::Result<()> {
        self.buffers.publish();
        self.queue_requests();
        let (want, gather, limit) = match until {
            WaitFor::Now => (0, None, None),
            WaitFor::One => (1, None, None),
            WaitFor::Limit(limit) => (1, None, Some(limit)),
            WaitFor::Gathered(count, time) if self.has_minimum_wait => (count, Some(time), Some(LONG)),
            // Before Linux 6.12 waiting beyond the time takes a second call.
            WaitFor::Gathered(count, time) | WaitFor::Filled(count, time) => (count, None, Some(time)),
        };
        let limit = limit.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(limit) = &limit {
            arguments = arguments.timespec(limit);
        }
        if let Some(time) = gather {
            arguments = arguments.min_wait_usec(u32::try_from(time.as_micros().max(1)).unwrap_or(u32::MAX));
        }
        self.call(want, &arguments)
    }

    fn call(&mut self, want: usize, arguments: &SubmitArgs<'_, '_>) -> io::Result<()> {
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if self.uring.params().is_feature_no_iowait() {
            // Without this a receiver that waits for a datagram counts as waiting for a disk.
            flags |= EnterFlags::NO_IOWAIT;
        }
        let submissions = self.uring.submission().len() as u32;
        // SAFETY: the arguments have the layout that EXT_ARG says, and they and what they point at live through the
        // call. The queue has the requests of `queue_requests`.
        let enter =
            |_| unsafe { self.uring.submitter().enter(submissions, want as u32, flags.bits(), Some(arguments)) };
        match gate(Call::IoUringEnter, want).and_then(enter) {
            Ok(_) => Ok(()),
            // The time is over, a signal came, or completions must be taken first: the caller sees all of it in the
            // completions.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn queue_requests(&mut self) {
        if self.ending {
            if self.cancel_due {
                self.cancel_due = !self.queue(opcode::AsyncCancel2::new(CancelBuilder::any()).build(), CANCEL);
            }
            return;
        }
        if !self.receiving {
            let receive = opcode::RecvMsgMulti::new(Fd(self.fd), &raw const *self.division, BUFFER_GROUP);
            // Report the real length also of what does not fit.
            self.receiving = self.queue(receive.flags(libc::MSG_TRUNC as u32).build(), RECEIVE);
        }
        if !self.watching {
            let watch = opcode::PollAdd::new(Fd(self.fd), libc::POLLRDHUP as u32);
            self.watching = self.queue(watch.build(), WATCH);
        }
    }

    /// `false`: there is no room, which the next call makes.
    fn queue(&mut self, request: squeue::Entry, name: u64) -> bool {
        // SAFETY: what the request points at lives as long as the ring: the division, and by `new` the socket. It finds
        // blocks in the buffer ring.
        unsafe { self.uring.submission().push(&request.user_data(name)) }.is_ok()
    }

    /// Does as on a kernel before 6.12.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn forget_minimum_wait(&mut self) {
        self.has_minimum_wait = false;
    }

    /// What the kernel says to a request, and to registering a file, that this crate never asks for.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn answers_to(&mut self, request: squeue::Entry) -> (i32, io::Result<()>) {
        assert!(self.queue(request, 4));
        self.enter(WaitFor::One).expect("entered");
        let answer = loop {
            let answer = self.uring.completion().find(|entry| entry.user_data() == 4).map(|entry| entry.result());
            match answer {
                Some(answer) => break answer,
                None => self.enter(WaitFor::One).expect("entered"),
            }
        };
        (answer, self.uring.submitter().register_files(&[self.fd]))
    }

    /// Cancels the requests; no new ones are made. Their last completions are still to come.
    pub(crate) fn begin_end(&mut self) {
        if !self.ending {
            self.ending = true;
            self.cancel_due = self.is_in_flight();
        }
    }

    /// Ends the requests and waits until the kernel writes to no block any more, even if that loses messages, whose
    /// blocks are returned; the others are still provided. `None`: the kernel did not end them, and may still write.
    pub(crate) fn shut_down(&mut self) -> Option<Vec<u16>> {
        self.begin_end();
        let started = std::time::Instant::now();
        let mut back = Vec::new();
        loop {
            while let Some(completion) = self.next() {
                if let Completion::Message { number } | Completion::Failed { unused: Some(number), .. } = completion {
                    back.push(number);
                }
            }
            if !self.is_in_flight() {
                return Some(back);
            }
            if started.elapsed() > CANCEL_LIMIT || self.enter(WaitFor::Limit(CANCEL_LIMIT)).is_err() {
                return None;
            }
        }
    }

    /// Receives from another socket from the next [`Ring::enter`] on. The ring has been [shut down](Self::shut_down).
    ///
    /// # Safety
    /// As for [`Ring::new`].
    pub(crate) unsafe fn aim(&mut self, fd: RawFd) {
        debug_assert!(!self.is_in_flight(), "its requests are for the socket before");
        (self.fd, self.ending) = (fd, false);
    }
}

/// The bytes of a ring for so many blocks: completions behind a head, submissions, and the buffer ring.
pub(crate) fn pinned_bytes(blocks: usize) -> usize {
    // What both queues share, and the order of the submissions.
    const HEAD_BYTES: usize = 320 + SUBMISSIONS as usize * size_of::<u32>();
    let completions = HEAD_BYTES + completions_for(blocks) as usize * size_of::<cqueue::Entry>();
    let submissions = SUBMISSIONS as usize * size_of::<squeue::Entry>();
    let buffers = blocks.next_power_of_two() * size_of::<BufRingEntry>();
    [completions, submissions, buffers].map(|bytes| bytes.next_multiple_of(page_bytes())).iter().sum()
}

/// With room for a completion of every block the kernel neither loses nor holds back any.
fn completions_for(blocks: usize) -> u32 {
    (blocks + OTHER_COMPLETIONS).next_power_of_two() as u32
}

/// A ring with one issuer whose calls run the work: no interrupts, no locks. It does nothing before it is
/// [restricted](restrict).
fn build(blocks: usize) -> io::Result<IoUring> {
    gate(Call::IoUringSetup, 0)?;
    IoUring::builder()
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_r_disabled()
        .setup_cqsize(completions_for(blocks))
        .build(SUBMISSIONS)
}

/// Restricts a ring for good to the three requests that [`Ring`] makes, and enables it. A filter of system calls does
/// not see what a ring does, so only this keeps it from opening files and making sockets.
fn restrict(uring: &IoUring) -> io::Result<()> {
    let mut granted = [
        Restriction::sqe_op(opcode::RecvMsgMulti::CODE),
        Restriction::sqe_op(opcode::PollAdd::CODE),
        Restriction::sqe_op(opcode::AsyncCancel2::CODE),
        Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits()),
        Restriction::register_op(REGISTER_NAPI),
    ];
    gate(Call::IoUringRegister, 0)?;
    uring.submitter().register_restrictions(&mut granted)?;
    gate(Call::IoUringRegister, 0)?;
    uring.submitter().register_enable_rings()
}

/// Makes a ring as the engine needs it, and drops it.
pub(crate) fn probe() -> Result<(), Refusal> {
    let uring = build(1).map_err(|error| Refusal::of_uring("io_uring_setup", error))?;
    let made = BufferRing::register(&uring, 1, 1).and_then(|_buffers| restrict(&uring));
    made.map_err(|error| Refusal::of_uring("io_uring_register", error))
}

/// The blocks of the kernel, as a ring that it reads: address, length and number of each.
struct BufferRing {
    memory: Arena,
    mask: u16,
    tail: u16,
    block_bytes: u32,
}

impl BufferRing {
    fn register(uring: &IoUring, blocks: usize, block_bytes: usize) -> io::Result<BufferRing> {
        let too_many = || io::Error::from_raw_os_error(libc::EINVAL);
        let entries = u16::try_from(blocks.next_power_of_two()).ok().filter(|_| blocks <= MAX_BLOCKS);
        let entries = entries.ok_or_else(too_many)?;
        let (memory, _) = Arena::new(usize::from(entries) * size_of::<BufRingEntry>(), false)?;
        let address = memory.base().as_ptr().addr() as u64;
        gate(Call::IoUringRegister, 0)?;
        // SAFETY: page-aligned, zeroed memory for so many entries. The kernel pins its pages and only reads them, so a
        // ring that outlives this mapping touches nothing of ours.
        unsafe { uring.submitter().register_buf_ring_with_flags(address, entries, BUFFER_GROUP, 0)? };
        let block_bytes = u32::try_from(block_bytes).map_err(|_| too_many())?;
        Ok(BufferRing { memory, mask: entries - 1, tail: 0, block_bytes })
    }

    fn base(&self) -> NonNull<BufRingEntry> {
        self.memory.base().cast()
    }

    /// # Safety
    /// As for [`Ring::provide`].
    unsafe fn put(&mut self, number: u16, block: *mut u8) {
        // SAFETY: the entry is within the ring. The kernel does not own it: there are no more numbers than entries, so
        // it has taken the one before. The fields are written one by one, because the tail lies in the last field of
        // entry 0.
        unsafe {
            let entry = &mut *self.base().as_ptr().add(usize::from(self.tail & self.mask));
            // The address leaves our sight here: the kernel writes there.
            entry.set_addr(block.expose_provenance() as u64);
            entry.set_len(self.block_bytes);
            entry.set_bid(number);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel the entries.
    fn publish(&mut self) {
        // SAFETY: the base of the ring, whose first entry is initialised; the tail is aligned and only read by the
        // kernel.
        unsafe {
            let tail = BufRingEntry::tail(self.base().as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

/// Four numbers before the name: what the kernel did, see `struct io_uring_recvmsg_out`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Preface {
    pub(crate) name_bytes: u32,
    pub(crate) control_bytes: u32,
    /// The real length, whatever fitted.
    pub(crate) payload_bytes: u32,
    pub(crate) flags: u32,
}

const _: () = assert!(size_of::<Preface>() == PREFACE_BYTES);

impl Preface {
    /// Reads the preface of a block.
    ///
    /// # Safety
    /// The block is the caller's, and holds a message.
    pub(crate) unsafe fn of(block: *const u8) -> Preface {
        // SAFETY: blocks start on a cache line and are longer than this; the caller has it to itself.
        unsafe { ptr::read(block.cast::<Preface>()) }
    }
}
