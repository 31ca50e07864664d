//! A UDP socket that owns its descriptor: made here or adopted, named, waited for and stopped. Its options are in
//! `options.rs`.
//!
//! A [`Socket`] knows its family and whether it makes trains. A descriptor from a service manager, the standard library
//! or another process does not say, so the kernel is asked, and what is no UDP socket is refused with words.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::addr::{self, Family};
use crate::refused::{Refused, RefusedCounter};
use crate::sys;

/// A UDP socket. All methods take `&self`: several threads may use it at once.
pub struct Socket {
    fd: OwnedFd,
    family: Family,
    /// Whether GRO is on or is just being switched on, so that a batch that cannot split trains refuses this socket.
    gro: AtomicU32,
    /// Where its filters count what they refuse, once it has one.
    refused: OnceLock<RefusedCounter>,
}

/// In [`Socket::gro`]: GRO is on. It never goes off again.
const GRO_ON: u32 = 1;
/// In [`Socket::gro`]: one more thread is about to switch it on.
const GRO_ATTEMPT: u32 = 2;

impl Socket {
    /// Makes a blocking socket that is closed on `exec`.
    pub fn new(family: Family) -> io::Result<Socket> {
        Socket::make(family, libc::SOCK_DGRAM, 0)
    }

    /// The same without waiting: a send that would wait ends with [`WouldBlock`](io::ErrorKind::WouldBlock). Whether a
    /// receive waits is what its [`Wait`](crate::Wait) says, on either kind of socket.
    pub fn nonblocking(family: Family) -> io::Result<Socket> {
        Socket::make(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)
    }

    /// Makes a socket that sends whole IP packets, headers included, and receives nothing; it does not wait. Needs
    /// `CAP_NET_RAW`. Connect it to the address that packets go to; its port does not matter.
    pub fn raw(family: Family) -> io::Result<Socket> {
        Socket::make(family, libc::SOCK_RAW | libc::SOCK_NONBLOCK, libc::IPPROTO_RAW)
    }

    /// Makes a socket that sends whole frames, all headers included, by the interface of this index, and receives
    /// nothing. Frames pass by the queueing discipline, so that a send says of each whether the driver took it. Needs
    /// `CAP_NET_RAW`. Give it to [`SendBatch`](crate::SendBatch) only, without addresses.
    pub fn of_frames(interface: u32) -> io::Result<Socket> {
        // Protocol 0: it receives nothing.
        let socket = Socket::of(sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?, Family::V4, false);
        sys::set_option_int(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        // `struct sockaddr_ll`, without protocol and hardware address.
        let mut name = [0; size_of::<libc::sockaddr_ll>()];
        name[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
        name[4..8].copy_from_slice(&interface.to_ne_bytes());
        sys::bind(socket.as_fd(), &name)?;
        Ok(socket)
    }

    fn make(family: Family, kind: c_int, protocol: c_int) -> io::Result<Socket> {
        let domain = match family {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        };
        Ok(Socket::of(sys::socket(domain, kind, protocol)?, family, false))
    }

    /// An existing socket whose family and GRO the caller knows.
    pub(crate) fn of(fd: OwnedFd, family: Family, gro: bool) -> Socket {
        Socket { fd, family, gro: AtomicU32::new(if gro { GRO_ON } else { 0 }), refused: OnceLock::new() }
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Binds the socket. An IPv4 address on an IPv6 socket is bound in its mapped form.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        sys::bind(self.as_fd(), addr::encode_for(self.family, address).as_bytes())
    }

    /// Fixes the peer: only its datagrams are received, and sending needs no address.
    ///
    /// Do not connect a member of a reuseport group: it makes the kernel's search slower for the whole life of the
    /// group.
    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        sys::connect(self.as_fd(), addr::encode_for(self.family, address).as_bytes())
    }

    /// The address the socket is bound to, with the port the kernel chose.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let mut name = [0; addr::NAME_BYTES];
        let name = sys::getsockname(self.as_fd(), &mut name)?;
        addr::decode(name).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "getsockname returned an address that is neither IPv4 nor IPv6")
        })
    }

    /// The family the socket was made with.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Wakes every thread that is blocked in a receive call on this socket, for good: from now on a receive call
    /// returns what is queued and then 0 instead of waiting. Datagrams that still arrive are still queued; to stop that
    /// too see [`refuse_arrivals`](Self::refuse_arrivals).
    ///
    /// The first 0 is not yet the end: a call that had found the queue empty and was about to wait returns 0 even if a
    /// datagram was queued in between. Receive once more, with [`Wait::No`](crate::Wait::No), before closing the
    /// socket.
    pub fn interrupt(&self) -> io::Result<()> {
        match sys::shutdown_read(self.as_fd()) {
            // The kernel says so of every socket without a peer, after the shutdown.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Whether it was [interrupted](Self::interrupt), here or by another process that has it.
    pub fn is_interrupted(&self) -> io::Result<bool> {
        sys::is_shut_down(self.as_fd())
    }

    /// Waits until a receive call would not block, `timeout` at most. `false`: the time is over.
    pub fn wait_readable(&self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            match sys::poll_readable(self.as_fd(), timeout.saturating_sub(start.elapsed())) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|events| events != 0),
            }
        }
    }

    /// What all of its [`SourceFilter`](crate::SourceFilter)s have refused; `None` before the first. The kernel counts
    /// each of these messages among its drops as well, a moment later: read the drops first.
    pub fn refused(&self) -> Option<Refused> {
        self.refused.get().map(RefusedCounter::read)
    }

    /// Where its filters count, made by `make` for the first of them.
    pub(crate) fn refused_counter(
        &self,
        make: impl FnOnce() -> io::Result<RefusedCounter>,
    ) -> io::Result<&RefusedCounter> {
        if let Some(counter) = self.refused.get() {
            return Ok(counter);
        }
        let made = make()?;
        Ok(self.refused.get_or_init(|| made))
    }

    /// Whether it may make trains.
    pub fn has_gro(&self) -> bool {
        self.gro.load(Ordering::Relaxed) != 0
    }

    /// Switches GRO on by `call`. It counts as on before the kernel begins, so that no train can come from a socket
    /// that seems to have none, and it stays on if it was on before, whatever the outcome.
    pub(crate) fn switch_gro_on(&self, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.gro.fetch_add(GRO_ATTEMPT, Ordering::Relaxed);
        let result = call();
        if result.is_ok() {
            self.gro.fetch_or(GRO_ON, Ordering::Relaxed);
        }
        self.gro.fetch_sub(GRO_ATTEMPT, Ordering::Relaxed);
        result
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Socket").field("fd", &self.fd.as_raw_fd()).field("family", &self.family).finish()
    }
}

/// Adopts a descriptor: a UDP socket over IPv4 or IPv6, or one as [`Socket::raw`] makes it. Its options stay as they
/// are.
///
/// Older kernels do not say whether the socket has GRO on. It then counts as on, so that only batches with
/// `control.gro` take the socket. Do not switch GRO on later by another descriptor of the same socket: trains would
/// then come out as datagrams that were never sent.
///
/// ```
/// # if cfg!(miri) { return Ok::<(), std::io::Error>(()) } // an interpreter has no sockets
/// use std::net::UdpSocket;
/// use std::os::fd::OwnedFd;
/// use mmsg::Socket;
///
/// let socket = Socket::try_from(OwnedFd::from(UdpSocket::bind("127.0.0.1:0")?))?;
/// let again = UdpSocket::from(OwnedFd::from(socket));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for anything else. The descriptor is closed then: pass a clone to keep it. Errors of the kernel are
/// returned unchanged.
impl TryFrom<OwnedFd> for Socket {
    type Error = io::Error;

    fn try_from(fd: OwnedFd) -> io::Result<Socket> {
        let ask = |option| sys::get_option_int(fd.as_fd(), libc::SOL_SOCKET, option);
        let domain = ask(libc::SO_DOMAIN).map_err(|error| no_socket(fd.as_raw_fd(), error))?;
        let (kind, protocol) = (ask(libc::SO_TYPE)?, ask(libc::SO_PROTOCOL)?);
        let family = match domain {
            libc::AF_INET => Some(Family::V4),
            libc::AF_INET6 => Some(Family::V6),
            _ => None,
        };
        match (family, kind, protocol) {
            (Some(family), libc::SOCK_DGRAM, libc::IPPROTO_UDP) => {
                let gro = has_gro(&fd)?;
                Ok(Socket::of(fd, family, gro))
            }
            // It receives nothing, so it makes no trains.
            (Some(family), libc::SOCK_RAW, libc::IPPROTO_RAW) => Ok(Socket::of(fd, family, false)),
            _ => Err(other_kind(fd.as_raw_fd(), domain, kind, protocol)),
        }
    }
}

/// Gives the socket away. What it has queued, its address and its options go with it.
impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> OwnedFd {
        socket.into_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn has_gro(fd: &OwnedFd) -> io::Result<bool> {
    match sys::get_option_int(fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO) {
        Ok(value) => Ok(value != 0),
        // It may be on: some kernels let it be set and not read.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(true),
        Err(error) => Err(error),
    }
}

fn no_socket(fd: RawFd, error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOTSOCK) {
        return error;
    }
    let text = format!("descriptor {fd} is not a socket: give one of a UDP socket over IPv4 or IPv6");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn other_kind(fd: RawFd, domain: c_int, kind: c_int, protocol: c_int) -> io::Error {
    let what = match (domain, kind) {
        (libc::AF_UNIX, _) => "a Unix socket".to_owned(),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => "a TCP socket".to_owned(),
        _ => format!("a socket of domain {domain}, type {kind} and protocol {protocol}"),
    };
    let text = format!("descriptor {fd} is {what}: give one of a UDP socket over IPv4 or IPv6");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
