//! A socket of this host, on which somebody else listens: datagrams as messages, or records in a stream.
//!
//! A peer that is not there costs its own datagrams and nothing else: they are counted as failed, and the peer is
//! looked for four times a second. A peer that is there and does not read makes its consumer wait, and then `when_full`
//! decides. Where nothing could mark a datagram that was received in part, it fails: nobody could tell it from a whole
//! one.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::format::encoder::{Encoder, Format};
use crate::handover::batch::LaneBatch;
use crate::ledger::Tallies;
use crate::os::crew;
use crate::sink::outbox::{Destination, Outbox};
use crate::sink::{Feeders, Sink, deliver, fail};

/// How often a peer that is gone is looked for.
const RETRY: Duration = Duration::from_millis(250);

/// Somebody's socket, who may come and go.
struct Peer<S> {
    sink: String,
    path: PathBuf,
    connect: fn(&Path) -> io::Result<S>,
    socket: Option<S>,
    /// When it was last looked for.
    tried: Option<Instant>,
    /// What has been said of it.
    is_said_gone: bool,
    /// The error numbers that have been said of single messages; 0: one was received in part.
    said: Vec<i32>,
}

impl<S> fmt::Debug for Peer<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_connected = self.socket.is_some();
        formatter.debug_struct("Peer").field("path", &self.path).field("is_connected", &is_connected).finish()
    }
}

impl<S> Peer<S> {
    fn new(sink: &str, path: PathBuf, connect: fn(&Path) -> io::Result<S>) -> Self {
        let (sink, said) = (sink.to_owned(), Vec::new());
        let mut peer = Self { sink, path, connect, socket: None, tried: None, is_said_gone: false, said };
        peer.find();
        peer
    }

    /// The socket, when the peer is there; looks for it, when the last look is long enough ago.
    fn find(&mut self) -> Option<&mut S> {
        let is_due = || self.tried.is_none_or(|tried| tried.elapsed() >= RETRY);
        if self.socket.is_none() && is_due() {
            self.tried = Some(Instant::now());
            match (self.connect)(&self.path) {
                Ok(socket) => {
                    if self.is_said_gone {
                        log::info!("sink {}: {} is back", self.sink, self.path.display());
                    }
                    self.is_said_gone = false;
                    self.socket = Some(socket);
                }
                Err(error) => self.say_gone("cannot be reached", &error),
            }
        }
        self.socket.as_mut()
    }

    /// A datagram was received in part, and the peer could not tell. Said once.
    fn say_truncated(&mut self) {
        self.say_of_message(0, || {
            "udpd does not hand on a truncated datagram, because it would look like a whole one; such datagrams \
             count as sink_error; raise max_length"
                .to_owned()
        });
    }

    /// What is wrong with single messages is said once for each error number.
    fn say_of_message(&mut self, errno: i32, text: impl FnOnce() -> String) {
        /// There are hardly as many.
        const KINDS_MAX: usize = 8;
        if self.said.len() < KINDS_MAX && !self.said.contains(&errno) {
            self.said.push(errno);
            log::warn!("sink {}: {}: {}", self.sink, self.path.display(), text());
        }
    }

    fn lose(&mut self, error: &io::Error) {
        self.say_gone("takes no more", error);
        self.socket = None;
    }

    fn say_gone(&mut self, what: &str, error: &io::Error) {
        if std::mem::replace(&mut self.is_said_gone, true) {
            return;
        }
        let cure = match error.kind() {
            io::ErrorKind::NotFound => "; start what listens there",
            io::ErrorKind::PermissionDenied => "; let the user of udpd write to it",
            io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => "",
            io::ErrorKind::WouldBlock => "; it listens but accepts no connection: see what it waits for",
            _ if error.raw_os_error() == Some(nix::libc::EPROTOTYPE) => {
                "; it is a socket of the other kind: socket = \"datagram\" or \"stream\""
            }
            _ => "",
        };
        log::warn!(
            "sink {}: {} {what}: {error}; datagrams count as sink_error until it is back{cure}",
            self.sink,
            self.path.display()
        );
    }
}

/// One datagram, one message.
#[derive(Debug)]
pub(super) struct UnixDatagramSink {
    peer: Peer<UnixDatagram>,
}

impl UnixDatagramSink {
    /// A sink that sends to the socket at `path`, which need not be there yet.
    pub(super) fn new(sink: &str, path: PathBuf) -> Self {
        let connect = |path: &Path| {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path).map(|()| socket)
        };
        Self { peer: Peer::new(sink, path, connect) }
    }

    /// The same; what a peer that is there has no room for fails.
    pub(super) fn that_never_waits(sink: &str, path: PathBuf) -> Self {
        let connect = |path: &Path| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect(path).map(|()| socket)
        };
        Self { peer: Peer::new(sink, path, connect) }
    }

    /// Whether the peer took the message. One that has just come back gets the message that found it gone.
    fn send(&mut self, payload: &[u8]) -> bool {
        loop {
            let Some(socket) = self.peer.find() else { return false };
            match crew::at_rest(|| socket.send(payload)) {
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.peer.say_of_message(nix::libc::EAGAIN, || {
                        "has no room, and an inline sink never waits; such datagrams count as sink_error; raise \
                         sysctl net.unix.max_dgram_qlen before its reader binds, make that reader faster, or remove \
                         inline"
                            .to_owned()
                    });
                    return false;
                }
                Err(error) if is_about_the_message(&error) => {
                    self.peer.say_of_message(error.raw_os_error().unwrap_or_default(), || {
                        format!(
                            "the kernel does not take a message of {} bytes: {error}; such datagrams count as \
                             sink_error; see sysctl net.core.wmem_default, which bounds a message",
                            payload.len()
                        )
                    });
                    return false;
                }
                Err(error) => self.peer.lose(&error),
            }
        }
    }
}

/// Whether the message is at fault, and not the peer.
fn is_about_the_message(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EMSGSIZE | nix::libc::ENOBUFS | nix::libc::ENOMEM))
}

impl Sink for UnixDatagramSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let tally = &mut tallies[batch.listener];
        for datagram in batch.datagrams.datagrams() {
            let is_truncated = datagram.is_truncated();
            if is_truncated {
                self.peer.say_truncated();
            }
            if !is_truncated && self.send(datagram.payload()) { deliver(tally, 1) } else { fail(tally, 1) }
        }
    }
}

/// Records in a stream.
#[derive(Debug)]
pub(super) struct UnixStreamSink {
    peer: Peer<Stream>,
    outbox: Outbox,
    marks_truncation: bool,
}

/// A connection. What it has taken of a record cannot be taken back, but the connection ends with it, so that no reader
/// takes what follows for the rest.
#[derive(Debug)]
struct Stream(UnixStream);

impl Destination for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn take_back(&mut self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that there can be now. A peer that accepts none for the moment would make the ordinary call wait,
/// without end.
fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

impl UnixStreamSink {
    /// A sink that writes to the socket at `path`, which need not be there yet.
    pub(super) fn new(sink: &str, path: PathBuf, encoder: Encoder) -> Self {
        let connect = |path: &Path| connect_at_once(path).map(Stream);
        let marks_truncation = encoder.format() != Format::Lengths;
        Self { peer: Peer::new(sink, path, connect), outbox: Outbox::new(encoder), marks_truncation }
    }
}

impl Sink for UnixStreamSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            if datagram.is_truncated() && !self.marks_truncation {
                self.peer.say_truncated();
                fail(&mut tallies[batch.listener], 1);
                continue;
            }
            self.outbox.push(batch, &datagram);
            if self.outbox.is_full() {
                self.flush(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        if self.outbox.is_empty() {
            return;
        }
        let Some(stream) = self.peer.find() else { return self.outbox.discard(tallies) };
        if let (_, Err(error)) = self.outbox.write_to(stream, tallies) {
            self.peer.lose(&error);
        }
    }

    fn go_on_for(&mut self, feeders: &Feeders) {
        self.outbox.go_on_for(Arc::clone(&feeders.scenes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Tally;
    use crate::sink::testing::{Received, scenes};

    fn encoder(format: Format) -> Encoder {
        Encoder::new(format, scenes(1), |_| true)
    }

    fn accept(sink: &mut impl Sink, payloads: &[&[u8]]) -> Tally {
        let batch = Received::over_loopback(payloads).batch;
        let mut tallies = Tallies::from([Tally { pending: payloads.len() as u64, ..Tally::default() }]);
        sink.accept(&batch, &mut tallies);
        sink.flush(&mut tallies);
        assert_eq!(tallies[0].pending, 0);
        tallies[0]
    }

    /// Lets the sink look for its peer at once.
    fn look_again<S>(peer: &mut Peer<S>) {
        peer.tried = None;
    }

    #[test]
    fn messages_keep_their_bytes_and_a_peer_that_comes_back_misses_only_what_came_meanwhile() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("peer");
        let mut sink = UnixDatagramSink::new("s", path.clone());
        let tally = accept(&mut sink, &[b"nobody", b"there"]);
        assert_eq!((tally.delivered, tally.dropped.sink_error), (0, 2));
        let peer = UnixDatagram::bind(&path).expect("bound");
        look_again(&mut sink.peer);
        let long = vec![7; 9000];
        let tally = accept(&mut sink, &[b"a\nb", b"", &long]);
        assert_eq!((tally.delivered, tally.dropped.sink_error), (3, 0));
        let mut buffer = [0; 10_000];
        for expected in [&b"a\nb"[..], b"", &long] {
            let length = peer.recv(&mut buffer).expect("a message");
            assert_eq!(&buffer[..length], expected);
        }
        drop(peer);
        std::fs::remove_file(&path).expect("removed");
        let peer = UnixDatagram::bind(&path).expect("bound again");
        look_again(&mut sink.peer);
        let tally = accept(&mut sink, &[b"to the new one"]);
        assert_eq!(
            (tally.delivered, tally.dropped.sink_error),
            (1, 0),
            "the message that found the peer gone is sent to the new one"
        );
        assert_eq!(peer.recv(&mut buffer).expect("a message"), 14);
    }

    #[test]
    fn a_stream_has_one_record_for_each_datagram_in_either_framing() {
        let directory = tempfile::tempdir().expect("a directory");
        for (format, expected) in
            [(Format::Lines, &b"one\na\\nb\n\n"[..]), (Format::Lengths, &b"\0\0\0\x03one\0\0\0\x03a\nb\0\0\0\0"[..])]
        {
            let path = directory.path().join(format!("{format:?}"));
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
            let mut sink = UnixStreamSink::new("s", path, encoder(format));
            let tally = accept(&mut sink, &[b"one", b"a\nb", b""]);
            assert_eq!((tally.delivered, tally.dropped.sink_error), (3, 0));
            let (mut peer, _) = listener.accept().expect("a connection");
            drop(sink);
            let mut read = Vec::new();
            io::Read::read_to_end(&mut peer, &mut read).expect("the end of the stream");
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn a_peer_that_accepts_nobody_is_not_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("peer");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let mut waiting = Vec::new();
        let error = loop {
            match connect_at_once(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100_000, "the backlog has no end");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let mut sink = UnixStreamSink::new("s", path, encoder(Format::Lines));
        let tally = accept(&mut sink, &[b"nobody accepts"]);
        assert_eq!((tally.delivered, tally.dropped.sink_error), (0, 1));
        drop(listener);
    }

    #[test]
    fn a_part_of_a_datagram_is_never_passed_off_as_a_whole_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("peer");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let cut = Received::into_slots(&[&[b'x'; 100], b"whole"], 10).batch;
        for (format, delivered) in [(Format::Lines, 2), (Format::Lengths, 1)] {
            let mut sink = UnixStreamSink::new("s", path.clone(), encoder(format));
            let mut tallies = Tallies::from([Tally { pending: 2, ..Tally::default() }]);
            sink.accept(&cut, &mut tallies);
            sink.flush(&mut tallies);
            assert_eq!(
                (tallies[0].delivered, tallies[0].dropped.sink_error, tallies[0].pending),
                (delivered, 2 - delivered, 0)
            );
            drop(listener.accept().expect("a connection"));
        }
        let messages = directory.path().join("messages");
        let _peer = UnixDatagram::bind(&messages).expect("bound");
        let mut tallies = Tallies::from([Tally { pending: 2, ..Tally::default() }]);
        UnixDatagramSink::new("s", messages).accept(&cut, &mut tallies);
        assert_eq!((tallies[0].delivered, tallies[0].dropped.sink_error), (1, 1));
    }

    #[test]
    fn a_stream_begins_with_a_whole_record_on_every_connection() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("peer");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let mut sink = UnixStreamSink::new("s", path, encoder(Format::Lines));
        drop(listener.accept().expect("a connection"));
        let tally = accept(&mut sink, &[b"lost with the connection"]);
        assert_eq!((tally.delivered, tally.dropped.sink_error), (0, 1));
        look_again(&mut sink.peer);
        let tally = accept(&mut sink, &[b"whole"]);
        assert_eq!((tally.delivered, tally.dropped.sink_error), (1, 0));
        let (mut peer, _) = listener.accept().expect("a connection");
        drop(sink);
        let mut read = Vec::new();
        io::Read::read_to_end(&mut peer, &mut read).expect("the end of the stream");
        assert_eq!(read, b"whole\n");
    }
}
