//! A datagram as bytes: the formats that sinks write, and where a record of each ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use mmsg::Datagram;

use self::prefix::{LinePrefix, LineStyle, LineTime};
use crate::capture::headers;
use crate::os::local_time::Zone;
use crate::seams::clock;

pub mod json;
pub mod jsonl;
pub mod lines;
pub mod pcapng;
pub mod prefix;

// How a datagram becomes the bytes of a record, in each format, and what a record needs besides the datagram: who
// received it. The clock is asked once per batch, and only where the kernel has not said when a datagram came.

/// How a datagram is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// One line, escaped.
    #[default]
    Lines,
    /// One JSON object a line.
    Jsonl,
    /// A packet of a capture.
    Pcapng,
    /// The payload after its length.
    Lengths,
}

impl Format {
    /// Those that a configuration can name, as they are written.
    pub const WORDS: [(&'static str, Format); 3] =
        [("lines", Format::Lines), ("jsonl", Format::Jsonl), ("pcapng", Format::Pcapng)];

    /// Whether it records when a datagram came and where it went to.
    pub fn records_arrival(self) -> bool {
        matches!(self, Format::Jsonl | Format::Pcapng)
    }

    /// Whether it records how many datagrams the kernel dropped before each one.
    pub fn records_drops(self) -> bool {
        self == Format::Pcapng
    }

    /// How its records are told apart.
    pub fn boundary(self) -> Boundary {
        match self {
            Format::Lines | Format::Jsonl => Boundary::Newline,
            Format::Pcapng => Boundary::Block,
            Format::Lengths => Boundary::Length,
        }
    }

    /// The most bytes that the record of a payload takes.
    pub fn record_bytes_max(self, payload: usize) -> usize {
        match self {
            Format::Lines => prefix::BYTES_MAX + lines::EXPANSION_MAX * payload + lines::MARK_MAX,
            Format::Jsonl => jsonl::EXPANSION_MAX * payload + jsonl::FIXED_BYTES_MAX,
            Format::Pcapng => payload + pcapng::PACKET_OVERHEAD_BYTES_MAX,
            Format::Lengths => payload + 4,
        }
    }
}

/// Who received a datagram: what the records of one lane have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scene {
    pub listener: String,
    /// The number of the lane within it.
    pub lane: usize,
    /// What its socket is bound to.
    pub address: SocketAddr,
    /// The time of its datagrams is that of their batch: it receives past the kernel's stack, which has a clock.
    pub has_time_of_batch: bool,
}

impl Scene {
    /// What a capture says of the lane.
    fn description(&self) -> String {
        let what =
            if self.has_time_of_batch { ", past the kernel's stack (AF_XDP): times are those of batches" } else { "" };
        format!("{}{what}", self.address)
    }
}

/// Writes the records of one file or stream.
#[derive(Debug)]
pub struct Encoder {
    format: Format,
    style: LineStyle,
    zone: Zone,
    /// A second since 1970, and how far local time is ahead in it: of the datagram before, so that the rules are asked
    /// once a second.
    offset: (u64, i32),
    /// By lane.
    scenes: Arc<[Scene]>,
    /// By lane, its number among the lanes that are written here: the interfaces of a capture. Empty in other formats:
    /// a thousand lanes may have a thousand files.
    interfaces: Vec<Option<u32>>,
    /// By lane, how many datagrams the kernel had dropped when the last one written came; of a capture as well.
    dropped: Vec<u32>,
    /// When the batch in hand was begun.
    now: Duration,
}

impl Encoder {
    /// For the lanes that `writes` picks.
    pub fn new(format: Format, scenes: Arc<[Scene]>, writes: impl Fn(usize) -> bool) -> Self {
        let mut numbers = 0..;
        let lanes = if format == Format::Pcapng { scenes.len() } else { 0 };
        let interfaces = (0..lanes).map(|lane| writes(lane).then(|| numbers.next()).flatten()).collect();
        let (style, zone, dropped) = (LineStyle::default(), Zone::default(), vec![0; lanes]);
        Self { format, style, zone, offset: (0, 0), interfaces, dropped, scenes, now: Duration::ZERO }
    }

    /// The same, for lines that are written so.
    pub fn with_style(self, style: LineStyle) -> Self {
        let zone = style.time.zone();
        Self { style, offset: (0, zone.offset(0)), zone, ..self }
    }

    /// Goes on for other lanes. What was begun as a capture has a table of its lanes, and cannot.
    pub fn go_on_for(&mut self, scenes: Arc<[Scene]>) {
        debug_assert!(self.format != Format::Pcapng || self.scenes == scenes, "a capture of other lanes");
        self.scenes = scenes;
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// What a file or stream begins with.
    pub fn header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        if self.format == Format::Pcapng {
            pcapng::append_section_header(&mut header);
            for (scene, _) in self.scenes.iter().zip(&self.interfaces).filter(|(_, number)| number.is_some()) {
                let name = format!("{}/lane{}", scene.listener, scene.lane);
                pcapng::append_interface(&mut header, &name, &scene.description());
            }
        }
        header
    }

    /// The next records are of this batch.
    pub fn begin(&mut self) {
        if self.format.records_arrival() || self.style.prefix.has_time() {
            self.now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        }
    }

    /// Appends the record of one datagram of a lane.
    pub fn append(&mut self, bytes: &mut Vec<u8>, lane: usize, datagram: &Datagram<'_>) {
        let payload = datagram.payload();
        let prefix = self.style.prefix;
        if prefix != LinePrefix::None {
            let is_of_batch = self.scenes[lane].has_time_of_batch;
            let time = || {
                let arrival = datagram.arrival_since_epoch().unwrap_or(self.now);
                LineTime { arrival, offset: self.offset(arrival.as_secs()), is_of_batch }
            };
            prefix::append(bytes, prefix, time, headers::source(datagram));
        }
        match self.format {
            Format::Lines if datagram.is_truncated() => lines::append_truncated(bytes, payload, datagram.length()),
            Format::Lines => lines::append(bytes, self.style.strip.of(payload)),
            Format::Lengths => {
                // No payload is longer than 65,535 bytes.
                let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&length.to_be_bytes());
                bytes.extend_from_slice(payload);
            }
            Format::Jsonl => jsonl::append(bytes, &self.record(lane, datagram)),
            Format::Pcapng => {
                let interface = self.interfaces[lane].expect("a lane that is not written here sends nothing here");
                let drops = self.drops(lane, datagram);
                pcapng::append_packet(bytes, interface, &self.record(lane, datagram), drops);
            }
        }
    }

    /// How far local time is ahead in this second; `None` where UTC is shown.
    fn offset(&mut self, second: u64) -> Option<i32> {
        if self.offset.0 != second {
            self.offset = (second, self.zone.offset(second));
        }
        (!self.zone.is_utc()).then_some(self.offset.1)
    }

    /// All that is known of a datagram of a lane.
    pub fn record<'a>(&'a self, lane: usize, datagram: &Datagram<'a>) -> DatagramRecord<'a> {
        let scene = &self.scenes[lane];
        DatagramRecord {
            listener: &scene.listener,
            lane: scene.lane,
            arrival: datagram.arrival_since_epoch().unwrap_or(self.now),
            is_time_of_batch: scene.has_time_of_batch,
            source: headers::source(datagram),
            destination: headers::destination(datagram, scene.address),
            payload: datagram.payload(),
            length: datagram.length(),
        }
    }

    /// How many datagrams the kernel dropped at this lane since the last one that was written. Its counter wraps; that
    /// of a socket that has taken the place of another begins at 0.
    fn drops(&mut self, lane: usize, datagram: &Datagram<'_>) -> u64 {
        let Some(total) = datagram.drop_overflow() else { return 0 };
        let before = std::mem::replace(&mut self.dropped[lane], total);
        drops_between(before, total)
    }
}

/// What a counter of 32 bits has counted since it was at `before`. What looks like most of its range is a counter that
/// has begun anew.
fn drops_between(before: u32, total: u32) -> u64 {
    let drops = total.wrapping_sub(before);
    u64::from(if drops > u32::MAX / 2 { total } else { drops })
}

/// One datagram with all that is known of it, for the formats that keep more than the payload.
#[derive(Debug, Clone, Copy)]
pub struct DatagramRecord<'a> {
    /// The name of the listener that received it.
    pub listener: &'a str,
    /// The number of the lane within the listener.
    pub lane: usize,
    /// When it came, since 1970.
    pub arrival: Duration,
    /// That is when its batch was begun: no kernel code has looked at the clock for it.
    pub is_time_of_batch: bool,
    pub source: SocketAddr,
    /// What it was sent to, as far as that is known.
    pub destination: SocketAddr,
    /// Its bytes, or the first of them.
    pub payload: &'a [u8],
    /// How long it was on the wire.
    pub length: usize,
}

// Where a record ends, for each way of writing records one after the other. A write that took only a part of what it
// was given, and a file that a crash cut short, are both asked the same: how much of this is whole?

/// How records are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A record ends with a newline and has no other.
    Newline,
    /// A record is a block of a pcapng file: its length stands at both ends, and other blocks than packets count for
    /// none.
    Block,
    /// A record follows its length, four bytes, most significant first.
    Length,
}

/// The whole records at the beginning of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WholeRecords {
    pub bytes: usize,
    pub records: u64,
}

/// The type of the block that is a packet.
const PACKET: u32 = 6;

/// The least a block can be: type, length, and length again.
const BLOCK_BYTES_MIN: usize = 12;

impl Boundary {
    /// How much of `bytes`, which begin with a record, is whole.
    pub fn whole(self, bytes: &[u8]) -> WholeRecords {
        match self {
            Boundary::Newline => WholeRecords {
                bytes: bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1),
                records: bytes.iter().filter(|&&byte| byte == b'\n').count() as u64,
            },
            Boundary::Block => count(bytes, block),
            Boundary::Length => count(bytes, |rest| Some((4 + number(rest.first_chunk()?, u32::from_be_bytes)?, 1))),
        }
    }
}

/// Walks from record to record; `next` says how long the one at the beginning is, and how many records it counts for.
fn count(bytes: &[u8], next: impl Fn(&[u8]) -> Option<(usize, u64)>) -> WholeRecords {
    let mut whole = WholeRecords::default();
    while let Some((length, records)) = next(&bytes[whole.bytes..])
        && length <= bytes.len() - whole.bytes
    {
        whole.bytes += length;
        whole.records += records;
    }
    whole
}

/// The block at the beginning, if it is whole and says the same length at both ends.
fn block(rest: &[u8]) -> Option<(usize, u64)> {
    let kind = u32::from_le_bytes(*rest.first_chunk()?);
    let length = number(rest.get(4..)?.first_chunk()?, u32::from_le_bytes)?;
    let sound = length >= BLOCK_BYTES_MIN && length % 4 == 0;
    let end = rest.get(..length).filter(|_| sound)?.last_chunk()?;
    (number(end, u32::from_le_bytes)? == length).then_some((length, u64::from(kind == PACKET)))
}

fn number(bytes: &[u8; 4], order: impl Fn([u8; 4]) -> u32) -> Option<usize> {
    usize::try_from(order(*bytes)).ok()
}

#[cfg(test)]
mod round_trip_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_over_the_end_of_the_counter_and_over_a_socket_that_takes_the_place_of_another() {
        assert_eq!(drops_between(1000, 1007), 7);
        assert_eq!(drops_between(u32::MAX - 1, 3), 5);
        assert_eq!(drops_between(1000, 1), 1);
    }

    fn block_of(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(BLOCK_BYTES_MIN + body.len()).expect("short").to_le_bytes();
        [&kind.to_le_bytes(), &length, body, &length].concat()
    }

    #[test]
    fn at_every_cut_exactly_the_records_before_it_are_whole() {
        let lines: Vec<&[u8]> = vec![b"one\n", b"\n", b"three\n"];
        let blocks = [block_of(0x0a0d_0d0a, b"head"), block_of(PACKET, b"12345678"), block_of(PACKET, b"")];
        let lengths: Vec<&[u8]> = vec![b"\0\0\0\x03abc", b"\0\0\0\0", b"\0\0\0\x01x"];
        let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        for (boundary, records, counts) in [
            (Boundary::Newline, lines, [1, 1, 1]),
            (Boundary::Block, blocks, [0, 1, 1]),
            (Boundary::Length, lengths, [1, 1, 1]),
        ] {
            let all = records.concat();
            for cut in 0..=all.len() {
                let mut expected = WholeRecords::default();
                for (record, count) in records.iter().zip(counts) {
                    if expected.bytes + record.len() > cut {
                        break;
                    }
                    expected.bytes += record.len();
                    expected.records += count;
                }
                assert_eq!(boundary.whole(&all[..cut]), expected, "{boundary:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_block_that_contradicts_itself_ends_what_is_whole() {
        let mut bytes = [block_of(PACKET, b"1234"), block_of(PACKET, b"5678")].concat();
        let last = bytes.len() - 1;
        bytes[last] = 1;
        assert_eq!(Boundary::Block.whole(&bytes), WholeRecords { bytes: 16, records: 1 });
        assert_eq!(Boundary::Block.whole(&[0; 64]), WholeRecords::default(), "a length of 0 is no block");
        assert_eq!(Boundary::Length.whole(&[0xff; 64]), WholeRecords::default());
    }
}
