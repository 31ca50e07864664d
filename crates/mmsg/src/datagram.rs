//! Datagrams as the reader sees them, and the splitting of trains into datagrams. Pure: no system calls, no `unsafe`.
//!
//! With `UDP_GRO` the kernel hands over several datagrams of one sender glued together, and the size of a segment. All
//! segments have that size but the last, which may be shorter. Everything else (source, time, drop count) holds for the
//! whole train.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use crate::cmsg::ControlMessages;
use crate::proxy::{self, Flaw, Header};
use crate::{addr, cmsg};

/// The most datagrams one train can carry. Linux builds trains of up to 64 from the wire (`UDP_GRO_CNT_MAX`) and
/// takes up to 128 from a local sender (`UDP_MAX_SEGMENTS`); a larger count is not a train but damage, and is refused.
pub const MAX_SEGMENTS: usize = 128;

/// What one slot holds after a receive call.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) control: &'a [u8],
    /// The bytes that fitted into the slot.
    pub(crate) payload: &'a [u8],
    /// The bytes there were on the wire.
    pub(crate) length: usize,
}

/// How many datagrams a message of `length` bytes is, and of what size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Train {
    pub(crate) segments: usize,
    pub(crate) segment_bytes: usize,
}

impl Train {
    /// A message that is one datagram.
    pub(crate) const SINGLE: Train = Train { segments: 1, segment_bytes: usize::MAX };

    /// Reads the segment size from the control space. `None`: this may be a train that cannot be split, because its
    /// control message did not fit (`control_cut`) or makes no sense. It must be counted and not shown: a reader could
    /// not tell it from a datagram.
    pub(crate) fn read(length: usize, control: &[u8], control_cut: bool) -> Option<Train> {
        if control_cut {
            return None;
        }
        let Some(size) = cmsg::gro_segment(control) else {
            return Some(Train::SINGLE);
        };
        let segment_bytes = usize::try_from(size).ok().filter(|size| *size > 0)?;
        // An empty datagram is a datagram too.
        let segments = length.div_ceil(segment_bytes).max(1);
        (segments <= MAX_SEGMENTS).then_some(Train { segments, segment_bytes })
    }

    /// One bit for each datagram of the train.
    pub(crate) fn all(self) -> u128 {
        u128::MAX >> (MAX_SEGMENTS - self.segments)
    }
}

/// The positions of the bits of a mask, from the lowest.
pub(crate) fn ordinals(mut mask: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let ordinal = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(ordinal)
    })
}

/// What is in a batch, kept up to date by receiving and discarding.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Datagrams that [`RecvBatch::datagrams`](crate::RecvBatch::datagrams) yields.
    pub datagrams: u64,
    /// Payload bytes of these, as far as they were kept.
    pub bytes: u64,
    /// How many of these were longer than [`BatchShape::slot_bytes`](crate::BatchShape::slot_bytes) or their room.
    pub truncated: u64,
    /// Messages that may be trains but cannot be split, because their control message is missing or malformed. Each
    /// counts one and is never yielded.
    pub unsplit: u64,
}

/// One datagram, borrowed from the batch that received it. Control messages are decoded when they are asked for.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    payload: &'a [u8],
    length: usize,
    name: &'a [u8],
    control: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// The only datagram of a message.
    #[inline]
    pub(crate) fn whole(message: &Message<'a>) -> Datagram<'a> {
        let Message { name, control, payload, length } = *message;
        Datagram { payload, length, name, control }
    }

    /// Datagram number `ordinal` of a message with segments of `segment_bytes`, at most `longest` bytes of it.
    pub(crate) fn cut(message: &Message<'a>, segment_bytes: usize, longest: usize, ordinal: usize) -> Datagram<'a> {
        let start = segment_bytes.saturating_mul(ordinal).min(message.length);
        let end = start.saturating_add(segment_bytes).min(message.length);
        let kept = message.payload.len();
        Datagram {
            payload: &message.payload[start.min(kept)..end.min(start.saturating_add(longest)).min(kept)],
            length: end - start,
            name: message.name,
            control: message.control,
        }
    }

    /// The PROXY header at its beginning. One that does not end within the kept bytes is malformed.
    pub(crate) fn proxy_header(&self) -> Result<Header, Flaw> {
        proxy::read(self.payload)
    }

    /// The same without its PROXY header, with the sender that the header names; unchanged where it has none.
    pub(crate) fn unwrapped(self) -> Datagram<'a> {
        let Ok(header) = self.proxy_header() else { return self };
        Datagram {
            payload: &self.payload[header.bytes..],
            length: self.length - header.bytes,
            name: header.name(self.payload).unwrap_or(self.name),
            control: self.control,
        }
    }

    /// What it was made of.
    pub(crate) fn message(&self) -> Message<'a> {
        let Datagram { payload, length, name, control } = *self;
        Message { name, control, payload, length }
    }

    /// The bytes of the datagram; fewer than [`length`](Self::length) when it was truncated.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The real length of the datagram on the wire.
    #[inline]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether it was longer than what is kept of a datagram.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.length > self.payload.len()
    }

    /// The sender; behind a proxy the one that the proxy names, see
    /// [`RecvBatch::unwrap_proxied`](crate::RecvBatch::unwrap_proxied). An IPv4 sender is shown as IPv4 also on a
    /// dual-stack socket. `None` where the kernel wrote no address of either family, which it does for no UDP datagram.
    #[inline]
    pub fn source(&self) -> Option<SocketAddr> {
        addr::decode(self.name)
    }

    /// The address it was sent to; needs [`Socket::set_packet_info`](crate::Socket::set_packet_info) and room for it.
    pub fn destination(&self) -> Option<IpAddr> {
        cmsg::packet_info(self.control).map(|info| info.destination)
    }

    /// The interface it came in on; needs the same as [`destination`](Self::destination).
    pub fn interface_index(&self) -> Option<u32> {
        cmsg::packet_info(self.control).and_then(|info| info.interface_index)
    }

    /// The address of this host that an answer should come from: where the datagram was sent to, or for broadcast and
    /// multicast the address of the interface. The kernel does not tell an IPv6 socket the latter: there it is `None`
    /// for multicast, and the broadcast address itself for IPv4 broadcast to a subnet. Needs the same as
    /// [`destination`](Self::destination).
    pub fn local_address(&self) -> Option<IpAddr> {
        cmsg::packet_info(self.control).and_then(|info| info.local)
    }

    /// When the kernel received it; needs [`Socket::set_timestamps`](crate::Socket::set_timestamps) and room for it.
    pub fn arrival(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(self.arrival_since_epoch()?)
    }

    /// The same as the time since the Unix epoch, which is how the kernel writes it.
    pub fn arrival_since_epoch(&self) -> Option<Duration> {
        cmsg::timestamp(self.control)
    }

    /// When the device received it, by the device's own clock and counted from that clock's epoch; needs
    /// [`Socket::set_hardware_timestamps`](crate::Socket::set_hardware_timestamps) and room for it.
    pub fn hardware_arrival(&self) -> Option<Duration> {
        cmsg::hardware_timestamp(self.control)
    }

    /// The traffic class of its IP header, DSCP above and ECN below; needs
    /// [`Socket::set_report_traffic_class`](crate::Socket::set_report_traffic_class) and room for it.
    pub fn traffic_class(&self) -> Option<u8> {
        cmsg::traffic_class(self.control)
    }

    /// The ECN field of its traffic class: 0 = the sender takes no part, 1 and 2 = it does, 3 = congestion on the way.
    /// Needs the same as [`traffic_class`](Self::traffic_class).
    pub fn ecn(&self) -> Option<u8> {
        self.traffic_class().map(|class| class & 0b11)
    }

    /// How many more routers it could have passed (hop limit, or TTL with IPv4); needs
    /// [`Socket::set_report_hop_limit`](crate::Socket::set_report_hop_limit) and room for it.
    pub fn hop_limit(&self) -> Option<u8> {
        cmsg::hop_limit(self.control)
    }

    /// All its control messages, also those that this crate does not name. Such a message needs an option that is set
    /// elsewhere, and room: [`Control::other_bytes`](crate::Control::other_bytes).
    pub fn control_messages(&self) -> ControlMessages<'a> {
        ControlMessages::new(self.control)
    }

    /// The socket's drop counter when this datagram was queued: it shows where a gap is. For the present count ask
    /// [`Socket::memory_info`](crate::Socket::memory_info). Absent while nothing was dropped.
    #[inline]
    pub fn drop_overflow(&self) -> Option<u32> {
        if self.control.is_empty() { None } else { cmsg::drop_overflow(self.control) }
    }
}

impl fmt::Debug for Datagram<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Datagram")
            .field("source", &self.source())
            .field("length", &self.length)
            .field("truncated", &self.is_truncated())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(segment_bytes: i32) -> Vec<u8> {
        cmsg::encode(libc::SOL_UDP, libc::UDP_GRO, &segment_bytes.to_ne_bytes())
    }

    fn split(payload: &[u8], length: usize, segment_bytes: i32) -> Vec<(Vec<u8>, usize)> {
        let control = control(segment_bytes);
        let train = Train::read(length, &control, false).expect("a train that can be split");
        let message = Message { name: &[], control: &control, payload, length };
        (0..train.segments)
            .map(|ordinal| Datagram::cut(&message, train.segment_bytes, usize::MAX, ordinal))
            .map(|datagram| (datagram.payload().to_vec(), datagram.length()))
            .collect()
    }

    #[test]
    fn times_and_congestion_are_read_from_the_control_messages() {
        let numbers = |numbers: &[i64]| -> Vec<u8> { numbers.iter().flat_map(|number| number.to_ne_bytes()).collect() };
        let mut control = cmsg::encode(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &numbers(&[5, 6]));
        control.extend(cmsg::encode(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &numbers(&[0, 0, 0, 0, 7, 8])));
        control.extend(cmsg::encode(libc::IPPROTO_IP, libc::IP_TOS, &[0b1011_1010]));
        let datagram = Datagram::whole(&Message { name: &[], control: &control, payload: &[], length: 0 });
        assert_eq!(datagram.arrival(), Some(SystemTime::UNIX_EPOCH + Duration::new(5, 6)));
        assert_eq!(datagram.hardware_arrival(), Some(Duration::new(7, 8)));
        assert_eq!((datagram.traffic_class(), datagram.ecn()), (Some(0b1011_1010), Some(0b10)));
        let without = Datagram::whole(&Message { name: &[], control: &[], payload: &[], length: 0 });
        assert_eq!((without.arrival(), without.hardware_arrival(), without.ecn()), (None, None, None));
    }

    #[test]
    fn a_train_falls_into_equal_pieces_and_an_odd_tail() {
        let pieces = split(b"aaabbbcc", 8, 3);
        assert_eq!(pieces, [(b"aaa".to_vec(), 3), (b"bbb".to_vec(), 3), (b"cc".to_vec(), 2)]);
    }

    #[test]
    fn a_message_no_longer_than_a_segment_is_one_datagram() {
        assert_eq!(split(b"aaa", 3, 3), [(b"aaa".to_vec(), 3)]);
        assert_eq!(split(b"aaa", 3, 9000), [(b"aaa".to_vec(), 3)]);
        assert_eq!(split(b"", 0, 3), [(Vec::new(), 0)]);
    }

    #[test]
    fn without_a_segment_size_a_message_is_one_datagram() {
        assert_eq!(Train::read(5000, &[], false), Some(Train::SINGLE));
        let message = Message { name: &[], control: &[], payload: b"whole", length: 5 };
        assert_eq!(Datagram::cut(&message, Train::SINGLE.segment_bytes, usize::MAX, 0).payload(), b"whole");
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        assert_eq!(Train::read(5000, &[], true), None, "the control message did not fit");
        assert_eq!(Train::read(5000, &control(1000), true), None, "nor is what is left of the control space believed");
        assert_eq!(Train::read(5000, &control(0), false), None);
        assert_eq!(Train::read(5000, &control(-1), false), None);
        assert_eq!(Train::read(129, &control(1), false), None, "one more than the kernel ever builds");
        assert!(Train::read(128, &control(1), false).is_some());
    }

    #[test]
    fn the_mask_has_one_bit_for_each_datagram() {
        assert_eq!(Train::SINGLE.all(), 1);
        assert_eq!(Train { segments: 3, segment_bytes: 1 }.all(), 0b111);
        assert_eq!(Train { segments: 128, segment_bytes: 1 }.all(), u128::MAX);
    }

    #[test]
    fn every_datagram_of_a_truncated_train_that_lost_bytes_says_so() {
        let pieces = split(b"aaab", 8, 3);
        assert_eq!(pieces, [(b"aaa".to_vec(), 3), (b"b".to_vec(), 3), (Vec::new(), 2)]);
    }

    #[test]
    fn an_unreadable_source_is_none() {
        let message = Message { name: &[1, 2, 3], control: &[], payload: b"", length: 0 };
        assert_eq!(Datagram::cut(&message, 1, usize::MAX, 0).source(), None);
    }
}
