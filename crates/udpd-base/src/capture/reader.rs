//! The datagrams of a capture, one after the other, whichever of the two formats the file has.

use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use super::headers::{self, SkipReason};

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
    Pcap(PcapFile),
    Pcapng(PcapngSection),
}

impl<R: Read> Capture<R> {
    /// Reads the beginning of the file and finds out what it is.
    pub fn open(reader: R) -> io::Result<Self> {
        let mut input = Input::new(reader);
        if !input.read(4)? {
            return Err(input.damaged("the file is empty"));
        }
        let magic = input.piece.first_chunk().copied().unwrap_or_default();
        let format = if magic == SECTION_HEADER {
            CaptureFormat::Pcapng(PcapngSection::open(&mut input)?)
        } else if let Some(order) = ByteOrder::of(magic) {
            CaptureFormat::Pcap(PcapFile::open(order, &mut input)?)
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
            match headers::datagram(packet.link, bytes, packet.length) {
                Ok(found) => {
                    let start = packet.start + found.start;
                    return Ok(Some(Captured {
                        arrival: packet.arrival,
                        source: found.source,
                        destination: found.destination,
                        payload: &self.input.piece[start..start + found.bytes],
                    }));
                }
                Err(SkipReason::NotUdp) => self.skipped.not_udp += 1,
                Err(SkipReason::Fragment) => self.skipped.fragments += 1,
                Err(SkipReason::Truncated) => self.skipped.truncated += 1,
                Err(SkipReason::UnknownLink) => self.skipped.unknown_link += 1,
            }
        }
    }

    pub fn skipped(&self) -> Skipped {
        self.skipped
    }
}

// A capture file piece by piece: no more memory than its bytes take, whatever lengths it promises.

/// The longest block or packet that is read; others are taken for damage.
const PIECE_BYTES_MAX: usize = 16 << 20;

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

/// A reader, the piece of the file in hand, and where that ends.
#[derive(Debug)]
struct Input<R> {
    reader: R,
    piece: Vec<u8>,
    offset: u64,
}

impl<R: Read> Input<R> {
    fn new(reader: R) -> Self {
        Self { reader, piece: Vec::new(), offset: 0 }
    }

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

pub(super) fn two(bytes: &[u8], place: usize) -> Option<[u8; 2]> {
    bytes.get(place..)?.first_chunk().copied()
}

// The older format: a header for the file, and one for each packet. Either order of bytes, micro- or nanoseconds.

/// How the numbers of a file are written.
#[derive(Debug, Clone, Copy)]
struct ByteOrder {
    is_little: bool,
    nanoseconds_per_unit: u32,
}

impl ByteOrder {
    /// The order of a file that begins with these bytes.
    fn of(magic: [u8; 4]) -> Option<Self> {
        let (is_little, nanoseconds_per_unit) = match magic {
            [0xd4, 0xc3, 0xb2, 0xa1] => (true, 1_000),
            [0x4d, 0x3c, 0xb2, 0xa1] => (true, 1),
            [0xa1, 0xb2, 0xc3, 0xd4] => (false, 1_000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (false, 1),
            _ => return None,
        };
        Some(Self { is_little, nanoseconds_per_unit })
    }

    fn number(self, bytes: &[u8], place: usize) -> u32 {
        let bytes = four(bytes, place).unwrap_or_default();
        if self.is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    }
}

/// A file whose header has been read.
#[derive(Debug)]
struct PcapFile {
    order: ByteOrder,
    link: u32,
}

/// The header of the file without its first four bytes, and that of a packet.
const FILE_HEADER_BYTES: usize = 20;
const PACKET_HEADER_BYTES: usize = 16;

impl PcapFile {
    fn open<R: Read>(order: ByteOrder, input: &mut Input<R>) -> io::Result<Self> {
        if !input.read(FILE_HEADER_BYTES)? {
            return Err(input.damaged("the file ends in its header"));
        }
        // The upper bits of the word say other things.
        Ok(Self { order, link: order.number(&input.piece, 16) & 0xffff })
    }

    fn next<R: Read>(&mut self, input: &mut Input<R>) -> io::Result<Option<Packet>> {
        if !input.read(PACKET_HEADER_BYTES)? {
            return Ok(None);
        }
        let number = |place| self.order.number(&input.piece, place);
        let fraction = Duration::from_nanos(u64::from(number(4)) * u64::from(self.order.nanoseconds_per_unit));
        let arrival = Duration::from_secs(number(0).into()) + fraction;
        let (bytes, length) = (number(8) as usize, number(12) as usize);
        if bytes > 0 && !input.read(bytes)? {
            return Err(input.damaged("the file ends behind the header of a packet"));
        }
        if bytes == 0 {
            input.piece.clear();
        }
        Ok(Some(Packet { arrival, link: self.link, length, start: 0, bytes }))
    }
}

// The newer format: a sequence of blocks, in sections that each have interfaces of their own. Either order of bytes.

/// The type of the block that begins a section, the same in either order.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;

const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

/// More interfaces than a host has; a section that defines more is damaged.
const INTERFACES_MAX: usize = 1 << 16;

/// Type, and length before and after the body.
const FRAME_BYTES: usize = 12;

/// The section in hand.
#[derive(Debug)]
struct PcapngSection {
    is_little: bool,
    interfaces: Vec<PcapngInterface>,
    /// When the last packet came: one of the simple kind has no time of its own.
    last: Duration,
}

/// What a packet means on this interface.
#[derive(Debug, Clone, Copy)]
struct PcapngInterface {
    link: u32,
    /// The longest part of a packet that was captured; 0: all.
    snap_bytes: usize,
    /// In which units times are counted.
    units_per_second: u64,
    offset_seconds: i64,
}

impl PcapngSection {
    /// The first section, of which the type has been read.
    fn open<R: Read>(input: &mut Input<R>) -> io::Result<Self> {
        let mut section = Self { is_little: true, interfaces: Vec::new(), last: Duration::ZERO };
        section.begin(input)?;
        Ok(section)
    }

    /// The next packet of any section.
    fn next<R: Read>(&mut self, input: &mut Input<R>) -> io::Result<Option<Packet>> {
        loop {
            if !input.read(4)? {
                return Ok(None);
            }
            let kind = input.piece.first_chunk().copied().unwrap_or_default();
            if kind == SECTION_HEADER {
                self.begin(input)?;
                continue;
            }
            let length = self.length(input)?;
            self.body(input, length, FRAME_BYTES)?;
            match self.number(kind) {
                INTERFACE => self.add_interface(input)?,
                PACKET => return self.packet(input).map(Some),
                SIMPLE_PACKET => return self.simple_packet(input).map(Some),
                // Names, statistics, and what is yet to be invented.
                _ => {}
            }
        }
    }

    fn number(&self, bytes: [u8; 4]) -> u32 {
        if self.is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    }

    fn at(&self, bytes: &[u8], place: usize) -> usize {
        four(bytes, place).map_or(0, |bytes| self.number(bytes) as usize)
    }

    fn begin<R: Read>(&mut self, input: &mut Input<R>) -> io::Result<()> {
        if !input.read(8)? {
            return Err(input.damaged("the file ends in a section header"));
        }
        self.is_little = match four(&input.piece, 4) {
            Some([0x4d, 0x3c, 0x2b, 0x1a]) => true,
            Some([0x1a, 0x2b, 0x3c, 0x4d]) => false,
            _ => return Err(input.damaged("a section does not say in which order its bytes are")),
        };
        self.interfaces.clear();
        let length = self.at(&input.piece, 0);
        self.body(input, length, FRAME_BYTES + 4)
    }

    /// Reads the length of a block.
    fn length<R: Read>(&self, input: &mut Input<R>) -> io::Result<usize> {
        if !input.read(4)? {
            return Err(input.damaged("the file ends in a block"));
        }
        Ok(self.at(&input.piece, 0))
    }

    /// Reads the rest of a block of so many bytes, of which `known` have been read or are its last length.
    fn body<R: Read>(&self, input: &mut Input<R>, length: usize, known: usize) -> io::Result<()> {
        if length < known || !length.is_multiple_of(4) {
            return Err(input.damaged(&format!("no block is {length} bytes long")));
        }
        if !input.read(length - known + 4)? {
            return Err(input.damaged("the file ends in a block"));
        }
        let end = self.at(&input.piece, input.piece.len() - 4);
        if end != length {
            return Err(input.damaged(&format!("a block begins as {length} bytes and ends as {end}")));
        }
        input.piece.truncate(length - known);
        Ok(())
    }

    fn add_interface<R: Read>(&mut self, input: &Input<R>) -> io::Result<()> {
        if self.interfaces.len() == INTERFACES_MAX {
            return Err(input.damaged("a section has more interfaces than any host"));
        }
        let body = &input.piece;
        let short = |bytes: [u8; 2]| if self.is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) };
        let link = two(body, 0).map_or(u32::MAX, |bytes| short(bytes).into());
        let snap_bytes = self.at(body, 4);
        let mut interface = PcapngInterface { link, snap_bytes, units_per_second: 1_000_000, offset_seconds: 0 };
        let mut place = 8;
        while let (Some(kind), Some(length)) = (two(body, place).map(short), two(body, place + 2).map(short)) {
            let value = body.get(place + 4..place + 4 + usize::from(length)).unwrap_or_default();
            match (kind, value) {
                (0, _) => break,
                (OPTION_RESOLUTION, [power]) => {
                    let (base, exponent) = if power & 0x80 == 0 { (10_u64, *power) } else { (2, power & 0x7f) };
                    // No clock counts finer than 64 bits of a second.
                    interface.units_per_second = base.checked_pow(exponent.into()).unwrap_or(u64::MAX);
                }
                (OPTION_OFFSET, value) => {
                    let bytes: [u8; 8] = value.try_into().unwrap_or_default();
                    interface.offset_seconds =
                        if self.is_little { i64::from_le_bytes(bytes) } else { i64::from_be_bytes(bytes) };
                }
                _ => {}
            }
            place += 4 + usize::from(length).next_multiple_of(4);
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn packet<R: Read>(&mut self, input: &Input<R>) -> io::Result<Packet> {
        const START: usize = 20;
        let body = &input.piece;
        let Some(interface) = self.interfaces.get(self.at(body, 0)).copied() else {
            return Err(input.damaged("a packet is of an interface that is not defined"));
        };
        let (bytes, length) = (self.at(body, 12), self.at(body, 16));
        if body.len().checked_sub(START).is_none_or(|room| room < bytes) {
            return Err(input.damaged("a packet is longer than its block"));
        }
        let units = (self.at(body, 4) as u64) << 32 | self.at(body, 8) as u64;
        let seconds = (units / interface.units_per_second).saturating_add_signed(interface.offset_seconds);
        let rest =
            u128::from(units % interface.units_per_second) * 1_000_000_000 / u128::from(interface.units_per_second);
        self.last = Duration::new(seconds, u32::try_from(rest).unwrap_or(0));
        Ok(Packet { arrival: self.last, link: interface.link, length, start: START, bytes })
    }

    fn simple_packet<R: Read>(&mut self, input: &Input<R>) -> io::Result<Packet> {
        const START: usize = 4;
        let Some(interface) = self.interfaces.first() else {
            return Err(input.damaged("a packet is of an interface that is not defined"));
        };
        let length = self.at(&input.piece, 0);
        let whole = if interface.snap_bytes == 0 { length } else { length.min(interface.snap_bytes) };
        let Some(room) = input.piece.len().checked_sub(START) else {
            return Err(input.damaged("a packet is longer than its block"));
        };
        let bytes = whole.min(room);
        Ok(Packet { arrival: self.last, link: interface.link, length, start: START, bytes })
    }
}
