//! What a format writes is read back as the datagrams that came: by a reader of this file, which shares no code with
//! the writer, for any bytes, lengths and addresses, and for every place at which a file may be cut.

use crate::handover::batch::LaneBatch;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use seeds::{Chance, Simulation};

use super::*;
use crate::capture::{Capture, Captured};

const PAYLOAD_MAX: u64 = 65_507;

/// A datagram as a sender sends it, and what is kept of it.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    lane: usize,
    source: SocketAddr,
    arrival: Duration,
    payload: Vec<u8>,
    length: usize,
}

fn address(chance: &mut Chance) -> SocketAddr {
    let port = chance.next() as u16;
    if chance.happens(1, 2) {
        return SocketAddr::from((Ipv4Addr::from(chance.next() as u32), port));
    }
    let ip = Ipv6Addr::from(u128::from(chance.next()) << 64 | u128::from(chance.next()));
    // The kernel gives a scope to addresses of one link alone.
    let scope = if ip.is_unicast_link_local() { chance.next() as u32 } else { 0 };
    match ip.to_ipv4_mapped() {
        Some(ip) => SocketAddr::from((ip, port)),
        None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
    }
}

fn payload(chance: &mut Chance) -> Vec<u8> {
    const PIECES: [&[u8]; 16] = [
        b"\n",
        b"\r\n",
        b"\\",
        b"\\n",
        b"\\~12",
        b"\"",
        b"\0",
        b"\t",
        b"\x7f",
        b"\xff",
        b"\xe2\x80",
        b" ",
        "\u{9b}".as_bytes(),
        "\u{2028}".as_bytes(),
        "\u{202e}".as_bytes(),
        "grüße 世界 😀".as_bytes(),
    ];
    let bytes = match chance.weighted(&[(20, 0), (60, 80), (20, 1_472), (1, PAYLOAD_MAX)]) {
        PAYLOAD_MAX if chance.happens(1, 2) => PAYLOAD_MAX,
        most => chance.within(0..most + 1),
    } as usize;
    let mut payload = vec![0; bytes];
    match chance.below(3) {
        0 => chance.fill(&mut payload),
        1 => payload.fill(b' ' + chance.below(95) as u8),
        _ => {
            payload.clear();
            while payload.len() < bytes {
                match chance.happens(1, 2) {
                    true => payload.extend_from_slice(PIECES[chance.index(PIECES.len())]),
                    false => payload.extend_from_slice(&b"plain text of some more length"[..chance.index(30)]),
                }
            }
            payload.truncate(bytes);
        }
    }
    payload
}

fn sent(chance: &mut Chance, lanes: usize) -> Sent {
    let payload = payload(chance);
    let room = PAYLOAD_MAX - payload.len() as u64;
    let lost = if chance.happens(1, 5) { chance.within(0..room + 1) } else { 0 };
    Sent {
        lane: chance.index(lanes),
        source: address(chance),
        // Until the year 2500: a capture has 64 bits of nanoseconds.
        arrival: Duration::new(chance.below(16_725_225_600), chance.below(1_000_000_000) as u32),
        length: payload.len() + lost as usize,
        payload,
    }
}

/// The record of one datagram, through a batch as a sink gets it.
fn record(encoder: &mut Encoder, sent: &Sent) -> Vec<u8> {
    let mut packed = Vec::new();
    mmsg::pack_known(sent.source, Some(sent.arrival), (&sent.payload, sent.length), &mut packed);
    let (mut room, _) = mmsg::PackedBatch::pool(1, packed.len(), false).expect("memory");
    let mut batch = LaneBatch::unpacked(room.remove(0));
    assert!(batch.unpack((0, sent.lane), &packed, |_| true));
    let mut record = Vec::new();
    encoder.begin();
    for datagram in batch.datagrams.datagrams() {
        encoder.append(&mut record, batch.lane, &datagram);
    }
    record
}

/// Cuts off what stands before the first space.
fn word(text: &[u8]) -> (&str, &[u8]) {
    let end = text.iter().position(|byte| *byte == b' ').expect("a space behind each part");
    (std::str::from_utf8(&text[..end]).expect("text"), &text[end + 1..])
}

fn time_of(arrival: Duration, is_of_batch: bool) -> String {
    let mut text = Vec::new();
    prefix::append_time(&mut text, arrival);
    let text = String::from_utf8(text).expect("text");
    if is_of_batch { format!("{}Z", &text[..text.len() - 4]) } else { text }
}

/// The payload of a line, and how long the whole was where the line says that it was longer.
fn payload_of_line(line: &[u8]) -> (Vec<u8>, Option<usize>) {
    let (mut payload, mut rest) = (Vec::new(), line);
    loop {
        rest = match rest {
            [] => return (payload, None),
            [b'\\', b'~', digits @ ..] => {
                let digits = std::str::from_utf8(digits).expect("digits");
                return (payload, Some(digits.parse().expect("a number")));
            }
            [b'\\', b'x', high, low, rest @ ..] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).expect("a digit") as u8;
                payload.push(digit(high) << 4 | digit(low));
                rest
            }
            [b'\\', kind, rest @ ..] => {
                let known = [(b'\\', b'\\'), (b'n', b'\n'), (b'r', b'\r'), (b't', b'\t')];
                payload.push(known.iter().find(|(name, _)| name == kind).expect("a known escape").1);
                rest
            }
            [byte, rest @ ..] => {
                payload.push(*byte);
                rest
            }
        };
    }
}

fn check_line(record: &[u8], sent: &Sent, prefix: LinePrefix, is_of_batch: bool) {
    let mut rest = record.strip_suffix(b"\n").expect("a newline");
    let parts: &[bool] = match prefix {
        LinePrefix::None => &[],
        LinePrefix::Time => &[true],
        LinePrefix::Source => &[false],
        LinePrefix::TimeSource => &[true, false],
        LinePrefix::SourceTime => &[false, true],
    };
    for &is_time in parts {
        let (part, behind) = word(rest);
        rest = behind;
        match is_time {
            true => assert_eq!(part, time_of(sent.arrival, is_of_batch)),
            false => assert_eq!(part.parse::<SocketAddr>().expect("an address"), sent.source),
        }
    }
    let (payload, length) = payload_of_line(rest);
    assert_eq!(length, (sent.length > sent.payload.len()).then_some(sent.length));
    // The line's own newline stands for that of a whole payload.
    let expected = match length {
        Some(_) => &sent.payload,
        None => sent.payload.strip_suffix(b"\n").unwrap_or(&sent.payload),
    };
    assert!(payload == expected, "{payload:?} and not {expected:?}");
    assert_eq!((lines::unescape(rest).as_deref(), lines::truncated_from(rest)), (Some(expected), length));
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::new());
    assert_eq!(text.len() % 4, 0);
    for digit in text.trim_end_matches('=').chars() {
        bits = bits << 6 | DIGITS.find(digit).expect("a digit") as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

fn check_object(record: &[u8], sent: &Sent, scene: &Scene) {
    let line = record.strip_suffix(b"\n").expect("a newline");
    let value: serde_json::Value = serde_json::from_slice(line).expect("JSON");
    let text = |key: &str| value[key].as_str();
    let payload = match (text("payload"), text("payload_base64")) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(digits)) => base64(digits),
        other => panic!("one payload: {other:?}"),
    };
    assert!(payload == sent.payload, "{payload:?} and not {:?}", sent.payload);
    let is_truncated = sent.length > sent.payload.len();
    assert_eq!(value["truncated"], is_truncated);
    assert_eq!(value.get("length").and_then(serde_json::Value::as_u64), is_truncated.then_some(sent.length as u64));
    assert_eq!(text("time"), Some(time_of(sent.arrival, false).as_str()));
    assert_eq!(text("time_from"), scene.has_time_of_batch.then_some("batch"));
    assert_eq!(text("source").map(str::parse), Some(Ok(sent.source)));
    assert_eq!(text("destination").map(str::parse), Some(Ok(scene.address)));
    assert_eq!((text("listener"), value["lane"].as_u64()), (Some(scene.listener.as_str()), Some(scene.lane as u64)));
}

fn four(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// The checksum of the Internet over these bytes, 16 bits at a time.
fn internet_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)));
    words.fold(0_u32, |sum, word| if sum + word > 0xffff { sum + word - 0xffff } else { sum + word }) as u16
}

fn check_packet(record: &[u8], sent: &Sent, interface: usize, scene: &Scene) {
    assert_eq!((four(record, 0), four(record, 4), four(record, record.len() - 4)), (6, record.len(), record.len()));
    assert_eq!(four(record, 8), interface);
    let time = (four(record, 12) as u128) << 32 | four(record, 16) as u128;
    assert_eq!(time, sent.arrival.as_nanos());
    let (kept, length) = (four(record, 20), four(record, 24));
    let packet = &record[28..28 + kept];
    let (addresses, udp): (Vec<u8>, &[u8]) = match packet[0] >> 4 {
        4 => {
            assert_eq!((internet_sum(&packet[..20]), packet[9]), (0xffff, 17));
            (packet[12..20].to_vec(), &packet[20..])
        }
        _ => {
            assert_eq!((packet[0] >> 4, packet[6]), (6, 17));
            (packet[8..40].to_vec(), &packet[40..])
        }
    };
    let ip = |bytes: &[u8]| match <[u8; 4]>::try_from(bytes) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).expect("one family or the other")),
    };
    let (from, to) = addresses.split_at(addresses.len() / 2);
    let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    assert_eq!((ip(from), port(0)), (sent.source.ip(), sent.source.port()));
    if sent.source.is_ipv4() == scene.address.is_ipv4() {
        assert_eq!((ip(to), port(2)), (scene.address.ip(), scene.address.port()));
    }
    assert!(udp[8..] == sent.payload, "{:?} and not {:?}", &udp[8..], sent.payload);
    assert_eq!((length - (kept - sent.payload.len()), usize::from(port(4))), (sent.length, sent.length + 8));
    let is_whole = sent.length == sent.payload.len();
    let mut covered = addresses;
    covered.extend_from_slice(&[0, 17, udp[4], udp[5]]);
    covered.extend_from_slice(udp);
    assert_eq!(if is_whole { internet_sum(&covered) } else { 0xffff }, 0xffff, "the checksum of UDP");
    assert_eq!(port(6) == 0, !is_whole, "what is cut has no checksum");
}

/// The capture as `udpd replay` reads it.
fn check_capture(file: &[u8], sent: &[Sent], scenes: &[Scene]) {
    let mut capture = Capture::open(file).expect("a capture");
    for sent in sent.iter().filter(|sent| sent.length == sent.payload.len()) {
        let Captured { arrival, source, payload, destination } =
            capture.next_datagram().expect("readable").expect("one more");
        let same_family = sent.source.is_ipv4() == scenes[sent.lane].address.is_ipv4();
        assert!(!same_family || destination == scenes[sent.lane].address);
        // No header has the scope of an address.
        let plain = SocketAddr::from((sent.source.ip(), sent.source.port()));
        assert_eq!((arrival, source, payload == sent.payload), (sent.arrival, plain, true));
    }
    assert!(capture.next_datagram().expect("readable").is_none());
    let cut = sent.iter().filter(|sent| sent.length > sent.payload.len()).count() as u64;
    assert_eq!(capture.skipped().total(), cut);
}

fn scenes(chance: &mut Chance, lanes: usize) -> Arc<[Scene]> {
    let scene = |lane| {
        let mut address = address(chance);
        address.set_port(chance.next() as u16);
        if let SocketAddr::V6(address) = &mut address {
            address.set_scope_id(0);
        }
        Scene { listener: format!("in-{lane}"), lane, address, has_time_of_batch: chance.happens(1, 4) }
    };
    (0..lanes).map(scene).collect()
}

/// A file of any format is cut where it may be cut: exactly the records before the cut are whole.
fn check_cuts(chance: &mut Chance, format: Format, header: &[u8], records: &[Vec<u8>]) {
    let file = [header, &records.concat()].concat();
    let ends: Vec<usize> = records
        .iter()
        .scan(header.len(), |end, record| {
            *end += record.len();
            Some(*end)
        })
        .collect();
    let mut cuts: Vec<usize> = (0..8).map(|_| chance.index(file.len() + 1)).collect();
    for _ in 0..4 {
        let end = if ends.is_empty() { header.len() } else { *chance.pick(&ends) };
        cuts.extend([end.saturating_sub(1), end, (end + 1).min(file.len())]);
    }
    for cut in cuts {
        let whole = format.boundary().whole(&file[..cut]);
        let records = ends.iter().filter(|end| **end <= cut).count();
        let bytes = if records > 0 { ends[records - 1] } else { whole.bytes };
        assert!(records > 0 || bytes <= header.len(), "no more than the header");
        assert_eq!(whole, WholeRecords { bytes, records: records as u64 }, "{format:?} cut at {cut}");
    }
}

#[test]
fn what_any_format_writes_is_read_back_as_the_datagrams_that_came_and_cut_anywhere_its_records_are_known() {
    const NAME: &str =
        "what_any_format_writes_is_read_back_as_the_datagrams_that_came_and_cut_anywhere_its_records_are_known";
    Simulation::new(NAME, 4_000, 12).with_corpus(include_str!("round_trip.seeds")).check(|run| {
        let setup = run.setup();
        let format = *setup.pick(&[Format::Lines, Format::Jsonl, Format::Pcapng, Format::Lengths]);
        let prefix = match format {
            Format::Lines => setup.pick(&LinePrefix::WORDS).1,
            _ => LinePrefix::None,
        };
        let lanes = 1 + setup.index(4);
        let scenes = scenes(setup, lanes);
        // A file by lane has one of them.
        let only = setup.happens(1, 3).then(|| setup.index(lanes));
        let writes = |lane: usize| only.is_none_or(|only| only == lane);
        let mut encoder =
            Encoder::new(format, Arc::clone(&scenes), writes).with_style(LineStyle { prefix, ..LineStyle::default() });
        let header = encoder.header();
        assert_eq!(format.boundary().whole(&header), WholeRecords { bytes: header.len(), records: 0 });
        let (mut all, mut records) = (Vec::new(), Vec::new());
        while let Some(mut chance) = run.step() {
            let mut sent = sent(&mut chance, lanes);
            sent.lane = only.unwrap_or(sent.lane);
            let record = record(&mut encoder, &sent);
            run.trace(|| format!("{format:?} with {prefix:?}: {} of {} bytes", sent.payload.len(), sent.length));
            assert!(record.len() <= format.record_bytes_max(sent.payload.len()), "the bound of a record");
            assert_eq!(format.boundary().whole(&record), WholeRecords { bytes: record.len(), records: 1 });
            let scene = &scenes[sent.lane];
            match format {
                Format::Lines => check_line(&record, &sent, prefix, scene.has_time_of_batch),
                Format::Jsonl => check_object(&record, &sent, scene),
                Format::Pcapng => {
                    let interface = if only.is_some() { 0 } else { sent.lane };
                    check_packet(&record, &sent, interface, scene);
                }
                Format::Lengths => {
                    let length = u32::from_be_bytes(record[..4].try_into().expect("four bytes")) as usize;
                    assert!(length == sent.payload.len() && record[4..] == sent.payload);
                }
            }
            all.push(sent);
            records.push(record);
        }
        if format == Format::Pcapng {
            check_capture(&[header.clone(), records.concat()].concat(), &all, &scenes);
        }
        check_cuts(run.setup(), format, &header, &records);
        records.concat()
    });
}
