//! Sockets that come from elsewhere, from a service manager, the standard library or another process, and sockets that
//! go there.
//!
//! A [`Socket`] knows its family and whether it makes trains; a bare descriptor does not say, so the kernel is asked.
//! What is no UDP socket is refused here, with words, before the first strange error of a receive call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use libc::c_int;

use crate::addr::Family;
use crate::socket::Socket;
use crate::sys;

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
