//! Fuzz targets: captures and compressed files, what is written of a payload, and the small texts of operators.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::Duration;

use crate::capture::{Capture, Skipped};
use crate::codec::{CompressingWriter, Method, Recipe, unpacked};
use crate::format::{DatagramRecord, jsonl, lines, pcapng};
use crate::text::{address, base64, units};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("captures", captures), ("compressed", compressed), ("payloads", payload), ("texts", texts)]
}

/// Gives one to seven bytes at a time, as a slow pipe does.
struct Drips<'a>(&'a [u8], usize);

impl Read for Drips<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = self.1 % 7 + 1;
        let length = self.1.min(into.len()).min(self.0.len());
        into[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        Ok(length)
    }
}

type Sent = (Duration, SocketAddr, SocketAddr, Vec<u8>);

/// All datagrams up to the end or the damage, and what ended it.
fn read_capture(reader: impl Read) -> (Vec<Sent>, Skipped, Option<String>) {
    let mut found = Vec::new();
    let mut capture = match Capture::open(reader) {
        Ok(capture) => capture,
        Err(error) => return (found, Skipped::default(), Some(error.to_string())),
    };
    let error = loop {
        match capture.next_datagram() {
            Ok(Some(sent)) => found.push((sent.arrival, sent.source, sent.destination, sent.payload.to_vec())),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    (found, capture.skipped(), error)
}

/// A capture is read the same however it comes, has no more in it than its bytes, and what is read of it and written
/// again is read as the same.
fn captures(input: &[u8]) {
    let read = read_capture(input);
    assert_eq!(read, read_capture(Drips(input, 0)));
    let (found, skipped, _) = read;
    assert!(found.iter().map(|sent| sent.3.len() + 28).sum::<usize>() <= input.len());
    // The shortest packet is a header without bytes, or a simple block without any.
    assert!(found.len() as u64 + skipped.total() <= input.len() as u64 / 16);
    let mut again = Vec::new();
    pcapng::append_section_header(&mut again);
    pcapng::append_interface(&mut again, "in/lane0", "0.0.0.0:514");
    let known: Vec<Sent> = found.into_iter().filter(|sent| sent.0.as_nanos() < u128::from(u64::MAX)).collect();
    for (arrival, source, destination, payload) in &known {
        pcapng::append_packet(&mut again, 0, &record(*arrival, *source, *destination, payload, payload.len()), 0);
    }
    assert_eq!(read_capture(again.as_slice()), (known, Skipped::default(), None));
}

fn record(
    arrival: Duration,
    source: SocketAddr,
    destination: SocketAddr,
    payload: &[u8],
    length: usize,
) -> DatagramRecord<'_> {
    DatagramRecord { listener: "in", lane: 0, arrival, is_time_of_batch: false, source, destination, payload, length }
}

/// More is not read of one file here.
const UNPACKED_MAX: u64 = 1 << 20;

fn unpack(reader: impl Read) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let read = unpacked(reader).and_then(|reader| reader.take(UNPACKED_MAX).read_to_end(&mut content));
    read.map(|_| content).map_err(|error| error.to_string())
}

/// A file is unpacked the same however it comes; what is packed is unpacked as the same.
fn compressed(input: &[u8]) {
    let content = unpack(input);
    assert_eq!(content, unpack(Drips(input, 0)));
    let recipe = Recipe { method: Method::Gzip, level: 1 };
    let mut writer =
        CompressingWriter::new(recipe, Vec::new(), input.len() as u64, std::time::UNIX_EPOCH).expect("begun");
    io::Write::write_all(&mut writer, input).expect("written");
    let packed = writer.finish().expect("finished");
    assert_eq!(unpack(packed.as_slice()).as_deref(), Ok(input));
    assert!(unpack(&packed[..packed.len() - 1]).is_err());
}

/// Each format makes one record of a payload, from which the payload comes back.
fn payload(input: &[u8]) {
    let Some((first, payload)) = input.split_first() else { return };
    let length = payload.len() + usize::from(first % 4 == 0);
    let mut line = Vec::new();
    if length > payload.len() {
        lines::append_truncated(&mut line, payload, length)
    } else {
        lines::append(&mut line, payload)
    }
    assert!(line.len() <= lines::EXPANSION_MAX * payload.len() + lines::MARK_MAX);
    let text = line.strip_suffix(b"\n").expect("a line");
    assert!(!text.iter().any(|byte| byte.is_ascii_control()));
    let is_cut = length > payload.len();
    let expected = if is_cut { payload } else { payload.strip_suffix(b"\n").unwrap_or(payload) };
    assert_eq!(lines::unescape(text).as_deref(), Some(expected));
    assert_eq!(lines::truncated_from(text), is_cut.then_some(length));
    // A line may come from elsewhere.
    if let Some(payload) = lines::unescape(payload) {
        assert!(payload.len() <= input.len());
    }
    let _ = lines::truncated_from(payload);

    let (source, destination) =
        (SocketAddr::from(([192, 0, 2, 7], 1)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, u16::from(*first)], 514)));
    let mut line = Vec::new();
    jsonl::append(&mut line, &record(Duration::new(1_795_243_341, 7), source, destination, payload, length));
    assert!(line.len() <= jsonl::EXPANSION_MAX * payload.len() + jsonl::FIXED_BYTES_MAX);
    assert_eq!(line.iter().position(|byte| byte.is_ascii_control()), Some(line.len() - 1));
    let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
    let came = value["payload"].as_str().map(|text| text.as_bytes().to_vec());
    let came = came.or_else(|| base64::decode(value["payload_base64"].as_str()?));
    assert_eq!(came.as_deref(), Some(payload));
    assert_eq!(value["length"].as_u64(), is_cut.then_some(length as u64));
}

/// What is read of a text and printed is read as the same, and a message about it stays on one line.
fn texts(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match units::parse_size(text) {
        Ok(bytes) => assert_eq!(units::parse_size(&units::print_size(bytes)), Ok(bytes)),
        Err(advice) => is_one_line(&advice),
    }
    match units::parse_duration(text) {
        Ok(duration) => assert_eq!(units::parse_duration(&units::print_duration(duration)), Ok(duration)),
        Err(advice) => is_one_line(&advice),
    }
    match units::parse_cpus(text) {
        Ok(cpus) => {
            assert!(cpus.is_sorted() && cpus.len() <= 1 << 20);
            assert_eq!(units::parse_cpus(&steer::format_core_list(&cpus)), Ok(cpus));
        }
        Err(advice) => is_one_line(&advice),
    }
    for parse in [address::parse_metrics, address::parse_listener, address::parse_destination] {
        match parse(text) {
            Ok(address) => assert_eq!(parse(&address.to_string()), Ok(address)),
            Err(advice) => is_one_line(&advice),
        }
    }
    match address::parse_peer(text) {
        Ok(peer) => {
            assert_eq!(address::parse_peer(&peer.to_string()).map(|peer| peer.to_string()), Ok(peer.to_string()))
        }
        Err(advice) => is_one_line(&advice),
    }
    if let Some(bytes) = base64::decode(text) {
        assert!(bytes.len() <= text.len() * 3 / 4);
    }
}

fn is_one_line(advice: &crate::text::advice::ValueAdvice) {
    let said = advice.to_string();
    assert!(!said.contains(char::is_control), "{said:?}");
}
