//! What fills a batch: `recvmmsg`, or io_uring where the kernel has it and permits it.
//!
//! Both fill the same [`RecvBatch`], in the same order, with the same lengths, marks and control messages; a reader cannot
//! tell which one it was. They differ in what a datagram costs. An engine belongs to one thread and one socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecvBatch;
use crate::socket::Socket;
#[cfg(feature = "io_uring")]
use crate::uring::Uring;

/// Whether a receive call waits for the first datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for the first datagram, then take what else is there (`MSG_WAITFORONE`).
    Block,
    /// Let datagrams gather: wait until the batch is full or this time is over, and after that for as long as nothing has
    /// come. An engine that cannot be woken by a full batch waits the whole time.
    Gather(Duration),
    /// Take what is there (`MSG_DONTWAIT`).
    No,
}

/// One way to receive from one socket.
#[derive(Debug)]
pub enum Engine {
    /// One system call for each batch.
    Recvmmsg(Recvmmsg),
    /// A ring that the kernel fills.
    #[cfg(feature = "io_uring")]
    Uring(Box<Uring>),
}

impl Engine {
    /// Receives by `recvmmsg`.
    pub fn recvmmsg(socket: Arc<Socket>) -> Engine {
        Engine::Recvmmsg(Recvmmsg { socket, may_have_more: false })
    }

    /// Receives by io_uring; see [`Uring::new`]. From now on only this thread can use the engine.
    #[cfg(feature = "io_uring")]
    pub fn uring(socket: Arc<Socket>, reserve: Vec<RecvBatch>, copy_up_to: usize) -> io::Result<Engine> {
        Ok(Engine::Uring(Box::new(Uring::new(socket, reserve, copy_up_to)?)))
    }

    /// What it is called in a configuration: `recvmmsg` or `io_uring`.
    pub fn name(&self) -> &'static str {
        match self {
            Engine::Recvmmsg(_) => "recvmmsg",
            #[cfg(feature = "io_uring")]
            Engine::Uring(_) => "io_uring",
        }
    }

    /// Clears the batch and fills it; otherwise like [`receive_more`](Self::receive_more).
    pub fn receive(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        batch.clear();
        self.receive_more(batch, wait)
    }

    /// Fills the slots that are still free and returns the number of messages. A full batch returns 0 without waiting. 0
    /// otherwise: nothing was there (with [`Wait::No`]), or the socket has been [interrupted](Socket::interrupt) and
    /// nothing is left.
    pub fn receive_more(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        match self {
            Engine::Recvmmsg(engine) => engine.receive_more(batch, wait),
            #[cfg(feature = "io_uring")]
            Engine::Uring(engine) => engine.receive_more(batch, wait),
        }
    }

    /// Fills the free slots by a way of its own for each message, without waiting: what the engine has taken already, then
    /// what is in the socket. For where [`receive`](Self::receive) fails and will not recover.
    pub fn receive_each(&mut self, batch: &mut RecvBatch) -> io::Result<usize> {
        match self {
            Engine::Recvmmsg(engine) => batch.receive_each(&engine.socket),
            #[cfg(feature = "io_uring")]
            Engine::Uring(engine) => engine.receive_each(batch),
        }
    }

    /// From now on the engine takes nothing more out of the socket than a call returns: what it has taken already comes
    /// first, and when a call returns 0 nothing is left in it. For the end, where whatever stayed in the engine would be
    /// lost; it costs the engine its advantage.
    pub fn finish(&mut self) {
        match self {
            Engine::Recvmmsg(_) => {}
            #[cfg(feature = "io_uring")]
            Engine::Uring(engine) => engine.finish(),
        }
    }

    /// Has the engine's own waits look at the queue of the device for so long before they sleep. The call of `recvmmsg` has
    /// no wait but the socket's, which [`Socket::set_busy_poll_us`] is for; a ring has, from Linux 6.9 on.
    pub fn set_busy_poll_us(&mut self, microseconds: u32) -> io::Result<()> {
        match self {
            Engine::Recvmmsg(_) => {
                let _ = microseconds;
                Ok(())
            }
            #[cfg(feature = "io_uring")]
            Engine::Uring(engine) => engine.set_busy_poll_us(microseconds),
        }
    }

    /// Receives from another socket from now on, by the same means and with the same memory. What is still in the old one, or in
    /// the engine, is lost: [`finish`](Self::finish), and receive until nothing is left, before.
    ///
    /// # Errors
    /// No ring can be made for the new socket: it is then received from by `recvmmsg`, and nothing else is lost.
    pub fn replace_socket(&mut self, socket: Arc<Socket>) -> io::Result<()> {
        let old = std::mem::replace(self, Engine::recvmmsg(Arc::clone(&socket)));
        match old {
            Engine::Recvmmsg(_) => Ok(()),
            #[cfg(feature = "io_uring")]
            Engine::Uring(old) => {
                let (copy_up_to, busy_poll_us) = (old.copies_up_to(), old.busy_poll_us());
                let reserve = old
                    .into_reserve()
                    .ok_or_else(|| io::Error::other("the kernel does not give back the memory of the ring before"))?;
                *self = Engine::uring(socket, reserve, copy_up_to)?;
                if busy_poll_us > 0 { self.set_busy_poll_us(busy_poll_us) } else { Ok(()) }
            }
        }
    }

    /// Waits until a receive call would not block, `timeout` at most. `false`: the time is over. Unlike
    /// [`Socket::wait_readable`] it knows what the engine has already taken out of the socket.
    pub fn wait_readable(&mut self, timeout: Duration) -> io::Result<bool> {
        match self {
            Engine::Recvmmsg(engine) => engine.socket.wait_readable(timeout),
            #[cfg(feature = "io_uring")]
            Engine::Uring(engine) => engine.wait_readable(timeout),
        }
    }
}

/// The engine that every kernel has.
#[derive(Debug)]
pub struct Recvmmsg {
    socket: Arc<Socket>,
    /// The last call filled its batch, so there is no reason to let anything gather.
    may_have_more: bool,
}

impl Recvmmsg {
    fn receive_more(&mut self, batch: &mut RecvBatch, wait: Wait) -> io::Result<usize> {
        let wait = match wait {
            // The kernel has no call that sleeps until so many datagrams are there. One that is woken by each of them would
            // cost what gathering is to save.
            Wait::Gather(_) if self.may_have_more => Wait::Block,
            wait => wait,
        };
        let result = batch.receive_more(&self.socket, wait);
        self.may_have_more = batch.is_full();
        result
    }
}
