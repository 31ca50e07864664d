//! The program of the kernel against the writer, frame by frame, and the writer against sums that are added up slowly.
//!
//! The kernel runs the program on order here without sending anything, which needs the right to load one; where that is
//! missing the comparison says so and ends.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use super::*;
use crate::frame_template::{FrameTime, FrameWriter};
use crate::state::{CORE, OFFSET, TIME};
use crate::{Mix, PayloadMarks, SizeOrder};

const FACTORS: [u64; 4] = [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1];
const TIMES: FrameTime = FrameTime { monotonic_ns: 0x0123_4567_89ab_cdef, realtime_offset_ns: -0x0fed_cba9_8765_4321 };

fn spec(to: &str, first_source: &str, sources: u32, flows: u32) -> FrameSpec {
    let to: SocketAddr = to.parse().expect("an address");
    FrameSpec {
        destination_mac: [2, 0, 0, 0, 0, 2],
        source_mac: [2, 0, 0, 0, 0, 1],
        destination: to,
        first_source: first_source.parse().expect("an address"),
        sources,
        flows,
        mix: Mix::Uniform,
        sizes: vec![64],
        size_order: SizeOrder::InTurn,
        checksum: true,
        marks: PayloadMarks { magic: [0xb5, 2], run: 0xbeef, factors: FACTORS, flow_bits: 24 },
        body: (0..2_000_u32).map(|place| ((place * 167) ^ (place >> 8)) as u8).collect(),
        seed: 0x5eed,
    }
}

fn specs() -> Vec<FrameSpec> {
    let (v4, v6) = ("10.8.0.1:5140", "[2001:db8::1]:5140");
    let mut specs = vec![
        spec(v4, "10.8.0.2", 1, 1),
        spec(v4, "198.18.0.0", 1 << 17, 1_000_000),
        spec(v6, "2001:2::", 1 << 20, 1_000_000),
        FrameSpec { mix: Mix::RoundRobin, ..spec(v4, "10.8.0.2", 1, 5) },
        FrameSpec { mix: Mix::RoundRobin, ..spec(v6, "2001:db8::2", 1, 32_768) },
        FrameSpec { mix: Mix::Hot { share: 0.3 }, ..spec(v4, "10.0.0.255", 1_000, 1_000) },
        FrameSpec { mix: Mix::Hot { share: 1.0 }, ..spec(v6, "2001:2::", 2, 2) },
        FrameSpec { mix: Mix::Zipf { exponent: 1.1 }, ..spec(v6, "2001:2::ffff:0", 65_536, 65_536) },
        FrameSpec { checksum: false, ..spec(v4, "10.8.0.2", 1, 100) },
    ];
    let sizes = [vec![0], vec![15], vec![16], vec![31], vec![33], vec![1472], vec![0, 1, 15, 16, 17, 31, 32, 33, 1471]];
    let lists = sizes.into_iter().chain([vec![18, 548, 1472], (64..=1400).collect()]);
    for (at, sizes) in lists.enumerate() {
        let size_order = if at % 2 == 0 { SizeOrder::AtRandom } else { SizeOrder::InTurn };
        specs.push(FrameSpec { sizes: sizes.clone(), size_order, ..spec(v4, "198.18.0.0", 4, 100_000) });
        specs.push(FrameSpec { sizes, size_order, ..spec(v6, "2001:2::", 4, 100_000) });
    }
    specs
}

/// The sum of RFC 1071, byte by byte and in the order of the network.
fn slow_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for (at, byte) in part.iter().enumerate() {
            sum += if at % 2 == 0 { u32::from(*byte) << 8 } else { u32::from(*byte) };
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Reads a frame as a receiver does, and returns where it comes from, its payload, and whether it has a checksum.
fn read(frame: &[u8]) -> (SocketAddr, &[u8], bool) {
    let (addresses, source, udp): (&[u8], IpAddr, &[u8]) = match word(frame, 12) {
        0x0800 => {
            let (header, udp) = frame[14..].split_at(20);
            assert_eq!((header[0], usize::from(word(header, 2)), header[9]), (0x45, frame.len() - 14, 17));
            assert_eq!(slow_sum(&[header]), 0xffff, "the header's checksum");
            let source = <[u8; 4]>::try_from(&header[12..16]).expect("four");
            (&header[12..20], source.into(), udp)
        }
        0x86dd => {
            let (header, udp) = frame[14..].split_at(40);
            assert_eq!((header[0] >> 4, usize::from(word(header, 4)), header[6]), (6, udp.len(), 17));
            let source = <[u8; 16]>::try_from(&header[8..24]).expect("sixteen");
            (&header[8..40], source.into(), udp)
        }
        other => panic!("ethertype {other:#x}"),
    };
    assert_eq!(usize::from(word(udp, 4)), udp.len());
    assert_eq!(word(udp, 2), 5140);
    let has_sum = word(udp, 6) != 0;
    if has_sum {
        assert_eq!(slow_sum(&[addresses, &[0, 17], &udp[4..6], udp]), 0xffff, "the UDP checksum");
    }
    (SocketAddr::new(source, word(udp, 0)), &udp[8..], has_sum)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

#[test]
#[cfg_attr(miri, ignore = "a million flows and nothing unsafe, and slow there")]
fn every_frame_of_the_writer_is_whole_and_says_its_flow_its_sequence_and_its_time() {
    for spec in specs() {
        let mut writer = FrameWriter::new(&spec).expect("a spec that can be");
        let mut frame = writer.buffer();
        let mut next = std::collections::HashMap::new();
        for _ in 0..2_000 {
            let length = writer.write(&mut frame, TIMES);
            let (source, payload, has_sum) = read(&frame[..length]);
            assert_eq!(has_sum, spec.checksum);
            assert!(spec.sizes.contains(&(payload.len() as u16)));
            if payload.len() < 16 {
                assert_eq!(payload, &spec.body[..payload.len()]);
                continue;
            }
            let number = long(payload, 8);
            let (flow, sequence) = ((number >> 40) as u32, number & ((1 << 40) - 1));
            assert_eq!(source, spec.source(flow));
            let timed = payload.len() >= 32;
            let expected = next.entry(flow).or_insert(0);
            // Of sizes that have no number a flow's sequence counts on unseen.
            assert!(sequence >= *expected && (sequence == *expected || spec.sizes.iter().any(|size| *size < 16)));
            *expected = sequence + 1;
            let mut check = FACTORS[0]
                .wrapping_mul((payload.len() as u64) << 16 | 0xbeef)
                .wrapping_add(FACTORS[1].wrapping_mul(number));
            if timed {
                let (time, offset) = (long(payload, 16), long(payload, 24));
                assert_eq!((time, offset), (TIMES.monotonic_ns, TIMES.realtime_offset_ns.cast_unsigned()));
                check = check.wrapping_add(FACTORS[2].wrapping_mul(time)).wrapping_add(FACTORS[3].wrapping_mul(offset));
            }
            assert_eq!(payload[..4], [0xb5, 2, 0xef, 0xbe]);
            assert_eq!(payload[4..8], ((check ^ (check >> 32)) as u32).to_le_bytes());
            let body = if timed { 32 } else { 16 };
            assert_eq!(payload[body..], spec.body[body..payload.len()]);
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_number() {
    let good = || spec("10.8.0.1:5140", "10.8.0.2", 1, 16);
    for (spec, words) in [
        (FrameSpec { flows: 0, ..good() }, "0 flows"),
        (FrameSpec { flows: (1 << 24) + 1, ..good() }, "16777217 flows"),
        (FrameSpec { flows: 65_537, ..good() }, "65537 flows need 3 source addresses, not 1"),
        (
            FrameSpec { first_source: "255.255.255.255".parse().expect("valid"), sources: 2, ..good() },
            "255.255.255.255",
        ),
        (FrameSpec { first_source: "::1".parse().expect("valid"), ..good() }, "families"),
        (FrameSpec { sizes: vec![4_000], ..good() }, "0 to 3358"),
        (FrameSpec { sizes: vec![2_001], ..good() }, "a body of 2000 bytes"),
        (FrameSpec { checksum: false, ..spec("[::1]:5140", "::2", 1, 1) }, "without checksum"),
        (FrameSpec { marks: PayloadMarks { flow_bits: 3, ..good().marks }, ..good() }, "do not fit into 3 bits"),
        (FrameSpec { mix: Mix::Hot { share: 1.1 }, ..good() }, "1.1"),
        (FrameSpec { mix: Mix::Zipf { exponent: -1.0 }, ..good() }, "-1"),
    ] {
        let error = spec.check().expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// What the program makes of the frame before, without sending it.
fn next_of_program(program: &OwnedFd, template: &[u8]) -> Vec<u8> {
    const REDIRECT: u32 = 4;
    let mut out = vec![0; template.len()];
    let mut order = TestRun { data_out: &mut out, ..TestRun::once(template) };
    let ran = run(program.as_fd(), &mut order).expect("a run on order");
    assert_eq!(ran.returned, REDIRECT);
    out.truncate(ran.data_bytes);
    out
}

#[test]
#[cfg_attr(miri, ignore = "loads programs")]
fn the_program_makes_the_frames_of_the_writer_bit_by_bit() {
    for spec in specs() {
        let template = FrameTemplate::new(&spec);
        let maps = match FrameMaps::create(&spec, &template) {
            Ok(maps) => maps,
            Err(error) => {
                let _ = writeln!(io::stderr(), "SKIPPED: the program against the writer needs CAP_BPF: {error}");
                return;
            }
        };
        let program = load(&spec, &template, &maps, 1).expect("a program that the verifier takes");
        let mut state = ProgramState::read(&maps.state).expect("read");
        state.set_offset(TIMES.realtime_offset_ns, FACTORS[3]);
        state.write(&maps.state).expect("written");
        let mut writer = FrameWriter::new(&spec).expect("a spec that can be");
        let mut frame = writer.buffer();
        let mut bytes = 0;
        for made in 1..=300 {
            // A page comes back with what was in it before, and worse.
            let mut page = template.frame.clone();
            page[..template.places.payload + 32].fill(made as u8);
            let found = next_of_program(&program, &page);
            let state = ProgramState::read(&maps.state).expect("read");
            let time = FrameTime { monotonic_ns: state.get(TIME), realtime_offset_ns: state.get(OFFSET).cast_signed() };
            let length = writer.write(&mut frame, time);
            assert_eq!(found, frame[..length], "frame {made} of {spec:?}");
            bytes += (length - template.places.payload) as u64;
            assert_eq!((state.get(RAN), state.get(IN_FLIGHT), state.get(BYTES)), (made, made, bytes));
            assert!(state.get(TIME) > 0 && state.get(CORE) < 8192);
        }
    }
}
