//! A capture file piece by piece: no more memory than its bytes take, whatever lengths it promises.

use std::io::{self, Read};
use std::time::Duration;

/// The longest block or packet that is read; others are taken for damage.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// A packet as the file has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) arrival: Duration,
    pub(super) link: u32,
    /// How long it was on the wire.
    pub(super) length: usize,
    /// Where its bytes begin in the piece just read, and how many there are.
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// A reader, the piece of the file in hand, and where that ends.
#[derive(Debug)]
pub(super) struct Input<R> {
    reader: R,
    pub(super) piece: Vec<u8>,
    pub(super) offset: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, piece: Vec::new(), offset: 0 }
    }

    /// Replaces the piece by the next `bytes`. False at the end of the file.
    pub(super) fn read(&mut self, bytes: usize) -> io::Result<bool> {
        self.piece.clear();
        self.read_more(bytes)
    }

    /// Adds the next `bytes` to the piece. False when the file ends instead; when it ends in the middle of them that is
    /// damage.
    pub(super) fn read_more(&mut self, bytes: usize) -> io::Result<bool> {
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

    pub(super) fn damaged(&self, what: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("at byte {}: {what}", self.offset))
    }
}

/// Four bytes of `bytes` at a place, or nothing when there are none.
pub(super) fn four(bytes: &[u8], place: usize) -> Option<[u8; 4]> {
    bytes.get(place..)?.first_chunk().copied()
}

pub(super) fn two(bytes: &[u8], place: usize) -> Option<[u8; 2]> {
    bytes.get(place..)?.first_chunk().copied()
}
