//! Fuzz targets: what senders, proxies and the kernel write, and what lies packed on a disk.

use std::net::{IpAddr, SocketAddr};

use crate::addr::{self, array};
use crate::cmsg;
use crate::datagram::{Datagram, MAX_SEGMENTS, Message, Train, ordinals};
use crate::proxy::{self, Flaw, Prefix};
use crate::{ControlMessages, PackedBatch, PackedDatagrams, pack};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![
        ("proxy", proxy_header),
        ("frames", crate::xdp::fuzz::frame),
        ("control_messages", control_messages),
        ("trains", train),
        ("packed", packed),
        ("socket_addresses", socket_address),
    ]
}

/// A header never ends behind its datagram, is the same whatever follows it, and names the sender that was written.
fn proxy_header(input: &[u8]) {
    let message = Message { name: &[], control: &[], payload: input, length: input.len() };
    let whole = Datagram::whole(&message);
    match proxy::read(input) {
        Err(flaw) => {
            assert_eq!(flaw == Flaw::Missing, !input.starts_with(b"\r\n\r\n\0\r\nQUIT\n"));
            assert_eq!(whole.unwrapped().payload(), input);
        }
        Ok(header) => {
            assert_eq!(proxy::read(&input[..header.bytes]), Ok(header));
            let unwrapped = whole.unwrapped();
            assert_eq!(unwrapped.payload(), &input[header.bytes..]);
            assert_eq!(unwrapped.length(), unwrapped.payload().len());
            assert_eq!(unwrapped.source().is_some(), header.name(input).is_some());
            if let Some(source) = unwrapped.source() {
                assert!(!matches!(source.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()));
                written_again(source, SocketAddr::from(([10, 0, 0, 1], 514)));
                written_again(source, SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 514)));
            }
        }
    }
    if let (Some(from), Some(to)) = (array::<4>(input, 0), array::<16>(input, 4)) {
        let (from, to) = (SocketAddr::from((from, 7)), SocketAddr::from((to, 8)));
        written_again(from, to);
        written_again(to, from);
    }
}

fn written_again(source: SocketAddr, destination: SocketAddr) {
    let prefix = Prefix::new(source, destination);
    let header = proxy::read(prefix.as_bytes()).expect("a header of ours");
    assert_eq!(header.bytes, prefix.as_bytes().len());
    let canonical = SocketAddr::new(source.ip().to_canonical(), source.port());
    assert_eq!(header.name(prefix.as_bytes()).and_then(proxy::source), Some(canonical));
}

/// What is read of a control space and written again is the same, and each decoder says what the message says that it
/// finds first.
fn control_messages(input: &[u8]) {
    let messages: Vec<_> = ControlMessages::new(input).collect();
    assert!(messages.len() <= input.len() / cmsg::space(0));
    let mut again = vec![0; input.len() + cmsg::space(0)];
    let mut end = 0;
    for message in &messages {
        end = cmsg::put(&mut again, end, message.level, message.kind, message.data);
    }
    assert!(ControlMessages::new(&again[..end]).eq(messages.iter().copied()));
    let message = Message { name: &[], control: input, payload: &[], length: 0 };
    let datagram = Datagram::whole(&message);
    let has = |level, kind| messages.iter().any(|message| message.level == level && message.kind == kind);
    let is_told =
        |told: bool, kinds: &[(i32, i32)]| assert!(!told || kinds.iter().any(|(level, kind)| has(*level, *kind)));
    is_told(datagram.drop_overflow().is_some(), &[(libc::SOL_SOCKET, libc::SO_RXQ_OVFL)]);
    is_told(datagram.arrival().is_some(), &[(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)]);
    is_told(datagram.hardware_arrival().is_some(), &[(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING)]);
    is_told(datagram.ecn().is_some(), &[(libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)]);
    let hops = [(libc::IPPROTO_IP, libc::IP_TTL), (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)];
    is_told(datagram.hop_limit().is_some(), &hops);
    let destinations = [(libc::IPPROTO_IP, libc::IP_PKTINFO), (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)];
    is_told(datagram.destination().is_some(), &destinations);
    assert!(
        datagram.destination().is_some()
            || datagram.interface_index().or(datagram.local_address().map(|_| 0)).is_none()
    );
    assert_eq!(cmsg::gro_segment(input).is_some(), has(libc::SOL_UDP, libc::UDP_GRO));
}

/// The datagrams of a train have all of its bytes, in order, and each but the last is a segment long.
fn train(input: &[u8]) {
    let Some((head, rest)) = input.split_first_chunk::<4>() else { return };
    let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
    let control = &rest[..rest.len().min(head[2].into())];
    let kept = length.min(rest.len());
    let message = Message { name: &[], control, payload: &rest[..kept], length };
    let Some(train) = Train::read(length, control, head[3] == 1) else { return };
    assert!((1..=MAX_SEGMENTS).contains(&train.segments));
    let mut read = Vec::new();
    let mut sum = 0;
    for ordinal in ordinals(train.all()) {
        let one = Datagram::cut(&message, train.segment_bytes, usize::MAX, ordinal);
        assert!(one.length() == train.segment_bytes || ordinal + 1 == train.segments);
        assert!(one.payload().len() <= one.length());
        sum += one.length();
        read.extend_from_slice(one.payload());
        let short = Datagram::cut(&message, train.segment_bytes, 9, ordinal);
        assert_eq!(short.payload(), &one.payload()[..one.payload().len().min(9)]);
        assert_eq!(short.length(), one.length());
    }
    assert_eq!((sum, read.as_slice()), (length, message.payload));
}

/// What is read of packed datagrams and packed again is the same, and both readers agree where it ends.
fn packed(input: &[u8]) {
    let mut datagrams = PackedDatagrams::of(input);
    let (mut again, mut count, mut left) = (Vec::new(), 0, input.len());
    while let Some(one) = datagrams.next() {
        assert!(datagrams.rest().len() < left);
        left = datagrams.rest().len();
        count += 1;
        pack(&one, &mut again);
    }
    assert_eq!(again.len(), input.len() - left);
    let same = |(one, other): (Datagram<'_>, Datagram<'_>)| {
        let (one, other) = (one.message(), other.message());
        (one.name, one.control, one.payload, one.length) == (other.name, other.control, other.payload, other.length)
    };
    assert!(PackedDatagrams::of(&again).zip(PackedDatagrams::of(input)).all(same));
    let mut batch = PackedBatch::pool(1, input.len().max(64), false).expect("memory").0.remove(0);
    assert_eq!(batch.unpack(input, |_| true), left == 0);
    assert_eq!(batch.datagrams().count(), if left == 0 { count } else { 0 });
    assert_eq!(batch.summary().datagrams, batch.datagrams().count() as u64);
    // Half of the room.
    let mut batch = PackedBatch::pool(1, (input.len() / 2).max(64), false).expect("memory").0.remove(0);
    let fits = batch.unpack(input, |place| place % 2 == 1);
    assert!(!fits || batch.datagrams().zip(PackedDatagrams::of(input).skip(1).step_by(2)).all(same));
}

/// What is read of an address and written again is read as the same.
fn socket_address(input: &[u8]) {
    if let Some(address) = addr::decode(input) {
        assert_eq!(addr::decode(addr::encode(address).as_bytes()), Some(address));
    }
}
