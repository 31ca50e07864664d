//! Captures as udpd writes them, as others do, and damaged ones.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::headers;
use super::*;
use crate::format::DatagramRecord;
use crate::format::pcapng as writer;

type Sent = (Duration, SocketAddr, SocketAddr, Vec<u8>);

fn datagrams() -> Vec<Sent> {
    let address = |text: &str| -> SocketAddr { text.parse().expect(text) };
    let (v4, v6) = (["10.0.0.7:40000", "192.0.2.1:514"], ["[2001:db8::7]:40000", "[ff02::1]:9995"]);
    [0_usize, 1, 2, 3, 512, 1_472, 65_507]
        .into_iter()
        .enumerate()
        .map(|(number, length)| {
            let [from, to] = if number % 2 == 0 { v4 } else { v6 };
            let payload = (0..length).map(|at| (at * 3 + number) as u8).collect();
            (Duration::new(1_795_243_341, number as u32 * 1_000 + 7_000), address(from), address(to), payload)
        })
        .collect()
}

fn raw(sent: &Sent) -> Vec<u8> {
    let mut bytes = Vec::new();
    headers::append(&mut bytes, sent.1, sent.2, &sent.3, sent.3.len());
    bytes
}

fn read(bytes: &[u8]) -> io::Result<(Vec<Sent>, Skipped)> {
    let mut capture = Capture::open(bytes)?;
    let mut found = Vec::new();
    while let Some(Captured { arrival, source, destination, payload }) = capture.next_datagram()? {
        found.push((arrival, source, destination, payload.to_vec()));
    }
    Ok((found, capture.skipped()))
}

/// As udpd writes it, with a second section as after a restart.
fn written_by_udpd(datagrams: &[Sent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for half in datagrams.chunks(datagrams.len().div_ceil(2)) {
        writer::append_section_header(&mut bytes);
        writer::append_interface(&mut bytes, "in/lane0", "0.0.0.0:514");
        writer::append_interface(&mut bytes, "in/lane1", "0.0.0.0:514");
        for (number, (arrival, source, destination, payload)) in half.iter().enumerate() {
            let record = DatagramRecord {
                is_time_of_batch: false,
                listener: "in",
                lane: 0,
                arrival: *arrival,
                source: *source,
                destination: *destination,
                payload,
                length: payload.len(),
            };
            writer::append_packet(&mut bytes, number as u32 % 2, &record, number as u64);
        }
    }
    bytes
}

#[test]
fn what_udpd_writes_it_reads_again() {
    assert_eq!(read(&written_by_udpd(&datagrams())).expect("whole"), (datagrams(), Skipped::default()));
}

#[test]
fn pcap_is_read_in_either_order_and_resolution_and_on_every_known_network() {
    let ethernet = |ip: &[u8], tags: usize| {
        let kind: [u8; 2] = if ip[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        [&[2; 12][..], &[0x81, 0, 0, 5].repeat(tags), &kind, ip].concat()
    };
    let cooked = |ip: &[u8]| [&[0; 14][..], if ip[0] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] }, ip].concat();
    let cooked_2 = |ip: &[u8]| [if ip[0] >> 4 == 4 { &[8, 0][..] } else { &[0x86, 0xdd] }, &[0; 18], ip].concat();
    for (link, tags) in [(101, 0), (12, 0), (1, 0), (1, 2), (113, 0), (276, 0), (0, 0), (108, 0)] {
        for (is_little, magic, unit) in [
            (true, 0xa1b2_c3d4_u32, 1_000),
            (false, 0xa1b2_c3d4, 1_000),
            (true, 0xa1b2_3c4d, 1),
            (false, 0xa1b2_3c4d, 1),
        ] {
            let word = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
            let mut bytes = [magic, 0x0002_0004, 0, 0, 262_144, link].map(word).concat();
            for sent in &datagrams() {
                let ip = raw(sent);
                let frame = match link {
                    1 => ethernet(&ip, tags),
                    113 => cooked(&ip),
                    276 => cooked_2(&ip),
                    0 | 108 => [&[0; 4][..], &ip].concat(),
                    _ => ip,
                };
                let length = frame.len() as u32;
                let time = [sent.0.as_secs() as u32, sent.0.subsec_nanos() / unit, length, length];
                bytes.extend(time.map(word).concat());
                bytes.extend(frame);
            }
            assert_eq!(read(&bytes).expect("whole"), (datagrams(), Skipped::default()), "{link} {is_little} {unit}");
        }
    }
}

#[test]
fn what_is_no_whole_datagram_is_counted_by_its_reason() {
    let header = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 262_144, 101].map(u32::to_le_bytes).concat();
    let whole = raw(&datagrams()[4]);
    let with = |change: fn(&mut Vec<u8>)| {
        let mut packet = whole.clone();
        change(&mut packet);
        packet
    };
    let tcp = with(|packet| packet[9] = 6);
    let fragment = with(|packet| packet[6] = 0x20);
    let later_fragment = with(|packet| packet[7] = 8);
    let cut = with(|packet| packet.truncate(40));
    let mut bytes = header;
    for (packet, length) in [(&tcp, 540), (&fragment, 540), (&later_fragment, 540), (&cut, 540), (&whole, 540)] {
        bytes.extend([0, 0, packet.len() as u32, length].map(u32::to_le_bytes).concat());
        bytes.extend(packet);
    }
    let (found, skipped) = read(&bytes).expect("whole");
    assert_eq!(found.len(), 1);
    assert_eq!(skipped, Skipped { not_udp: 1, fragments: 2, truncated: 1, unknown_link: 0 });
    assert_eq!(skipped.total(), 4);
}

#[test]
fn extension_headers_of_ipv6_are_walked() {
    let mut packet = raw(&datagrams()[1]);
    packet[6] = 0;
    packet.splice(40..40, [60, 0, 0, 0, 0, 0, 0, 0, 17, 1].into_iter().chain([0; 14]));
    let found = headers::datagram(101, &packet, packet.len()).expect("a datagram");
    assert_eq!(packet[found.start..found.start + found.bytes], datagrams()[1].3);
}

#[test]
fn a_file_of_something_else_or_with_an_end_too_soon_is_an_error_that_says_where() {
    for (bytes, words) in [
        (&b""[..], "at byte 0: the file is empty"),
        (b"GIF89a", "neither pcapng nor pcap"),
        (&written_by_udpd(&datagrams())[..50], "the file ends"),
    ] {
        let error = read(bytes).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_block_too_short_for_its_packet_is_an_error() {
    let mut bytes = written_by_udpd(&datagrams());
    bytes.extend([3_u32, 12, 12].map(u32::to_le_bytes).concat());
    let error = read(&bytes).expect_err("no room for a length").to_string();
    assert!(error.contains("a packet is longer than its block"), "{error}");
}

#[test]
fn no_damage_makes_the_reader_panic_or_read_for_ever() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let short: Vec<Sent> = datagrams().into_iter().take(6).collect();
    let mut pcap = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 262_144, 1].map(u32::to_le_bytes).concat();
    for sent in &short {
        let frame = [&[2; 12][..], &[8, 0], &raw(sent)].concat();
        pcap.extend([1, 2, frame.len() as u32, frame.len() as u32].map(u32::to_le_bytes).concat());
        pcap.extend(frame);
    }
    let mut simple = written_by_udpd(&short);
    simple.extend([3_u32, 20, 4, 0x45, 20].map(u32::to_le_bytes).concat());
    let (mut whole, mut damaged) = (0, 0);
    for original in [written_by_udpd(&short), simple, pcap] {
        for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 500_000 } {
            let mut bytes = original.clone();
            for _ in 0..=next() % 4 {
                let place = (next() % bytes.len() as u64) as usize;
                bytes[place] = next() as u8;
            }
            bytes.truncate((next() % (2 * bytes.len() as u64)) as usize);
            match read(&bytes) {
                Ok(_) => whole += 1,
                Err(_) => damaged += 1,
            }
        }
    }
    assert!(whole > 0 && damaged > 0, "{whole} read, {damaged} refused");
}
