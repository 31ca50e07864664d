//! Socket addresses as the kernel writes them, to and from [`SocketAddr`].
//!
//! Works on byte slices and checks every bound, so it needs no `unsafe` and never panics. An IPv4 peer of a dual-stack
//! socket arrives as `::ffff:a.b.c.d`; it is shown as IPv4, because access lists, rate limits and readers of logs would
//! otherwise see two names for one host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::proxy;

/// The address family of a socket. An IPv6 socket takes IPv4 too unless told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6, and IPv4 on a dual-stack socket.
    V6,
}

/// Room for the longest address a UDP socket can report, `sockaddr_in6`.
pub(crate) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

const NAME_V4_BYTES: usize = size_of::<libc::sockaddr_in>();

const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;

/// An address in the kernel's form: the bytes, and how many of them count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES],
    length: usize,
}

impl Name {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The address in `bytes`, or `None` when they hold neither family or too little. The bytes may be a PROXY header
/// instead: its signature is the number of no family.
#[inline]
pub(crate) fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(array(bytes, 0)?);
    let port = u16::from_be_bytes(array(bytes, 2)?);
    match family {
        FAMILY_V4 => Some(SocketAddr::from((Ipv4Addr::from(array::<4>(bytes, 4)?), port))),
        FAMILY_V6 => {
            let flow = u32::from_be_bytes(array(bytes, 4)?);
            let address = Ipv6Addr::from(array::<16>(bytes, 8)?);
            let scope = u32::from_ne_bytes(array(bytes, 24)?);
            Some(match address.to_ipv4_mapped() {
                Some(v4) => SocketAddr::from((v4, port)),
                None => SocketAddr::V6(SocketAddrV6::new(address, port, flow, scope)),
            })
        }
        _ => proxy::source(bytes),
    }
}

/// `address` in the kernel's form.
pub(crate) fn encode(address: SocketAddr) -> Name {
    let mut bytes = [0; NAME_BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let length = match address {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&FAMILY_V4.to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            NAME_V4_BYTES
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&FAMILY_V6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            NAME_BYTES
        }
    };
    Name { bytes, length }
}

/// `address` as a socket of `family` takes it in `bind` and `connect`: an IPv6 socket wants an IPv4 address mapped.
pub(crate) fn encode_for(family: Family, address: SocketAddr) -> Name {
    match (family, address) {
        (Family::V6, SocketAddr::V4(v4)) => encode(SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))),
        _ => encode(address),
    }
}

/// `address` as IPv4 where it is mapped IPv4.
pub(crate) fn canonical(address: Ipv6Addr) -> IpAddr {
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// `N` bytes at `offset`, if they are there.
#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rounds;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("the test wrote a valid address")
    }

    #[test]
    fn an_address_survives_the_way_to_the_kernel_form_and_back() {
        for text in ["127.0.0.1:53", "255.255.255.255:65535", "0.0.0.0:0", "[::]:1", "[2001:db8::9]:514"] {
            assert_eq!(decode(encode(address(text)).as_bytes()), Some(address(text)), "{text}");
        }
    }

    #[test]
    fn scope_and_flow_of_an_ipv6_address_are_kept() {
        let link_local = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().expect("valid"), 9, 0x000a_bcde, 7));
        assert_eq!(decode(encode(link_local).as_bytes()), Some(link_local));
    }

    #[test]
    fn a_mapped_address_is_shown_as_ipv4() {
        assert_eq!(decode(encode(address("[::ffff:10.1.2.3]:99")).as_bytes()), Some(address("10.1.2.3:99")));
    }

    #[test]
    fn an_ipv6_socket_is_given_ipv4_addresses_mapped() {
        let name = encode_for(Family::V6, address("10.1.2.3:99"));
        assert_eq!(name.as_bytes().len(), NAME_BYTES);
        assert_eq!(name.as_bytes()[18..20], [0xff, 0xff]);
        assert_eq!(encode_for(Family::V4, address("10.1.2.3:99")).as_bytes().len(), NAME_V4_BYTES);
    }

    #[test]
    fn every_shorter_form_of_an_address_is_refused() {
        let name = encode(address("[2001:db8::9]:514"));
        for length in 0..NAME_BYTES {
            assert_eq!(decode(&name.as_bytes()[..length]), None, "{length} bytes");
        }
        let name = encode(address("1.2.3.4:5"));
        for length in 0..8 {
            assert_eq!(decode(&name.as_bytes()[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0001);
        let mut bytes = [0; NAME_BYTES + 4];
        let mut decoded = 0_u64;
        for _ in 0..rounds() {
            random.fill(&mut bytes);
            if random.usize(..4) > 0 {
                bytes[..2].copy_from_slice(&[FAMILY_V4, FAMILY_V6][random.usize(..2)].to_ne_bytes());
            }
            let length = random.usize(..bytes.len() + 1);
            decoded += u64::from(decode(&bytes[..length]).is_some());
        }
        assert!(decoded > 0, "the generator never made a valid address, so nothing was tested");
    }
}
