//! A stream to a peer, in plain text or by TLS. It counts what the peer has not acknowledged in bytes of plain text.
//!
//! Of a TLS record it is known only when all of it is acknowledged. So after each piece that is enciphered its end is
//! noted, in both countings.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, ProtocolVersion};

/// How much plain text one record of TLS holds.
const RECORD_BYTES: usize = 16 << 10;

/// How long a peer is waited for that says nothing after the handshake.
pub(crate) const VERDICT: Duration = Duration::from_millis(500);

/// The memory of TLS for one connection, about: what it has read and is to write.
pub(crate) const TLS_MEMORY_BYTES: usize = 256 << 10;

/// How often it is read in a row at most: a peer that talks without end holds up nothing.
pub(super) const READS_MAX: usize = 16;

/// How much is read at once.
const READ_BYTES: usize = 4 << 10;

/// So much is enciphered before the kernel has taken it.
const PENDING_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct PeerStream {
    pub(crate) stream: TcpStream,
    tls: Option<Box<TlsLayer>>,
}

#[derive(Debug)]
struct TlsLayer {
    connection: ClientConnection,
    /// Enciphered, and not yet taken by the kernel.
    pending: Vec<u8>,
    /// How many bytes were enciphered, as they are and as they were before.
    enciphered: u64,
    plain: u64,
    /// Ends of pieces in both, of which the peer has not acknowledged all.
    ends: VecDeque<(u64, u64)>,
    /// So much plain text it has.
    acknowledged: u64,
    /// When the handshake was over here.
    finished: Option<Instant>,
}

impl PeerStream {
    pub(super) fn new(stream: TcpStream, connection: Option<ClientConnection>) -> Self {
        let layer = |connection| {
            let (pending, ends) = (Vec::new(), VecDeque::new());
            Box::new(TlsLayer { connection, pending, enciphered: 0, plain: 0, ends, acknowledged: 0, finished: None })
        };
        Self { stream, tls: connection.map(layer) }
    }

    /// Goes on with the handshake, as far as it can now. Whether it is over; an error if it has failed.
    ///
    /// In TLS 1.3 it is over here before the peer has judged our certificate, or missed one: what is written at once
    /// would be acknowledged and thrown away. So the first ticket is waited for, which a peer sends when it is content,
    /// and where none comes [`VERDICT`].
    pub(super) fn shake_hands(&mut self, now: Instant) -> io::Result<bool> {
        let Self { stream, tls: Some(tls) } = self else { return Ok(true) };
        for _ in 0..READS_MAX {
            tls.encipher(stream)?;
            if !tls.connection.is_handshaking() {
                let finished = *tls.finished.get_or_insert(now);
                let is_judged = tls.connection.protocol_version() != Some(ProtocolVersion::TLSv1_3)
                    || tls.connection.tls13_tickets_received() > 0;
                if is_judged || now.saturating_duration_since(finished) >= VERDICT {
                    return Ok(true);
                }
            }
            match tls.take_in(stream) {
                Ok(0) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its program has ended the handshake"));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    // The peer is told why.
                    let _ = tls.encipher(stream);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    /// Writes a part, as far as there is room for it now.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { stream, tls } = self;
        let Some(tls) = tls else { return stream.write(bytes) };
        tls.encipher(stream)?;
        if tls.pending.len() >= PENDING_BYTES_MAX {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let piece = &bytes[..bytes.len().min(RECORD_BYTES)];
        tls.connection.writer().write_all(piece)?;
        tls.plain += piece.len() as u64;
        tls.encipher(stream)?;
        tls.ends.push_back((tls.enciphered, tls.plain));
        Ok(piece.len())
    }

    /// Gives the kernel what was enciphered and found no room, as far as it takes it now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Self { stream, tls } = self;
        tls.as_mut().map_or(Ok(()), |tls| tls.encipher(stream))
    }

    /// Reads some of what the peer says, which is not of interest, and writes what TLS answers. 0 when the peer has
    /// ended the connection.
    pub(super) fn read(&mut self) -> io::Result<usize> {
        let Self { stream, tls } = self;
        let Some(tls) = tls else { return stream.read(&mut [0; READ_BYTES]) };
        let count = tls.take_in(stream)?;
        tls.encipher(stream)?;
        Ok(count)
    }

    /// How many bytes of plain text the peer has not acknowledged.
    pub(super) fn unacknowledged_bytes(&mut self) -> io::Result<u64> {
        let waiting = mmsg::unacknowledged_bytes(&self.stream)?;
        let Some(tls) = &mut self.tls else { return Ok(waiting) };
        let has = (tls.enciphered - tls.pending.len() as u64).saturating_sub(waiting);
        while let Some((_, plain)) = tls.ends.front().copied().filter(|(end, _)| *end <= has) {
            tls.ends.pop_front();
            tls.acknowledged = plain;
        }
        Ok(tls.plain - tls.acknowledged)
    }

    /// Says to the peer that no more comes. Nothing waits for it.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
            let _ = tls.encipher(&self.stream);
        }
    }
}

impl TlsLayer {
    /// Takes in what the peer has sent; 0 when it has ended the connection.
    fn take_in(&mut self, mut stream: &TcpStream) -> io::Result<usize> {
        let count = self.connection.read_tls(&mut stream)?;
        let state = self.connection.process_new_packets().map_err(io::Error::other)?;
        // TLS takes in no more while there is much that was not read.
        while self.connection.reader().read(&mut [0; READ_BYTES]).is_ok_and(|said| said > 0) {}
        Ok(if state.peer_has_closed() { 0 } else { count })
    }

    /// Gives the kernel what TLS has to say, as far as it takes it now.
    fn encipher(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.enciphered += self.connection.write_tls(&mut self.pending)? as u64;
        }
        while !self.pending.is_empty() {
            match stream.write(&self.pending) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
