//! Answers that take their time: who makes one holds a ticket, and a bell tells the service that it is done.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crossbeam_channel::Sender;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An answer on its way to the client with this number; `None` when there will be none.
pub(super) type Delivery = (u64, Option<Vec<u8>>);

/// Wakes the thread of a service.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<EventFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(Arc::new(EventFd::from_value_and_flags(0, flags)?)))
    }

    pub(super) fn ring(&self) {
        // Fails only when it has rung 2^64 times unheard.
        let _ = self.0.write(1);
    }

    /// Lets it be quiet until it is rung again.
    pub(super) fn silence(&self) -> io::Result<()> {
        match self.0.read() {
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Who has asked.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    pub(super) client: u64,
    pub(super) answers: &'a Sender<Delivery>,
    pub(super) bell: &'a Bell,
    pub(super) has_place_for_guest: bool,
    pub(super) has_place_for_stream: bool,
}

impl Asker<'_> {
    /// Whether one more guest can be had beside those that are there.
    pub(crate) fn has_place_for_guest(&self) -> bool {
        self.has_place_for_guest
    }

    /// Whether one more of the guests can be a stream.
    pub(crate) fn has_place_for_stream(&self) -> bool {
        self.has_place_for_stream
    }

    /// For answering later, from any thread.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { client: self.client, answers: self.answers.clone(), bell: self.bell.clone() }
    }
}

/// A question whose answer is owed. Dropped without one, it closes the connection.
#[derive(Debug)]
pub(crate) struct Ticket {
    client: u64,
    answers: Sender<Delivery>,
    bell: Bell,
}

impl Ticket {
    pub(crate) fn answer(self, answer: Vec<u8>) {
        self.deliver(Some(answer));
    }

    fn deliver(&self, answer: Option<Vec<u8>>) {
        // Nobody takes it any more when the service has ended.
        let _ = self.answers.send((self.client, answer));
        self.bell.ring();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // After an answer this comes too late to mean anything.
        self.deliver(None);
    }
}
