//! The older format: a header for the file, and one for each packet. Either order of bytes, micro- or nanoseconds.

use std::io::{self, Read};
use std::time::Duration;

use super::input::{Input, Packet, four};

/// How the numbers of a file are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteOrder {
    is_little: bool,
    nanoseconds_per_unit: u32,
}

impl ByteOrder {
    /// The order of a file that begins with these bytes.
    pub(super) fn of(magic: [u8; 4]) -> Option<Self> {
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
pub(super) struct File {
    order: ByteOrder,
    link: u32,
}

/// The header of the file without its first four bytes, and that of a packet.
const FILE_HEADER_BYTES: usize = 20;
const PACKET_HEADER_BYTES: usize = 16;

impl File {
    pub(super) fn open<R: Read>(order: ByteOrder, input: &mut Input<R>) -> io::Result<Self> {
        if !input.read(FILE_HEADER_BYTES)? {
            return Err(input.damaged("the file ends in its header"));
        }
        // The upper bits of the word say other things.
        Ok(Self { order, link: order.number(&input.piece, 16) & 0xffff })
    }

    pub(super) fn next<R: Read>(&mut self, input: &mut Input<R>) -> io::Result<Option<Packet>> {
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
