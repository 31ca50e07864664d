//! What must be known of an interface before frames leave by it: its own addresses, whether other hosts depend on it,
//! and the next hop to a destination. rtnetlink tells it in four answers, without any privilege.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use netlink::{Attributes, NetlinkProtocol, NetlinkRequest, NetlinkSocket, field};
use nix::libc;

/// The first address that global hosts have.
const GLOBAL_V6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);

/// An address of a network card.
pub(crate) type Mac = [u8; 6];

/// What the kernel says of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    pub(super) index: u32,
    pub mac: Option<Mac>,
    pub(super) mtu: u32,
    pub is_up: bool,
    pub is_loopback: bool,
    pub addresses: Vec<IpAddr>,
    pub(super) routes: Vec<LinkRoute>,
    pub(super) neighbours: Vec<(IpAddr, Mac)>,
}

/// A route that leaves by the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkRoute {
    /// `None`: everything of its family.
    pub(super) to: Option<IpNet>,
    pub(super) is_ipv4: bool,
    pub(super) gateway: Option<IpAddr>,
}

impl LinkInfo {
    pub(crate) fn read(index: u32) -> netlink::Result<Self> {
        let mut link = Self { index, ..Self::default() };
        let mut socket = NetlinkSocket::open(NetlinkProtocol::Route)?;
        // Messages about other interfaces, and malformed ones, are skipped.
        let mut dump = |kind: u16, structure_bytes: usize, take: fn(&mut Self, &[u8]) -> Option<()>| {
            let request = NetlinkRequest::new(kind).bytes(&vec![0; structure_bytes]);
            socket.dump(request, |message| take(&mut link, message.payload).unwrap_or_default())
        };
        dump(libc::RTM_GETLINK, 16, Self::take_link)?;
        dump(libc::RTM_GETADDR, 8, Self::take_address)?;
        dump(libc::RTM_GETROUTE, 12, Self::take_route)?;
        dump(libc::RTM_GETNEIGH, 12, Self::take_neighbour)?;
        Ok(link)
    }

    /// Whether this host reaches others by it that no other route leads to. A default route may be written in parts, as
    /// VPNs do that take precedence over another one; half of all addresses are as much as that.
    pub(super) fn has_default_route(&self) -> bool {
        let is_most = |to: IpNet| match to {
            IpNet::V4(to) => to.prefix_len() <= 1,
            // All that is given to hosts of the world begins with 001.
            IpNet::V6(to) => to.prefix_len() <= 3 && to.contains(&GLOBAL_V6),
        };
        let named: Vec<IpNet> = self.routes.iter().filter_map(|route| route.to).collect();
        self.routes.iter().any(|route| route.to.is_none()) || IpNet::aggregate(&named).into_iter().any(is_most)
    }

    /// The next hop to `to` by this interface: the destination itself, or a gateway.
    pub(super) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let length = |route: &&LinkRoute| route.to.map_or(0, |to| to.prefix_len());
        let leads = |route: &&LinkRoute| match route.to {
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
        if u32_at(message, 4)? != self.index {
            return None;
        }
        let flags = u32_at(message, 8)?.cast_signed();
        self.is_up = flags & libc::IFF_UP != 0;
        self.is_loopback = flags & libc::IFF_LOOPBACK != 0;
        let attributes = Attributes::new(message.get(16..)?);
        self.mac = attributes.bytes(libc::IFLA_ADDRESS).and_then(|mac| mac.try_into().ok());
        self.mtu = attributes.number(libc::IFLA_MTU).unwrap_or_default();
        Some(())
    }

    /// `struct ifaddrmsg`
    fn take_address(&mut self, message: &[u8]) -> Option<()> {
        if u32_at(message, 4)? != self.index {
            return None;
        }
        let attributes = Attributes::new(message.get(8..)?);
        let find = |kind: u16| attributes.bytes(kind).and_then(address);
        // On a link between two, the address is the peer's and the local one is ours.
        self.addresses.push(find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))?);
        Some(())
    }

    /// `struct rtmsg`
    fn take_route(&mut self, message: &[u8]) -> Option<()> {
        let attributes = Attributes::new(message.get(12..)?);
        let is_own = |index: Option<u32>| index == Some(self.index);
        let leaves_here = is_own(attributes.number(libc::RTA_OIF))
            || attributes
                .bytes(libc::RTA_MULTIPATH)
                .is_some_and(|hops| next_hops(hops).any(|hop| is_own(u32_at(hop, 4))));
        let is_unicast = message[7] == libc::RTN_UNICAST;
        if !leaves_here || !is_unicast {
            return None;
        }
        let to = attributes.bytes(libc::RTA_DST).and_then(address).and_then(|to| IpNet::new(to, message[1]).ok());
        let gateway = attributes.bytes(libc::RTA_GATEWAY).and_then(address);
        self.routes.push(LinkRoute { to, is_ipv4: i32::from(message[0]) == libc::AF_INET, gateway });
        Some(())
    }

    /// `struct ndmsg`
    fn take_neighbour(&mut self, message: &[u8]) -> Option<()> {
        let state = u16::from_ne_bytes(field(message, 8)?);
        let is_unknown = state & (libc::NUD_INCOMPLETE | libc::NUD_FAILED | libc::NUD_NONE) != 0;
        if u32_at(message, 4)? != self.index || is_unknown {
            return None;
        }
        let attributes = Attributes::new(message.get(12..)?);
        let mac = attributes.bytes(libc::NDA_LLADDR)?.try_into().ok()?;
        self.neighbours.push((address(attributes.bytes(libc::NDA_DST)?)?, mac));
        Some(())
    }
}

fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    field(message, at).map(u32::from_ne_bytes)
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match *value {
        [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
        _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
    }
}

/// Each `struct rtnexthop` of a route with several ways.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(field(bytes, 0)?));
        let hop = bytes.get(..length).filter(|hop| hop.len() >= 8)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(hop)
    })
}

/// Packets sent, errors and drops of an interface of this network namespace, as the kernel counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InterfaceCounters {
    pub(super) packets: u64,
    pub(super) errors: u64,
    pub(super) dropped: u64,
}

/// Reads them; `None` where the kernel does not say.
pub(super) fn sent_by(interface: &str) -> Option<InterfaceCounters> {
    sent_in(&std::fs::read_to_string("/proc/net/dev").ok()?, interface)
}

/// A line is `name: ` and eight numbers of what came, then bytes, packets, errors and drops of what went.
fn sent_in(text: &str, interface: &str) -> Option<InterfaceCounters> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let &[packets, errors, dropped] = numbers.get(9..12)?.first_chunk()?;
    Some(InterfaceCounters { packets, errors, dropped })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> LinkInfo {
        let network = |text: &str| Some(text.parse().expect("a network"));
        let route = |to, is_ipv4, gateway: Option<&str>| LinkRoute {
            to,
            is_ipv4,
            gateway: gateway.map(|text| text.parse().expect("an address")),
        };
        LinkInfo {
            routes: vec![
                route(network("10.8.0.0/24"), true, None),
                route(network("10.0.0.0/8"), true, Some("10.8.0.254")),
                route(network("2001:db8::/64"), false, None),
            ],
            neighbours: vec![("10.8.0.1".parse().expect("an address"), [2; 6])],
            ..LinkInfo::default()
        }
    }

    #[test]
    fn the_next_hop_is_the_destination_or_the_gateway_of_the_longest_route() {
        let hop = |link: &LinkInfo, to: &str| link.next_hop(to.parse().expect("valid")).map(|hop| hop.to_string());
        let mut link = link();
        assert_eq!(hop(&link, "10.8.0.1").as_deref(), Some("10.8.0.1"));
        assert_eq!(hop(&link, "10.9.0.1").as_deref(), Some("10.8.0.254"));
        assert_eq!(hop(&link, "2001:db8::7").as_deref(), Some("2001:db8::7"));
        assert_eq!((hop(&link, "192.0.2.1"), hop(&link, "2001:db9::7")), (None, None));
        assert_eq!(link.mac_of("10.8.0.1".parse().expect("valid")), Some([2; 6]));
        assert!(!link.has_default_route());
        link.routes.push(LinkRoute { to: None, is_ipv4: false, gateway: None });
        assert!(link.has_default_route());
        assert_eq!(hop(&link, "192.0.2.1"), None, "a default route of the other family leads nowhere");
    }

    #[test]
    fn a_default_route_is_one_in_parts_too() {
        let has_default = |routes: &[&str]| {
            let route = |text: &&str| {
                let to: IpNet = text.parse().expect("a network");
                LinkRoute { to: Some(to), is_ipv4: to.addr().is_ipv4(), gateway: None }
            };
            LinkInfo { routes: routes.iter().map(route).collect(), ..LinkInfo::default() }.has_default_route()
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
            let mut link = LinkInfo::default();
            let _ = (link.take_link(&bytes), link.take_address(&bytes));
            let _ = (link.take_route(&bytes), link.take_neighbour(&bytes));
        }
    }

    #[test]
    fn loopback_is_known_as_such_and_its_counters_are_read() {
        let index = nix::net::if_::if_nametoindex("lo").expect("every namespace has one");
        let link = LinkInfo::read(index).expect("rtnetlink");
        assert!(link.is_loopback && link.mtu > 0, "{link:?}");
        assert!(sent_by("lo").is_some());
        let text = "Inter-|\n face |\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    veth0:1 2 3 4 5 6 7 8 9 20 0 3 0 0 0 0\n";
        assert_eq!(sent_in(text, "lo"), Some(InterfaceCounters { packets: 10, errors: 11, dropped: 12 }));
        assert_eq!(sent_in(text, "veth0"), Some(InterfaceCounters { packets: 20, errors: 0, dropped: 3 }));
        assert_eq!(sent_in(text, "veth"), None);
    }
}
