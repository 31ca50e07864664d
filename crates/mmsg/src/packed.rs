//! Datagrams packed one behind the other, for those that have to wait.
//!
//! A [`RecvBatch`](crate::RecvBatch) has a slot of full length for every datagram, because the lengths are not known
//! before the call. That is right for what is handed on at once, and wrong for what waits: a hundred short datagrams
//! would hold a hundred long slots. Here each takes its length, with its source and its control messages, rounded up to
//! eight bytes. Packing copies; only what waits pays that price.
//!
//! ```text
//! | payload u32 | length u32 | name u16, control u16 | name | control | payload | to 8 | next ...
//! ```
//!
//! Everything is written and read through slices with every bound checked: no `unsafe`, whatever the bytes are.

use std::fmt;
use std::io;
use std::iter::FusedIterator;
use std::net::SocketAddr;
use std::time::Duration;

use crate::addr;
use crate::arena::Backing;
use crate::cmsg;
use crate::datagram::{Datagram, Message, Summary};
use crate::shape::{BatchShape, Control};
use crate::span::Span;

/// What stands before each datagram.
const HEAD_BYTES: usize = 12;

/// Where the next one begins.
const ALIGNMENT: usize = 8;

/// A fixed number of bytes for datagrams of any length, and those that are in it.
#[derive(Debug)]
pub struct PackedBatch {
    span: Span,
    used: usize,
    summary: Summary,
}

impl PackedBatch {
    /// `count` batches of `bytes` each in one arena. The calling thread touches its pages: call it where the batches
    /// will be filled.
    pub fn pool(count: usize, bytes: usize, huge_pages: bool) -> io::Result<(Vec<PackedBatch>, Backing)> {
        let (spans, backing) = Span::pool(count, bytes, huge_pages)?;
        let batch = |span| PackedBatch { span, used: 0, summary: Summary::default() };
        Ok((spans.into_iter().map(batch).collect(), backing))
    }

    /// What a datagram takes in a packed batch.
    pub fn bytes_for(datagram: &Datagram<'_>) -> usize {
        let Message { name, control, payload, .. } = datagram.message();
        (HEAD_BYTES + name.len() + control.len() + payload.len()).next_multiple_of(ALIGNMENT)
    }

    /// What a datagram with so much payload takes, with the requested control messages that come with every datagram.
    /// The segment size of a train and the drop counter come now and then, and are left out.
    pub fn bytes_expected(control: &Control, is_ipv6: bool, payload_bytes: usize) -> usize {
        let name_bytes = if is_ipv6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
        let control_bytes = control.bytes_of_every_datagram(is_ipv6);
        (HEAD_BYTES + name_bytes + control_bytes + payload_bytes).next_multiple_of(ALIGNMENT)
    }

    /// What the longest datagram of a batch of this shape takes, with every control message that it has room for.
    pub fn bytes_max(shape: &BatchShape) -> usize {
        let layout = shape.layout();
        let name_bytes = size_of::<libc::sockaddr_in6>();
        (HEAD_BYTES + name_bytes + layout.control_bytes + layout.slot_bytes).next_multiple_of(ALIGNMENT)
    }

    /// Appends a datagram. `false`, and nothing changes, when there is no room for it.
    #[must_use]
    pub fn push(&mut self, datagram: &Datagram<'_>) -> bool {
        let end = self.used + PackedBatch::bytes_for(datagram);
        let Some(room) = self.span.as_mut_slice().get_mut(self.used..end) else { return false };
        write(room, &datagram.message());
        self.used = end;
        self.summary.datagrams += 1;
        self.summary.bytes += datagram.payload().len() as u64;
        self.summary.truncated += u64::from(datagram.is_truncated());
        true
    }

    /// Replaces the contents by those datagrams of [`pack`] whose positions `wanted` picks. `false`, and empty, when
    /// the bytes are something else or do not fit.
    #[must_use]
    pub fn unpack(&mut self, bytes: &[u8], mut wanted: impl FnMut(usize) -> bool) -> bool {
        self.clear();
        let mut packed = PackedDatagrams { left: bytes };
        let mut all_fit = true;
        for (place, datagram) in packed.by_ref().enumerate() {
            all_fit &= !wanted(place) || self.push(&datagram);
        }
        let is_right = all_fit && packed.left.is_empty();
        if !is_right {
            self.clear();
        }
        is_right
    }

    /// The datagrams in the order they were pushed.
    pub fn datagrams(&self) -> PackedDatagrams<'_> {
        PackedDatagrams { left: &self.span.as_slice()[..self.used] }
    }

    /// Counts of what [`datagrams`](Self::datagrams) yields; none of it is ever unsplit.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// How many bytes it has for datagrams.
    pub fn capacity_bytes(&self) -> usize {
        self.span.as_slice().len()
    }

    /// How many of them are in use.
    pub fn used_bytes(&self) -> usize {
        self.used
    }

    /// Whether there is none in it.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.used = 0;
        self.summary = Summary::default();
    }
}

/// Appends a datagram to `into`, with its source, its length and its control messages, in the layout of this machine:
/// for [`PackedBatch::unpack`] on a machine of the same kind.
pub fn pack(datagram: &Datagram<'_>, into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + PackedBatch::bytes_for(datagram), 0);
    write(&mut into[start..], &datagram.message());
}

/// Writes a message into `room`, which is as long as it takes.
#[inline]
fn write(room: &mut [u8], message: &Message<'_>) {
    let Message { name, control, payload, length } = *message;
    let (head, rest) = room.split_at_mut(HEAD_BYTES);
    // None of them is near the limit of its type: a message has 64 KiB at most, a name 28 bytes.
    head[..4].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&(length as u32).to_ne_bytes());
    head[8..10].copy_from_slice(&(name.len() as u16).to_ne_bytes());
    head[10..].copy_from_slice(&(control.len() as u16).to_ne_bytes());
    let (to_name, rest) = rest.split_at_mut(name.len());
    let (to_control, rest) = rest.split_at_mut(control.len());
    to_name.copy_from_slice(name);
    to_control.copy_from_slice(control);
    rest[..payload.len()].copy_from_slice(payload);
}

/// The same for a datagram of which only this is known.
pub fn pack_known(
    source: SocketAddr,
    arrival: Option<Duration>,
    (payload, length): (&[u8], usize),
    into: &mut Vec<u8>,
) {
    let name = addr::encode(source);
    let mut control = [0; cmsg::TIMESTAMP_SPACE];
    let control_bytes = arrival.map_or(0, |arrival| cmsg::put_timestamp(&mut control, 0, arrival));
    let (name, control) = (name.as_bytes(), &control[..control_bytes]);
    pack(&Datagram::whole(&Message { name, control, payload, length }), into);
}

/// Iterator over the datagrams of a packed batch.
#[derive(Clone)]
pub struct PackedDatagrams<'a> {
    left: &'a [u8],
}

impl<'a> PackedDatagrams<'a> {
    /// Datagrams that [`pack`] wrote; it ends where the bytes are something else.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// The bytes that were not read yet; at the end those that are no datagrams.
    pub fn rest(&self) -> &'a [u8] {
        self.left
    }
}

impl<'a> Iterator for PackedDatagrams<'a> {
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        let (head, rest) = self.left.split_first_chunk::<HEAD_BYTES>()?;
        let four = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let two = |at: usize| usize::from(u16::from_ne_bytes([head[at], head[at + 1]]));
        let (payload_bytes, length, name_bytes, control_bytes) = (four(0), four(4), two(8), two(10));
        let (name, rest) = rest.split_at_checked(name_bytes)?;
        let (control, rest) = rest.split_at_checked(control_bytes)?;
        let payload = rest.get(..payload_bytes)?;
        let whole = (HEAD_BYTES + name_bytes + control_bytes + payload_bytes).next_multiple_of(ALIGNMENT);
        self.left = self.left.get(whole..)?;
        Some(Datagram::whole(&Message { name, control, payload, length }))
    }
}

impl FusedIterator for PackedDatagrams<'_> {}

impl fmt::Debug for PackedDatagrams<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.clone()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmsg;

    fn batch(bytes: usize) -> PackedBatch {
        PackedBatch::pool(1, bytes, false).expect("memory").0.remove(0)
    }

    fn datagram<'a>(payload: &'a [u8], length: usize, control: &'a [u8]) -> Datagram<'a> {
        // sockaddr_in of 192.0.2.7:514.
        const NAME: [u8; 16] = [2, 0, 2, 2, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        Datagram::whole(&Message { name: &NAME, control, payload, length })
    }

    #[test]
    fn what_is_packed_is_read_back_with_its_source_its_length_and_its_control_messages() {
        let mut batch = batch(4096);
        let control = cmsg::encode(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &7_u32.to_ne_bytes());
        let sent: [(&[u8], usize, &[u8]); 4] =
            [(b"one", 3, &[]), (b"", 0, &control), (b"cut", 900, &control), (b"the last of them", 16, &[])];
        for (payload, length, control) in sent {
            assert!(batch.push(&datagram(payload, length, control)));
        }
        let read: Vec<_> = batch.datagrams().map(|one| (one.payload(), one.length(), one.drop_overflow())).collect();
        let expected = sent.map(|(payload, length, control)| (payload, length, (!control.is_empty()).then_some(7)));
        assert_eq!(read, expected);
        assert!(batch.datagrams().all(|one| one.source() == Some("192.0.2.7:514".parse().expect("an address"))));
        let Summary { datagrams, bytes, truncated, unsplit } = *batch.summary();
        assert_eq!((datagrams, bytes, truncated, unsplit), (4, 22, 1, 0));
        batch.clear();
        assert!(batch.is_empty() && batch.datagrams().next().is_none());
        assert_eq!(*batch.summary(), Summary::default());
    }

    #[test]
    fn a_datagram_takes_what_it_is_long_and_one_that_does_not_fit_changes_nothing() {
        let one = datagram(b"12345678", 8, &[]);
        assert_eq!(PackedBatch::bytes_for(&one), 40, "12 before it, 16 of the source, 8 of its own, rounded to 8");
        let mut batch = batch(4096);
        let pushed = std::iter::from_fn(|| batch.push(&one).then_some(())).count();
        assert_eq!((pushed, batch.used_bytes()), (102, 4080));
        assert_eq!(batch.summary().datagrams, 102);
        assert!(!batch.push(&one) && batch.datagrams().count() == 102);
    }

    #[test]
    fn the_longest_datagram_of_a_shape_fits_where_as_much_is_left_and_not_where_it_is_less() {
        let all = Control::new().packet_info(true).timestamps(true).gro(true).drop_overflow(true).other_bytes(64);
        for control in [Control::new(), Control::new().drop_overflow(true), all] {
            let shape = BatchShape::new(1, 3000).control(control);
            let layout = shape.layout();
            let (payload, control) = (vec![1; layout.slot_bytes], vec![0; layout.control_bytes]);
            let name = [0; size_of::<libc::sockaddr_in6>()];
            let (name, length) = (&name[..], payload.len());
            let longest = Datagram::whole(&Message { name, control: &control, payload: &payload, length });
            assert_eq!(PackedBatch::bytes_for(&longest), PackedBatch::bytes_max(&shape));
            assert!(batch(PackedBatch::bytes_max(&shape)).push(&longest));
            assert!(!batch(PackedBatch::bytes_max(&shape) - 8).push(&longest));
        }
    }

    #[test]
    fn what_is_expected_of_a_datagram_is_what_it_takes_with_the_control_messages_that_always_come() {
        let rare = Control::new().gro(true).drop_overflow(true).hardware_timestamps(true);
        for (control, messages, more_of_v4) in [
            (Control::new(), 0, 0),
            (rare, 0, 0),
            (rare.timestamps(true), cmsg::TIMESTAMP_SPACE, 0),
            (Control::new().packet_info(true), cmsg::PACKET_INFO_SPACE, cmsg::PACKET_INFO_V6_EXTRA),
        ] {
            for payload in [0, 1, 7, 8, 1_400] {
                let takes = |name: usize, control: usize| (12 + name + control + payload).next_multiple_of(8);
                let expected = |is_ipv6| PackedBatch::bytes_expected(&control, is_ipv6, payload);
                assert_eq!(expected(true), takes(28, messages), "{control:?}");
                assert_eq!(expected(false), takes(16, messages - more_of_v4), "{control:?}");
            }
        }
    }

    #[test]
    fn the_bytes_behind_the_last_whole_datagram_are_the_rest() {
        let mut bytes = Vec::new();
        pack(&datagram(b"whole", 5, &[]), &mut bytes);
        bytes.extend_from_slice(b"no datagram");
        let mut packed = PackedDatagrams::of(&bytes);
        assert_eq!((packed.by_ref().count(), packed.rest()), (1, &b"no datagram"[..]));
    }

    #[test]
    fn every_length_of_payload_and_control_leaves_the_next_datagram_whole() {
        let mut batch = batch(64 << 10);
        let bytes: Vec<u8> = (0..=255).collect();
        let mut pushed = 0;
        for length in 0..40 {
            for control in [0, 1, 7, 8, 24, 88] {
                assert!(batch.push(&datagram(&bytes[..length], length, &bytes[..control])));
                pushed += 1;
            }
        }
        let read: Vec<usize> = batch.datagrams().map(|one| one.payload().len()).collect();
        let expected: Vec<usize> = (0..40).flat_map(|length| [length; 6]).collect();
        assert_eq!((read.len(), read), (pushed, expected));
    }

    #[test]
    fn what_is_packed_into_bytes_is_taken_out_again_all_of_it_or_some() {
        let mut bytes = Vec::new();
        let control = cmsg::encode(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &7_u32.to_ne_bytes());
        pack(&datagram(b"one", 3, &control), &mut bytes);
        pack(&datagram(b"", 0, &[]), &mut bytes);
        let (source, arrival) = ("[2001:db8::1]:53".parse().expect("an address"), Duration::from_nanos(5_000_000_123));
        pack_known(source, Some(arrival), (b"three", 900), &mut bytes);
        let mut batch = batch(4096);
        assert!(batch.unpack(&bytes, |_| true));
        let read: Vec<_> = batch.datagrams().map(|one| (one.payload(), one.length(), one.drop_overflow())).collect();
        assert_eq!(read, [(&b"one"[..], 3, Some(7)), (b"", 0, None), (b"three", 900, None)]);
        let last = batch.datagrams().last().expect("three of them");
        assert_eq!((last.source(), last.arrival_since_epoch()), (Some(source), Some(arrival)));
        assert!(batch.unpack(&bytes, |place| place == 1));
        assert_eq!((batch.datagrams().count(), batch.summary().datagrams), (1, 1));
    }

    #[test]
    fn bytes_that_end_early_or_do_not_fit_are_no_datagrams() {
        let mut bytes = Vec::new();
        (0..3).for_each(|_| pack(&datagram(b"some payload", 12, &[]), &mut bytes));
        let mut room = batch(4096);
        for end in (0..bytes.len()).filter(|end| end % (bytes.len() / 3) != 0) {
            assert!(!room.unpack(&bytes[..end], |_| true) && room.is_empty(), "{end}");
        }
        while bytes.len() <= room.capacity_bytes() {
            pack(&datagram(b"some payload", 12, &[]), &mut bytes);
        }
        assert!(!room.unpack(&bytes, |_| true) && room.is_empty());
    }

    #[test]
    fn the_batches_of_a_pool_do_not_share_a_byte() {
        let (mut batches, _) = PackedBatch::pool(3, 4096, false).expect("memory");
        for (number, batch) in batches.iter_mut().enumerate() {
            let payload = [number as u8; 4000];
            assert!(batch.push(&datagram(&payload, 4000, &[])));
        }
        for (number, batch) in batches.iter().enumerate() {
            let payload = batch.datagrams().next().expect("one").payload();
            assert!(payload.iter().all(|byte| usize::from(*byte) == number));
        }
        assert!(PackedBatch::pool(0, 4096, false).is_err());
        assert!(PackedBatch::pool(usize::MAX, 4096, false).is_err());
    }
}
