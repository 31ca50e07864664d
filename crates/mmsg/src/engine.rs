//! What fills a batch: `recvmmsg`, or io_uring where the kernel has it and permits it, or AF_XDP past the kernel's
//! stack.
//!
//! All fill the same [`RecvBatch`], in the same order, with the same lengths, marks and control messages; a reader
//! cannot tell which one it was. They differ in what a datagram costs. An engine belongs to one thread, and to one
//! socket or one receive queue of an interface.
//!
//! Only this file knows which engines there are: the type is the same in a build without `io_uring`, and so is what may
//! be done with it on which thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecvBatch;
use crate::socket::Socket;
use crate::uring::Uring;
use crate::wait::Wait;
use crate::wait::{Bell, Waker};
use crate::xdp::{self, Redirect, Xdp};

/// One way to receive from one socket, or from one receive queue of an interface. It stays on the thread that made it:
/// the kernel takes the calls of a ring from no other.
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<mmsg::Engine>();
/// ```
#[derive(Debug)]
pub struct Engine {
    way: Way,
    bell: Arc<Bell>,
}

#[derive(Debug)]
enum Way {
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
        Engine::of(Way::Recvmmsg(Recvmmsg { socket, may_have_more: false }))
    }

    /// Receives by io_uring, with the blocks of `reserve`: batches of the same [pool](RecvBatch::pool) as those it will
    /// fill; [`Uring::reserve_batches`] says how many are enough. Messages of up to `copy_up_to` bytes are copied,
    /// longer ones change hands without a copy; 0 copies none but the empty ones.
    ///
    /// # Errors
    /// Where the kernel refuses, or the crate is built without its feature `io_uring`, the error holds a
    /// [`Refusal`](crate::Refusal) and its text says why.
    pub fn uring(socket: Arc<Socket>, reserve: Vec<RecvBatch>, copy_up_to: usize) -> io::Result<Engine> {
        Ok(Engine::of(Way::Uring(Box::new(Uring::new(socket, reserve, copy_up_to)?))))
    }

    /// Receives by AF_XDP what `redirect` hands over of one receive queue, with the blocks of `reserve`: batches of the
    /// same [pool](RecvBatch::pool) as those it will fill. Those blocks are all the room there is for what has arrived
    /// and was not received yet; the kernel drops what comes beyond. The slots of the batches need 2 KiB.
    ///
    /// What the engine is not handed, such as fragments, comes to an ordinary socket on the same port, which somebody
    /// else receives from. [`Socket::interrupt`] does not end a wait of this engine, a [waker](Self::waker) does.
    ///
    /// # Errors
    /// Where the kernel refuses, the error holds a [`Refusal`](crate::Refusal) and its text says why.
    pub fn af_xdp(redirect: Arc<Redirect>, reserve: Vec<RecvBatch>, options: &xdp::Options) -> io::Result<Engine> {
        Ok(Engine::of(Way::Xdp(Box::new(Xdp::new(redirect, reserve, options)?))))
    }

    fn of(way: Way) -> Engine {
        Engine { way, bell: Arc::default() }
    }

    /// Its name, `recvmmsg`, `io_uring` or `af_xdp`: for logs and configurations.
    pub fn name(&self) -> &'static str {
        match &self.way {
            Way::Recvmmsg(_) => "recvmmsg",
            Way::Uring(_) => "io_uring",
            Way::Xdp(_) => "af_xdp",
        }
    }

    /// Clears the batch and fills it; otherwise like [`receive_more`](Self::receive_more).
    pub fn receive(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        batch.clear();
        self.receive_more(batch, wait)
    }

    /// Fills the slots that are still free and returns the number of messages. A full batch returns 0 without waiting.
    /// 0 otherwise: nothing was there (with [`Wait::No`]), or the socket has been [interrupted](Socket::interrupt), or
    /// the thread [woken](Self::waker), and nothing is left.
    pub fn receive_more(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        match &mut self.way {
            Way::Recvmmsg(engine) => engine.receive_more(batch, wait, &self.bell),
            Way::Uring(engine) => engine.receive_more(batch, wait, &self.bell),
            Way::Xdp(engine) => engine.receive_more(batch, wait, &self.bell),
        }
    }

    /// Fills the free slots with one call for each message, without waiting: first what the engine has taken already,
    /// then what is in the socket. Use it where [`receive`](Self::receive) fails and will not recover.
    pub fn receive_each(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        match &mut self.way {
            Way::Recvmmsg(engine) => batch.receive_each(&engine.socket),
            Way::Uring(engine) => engine.receive_each(batch),
            // It has no call for many that could fail: what is there lies in memory.
            Way::Xdp(engine) => engine.receive_more(batch, Wait::No, &self.bell),
        }
    }

    /// Ends the reading ahead: from now on the engine takes no more out of the socket than a call returns. What it has
    /// taken already comes first, and when a call returns 0 nothing is left in it. Call it before the engine is
    /// dropped, because what it still holds is then lost; it costs the engine its advantage. With AF_XDP what arrives
    /// from now on goes to the ordinary socket; the call takes some ten milliseconds.
    pub fn finish(&mut self) {
        match &mut self.way {
            Way::Recvmmsg(_) => {}
            Way::Uring(engine) => engine.finish(),
            // Should the kernel refuse, the next receive call tries it again, and says so.
            Way::Xdp(engine) => drop(engine.finish()),
        }
    }

    /// Clears the batch and fills it with what the engine has taken out of the socket and not handed out yet; what is
    /// in the socket stays there for somebody else. 0: nothing is left in the engine, now and for ever. It
    /// [finishes](Self::finish) the engine.
    pub fn receive_held(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.clear();
        match &mut self.way {
            Way::Recvmmsg(_) => Ok(0),
            Way::Uring(engine) => engine.receive_held(batch),
            Way::Xdp(engine) => engine.receive_held(batch),
        }
    }

    /// What the kernel has counted of the queue of AF_XDP; `None` for the other engines.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn xdp_statistics(&self) -> io::Result<Option<xdp::Statistics>> {
        match &self.way {
            Way::Recvmmsg(_) | Way::Uring(_) => Ok(None),
            Way::Xdp(engine) => engine.statistics().map(Some),
        }
    }

    /// What an AF_XDP engine has counted itself, which costs no call; `None` for the other engines.
    pub fn xdp_tally(&self) -> Option<xdp::Tally> {
        match &self.way {
            Way::Recvmmsg(_) | Way::Uring(_) => None,
            Way::Xdp(engine) => Some(engine.tally()),
        }
    }

    /// What tells other threads how much the kernel has lost of its queue; `None` for engines other than AF_XDP.
    ///
    /// # Errors
    /// There is no descriptor left for it.
    pub fn xdp_counter(&self) -> io::Result<Option<xdp::Counter>> {
        match &self.way {
            Way::Recvmmsg(_) | Way::Uring(_) => Ok(None),
            Way::Xdp(engine) => engine.counter().map(Some),
        }
    }

    /// Whether the time of arrival is that of the batch, taken when the engine began to fill it, and not that of the
    /// datagram. So it is with AF_XDP: no kernel code has looked at the clock.
    pub fn arrival_is_of_batch(&self) -> bool {
        matches!(self.way, Way::Xdp(_))
    }

    /// What ends a wait in a receive call from another thread. Unlike [`Socket::interrupt`] it leaves nothing behind in
    /// the socket.
    ///
    /// It gives the process a handler for SIGURG that does nothing, and lets this thread be reached by it.
    ///
    /// # Errors
    /// The process has another handler for SIGURG, or the kernel refuses.
    pub fn waker(&self) -> io::Result<Waker> {
        self.bell.waker()
    }

    /// Makes the engine's own waits poll the device's queue for so long before they sleep. `recvmmsg` has no wait but
    /// the socket's, which [`Socket::set_busy_poll_us`] is for; a ring has one from Linux 6.9 on, AF_XDP always.
    pub fn set_busy_poll_us(&mut self, microseconds: u32) -> io::Result<()> {
        match &mut self.way {
            Way::Recvmmsg(_) => Ok(()),
            Way::Uring(engine) => engine.set_busy_poll_us(microseconds),
            Way::Xdp(engine) => engine.set_busy_poll_us(microseconds),
        }
    }

    /// Receives from another socket from now on, by the same means and with the same memory; after AF_XDP, which has no
    /// such socket, by `recvmmsg`. What is still in the old one, or in the engine, is lost: [`finish`](Self::finish),
    /// and receive until nothing is left, before.
    ///
    /// # Errors
    /// The ring does not let go of the socket before. The engine then receives by `recvmmsg`, and nothing else is lost.
    pub fn replace_socket(&mut self, socket: Arc<Socket>) -> io::Result<()> {
        let replaced = match &mut self.way {
            Way::Recvmmsg(_) | Way::Xdp(_) => None,
            Way::Uring(engine) => Some(engine.replace_socket(Arc::clone(&socket))),
        };
        if !matches!(replaced, Some(Ok(()))) {
            self.way = Engine::recvmmsg(socket).way;
        }
        replaced.unwrap_or(Ok(()))
    }

    /// Waits until a receive call would not block, `timeout` at most. `false`: the time is over. Unlike
    /// [`Socket::wait_readable`] it knows what the engine has already taken out of the socket.
    pub fn wait_readable(&mut self, timeout: Duration) -> io::Result<bool> {
        match &mut self.way {
            Way::Recvmmsg(engine) => engine.socket.wait_readable(timeout),
            Way::Uring(engine) => engine.wait_readable(timeout),
            Way::Xdp(engine) => engine.wait_readable(timeout),
        }
    }
}

/// The engine that every kernel has.
#[derive(Debug)]
struct Recvmmsg {
    socket: Arc<Socket>,
    /// The last call filled its batch, so there is no reason to let anything gather.
    may_have_more: bool,
}

impl Recvmmsg {
    fn receive_more(&mut self, batch: &mut RecvBatch, wait: Wait, bell: &Bell) -> io::Result<usize> {
        let wait = match wait {
            _ if bell.is_rung() => Wait::No,
            // The kernel has no call that sleeps until so many datagrams are there. One that is woken by each of them
            // would cost what gathering is to save.
            Wait::Gather(_) if self.may_have_more => Wait::Block,
            wait => wait,
        };
        let result = batch.receive_until_rung(&self.socket, wait, Some(bell));
        self.may_have_more = batch.is_full();
        result
    }
}
