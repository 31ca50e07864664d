//! The AF_XDP engine: frames of one queue of an interface, taken out of the receive ring into the slots of a batch.
//!
//! A filled chunk is exchanged for the empty block of the batch's slot, which goes to the kernel in its place; a short
//! payload is copied instead, and the chunk goes back at once (`move_frame.rs`). As with io_uring a batch always owns
//! as many blocks as at first, and the pool is not drawn upon.
//!
//! Who may touch a block when: `&mut RecvBatch` gives the slots of a batch, the receive ring gives a chunk, and all of
//! them are of one arena, which the engine keeps alive with its own batches. When the engine is dropped its socket goes
//! first; `socket.rs` says why nothing has to be waited for then.
//!
//! The end: the queue's socket is taken out of the program's map, and the engine waits for every core that may have
//! been delivering a frame to it. From then on everything passes to the kernel's stack, and the ring gets no more
//! frames.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use libc::mmsghdr;

use crate::batch::RecvBatch;
use crate::refusal::Refusal;
use crate::region::Layout;
use crate::sys;
use crate::wait::{Wait, WakeFlag, left_until};

use super::attached_program::Redirect;
use super::move_frame::{FrameMover, Moved};
use super::options::{Options, Tally};
use super::refusal::Step;
use super::sender_cmsg::BatchFacts;
use super::socket::{self, XdpSocket};
use super::socket::{Counter, Statistics};
use super::umem::Umem;

/// How often a wait looks whether the interface is still there: the kernel wakes no waiter when it goes.
const LOOK: Duration = Duration::from_secs(1);

/// How many frames ahead headers are prefetched: another core wrote them, and waiting for each costs more than all the
/// work on it.
const AHEAD: u32 = 4;

/// How long the kernel may take to release a queue whose socket was closed: normally milliseconds, but seconds on a
/// host whose cores are all busy.
const LET_GO: Duration = Duration::from_secs(10);
/// How often to look whether it has.
const LET_GO_LOOK: Duration = Duration::from_millis(5);

/// How long a softirq may take to put its current frame into the ring, where the kernel cannot be asked.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// The AF_XDP engine. [`Engine::af_xdp`](crate::Engine::af_xdp) makes one.
#[derive(Debug)]
pub(crate) struct Xdp {
    // The socket comes first, so that the kernel is told before the memory goes.
    socket: XdpSocket,
    redirect: Arc<Redirect>,
    options: Options,
    mover: FrameMover,
    /// Chunks that have to go back to the kernel and found no room in its ring.
    waiting: Vec<*mut u8>,
    tally: Tally,
    /// What the blocks were taken from; keeps the arena alive.
    reserve: Vec<RecvBatch>,
    /// The last call left frames in the ring, so there is no reason to gather.
    may_have_more: bool,
    /// How long a wait polls the device's queue before it sleeps, in microseconds.
    busy_poll_us: u32,
    /// The end was asked for.
    ending: bool,
    /// The queue's frames pass to the stack.
    finishing: bool,
}

impl Xdp {
    /// See [`Engine::af_xdp`](crate::Engine::af_xdp).
    pub(crate) fn new(redirect: Arc<Redirect>, reserve: Vec<RecvBatch>, options: &Options) -> io::Result<Xdp> {
        let Some(first) = reserve.first() else {
            let text = "the engine needs at least one batch of its own";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        if reserve.iter().any(|batch| !batch.region().shares_arena_with(first.region())) {
            return Err(other_pool());
        }
        let umem = umem(first, &redirect)?;
        let layout = *first.region().layout();
        check_control(&layout, options)?;
        let slots = reserve.iter().flat_map(|batch| (0..batch.slots()).map(move |slot| (batch, slot)));
        // SAFETY: existing slots of batches that are ours.
        let blocks: Vec<*mut u8> = slots.map(|(batch, slot)| unsafe { batch.region().block(slot) }).collect();
        let subject = redirect.subject(options.queue);
        let made = redirect.take_socket().map_or_else(|| socket::make(&subject), Ok)?;
        // SAFETY: what `umem` says is the arena, mapped as long as `reserve` is kept beside the socket. Chunks are
        // blocks of batches that are ours alone; `move_frame.rs` exchanges them for blocks of others, each in one
        // place.
        let mut socket = unsafe { XdpSocket::new(made, &umem, blocks.len(), &subject) }?;
        let chunks = blocks.len();
        // First those that a device may write to by itself.
        let (on_one_page, others): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| umem.is_on_one_page(*block));
        let mut waiting = Vec::with_capacity(chunks);
        let is_worth_it = on_one_page.len() >= chunks / 4;
        give(&mut socket, &umem, on_one_page, &mut waiting);
        let mut bind = |zero_copy| bind(&mut socket, redirect.interface_index(), options.queue, zero_copy);
        let zero_copy = options.zero_copy && is_worth_it && bind(true).is_ok();
        if !zero_copy {
            bind(false).map_err(|error| Refusal::of(Step::Bind, &subject, error))?;
            give(&mut socket, &umem, others, &mut waiting);
        }
        socket.publish()?;
        redirect.hand_over(options.queue, socket.number(), &umem)?;
        let mover = FrameMover {
            umem,
            layout,
            copy_up_to: options.copy_up_to.min(layout.slot_bytes),
            checksums: options.checksums,
            any_page: !zero_copy,
        };
        let (tally, options) = (Tally::default(), *options);
        let (may_have_more, ending, finishing, busy_poll_us) = (false, false, false, 0);
        Ok(Xdp {
            socket,
            redirect,
            options,
            mover,
            waiting,
            tally,
            reserve,
            may_have_more,
            busy_poll_us,
            ending,
            finishing,
        })
    }

    /// See [`Engine::receive_more`](crate::Engine::receive_more). The batch must be of the pool of the engine's own.
    pub(crate) fn receive_more(
        &mut self,
        batch: &mut RecvBatch,
        wait: Wait,
        wake_flag: &WakeFlag,
    ) -> io::Result<usize> {
        self.check(batch)?;
        if self.ending {
            self.finish_or_go_on()?;
        }
        batch.fill(|headers, count| {
            let (mut wait, end) = (wait, wait.end());
            loop {
                self.wait(count, wait, end, wake_flag)?;
                // SAFETY: `fill` passes `count` armed headers of a region that the batch borrows mutably, so
                // there is no other reference to it or to the blocks they point at. It is of our arena and layout, as
                // just checked.
                let taken = unsafe { self.pick_up(headers, count) }?;
                let is_over = wait == Wait::No || left_until(end).is_zero();
                if taken > 0 || is_over || self.finishing || wake_flag.is_set() {
                    return Ok(taken);
                }
                // There were frames, and none of them was a datagram.
                wait = Wait::Block;
            }
        })
    }

    /// See [`Engine::receive_held`](crate::Engine::receive_held).
    pub(crate) fn receive_held(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.check(batch)?;
        self.finish_or_go_on()?;
        // SAFETY: as in `receive_more`.
        batch.fill(|headers, count| unsafe { self.pick_up(headers, count) })
    }

    /// Begins the end. Where the kernel refuses that, what is in the ring is received first.
    fn finish_or_go_on(&mut self) -> io::Result<()> {
        match self.finish() {
            Err(_) if self.socket.received.ready() > 0 => Ok(()),
            result => result,
        }
    }

    /// See [`Engine::finish`](crate::Engine::finish).
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.ending = true;
        if !self.finishing {
            self.redirect.let_pass(self.options.queue)?;
            if sys::wait_for_every_core().is_err() {
                thread::sleep(UNDER_WAY);
            }
            self.finishing = true;
        }
        Ok(())
    }

    /// Whether its frames may go into this batch.
    fn check(&self, batch: &RecvBatch) -> io::Result<()> {
        if batch.region().shares_arena_with(self.reserve[0].region()) { Ok(()) } else { Err(other_pool()) }
    }

    /// See [`Engine::set_busy_poll_us`](crate::Engine::set_busy_poll_us).
    pub(crate) fn set_busy_poll_us(&mut self, microseconds: u32) -> io::Result<()> {
        self.socket.set_busy_poll_us(microseconds)?;
        self.busy_poll_us = microseconds;
        Ok(())
    }

    /// See [`Engine::wait_readable`](crate::Engine::wait_readable).
    pub(crate) fn wait_readable(&mut self, timeout: Duration) -> io::Result<bool> {
        let is_readable = self.socket.received.ready() > 0 || self.socket.wait(timeout)?;
        if !is_readable {
            // Nothing wakes a thread that waits for an interface that is gone.
            self.socket.kick()?;
        }
        Ok(is_readable)
    }

    /// See [`Engine::xdp_tally`](crate::Engine::xdp_tally).
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// See [`Engine::xdp_counter`](crate::Engine::xdp_counter).
    pub(crate) fn counter(&self) -> io::Result<Counter> {
        self.socket.counter()
    }

    /// See [`Engine::xdp_statistics`](crate::Engine::xdp_statistics).
    pub(crate) fn statistics(&self) -> io::Result<Statistics> {
        self.socket.statistics()
    }

    /// Waits as `wait` says and until `end`, unless something is there.
    fn wait(&mut self, count: usize, wait: Wait, end: Option<Instant>, wake_flag: &WakeFlag) -> io::Result<()> {
        let is_full = |socket: &mut XdpSocket| socket.received.ready() as usize >= count;
        let wait = if self.finishing || wake_flag.is_set() { Wait::No } else { wait };
        if let Wait::Gather(time) = wait
            && !self.may_have_more
            && !is_full(&mut self.socket)
        {
            thread::sleep(time);
        }
        let waits = |socket: &mut XdpSocket| wait != Wait::No && socket.received.ready() == 0 && !wake_flag.is_set();
        while waits(&mut self.socket) && !left_until(end).is_zero() {
            if self.busy_poll_us > 0 {
                self.socket.kick()?;
            }
            if !self.socket.wait(LOOK.min(left_until(end)))? {
                self.socket.kick()?;
            }
        }
        Ok(())
    }

    /// Puts the datagrams of the ready frames under up to `count` headers, and returns how many.
    ///
    /// # Safety
    /// The headers are armed, of our layout and arena, and nothing else reads them or what they point at.
    unsafe fn pick_up(&mut self, headers: *mut mmsghdr, count: usize) -> io::Result<usize> {
        let wanted = self.options.control;
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let arrival = if wanted.timestamps { now() } else { Duration::ZERO };
        let facts = BatchFacts { wanted, interface: self.redirect.interface_index(), arrival };
        let mut taken = 0;
        while taken < count {
            let Some(filled) = self.socket.received.next() else { break };
            if let Some(coming) = self.socket.received.peek(AHEAD) {
                sys::prefetch(self.mover.umem.about(&coming));
            }
            let Some(place) = self.mover.umem.place(&filled) else {
                // No kernel says this, and an unknown chunk cannot be given back.
                self.tally.frames += 1;
                self.tally.malformed += 1;
                continue;
            };
            // SAFETY: the ring has made the chunk ours. The header is as the caller says.
            let Moved { block, is_taken } =
                unsafe { self.mover.move_frame(headers.add(taken), &place, &facts, &mut self.tally) };
            taken += usize::from(is_taken);
            // SAFETY: the block is ours, and empty: the frame's own, or the slot's, which points at another now.
            if !unsafe { self.socket.fill.put(self.mover.umem.address(block)) } {
                self.waiting.push(block);
            }
        }
        self.tally.waiting = self.socket.received.ready();
        self.may_have_more = self.tally.waiting > 0;
        self.socket.received.release();
        let Xdp { socket, mover, waiting, .. } = self;
        // SAFETY: as above.
        waiting.retain(|block| !unsafe { socket.fill.put(mover.umem.address(*block)) });
        match self.socket.publish() {
            // Received datagrams come first; the next call meets the missing interface again.
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }
}

/// Binds a socket to a queue. The kernel releases a queue a moment after its last socket was closed.
fn bind(socket: &mut XdpSocket, interface: u32, queue: u32, zero_copy: bool) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match socket.bind(interface, queue, zero_copy) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < LET_GO => {
                thread::sleep(LET_GO_LOOK);
            }
            result => return result,
        }
    }
}

/// Puts blocks on the fill ring; those without room wait.
fn give(socket: &mut XdpSocket, umem: &Umem, blocks: Vec<*mut u8>, waiting: &mut Vec<*mut u8>) {
    for block in blocks {
        // SAFETY: blocks of batches that are ours alone and hold nothing, each given once.
        if !unsafe { socket.fill.put(umem.address(block)) } {
            waiting.push(block);
        }
    }
}

/// Chunks in the blocks of a batch, if they are long enough for an ordinary frame. The program lets longer frames pass.
fn umem(batch: &RecvBatch, redirect: &Redirect) -> Result<Umem, Refusal> {
    let (layout, interface) = (batch.region().layout(), &redirect.wanted().interface);
    Umem::new(layout, batch.region().arena(), sys::page_bytes()).map_err(|needed| {
        let cause = format!(
            "a slot of the batches has {} bytes with what belongs to it, and AF_XDP needs {needed}: make them longer",
            layout.block_stride()
        );
        Refusal::unfit(format!("AF_XDP on {interface}"), cause)
    })
}

/// Refuses control messages for which a batch has no room.
fn check_control(layout: &Layout, options: &Options) -> io::Result<()> {
    let needed = options.control.bytes_of_every_datagram(true);
    if needed <= layout.control_bytes {
        return Ok(());
    }
    let text = format!(
        "{needed} bytes are to be noted down with each datagram, and the batch has room for {}: give its shape the \
         same control",
        layout.control_bytes
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn other_pool() -> io::Error {
    let text = "an AF_XDP engine exchanges memory with the batches it fills: all of them, and those it was made with, \
                must come from one RecvBatch::pool";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl Drop for Xdp {
    fn drop(&mut self) {
        // The kernel would do it when the socket is closed; this way no frame is on its way to it then.
        let _ = self.redirect.let_pass(self.options.queue);
    }
}
