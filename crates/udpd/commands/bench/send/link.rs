//! What must be known of an interface before frames leave by it: its own addresses, whether other hosts depend on it,
//! and who the next hop to a destination is. The kernel tells all of it in four answers of rtnetlink, to everybody.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use ipnet::IpNet;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

const HEADER_BYTES: usize = 16;
/// Where the addresses begin that hosts of the world have.
const GLOBAL_V6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// As long as the kernel's own answers are.
const ANSWER_BYTES: usize = 32 << 10;

/// An address of a network card.
pub(in crate::commands::bench) type Mac = [u8; 6];

/// What the kernel says of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::commands::bench) struct Link {
    pub(super) index: u32,
    pub(in crate::commands::bench) mac: Option<Mac>,
    pub(super) mtu: u32,
    pub(in crate::commands::bench) is_up: bool,
    pub(in crate::commands::bench) is_loopback: bool,
    pub(in crate::commands::bench) addresses: Vec<IpAddr>,
    pub(super) routes: Vec<Route>,
    pub(super) neighbours: Vec<(IpAddr, Mac)>,
}

/// A route that leaves by the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands::bench) struct Route {
    /// `None`: everything of its family.
    pub(super) to: Option<IpNet>,
    pub(super) is_ipv4: bool,
    pub(super) gateway: Option<IpAddr>,
}

impl Link {
    /// Asks for the interface of this index.
    pub(in crate::commands::bench) fn read(index: u32) -> io::Result<Self> {
        let mut link = Self { index, ..Self::default() };
        let asker = Asker::new()?;
        asker.ask(libc::RTM_GETLINK, 16, &mut |message| link.take_link(message))?;
        asker.ask(libc::RTM_GETADDR, 8, &mut |message| link.take_address(message))?;
        asker.ask(libc::RTM_GETROUTE, 12, &mut |message| link.take_route(message))?;
        asker.ask(libc::RTM_GETNEIGH, 12, &mut |message| link.take_neighbour(message))?;
        Ok(link)
    }

    /// Whether this host reaches others by it that no other route leads to. A default route may be written in parts,
    /// as VPNs do that take precedence over another one; half of all addresses are as much as that.
    pub(super) fn has_default_route(&self) -> bool {
        let is_most = |to: IpNet| match to {
            IpNet::V4(to) => to.prefix_len() <= 1,
            // All that is given to hosts of the world begins with 001.
            IpNet::V6(to) => to.prefix_len() <= 3 && to.contains(&GLOBAL_V6),
        };
        let named: Vec<IpNet> = self.routes.iter().filter_map(|route| route.to).collect();
        self.routes.iter().any(|route| route.to.is_none()) || IpNet::aggregate(&named).into_iter().any(is_most)
    }

    /// Who takes what goes to `to` by this interface: the destination itself, or a gateway.
    pub(super) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let length = |route: &&Route| route.to.map_or(0, |to| to.prefix_len());
        let leads = |route: &&Route| match route.to {
            Some(network) => network.contains(&to),
            None => route.is_ipv4 == to.is_ipv4(),
        };
        let route = self.routes.iter().filter(leads).max_by_key(length)?;
        Some(route.gateway.unwrap_or(to))
    }

    pub(super) fn mac_of(&self, neighbour: IpAddr) -> Option<Mac> {
        self.neighbours.iter().find(|(address, _)| *address == neighbour).map(|(_, mac)| *mac)
    }

    /// `struct ifinfomsg`
    fn take_link(&mut self, message: &[u8]) -> Option<()> {
        if u32::from_ne_bytes(*part(message, 4)?) != self.index {
            return None;
        }
        let flags = u32::from_ne_bytes(*part(message, 8)?).cast_signed();
        self.is_up = flags & libc::IFF_UP != 0;
        self.is_loopback = flags & libc::IFF_LOOPBACK != 0;
        for (kind, value) in attributes(message.get(16..)?) {
            match kind {
                libc::IFLA_ADDRESS => self.mac = value.try_into().ok(),
                libc::IFLA_MTU => self.mtu = u32::from_ne_bytes(*part(value, 0)?),
                _ => {}
            }
        }
        Some(())
    }

    /// `struct ifaddrmsg`
    fn take_address(&mut self, message: &[u8]) -> Option<()> {
        if u32::from_ne_bytes(*part(message, 4)?) != self.index {
            return None;
        }
        let found = attributes(message.get(8..)?);
        let find = |kind: u16| found.iter().find(|(own, _)| *own == kind).and_then(|(_, value)| address(value));
        // On a link between two, the address is the peer's and the local one is ours.
        self.addresses.push(find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))?);
        Some(())
    }

    /// `struct rtmsg`
    fn take_route(&mut self, message: &[u8]) -> Option<()> {
        let found = attributes(message.get(12..)?);
        let find = |kind: u16| found.iter().find(|(own, _)| *own == kind).map(|(_, value)| *value);
        let is_own =
            |bytes: &[u8], at: usize| part(bytes, at).is_some_and(|own| u32::from_ne_bytes(*own) == self.index);
        let leaves_here = find(libc::RTA_OIF).is_some_and(|value| is_own(value, 0))
            || find(libc::RTA_MULTIPATH).is_some_and(|hops| next_hops(hops).any(|hop| is_own(hop, 4)));
        let is_unicast = message[7] == libc::RTN_UNICAST;
        if !leaves_here || !is_unicast {
            return None;
        }
        let to = find(libc::RTA_DST).and_then(address).and_then(|to| IpNet::new(to, message[1]).ok());
        let gateway = find(libc::RTA_GATEWAY).and_then(address);
        self.routes.push(Route { to, is_ipv4: i32::from(message[0]) == libc::AF_INET, gateway });
        Some(())
    }

    /// `struct ndmsg`
    fn take_neighbour(&mut self, message: &[u8]) -> Option<()> {
        let state = u16::from_ne_bytes(*part(message, 8)?);
        let is_unknown = state & (libc::NUD_INCOMPLETE | libc::NUD_FAILED | libc::NUD_NONE) != 0;
        if u32::from_ne_bytes(*part(message, 4)?) != self.index || is_unknown {
            return None;
        }
        let found = attributes(message.get(12..)?);
        let find = |kind: u16| found.iter().find(|(own, _)| *own == kind).map(|(_, value)| *value);
        self.neighbours.push((address(find(libc::NDA_DST)?)?, find(libc::NDA_LLADDR)?.try_into().ok()?));
        Some(())
    }
}

fn part<const BYTES: usize>(bytes: &[u8], from: usize) -> Option<&[u8; BYTES]> {
    bytes.get(from..)?.first_chunk()
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match *value {
        [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
        _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
    }
}

/// The attributes of a message. What is cut off is left out.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (part(bytes, 0), part(bytes, 2)) {
        let length = usize::from(u16::from_ne_bytes(*length));
        let Some(value) = bytes.get(ATTRIBUTE_HEADER_BYTES..length) else { break };
        // The upper two bits say how it is to be read.
        found.push((u16::from_ne_bytes(*kind) & 0x3fff, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Each `struct rtnexthop` of a route with several ways.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*part(bytes, 0)?));
        let hop = bytes.get(..length).filter(|hop| hop.len() >= 8)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(hop)
    })
}

/// A socket of rtnetlink.
struct Asker(OwnedFd);

impl Asker {
    fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        Ok(Self(socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?))
    }

    /// Asks for everything of a kind, behind a header of so many zeroes, and shows each answer without its header.
    fn ask(&self, kind: u16, zeroes: usize, take: &mut dyn FnMut(&[u8]) -> Option<()>) -> io::Result<()> {
        let length = HEADER_BYTES + zeroes;
        let mut request = Vec::with_capacity(length);
        request.extend((length as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        request.resize(length, 0);
        send(self.0.as_raw_fd(), &request, MsgFlags::empty())?;
        let mut answer = vec![0; ANSWER_BYTES];
        loop {
            match recv(self.0.as_raw_fd(), &mut answer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                received => {
                    if is_end(&answer[..received?], take)? {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Shows the messages of one answer, and says whether it was the last.
fn is_end(mut messages: &[u8], take: &mut dyn FnMut(&[u8]) -> Option<()>) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (part(messages, 0), part(messages, 4)) {
        let length = u32::from_ne_bytes(*length) as usize;
        let Some(message) = messages.get(HEADER_BYTES..length) else { return Ok(true) };
        match i32::from(u16::from_ne_bytes(*kind)) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let errno = part(message, 0).map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
            }
            _ => {
                // What is of another interface, or not as it should be, is none of ours.
                let _ = take(message);
            }
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Packets sent, errors and drops of an interface of this network namespace, as the kernel counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) packets: u64,
    pub(super) errors: u64,
    pub(super) dropped: u64,
}

/// Reads them; `None` where nobody says.
pub(super) fn sent_by(interface: &str) -> Option<Sent> {
    sent_in(&std::fs::read_to_string("/proc/net/dev").ok()?, interface)
}

/// A line is `name: ` and eight numbers of what came, then bytes, packets, errors and drops of what went.
fn sent_in(text: &str, interface: &str) -> Option<Sent> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let &[packets, errors, dropped] = numbers.get(9..12)?.first_chunk()?;
    Some(Sent { packets, errors, dropped })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        let network = |text: &str| Some(text.parse().expect("a network"));
        let route = |to, is_ipv4, gateway: Option<&str>| Route {
            to,
            is_ipv4,
            gateway: gateway.map(|text| text.parse().expect("an address")),
        };
        Link {
            routes: vec![
                route(network("10.8.0.0/24"), true, None),
                route(network("10.0.0.0/8"), true, Some("10.8.0.254")),
                route(network("2001:db8::/64"), false, None),
            ],
            neighbours: vec![("10.8.0.1".parse().expect("an address"), [2; 6])],
            ..Link::default()
        }
    }

    #[test]
    fn the_next_hop_is_the_destination_or_the_gateway_of_the_longest_route() {
        let hop = |link: &Link, to: &str| link.next_hop(to.parse().expect("valid")).map(|hop| hop.to_string());
        let mut link = link();
        assert_eq!(hop(&link, "10.8.0.1").as_deref(), Some("10.8.0.1"));
        assert_eq!(hop(&link, "10.9.0.1").as_deref(), Some("10.8.0.254"));
        assert_eq!(hop(&link, "2001:db8::7").as_deref(), Some("2001:db8::7"));
        assert_eq!((hop(&link, "192.0.2.1"), hop(&link, "2001:db9::7")), (None, None));
        assert_eq!(link.mac_of("10.8.0.1".parse().expect("valid")), Some([2; 6]));
        assert!(!link.has_default_route());
        link.routes.push(Route { to: None, is_ipv4: false, gateway: None });
        assert!(link.has_default_route());
        assert_eq!(hop(&link, "192.0.2.1"), None, "a default route of the other family leads nowhere");
    }

    #[test]
    fn a_default_route_is_one_in_parts_too() {
        let has_default = |routes: &[&str]| {
            let route = |text: &&str| {
                let to: IpNet = text.parse().expect("a network");
                Route { to: Some(to), is_ipv4: to.addr().is_ipv4(), gateway: None }
            };
            Link { routes: routes.iter().map(route).collect(), ..Link::default() }.has_default_route()
        };
        for routes in [
            &["0.0.0.0/1", "128.0.0.0/1"][..],
            &["128.0.0.0/1"],
            &["0.0.0.0/2", "64.0.0.0/2", "192.0.2.0/24"],
            &["::/1", "8000::/1"],
            &["2000::/3"],
            &["2000::/4", "3000::/4"],
        ] {
            assert!(has_default(routes), "{routes:?}");
        }
        for routes in [
            &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"][..],
            &["224.0.0.0/4"],
            &["fe80::/64", "fd00::/8"],
            &["8000::/1"],
        ] {
            assert!(!has_default(routes), "{routes:?}");
        }
    }

    #[test]
    fn whatever_the_kernel_says_nothing_outside_of_it_is_read() {
        let mut noise = 1_u64;
        for length in 0..300 {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (noise >> 61) as u8
                })
                .collect();
            let mut link = Link::default();
            let _ = is_end(&bytes, &mut |message| {
                link.take_link(message);
                link.take_address(message);
                link.take_route(message);
                link.take_neighbour(message)
            });
            let _ = (link.take_link(&bytes), link.take_address(&bytes));
            let _ = (link.take_route(&bytes), link.take_neighbour(&bytes));
        }
    }

    #[test]
    fn loopback_is_known_as_such_and_its_counters_are_read() {
        let index = nix::net::if_::if_nametoindex("lo").expect("every namespace has one");
        let link = Link::read(index).expect("rtnetlink");
        assert!(link.is_loopback && link.mtu > 0, "{link:?}");
        assert!(sent_by("lo").is_some());
        let text = "Inter-|\n face |\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    veth0:1 2 3 4 5 6 7 8 9 20 0 3 0 0 0 0\n";
        assert_eq!(sent_in(text, "lo"), Some(Sent { packets: 10, errors: 11, dropped: 12 }));
        assert_eq!(sent_in(text, "veth0"), Some(Sent { packets: 20, errors: 0, dropped: 3 }));
        assert_eq!(sent_in(text, "veth"), None);
    }
}
