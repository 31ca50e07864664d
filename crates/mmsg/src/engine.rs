//! What fills a batch: `recvmmsg`, io_uring where the kernel has it and permits it, or AF_XDP past the kernel's stack.
//!
//! All engines fill the same [`RecvBatch`], in the same order, with the same lengths, marks and control messages, so
//! that a reader cannot tell them apart. They differ in what a datagram costs. An engine belongs to one thread, and to
//! one socket or one receive queue of an interface.
//!
//! Only this file knows which engines there are. The type, and the threads that may use it, are the same in a build
//! without `io_uring`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecvBatch;
use crate::socket::Socket;
use crate::uring::Uring;
use crate::wait::Wait;
use crate::wait::{WakeFlag, Waker};
use crate::xdp::{self, Redirect, Xdp};

/// One way to receive from one socket, or from one receive queue of an interface. It stays on the thread that made it:
/// the kernel takes the calls of a ring from no other thread.
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<mmsg::Engine>();
/// ```
#[derive(Debug)]
pub struct Engine {
    inner: Inner,
    wake_flag: Arc<WakeFlag>,
}

#[derive(Debug)]
enum Inner {
    /// One system call for each batch.
    Recvmmsg(Recvmmsg),
    /// A ring that the kernel fills.
    Uring(Box<Uring>),
    /// Two rings that are shared with the kernel, below its stack.
    Xdp(Box<Xdp>),
}

impl Engine {
    /// Receives by `recvmmsg`.
    pub fn recvmmsg(socket: Arc<Socket>) -> Engine {
        Engine::of(Inner::Recvmmsg(Recvmmsg { socket, may_have_more: false }))
    }

    /// Receives by io_uring, with the blocks of `reserve`: batches of the same [pool](RecvBatch::pool) as those it will
    /// fill, of which [`Uring::reserve_batches`] are enough. Messages of up to `copy_up_to` bytes are copied, longer
    /// ones change hands without a copy; 0 copies only empty ones.
    ///
    /// # Errors
    /// Where the kernel refuses, or the crate is built without `io_uring`, the error holds a
    /// [`Refusal`](crate::Refusal).
    pub fn uring(socket: Arc<Socket>, reserve: Vec<RecvBatch>, copy_up_to: usize) -> io::Result<Engine> {
        Ok(Engine::of(Inner::Uring(Box::new(Uring::new(socket, reserve, copy_up_to)?))))
    }

    /// Receives by AF_XDP what `redirect` hands over of one receive queue, with the blocks of `reserve`: batches of the
    /// same [pool](RecvBatch::pool) as those it will fill. Those blocks are all the room for frames that have arrived
    /// and were not received yet; the kernel drops what exceeds it. The slots of the batches need 2 KiB.
    ///
    /// What passes, such as fragments, comes to an ordinary socket on the same port, which needs its own receiver.
    /// [`Socket::interrupt`] does not end a wait of this engine; a [waker](Self::waker) does.
    ///
    /// # Errors
    /// Where the kernel refuses, the error holds a [`Refusal`](crate::Refusal).
    pub fn af_xdp(redirect: Arc<Redirect>, reserve: Vec<RecvBatch>, options: &xdp::Options) -> io::Result<Engine> {
        Ok(Engine::of(Inner::Xdp(Box::new(Xdp::new(redirect, reserve, options)?))))
    }

    fn of(inner: Inner) -> Engine {
        Engine { inner, wake_flag: Arc::default() }
    }

    /// `recvmmsg`, `io_uring` or `af_xdp`, for logs and configurations.
    pub fn name(&self) -> &'static str {
        match &self.inner {
            Inner::Recvmmsg(_) => "recvmmsg",
            Inner::Uring(_) => "io_uring",
            Inner::Xdp(_) => "af_xdp",
        }
    }

    /// Clears the batch and fills it; otherwise like [`receive_more`](Self::receive_more).
    pub fn receive(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        batch.clear();
        self.receive_more(batch, wait)
    }

    /// Fills the free slots and returns the number of messages. 0: the batch was full, nothing was there (with
    /// [`Wait::No`]) or came in time ([`Wait::UpTo`]), or the socket was [interrupted](Socket::interrupt) or the thread
    /// [woken](Self::waker) and nothing is left.
    pub fn receive_more(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Recvmmsg(engine) => engine.receive_more(batch, wait, &self.wake_flag),
            Inner::Uring(engine) => engine.receive_more(batch, wait, &self.wake_flag),
            Inner::Xdp(engine) => engine.receive_more(batch, wait, &self.wake_flag),
        }
    }

    /// Fills the free slots with one call for each message, without waiting: first what the engine holds, then what is
    /// in the socket. Use it where [`receive`](Self::receive) keeps failing.
    pub fn receive_each(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Recvmmsg(engine) => batch.receive_each(&engine.socket),
            Inner::Uring(engine) => engine.receive_each(batch),
            // It makes no call for many messages that could fail: the frames lie in memory.
            Inner::Xdp(engine) => engine.receive_more(batch, Wait::No, &self.wake_flag),
        }
    }

    /// Ends reading ahead: from now on the engine takes no more out of the socket than a call returns. What it holds
    /// comes first, and when a call returns 0 it holds nothing. Call it before dropping the engine, because what it
    /// still holds is then lost; it costs the engine its advantage. With AF_XDP what arrives from now on goes to the
    /// ordinary socket, and the call takes some ten milliseconds.
    pub fn finish(&mut self) {
        match &mut self.inner {
            Inner::Recvmmsg(_) => {}
            Inner::Uring(engine) => engine.finish(),
            // If the kernel refuses, the next receive call tries it again and returns the error.
            Inner::Xdp(engine) => drop(engine.finish()),
        }
    }

    /// Clears the batch and fills it with what the engine holds; what is in the socket stays there for another reader.
    /// 0: the engine holds nothing, for good. It [finishes](Self::finish) the engine.
    pub fn receive_held(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.clear();
        match &mut self.inner {
            Inner::Recvmmsg(_) => Ok(0),
            Inner::Uring(engine) => engine.receive_held(batch),
            Inner::Xdp(engine) => engine.receive_held(batch),
        }
    }

    /// What the kernel has counted of the queue of AF_XDP; `None` for the other engines.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn xdp_statistics(&self) -> io::Result<Option<xdp::Statistics>> {
        match &self.inner {
            Inner::Recvmmsg(_) | Inner::Uring(_) => Ok(None),
            Inner::Xdp(engine) => engine.statistics().map(Some),
        }
    }

    /// What an AF_XDP engine has counted itself, which costs no call; `None` for the other engines.
    pub fn xdp_tally(&self) -> Option<xdp::Tally> {
        match &self.inner {
            Inner::Recvmmsg(_) | Inner::Uring(_) => None,
            Inner::Xdp(engine) => Some(engine.tally()),
        }
    }

    /// What tells other threads how much the kernel has lost of its queue; `None` for engines other than AF_XDP.
    ///
    /// # Errors
    /// There is no descriptor left for it.
    pub fn xdp_counter(&self) -> io::Result<Option<xdp::Counter>> {
        match &self.inner {
            Inner::Recvmmsg(_) | Inner::Uring(_) => Ok(None),
            Inner::Xdp(engine) => engine.counter().map(Some),
        }
    }

    /// Whether the arrival time is that of the batch, taken when the engine began to fill it, and not that of the
    /// datagram. AF_XDP has no other: no kernel code has looked at the clock.
    pub fn arrival_is_of_batch(&self) -> bool {
        matches!(self.inner, Inner::Xdp(_))
    }

    /// Ends a wait in a receive call from another thread. Unlike [`Socket::interrupt`] it leaves nothing behind in the
    /// socket.
    ///
    /// It gives the process an empty handler for SIGURG and unblocks that signal for this thread.
    ///
    /// # Errors
    /// The process has another handler for SIGURG, or the kernel refuses.
    pub fn waker(&self) -> io::Result<Waker> {
        self.wake_flag.waker()
    }

    /// Whether a [waker](Self::waker) has told it not to wait any more.
    pub fn is_woken(&self) -> bool {
        self.wake_flag.is_set()
    }

    /// Makes waits of the engine poll the device's queue for so long before they sleep: with a ring from Linux 6.9 on,
    /// with AF_XDP always. For `recvmmsg` see [`Socket::set_busy_poll_us`].
    pub fn set_busy_poll_us(&mut self, microseconds: u32) -> io::Result<()> {
        match &mut self.inner {
            Inner::Recvmmsg(_) => Ok(()),
            Inner::Uring(engine) => engine.set_busy_poll_us(microseconds),
            Inner::Xdp(engine) => engine.set_busy_poll_us(microseconds),
        }
    }

    /// Receives from another socket from now on, by the same means and with the same memory; after AF_XDP, which has no
    /// such socket, by `recvmmsg`. What is still in the old socket or in the engine is lost: [finish](Self::finish) and
    /// receive until nothing is left first.
    ///
    /// # Errors
    /// The ring does not release the old socket. The engine then receives by `recvmmsg`, and nothing else is lost.
    pub fn replace_socket(&mut self, socket: Arc<Socket>) -> io::Result<()> {
        let replaced = match &mut self.inner {
            Inner::Recvmmsg(_) | Inner::Xdp(_) => None,
            Inner::Uring(engine) => Some(engine.replace_socket(Arc::clone(&socket))),
        };
        if !matches!(replaced, Some(Ok(()))) {
            self.inner = Engine::recvmmsg(socket).inner;
        }
        replaced.unwrap_or(Ok(()))
    }

    /// Waits until a receive call would not block, at most for `timeout`. `false`: the time is over. Unlike
    /// [`Socket::wait_readable`] it knows what the engine holds.
    pub fn wait_readable(&mut self, timeout: Duration) -> io::Result<bool> {
        match &mut self.inner {
            Inner::Recvmmsg(engine) => engine.socket.wait_readable(timeout),
            Inner::Uring(engine) => engine.wait_readable(timeout),
            Inner::Xdp(engine) => engine.wait_readable(timeout),
        }
    }
}

/// The engine that every kernel has.
#[derive(Debug)]
struct Recvmmsg {
    socket: Arc<Socket>,
    /// The last call filled its batch, so there is no reason to gather.
    may_have_more: bool,
}

impl Recvmmsg {
    fn receive_more(&mut self, batch: &mut RecvBatch, wait: Wait, wake_flag: &WakeFlag) -> io::Result<usize> {
        let wait = match wait {
            _ if wake_flag.is_set() => Wait::No,
            // The kernel has no call that sleeps until so many datagrams are there, and one that is woken by each of
            // them would cost what gathering saves.
            Wait::Gather(_) if self.may_have_more => Wait::Block,
            wait => wait,
        };
        let result = batch.receive_until_woken(&self.socket, wait, Some(wake_flag));
        self.may_have_more = batch.is_full();
        result
    }
}
