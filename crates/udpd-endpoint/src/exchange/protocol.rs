//! What a service and its frame agree on: what listens, how clients are connected, what is asked and answered, and how
//! much room and time a client gets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use nix::sys::socket::{setsockopt, sockopt};

use super::ticket::Asker;

/// How long a peer across the network may leave what was sent unanswered, or keep its window shut, before the kernel
/// gives the connection up: a host that was switched off never says that it is gone.
const PEER_SILENCE_MS: u32 = 15_000;

/// How much the kernel keeps of a stream that its client does not read.
const STREAM_BUFFER_BYTES: usize = 128 << 10;

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
        let (client, _) = Self::accept(self)?;
        // A kernel that refuses leaves it at its own limit, which is minutes; the deadlines here hold all the same.
        let _ = setsockopt(&client, sockopt::TcpUserTimeout, &PEER_SILENCE_MS);
        Ok(client)
    }
}

/// A client's connection.
pub(crate) trait Stream: Read + Write + AsFd + Send + 'static {
    /// From now on, reading and writing never wait.
    fn set_nonblocking(&self) -> io::Result<()>;
    /// Tells the peer that the answer is complete.
    fn end_of_answer(&self) -> io::Result<()>;
    /// From now on the kernel keeps little of what the peer does not read.
    fn keep_little(&self) {}
}

impl Stream for TcpStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn end_of_answer(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn keep_little(&self) {
        // Where it is refused, the kernel keeps what tcp_wmem allows, which is bounded as well.
        let _ = setsockopt(self, sockopt::SndBuf, &STREAM_BUFFER_BYTES);
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
    /// Called once a [`Limits::beat`]: the next piece of every stream. `has_streams` says whether anybody takes it.
    fn beat(&mut self, _has_streams: bool) -> Option<Arc<[u8]>> {
        None
    }
    /// What a client is told whose answer is not there in time.
    fn overdue(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// What a client has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question<'a> {
    Whole(&'a [u8]),
    /// More bytes than allowed, and no end in sight.
    TooLong,
}

/// What becomes of a question.
#[derive(Debug)]
pub(crate) enum Reply {
    Now(Vec<u8>),
    /// The same, to a guest: to be given only where [`Asker::has_place_for_guest`].
    Guest(Vec<u8>),
    /// This, and then a piece with each beat until the client goes: only where [`Asker::has_place_for_stream`].
    Stream(Vec<u8>),
    /// Somebody has the asker's ticket and will answer.
    Later,
    /// Whoever is at the other end of this has the connection from now on, and the service has not.
    Given(Sender<OwnedFd>),
}

/// What clients may take of room and time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How many are held at once.
    pub held_max: usize,
    /// How many of them may be guests, streams among them; the other places are for those whom the service is there
    /// for.
    pub guests_max: usize,
    /// How many of the guests may be streams.
    pub streams_max: usize,
    /// The longest question.
    pub question_bytes_max: usize,
    /// How long a question may be under way.
    pub asking: Duration,
    /// How long an answer may be made.
    pub waiting: Duration,
    /// How long a client may take to read its answer.
    pub taking: Duration,
    /// After how long without a byte taken a reader may have to go for somebody else.
    pub stalling: Duration,
    /// How long it may take to leave after that.
    pub leaving: Duration,
    /// How long those who are owed an answer have when the service ends.
    pub ending: Duration,
    /// The pause after a failure that waiting may cure and retrying at once would not.
    pub pause: Duration,
    /// The time between two beats; a service without streams has none, and wakes for nobody.
    pub beat: Option<Duration>,
}

impl Limits {
    /// For so many clients and so long a question, with the times that suit everybody.
    pub(crate) const fn new(held_max: usize, question_bytes_max: usize) -> Self {
        Self {
            held_max,
            guests_max: 0,
            streams_max: 0,
            question_bytes_max,
            // Long enough for somebody who types; it costs nothing, because who has not asked makes room for others.
            asking: Duration::from_secs(10),
            waiting: Duration::from_secs(60),
            taking: Duration::from_secs(5),
            stalling: Duration::from_secs(1),
            leaving: Duration::from_secs(1),
            ending: Duration::from_secs(1),
            pause: Duration::from_secs(1),
            beat: None,
        }
    }
}
