//! A fuzz target: frames past the kernel's stack.

use std::net::SocketAddr;
use std::time::Duration;

use super::Checksums;
use super::frame::{ChecksumState, UdpFrame, fold, sum};
use super::sender_cmsg::{self, BatchFacts};
use crate::datagram::{Datagram, Message};
use crate::shape::{BatchShape, Control};

const EVERYTHING: Control = Control::new().timestamps(true).packet_info(true).hop_limit(true).traffic_class(true);

/// A frame as it is, and with right checksums, which chance does not find.
pub(crate) fn frame(input: &[u8]) {
    read(input);
    let mut mended = input.to_vec();
    let tag = if input.get(12..14) == Some(&[0x81, 0]) { 4 } else { 0 };
    if let Some(header) = mended.get_mut(14 + tag..34 + tag) {
        header[10..12].fill(0);
        let checksum = !fold(sum(header));
        header[10..12].copy_from_slice(&checksum.to_ne_bytes());
    }
    read(&mended);
    let Ok(udp) = UdpFrame::read(&mended, Checksums::Unverified) else { return };
    // The pseudo header: addresses, length and protocol.
    let at = udp.payload.start - 8;
    let addresses = if udp.source.is_ipv4() { at - 8..at } else { at - 32..at };
    let fixed = sum(&mended[addresses]) + sum(&mended[at + 4..at + 6]) + sum(&[0, 17]);
    for is_left in [false, true] {
        mended[at + 6..at + 8].fill(0);
        let covered = if is_left { 0 } else { sum(&mended[at..udp.payload.end]) };
        let checksum = fold(fixed + covered);
        let checksum = if is_left { checksum } else { !checksum };
        let checksum = if checksum == 0 { u16::MAX } else { checksum };
        mended[at + 6..at + 8].copy_from_slice(&checksum.to_ne_bytes());
        let how = if is_left { Checksums::VerifiedOrLeftToDevice } else { Checksums::Verified };
        assert!(UdpFrame::read(&mended, how).is_ok());
        read(&mended);
    }
}

/// A payload lies in its frame, what is proven is also read unproven, and what is written of a datagram is read again.
fn read(input: &[u8]) {
    let [verified, left, unverified] = [Checksums::Verified, Checksums::VerifiedOrLeftToDevice, Checksums::Unverified]
        .map(|how| UdpFrame::read(input, how));
    let as_unasked = |read: &UdpFrame| UdpFrame { checksum_state: ChecksumState::Unasked, ..read.clone() };
    if let Ok(udp) = &verified {
        assert!(udp.checksum_state == ChecksumState::Right || udp.checksum_state == ChecksumState::Absent);
        assert_eq!(left.as_ref(), Ok(udp));
    }
    if let Ok(udp) = &left {
        assert_eq!(unverified.as_ref(), Ok(&as_unasked(udp)));
    }
    let Ok(udp) = unverified else { return };
    let payload = input.get(udp.payload.clone()).expect("it lies in the frame");
    let facts = BatchFacts { wanted: EVERYTHING, interface: 7, arrival: Duration::new(1, 2) };
    let mut control = vec![0; BatchShape::new(1, 1).control(EVERYTHING).layout().control_bytes];
    let end = sender_cmsg::write(&mut control, &facts, &udp);
    let name = sender_cmsg::sender(&udp, 7);
    let message = Message { name: name.as_bytes(), control: &control[..end], payload, length: payload.len() };
    let datagram = Datagram::whole(&message);
    let source = datagram.source().map(|source| SocketAddr::new(source.ip(), source.port()));
    assert_eq!(source, Some(SocketAddr::new(udp.source.to_canonical(), udp.source_port)));
    assert_eq!(datagram.destination(), Some(udp.destination.to_canonical()));
    assert_eq!(datagram.interface_index(), Some(7));
    assert_eq!(datagram.arrival_since_epoch(), Some(facts.arrival));
    assert_eq!((datagram.traffic_class(), datagram.hop_limit()), (Some(udp.traffic_class), Some(udp.hop_limit)));
}
