//! Whether a receive call waits, and what ends the wait from another thread without a trace in the socket.
//!
//! [`Socket::interrupt`](crate::Socket::interrupt) ends the socket for every reader, for good. A socket that another
//! process takes over needs something that belongs to the thread instead. A poll on a second descriptor would cost two
//! more system calls for each time that a datagram wakes the thread. A signal costs nothing until it is sent: it ends
//! the call, and the engine sees the flag.
//!
//! The signal is SIGURG, which means nothing to a UDP socket and does nothing by default. Its handler is empty.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::sys;

/// Whether a receive call waits for the first datagram. It decides alone: a blocking socket does not wait with
/// [`Wait::No`], and a nonblocking one waits with all others.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for the first datagram, then take what else is there (`MSG_WAITFORONE`).
    Block,
    /// The same, for this time at most. 0 messages: the time is over.
    UpTo(Duration),
    /// Let datagrams gather: wait until the batch is full or this time is over, and then until at least one has come.
    /// An engine that a full batch cannot wake waits the whole time.
    Gather(Duration),
    /// Take what is there (`MSG_DONTWAIT`).
    No,
}

impl Wait {
    /// When a wait that begins now ends without a datagram; `None`: never.
    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            Wait::UpTo(time) => Instant::now().checked_add(time),
            Wait::Block | Wait::Gather(_) | Wait::No => None,
        }
    }
}

/// The time until the [end](Wait::end) of a wait.
pub(crate) fn left_until(end: Option<Instant>) -> Duration {
    end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
}

/// What wakes the thread of one engine; any thread may do it. [`Engine::waker`](crate::Engine::waker) makes one.
#[derive(Clone, Debug)]
pub struct Waker {
    wake_flag: Weak<WakeFlag>,
    thread: libc::pid_t,
}

/// Whether an engine was told to wake. It lives as long as its engine.
#[derive(Debug, Default)]
pub(crate) struct WakeFlag {
    is_set: AtomicBool,
}

impl WakeFlag {
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Lets the calling thread, which owns the engine, be woken.
    pub(crate) fn waker(self: &Arc<WakeFlag>) -> io::Result<Waker> {
        if !sys::hear_nothing_of(libc::SIGURG)? {
            let text = "this process has a handler for SIGURG: a receiver can only be woken by a signal without one";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        sys::unblock_signal(libc::SIGURG)?;
        Ok(Waker { wake_flag: Arc::downgrade(self), thread: sys::thread_id() })
    }
}

impl Waker {
    /// From now on the engine's receive calls do not wait: they return what is there, and then 0.
    ///
    /// A call that is just about to sleep may miss it. So repeat this until the thread has reacted; it does no harm,
    /// and nothing when the engine is gone.
    pub fn wake(&self) -> io::Result<()> {
        let Some(wake_flag) = self.wake_flag.upgrade() else { return Ok(()) };
        wake_flag.is_set.store(true, Ordering::Relaxed);
        match sys::signal_thread(self.thread, libc::SIGURG) {
            // The thread has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result,
        }
    }
}
