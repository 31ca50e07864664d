//! The newer format: a sequence of blocks, in sections that each have interfaces of their own. Either order of bytes.

use std::io::{self, Read};
use std::time::Duration;

use super::input::{Input, Packet, four, two};

/// The type of the block that begins a section, the same in either order.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

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
pub(super) struct PcapngSection {
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
    pub(super) fn open<R: Read>(input: &mut Input<R>) -> io::Result<Self> {
        let mut section = Self { is_little: true, interfaces: Vec::new(), last: Duration::ZERO };
        section.begin(input)?;
        Ok(section)
    }

    /// The next packet of any section.
    pub(super) fn next<R: Read>(&mut self, input: &mut Input<R>) -> io::Result<Option<Packet>> {
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
