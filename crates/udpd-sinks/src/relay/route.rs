//! The route to a destination: a socket connected to where it is now, which follows changes of the network.
//!
//! A connected socket keeps its first source address. When the host gets another one, or the route changes to another
//! interface, the old socket sends with an address that is wrong or gone. So while there is something to send, a second
//! socket is made once a second, and replaces the first when the kernel gives it another address. The address of the
//! destination is asked for as often. A destination without a route, such as at boot, is no error: its datagrams fail
//! until there is one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mmsg::{Family, Socket};
use nix::errno::Errno;
use nix::libc;

use crate::target::DestinationTarget;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::seams::clock;
use udpd_base::text::address::PeerAddress;

/// How often the route is reviewed.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1);

/// How much a send buffer should hold while the device is busy.
const SEND_BUFFER_BYTES: usize = 1 << 21;

/// The kernel raises it to its minimum.
const RECEIVE_BUFFER_BYTES: usize = 1;

/// A connected socket, and the address of this host that it sends from.
#[derive(Debug)]
struct OpenRoute {
    socket: Socket,
    from: IpAddr,
    mtu_bytes: usize,
}

/// The route to a destination, or none yet.
#[derive(Debug)]
pub(super) struct RouteSocket {
    target: DestinationTarget,
    /// Where the destination was when that was last known.
    address: Option<SocketAddr>,
    /// A raw socket, which takes whole packets.
    is_raw: bool,
    open: Option<OpenRoute>,
    reviewed: Instant,
}

/// The result of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteChange {
    Same,
    /// The destination has this address now.
    To(SocketAddr),
    /// Packets leave from this address now.
    From(IpAddr),
    /// There is a route again.
    Opened,
}

impl RouteSocket {
    /// Finds the route. If there is none now, that is not an error; if udpd has no right to it, or there can never be
    /// one, it is. This never waits for a resolver: [`RouteSocket::begin`] finds the route to a name.
    pub(super) fn new(
        target: DestinationTarget,
        is_raw: bool,
    ) -> Result<(Self, Option<io::Error>), (&'static str, io::Error)> {
        let mut route = Self { target, address: None, is_raw, open: None, reviewed: clock::now() };
        if route.target.is_named() {
            return route.check_right().map(|()| (route, None));
        }
        match route.open_first_route() {
            Ok(()) => Ok((route, None)),
            Err((_, error)) if route.may_appear(&error) => Ok((route, Some(error))),
            Err(refusal) => Err(refusal),
        }
    }

    /// Finds the route to a name, for which it waits until `limit`. Returns why there is no route then.
    pub(super) fn begin(&mut self, limit: Instant) -> Option<io::Error> {
        if !self.target.is_named() {
            return None;
        }
        self.target.settle(limit);
        self.open_first_route().err().map(|(_, error)| error)
    }

    /// Checks the right to make a raw socket, which does not change later.
    fn check_right(&self) -> Result<(), (&'static str, io::Error)> {
        match self.is_raw.then(|| Socket::raw(Family::V4)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Err((MAKE_RAW_SOCKET, error)),
            _ => Ok(()),
        }
    }

    /// Takes the first address that has a route.
    fn open_first_route(&mut self) -> Result<(), (&'static str, io::Error)> {
        let addresses = self.target.now(None).map_err(|error| (FIND_ROUTE, error))?;
        self.address = addresses.first().copied();
        let (address, open) = self.find_first(&addresses)?;
        (self.address, self.open) = (Some(address), Some(open));
        Ok(())
    }

    /// Whether a route may appear later. A name may have a wrong address today and a right one tomorrow.
    fn may_appear(&self, error: &io::Error) -> bool {
        is_for_a_while(error) || (self.target.moves() && error.kind() != io::ErrorKind::PermissionDenied)
    }

    /// The address of the destination, if it is known.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The socket to send on, if there is a route.
    pub(super) fn socket(&self) -> Option<&Socket> {
        self.open.as_ref().map(|open| &open.socket)
    }

    /// The longest packet that the route takes whole; unlimited while there is no route.
    pub(super) fn mtu_bytes(&self) -> usize {
        self.open.as_ref().map_or(usize::MAX, |open| open.mtu_bytes)
    }

    /// Reviews the route, at most once a second.
    pub(super) fn review(&mut self) -> RouteChange {
        if clock::since(self.reviewed) < REVIEW_INTERVAL {
            return RouteChange::Same;
        }
        self.reviewed = clock::now();
        // Without a new answer the old address stays.
        let Ok(addresses) = self.target.now(self.address) else { return RouteChange::Same };
        let Ok((address, found)) = self.find_first(&addresses) else {
            let is_elsewhere = self.address.is_none_or(|own| !addresses.contains(&own));
            let first = addresses.first().copied().filter(|_| is_elsewhere);
            return first.map_or(RouteChange::Same, |first| self.lose_route(first));
        };
        if self.address.replace(address) != Some(address) {
            self.open = Some(found);
            return RouteChange::To(address);
        }
        match &mut self.open {
            Some(open) if open.from == found.from => {
                open.mtu_bytes = found.mtu_bytes;
                RouteChange::Same
            }
            open => {
                let from = found.from;
                if open.replace(found).is_some() { RouteChange::From(from) } else { RouteChange::Opened }
            }
        }
    }

    /// Drops the socket: there is no route to the new address, and the old address may now belong to another host. (If
    /// the address has not changed, the caller keeps the old socket, whose errors tell why it fails.)
    fn lose_route(&mut self, first: SocketAddr) -> RouteChange {
        (self.address, self.open) = (Some(first), None);
        RouteChange::To(first)
    }

    /// The first of several addresses that has a route, or the error of the first.
    fn find_first(&self, addresses: &[SocketAddr]) -> Result<(SocketAddr, OpenRoute), (&'static str, io::Error)> {
        let mut refusal = None;
        for &address in addresses {
            match self.find(address) {
                Ok(open) => return Ok((address, open)),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.unwrap_or_else(|| (FIND_ROUTE, io::ErrorKind::NotFound.into())))
    }

    /// A new socket connected to this address.
    fn find(&self, address: SocketAddr) -> Result<OpenRoute, (&'static str, io::Error)> {
        let failed = |operation| move |error| (operation, error);
        #[cfg(test)]
        super::simulated::check_route(address).map_err(failed(FIND_ROUTE))?;
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        // A raw socket tells neither its address nor the MTU of the route, so an ordinary one is asked.
        let probe = Socket::nonblocking(family).map_err(failed("make a socket"))?;
        let raw = if self.is_raw { Some(Socket::raw(family).map_err(failed(MAKE_RAW_SOCKET))?) } else { None };
        probe.connect(address).map_err(failed(FIND_ROUTE))?;
        if let Some(raw) = &raw {
            raw.connect(address).map_err(failed(FIND_ROUTE))?;
        }
        let from = probe.local_addr().map_err(failed("read its own address"))?.ip();
        let mtu_bytes = probe.path_mtu().map_err(failed("read the MTU of the route"))?;
        let socket = raw.unwrap_or(probe);
        // So that a datagram that a full queue of the device has dropped does not count as delivered.
        socket.set_report_errors(true).map_err(failed("have errors reported"))?;
        // No thread reads answers, so neither datagrams nor error records may take up memory.
        let _ = socket.set_receive_buffer(RECEIVE_BUFFER_BYTES);
        // A smaller buffer only means that the queue is tried again more often.
        let _ = socket.set_send_buffer(SEND_BUFFER_BYTES);
        Ok(OpenRoute { socket, from, mtu_bytes })
    }
}

/// Whether the error may pass: an interface is down, or has no address or route yet.
fn is_for_a_while(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::ENETDOWN | libc::ENODEV)
    )
}

/// An operation that a [`RelayError`] is about: it needs a right.
const MAKE_RAW_SOCKET: &str = "make a raw socket";

/// Another: the address can be sent to.
const FIND_ROUTE: &str = "find a route";

/// Another: a thread that looks up a name.
pub(super) const START_LOOKUP: &str = "start a thread that looks up its name";

/// Why a relay could not be opened.
#[derive(Debug)]
pub(super) struct RelayError {
    pub(super) destination: PeerAddress,
    pub(super) operation: &'static str,
    pub(super) error: io::Error,
}

impl RelayError {
    /// The error with which a command ends.
    pub(super) fn of_sink(self, sink: &str) -> Failure {
        let Self { destination, operation, error } = self;
        let (code, cure) = match (operation, error.raw_os_error().map(Errno::from_raw)) {
            (MAKE_RAW_SOCKET, Some(Errno::EPERM | Errno::EACCES)) => {
                let cure = "; keep_source needs CAP_NET_RAW; in the unit file: AmbientCapabilities=CAP_NET_RAW and \
                            CapabilityBoundingSet=CAP_NET_RAW";
                (ExitCode::Permission, cure)
            }
            (FIND_ROUTE, Some(Errno::EACCES)) => {
                let cure = "; that is a broadcast address: name the hosts, or a group";
                (ExitCode::Configuration, cure)
            }
            (START_LOOKUP, _) => (ExitCode::Failure, "; see ulimit -u and the limits of its control group"),
            _ => (ExitCode::Unavailable, "; see `ip route get` for that address"),
        };
        Failure::new(code, format!("sink {sink}: cannot {operation} for {destination}: {error}{cure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::os::host_names::FollowedName;

    #[test]
    fn of_the_addresses_of_a_name_the_first_that_has_a_route_is_sent_to_until_it_has_none() {
        // No host lets an ordinary socket connect to the broadcast address.
        let addresses = ["255.255.255.255:9", "127.0.0.1:9", "127.0.0.2:9"];
        let [nowhere, near, other] = addresses.map(|text| text.parse().expect(text));
        let name = FollowedName::known(vec![nowhere, near]);
        let (mut route, none) = RouteSocket::new(DestinationTarget::Named(name.clone()), false).expect("no error");
        assert!(none.is_none() && route.socket().is_none(), "it is looked for when it is begun");
        assert!(route.begin(Instant::now()).is_none());
        assert_eq!((route.address(), route.socket().is_some()), (Some(near), true));
        let review = |route: &mut RouteSocket, addresses: Vec<SocketAddr>| {
            name.set(addresses);
            route.reviewed -= REVIEW_INTERVAL;
            route.review()
        };
        assert_eq!(
            review(&mut route, vec![nowhere, other, near]),
            RouteChange::Same,
            "it stays at an address that has a route"
        );
        assert_eq!(review(&mut route, vec![nowhere, other]), RouteChange::To(other));
        assert_eq!(review(&mut route, vec![nowhere]), RouteChange::To(nowhere));
        assert!(route.socket().is_none(), "the old address belongs to another host");
        assert_eq!(
            review(&mut route, vec![nowhere, near]),
            RouteChange::To(near),
            "rather than to stay without a route"
        );
    }
}
