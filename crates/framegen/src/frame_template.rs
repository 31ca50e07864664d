//! Frames as bytes: the template that every frame is written over, the sums that stay the same, and a writer that makes
//! one frame after the other.
//!
//! Checksums are sums of 16-bit words that carry over at the end. Such a sum may be built of any parts in any order, so
//! what is the same in every frame of a size is added up once. The words are taken as this machine reads them: the sum
//! of swapped words is the swapped sum.

use std::io;
use std::net::IpAddr;

use crate::draw::{Chance, Flows};
use crate::spec::{FIRST_PORT, FrameSpec, NUMBERED_BYTES, SizeOrder, TIMED_BYTES};

/// Where things are in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderOffsets {
    /// The length in the network header, and how much it has beside the payload.
    pub(crate) length: usize,
    pub(crate) length_beside_payload: usize,
    /// The checksum of the network header, which IPv6 does not have.
    pub(crate) header_sum: Option<usize>,
    /// The last four bytes of the source address.
    pub(crate) source: usize,
    pub(crate) source_port: usize,
    pub(crate) udp_length: usize,
    pub(crate) udp_sum: usize,
    pub(crate) payload: usize,
}

const V4: HeaderOffsets = HeaderOffsets {
    length: 16,
    length_beside_payload: 28,
    header_sum: Some(24),
    source: 26,
    source_port: 34,
    udp_length: 38,
    udp_sum: 40,
    payload: 42,
};

const V6: HeaderOffsets = HeaderOffsets {
    length: 18,
    length_beside_payload: 8,
    header_sum: None,
    source: 34,
    source_port: 54,
    udp_length: 58,
    udp_sum: 60,
    payload: 62,
};

/// A size, and the sums of what is the same in every frame of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameSize {
    pub(crate) bytes: u16,
    pub(crate) udp_sum: u16,
    pub(crate) header_sum: u16,
}

/// What all frames have in common.
#[derive(Clone, Debug)]
pub(crate) struct FrameTemplate {
    /// The headers, zero where they differ, and the longest payload, which has at least room for all marks.
    pub(crate) frame: Vec<u8>,
    pub(crate) places: HeaderOffsets,
    pub(crate) sizes: Vec<FrameSize>,
}

/// The sum of 16-bit words, as this machine reads them.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let last = rest.first().map_or(0, |byte| u16::from_ne_bytes([*byte, 0]));
    words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum::<u64>() + u64::from(last)
}

/// Carries over until nothing is left to carry.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

impl FrameTemplate {
    pub(crate) fn new(spec: &FrameSpec) -> Self {
        let places = if spec.destination.is_ipv4() { V4 } else { V6 };
        let longest = spec.sizes.iter().copied().max().map_or(0, usize::from).max(TIMED_BYTES);
        let mut frame = vec![0; places.payload + longest];
        put(&mut frame, 0, &spec.destination_mac);
        put(&mut frame, 6, &spec.source_mac);
        match (spec.first_source, spec.destination.ip()) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                put(&mut frame, 12, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
                put(&mut frame, 22, &source.octets());
                put(&mut frame, 34, &[0; 4]);
                put(&mut frame, 38, &destination.octets());
            }
            (_, destination) => {
                // Version and length, no type of service; do not fragment; 64 hops; UDP.
                put(&mut frame, 12, &[0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
                let IpAddr::V4(destination) = destination else { unreachable!("the families are the same") };
                put(&mut frame, 30, &destination.octets());
            }
        }
        put(&mut frame, places.source_port + 2, &spec.destination.port().to_be_bytes());
        put(&mut frame, places.payload, &spec.body[..longest]);
        let sizes = spec.sizes.iter().map(|bytes| FrameSize::new(*bytes, &frame, places, spec)).collect();
        Self { frame, places, sizes }
    }

    /// The payload of the template.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.frame.len() - self.places.payload
    }
}

impl FrameSize {
    fn new(bytes: u16, frame: &[u8], places: HeaderOffsets, spec: &FrameSpec) -> Self {
        let length = usize::from(bytes);
        let payload = &frame[places.payload..places.payload + length];
        let payload_sum = match length {
            0..NUMBERED_BYTES => sum(payload),
            NUMBERED_BYTES..TIMED_BYTES => sum(&first_word(spec)) + sum(&payload[NUMBERED_BYTES..]),
            _ => sum(&first_word(spec)) + sum(&payload[TIMED_BYTES..]),
        };
        let udp_length = sum(&(bytes + 8).to_be_bytes());
        // Both addresses as far as they are the same, the protocol, and the length twice: before and in the header.
        let addresses = match places.header_sum {
            Some(_) => &frame[26..34],
            None => &frame[22..54],
        };
        let ports = sum(&frame[places.source_port..places.source_port + 4]);
        let udp_sum = sum(addresses) + sum(&[0, 17]) + 2 * udp_length + ports + payload_sum;
        let header_length = sum(&(bytes + places.length_beside_payload as u16).to_be_bytes());
        let header_sum = places.header_sum.map_or(0, |_| sum(&frame[14..34]) + header_length);
        Self { bytes, udp_sum: fold(udp_sum), header_sum: fold(header_sum) }
    }

    /// As the program reads it.
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.bytes) | u64::from(self.udp_sum) << 16 | u64::from(self.header_sum) << 32
    }
}

/// The first four bytes of a numbered payload.
pub(crate) fn first_word(spec: &FrameSpec) -> [u8; 4] {
    let [low, high] = spec.marks.run.to_le_bytes();
    [spec.marks.magic[0], spec.marks.magic[1], low, high]
}

/// When a frame was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameTime {
    /// CLOCK_MONOTONIC.
    pub(crate) monotonic_ns: u64,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC.
    pub(crate) realtime_offset_ns: i64,
}

/// Writes one frame after the other.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    spec: FrameSpec,
    template: FrameTemplate,
    flows: Flows,
    chance: Chance,
    size_turn: usize,
}

impl FrameWriter {
    pub(crate) fn new(spec: &FrameSpec) -> io::Result<Self> {
        spec.check()?;
        Ok(Self {
            template: FrameTemplate::new(spec),
            flows: Flows::new(spec.mix, spec.flows),
            chance: Chance(spec.seed),
            size_turn: 0,
            spec: spec.clone(),
        })
    }

    /// Room for the longest frame, with what all have in common.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.template.frame.clone()
    }

    /// Writes the next frame over [`buffer`](Self::buffer) and returns its length.
    pub(crate) fn write(&mut self, frame: &mut [u8], time: FrameTime) -> usize {
        let (flow, sequence) = self.flows.draw(self.spec.flows, &mut self.chance);
        let size = self.draw_size();
        let number = u64::from(flow) << (64 - self.spec.marks.flow_bits) | sequence;
        let HeaderOffsets {
            length,
            length_beside_payload,
            header_sum,
            source,
            source_port,
            udp_length,
            udp_sum,
            payload,
        } = self.template.places;
        put(frame, length, &(size.bytes + length_beside_payload as u16).to_be_bytes());
        put(frame, udp_length, &(size.bytes + 8).to_be_bytes());
        let bits = self.spec.port_bits();
        let address = self.spec.first_source_word().wrapping_add(flow >> bits).to_be_bytes();
        let port = ((FIRST_PORT + (flow & ((1 << bits) - 1))) as u16).to_be_bytes();
        put(frame, source, &address);
        put(frame, source_port, &port);
        if let Some(at) = header_sum {
            put(frame, at, &(!fold(u64::from(size.header_sum) + sum(&address))).to_ne_bytes());
        }
        let length = usize::from(size.bytes);
        let marked = self.mark(&mut frame[payload..], length, number, time);
        if self.spec.checksum {
            let whole = fold(u64::from(size.udp_sum) + sum(&address) + sum(&port) + marked);
            // 0 means that there is none, so a sum of 0 is written as its other form.
            let written = if whole == 0xffff { 0xffff } else { !whole };
            put(frame, udp_sum, &written.to_ne_bytes());
        }
        payload + length
    }

    fn draw_size(&mut self) -> FrameSize {
        let sizes = &self.template.sizes;
        let at = match (sizes.len(), self.spec.size_order) {
            (1, _) => 0,
            (count, SizeOrder::AtRandom) => self.chance.below(count as u32) as usize,
            (count, SizeOrder::InTurn) => {
                let at = self.size_turn;
                self.size_turn = (at + 1) % count;
                at
            }
        };
        sizes[at]
    }

    /// Writes the marks that a payload of this length has room for, and returns the sum of those that differ.
    fn mark(&self, payload: &mut [u8], length: usize, number: u64, time: FrameTime) -> u64 {
        put(payload, 0, &self.spec.body[..TIMED_BYTES]);
        if length < NUMBERED_BYTES {
            return 0;
        }
        let marks = &self.spec.marks;
        let [of_length, of_number, of_time, of_offset] = marks.factors;
        let mut check = of_length
            .wrapping_mul((length as u64) << 16 | u64::from(marks.run))
            .wrapping_add(of_number.wrapping_mul(number));
        put(payload, 0, &first_word(&self.spec));
        put(payload, 8, &number.to_le_bytes());
        let mut end = NUMBERED_BYTES;
        if length >= TIMED_BYTES {
            let FrameTime { monotonic_ns, realtime_offset_ns } = time;
            check = check
                .wrapping_add(of_time.wrapping_mul(monotonic_ns))
                .wrapping_add(of_offset.wrapping_mul(realtime_offset_ns.cast_unsigned()));
            put(payload, 16, &monotonic_ns.to_le_bytes());
            put(payload, 24, &realtime_offset_ns.to_le_bytes());
            end = TIMED_BYTES;
        }
        put(payload, 4, &((check ^ (check >> 32)) as u32).to_le_bytes());
        sum(&payload[4..end])
    }
}
