//! Reading captures: the UDP datagrams in a pcapng or pcap file, whoever wrote it.
//!
//! A capture comes from anywhere, so nothing in it is believed: lengths are bounded before memory is taken for them,
//! and what is not a whole UDP datagram is skipped and counted by its reason. Only damage to the frame of the file
//! itself, which leaves no way to find the next packet, is an error.

pub mod headers;
mod link;
mod pcap;
mod pcapng;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

/// The longest block or packet that is read; others are taken for damage.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// A datagram of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'c> {
    /// When it was captured, since 1970 in most files.
    pub arrival: Duration,
    /// Who sent it.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
    /// Its bytes.
    pub payload: &'c [u8],
}

/// Packets that are no whole UDP datagram, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Another protocol.
    pub not_udp: u64,
    /// A part of a datagram that was sent in several packets.
    pub fragments: u64,
    /// A packet of which the capture holds only a part.
    pub truncated: u64,
    /// A kind of network that is not known here.
    pub unknown_link: u64,
}

impl Skipped {
    /// All of them.
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
    format: Format,
    skipped: Skipped,
}

#[derive(Debug)]
enum Format {
    Pcap(pcap::File),
    Pcapng(pcapng::Section),
}

/// A packet as the file has it.
#[derive(Debug, Clone, Copy)]
struct Packet {
    arrival: Duration,
    link: u32,
    /// How long it was on the wire.
    length: usize,
    /// Where its bytes begin in the piece just read, and how many there are.
    start: usize,
    bytes: usize,
}

impl<R: Read> Capture<R> {
    /// Reads the beginning of the file and finds out what it is.
    pub fn open(reader: R) -> io::Result<Self> {
        let mut input = Input { reader, piece: Vec::new(), offset: 0 };
        if !input.read(4)? {
            return Err(input.damaged("the file is empty"));
        }
        let magic = input.piece.first_chunk().copied().unwrap_or_default();
        let format = if magic == pcapng::SECTION_HEADER {
            Format::Pcapng(pcapng::Section::open(&mut input)?)
        } else if let Some(order) = pcap::Order::of(magic) {
            Format::Pcap(pcap::File::open(order, &mut input)?)
        } else {
            return Err(input.damaged("neither pcapng nor pcap begins so"));
        };
        Ok(Self { input, format, skipped: Skipped::default() })
    }

    /// The next datagram; `None` at the end.
    pub fn next_datagram(&mut self) -> io::Result<Option<Captured<'_>>> {
        loop {
            let packet = match &mut self.format {
                Format::Pcap(file) => file.next(&mut self.input)?,
                Format::Pcapng(section) => section.next(&mut self.input)?,
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
                Err(link::Reason::NotUdp) => self.skipped.not_udp += 1,
                Err(link::Reason::Fragment) => self.skipped.fragments += 1,
                Err(link::Reason::Truncated) => self.skipped.truncated += 1,
                Err(link::Reason::UnknownLink) => self.skipped.unknown_link += 1,
            }
        }
    }

    /// What was skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }
}

/// A reader, the piece of the file in hand, and where that ends.
#[derive(Debug)]
struct Input<R> {
    reader: R,
    piece: Vec<u8>,
    offset: u64,
}

impl<R: Read> Input<R> {
    /// Replaces the piece by the next `bytes`. False at the end of the file.
    fn read(&mut self, bytes: usize) -> io::Result<bool> {
        self.piece.clear();
        self.read_more(bytes)
    }

    /// Adds the next `bytes` to the piece. False when the file ends instead; when it ends in the middle of them that is
    /// damage.
    fn read_more(&mut self, bytes: usize) -> io::Result<bool> {
        if bytes > PIECE_BYTES_MAX {
            return Err(self.damaged(&format!("a piece of {bytes} bytes is longer than any packet")));
        }
        let before = self.piece.len();
        // Memory is taken as bytes come, not as many as a damaged length promises.
        let read = self.reader.by_ref().take(bytes as u64).read_to_end(&mut self.piece)?;
        self.offset += read as u64;
        if read == 0 && bytes > 0 {
            return Ok(false);
        }
        if self.piece.len() - before < bytes {
            return Err(self.damaged("the file ends in the middle of a packet"));
        }
        Ok(true)
    }

    fn damaged(&self, what: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("at byte {}: {what}", self.offset))
    }
}

/// Four bytes of `bytes` at a place, or nothing when there are none.
fn four(bytes: &[u8], place: usize) -> Option<[u8; 4]> {
    bytes.get(place..)?.first_chunk().copied()
}

/// Two of them.
fn two(bytes: &[u8], place: usize) -> Option<[u8; 2]> {
    bytes.get(place..)?.first_chunk().copied()
}
