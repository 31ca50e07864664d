//! A listening socket and the one thread that serves its clients: the frame of the control socket and of the metrics
//! endpoint.
//!
//! A client asks one question, gets one answer and leaves. All clients are served at once, by one thread that waits for
//! all of them in `poll` and never for one of them: a connection that says nothing costs the others nothing. How many
//! are held is bounded; when one more comes, the oldest to which no answer is owed has to go. So no number of idle
//! connections keeps a question out, and none of them can stay for ever: each stage of an exchange has its deadline.
//! Nobody there means that nobody wakes.

mod client;
mod server;
mod ticket;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{self, Backlog};

use crate::exit::{ExitCode, Failure};
use crate::os::crew::Crew;
use server::{Poll, Server};
use ticket::Bell;
pub(crate) use ticket::{Asker, Ticket};

/// A listening stream socket.
pub(crate) trait Listener: AsFd + Send + Sync + 'static {
    /// What a client is connected by.
    type Client: Stream;
    /// From now on, [`Self::accept`] never waits.
    fn set_nonblocking(&self) -> io::Result<()>;
    /// The next client, or `WouldBlock`.
    fn accept(&self) -> io::Result<Self::Client>;
}

impl Listener for TcpListener {
    type Client = TcpStream;

    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn accept(&self) -> io::Result<TcpStream> {
        Self::accept(self).map(|(client, _)| client)
    }
}

/// A client's connection.
pub(crate) trait Stream: Read + Write + AsFd + Send + 'static {
    /// From now on, reading and writing never wait.
    fn set_nonblocking(&self) -> io::Result<()>;
    /// Tells the peer that the answer is complete.
    fn end_of_answer(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn end_of_answer(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn end_of_answer(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// What a service says.
pub(crate) trait Protocol: Send + 'static {
    /// What its clients may take of room and time.
    fn limits(&self) -> Limits;
    /// How long the question is that these bytes begin with, once all of it is there.
    fn question_length(&self, bytes: &[u8]) -> Option<usize>;
    /// Answers a question, at once or later. It must not wait: all other clients would wait as well.
    fn reply(&mut self, question: Question<'_>, asker: &Asker<'_>) -> Reply;
    /// What a client is told whose answer is not there in time.
    fn overdue(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// What a client has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question<'a> {
    /// A whole question.
    Whole(&'a [u8]),
    /// More bytes than allowed, and no end in sight.
    TooLong,
}

/// What becomes of a question.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The answer.
    Now(Vec<u8>),
    /// Somebody has the asker's ticket and will answer.
    Later,
}

/// What clients may take of room and time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How many are held at once.
    pub(crate) held_max: usize,
    /// The longest question.
    pub(crate) question_bytes_max: usize,
    /// How long a question may be under way.
    pub(crate) asking: Duration,
    /// How long an answer may be made.
    pub(crate) waiting: Duration,
    /// How long a client may take to read its answer.
    pub(crate) taking: Duration,
    /// How long it may take to leave after that.
    pub(crate) leaving: Duration,
    /// How long those who are owed an answer have when the service ends.
    pub(crate) ending: Duration,
    /// The pause after a failure that waiting may cure and retrying at once would not.
    pub(crate) pause: Duration,
}

impl Limits {
    /// For so many clients and so long a question, with the times that suit everybody.
    pub(crate) const fn new(held_max: usize, question_bytes_max: usize) -> Self {
        Self {
            held_max,
            question_bytes_max,
            // Long enough for somebody who types; it costs nothing, because who has not asked makes room for others.
            asking: Duration::from_secs(10),
            waiting: Duration::from_secs(60),
            taking: Duration::from_secs(5),
            leaving: Duration::from_secs(1),
            ending: Duration::from_secs(1),
            pause: Duration::from_secs(1),
        }
    }
}

/// A socket that is being served.
#[derive(Debug)]
pub(crate) struct Service<L> {
    name: &'static str,
    listener: Arc<L>,
    stopping: Arc<AtomicBool>,
    bell: Bell,
    thread: JoinHandle<()>,
}

impl<L: Listener> Service<L> {
    /// Serves clients on a thread called `name`.
    pub(crate) fn start(
        name: &'static str,
        listener: L,
        crew: &Crew,
        protocol: impl Protocol,
    ) -> Result<Self, Failure> {
        Self::start_with(name, listener, crew, protocol, Box::new(nix::poll::poll))
    }

    fn start_with(
        name: &'static str,
        listener: L,
        crew: &Crew,
        protocol: impl Protocol,
        poll: Poll,
    ) -> Result<Self, Failure> {
        let fail = |what: &str, error: io::Error, cure: &str| {
            Failure::new(ExitCode::Failure, format!("cannot {what} {name}: {error}; {cure}"))
        };
        let of_descriptors = "raise the limit on open files (ulimit -n, LimitNOFILE=)";
        // The widest queue that the host allows: who is in it waits for one round and not for a second attempt to
        // connect.
        let prepared = listener.set_nonblocking().and_then(|()| Ok(socket::listen(&listener, Backlog::MAXALLOWABLE)?));
        prepared.map_err(|error| fail("prepare the socket of", error, "see why in the log of the kernel"))?;
        let bell = Bell::new().map_err(|error| fail("make the event that stops", error, of_descriptors))?;
        let (stopping, listener) = (Arc::new(AtomicBool::new(false)), Arc::new(listener));
        let server = Server::new(name, &listener, protocol, &bell, &stopping, poll);
        let server = server.map_err(|error| fail("set a descriptor aside for", error, of_descriptors))?;
        let thread = crew.spawn(name, move || server.run());
        let of_threads = "raise the limit on threads (ulimit -u, TasksMax=)";
        let thread = thread.map_err(|error| fail("start the thread", error, of_threads))?;
        Ok(Self { name, listener, stopping, bell, thread })
    }

    /// The socket being served.
    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    /// Ends the service and closes the socket. Who is owed an answer has a second to take it.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // Nobody can connect any more, and should the bell fail, this wakes the thread too. It fails only for a
        // descriptor that is no listening socket.
        let _ = socket::shutdown(self.listener.as_fd().as_raw_fd(), socket::Shutdown::Both);
        self.bell.ring();
        if self.thread.join().is_err() {
            log::error!("the thread {} had panicked; nobody has answered its clients since", self.name);
        }
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
pub(crate) mod tests;
