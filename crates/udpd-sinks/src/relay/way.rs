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
    /// Nobody waits for a resolver here: the way to a name is looked for by [`Way::begin`].
    pub(super) fn new(aim: Aim, is_raw: bool) -> Result<(Self, Option<io::Error>), (&'static str, io::Error)> {
        let mut way = Self { aim, address: None, is_raw, open: None, reviewed: Instant::now() };
        if way.aim.is_named() {
            return way.check_right().map(|()| (way, None));
        }
        match way.look() {
            Ok(()) => Ok((way, None)),
            Err((_, error)) if way.may_come(&error) => Ok((way, Some(error))),
            Err(refusal) => Err(refusal),
        }
    }

    /// Waits for the first answer where it leads to a name, and no longer than until `limit`. Why there is no way then.
    pub(super) fn begin(&mut self, limit: Instant) -> Option<io::Error> {
        if !self.aim.is_named() {
            return None;
        }
        self.aim.settle(limit);
        self.look().err().map(|(_, error)| error)
    }

    /// Whoever may make a raw socket may make one later.
    fn check_right(&self) -> Result<(), (&'static str, io::Error)> {
        match self.is_raw.then(|| Socket::raw(Family::V4)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Err((MAKE_RAW_SOCKET, error)),
            _ => Ok(()),
        }
    }

    /// Takes the first address that there is a way to.
    fn look(&mut self) -> Result<(), (&'static str, io::Error)> {
        let addresses = self.aim.now(None).map_err(|error| (FIND_WAY, error))?;
        self.address = addresses.first().copied();
        let (address, open) = self.find_first(&addresses)?;
        (self.address, self.open) = (Some(address), Some(open));
        Ok(())
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
        let Ok(addresses) = self.aim.now(self.address) else { return Change::Same };
        let Ok((address, found)) = self.find_first(&addresses) else {
            let is_elsewhere = self.address.is_none_or(|own| !addresses.contains(&own));
            let first = addresses.first().copied().filter(|_| is_elsewhere);
            return first.map_or(Change::Same, |first| self.go_without_way(first));
        };
        if self.address.replace(address) != Some(address) {
            self.open = Some(found);
            return Change::To(address);
        }
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

    /// There is no way to where it is now. Where it still is where it was, the old socket is not worse than none, and
    /// says why when it is used; but whoever has another old address now is somebody else.
    fn go_without_way(&mut self, first: SocketAddr) -> Change {
        (self.address, self.open) = (Some(first), None);
        Change::To(first)
    }

    /// The first of several addresses that there is a way to, or what is in the way of the first.
    fn find_first(&self, addresses: &[SocketAddr]) -> Result<(SocketAddr, Open), (&'static str, io::Error)> {
        let mut refusal = None;
        for &address in addresses {
            match self.find(address) {
                Ok(open) => return Ok((address, open)),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.unwrap_or_else(|| (FIND_WAY, io::ErrorKind::NotFound.into())))
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

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::os::names::Name;

    #[test]
    fn of_the_addresses_of_a_name_the_first_that_there_is_a_way_to_is_sent_to_and_left_when_there_is_none() {
        // No socket of ours may be connected to everybody at once, on any host.
        let addresses = ["255.255.255.255:9", "127.0.0.1:9", "127.0.0.2:9"];
        let [nowhere, near, other] = addresses.map(|text| text.parse().expect(text));
        let name = Name::known(vec![nowhere, near]);
        let (mut way, none) = Way::new(Aim::Named(name.clone()), false).expect("no error");
        assert!(none.is_none() && way.socket().is_none(), "it is looked for when it is begun");
        assert!(way.begin(Instant::now()).is_none());
        assert_eq!((way.address(), way.socket().is_some()), (Some(near), true));
        let review = |way: &mut Way, addresses: Vec<SocketAddr>| {
            name.set(addresses);
            way.reviewed -= REVIEW_INTERVAL;
            way.review()
        };
        assert_eq!(review(&mut way, vec![nowhere, other, near]), Change::Same, "it stays where there is a way");
        assert_eq!(review(&mut way, vec![nowhere, other]), Change::To(other));
        assert_eq!(review(&mut way, vec![nowhere]), Change::To(nowhere));
        assert!(way.socket().is_none(), "whoever has the old address is somebody else");
        assert_eq!(review(&mut way, vec![nowhere, near]), Change::To(near), "rather than to stay without a way");
    }
}
