//! What is in a frame: Ethernet, at most one VLAN tag, IPv4 without options or IPv6 without extension headers, UDP.
//! Pure: a byte slice goes in, and every bound is checked.
//!
//! The program hands over only such frames. It neither compares lengths with the frame nor adds up checksums; that is
//! done here, by the kernel's own rules, so that what is delivered is what an ordinary socket would have got. The
//! kernel would have dropped what is refused here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::addr::array;

use super::options::Checksums;

/// Two addresses and the type of what follows.
pub(super) const ETHERNET_BYTES: usize = 14;
/// One VLAN tag.
pub(super) const TAG_BYTES: usize = 4;
pub(super) const V4_BYTES: usize = 20;
pub(super) const V6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;

/// The numbers that Ethernet has for them.
pub(super) const TYPE_V4: u16 = libc::ETH_P_IP as u16;
pub(super) const TYPE_V6: u16 = libc::ETH_P_IPV6 as u16;
pub(super) const TYPE_TAG: u16 = libc::ETH_P_8021Q as u16;
pub(super) const PROTOCOL_UDP: u8 = libc::IPPROTO_UDP as u8;

/// The only bit that may be set in the fragment field of a whole IPv4 datagram: don't fragment.
pub(super) const MAY_NOT_BE_CUT: u16 = 0x4000;

/// Why a frame is no datagram that a socket would have got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Lengths that contradict each other, or a frame that the program does not hand over.
    Malformed,
    /// The checksum of the IPv4 header is wrong.
    HeaderChecksum,
    /// The checksum of the datagram is wrong.
    Checksum,
    /// IPv6 without a checksum.
    NoChecksum,
}

/// What the checksum of a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumState {
    /// It is right.
    Right,
    /// It is the sum of the addresses and the length alone: a sender on this host leaves the rest to the device, and a
    /// virtual cable has none. Nothing in the frame can prove it.
    LeftToDevice,
    /// IPv4 without a checksum.
    Absent,
    /// It was not looked at.
    Unasked,
}

/// One datagram, by the headers of its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UdpFrame {
    pub(super) source: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination: IpAddr,
    pub(super) destination_port: u16,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// Where the payload lies in the frame.
    pub(super) payload: Range<usize>,
    pub(super) checksum_state: ChecksumState,
}

/// What both versions of the IP header say.
struct IpHeader {
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    /// Where the UDP header begins, and where the packet ends.
    at: usize,
    end: usize,
    /// The addresses, added up for the checksum.
    sum: u64,
}

impl UdpFrame {
    /// Reads a frame.
    pub(super) fn read(frame: &[u8], checksums: Checksums) -> Result<UdpFrame, FrameError> {
        let (kind, at) = match number(frame, ETHERNET_BYTES - 2)? {
            TYPE_TAG => (number(frame, ETHERNET_BYTES + TAG_BYTES - 2)?, ETHERNET_BYTES + TAG_BYTES),
            kind => (kind, ETHERNET_BYTES),
        };
        let network = match kind {
            TYPE_V4 => IpHeader::v4(frame, at)?,
            TYPE_V6 => IpHeader::v6(frame, at)?,
            _ => return Err(FrameError::Malformed),
        };
        let packet = frame.get(network.at..network.end).ok_or(FrameError::Malformed)?;
        let bytes = usize::from(number(packet, 4)?);
        // The kernel ignores what an IP packet has beyond its datagram.
        let datagram = packet.get(..bytes).filter(|_| bytes >= UDP_BYTES).ok_or(FrameError::Malformed)?;
        let checksum_state = match checksums {
            Checksums::Unverified => ChecksumState::Unasked,
            Checksums::VerifiedOrLeftToDevice => network.prove(datagram, true)?,
            Checksums::Verified => network.prove(datagram, false)?,
        };
        Ok(UdpFrame {
            source: network.source,
            source_port: number(datagram, 0)?,
            destination: network.destination,
            destination_port: number(datagram, 2)?,
            traffic_class: network.traffic_class,
            hop_limit: network.hop_limit,
            payload: network.at + UDP_BYTES..network.at + bytes,
            checksum_state,
        })
    }
}

impl IpHeader {
    fn v4(frame: &[u8], at: usize) -> Result<IpHeader, FrameError> {
        let header: [u8; V4_BYTES] = array(frame, at).ok_or(FrameError::Malformed)?;
        let total = usize::from(number(&header, 2)?);
        let is_whole = number(&header, 6)? & !MAY_NOT_BE_CUT == 0;
        if header[0] != 0x45 || !is_whole || header[9] != PROTOCOL_UDP || total < V4_BYTES + UDP_BYTES {
            return Err(FrameError::Malformed);
        }
        if fold(sum(&header)) != u16::MAX {
            return Err(FrameError::HeaderChecksum);
        }
        Ok(IpHeader {
            source: Ipv4Addr::from(array::<4>(&header, 12).ok_or(FrameError::Malformed)?).into(),
            destination: Ipv4Addr::from(array::<4>(&header, 16).ok_or(FrameError::Malformed)?).into(),
            traffic_class: header[1],
            hop_limit: header[8],
            at: at + V4_BYTES,
            end: at + total,
            sum: sum(&header[12..]),
        })
    }

    fn v6(frame: &[u8], at: usize) -> Result<IpHeader, FrameError> {
        let header: [u8; V6_BYTES] = array(frame, at).ok_or(FrameError::Malformed)?;
        if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP {
            return Err(FrameError::Malformed);
        }
        Ok(IpHeader {
            source: Ipv6Addr::from(array::<16>(&header, 8).ok_or(FrameError::Malformed)?).into(),
            destination: Ipv6Addr::from(array::<16>(&header, 24).ok_or(FrameError::Malformed)?).into(),
            traffic_class: header[0] << 4 | header[1] >> 4,
            hop_limit: header[7],
            at: at + V6_BYTES,
            end: at + V6_BYTES + usize::from(number(&header, 4)?),
            sum: sum(&header[8..]),
        })
    }

    /// What the checksum of a datagram says, which may have been left to the device.
    fn prove(&self, datagram: &[u8], may_be_left: bool) -> Result<ChecksumState, FrameError> {
        let field: [u8; 2] = array(datagram, 6).ok_or(FrameError::Malformed)?;
        if field == [0, 0] {
            return if self.source.is_ipv4() { Ok(ChecksumState::Absent) } else { Err(FrameError::NoChecksum) };
        }
        let length: [u8; 2] = array(datagram, 4).ok_or(FrameError::Malformed)?;
        let fixed = self.sum + sum(&length) + sum(&[0, PROTOCOL_UDP]);
        if fold(fixed + sum(datagram)) == u16::MAX {
            return Ok(ChecksumState::Right);
        }
        let is_left = may_be_left && fold(fixed) == u16::from_ne_bytes(field);
        if is_left { Ok(ChecksumState::LeftToDevice) } else { Err(FrameError::Checksum) }
    }
}

/// The 16-bit number at `at`.
fn number(bytes: &[u8], at: usize) -> Result<u16, FrameError> {
    array(bytes, at).map(u16::from_be_bytes).ok_or(FrameError::Malformed)
}

/// Adds up words in the machine's own order, which does not matter to one's complement as long as it is the same
/// everywhere. It takes eight bytes at a time, adds each carry again, and folds the sum so that a few can be added
/// without overflow. The rest is read in pieces of machine sizes: a buffer would have to be written before it is read.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let whole = words.iter().fold(0_u64, |sum, word| {
        let (sum, has_carry) = sum.overflowing_add(u64::from_ne_bytes(*word));
        sum + u64::from(has_carry)
    });
    let (fours, rest) = rest.as_chunks::<4>();
    let (twos, ones) = rest.as_chunks::<2>();
    let four = fours.first().map_or(0, |four| u64::from(u32::from_ne_bytes(*four)));
    let two = twos.first().map_or(0, |two| u64::from(u16::from_ne_bytes(*two)));
    let one = ones.first().map_or(0, |one| u64::from(u16::from_ne_bytes([*one, 0])));
    (whole & u64::from(u32::MAX)) + (whole >> 32) + four + two + one
}

/// Folds a 64-bit sum to 16 bits, adding every carry again.
#[inline]
pub(super) fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
