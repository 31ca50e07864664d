//! The program, run by the kernel on frames that are not sent: what it hands over, and that everything else passes.
//! Needs the right to load it; without that the tests say so and end.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::testing::rounds;
use crate::xdp::frame::{ChecksumState, FrameError, UdpFrame};
use crate::xdp::options::Checksums;
use crate::xdp::testing::{Sample, damage};
use bpf::{Map, Program, ProgramKind};

/// `XDP_DROP`: what the program says here when it would have handed a frame over, because no queue has a socket.
const TAKEN: u32 = 1;

/// The longest frame that the only queue takes.
const LONGEST: u32 = 1600;

/// The program, for port 5140 of a card with the address that samples are sent to.
fn load(tagged: bool) -> Option<OwnedFd> {
    load_with(tagged, |_| HiddenState::Unseen)
}

/// The same, with what it knows of what a frame does not show; it may be told by a map with one value.
#[allow(clippy::print_stderr)]
fn load_with<'a>(tagged: bool, hidden: impl FnOnce(&'a Map) -> HiddenState<'a>) -> Option<OwnedFd> {
    let name = "mmsg_test";
    let made =
        [Map::hash(name, KEY_BYTES, 1, 8), Map::of_sockets(name, 4), Map::array(name, 4, 4), Map::array(name, 4, 1)];
    let maps: Vec<Map> = match made.into_iter().collect() {
        Ok(maps) => maps,
        Err(error) => {
            eprintln!("not tested: the program, because {error}; to load it takes CAP_BPF and CAP_NET_ADMIN");
            return None;
        }
    };
    // They live as long as the tests do.
    let [addresses, sockets, longest, told] = &*maps.leak() else { unreachable!("four were made") };
    for address in ["10.8.0.1", "fd00::1"] {
        let card = [2, 0, 0, 0, 0, 1];
        addresses.update(&key(card, address.parse().expect("valid")), &[1]).expect("there is room");
    }
    longest.update(&[0; 4], &LONGEST.to_ne_bytes()).expect("an array");
    let hidden = hidden(told);
    let filter = Filter { port: 5140, tagged, otherwise: TAKEN, asks_length: true, hidden };
    let maps = ProgramMaps { addresses: addresses.as_fd(), sockets: sockets.as_fd(), longest: longest.as_fd() };
    let load = |asks_length| {
        let instructions = &assemble(&Filter { asks_length, ..filter }, &maps);
        Program { license: LICENSE, ..Program::new(ProgramKind::Xdp, name, instructions) }.load()
    };
    // Both ways, where the kernel knows both.
    let whole = load(false).expect("the verifier accepts it");
    Some(load(true).unwrap_or(whole))
}

fn is_taken(program: &OwnedFd, frame: &[u8]) -> bool {
    match bpf::run(program.as_fd(), &mut bpf::TestRun::once(frame)).expect("it runs").returned {
        TAKEN => true,
        PASS => false,
        other => panic!("no verdict of this program: {other}"),
    }
}

fn changed(sample: &Sample, at: usize, byte: u8) -> Vec<u8> {
    let mut frame = sample.frame();
    frame[at] = byte;
    frame
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn whole_datagrams_to_the_addresses_and_the_port_are_handed_over() {
    let (Some(plain), Some(tagged)) = (load(false), load(true)) else { return };
    for payload in [&b""[..], b"x", &[7; 1400]] {
        for sample in [Sample::v4(payload), Sample::v6(payload)] {
            assert!(is_taken(&plain, &sample.frame()) && is_taken(&tagged, &sample.frame()), "{sample:?}");
            let sample = sample.tagged(42);
            assert!(is_taken(&tagged, &sample.frame()), "{sample:?}");
            assert!(!is_taken(&plain, &sample.frame()), "tags were not asked for");
        }
    }
    let mut sample = Sample::v4(b"x");
    sample.fragment = MAY_NOT_BE_CUT;
    assert!(is_taken(&plain, &sample.frame()));
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn everything_unusual_passes() {
    let Some(program) = load(true) else { return };
    let (four, six) = (Sample::v4(b"payload"), Sample::v6(b"payload"));
    let passes = [
        ("to another Ethernet address", changed(&four, 5, 2)),
        ("a broadcast", [&[0xff; 6], &four.frame()[6..]].concat()),
        ("ARP", changed(&four, 13, 0x06)),
        ("IP options", changed(&four, 14, 0x46)),
        ("a first fragment", changed(&four, 20, 0x20)),
        ("a later fragment", changed(&four, 21, 0x01)),
        ("the reserved bit", changed(&four, 20, 0x80)),
        ("ICMP", changed(&four, 23, 1)),
        ("TCP", changed(&four, 23, 6)),
        ("a sender of 0.x", changed(&four, 26, 0)),
        ("a host that sends to itself", changed(&four, 29, 1)),
        ("a host that sends to itself, IPv6", changed(&six, 37, 1)),
        ("a sender of 127.x", changed(&four, 26, 127)),
        ("a group as a sender", changed(&four, 26, 239)),
        ("a broadcast address as a sender", changed(&four, 26, 255)),
        ("another address", changed(&four, 33, 2)),
        ("another port", changed(&four, 37, 0)),
        ("IPv6 of version 4", changed(&six, 14, 0x40)),
        ("an extension header", changed(&six, 20, 0)),
        ("a fragment header", changed(&six, 20, 44)),
        ("ICMPv6", changed(&six, 20, 58)),
        ("a group as a sender, IPv6", changed(&six, 22, 0xff)),
        ("another address, IPv6", changed(&six, 53, 2)),
        ("another port, IPv6", changed(&six, 57, 0)),
        ("two tags", [&four.clone().tagged(1).frame()[..16], &four.clone().tagged(1).frame()[12..]].concat()),
    ];
    for (what, frame) in passes {
        assert!(!is_taken(&program, &frame), "{what}");
    }
    for source in ["::", "::1", "::ffff:10.8.0.2", "::10.8.0.2"] {
        let mut sample = Sample::v6(b"payload");
        sample.source = source.parse().expect("valid");
        assert!(!is_taken(&program, &sample.frame()), "from {source}");
    }
    for destination in ["::ffff:10.8.0.1", "::10.8.0.1"] {
        let mut sample = Sample::v6(b"payload");
        sample.destination = destination.parse().expect("valid");
        assert!(!is_taken(&program, &sample.frame()), "to {destination}, whose key is that of an IPv4 address");
    }
    let mut jumbo = Sample::v6(b"payload");
    jumbo.udp_bytes = Some(0);
    assert!(!is_taken(&program, &jumbo.frame()), "a length of 0 is for the stack");
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn a_sender_with_almost_the_same_address_is_handed_over() {
    let Some(program) = load(false) else { return };
    let from = |address: &str| {
        let mut sample = Sample::v6(b"payload");
        sample.source = address.parse().expect("valid");
        is_taken(&program, &sample.frame())
    };
    assert!(from("fd01::1") && from("fd00:0:1::1") && from("fd00::1:0:0:1") && from("fd00::1:0:1"));
    assert!(!from("fd00::1"), "that is the receiver itself");
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn what_is_longer_than_a_chunk_passes() {
    let Some(program) = load(false) else { return };
    for (headers, sample) in [(42, Sample::v4 as fn(&[u8]) -> Sample), (62, Sample::v6)] {
        for bytes in [LONGEST as usize - 1, LONGEST as usize, LONGEST as usize + 1, 3000] {
            let frame = sample(&vec![7; bytes - headers]).frame();
            assert_eq!(is_taken(&program, &frame), bytes <= LONGEST as usize, "{} bytes", frame.len());
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn above_the_driver_a_checksum_that_is_not_finished_passes_and_any_other_does_not() {
    let Some(program) = load_with(false, |_| HiddenState::Guessed) else { return };
    let mut random = fastrand::Rng::with_seed(0x5eed_0106);
    for _ in 0..rounds() / 4 {
        let mut sample = Sample::random(&mut random, 60);
        if sample.source.is_ipv6() {
            sample.source = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(random.u64(..)) << 32 | 9).into();
        }
        let frame = sample.frame();
        let at = if sample.source.is_ipv4() { 40 } else { 60 };
        let mut unfinished = frame.clone();
        unfinished[at..at + 2].copy_from_slice(&sum_of_addresses_and_length(&frame));
        // One finished checksum in 65,536 is the sum of addresses and length as well, and its frame passes.
        let is_by_chance = unfinished == frame;
        assert_eq!(is_taken(&program, &frame), !is_by_chance, "{frame:?}");
        assert!(is_by_chance || UdpFrame::read(&unfinished, Checksums::Verified) == Err(FrameError::Checksum));
        assert_eq!(
            UdpFrame::read(&unfinished, Checksums::VerifiedOrLeftToDevice).map(|udp| udp.checksum_state),
            Ok(if is_by_chance { ChecksumState::Right } else { ChecksumState::LeftToDevice })
        );
        assert!(!is_taken(&program, &unfinished), "{unfinished:?}");
    }
}

/// What the kernel leaves in the field for a device to go on with, added up in another way than `frame.rs` does.
fn sum_of_addresses_and_length(frame: &[u8]) -> [u8; 2] {
    let (addresses, udp) = if frame[14] >> 4 == 4 { (26..34, 34) } else { (22..54, 54) };
    let pairs = frame[addresses].chunks(2).chain([&frame[udp + 4..udp + 6]]);
    let sum = pairs.map(|pair| u64::from(pair[0]) * 256 + u64::from(pair[1])).sum::<u64>() + 17;
    (((sum - 1) % 0xffff + 1) as u16).to_be_bytes()
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn what_was_noted_of_a_frame_passes() {
    for (tagged, note, expected) in [
        (false, 0, true),
        (false, HAS_TAG, false),
        (false, IS_TRAIN, false),
        (true, HAS_TAG, true),
        (true, HAS_TAG | IS_TRAIN, false),
    ] {
        let hidden = |told: &'static Map| {
            told.update(&[0; 4], &note.to_ne_bytes()).expect("an array");
            HiddenState::Noted(told.as_fd())
        };
        let Some(program) = load_with(tagged, hidden) else { return };
        assert_eq!(is_taken(&program, &Sample::v4(b"x").frame()), expected, "{tagged} {note}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn a_frame_of_any_length_is_handed_over_only_with_all_its_headers() {
    let Some(program) = load(true) else { return };
    for (sample, headers) in [
        (Sample::v4(b"12345678"), 42),
        (Sample::v6(b"12345678"), 62),
        (Sample::v4(b"12345678").tagged(1), 46),
        (Sample::v6(b"12345678").tagged(1), 66),
    ] {
        let frame = sample.frame();
        // The kernel runs no program on less than an Ethernet header.
        for length in 14..=frame.len() {
            assert_eq!(is_taken(&program, &frame[..length]), length >= headers, "{length} bytes of {sample:?}");
        }
    }
}

/// What is handed over and then refused would be lost to the ordinary socket: it must be what the kernel drops too.
#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn what_is_handed_over_is_refused_only_for_lengths_and_checksums() {
    let Some(program) = load(true) else { return };
    let mut random = fastrand::Rng::with_seed(0x5eed_0103);
    let (mut taken, mut read) = (0, 0);
    for _ in 0..rounds() {
        let sample = Sample::random(&mut random, 30);
        let mut frame = if random.usize(..3) == 0 { sample.tagged(5).frame() } else { sample.frame() };
        // Mostly in the headers. The kernel runs no program on less than an Ethernet header.
        damage(&mut frame, &mut random, 70, 14);
        if !is_taken(&program, &frame) {
            continue;
        }
        taken += 1;
        match UdpFrame::read(&frame, Checksums::Verified) {
            Ok(udp) => {
                assert_eq!(udp.destination_port, 5140, "{frame:?}");
                read += 1;
            }
            Err(FrameError::Malformed) => assert!(has_wrong_length(&frame), "{frame:?}"),
            Err(_) => {}
        }
    }
    assert!(taken > read && read > rounds() / 20, "{taken} were handed over, {read} of them datagrams");
}

/// Whether the lengths of IP and UDP contradict each other or the frame, found in another way than `frame.rs` does.
fn has_wrong_length(frame: &[u8]) -> bool {
    let frame = if frame[12..14] == [0x81, 0] { &frame[4..] } else { frame };
    let big = |at: usize| usize::from(frame[at]) * 256 + usize::from(frame[at + 1]);
    let (packet, udp) = if frame[14] >> 4 == 4 { (big(16), big(38)) } else { (40 + big(18), big(58)) };
    let headers = if frame[14] >> 4 == 4 { 20 } else { 40 };
    14 + packet > frame.len() || udp < 8 || headers + udp > packet
}
