//! Waking the thread that waits in a receive call, without a trace in its socket.
//!
//! [`Socket::interrupt`](crate::Socket::interrupt) wakes every reader by the end of the socket, and the end is for
//! ever: whoever receives from the socket next is told of it at every call. A socket that another process goes on
//! with needs something that belongs to the thread instead. A poll on a descriptor beside the socket would cost two
//! more system calls for each time a thread is woken by a datagram. A signal costs nothing until it is sent: it ends
//! the call, and the engine sees that it was called.
//!
//! The signal is SIGURG, which means nothing to a UDP socket and does nothing by default. Its handler is empty.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::sys;

/// What wakes the thread of one engine; any thread may do it. [`Engine::waker`](crate::Engine::waker) makes one.
#[derive(Clone, Debug)]
pub struct Waker {
    bell: Weak<Bell>,
    thread: libc::pid_t,
}

/// Whether an engine was called. It lives as long as its engine.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    is_rung: AtomicBool,
}

impl Bell {
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Relaxed)
    }

    /// Lets the calling thread, which owns the engine, be woken.
    pub(crate) fn waker(self: &Arc<Bell>) -> io::Result<Waker> {
        if !sys::hear_nothing_of(libc::SIGURG)? {
            let text = "this process has a handler for SIGURG: a receiver can only be woken by a signal without one";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        sys::unblock_signal(libc::SIGURG)?;
        Ok(Waker { bell: Arc::downgrade(self), thread: sys::thread_id() })
    }
}

impl Waker {
    /// From now on the engine's receive calls do not wait: they return what is there, and then 0.
    ///
    /// A call that is just about to sleep may miss it. So call this again until the thread has done what it is woken
    /// for; it does no harm. When the engine is gone it does nothing.
    pub fn wake(&self) -> io::Result<()> {
        let Some(bell) = self.bell.upgrade() else { return Ok(()) };
        bell.is_rung.store(true, Ordering::Relaxed);
        match sys::signal_thread(self.thread, libc::SIGURG) {
            // The thread has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result,
        }
    }
}
