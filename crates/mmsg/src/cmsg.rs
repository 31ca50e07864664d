//! Control messages: what the kernel says about a datagram besides its bytes.
//!
//! Decodes the control space of a received message from a byte slice, with every length checked: no pointer walks, no
//! `unsafe`, no panic on any input. The layout is the kernel's: a length of native word size that counts the header,
//! two 32-bit integers for level and kind, then the data, padded to the word size.

use std::iter::FusedIterator;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::addr::{array, canonical};

const WORD: usize = size_of::<usize>();
const HEADER_BYTES: usize = WORD + 8;

/// Control space that one message of `data_bytes` takes.
pub(crate) const fn space(data_bytes: usize) -> usize {
    HEADER_BYTES + data_bytes.next_multiple_of(WORD)
}

/// `in6_pktinfo`, the longer one of the two families.
pub(crate) const PACKET_INFO_SPACE: usize = space(20);
/// How much longer that is than `in_pktinfo`.
pub(crate) const PACKET_INFO_V6_EXTRA: usize = space(20) - space(12);
/// `timespec` of two 64-bit numbers.
pub(crate) const TIMESTAMP_SPACE: usize = space(16);
/// The segment size of a train: an `int`.
pub(crate) const GRO_SPACE: usize = space(4);
/// `SCM_TIMESTAMPING`: three times, by software, by a clock that no longer exists, by the device.
pub(crate) const HARDWARE_TIMESTAMP_SPACE: usize = space(48);
/// The traffic class: one byte with IPv4, an `int` with IPv6.
pub(crate) const TRAFFIC_CLASS_SPACE: usize = space(4);
/// The hop limit: an `int`.
pub(crate) const HOP_LIMIT_SPACE: usize = space(4);
/// The drop counter: a `u32`.
pub(crate) const DROP_OVERFLOW_SPACE: usize = space(4);
/// The source for sending, which has the form of the destination of a received datagram.
pub(crate) const SOURCE_SPACE: usize = PACKET_INFO_SPACE;
/// The segment size for sending: exactly a `u16`, the kernel refuses any other length.
pub(crate) const SEGMENT_SPACE: usize = space(2);

/// One control message as the kernel wrote it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage<'a> {
    /// The protocol it belongs to, such as `SOL_SOCKET` (`cmsg_level`).
    pub level: i32,
    /// Its type within that protocol, such as `SO_RXQ_OVFL` (`cmsg_type`).
    pub kind: i32,
    /// Its content, without padding.
    pub data: &'a [u8],
}

/// The control messages of a datagram, in their order; ends at the first one that does not fit in what is left.
#[derive(Clone, Debug)]
pub struct ControlMessages<'a> {
    rest: &'a [u8],
}

impl<'a> ControlMessages<'a> {
    pub(crate) fn new(control: &'a [u8]) -> Self {
        ControlMessages { rest: control }
    }

    fn find(control: &'a [u8], level: i32, kind: i32) -> Option<&'a [u8]> {
        Self::new(control).find(|message| message.level == level && message.kind == kind).map(|message| message.data)
    }
}

impl FusedIterator for ControlMessages<'_> {}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = ControlMessage<'a>;

    fn next(&mut self) -> Option<ControlMessage<'a>> {
        let length = usize::from_ne_bytes(array(self.rest, 0)?);
        let level = i32::from_ne_bytes(array(self.rest, WORD)?);
        let kind = i32::from_ne_bytes(array(self.rest, WORD + 4)?);
        let data = self.rest.get(HEADER_BYTES..length)?;
        // The last message may come without its padding.
        let next = length.next_multiple_of(WORD).min(self.rest.len());
        self.rest = &self.rest[next..];
        Some(ControlMessage { level, kind, data })
    }
}

/// Where a datagram was sent to, which address of this host took it, and the interface it came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketInfo {
    pub(crate) destination: IpAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) interface_index: Option<u32>,
}

/// From `IP_PKTINFO` or `IPV6_PKTINFO`.
pub(crate) fn packet_info(control: &[u8]) -> Option<PacketInfo> {
    if let Some(data) = ControlMessages::find(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
        let destination = canonical(Ipv6Addr::from(array::<16>(data, 0)?));
        let index = u32::from_ne_bytes(array(data, 16)?);
        let is_group = destination.is_multicast() || destination == IpAddr::V4(Ipv4Addr::BROADCAST);
        let local = (!is_group).then_some(destination);
        return Some(PacketInfo { destination, local, interface_index: (index != 0).then_some(index) });
    }
    // Three fields: interface, the local address, and the destination in the IP header, which is what was asked for:
    // with multicast the other two differ.
    let data = ControlMessages::find(control, libc::IPPROTO_IP, libc::IP_PKTINFO)?;
    let index = u32::from_ne_bytes(array(data, 0)?);
    let local = Some(IpAddr::V4(Ipv4Addr::from(array::<4>(data, 4)?))).filter(|address| !address.is_unspecified());
    let destination = IpAddr::V4(Ipv4Addr::from(array::<4>(data, 8)?));
    Some(PacketInfo { destination, local, interface_index: (index != 0).then_some(index) })
}

/// When the kernel took the datagram, since the Unix epoch. `None` too for a clock before it.
pub(crate) fn timestamp(control: &[u8]) -> Option<Duration> {
    timespec(ControlMessages::find(control, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)?)
}

/// When the device took the datagram, by its own clock. Its time is the third; a device that gives none leaves it 0.
pub(crate) fn hardware_timestamp(control: &[u8]) -> Option<Duration> {
    let data = ControlMessages::find(control, libc::SOL_SOCKET, libc::SCM_TIMESTAMPING)?;
    timespec(data.get(data.len() / 3 * 2..)?).filter(|time| !time.is_zero())
}

/// A time of two 64-bit numbers, or of two 32-bit ones where those are the machine's.
fn timespec(data: &[u8]) -> Option<Duration> {
    let (seconds, nanoseconds) = if data.len() >= 16 {
        (i64::from_ne_bytes(array(data, 0)?), i64::from_ne_bytes(array(data, 8)?))
    } else {
        (i64::from(i32::from_ne_bytes(array(data, 0)?)), i64::from(i32::from_ne_bytes(array(data, 4)?)))
    };
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))
}

/// From `IP_TOS` or `IPV6_TCLASS`.
pub(crate) fn traffic_class(control: &[u8]) -> Option<u8> {
    if let Some(data) = ControlMessages::find(control, libc::IPPROTO_IP, libc::IP_TOS) {
        return data.first().copied();
    }
    int(control, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
}

/// From `IP_TTL` or `IPV6_HOPLIMIT`.
pub(crate) fn hop_limit(control: &[u8]) -> Option<u8> {
    int(control, libc::IPPROTO_IP, libc::IP_TTL).or_else(|| int(control, libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT))
}

/// A number of one byte that the kernel writes as an `int`.
fn int(control: &[u8], level: i32, kind: i32) -> Option<u8> {
    let value = i32::from_ne_bytes(array(ControlMessages::find(control, level, kind)?, 0)?);
    u8::try_from(value).ok()
}

/// The drop counter of the socket when this datagram was queued (`SO_RXQ_OVFL`).
pub(crate) fn drop_overflow(control: &[u8]) -> Option<u32> {
    let data = ControlMessages::find(control, libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
    Some(u32::from_ne_bytes(array(data, 0)?))
}

/// The segment size of a GRO train. `None`: no such message, the payload is one datagram. A message too short for the
/// number gives 0, which no train has, so that it is refused and never taken for "no train".
pub(crate) fn gro_segment(control: &[u8]) -> Option<i32> {
    let data = ControlMessages::find(control, libc::SOL_UDP, libc::UDP_GRO)?;
    Some(array(data, 0).map_or(0, i32::from_ne_bytes))
}

/// The control message that asks the kernel to cut a payload into segments of `segment_bytes`.
#[inline]
pub(crate) fn encode_segment(segment_bytes: u16) -> [u8; SEGMENT_SPACE] {
    let mut bytes = [0; SEGMENT_SPACE];
    put(&mut bytes, 0, libc::SOL_UDP, libc::UDP_SEGMENT, &segment_bytes.to_ne_bytes());
    bytes
}

/// The control message that asks the kernel to send from `source`, and how many of its bytes count.
pub(crate) fn encode_source(source: IpAddr) -> ([u8; SOURCE_SPACE], usize) {
    let mut bytes = [0; SOURCE_SPACE];
    // An interface of 0 leaves the way to the route. `in_pktinfo` has the source second, `in6_pktinfo` first.
    let end = match source {
        IpAddr::V4(address) => {
            let mut info = [0; size_of::<libc::in_pktinfo>()];
            info[4..8].copy_from_slice(&address.octets());
            put(&mut bytes, 0, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
        }
        IpAddr::V6(address) => {
            let mut info = [0; size_of::<libc::in6_pktinfo>()];
            info[..16].copy_from_slice(&address.octets());
            put(&mut bytes, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
        }
    };
    (bytes, end)
}

/// Writes a control message as the kernel would, `at` so many bytes into a control space, and returns where the next
/// one goes. It leaves out a message for which there is no room, as the kernel does.
#[inline]
pub(crate) fn put(control: &mut [u8], at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
    let Some(message) = control.get_mut(at..at + space(data.len())) else { return at };
    message[..WORD].copy_from_slice(&(HEADER_BYTES + data.len()).to_ne_bytes());
    message[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
    message[WORD + 4..HEADER_BYTES].copy_from_slice(&kind.to_ne_bytes());
    message[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
    at + space(data.len())
}

/// Writes when the kernel took a datagram, as [`put`] does.
pub(crate) fn put_timestamp(control: &mut [u8], at: usize, arrival: Duration) -> usize {
    let mut time = [0; 16];
    time[..8].copy_from_slice(&arrival.as_secs().to_ne_bytes());
    time[8..].copy_from_slice(&u64::from(arrival.subsec_nanos()).to_ne_bytes());
    put(control, at, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time)
}

/// The same alone, for tests of the decoders and of the batch.
#[cfg(test)]
pub(crate) fn encode(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; space(data.len())];
    put(&mut bytes, 0, level, kind, data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rounds;

    #[test]
    fn each_kind_is_found_whatever_comes_before_it() {
        let mut control = encode(libc::SOL_SOCKET, 9999, &[1, 2, 3]);
        let mut time = 1_700_000_000_i64.to_ne_bytes().to_vec();
        time.extend(123_456_789_i64.to_ne_bytes());
        control.extend(encode(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time));
        control.extend(encode(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &744_u32.to_ne_bytes()));
        control.extend(encode(libc::SOL_UDP, libc::UDP_GRO, &1000_i32.to_ne_bytes()));
        let mut info = 3_i32.to_ne_bytes().to_vec();
        info.extend([10, 0, 0, 1, 239, 1, 2, 3]);
        control.extend(encode(libc::IPPROTO_IP, libc::IP_PKTINFO, &info));

        assert_eq!(timestamp(&control), Some(Duration::new(1_700_000_000, 123_456_789)));
        assert_eq!(drop_overflow(&control), Some(744));
        assert_eq!(gro_segment(&control), Some(1000));
        let info = packet_info(&control).expect("present");
        assert_eq!(info.destination, IpAddr::from([239, 1, 2, 3]), "the header's destination, not the local address");
        assert_eq!(info.local, Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(info.interface_index, Some(3));
    }

    #[test]
    fn packet_info_of_a_mapped_destination_is_ipv4() {
        let mut data = Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets().to_vec();
        data.extend(0_u32.to_ne_bytes());
        let control = encode(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
        let address = IpAddr::from([10, 0, 0, 9]);
        let expected = PacketInfo { destination: address, local: Some(address), interface_index: None };
        assert_eq!(packet_info(&control), Some(expected));
    }

    #[test]
    fn an_answer_to_a_group_or_to_all_does_not_come_from_that_address() {
        let local = |destination: Ipv6Addr| {
            let data = [destination.octets().as_slice(), &7_u32.to_ne_bytes()].concat();
            packet_info(&encode(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data)).expect("present").local
        };
        assert_eq!(local("ff02::1".parse().expect("a group")), None);
        assert_eq!(local(Ipv4Addr::BROADCAST.to_ipv6_mapped()), None);
        assert_eq!(local(Ipv4Addr::new(239, 1, 2, 3).to_ipv6_mapped()), None);
        let own: Ipv6Addr = "2001:db8::1".parse().expect("an address");
        assert_eq!(local(own), Some(IpAddr::V6(own)));
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!((packet_info(&[]), timestamp(&[]), drop_overflow(&[]), gro_segment(&[])), (None, None, None, None));
    }

    #[test]
    fn a_train_size_that_is_cut_off_is_reported_as_malformed_and_not_as_absent() {
        assert_eq!(gro_segment(&encode(libc::SOL_UDP, libc::UDP_GRO, &[1, 2])), Some(0));
    }

    #[test]
    fn a_clock_before_the_epoch_or_with_absurd_nanoseconds_is_no_time() {
        for (seconds, nanoseconds) in [(-1_i64, 0_i64), (1, 1_000_000_000), (1, -1)] {
            let mut data = seconds.to_ne_bytes().to_vec();
            data.extend(nanoseconds.to_ne_bytes());
            assert_eq!(timestamp(&encode(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &data)), None);
        }
    }

    #[test]
    fn the_time_of_the_device_is_the_third_of_three_and_0_is_none() {
        let times = |device: [i64; 2]| -> Vec<u8> {
            [[5, 6], [0, 0], device].concat().iter().flat_map(|number| number.to_ne_bytes()).collect()
        };
        let read = |data: &[u8]| hardware_timestamp(&encode(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, data));
        assert_eq!(read(&times([1_700_000_000, 42])), Some(Duration::new(1_700_000_000, 42)));
        assert_eq!(read(&times([0, 0])), None, "only the kernel's clock has stamped it");
        let narrow: Vec<u8> = [5, 6, 0, 0, 7, 8_i32].iter().flat_map(|number| number.to_ne_bytes()).collect();
        assert_eq!(read(&narrow), Some(Duration::new(7, 8)));
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn class_and_hop_limit_are_read_in_the_form_of_either_family() {
        let four = [
            encode(libc::IPPROTO_IP, libc::IP_TOS, &[0xb9]),
            encode(libc::IPPROTO_IP, libc::IP_TTL, &64_i32.to_ne_bytes()),
        ];
        assert_eq!((traffic_class(&four.concat()), hop_limit(&four.concat())), (Some(0xb9), Some(64)));
        let six = [
            encode(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &255_i32.to_ne_bytes()),
            encode(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &3_i32.to_ne_bytes()),
        ];
        assert_eq!((traffic_class(&six.concat()), hop_limit(&six.concat())), (Some(3), Some(255)));
        let absurd = encode(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &256_i32.to_ne_bytes());
        assert_eq!((traffic_class(&absurd), hop_limit(&absurd)), (None, None));
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        for length in [0, 1, HEADER_BYTES - 1, usize::MAX, usize::MAX - 3, HEADER_BYTES + 5] {
            let mut control = encode(libc::SOL_UDP, libc::UDP_GRO, &7_i32.to_ne_bytes());
            control.truncate(HEADER_BYTES + 4);
            control[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(ControlMessages::new(&control).count(), 0, "length {length}");
        }
    }

    #[test]
    fn the_segment_message_for_sending_has_the_length_the_kernel_insists_on() {
        let bytes = encode_segment(1400);
        let message = ControlMessages::new(&bytes).next().expect("well formed");
        assert_eq!(message.data, 1400_u16.to_ne_bytes());
        assert_eq!((message.level, message.kind), (libc::SOL_UDP, libc::UDP_SEGMENT));
    }

    #[test]
    fn the_source_message_for_sending_is_that_of_its_family_and_names_no_interface() {
        for text in ["192.0.2.9", "2001:db8::9"] {
            let source: IpAddr = text.parse().expect("valid");
            let (bytes, length) = encode_source(source);
            let messages: Vec<_> = ControlMessages::new(&bytes[..length]).collect();
            assert_eq!(messages.len(), 1, "{text}");
            let (expected_bytes, at) = if source.is_ipv4() { (12, 4) } else { (20, 0) };
            assert_eq!(messages[0].data.len(), expected_bytes);
            let octets = match source {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            assert_eq!(messages[0].data[at..at + octets.len()], octets);
            assert_eq!(
                messages[0].data.iter().filter(|byte| **byte != 0).count(),
                octets.iter().filter(|b| **b != 0).count()
            );
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0002);
        let mut bytes = [0; 160];
        let mut found = 0;
        for _ in 0..rounds() {
            random.fill(&mut bytes);
            plant_headers(&mut random, &mut bytes);
            let control = &bytes[..random.usize(..bytes.len() + 1)];
            found += ControlMessages::new(control).count();
            found += usize::from(packet_info(control).is_some()) + usize::from(timestamp(control).is_some());
            found += usize::from(drop_overflow(control).is_some()) + usize::from(gro_segment(control).is_some());
            found += usize::from(traffic_class(control).is_some()) + usize::from(hop_limit(control).is_some());
            found += usize::from(hardware_timestamp(control).is_some());
        }
        assert!(found > 0, "the generator never made a message, so nothing was tested");
    }

    /// Purely random lengths end the walk at once; plausible ones take it further in.
    fn plant_headers(random: &mut fastrand::Rng, bytes: &mut [u8]) {
        let kinds = [
            (libc::SOL_UDP, libc::UDP_GRO),
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
            (libc::IPPROTO_IP, libc::IP_PKTINFO),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING),
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
        ];
        let mut offset = 0;
        while offset + HEADER_BYTES <= bytes.len() && random.usize(..8) > 0 {
            let length = HEADER_BYTES + random.usize(..40);
            let (level, kind) = kinds[random.usize(..kinds.len())];
            bytes[offset..offset + WORD].copy_from_slice(&length.to_ne_bytes());
            bytes[offset + WORD..offset + WORD + 4].copy_from_slice(&level.to_ne_bytes());
            bytes[offset + WORD + 4..offset + HEADER_BYTES].copy_from_slice(&kind.to_ne_bytes());
            offset += length.next_multiple_of(WORD);
        }
    }
}
