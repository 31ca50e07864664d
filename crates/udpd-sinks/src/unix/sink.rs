//! A Unix socket on which another process listens: datagrams as messages, or records in a stream.
//!
//! A peer that is not there costs its own datagrams and nothing else: they are counted as failed, and the peer is
//! looked for four times a second. A peer that is there and does not read makes its consumer wait, and then `when_full`
//! decides; each single wait is short, so that what it has taken by then counts as delivered even if it never reads
//! again and the daemon ends. A datagram that was received in part fails if the format cannot mark it, because a reader
//! could not tell it from a whole one.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::peer::UnixPeer;
use udpd_base::format::encoder::{Encoder, Format};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::sink::outbox::{Outbox, OutboxDestination};
use udpd_base::sink::{ConsumerFeeders, Sink, deliver, fail};

/// How long a peer that takes nothing is waited for at once. With a spill it then counts as one that is gone; without
/// one what it has taken until then is counted, and it is waited for again.
pub(super) const PEER_WAIT: Duration = Duration::from_millis(100);

/// Records of a batch that are on their way into a stream.
#[derive(Debug, Default)]
pub(super) struct PendingRecords {
    /// The place of each datagram in its batch, and where its record ends in the buffer.
    pub(super) records: Vec<(usize, usize)>,
    /// What is left of the record that the peer has taken a part of.
    pub(super) cut: Vec<u8>,
}

/// One datagram, one message.
#[derive(Debug)]
pub(super) struct UnixDatagramSink {
    pub(super) peer: UnixPeer<UnixDatagram>,
    /// What the peer has no room for fails at once.
    never_waits: bool,
}

/// The outcome of sending a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Yes,
    /// The peer is gone.
    NotNow,
    /// The peer is there, and has taken nothing for a moment.
    Stuck,
    /// It can never be sent.
    Never,
}

impl UnixDatagramSink {
    /// A sink that sends to the socket at `path`, which need not be there yet.
    pub(super) fn new(sink: &str, path: PathBuf) -> Self {
        Self { peer: UnixPeer::new(sink, path, false, connect_patiently), never_waits: false }
    }

    /// The same; what a peer that is there has no room for fails.
    pub(super) fn that_never_waits(sink: &str, path: PathBuf) -> Self {
        let connect = |path: &Path| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect(path).map(|()| socket)
        };
        Self { peer: UnixPeer::new(sink, path, false, connect), never_waits: true }
    }

    /// The same for one that has a spill.
    pub(super) fn with_spill(sink: &str, path: PathBuf) -> Self {
        Self { peer: UnixPeer::new(sink, path, true, connect_patiently), never_waits: false }
    }

    /// Sends a message. A peer that has just come back gets the one that found it gone.
    pub(super) fn send(&mut self, payload: &[u8]) -> SendOutcome {
        loop {
            let Some(socket) = self.peer.find() else { return SendOutcome::NotNow };
            match threads::blocking(|| socket.send(payload)) {
                Ok(_) => return SendOutcome::Yes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.never_waits => {
                    self.peer.say_of_message(nix::libc::EAGAIN, || {
                        "has no room, and an inline sink never waits; such datagrams count as sink_error; raise \
                         sysctl net.unix.max_dgram_qlen before its reader binds, make that reader faster, or remove \
                         inline"
                            .to_owned()
                    });
                    return SendOutcome::Never;
                }
                Err(error) if is_about_the_message(&error) => {
                    self.peer.say_of_message(error.raw_os_error().unwrap_or_default(), || {
                        format!(
                            "the kernel does not take a message of {} bytes: {error}; such datagrams count as \
                             sink_error; see sysctl net.core.wmem_default, which bounds a message",
                            payload.len()
                        )
                    });
                    return SendOutcome::Never;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return SendOutcome::Stuck,
                Err(error) => self.peer.lose(&error),
            }
        }
    }
}

/// A socket whose sends wait only briefly for a peer that reads nothing.
fn connect_patiently(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_write_timeout(Some(PEER_WAIT)).map(|()| socket)
}

/// Whether the message is at fault, and not the peer.
fn is_about_the_message(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EMSGSIZE | nix::libc::ENOBUFS | nix::libc::ENOMEM))
}

impl Sink for UnixDatagramSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        for datagram in batch.datagrams.datagrams() {
            let is_truncated = datagram.is_truncated();
            if is_truncated {
                self.peer.say_truncated();
            }
            let is_sent = !is_truncated && self.send_at_last(datagram.payload(), tallies) == SendOutcome::Yes;
            let tally = &mut tallies[batch.listener];
            if is_sent { deliver(tally, 1) } else { fail(tally, 1) }
        }
    }
}

impl UnixDatagramSink {
    /// The same as `send`, for as long as a peer that is there takes nothing.
    fn send_at_last(&mut self, payload: &[u8], tallies: &mut Tallies) -> SendOutcome {
        loop {
            match self.send(payload) {
                SendOutcome::Stuck if threads::is_given_up() => return SendOutcome::Never,
                // What it has taken before counts, should it take nothing more before the end.
                SendOutcome::Stuck => tallies.publish(),
                sent => return sent,
            }
        }
    }
}

/// Records in a stream.
#[derive(Debug)]
pub(super) struct UnixStreamSink {
    pub(super) peer: UnixPeer<PeerStream>,
    pub(super) outbox: Outbox,
    pub(super) marks_truncation: bool,
    /// With a spill, what is in the outbox.
    pub(super) gathered: PendingRecords,
}

/// A connection. What it has taken of a record cannot be taken back, but the connection ends with it, so that no reader
/// takes what follows for the rest.
#[derive(Debug)]
pub(super) struct PeerStream(pub(super) UnixStream);

impl OutboxDestination for PeerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn is_slow(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock
    }

    fn take_back(&mut self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }
}

/// A connection made without waiting, whose writes wait only briefly for a peer that reads nothing. A peer
/// that accepts none for the moment would make the ordinary call wait, without end.
fn connect_at_once(path: &Path) -> io::Result<PeerStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PEER_WAIT)).map(|()| PeerStream(stream))
}

impl UnixStreamSink {
    /// A sink that writes to the socket at `path`, which need not be there yet.
    pub(super) fn new(sink: &str, path: PathBuf, encoder: Encoder) -> Self {
        Self::of(UnixPeer::new(sink, path, false, connect_at_once), encoder)
    }

    /// The same for one that has a spill.
    pub(super) fn with_spill(sink: &str, path: PathBuf, encoder: Encoder) -> Self {
        Self::of(UnixPeer::new(sink, path, true, connect_at_once), encoder)
    }

    fn of(peer: UnixPeer<PeerStream>, encoder: Encoder) -> Self {
        let marks_truncation = encoder.format() != Format::Lengths;
        Self { peer, outbox: Outbox::new(encoder), marks_truncation, gathered: PendingRecords::default() }
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
        match self.outbox.write_to(stream, tallies) {
            // A peer may have a part of a record, and nothing is to follow that.
            (_, Err(_)) if threads::is_given_up() => self.peer.socket = None,
            (_, Err(error)) => self.peer.lose(&error),
            (_, Ok(())) => {}
        }
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.outbox.go_on_for(Arc::clone(&feeders.scenes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::ledger::{ConsumerLedger, SinkTally};
    use udpd_base::sink::testing::{Received, scenes};

    fn encoder(format: Format) -> Encoder {
        Encoder::new(format, scenes(1), |_| true)
    }

    fn accept(sink: &mut impl Sink, payloads: &[&[u8]]) -> SinkTally {
        let batch = Received::over_loopback(payloads).batch;
        let mut tallies = Tallies::from([SinkTally { pending: payloads.len() as u64, ..SinkTally::default() }]);
        sink.accept(&batch, &mut tallies);
        sink.flush(&mut tallies);
        assert_eq!(tallies[0].pending, 0);
        tallies[0]
    }

    /// Lets the sink look for its peer at once.
    fn look_again<S>(peer: &mut UnixPeer<S>) {
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

    /// A consumer that waits for a peer which reads nothing, and the moment at which that one goes: what others saw
    /// delivered by then, and what is in the end.
    fn stuck<S: Sink + 'static>(mut sink: S, go: impl FnOnce()) -> (u64, SinkTally) {
        const DATAGRAMS: u64 = 600;
        let payloads = vec![vec![b'x'; 2000]; DATAGRAMS as usize];
        let batch = Received::over_loopback(&payloads.iter().map(Vec::as_slice).collect::<Vec<_>>()).batch;
        let ledger = Arc::new(ConsumerLedger::new(0..1));
        let mut tallies = Tallies::new(0..1).published_in(&ledger);
        tallies[0].taken = DATAGRAMS;
        tallies[0].pending = DATAGRAMS;
        let consumer = std::thread::spawn(move || {
            sink.accept(&batch, &mut tallies);
            sink.flush(&mut tallies);
            tallies[0]
        });
        while ledger.read(0).delivered == 0 {
            std::thread::yield_now();
        }
        let seen = ledger.read(0);
        assert_eq!(seen.taken, seen.delivered + seen.pending);
        go();
        let tally = consumer.join().expect("no panic");
        assert_eq!((tally.pending, tally.delivered + tally.dropped.sink_error), (0, DATAGRAMS));
        (seen.delivered, tally)
    }

    #[test]
    fn what_a_peer_took_before_it_stopped_reading_counts_while_its_consumer_still_waits() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("messages");
        let peer = UnixDatagram::bind(&path).expect("bound");
        let (seen, tally) = stuck(UnixDatagramSink::new("s", path), || drop(peer));
        assert_eq!((seen, tally.delivered), (tally.delivered, seen));
        assert!(tally.dropped.sink_error > 0, "{tally:?}");
        for format in [Format::Lines, Format::Lengths] {
            let path = directory.path().join(format!("{format:?}"));
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
            let sink = UnixStreamSink::new("s", path, encoder(format));
            let (mut peer, _) = listener.accept().expect("a connection");
            drop(listener);
            let mut read = Vec::new();
            let (seen, tally) = stuck(sink, || {
                // Nothing more gets in, and what is there can be read.
                peer.shutdown(std::net::Shutdown::Read).expect("shut");
            });
            io::Read::read_to_end(&mut peer, &mut read).expect("the end of the stream");
            assert_eq!((seen, tally.delivered), (format.boundary().whole(&read).records, seen));
            assert!(tally.dropped.sink_error > 0, "{tally:?}");
        }
    }

    #[test]
    fn a_part_of_a_datagram_is_never_passed_off_as_a_whole_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("peer");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let cut = Received::into_slots(&[&[b'x'; 100], b"whole"], 10).batch;
        for (format, delivered) in [(Format::Lines, 2), (Format::Lengths, 1)] {
            let mut sink = UnixStreamSink::new("s", path.clone(), encoder(format));
            let mut tallies = Tallies::from([SinkTally { pending: 2, ..SinkTally::default() }]);
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
        let mut tallies = Tallies::from([SinkTally { pending: 2, ..SinkTally::default() }]);
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
