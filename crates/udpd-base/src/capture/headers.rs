//! A datagram as it was on the wire: the IP and UDP headers that a socket strips off, built again from the addresses.
//!
//! Captures want them so that every reader of captures understands the file, and a relay that keeps the source sends
//! them as they are. Both need right checksums; a datagram of which only the head was kept has none, because the sum is
//! over what is missing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use super::reader::two;

/// The most bytes that stand in front of a payload.
pub const HEADERS_BYTES_MAX: usize = V6_BYTES + UDP_BYTES;

const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
const HOPS: u8 = 64;
const DO_NOT_FRAGMENT: u8 = 0x40;

/// Who sent a datagram: the one place that is asked. The kernel says it of every UDP datagram, and a listener behind
/// proxies takes their word; where no header says it, the unspecified address says so without inventing a sender.
#[inline]
pub fn source(datagram: &mmsg::Datagram<'_>) -> SocketAddr {
    datagram.source().unwrap_or(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)))
}

/// Where a datagram went to that came to a socket bound to `bound`, as exactly as is known.
pub fn destination(datagram: &mmsg::Datagram<'_>, bound: SocketAddr) -> SocketAddr {
    let mut destination = bound;
    if let Some(ip) = datagram.destination() {
        destination.set_ip(ip);
    }
    destination
}

/// How long the headers between these addresses are.
pub fn headers_bytes(source: SocketAddr) -> usize {
    UDP_BYTES + if source.is_ipv4() { V4_BYTES } else { V6_BYTES }
}

/// Appends headers and payload. `length` is how long the payload was on the wire. The source decides the family; a
/// destination of the other family, which no packet can have, is written as the unspecified address.
pub fn append(packet: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr, payload: &[u8], length: usize) {
    let datagram = CapturedDatagram { ports: [source.port(), destination.port()], payload, length };
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => append_v4(packet, from, to, &datagram),
        (IpAddr::V4(from), IpAddr::V6(to)) => {
            append_v4(packet, from, to.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED), &datagram);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => append_v6(packet, from, to, &datagram),
        (IpAddr::V6(from), IpAddr::V4(_)) => append_v6(packet, from, Ipv6Addr::UNSPECIFIED, &datagram),
    }
}

struct CapturedDatagram<'d> {
    ports: [u16; 2],
    payload: &'d [u8],
    length: usize,
}

/// A length as headers have it. No datagram exceeds it; one that claimed to would be written as the longest there is.
fn field(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

fn append_v4(packet: &mut Vec<u8>, from: Ipv4Addr, to: Ipv4Addr, datagram: &CapturedDatagram<'_>) {
    let mut header = [0; V4_BYTES];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&field(V4_BYTES + UDP_BYTES + datagram.length));
    header[6] = DO_NOT_FRAGMENT;
    header[8] = HOPS;
    header[9] = UDP;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = !folded(sum(0, &header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend_from_slice(&header);
    append_udp(packet, sum(0, &header[12..20]), datagram);
}

fn append_v6(packet: &mut Vec<u8>, from: Ipv6Addr, to: Ipv6Addr, datagram: &CapturedDatagram<'_>) {
    let mut header = [0; V6_BYTES];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&field(UDP_BYTES + datagram.length));
    header[6] = UDP;
    header[7] = HOPS;
    header[8..24].copy_from_slice(&from.octets());
    header[24..40].copy_from_slice(&to.octets());
    packet.extend_from_slice(&header);
    append_udp(packet, sum(0, &header[8..40]), datagram);
}

/// `addresses` is the sum over both addresses, which the checksum covers with the protocol and the length.
fn append_udp(packet: &mut Vec<u8>, addresses: u64, datagram: &CapturedDatagram<'_>) {
    let mut header = [0; UDP_BYTES];
    header[0..2].copy_from_slice(&datagram.ports[0].to_be_bytes());
    header[2..4].copy_from_slice(&datagram.ports[1].to_be_bytes());
    let length = field(UDP_BYTES + datagram.length);
    header[4..6].copy_from_slice(&length);
    if datagram.length == datagram.payload.len() {
        let pseudo = addresses + u64::from(UDP) + u64::from(u16::from_be_bytes(length));
        let checksum = match !folded(sum(sum(pseudo, &header), datagram.payload)) {
            // Zero says that there is none; the sum has a second zero for that.
            0 => u16::MAX,
            checksum => checksum,
        };
        header[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    packet.extend_from_slice(&header);
    packet.extend_from_slice(datagram.payload);
}

/// Adds the bytes as 16-bit numbers. Four bytes at a time give the same after [`folded`], because 2^16 counts as 1.
fn sum(start: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let whole: u64 =
        words.by_ref().map(|word| u64::from(u32::from_be_bytes(word.try_into().expect("a chunk of four")))).sum();
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    start + whole + u64::from(u32::from_be_bytes(last))
}

/// The sum as the Internet checksum counts: what does not fit into 16 bits comes back at the lower end.
fn folded(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum >> 16) + (sum & u64::from(u16::MAX));
    }
    u16::try_from(sum).expect("folded until it fits")
}

// From a captured packet to its UDP payload: the headers of the network it was captured on, of IP, and of UDP.

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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn packet(source: &str, destination: &str, payload: &[u8], length: usize) -> Vec<u8> {
        let mut packet = Vec::new();
        append(&mut packet, address(source), address(destination), payload, length);
        packet
    }

    /// The sum of everything that a checksum covers, the checksum included; all ones when it is right.
    fn check(pseudo: &[&[u8]], covered: &[u8]) -> u16 {
        folded(pseudo.iter().fold(sum(0, covered), |total, part| sum(total, part)))
    }

    #[test]
    fn an_ipv4_packet_has_the_bytes_that_were_captured_of_one() {
        // Sent by a kernel over loopback, but for the identification, a running number there and 0 here.
        let expected = [
            0x45, 0x00, 0x00, 0x21, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x3c, 0xca, 127, 0, 0, 1, 127, 0, 0, 1, 0x9c,
            0x40, 0x02, 0x02, 0x00, 0x0d,
        ];
        let packet = packet("127.0.0.1:40000", "127.0.0.1:514", b"hello", 5);
        assert_eq!(packet[..26], expected);
        assert_eq!(&packet[28..], b"hello");
    }

    #[test]
    fn checksums_are_right_for_every_length_and_both_families() {
        let payload: Vec<u8> = (0..=255).cycle().take(65_507).collect();
        for length in (0..300).chain([1_472, 9_000, 65_506, 65_507]) {
            let v4 = packet("10.1.2.3:65535", "192.0.2.255:1", &payload[..length], length);
            assert_eq!(v4.len(), headers_bytes(address("10.1.2.3:1")) + length);
            assert_eq!(check(&[], &v4[..20]), u16::MAX);
            let udp = field(UDP_BYTES + length);
            assert_eq!(check(&[&v4[12..20], &[0, UDP], &udp], &v4[20..]), u16::MAX, "{length} bytes");
            let v6 = packet("[2001:db8::1]:5", "[ff02::1]:6", &payload[..length], length);
            assert_eq!(v6.len(), headers_bytes(address("[::1]:1")) + length);
            assert_eq!(check(&[&v6[8..40], &[0, UDP], &udp], &v6[40..]), u16::MAX, "{length} bytes");
        }
    }

    #[test]
    fn a_head_has_the_length_of_the_whole_and_no_checksum() {
        let packet = packet("10.0.0.1:1", "10.0.0.2:2", b"head", 1_000);
        assert_eq!(packet[2..4], 1_028_u16.to_be_bytes());
        assert_eq!(packet[24..28], [0x03, 0xf0, 0, 0]);
        assert_eq!(&packet[28..], b"head");
    }

    #[test]
    fn a_destination_of_the_other_family_is_unspecified() {
        assert_eq!(packet("10.0.0.1:1", "[::]:2", b"", 0)[16..20], [0; 4]);
        assert_eq!(packet("10.0.0.1:1", "[::ffff:10.0.0.9]:2", b"", 0)[16..20], [10, 0, 0, 9]);
        assert_eq!(packet("[::1]:1", "10.0.0.2:2", b"", 0)[24..40], [0; 16]);
    }
}
