//! The io_uring engine of a build without the feature `io_uring`. It can be asked for, says why there is none, and has
//! no value, so that programs that compile with the feature compile without it.

use std::convert::Infallible;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecvBatch;
use crate::refusal::Refusal;
use crate::socket::Socket;
use crate::wait::{Wait, WakeFlag};

/// The io_uring engine, which this build lacks: [`Uring::supported`] says so.
#[derive(Debug)]
pub struct Uring {
    never: Infallible,
    /// A ring stays on its thread: neither build may let an engine change its thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Uring {
    /// Whether this host has an io_uring engine; here always the refusal that says how to get one.
    pub fn supported() -> Result<(), Refusal> {
        Err(Refusal::uring_not_built())
    }

    /// How many batches of so many slots to give to a ring: 0, because there is none.
    pub fn reserve_batches(_slots: usize) -> usize {
        0
    }

    /// What a ring for batches of so many slots takes of the memory that a process may lock: 0, because there is none.
    pub fn locked_bytes(_slots: usize) -> usize {
        0
    }

    pub(crate) fn new(_: Arc<Socket>, _: Vec<RecvBatch>, _: usize) -> io::Result<Uring> {
        Err(Refusal::uring_not_built().into())
    }
}

macro_rules! never_called {
    ($($method:ident($($argument:ty),*) -> $result:ty;)*) => {
        impl Uring {
            $(pub(crate) fn $method(&mut self, $(_: $argument),*) -> $result {
                match self.never {}
            })*
        }
    };
}

never_called! {
    receive_more(&mut RecvBatch, Wait, &WakeFlag) -> io::Result<usize>;
    receive_held(&mut RecvBatch) -> io::Result<usize>;
    receive_each(&mut RecvBatch) -> io::Result<usize>;
    finish() -> ();
    replace_socket(Arc<Socket>) -> io::Result<()>;
    set_busy_poll_us(u32) -> io::Result<()>;
    wait_readable(Duration) -> io::Result<bool>;
}
