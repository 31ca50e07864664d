//! The payload of a bench datagram: enough to tell a loss from a repeat, from a mix-up, from damage, and how long it
//! took.
//!
//! All numbers are little-endian.
//!
//! | bytes | from a size of | field |
//! |---|---|---|
//! | 0..2 | 16 | magic and version, `b5 01`, or `b5 02` with more than 65,536 flows |
//! | 2..4 | 16 | run: a random number, so that the stragglers of an earlier run are not mistaken |
//! | 4..8 | 16 | checksum over everything else in the header, and the length |
//! | 8..16 | 16 | sequence, from 0, in the low 48 bits; flow in the high 16; with `b5 02` 40 and 24 bits |
//! | 16..24 | 32 | time of sending, CLOCK_MONOTONIC in ns: of the call that sent the whole batch |
//! | 24..32 | 32 | CLOCK_REALTIME - CLOCK_MONOTONIC at the sender, in ns |
//! | the rest | 1 | a fixed pattern, each byte by its place |
//!
//! A datagram shorter than 16 bytes is only the pattern: it can be counted, and nothing else can be known of it.
//!
//! The checksum is a sum of products with odd constants, so that a sender pays two multiplications a datagram: the
//! parts that stay the same in a batch are added up once. Damage to the body is seen by comparing it with the pattern.

use framegen::PayloadMarks;

/// What a header begins with; the second byte is the version.
pub const MAGIC: [u8; 2] = [0xb5, 0x01];

/// From this size on a datagram says which one it is.
pub const SEQUENCED_BYTES: usize = 16;

/// From this size on it also says when it was sent.
pub const TIMED_BYTES: usize = 32;

/// The longest payload of a UDP datagram over IPv4.
pub const PAYLOAD_MAX: usize = 65_507;

/// Sequences have this many bits.
const SEQUENCE_BITS: u32 = 48;

/// The same with more than 65,536 flows: fewer bits for each flow's sequence, and more for the flow.
pub const MAGIC_OF_MANY: [u8; 2] = [0xb5, 0x02];
const SEQUENCE_BITS_OF_MANY: u32 = 40;

/// What a body is made of.
static PATTERN: [u8; PAYLOAD_MAX] = pattern();

/// Odd, without pattern: the fractional parts of the square roots of 2, 3, 5 and 7.
pub const FACTORS: [u64; 4] =
    [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1];

const fn pattern() -> [u8; PAYLOAD_MAX] {
    let mut bytes = [0; PAYLOAD_MAX];
    let mut place = 0;
    while place < PAYLOAD_MAX {
        // Neighbours differ, and so do bytes that are 256 places apart.
        bytes[place] = ((place * 167) ^ (place >> 8)) as u8;
        place += 1;
    }
    bytes
}

/// When a datagram was sent, by the clocks of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendTime {
    /// CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC.
    pub realtime_offset_ns: i64,
}

impl SendTime {
    /// The moment on CLOCK_REALTIME.
    pub fn realtime_ns(&self) -> u64 {
        self.monotonic_ns.wrapping_add_signed(self.realtime_offset_ns)
    }
}

/// What a datagram says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadHeader {
    pub run: u16,
    pub flow: u32,
    /// Its number in that flow, from 0.
    pub sequence: u64,
    /// When it was sent, from 32 bytes on.
    pub sent: Option<SendTime>,
}

/// What a received payload turns out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadReading {
    /// A datagram of the bench, whole.
    Datagram(PayloadHeader),
    /// A datagram of the bench that is too short to say more.
    Short,
    /// It begins as a datagram of the bench and is not what was sent.
    Corrupted,
    /// Not a datagram of the bench.
    Foreign,
}

/// Writes the headers of a batch.
#[derive(Debug, Clone, Copy)]
pub struct HeaderStamp {
    run: u16,
    sent: SendTime,
    /// The part of the checksum that stays the same in this batch.
    timed_part: u64,
}

impl HeaderStamp {
    /// For all datagrams that are sent by one call.
    pub fn new(run: u16, sent: SendTime) -> Self {
        let timed_part = FACTORS[2]
            .wrapping_mul(sent.monotonic_ns)
            .wrapping_add(FACTORS[3].wrapping_mul(sent.realtime_offset_ns.cast_unsigned()));
        Self { run, sent, timed_part }
    }

    /// Writes the header at the head of `datagram`, whose bytes from 32 on must be [the pattern](fill) already.
    pub fn write(&self, datagram: &mut [u8], flow: u16, sequence: u64) {
        let length = datagram.len();
        let number = (u64::from(flow) << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1));
        let mut sum = first_part(self.run, length).wrapping_add(FACTORS[1].wrapping_mul(number));
        if length >= TIMED_BYTES {
            sum = sum.wrapping_add(self.timed_part);
            datagram[16..24].copy_from_slice(&self.sent.monotonic_ns.to_le_bytes());
            datagram[24..32].copy_from_slice(&self.sent.realtime_offset_ns.to_le_bytes());
        } else if length >= SEQUENCED_BYTES {
            datagram[SEQUENCED_BYTES..].copy_from_slice(&PATTERN[SEQUENCED_BYTES..length]);
        } else {
            datagram.copy_from_slice(&PATTERN[..length]);
            return;
        }
        datagram[..2].copy_from_slice(&MAGIC);
        datagram[2..4].copy_from_slice(&self.run.to_le_bytes());
        datagram[4..8].copy_from_slice(&fold(sum).to_le_bytes());
        datagram[8..16].copy_from_slice(&number.to_le_bytes());
    }
}

/// Fills a datagram with the pattern, header included.
pub fn fill(datagram: &mut [u8]) {
    let length = datagram.len();
    datagram.copy_from_slice(&PATTERN[..length]);
}

/// Reads a payload that was `length` bytes on the wire; fewer may be here when it was truncated, and then the body is
/// only checked as far as it goes.
pub fn read(payload: &[u8], length: usize) -> PayloadReading {
    if length < SEQUENCED_BYTES {
        return if is_pattern(payload, 0) { PayloadReading::Short } else { PayloadReading::Foreign };
    }
    let Some(bits) = sequence_bits(payload).filter(|_| payload.len() >= TIMED_BYTES.min(length)) else {
        return PayloadReading::Foreign;
    };
    let run = u16::from_le_bytes([payload[2], payload[3]]);
    let number = word(payload, 8);
    let mut sum = first_part(run, length).wrapping_add(FACTORS[1].wrapping_mul(number));
    let (mut sent, mut body) = (None, SEQUENCED_BYTES);
    if length >= TIMED_BYTES {
        let time = SendTime { monotonic_ns: word(payload, 16), realtime_offset_ns: word(payload, 24).cast_signed() };
        sum = sum.wrapping_add(HeaderStamp::new(run, time).timed_part);
        (sent, body) = (Some(time), TIMED_BYTES);
    }
    let written = u32::from_le_bytes([payload[4], payload[5], payload[6], payload[7]]);
    if written != fold(sum) || !is_pattern(payload, body) {
        return PayloadReading::Corrupted;
    }
    let flow = (number >> bits) as u32;
    PayloadReading::Datagram(PayloadHeader { run, flow, sequence: number & ((1 << bits) - 1), sent })
}

/// How many bits of the number are the sequence; `None` where nothing of the bench begins.
fn sequence_bits(payload: &[u8]) -> Option<u32> {
    match *payload.first_chunk()? {
        MAGIC => Some(SEQUENCE_BITS),
        MAGIC_OF_MANY => Some(SEQUENCE_BITS_OF_MANY),
        _ => None,
    }
}

/// The marks of a generator of frames, which writes what [`HeaderStamp`] writes.
pub fn marks(run: u16, flows: u32) -> PayloadMarks {
    let (magic, sequence_bits) = match flows <= 1 << (u64::BITS - SEQUENCE_BITS) {
        true => (MAGIC, SEQUENCE_BITS),
        false => (MAGIC_OF_MANY, SEQUENCE_BITS_OF_MANY),
    };
    PayloadMarks { magic, run, factors: FACTORS, flow_bits: u64::BITS - sequence_bits }
}

fn is_pattern(payload: &[u8], from: usize) -> bool {
    PATTERN.get(from..payload.len()).is_some_and(|expected| payload[from..] == *expected)
}

fn word(payload: &[u8], from: usize) -> u64 {
    payload[from..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn first_part(run: u16, length: usize) -> u64 {
    FACTORS[0].wrapping_mul((length as u64) << 16 | u64::from(run))
}

/// The high half has seen every bit of the words, the low half only those below it.
fn fold(sum: u64) -> u32 {
    (sum ^ (sum >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: SendTime = SendTime { monotonic_ns: 123_456_789_012, realtime_offset_ns: -5 };

    fn written(length: usize, flow: u16, sequence: u64) -> Vec<u8> {
        let mut datagram = vec![0; length];
        fill(&mut datagram);
        HeaderStamp::new(7, SENT).write(&mut datagram, flow, sequence);
        datagram
    }

    #[test]
    fn what_is_written_is_read_at_every_size() {
        let most = (1 << SEQUENCE_BITS) - 1;
        for length in (0..200).chain([1472, 9000, PAYLOAD_MAX]) {
            let expected = match length {
                0..16 => PayloadReading::Short,
                16..32 => PayloadReading::Datagram(PayloadHeader { run: 7, flow: 65_535, sequence: most, sent: None }),
                _ => PayloadReading::Datagram(PayloadHeader { run: 7, flow: 65_535, sequence: most, sent: Some(SENT) }),
            };
            assert_eq!(read(&written(length, 65_535, most), length), expected, "{length} bytes");
        }
    }

    #[test]
    fn a_buffer_that_is_used_for_another_size_leaves_nothing_behind() {
        let mut buffer = written(64, 1, 2);
        HeaderStamp::new(7, SENT).write(&mut buffer[..20], 3, 4);
        assert_eq!(buffer[..20], written(20, 3, 4));
        HeaderStamp::new(7, SENT).write(&mut buffer[..9], 3, 4);
        assert_eq!(read(&buffer[..9], 9), PayloadReading::Short);
        HeaderStamp::new(7, SENT).write(&mut buffer[..64], 1, 2);
        assert_eq!(buffer, written(64, 1, 2));
    }

    #[test]
    fn no_flipped_bit_goes_unseen() {
        for length in [16, 31, 32, 64, 200] {
            let whole = written(length, 3, 1_000_000);
            for bit in 0..length * 8 {
                let mut damaged = whole.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let expected = if bit < 16 { PayloadReading::Foreign } else { PayloadReading::Corrupted };
                assert_eq!(read(&damaged, length), expected, "bit {bit} of {length} bytes");
            }
        }
    }

    #[test]
    fn a_datagram_of_another_length_is_corrupted_and_a_truncated_one_is_not() {
        let whole = written(100, 3, 4);
        assert_eq!(read(&whole[..99], 99), PayloadReading::Corrupted);
        assert!(matches!(read(&whole[..50], 100), PayloadReading::Datagram(_)));
    }

    #[test]
    fn with_many_flows_there_are_more_bits_for_the_flow_and_fewer_for_its_sequence() {
        assert_eq!((marks(7, 65_536).magic, marks(7, 65_536).flow_bits), (MAGIC, 16));
        let marks = marks(7, 65_537);
        assert_eq!((marks.magic, marks.flow_bits), (MAGIC_OF_MANY, 24));
        // Only the first two bytes say which it is, and the sum is over the number as a whole.
        let mut datagram = written(64, 0xabcd, 0xef_0000_0000 | 9);
        datagram[..2].copy_from_slice(&marks.magic);
        let PayloadReading::Datagram(header) = read(&datagram, 64) else { panic!("{:?}", read(&datagram, 64)) };
        assert_eq!((header.flow, header.sequence), (0xab_cd00, 0xef_0000_0009));
    }

    #[test]
    fn what_others_send_is_foreign() {
        assert_eq!(read(b"<13>Oct 11 22:14:15 host app: message", 37), PayloadReading::Foreign);
        assert_eq!(read(b"short", 5), PayloadReading::Foreign);
        assert_eq!(read(b"", 0), PayloadReading::Short, "an empty datagram can only be counted");
    }
}
