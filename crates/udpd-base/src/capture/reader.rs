//! The datagrams of a capture, one after the other, whichever of the two formats the file has.

use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use super::input::Input;
use super::{link, pcap, pcapng};

/// A datagram of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'c> {
    /// When it was captured, since 1970 in most files.
    pub arrival: Duration,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub payload: &'c [u8],
}

/// Packets that are no whole UDP datagram, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    pub not_udp: u64,
    /// A part of a datagram that was sent in several packets.
    pub fragments: u64,
    /// A packet of which the capture holds only a part.
    pub truncated: u64,
    /// A kind of network that is not known here.
    pub unknown_link: u64,
}

impl Skipped {
    pub fn total(&self) -> u64 {
        self.not_udp + self.fragments + self.truncated + self.unknown_link
    }
}

impl AddAssign for Skipped {
    fn add_assign(&mut self, other: Self) {
        self.not_udp += other.not_udp;
        self.fragments += other.fragments;
        self.truncated += other.truncated;
        self.unknown_link += other.unknown_link;
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { not_udp, fragments, truncated, unknown_link } = self;
        write!(
            formatter,
            "{not_udp} not UDP, {fragments} fragments, {truncated} cut short, {unknown_link} of unknown networks"
        )
    }
}

/// A capture that is being read.
#[derive(Debug)]
pub struct Capture<R> {
    input: Input<R>,
    format: CaptureFormat,
    skipped: Skipped,
}

#[derive(Debug)]
enum CaptureFormat {
    Pcap(pcap::File),
    Pcapng(pcapng::PcapngSection),
}

impl<R: Read> Capture<R> {
    /// Reads the beginning of the file and finds out what it is.
    pub fn open(reader: R) -> io::Result<Self> {
        let mut input = Input::new(reader);
        if !input.read(4)? {
            return Err(input.damaged("the file is empty"));
        }
        let magic = input.piece.first_chunk().copied().unwrap_or_default();
        let format = if magic == pcapng::SECTION_HEADER {
            CaptureFormat::Pcapng(pcapng::PcapngSection::open(&mut input)?)
        } else if let Some(order) = pcap::ByteOrder::of(magic) {
            CaptureFormat::Pcap(pcap::File::open(order, &mut input)?)
        } else {
            return Err(input.damaged("neither pcapng nor pcap begins so"));
        };
        Ok(Self { input, format, skipped: Skipped::default() })
    }

    /// The next datagram; `None` at the end.
    pub fn next_datagram(&mut self) -> io::Result<Option<Captured<'_>>> {
        loop {
            let packet = match &mut self.format {
                CaptureFormat::Pcap(file) => file.next(&mut self.input)?,
                CaptureFormat::Pcapng(section) => section.next(&mut self.input)?,
            };
            let Some(packet) = packet else { return Ok(None) };
            let bytes = &self.input.piece[packet.start..packet.start + packet.bytes];
            match link::datagram(packet.link, bytes, packet.length) {
                Ok(found) => {
                    let start = packet.start + found.start;
                    return Ok(Some(Captured {
                        arrival: packet.arrival,
                        source: found.source,
                        destination: found.destination,
                        payload: &self.input.piece[start..start + found.bytes],
                    }));
                }
                Err(link::SkipReason::NotUdp) => self.skipped.not_udp += 1,
                Err(link::SkipReason::Fragment) => self.skipped.fragments += 1,
                Err(link::SkipReason::Truncated) => self.skipped.truncated += 1,
                Err(link::SkipReason::UnknownLink) => self.skipped.unknown_link += 1,
            }
        }
    }

    pub fn skipped(&self) -> Skipped {
        self.skipped
    }
}
