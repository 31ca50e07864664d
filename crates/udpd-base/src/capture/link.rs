//! From a captured packet to its UDP payload: the headers of the network it was captured on, of IP, and of UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::input::two;

/// The networks that are known, by the numbers that captures have for them.
const ETHERNET: u32 = 1;
const NULL: u32 = 0;
const LOOP: u32 = 108;
const RAW: [u32; 5] = [12, 14, 101, 228, 229];
const COOKED: u32 = 113;
const COOKED_2: u32 = 276;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];

const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
/// Hop-by-hop, routing and destination options: each says what follows and how long it is.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// Why a packet is no whole UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SkipReason {
    NotUdp,
    Fragment,
    Truncated,
    UnknownLink,
}

/// Where the payload lies in the packet, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundPayload {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Finds the datagram in a packet that was `length` bytes long on a network of this kind.
pub(super) fn datagram(link: u32, packet: &[u8], length: usize) -> Result<FoundPayload, SkipReason> {
    let missing = if packet.len() < length { SkipReason::Truncated } else { SkipReason::NotUdp };
    let start = match link {
        NULL | LOOP => 4,
        ETHERNET => behind_type(packet, 12).ok_or(missing)?,
        COOKED => behind_type(packet, 14).ok_or(missing)?,
        // The type stands first, the rest of the header behind it.
        COOKED_2 => match two(packet, 0).map(u16::from_be_bytes) {
            Some(IPV4 | IPV6) => 20,
            _ => return Err(missing),
        },
        _ if RAW.contains(&link) => 0,
        _ => return Err(SkipReason::UnknownLink),
    };
    let ip = packet.get(start..).ok_or(missing)?;
    let found = match ip.first().map(|byte| byte >> 4) {
        Some(4) => in_ipv4(ip),
        Some(6) => in_ipv6(ip),
        _ => Err(missing),
    };
    found.map(|found| FoundPayload { start: found.start + start, ..found })
}

/// Where IP begins when the type of what follows stands at `place`, perhaps behind tags.
fn behind_type(packet: &[u8], mut place: usize) -> Option<usize> {
    loop {
        match u16::from_be_bytes(two(packet, place)?) {
            IPV4 | IPV6 => return Some(place + 2),
            tag if TAGS.contains(&tag) => place += 4,
            _ => return None,
        }
    }
}

fn in_ipv4(ip: &[u8]) -> Result<FoundPayload, SkipReason> {
    let header = ip.first_chunk::<20>().ok_or(SkipReason::Truncated)?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    if header_bytes < 20 || header[9] != UDP {
        return Err(SkipReason::NotUdp);
    }
    // A fragment: more follow, or it is not the first.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(SkipReason::Fragment);
    }
    let address = |place: usize| {
        let bytes: [u8; 4] = header[place..place + 4].try_into().expect("four bytes of twenty");
        IpAddr::V4(Ipv4Addr::from(bytes))
    };
    in_udp(ip, header_bytes, address(12), address(16))
}

fn in_ipv6(ip: &[u8]) -> Result<FoundPayload, SkipReason> {
    let header = ip.first_chunk::<40>().ok_or(SkipReason::Truncated)?;
    let address = |place: usize| {
        let bytes: [u8; 16] = header[place..place + 16].try_into().expect("sixteen bytes of forty");
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    let (mut next, mut place) = (header[6], 40);
    while EXTENSIONS.contains(&next) {
        let [following, length] = two(ip, place).ok_or(SkipReason::Truncated)?;
        next = following;
        place += (usize::from(length) + 1) * 8;
    }
    match next {
        UDP => in_udp(ip, place, address(8), address(24)),
        FRAGMENT => Err(SkipReason::Fragment),
        _ => Err(SkipReason::NotUdp),
    }
}

fn in_udp(ip: &[u8], place: usize, from: IpAddr, to: IpAddr) -> Result<FoundPayload, SkipReason> {
    let header = ip.get(place..).and_then(|rest| rest.first_chunk::<8>()).ok_or(SkipReason::Truncated)?;
    let number = |place: usize| u16::from_be_bytes([header[place], header[place + 1]]);
    let bytes = usize::from(number(4)).checked_sub(8).ok_or(SkipReason::NotUdp)?;
    let start = place + 8;
    if ip.len() - start < bytes {
        return Err(SkipReason::Truncated);
    }
    Ok(FoundPayload {
        source: SocketAddr::new(from, number(0)),
        destination: SocketAddr::new(to, number(2)),
        start,
        bytes,
    })
}
