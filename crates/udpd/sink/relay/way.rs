//! The way to a destination: a socket connected to it, which follows the network.
//!
//! A connected socket keeps the source address that it had at first. When the host gets another one, or another
//! interface becomes the way there, an old socket goes on with an address that is wrong or not there any more. So while
//! there is something to send a second one is made once a second, and takes the place of the first when the kernel
//! gives it another address. Where the destination is, `aim` is asked as often. A destination without any way, such as
//! at boot, is no error: its datagrams fail until there is one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mmsg::{Family, Socket};
use nix::libc;

use super::aim::Aim;
use super::error::{FIND_WAY, MAKE_RAW_SOCKET};

/// How often the way is looked at.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1);

/// What a send buffer should hold while the device is busy.
const SEND_BUFFER_BYTES: usize = 1 << 21;

/// As small as the kernel makes it.
const RECEIVE_BUFFER_BYTES: usize = 1;

/// A connected socket, and the address of this host that it sends from.
#[derive(Debug)]
struct Open {
    socket: Socket,
    from: IpAddr,
    mtu_bytes: usize,
}

/// The way there, or none yet.
#[derive(Debug)]
pub(super) struct Way {
    aim: Aim,
    /// Where the destination was when that was last known.
    address: Option<SocketAddr>,
    /// By a raw socket, which takes whole packets.
    is_raw: bool,
    open: Option<Open>,
    reviewed: Instant,
}

/// What looking at the way has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Same,
    /// The destination is there now.
    To(SocketAddr),
    /// Packets leave from this address now.
    From(IpAddr),
    /// There is a way again.
    Opened,
}

impl Way {
    /// Looks for the way. That there is none now is not an error; that it may not be used or never could be is one.
    pub(super) fn new(aim: Aim, is_raw: bool) -> Result<(Self, Option<io::Error>), (&'static str, io::Error)> {
        let mut way = Self { aim, address: None, is_raw, open: None, reviewed: Instant::now() };
        let found = way.aim.now(None).map_err(|error| (FIND_WAY, error)).and_then(|address| {
            way.address = Some(address);
            way.find(address)
        });
        match found {
            Ok(open) => way.open = Some(open),
            Err((_, error)) if way.may_come(&error) => return Ok((way, Some(error))),
            Err(refusal) => return Err(refusal),
        }
        Ok((way, None))
    }

    /// Whether there is no way just now. What a name means may be wrong today and right tomorrow.
    fn may_come(&self, error: &io::Error) -> bool {
        is_for_a_while(error) || (self.aim.moves() && error.kind() != io::ErrorKind::PermissionDenied)
    }

    /// Where the destination is, if anybody knows.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What to send on, if there is a way.
    pub(super) fn socket(&self) -> Option<&Socket> {
        self.open.as_ref().map(|open| &open.socket)
    }

    /// The longest packet that the way takes whole; of no way any.
    pub(super) fn mtu_bytes(&self) -> usize {
        self.open.as_ref().map_or(usize::MAX, |open| open.mtu_bytes)
    }

    /// Looks at the way again, now and then.
    pub(super) fn review(&mut self) -> Change {
        if self.reviewed.elapsed() < REVIEW_INTERVAL {
            return Change::Same;
        }
        self.reviewed = Instant::now();
        // While nobody knows better it is where it was.
        let Ok(address) = self.aim.now(self.address) else { return Change::Same };
        if self.address != Some(address) {
            self.address = Some(address);
            // Whoever has the old address now is somebody else.
            self.open = self.find(address).ok();
            return Change::To(address);
        }
        // Without a way now the old socket is not worse than none, and says why when it is used.
        let Ok(found) = self.find(address) else { return Change::Same };
        match &mut self.open {
            Some(open) if open.from == found.from => {
                open.mtu_bytes = found.mtu_bytes;
                Change::Same
            }
            open => {
                let from = found.from;
                if open.replace(found).is_some() { Change::From(from) } else { Change::Opened }
            }
        }
    }

    /// A new socket on the way there.
    fn find(&self, address: SocketAddr) -> Result<Open, (&'static str, io::Error)> {
        let failed = |operation| move |error| (operation, error);
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        // A raw socket tells neither its address nor what the way takes, so an ordinary one is asked.
        let probe = Socket::nonblocking(family).map_err(failed("make a socket"))?;
        let raw = if self.is_raw { Some(Socket::raw(family).map_err(failed(MAKE_RAW_SOCKET))?) } else { None };
        probe.connect(address).map_err(failed(FIND_WAY))?;
        if let Some(raw) = &raw {
            raw.connect(address).map_err(failed(FIND_WAY))?;
        }
        let from = probe.local_addr().map_err(failed("see the own address"))?.ip();
        let mtu_bytes = probe.path_mtu().map_err(failed("see the MTU"))?;
        let socket = raw.unwrap_or(probe);
        // So that a datagram is not called delivered that a full queue of the device has thrown away.
        socket.set_report_errors(true).map_err(failed("hear of errors"))?;
        // Nobody reads what comes back: neither datagrams nor the records of errors are to take up memory.
        let _ = socket.set_receive_buffer(RECEIVE_BUFFER_BYTES);
        // A smaller buffer only means that the queue is tried again more often.
        let _ = socket.set_send_buffer(SEND_BUFFER_BYTES);
        Ok(Open { socket, from, mtu_bytes })
    }
}

/// Whether there is no way just now: an interface is down, or has no address or route yet.
fn is_for_a_while(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::ENETDOWN | libc::ENODEV)
    )
}
