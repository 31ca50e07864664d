//! Where a record ends, for each way of writing records one after the other. A write that took only a part of what it
//! was given, and a file that a crash cut short, are both asked the same: how much of this is whole?

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
mod tests {
    use super::*;

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
