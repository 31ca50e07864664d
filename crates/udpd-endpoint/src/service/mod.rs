//! A listening socket and the one thread that serves its clients: what the control socket and the metrics endpoint have
//! in common.
//!
//! A client sends one question, gets one answer and leaves. One thread serves all clients. It waits in `poll` for all
//! of them and never for one of them, so a client that sends nothing costs the others nothing. The number of clients is
//! limited: when one more connects, the oldest one to which no answer is owed is closed. So no number of idle
//! connections keeps a question out. Each stage of an exchange has a deadline, so no client stays for ever. Without
//! clients the thread sleeps, unless the service has streams.
//!
//! A stream is an answer that goes on: with every tick all its followers get the same piece. Streams and other
//! secondary answers may take only some of the places, so that the clients that the service is for find one. A follower
//! that is too slow for a piece misses it, and one that does not take a piece in the time of an answer is closed; so
//! the service keeps at most one piece for each.
//!
//! A thread for each client, with timeouts on its socket, would not do. To make room for a new client one place must
//! know the state of all: it closes the oldest that is owed nothing, after a last look whether that one has just asked,
//! else the reader that has stalled longest. And a thread that cannot be started would be one more way to refuse.

mod client;
mod event_loop;

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Sender;
use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{self, Backlog, setsockopt, sockopt};
use rustix::io::ioctl_fionbio;

use self::event_loop::{EventLoop, Poll};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::seams::{clock, waits};

/// How long a peer across the network may leave data unacknowledged, or keep its window shut, before the kernel gives
/// the connection up: a host that was switched off never says that it is gone.
const PEER_SILENCE_MS: u32 = 15_000;

pub(crate) trait StreamListener: AsFd + Send + Sync + 'static {
    type Client: Read + Write + AsFd + Send + 'static;
    /// The next client, or `WouldBlock`.
    fn accept(&self) -> io::Result<Self::Client>;
    /// Whether clients can connect now.
    fn is_open(&self) -> bool {
        true
    }
}

impl StreamListener for TcpListener {
    type Client = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        let (client, _) = Self::accept(self)?;
        // Where the kernel refuses, its own limit of minutes holds; the deadlines of the service hold all the same.
        let _ = setsockopt(&client, sockopt::TcpUserTimeout, &PEER_SILENCE_MS);
        Ok(client)
    }
}

/// What a service is asked and answers.
pub(crate) trait ServiceProtocol: Send + 'static {
    fn limits(&self) -> ServiceLimits;
    /// What its thread is for.
    fn role(&self) -> ThreadRole {
        ThreadRole::Endpoint
    }
    /// Called on its thread before the first client.
    fn begin(&self) {}
    /// The length of the question that these bytes begin with, once all of it has come.
    fn question_length(&self, bytes: &[u8]) -> Option<usize>;
    /// Answers a question, at once or later. It must not wait: all other clients would wait as well.
    fn reply(&mut self, question: ClientQuestion<'_>, asker: &AskingClient<'_>) -> Reply;
    /// Called once a [`ServiceLimits::tick`]: the next piece of every stream. `has_streams`: a client follows one.
    fn tick(&mut self, _has_streams: bool) -> Option<Arc<[u8]>> {
        None
    }
    /// The answer to a client whose own answer is not there in time.
    fn overdue(&self) -> Vec<u8> {
        Vec::new()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientQuestion<'a> {
    Whole(&'a [u8]),
    /// More bytes than allowed, and no end in sight.
    TooLong,
}

/// How a question is answered.
#[derive(Debug)]
pub(crate) enum Reply {
    Now(Vec<u8>),
    /// The same to a secondary client: only where [`AskingClient::has_secondary_place`].
    Secondary(Vec<u8>),
    /// This, and then a piece with each tick until the client goes: only where [`AskingClient::has_stream_place`].
    Stream(Vec<u8>),
    /// The holder of the client's [`OwedAnswer`] will answer.
    Later,
    /// The receiver of this channel gets the connection, and the service gives it up.
    HandOff(Sender<OwnedFd>),
}

/// Waits for sockets.
fn poll(sockets: &mut [PollFd<'_>], timeout: PollTimeout) -> nix::Result<i32> {
    let limit = u64::try_from(i32::from(timeout)).ok().map(Duration::from_millis);
    let sockets = RefCell::new(sockets);
    let poll = |timeout| nix::poll::poll(&mut sockets.borrow_mut(), timeout);
    let now = || Some(poll(PollTimeout::ZERO)).filter(|ready| *ready != Ok(0));
    waits::until(limit.map(|limit| clock::now() + limit), now, || Some(poll(timeout))).unwrap_or(Ok(0))
}

/// How many clients there may be, and how long each stage of an exchange may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServiceLimits {
    pub held_max: usize,
    /// How many of them may be secondary, streams included.
    pub secondary_max: usize,
    /// How many of the secondary ones may be streams.
    pub streams_max: usize,
    pub question_bytes_max: usize,
    /// How long a question may be under way.
    pub asking: Duration,
    /// How long an answer may be made.
    pub waiting: Duration,
    /// How long a client may take to read its answer.
    pub taking: Duration,
    /// After how long without a byte taken a reader may be closed for a client that waits.
    pub stalling: Duration,
    /// How long a client with its whole answer may take to close.
    pub leaving: Duration,
    /// How long clients with an owed answer have when the service ends.
    pub ending: Duration,
    /// The pause after a failure that time may cure and an immediate retry would not.
    pub pause: Duration,
    /// The time between two ticks; a service without streams has none, and never wakes without a client.
    pub tick: Option<Duration>,
}

impl ServiceLimits {
    pub(crate) const fn new(held_max: usize, question_bytes_max: usize) -> Self {
        Self {
            held_max,
            secondary_max: 0,
            streams_max: 0,
            question_bytes_max,
            // Long enough for a person who types. It costs nothing: a client that has not asked makes room for others.
            asking: Duration::from_secs(10),
            waiting: Duration::from_secs(60),
            taking: Duration::from_secs(5),
            stalling: Duration::from_secs(1),
            leaving: Duration::from_secs(1),
            ending: Duration::from_secs(1),
            pause: Duration::from_secs(1),
            tick: None,
        }
    }
}

/// The client that has asked.
#[derive(Debug)]
pub(crate) struct AskingClient<'a> {
    client: u64,
    answers: &'a Sender<LateAnswer>,
    waker: &'a ServiceWaker,
    /// Whether there is a place for one more secondary client.
    pub(crate) has_secondary_place: bool,
    /// Whether there is a place for one more stream.
    pub(crate) has_stream_place: bool,
}

impl AskingClient<'_> {
    /// For answering later, from any thread.
    pub(crate) fn owed_answer(&self) -> OwedAnswer {
        OwedAnswer { client: self.client, answers: self.answers.clone(), waker: self.waker.clone() }
    }
}

/// An answer on its way to the client with this number; `None` when there will be none.
type LateAnswer = (u64, Option<Vec<u8>>);

/// The answer that a client waits for. Dropped without one, it closes the connection.
#[derive(Debug)]
pub(crate) struct OwedAnswer {
    client: u64,
    answers: Sender<LateAnswer>,
    waker: ServiceWaker,
}

impl OwedAnswer {
    pub(crate) fn send(self, answer: Vec<u8>) {
        self.deliver(Some(answer));
    }

    fn deliver(&self, answer: Option<Vec<u8>>) {
        // When the service has ended, no client waits any more.
        let _ = self.answers.send((self.client, answer));
        self.waker.wake();
    }
}

impl Drop for OwedAnswer {
    fn drop(&mut self) {
        // After an answer this comes too late to mean anything.
        self.deliver(None);
    }
}

/// Wakes the thread of a service out of `poll`.
#[derive(Debug, Clone)]
struct ServiceWaker(Arc<EventFd>);

impl ServiceWaker {
    fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(Arc::new(EventFd::from_value_and_flags(0, flags)?)))
    }

    fn wake(&self) {
        // It fails only after 2^64 calls that the thread did not see.
        let _ = self.0.write(1);
    }

    fn reset(&self) -> io::Result<()> {
        match self.0.read() {
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for ServiceWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug)]
#[must_use = "the socket is served until the service is stopped"]
pub(crate) struct Service<L> {
    name: &'static str,
    listener: Arc<L>,
    is_stopping: Arc<AtomicBool>,
    waker: ServiceWaker,
    thread: JoinHandle<()>,
}

impl<L: StreamListener> Service<L> {
    /// Serves clients on a thread called `name`.
    pub(crate) fn start(
        name: &'static str,
        listener: L,
        registry: &ThreadRegistry,
        protocol: impl ServiceProtocol,
    ) -> Result<Self, Failure> {
        Self::start_with(name, listener, registry, protocol, Box::new(poll))
    }

    /// Opens the socket to clients, or closes it, as `change` has it, and lets the thread see that.
    pub(crate) fn change_socket(&self, change: impl FnOnce(&L)) {
        change(&self.listener);
        self.waker.wake();
    }

    fn start_with(
        name: &'static str,
        listener: L,
        registry: &ThreadRegistry,
        protocol: impl ServiceProtocol,
        poll: Poll,
    ) -> Result<Self, Failure> {
        let fail = |what: &str, error: io::Error, cure: &str| {
            Failure::new(ExitCode::Failure, format!("cannot {what} {name}: {error}; {cure}"))
        };
        let raise_limit = "raise the limit on open files (ulimit -n, LimitNOFILE=)";
        // The longest queue that the host allows: a client in it waits for one round, and not for a second attempt to
        // connect.
        let prepared = ioctl_fionbio(&listener, true).map_err(io::Error::from);
        let prepared = prepared.and_then(|()| match listener.is_open() {
            true => Ok(socket::listen(&listener, Backlog::MAXALLOWABLE)?),
            false => Ok(()),
        });
        prepared.map_err(|error| fail("prepare the socket of", error, "see why in the log of the kernel"))?;
        let waker = ServiceWaker::new().map_err(|error| fail("make the event that stops", error, raise_limit))?;
        let (is_stopping, listener) = (Arc::new(AtomicBool::new(false)), Arc::new(listener));
        let role = protocol.role();
        let event_loop = EventLoop::new(name, &listener, protocol, &waker, &is_stopping, poll);
        let event_loop = event_loop.map_err(|error| fail("set a descriptor aside for", error, raise_limit))?;
        let thread = registry
            .spawn(name, role, move || event_loop.run())
            .map_err(|error| threads::start_failure(name, &error))?;
        Ok(Self { name, listener, is_stopping, waker, thread })
    }

    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    /// Ends the service and closes the socket. Clients with an owed answer have a second to take it.
    pub(crate) fn stop(self) {
        self.is_stopping.store(true, Ordering::Release);
        // From now on no client can connect. This wakes the thread too, should the waker fail. It fails only for a
        // descriptor that is no listening socket.
        let _ = socket::shutdown(self.listener.as_fd().as_raw_fd(), socket::Shutdown::Both);
        self.waker.wake();
        if waits::join(self.thread).is_err() {
            log::error!("the thread {} had panicked; its clients got no answer since", self.name);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
