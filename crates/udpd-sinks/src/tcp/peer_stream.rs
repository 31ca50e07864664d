//! A stream to a peer, in plain text or by TLS, and with RELP in it where the peer answers.
//!
//! It counts what the peer has not acknowledged in bytes of plain text. Of a TLS record it is known only when all of it
//! is acknowledged. So after each piece that is enciphered its end is noted, in both countings.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, ProtocolVersion};

use super::relp::{RelpAnswer, RelpSession};

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

const NO_SESSION: &str = "its program has closed the connection instead of opening a session of RELP";

#[derive(Debug)]
pub(crate) struct PeerStream {
    pub(crate) stream: TcpStream,
    tls: Option<Box<TlsLayer>>,
    relp: Option<Box<RelpSession>>,
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
    pub(super) fn new(stream: TcpStream, connection: Option<ClientConnection>, is_relp: bool) -> Self {
        let layer = |connection| {
            let (pending, ends) = (Vec::new(), VecDeque::new());
            Box::new(TlsLayer { connection, pending, enciphered: 0, plain: 0, ends, acknowledged: 0, finished: None })
        };
        Self { stream, tls: connection.map(layer), relp: is_relp.then(|| Box::new(RelpSession::new())) }
    }

    /// Goes on with the handshakes, as far as it can now. Whether they are over; an error if one has failed.
    pub(super) fn shake_hands(&mut self, now: Instant) -> io::Result<bool> {
        Ok(self.secure(now)? && self.open_session()?)
    }

    /// Asks the server for a session of RELP. Whether it has opened one.
    fn open_session(&mut self) -> io::Result<bool> {
        let Some(opening) = self.relp.as_mut().map(|relp| relp.opening()) else { return Ok(true) };
        if let Some(opening) = opening
            && self.write(opening.as_bytes())? < opening.len()
        {
            return Err(io::ErrorKind::WriteZero.into());
        }
        for _ in 0..READS_MAX {
            if self.relp.as_ref().is_none_or(|relp| relp.is_open) {
                return Ok(true);
            }
            match self.read(&mut |_| false) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, NO_SESSION)),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(false),
                    io::ErrorKind::UnexpectedEof => return Err(io::Error::new(error.kind(), NO_SESSION)),
                    _ => return Err(error),
                },
            }
        }
        Ok(false)
    }

    /// Why its handshakes have taken too long.
    pub(super) fn delay(&self) -> io::Error {
        match self.relp.as_ref().is_some_and(|relp| relp.is_begun) {
            true => io::Error::new(io::ErrorKind::InvalidData, "it is silent when a session of RELP is to be opened"),
            false => io::ErrorKind::TimedOut.into(),
        }
    }

    /// The handshake of TLS.
    ///
    /// In TLS 1.3 it is over here before the peer has judged our certificate, or missed one: what is written at once
    /// would be acknowledged and thrown away. So the first ticket is waited for, which a peer sends when it is content,
    /// and where none comes [`VERDICT`].
    fn secure(&mut self, now: Instant) -> io::Result<bool> {
        let Self { stream, tls: Some(tls), .. } = self else { return Ok(true) };
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
            // A peer says nothing before it is asked.
            match tls.take_in(stream, &mut |_| Ok(())) {
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
        let Self { stream, tls, .. } = self;
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
        let Self { stream, tls, .. } = self;
        tls.as_mut().map_or(Ok(()), |tls| tls.encipher(stream))
    }

    /// Reads some of what the peer says, which is of interest in RELP only, and writes what TLS answers. 0 when the
    /// peer has ended the connection.
    pub(super) fn read(&mut self, answer: &mut dyn FnMut(RelpAnswer<'_>) -> bool) -> io::Result<usize> {
        let Self { stream, tls, relp } = self;
        let mut heard = |said: &[u8]| relp.as_mut().map_or(Ok(()), |relp| relp.hear(said, answer));
        let Some(tls) = tls else {
            let mut said = [0; READ_BYTES];
            let count = stream.read(&mut said)?;
            return heard(&said[..count]).map(|()| count);
        };
        let count = tls.take_in(stream, &mut heard)?;
        tls.encipher(stream)?;
        Ok(count)
    }

    /// How many bytes of plain text the peer has not acknowledged: all, where only its answers count.
    pub(super) fn unacknowledged_bytes(&mut self) -> io::Result<u64> {
        let waiting = mmsg::unacknowledged_bytes(&self.stream)?;
        let is_answered = self.relp.is_some();
        let Some(tls) = &mut self.tls else { return Ok(if is_answered { u64::MAX } else { waiting }) };
        let has = (tls.enciphered - tls.pending.len() as u64).saturating_sub(waiting);
        while let Some((_, plain)) = tls.ends.front().copied().filter(|(end, _)| *end <= has) {
            tls.ends.pop_front();
            tls.acknowledged = plain;
        }
        Ok(if is_answered { u64::MAX } else { tls.plain - tls.acknowledged })
    }

    /// Says to the peer that no more comes. Nothing waits for it. A session of RELP has an end only where every record
    /// is answered.
    pub(super) fn close(&mut self, is_all_answered: bool) {
        if let Some(closing) = self.relp.as_ref().filter(|_| is_all_answered).map(|relp| relp.closing()) {
            let _ = self.write(closing.as_bytes());
        }
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
            let _ = tls.encipher(&self.stream);
        }
    }
}

impl TlsLayer {
    /// Takes in what the peer has sent; 0 when it has ended the connection.
    fn take_in(&mut self, mut stream: &TcpStream, heard: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<usize> {
        let count = self.connection.read_tls(&mut stream)?;
        let state = self.connection.process_new_packets().map_err(io::Error::other)?;
        // TLS takes in no more while there is much that was not read.
        let mut said = [0; READ_BYTES];
        while let Ok(count @ 1..) = self.connection.reader().read(&mut said) {
            heard(&said[..count])?;
        }
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
