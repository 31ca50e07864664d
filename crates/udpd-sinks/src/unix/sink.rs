//! A Unix socket on which another process listens: datagrams as messages, or records in a stream.
//!
//! Without a spill a peer that is not there costs its own datagrams and nothing else: they count as failed, and the
//! peer is looked for four times a second. A peer that is there and does not read makes its consumer wait, and then
//! `when_full` decides; each single wait is short, so that what it has taken by then counts as delivered even if it
//! never reads again and the daemon ends. A datagram that was received in part fails if the format cannot mark it,
//! because a reader could not tell it from a whole one.
//!
//! With a spill nothing fails because its peer is not there or does not read. A peer that takes nothing for a moment
//! counts as one that is gone, but its socket stays. In a stream it may have taken a part of a record by then. The rest
//! is kept and goes first when it reads again; the datagram stays in the spill until that is written, and is sent whole
//! if there is another connection by then.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mmsg::Datagram;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::peer::UnixPeer;
use udpd_base::format::{Encoder, Format};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{SinkTally, Tallies};
use udpd_base::os::threads;
use udpd_base::sink::outbox::{Outbox, OutboxDestination};
use udpd_base::sink::{ConsumerFeeders, Sink, deliver, fail};
use udpd_spill::spilling::SpillableSink;

/// How long a peer that takes nothing is waited for at once. With a spill it then counts as one that is gone; without
/// one what it has taken until then is counted, and it is waited for again.
const PEER_WAIT: Duration = Duration::from_millis(100);

/// One datagram, one message.
#[derive(Debug)]
pub(super) struct UnixDatagramSink {
    peer: UnixPeer<UnixDatagram>,
    /// What the peer has no room for fails at once.
    never_waits: bool,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendOutcome {
    Delivered,
    /// The peer is gone, or has taken nothing for a moment and is not waited for, because there is a spill.
    Later,
    /// It can never be sent.
    Failed,
}

impl UnixDatagramSink {
    /// A sink that sends to the socket at `path`, which need not be there yet.
    pub(super) fn new(sink: &str, path: PathBuf, spills: bool) -> Self {
        Self { peer: UnixPeer::new(sink, path, spills, connect_patiently), never_waits: false }
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

    /// Sends the datagrams of a batch. With a spill the places of those that the peer does not take now go to `left`,
    /// and none is sent after one of them; without one they fail.
    fn send_batch(&mut self, batch: &LaneBatch, tallies: &mut Tallies, mut left: Option<&mut Vec<usize>>) {
        let mut takes = true;
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            let outcome = match (takes, datagram.is_truncated()) {
                (false, _) => SendOutcome::Later,
                (true, true) => {
                    self.peer.log_truncated();
                    SendOutcome::Failed
                }
                (true, false) => self.send(datagram.payload(), tallies),
            };
            let tally = &mut tallies[batch.listener];
            match (outcome, &mut left) {
                (SendOutcome::Delivered, _) => deliver(tally, 1),
                (SendOutcome::Later, Some(left)) => {
                    takes = false;
                    left.push(place);
                }
                (SendOutcome::Later, None) | (SendOutcome::Failed, _) => fail(tally, 1),
            }
        }
        if takes && left.is_some() {
            self.peer.note_taken();
        }
    }

    /// Sends a message. A peer that has just come back gets the one that found it gone. Without a spill a peer that is
    /// there and takes nothing is waited for.
    fn send(&mut self, payload: &[u8], tallies: &mut Tallies) -> SendOutcome {
        loop {
            let Some(socket) = self.peer.find() else { return SendOutcome::Later };
            match threads::blocking(|| socket.send(payload)) {
                Ok(_) => return SendOutcome::Delivered,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.never_waits => {
                    self.peer.log_message_error(nix::libc::EAGAIN, || {
                        "has no room, and an inline sink never waits; such datagrams count as sink_error; raise \
                         sysctl net.unix.max_dgram_qlen before its reader binds, make that reader faster, or remove \
                         inline"
                            .to_owned()
                    });
                    return SendOutcome::Failed;
                }
                Err(error) if is_about_the_message(&error) => {
                    self.peer.log_message_error(error.raw_os_error().unwrap_or_default(), || {
                        format!(
                            "the kernel does not take a message of {} bytes: {error}; such datagrams count as \
                             sink_error; see sysctl net.core.wmem_default, which bounds a message",
                            payload.len()
                        )
                    });
                    return SendOutcome::Failed;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.peer.spills() => {
                    self.peer.log_stuck();
                    return SendOutcome::Later;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if threads::is_given_up() {
                        return SendOutcome::Failed;
                    }
                    // What it has taken before counts, should it take nothing more before the end.
                    tallies.publish();
                }
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
        self.send_batch(batch, tallies, None);
    }
}

impl SpillableSink for UnixDatagramSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        self.send_batch(batch, tallies, Some(left));
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}

#[derive(Debug)]
pub(super) struct UnixStreamSink {
    peer: UnixPeer<PeerStream>,
    outbox: Outbox,
    marks_truncation: bool,
    /// With a spill, the records in the outbox: the place of each datagram in its batch, and where its record ends.
    gathered: Vec<(usize, usize)>,
    /// With a spill, what is left of the record that the peer has taken a part of.
    cut: Vec<u8>,
}

/// A connection. What it has taken of a record cannot be taken back, but the connection ends with it, so that no reader
/// takes what follows for the rest.
#[derive(Debug)]
struct PeerStream(UnixStream);

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
    pub(super) fn new(sink: &str, path: PathBuf, encoder: Encoder, spills: bool) -> Self {
        let (peer, marks_truncation) =
            (UnixPeer::new(sink, path, spills, connect_at_once), encoder.format() != Format::Lengths);
        Self { peer, outbox: Outbox::new(encoder), marks_truncation, gathered: Vec::new(), cut: Vec::new() }
    }

    /// Adds the record of a datagram to the outbox. Returns false when the datagram fails.
    #[inline]
    fn push(&mut self, batch: &LaneBatch, datagram: &Datagram<'_>, tallies: &mut Tallies) -> bool {
        let is_whole = self.marks_truncation || !datagram.is_truncated();
        if is_whole {
            self.outbox.push(batch, datagram);
        } else {
            self.peer.log_truncated();
            fail(&mut tallies[batch.listener], 1);
        }
        is_whole
    }
}

impl Sink for UnixStreamSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            if self.push(batch, &datagram, tallies) && self.outbox.is_full() {
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

impl UnixStreamSink {
    /// Writes the rest of the record that the peer has a part of. False when it still has not all of it.
    fn write_cut(&mut self) -> bool {
        while !self.cut.is_empty() {
            let Some(stream) = self.peer.find() else { return false };
            match threads::blocking(|| stream.0.write(&self.cut)) {
                Ok(0) => return false,
                Ok(written) => drop(self.cut.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.note_failure(&error);
                    return false;
                }
            }
        }
        true
    }

    /// What the peer has a part of goes with its connection.
    fn note_failure(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::WouldBlock {
            return self.peer.log_stuck();
        }
        self.cut.clear();
        self.peer.lose(error);
    }

    /// Writes what is gathered; the places of what is not written go to `left`. Whether all of it is.
    fn write_gathered(&mut self, tally: &mut SinkTally, left: &mut Vec<usize>) -> bool {
        let (written, outcome) = match self.peer.find() {
            None => (0, Err(io::ErrorKind::NotConnected.into())),
            Some(stream) => self.outbox.write_part(stream),
        };
        let whole = self.gathered.iter().take_while(|(_, end)| *end <= written).count();
        deliver(tally, whole as u64);
        let rest = &self.gathered[whole..];
        left.extend(rest.iter().map(|(place, _)| place));
        if let (Some((_, end)), Err(error)) = (rest.first(), &outcome) {
            let begin = whole.checked_sub(1).map_or(0, |last| self.gathered[last].1);
            if written > begin && error.kind() == io::ErrorKind::WouldBlock {
                self.cut.extend_from_slice(&self.outbox.bytes()[written..*end]);
            }
            if error.kind() != io::ErrorKind::NotConnected {
                self.note_failure(error);
            }
        }
        self.gathered.clear();
        self.outbox.forget();
        outcome.is_ok()
    }
}

impl SpillableSink for UnixStreamSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        self.outbox.begin_batch();
        // The first datagram is the one that the peer has a part of.
        let mut is_cut = !self.cut.is_empty();
        let mut takes = true;
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if takes && std::mem::take(&mut is_cut) {
                takes = self.write_cut();
                if takes {
                    deliver(&mut tallies[batch.listener], 1);
                    continue;
                }
            }
            if !takes {
                left.push(place);
                continue;
            }
            if self.push(batch, &datagram, tallies) {
                self.gathered.push((place, self.outbox.bytes().len()));
                if self.outbox.is_full() {
                    takes = self.write_gathered(&mut tallies[batch.listener], left);
                }
            }
        }
        if takes && !self.gathered.is_empty() {
            takes = self.write_gathered(&mut tallies[batch.listener], left);
        }
        if takes {
            self.peer.note_taken();
        }
    }

    fn forget_left(&mut self) {
        if !std::mem::take(&mut self.cut).is_empty() {
            // So a reader does not take what follows for the rest of it.
            self.peer.socket = None;
        }
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        Sink::go_on_for(self, feeders);
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
        let mut sink = UnixDatagramSink::new("s", path.clone(), false);
        let tally = accept(&mut sink, &[b"no peer", b"there"]);
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
            let mut sink = UnixStreamSink::new("s", path, encoder(format), false);
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
    fn a_peer_that_accepts_no_connection_is_not_waited_for() {
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
        let mut sink = UnixStreamSink::new("s", path, encoder(Format::Lines), false);
        let tally = accept(&mut sink, &[b"no peer accepts"]);
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
        let (seen, tally) = stuck(UnixDatagramSink::new("s", path, false), || drop(peer));
        assert_eq!((seen, tally.delivered), (tally.delivered, seen));
        assert!(tally.dropped.sink_error > 0, "{tally:?}");
        for format in [Format::Lines, Format::Lengths] {
            let path = directory.path().join(format!("{format:?}"));
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
            let sink = UnixStreamSink::new("s", path, encoder(format), false);
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
            let mut sink = UnixStreamSink::new("s", path.clone(), encoder(format), false);
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
        UnixDatagramSink::new("s", messages, false).accept(&cut, &mut tallies);
        assert_eq!((tallies[0].delivered, tallies[0].dropped.sink_error), (1, 1));
    }

    #[test]
    fn a_stream_begins_with_a_whole_record_on_every_connection() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("peer");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let mut sink = UnixStreamSink::new("s", path, encoder(Format::Lines), false);
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
