//! Finding a destination that accepts a connection: one address after the other, never waiting for any.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::peer_stream::PeerStream;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt};

/// What TLS is spoken with, and for which name the certificate of each destination has to be.
pub(crate) type TlsPeers = (Arc<ClientConfig>, Arc<[ServerName<'static>]>);

/// A destination that has accepted a connection: by its place among all, and at which of its addresses.
#[derive(Debug)]
pub(crate) struct FoundPeer {
    pub(crate) place: usize,
    pub(crate) address: SocketAddr,
    pub(crate) stream: PeerStream,
}

/// A connection that is being made.
#[derive(Debug)]
struct Attempt {
    peer: FoundPeer,
    limit: Instant,
}

/// The addresses that are still to be tried, by the places of their destinations.
#[derive(Debug)]
pub(crate) struct PeerSearch {
    left: VecDeque<(usize, SocketAddr)>,
    tls: Option<TlsPeers>,
    attempt: Option<Attempt>,
    /// Of the first that failed.
    error: Option<(usize, io::Error)>,
    timeout: Duration,
    is_relp: bool,
}

#[derive(Debug)]
pub(crate) enum SearchState {
    GoesOn,
    Found(FoundPeer),
    /// None accepts; of which destination the error is.
    Failed(usize, io::Error),
}

impl PeerSearch {
    pub(crate) fn new(addresses: VecDeque<(usize, SocketAddr)>, tls: Option<TlsPeers>, timeout: Duration) -> Self {
        Self { left: addresses, tls, attempt: None, error: None, timeout, is_relp: false }
    }

    /// The same for a peer that has to open a session of RELP.
    pub(super) fn of_relp(mut self, is_relp: bool) -> Self {
        self.is_relp = is_relp;
        self
    }

    /// The same, where an address could not be found out.
    pub(super) fn failed_at(mut self, error: Option<(usize, io::Error)>) -> Self {
        self.error = error;
        self
    }

    /// Takes a look, and begins the next attempt where one has failed.
    pub(crate) fn look(&mut self, now: Instant) -> SearchState {
        loop {
            if let Some(mut attempt) = self.attempt.take() {
                let place = attempt.peer.place;
                match is_connected(&mut attempt.peer, now) {
                    Ok(true) => return SearchState::Found(attempt.peer),
                    Ok(false) if now < attempt.limit => {
                        self.attempt = Some(attempt);
                        return SearchState::GoesOn;
                    }
                    Ok(false) => self.note(place, attempt.peer.stream.delay()),
                    Err(error) => self.note(place, error),
                }
            }
            let Some((place, address)) = self.left.pop_front() else {
                let (place, error) = self.error.take().unwrap_or((0, io::ErrorKind::NotFound.into()));
                return SearchState::Failed(place, error);
            };
            match begin(address, self.timeout).and_then(|stream| self.with_tls(place, stream)) {
                Ok(stream) => {
                    let peer = FoundPeer { place, address, stream };
                    self.attempt = Some(Attempt { peer, limit: now + self.timeout });
                }
                Err(error) => self.note(place, error),
            }
        }
    }

    /// Waits until a look may find something else, at most so long.
    #[cfg(feature = "http")]
    pub(crate) fn wait(&self, limit: Duration) {
        if let Some(attempt) = &self.attempt {
            let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
            // An error is met by the next look.
            let _ = is_ready(&attempt.peer.stream.stream, PollFlags::POLLOUT, limit);
        }
    }

    fn with_tls(&self, place: usize, stream: TcpStream) -> io::Result<PeerStream> {
        let connection = match &self.tls {
            None => None,
            Some((config, names)) => {
                let connection = ClientConnection::new(Arc::clone(config), names[place].clone());
                Some(connection.map_err(io::Error::other)?)
            }
        };
        Ok(PeerStream::new(stream, connection, self.is_relp))
    }

    fn note(&mut self, place: usize, error: io::Error) {
        self.error.get_or_insert((place, error));
    }
}

/// Whether the handshake is over; an error if it has failed.
pub(super) fn is_connected(FoundPeer { address, stream: peer, .. }: &mut FoundPeer, now: Instant) -> io::Result<bool> {
    if !is_ready(&peer.stream, PollFlags::POLLOUT, PollTimeout::ZERO)? {
        return Ok(false);
    }
    peer.stream.take_error()?.map_or(Ok(()), Err)?;
    // A port of this host that is free is one of those that the kernel may give to the connection itself.
    if peer.stream.local_addr()? == *address {
        return Err(Errno::ECONNREFUSED.into());
    }
    peer.shake_hands(now)
}

/// Waits until the stream is ready for this or has failed, at most so long.
pub(super) fn is_ready(stream: &TcpStream, wanted: PollFlags, limit: PollTimeout) -> io::Result<bool> {
    match poll(&mut [PollFd::new(stream.as_fd(), wanted)], limit) {
        Err(Errno::EINTR) => Ok(false),
        found => Ok(found? > 0),
    }
}

/// Begins to connect. A peer that answers nothing for so long will be given up.
fn begin(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    // Without them a peer that is gone without a word is noticed after a quarter of an hour, or never.
    let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(3);
    setsockopt(&socket, sockopt::TcpUserTimeout, &seconds.saturating_mul(1000))?;
    setsockopt(&socket, sockopt::KeepAlive, &true)?;
    setsockopt(&socket, sockopt::TcpKeepIdle, &(seconds / 3))?;
    setsockopt(&socket, sockopt::TcpKeepInterval, &(seconds / 3))?;
    // udpd writes many records at once, and the last of them is not to wait.
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
