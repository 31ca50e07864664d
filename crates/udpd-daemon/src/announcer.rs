//! What `udpd-warden` does for `announce`: it puts service addresses on an interface and takes them away, where a
//! routing daemon of this host sees them. The process is told at its start which addresses, and touches no others.
//!
//! An address of udpd has a lifetime of some seconds and is renewed once a second. By that it is told from one that an
//! operator or another program has put there, which stays as it is. And the kernel takes it away when the daemon and
//! this process were both killed. Where the daemon alone was, this process sees its end at once.
//!
//! Routers need a moment until they send elsewhere. So that what still comes is not dropped because the address is
//! gone, a local route takes it for as long as the daemon lives. With it a listener can also bind the address before it
//! is announced (IPv4).

use std::io;
use std::net::IpAddr;

use netlink::{NetlinkMessage, NetlinkProtocol, NetlinkRequest, NetlinkSocket, field};
use rustix::io::Errno;

// Each number with its name in linux/rtnetlink.h, if_addr.h and netlink.h.
const GET_LINK: u16 = 18; // RTM_GETLINK
const NEW_ADDRESS: u16 = 20; // RTM_NEWADDR
const DELETE_ADDRESS: u16 = 21; // RTM_DELADDR
const GET_ADDRESS: u16 = 22; // RTM_GETADDR
const NEW_ROUTE: u16 = 24; // RTM_NEWROUTE
const DELETE_ROUTE: u16 = 25; // RTM_DELROUTE
const NAME: u16 = 3; // IFLA_IFNAME
const ADDRESS: u16 = 1; // IFA_ADDRESS
const LOCAL: u16 = 2; // IFA_LOCAL
const LIFETIMES: u16 = 6; // IFA_CACHEINFO
const DESTINATION: u16 = 1; // RTA_DST
const INTERFACE: u16 = 4; // RTA_OIF
const REPLACE: u16 = 0x100; // NLM_F_REPLACE
const ONLY_NEW: u16 = 0x200; // NLM_F_EXCL
const CREATE: u16 = 0x400; // NLM_F_CREATE
const APPEND: u16 = 0x800; // NLM_F_APPEND
const WITHOUT_DUPLICATE_DETECTION: u8 = 0x02; // IFA_F_NODAD
const TABLE_LOCAL: u8 = 255; // RT_TABLE_LOCAL
const SCOPE_HOST: u8 = 254; // RT_SCOPE_HOST
const TYPE_LOCAL: u8 = 2; // RTN_LOCAL
/// By which `ip route show table local` tells whose a route is.
const PROTOCOL: u8 = 117;

/// How long an address outlives its last renewal.
const LIFETIME_SECONDS: u32 = 10;

/// Puts addresses on an interface, and takes away all that it has put there when it is dropped.
#[derive(Debug)]
pub(crate) struct Announcer {
    socket: NetlinkSocket,
    interface: String,
    addresses: Vec<IpAddr>,
    /// Another process goes on with them.
    is_left: bool,
}

impl Announcer {
    /// Opens what it takes, before the process is in its sandbox, and sets the local routes.
    pub(crate) fn open(addresses: &[IpAddr], interface: &str) -> io::Result<Self> {
        let socket = NetlinkSocket::open_with_timeout(NetlinkProtocol::Route)?;
        let (interface, addresses) = (interface.to_owned(), addresses.to_vec());
        let mut own = Self { socket, interface, addresses, is_left: false };
        for address in own.addresses.clone() {
            // Where that fails the answer to the first request says why, or the route is there already.
            let _ = own.route(NEW_ROUTE, address);
        }
        Ok(own)
    }

    /// Answers a request: `on`, `off` or `leave`, and an address.
    pub(crate) fn answer(&mut self, request: &str) -> io::Result<()> {
        let refused = |errno: Errno| Err(errno.into());
        let Some((command, Ok(address))) = request.split_once(' ').map(|(command, text)| (command, text.parse()))
        else {
            return refused(Errno::INVAL);
        };
        match command {
            _ if !self.addresses.contains(&address) => refused(Errno::PERM),
            "on" => self.announce(address),
            "off" => self.withdraw(address),
            "leave" => {
                self.is_left = true;
                Ok(())
            }
            _ => refused(Errno::INVAL),
        }
    }

    /// Puts an address there, or renews it. EEXIST: it was there before.
    fn announce(&mut self, address: IpAddr) -> io::Result<()> {
        let index = self.index()?;
        let flags = match self.lifetime(index, address)? {
            None => {
                let _ = self.route(NEW_ROUTE, address);
                CREATE | ONLY_NEW
            }
            Some(left) if left <= LIFETIME_SECONDS => REPLACE,
            Some(_) => return Err(Errno::EXIST.into()),
        };
        let times = [LIFETIME_SECONDS, LIFETIME_SECONDS, 0, 0].map(u32::to_ne_bytes).concat();
        self.ask(of_address(NEW_ADDRESS, index, address).flags(flags).attribute(LIFETIMES, &times))
    }

    /// Takes an address away, if it is one of udpd.
    fn withdraw(&mut self, address: IpAddr) -> io::Result<()> {
        let index = self.index()?;
        match self.lifetime(index, address)? {
            Some(left) if left <= LIFETIME_SECONDS => self.ask(of_address(DELETE_ADDRESS, index, address)),
            _ => Ok(()),
        }
    }

    /// How many seconds an address of the interface has left; `None` where there is no such address.
    fn lifetime(&mut self, index: u32, address: IpAddr) -> io::Result<Option<u32>> {
        let mut found = None;
        let structure = [family(address), 0, 0, 0, 0, 0, 0, 0];
        let wanted = bytes(address);
        self.socket.dump(NetlinkRequest::new(GET_ADDRESS).bytes(&structure), |message| {
            let attributes = message.attributes(8);
            let own = attributes.bytes(LOCAL).or_else(|| attributes.bytes(ADDRESS));
            if field(message.payload, 4).map(u32::from_ne_bytes) == Some(index) && own == Some(&wanted[..]) {
                let times = attributes.bytes(LIFETIMES).and_then(|times| field(times, 4));
                found = Some(times.map_or(u32::MAX, u32::from_ne_bytes));
            }
        })?;
        Ok(found)
    }

    fn route(&mut self, kind: u16, address: IpAddr) -> io::Result<()> {
        let index = self.index()?;
        let wanted = bytes(address);
        let length = u8::try_from(8 * wanted.len()).expect("an address has 16 bytes at most");
        let structure = [family(address), length, 0, 0, TABLE_LOCAL, PROTOCOL, SCOPE_HOST, TYPE_LOCAL, 0, 0, 0, 0];
        let request = NetlinkRequest::new(kind).bytes(&structure).attribute(DESTINATION, &wanted);
        let flags = if kind == NEW_ROUTE { CREATE | APPEND } else { 0 };
        self.ask(request.attribute(INTERFACE, &index.to_ne_bytes()).flags(flags))
    }

    /// The number of the interface now: it may have been removed and made again.
    fn index(&mut self) -> io::Result<u32> {
        let name = [self.interface.as_bytes(), &[0]].concat();
        let mut found = None;
        let index = |message: NetlinkMessage<'_>| found = field(message.payload, 4).map(u32::from_ne_bytes);
        let asked = self.socket.ask(NetlinkRequest::new(GET_LINK).bytes(&[0; 16]).attribute(NAME, &name), index);
        asked.map_err(with_errno)?;
        found.ok_or_else(|| Errno::NODEV.into())
    }

    fn ask(&mut self, request: NetlinkRequest) -> io::Result<()> {
        self.socket.ask(request, |_| {}).map_err(with_errno)
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        for address in std::mem::take(&mut self.addresses) {
            // There is no one to tell. The kernel takes the address away in a few seconds.
            let _ = self.withdraw(address);
            let _ = self.route(DELETE_ROUTE, address);
        }
    }
}

/// The daemon is told a number.
fn with_errno(error: netlink::Error) -> io::Error {
    error.errno().map_or_else(|| error.into(), io::Error::from_raw_os_error)
}

fn of_address(kind: u16, index: u32, address: IpAddr) -> NetlinkRequest {
    let own = bytes(address);
    let length = u8::try_from(8 * own.len()).expect("an address has 16 bytes at most");
    let flags = if address.is_ipv6() { WITHOUT_DUPLICATE_DETECTION } else { 0 };
    let structure = [&[family(address), length, flags, 0][..], &index.to_ne_bytes()].concat();
    NetlinkRequest::new(kind).bytes(&structure).attribute(LOCAL, &own).attribute(ADDRESS, &own)
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).expect("a small number")
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
