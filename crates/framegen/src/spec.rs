//! The frames of a generator: where they go, from how many flows they seem to come, how long they are, and how they are
//! marked. An impossible specification is refused once, before anything is built.

use std::io;
use std::net::{IpAddr, SocketAddr};

/// The most flows.
pub const FLOWS_MAX: u32 = 1 << 24;

/// From this length on a payload has a number.
pub const NUMBERED_BYTES: usize = 16;

/// From this length on it also has a time.
pub const TIMED_BYTES: usize = 32;

/// The longest frame that a page takes besides the kernel's own data.
pub const FRAME_BYTES_MAX: usize = 3400;

/// The first of the source ports.
pub(crate) const FIRST_PORT: u32 = 32_768;

/// The most source ports of one address, as a power of two.
const PORT_BITS_MAX: u32 = 15;

/// Which flow a frame is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// One after the other.
    RoundRobin,
    /// Each with the same chance.
    Uniform,
    /// The first has this share of all, from 0 to 1; the others have the same chance.
    Hot {
        /// From 0 to 1.
        share: f64,
    },
    /// The chance of flow n, from 1, goes with 1 / n^exponent.
    Zipf {
        /// 1 is the usual one.
        exponent: f64,
    },
}

/// In which order payload sizes are taken from a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeOrder {
    /// From the first to the last, and again.
    InTurn,
    /// Each with the same chance.
    AtRandom,
}

/// The marks at the head of each payload, by which a receiver tells one from another. All numbers are little-endian.
///
/// | bytes | from a payload of | |
/// |---|---|---|
/// | 0..2 | 16 | `magic` |
/// | 2..4 | 16 | `run` |
/// | 4..8 | 16 | the sum below, its halves combined by exclusive or |
/// | 8..16 | 16 | number: the flow in the upper `flow_bits`, below it the sequence within the flow, from 0 |
/// | 16..24 | 32 | time, CLOCK_MONOTONIC in ns |
/// | 24..32 | 32 | the offset given by [`LiveFrames::set_clock_offset`](super::LiveFrames::set_clock_offset) |
///
/// The sum is `factors[0] * (length << 16 | run) + factors[1] * number` and, where there is a time, `+ factors[2] *
/// time + factors[3] * offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadMarks {
    /// What a payload begins with.
    pub magic: [u8; 2],
    /// The number of the run.
    pub run: u16,
    /// What the parts of the sum are multiplied with.
    pub factors: [u64; 4],
    /// How many bits of the number are the flow.
    pub flow_bits: u32,
}

/// What the frames are.
#[derive(Clone, Debug)]
pub struct FrameSpec {
    /// The hardware address of the next hop.
    pub destination_mac: [u8; 6],
    /// The hardware address that they come from.
    pub source_mac: [u8; 6],
    /// Where they go.
    pub destination: SocketAddr,
    /// The first source address.
    pub first_source: IpAddr,
    /// How many source addresses there are, counted up from the first in its last 32 bits. The flows share them evenly,
    /// and those of one address have up to 32,768 ports, from 32,768 on.
    pub sources: u32,
    /// How many flows there are.
    pub flows: u32,
    /// Which flow a frame is of.
    pub mix: Mix,
    /// Payload sizes.
    pub sizes: Vec<u16>,
    /// In which order.
    pub size_order: SizeOrder,
    /// Whether there is a UDP checksum, which IPv6 requires.
    pub checksum: bool,
    /// What is marked at the head of the payload.
    pub marks: PayloadMarks,
    /// The rest of the payload, by position; as long as the longest payload, and at least 32 bytes.
    pub body: Vec<u8>,
    /// The seed: the same seed makes the same frames.
    pub seed: u64,
}

impl FrameSpec {
    /// The bytes before the payload.
    pub fn header_bytes(&self) -> usize {
        if self.destination.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 }
    }

    /// How many flows one source address has, as a power of two.
    pub(crate) fn port_bits(&self) -> u32 {
        (0..=PORT_BITS_MAX).find(|bits| u64::from(self.sources) << bits >= u64::from(self.flows)).unwrap_or(u32::MAX)
    }

    /// The last 32 bits of the first source address.
    pub(crate) fn first_source_word(&self) -> u32 {
        match self.first_source {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => address.to_bits() as u32,
        }
    }

    /// The source of a flow.
    pub fn source(&self, flow: u32) -> SocketAddr {
        let bits = self.port_bits().min(PORT_BITS_MAX);
        let (word, port) = (flow >> bits, FIRST_PORT + (flow & ((1 << bits) - 1)));
        let address = match self.first_source {
            IpAddr::V4(address) => IpAddr::from(address.to_bits().wrapping_add(word).to_be_bytes()),
            IpAddr::V6(address) => IpAddr::from((address.to_bits() + u128::from(word)).to_be_bytes()),
        };
        SocketAddr::new(address, port as u16)
    }

    /// Refuses an impossible specification. Both engines ask it first.
    pub(crate) fn check(&self) -> io::Result<()> {
        let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let longest = self.sizes.iter().copied().max().map_or(0, usize::from);
        if !(1..=FLOWS_MAX).contains(&self.flows) {
            return refuse(format!("{} flows; from 1 to {FLOWS_MAX} can be told apart", self.flows));
        }
        if self.port_bits() == u32::MAX {
            let needed = self.flows.div_ceil(1 << PORT_BITS_MAX);
            return refuse(format!("{} flows need {needed} source addresses, not {}", self.flows, self.sources));
        }
        if self.first_source_word().checked_add(self.sources - 1).is_none() {
            return refuse(format!(
                "{} addresses from {} on leave the last 32 bits of the address",
                self.sources, self.first_source
            ));
        }
        if self.first_source.is_ipv4() != self.destination.is_ipv4() {
            return refuse(format!("{} and {} are of different families", self.first_source, self.destination));
        }
        if self.sizes.is_empty() || self.header_bytes() + longest > FRAME_BYTES_MAX {
            let most = FRAME_BYTES_MAX - self.header_bytes();
            return refuse(format!("a payload of {longest} bytes; a frame takes from 0 to {most}"));
        }
        if self.body.len() < longest.max(TIMED_BYTES) {
            return refuse(format!("a body of {} bytes is shorter than the payload", self.body.len()));
        }
        if !self.checksum && self.destination.is_ipv6() {
            return refuse("IPv6 has no UDP without checksum".to_owned());
        }
        if !(1..64).contains(&self.marks.flow_bits) || u64::from(self.flows) > 1 << self.marks.flow_bits {
            return refuse(format!("{} flows do not fit into {} bits", self.flows, self.marks.flow_bits));
        }
        match self.mix {
            Mix::Hot { share } if !(0.0..=1.0).contains(&share) => refuse(format!("a share of {share} is none")),
            Mix::Zipf { exponent } if !(0.0..=10.0).contains(&exponent) => {
                refuse(format!("an exponent of {exponent} is outside 0 to 10"))
            }
            _ => Ok(()),
        }
    }
}
