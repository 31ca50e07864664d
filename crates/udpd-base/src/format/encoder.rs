//! How a datagram becomes the bytes of a record, in each format, and what a record needs besides the datagram: who
//! received it. The clock is asked once per batch, and only where the kernel has not said when a datagram came.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mmsg::Datagram;

use super::boundary::Boundary;
use super::prefix::{self, LinePrefix};
use super::record::DatagramRecord;
use super::{jsonl, lines, pcapng};
use crate::capture::headers;
use crate::handover::batch::LaneBatch;

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
    /// In front of each line.
    prefix: LinePrefix,
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
        let (prefix, dropped) = (LinePrefix::None, vec![0; lanes]);
        Self { format, prefix, interfaces, dropped, scenes, now: Duration::ZERO }
    }

    /// The same, for lines with this in front of each.
    pub fn with_prefix(self, prefix: LinePrefix) -> Self {
        Self { prefix, ..self }
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
        if self.format.records_arrival() || self.prefix.has_time() {
            self.now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        }
    }

    /// Appends the record of one datagram.
    pub fn append(&mut self, bytes: &mut Vec<u8>, batch: &LaneBatch, datagram: &Datagram<'_>) {
        let payload = datagram.payload();
        if self.prefix != LinePrefix::None {
            let arrival = || datagram.arrival_since_epoch().unwrap_or(self.now);
            let is_of_batch = self.scenes[batch.lane].has_time_of_batch;
            prefix::append(bytes, self.prefix, arrival, is_of_batch, headers::source(datagram));
        }
        match self.format {
            Format::Lines if datagram.is_truncated() => lines::append_truncated(bytes, payload, datagram.length()),
            Format::Lines => lines::append(bytes, payload),
            Format::Lengths => {
                // No payload is longer than 65,535 bytes.
                let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&length.to_be_bytes());
                bytes.extend_from_slice(payload);
            }
            Format::Jsonl => jsonl::append(bytes, &self.record(batch, datagram)),
            Format::Pcapng => {
                let interface =
                    self.interfaces[batch.lane].expect("a lane that is not written here sends nothing here");
                let drops = self.drops(batch.lane, datagram);
                pcapng::append_packet(bytes, interface, &self.record(batch, datagram), drops);
            }
        }
    }

    fn record<'a>(&'a self, batch: &LaneBatch, datagram: &Datagram<'a>) -> DatagramRecord<'a> {
        let scene = &self.scenes[batch.lane];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_over_the_end_of_the_counter_and_over_a_socket_that_takes_the_place_of_another() {
        assert_eq!(drops_between(1000, 1007), 7);
        assert_eq!(drops_between(u32::MAX - 1, 3), 5);
        assert_eq!(drops_between(1000, 1), 1);
    }
}
