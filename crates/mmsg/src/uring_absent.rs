//! The io_uring engine of a crate that is built without the feature `io_uring`. It can be asked for, says why there is
//! none, and has no value, so that nothing else changes: what compiles with the feature compiles without it.

use std::convert::Infallible;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecvBatch;
use crate::refusal::Refusal;
use crate::socket::Socket;
use crate::wait::Bell;
use crate::wait::Wait;

/// The io_uring engine, which this build lacks: [`Uring::supported`] says so.
#[derive(Debug)]
pub struct Uring {
    never: Infallible,
    /// A ring stays on its thread. What must not compile with the feature must not compile without it.
    of_this_thread: PhantomData<*const ()>,
}

impl Uring {
    /// Whether this host has an io_uring engine; here always the refusal that says how to get one.
    pub fn supported() -> Result<(), Refusal> {
        Err(Refusal::uring_not_built())
    }

    /// How many batches of so many slots to give to a ring: 0, because there is none.
    pub fn reserve_batches(slots: usize) -> usize {
        let _ = slots;
        0
    }

    /// What a ring for batches of so many slots takes of the memory that a process may lock: 0, because there is none.
    pub fn locked_bytes(slots: usize) -> usize {
        let _ = slots;
        0
    }

    pub(crate) fn new(socket: Arc<Socket>, reserve: Vec<RecvBatch>, copy_up_to: usize) -> io::Result<Uring> {
        let _ = (socket, reserve, copy_up_to);
        Err(Refusal::uring_not_built().into())
    }

    pub(crate) fn receive_more(&mut self, _: &mut RecvBatch, _: Wait, _: &Bell) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn receive_held(&mut self, _: &mut RecvBatch) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn receive_each(&mut self, _: &mut RecvBatch) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn finish(&mut self) {
        match self.never {}
    }

    pub(crate) fn replace_socket(&mut self, _: Arc<Socket>) -> io::Result<()> {
        match self.never {}
    }

    pub(crate) fn set_busy_poll_us(&mut self, _: u32) -> io::Result<()> {
        match self.never {}
    }

    pub(crate) fn wait_readable(&mut self, _: Duration) -> io::Result<bool> {
        match self.never {}
    }
}
