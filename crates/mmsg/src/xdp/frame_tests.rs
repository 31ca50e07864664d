//! Frames that are right, wrong in one place, and random: what is read of them, and that nothing panics. The frames are
//! built by other means than they are read.

use super::*;
use crate::testing::rounds;
use crate::xdp::testing::{Sample, damage};
use Checksums::{Unverified, Verified, VerifiedOrLeftToDevice};

fn read(sample: &Sample) -> Result<UdpFrame, FrameError> {
    read_frame(&sample.frame())
}

fn read_frame(frame: &[u8]) -> Result<UdpFrame, FrameError> {
    UdpFrame::read(frame, VerifiedOrLeftToDevice)
}

#[test]
fn a_datagram_of_either_family_is_read_with_and_without_a_tag() {
    for (sample, headers) in [
        (Sample::v4(b"payload"), 42),
        (Sample::v6(b"payload"), 62),
        (Sample::v4(b"payload").tagged(7), 46),
        (Sample::v6(b"payload").tagged(4095), 66),
        (Sample::v4(b""), 42),
        (Sample::v6(&[0xff; 1453]), 62),
    ] {
        let udp = read(&sample).expect("a datagram");
        assert_eq!(udp.source, sample.source, "{sample:?}");
        assert_eq!(udp.destination, sample.destination);
        assert_eq!((udp.source_port, udp.destination_port), (4444, 5140));
        assert_eq!((udp.traffic_class, udp.hop_limit), (0xb9, 64));
        assert_eq!(udp.payload, headers..headers + sample.payload.len());
        assert_eq!(udp.checksum_state, ChecksumState::Right);
    }
}

#[test]
fn what_pads_a_short_frame_is_not_payload() {
    let mut frame = Sample::v4(b"x").frame();
    frame.resize(60, 0xaa);
    assert_eq!(read_frame(&frame).expect("a datagram").payload, 42..43);
}

#[test]
fn a_packet_longer_than_its_datagram_is_cut_as_the_kernel_does() {
    let mut sample = Sample::v4(b"1234");
    sample.udp_bytes = Some(UDP_BYTES as u16 + 2);
    assert_eq!(read(&sample).expect("a datagram").payload, 42..44);
}

#[test]
fn lengths_that_contradict_the_frame_are_refused() {
    for udp_bytes in [0, 7, 13, 65_535] {
        for mut sample in [Sample::v4(b"1234"), Sample::v6(b"1234")] {
            sample.udp_bytes = Some(udp_bytes);
            assert_eq!(read(&sample), Err(FrameError::Malformed), "UDP says {udp_bytes}");
        }
    }
    for sample in [Sample::v4(b"1234"), Sample::v6(b"1234"), Sample::v4(b"1234").tagged(1)] {
        let whole = sample.frame();
        for length in 0..whole.len() {
            assert_eq!(read_frame(&whole[..length]), Err(FrameError::Malformed), "{length} bytes of {sample:?}");
        }
    }
}

#[test]
fn what_the_program_never_hands_over_is_refused() {
    let changes: [(usize, u8, &str); 6] = [
        (12, 0x86, "an unknown type"),
        (14, 0x46, "options"),
        (14, 0x55, "version 5"),
        (20, 0x20, "a first fragment"),
        (21, 0x01, "a later fragment"),
        (23, 6, "TCP"),
    ];
    for (at, byte, what) in changes {
        let mut frame = Sample::v4(b"1234").frame();
        frame[at] = byte;
        assert_eq!(read_frame(&frame), Err(FrameError::Malformed), "{what}");
    }
    let mut frame = Sample::v6(b"1234").frame();
    frame[20] = 44;
    assert_eq!(read_frame(&frame), Err(FrameError::Malformed), "a fragment header");
    let frame = Sample::v4(b"1234").tagged(1).frame();
    let two_tags = [&frame[..16], &frame[12..]].concat();
    assert_eq!(read_frame(&two_tags), Err(FrameError::Malformed), "two tags");
}

#[test]
fn that_it_may_not_be_cut_makes_no_fragment() {
    let mut sample = Sample::v4(b"1234");
    sample.fragment = MAY_NOT_BE_CUT;
    assert!(read(&sample).is_ok());
}

#[test]
fn every_bit_of_damage_is_found_by_a_checksum() {
    for sample in [Sample::v4(b"some payload"), Sample::v6(b"odd payload")] {
        let whole = sample.frame();
        let headers = whole.len() - sample.payload.len() - UDP_BYTES;
        for at in headers..whole.len() {
            for bit in 0..8 {
                let mut frame = whole.clone();
                frame[at] ^= 1 << bit;
                let error = read_frame(&frame).expect_err("damaged");
                let is_length = (headers + 4..headers + 6).contains(&at);
                assert!(error == FrameError::Checksum || (is_length && error == FrameError::Malformed), "{at} {bit}");
                assert!(is_length || UdpFrame::read(&frame, Unverified).is_ok(), "the checksum was not asked for");
            }
        }
    }
    let mut frame = Sample::v4(b"some payload").frame();
    frame[22] ^= 1;
    assert_eq!(UdpFrame::read(&frame, Unverified), Err(FrameError::HeaderChecksum), "which the kernel verifies always");
}

#[test]
fn a_checksum_that_was_left_to_the_device_is_known_and_not_taken_for_a_wrong_one() {
    for mut sample in [Sample::v4(b"left"), Sample::v6(b"left"), Sample::v4(b"odd"), Sample::v6(b"")] {
        sample.leave_checksum = true;
        assert_eq!(read(&sample).expect("a datagram").checksum_state, ChecksumState::LeftToDevice);
        assert_eq!(UdpFrame::read(&sample.frame(), Verified), Err(FrameError::Checksum), "nothing is left on a wire");
        let unverified = UdpFrame::read(&sample.frame(), Unverified).expect("a datagram");
        assert_eq!(unverified.checksum_state, ChecksumState::Unasked);
    }
}

#[test]
fn no_checksum_is_legal_for_ipv4_alone() {
    let (mut four, mut six) = (Sample::v4(b"none"), Sample::v6(b"none"));
    (four.checksum, six.checksum) = (Some(0), Some(0));
    assert_eq!(read(&four).expect("legal").checksum_state, ChecksumState::Absent);
    assert_eq!(read(&six), Err(FrameError::NoChecksum));
}

#[test]
fn a_sum_is_the_same_however_its_bytes_are_cut() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0100);
    let mut bytes = [0; 97];
    random.fill(&mut bytes);
    for length in 0..bytes.len() {
        let slow = bytes[..length]
            .chunks(2)
            .fold(0_u64, |sum, pair| sum + u64::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
        assert_eq!(fold(sum(&bytes[..length])), fold(slow), "{length} bytes");
    }
}

#[test]
fn random_frames_never_panic_and_what_is_read_lies_within_them() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0101);
    let mut datagrams = 0;
    for _ in 0..rounds() {
        let sample = Sample::random(&mut random, 40);
        let mut frame = if random.bool() { sample.tagged(1).frame() } else { sample.frame() };
        let within = frame.len();
        damage(&mut frame, &mut random, within, 1);
        if let Ok(udp) = UdpFrame::read(&frame, [Unverified, Verified][random.usize(..2)]) {
            assert!(frame.get(udp.payload.clone()).is_some(), "{udp:?} of {frame:?}");
            datagrams += 1;
        }
    }
    assert!(datagrams > 0, "the generator never made a datagram, so nothing was tested");
}
