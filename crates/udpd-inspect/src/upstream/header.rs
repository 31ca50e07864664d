//! Reads the sequence number of a datagram from its header: a function for each protocol, which returns `None` for a
//! datagram of another protocol or one that is too short. They read nothing behind the header.

use super::settings::{Fixed, NumberOrder, Sequence};

/// The most flows of a NetFlow 5 datagram that fits into an Ethernet frame.
pub(super) const FLOWS_MAX: u16 = 30;

/// The bytes of each.
const FLOW_BYTES: usize = 48;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SequenceHeader {
    /// What tells the stream from others of the same sender.
    pub(super) stream: u64,
    /// The first number that the datagram covers.
    pub(super) number: u64,
    /// How many numbers it covers.
    pub(super) units: u32,
    pub(super) clock: ExporterClock,
}

/// The clocks of the exporter, as far as the header has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ExporterClock {
    /// Since the exporter started, in milliseconds; wraps after 49 days.
    pub(super) uptime_ms: Option<u32>,
    /// The time of day in seconds when the datagram was made.
    pub(super) made_at: Option<u32>,
}

#[inline]
pub(super) fn netflow5(payload: &[u8]) -> Option<SequenceHeader> {
    let header = payload.first_chunk::<24>()?;
    let flows = short(header, 2)?;
    // A forged count would move the stream by as much. More than the usual 30 have to be there.
    let is_possible = flows <= FLOWS_MAX || header.len() + usize::from(flows) * FLOW_BYTES <= payload.len();
    (short(header, 0)? == 5 && flows > 0 && is_possible).then_some(())?;
    Some(SequenceHeader {
        // Type and number of the engine.
        stream: short(header, 20)?.into(),
        number: long(header, 16)?.into(),
        units: flows.into(),
        clock: ExporterClock { uptime_ms: Some(long(header, 4)?), made_at: Some(long(header, 8)?) },
    })
}

#[inline]
pub(super) fn netflow9(payload: &[u8]) -> Option<SequenceHeader> {
    let header = payload.first_chunk::<20>()?;
    (short(header, 0)? == 9).then_some(())?;
    Some(SequenceHeader {
        stream: long(header, 16)?.into(),
        number: long(header, 12)?.into(),
        units: 1,
        clock: ExporterClock { uptime_ms: Some(long(header, 4)?), made_at: Some(long(header, 8)?) },
    })
}

/// The units of a message are 0 here; `ipfix` counts its records.
#[inline]
pub(super) fn ipfix(payload: &[u8]) -> Option<SequenceHeader> {
    let header = payload.first_chunk::<16>()?;
    (short(header, 0)? == 10).then_some(())?;
    Some(SequenceHeader {
        stream: long(header, 12)?.into(),
        number: long(header, 8)?.into(),
        units: 0,
        clock: ExporterClock { uptime_ms: None, made_at: Some(long(header, 4)?) },
    })
}

/// The version of NetFlow, or of IPFIX.
#[inline]
pub(super) fn version(payload: &[u8]) -> Option<u16> {
    short(payload, 0)
}

/// Where `sequence = "netflow"` has the version in the number of a stream: v9 and IPFIX have 32 bits of their own.
pub(super) const VERSION_AT: u32 = 32;

/// Version 5, whose agent has an IPv4 or an IPv6 address. Of the latter a hash stands in a part of IPv4 in which no
/// agent has its address.
#[inline]
pub(super) fn sflow(payload: &[u8]) -> Option<SequenceHeader> {
    (long(payload, 0)? == 5).then_some(())?;
    let (agent, at) = match long(payload, 4)? {
        1 => (u64::from(long(payload, 8)?) << 32, 12),
        2 => (mixed(payload.get(8..24)?) | u64::from(HASHED_AGENTS) << 32, 24),
        _ => return None,
    };
    Some(SequenceHeader {
        stream: agent & !0xffff_ffff | u64::from(long(payload, at)?),
        number: long(payload, at + 4)?.into(),
        units: 1,
        clock: ExporterClock { uptime_ms: Some(long(payload, at + 8)?), made_at: None },
    })
}

/// Version 2. RTCP on the same port has payload types that RTP leaves free for it (RFC 5761).
#[inline]
pub(super) fn rtp(payload: &[u8]) -> Option<SequenceHeader> {
    let header = payload.first_chunk::<12>()?;
    let is_rtp = header[0] >> 6 == 2 && !(64..96).contains(&(header[1] & 0x7f));
    is_rtp.then_some(())?;
    Some(SequenceHeader {
        stream: long(header, 8)?.into(),
        number: short(header, 2)?.into(),
        units: 1,
        clock: ExporterClock::default(),
    })
}

#[inline]
pub(super) fn fixed(Fixed { offset, bytes, order }: Fixed, payload: &[u8]) -> Option<SequenceHeader> {
    let written = payload.get(offset..)?;
    // A whole word at once where there is one; at the end of a datagram only the bytes of the number.
    let word = match written.first_chunk() {
        Some(word) => *word,
        None => {
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(written.get(..bytes)?);
            word
        }
    };
    let behind = u64::BITS - 8 * bytes as u32;
    let number = match order {
        NumberOrder::Big => u64::from_be_bytes(word) >> behind,
        NumberOrder::Little => u64::from_le_bytes(word) << behind >> behind,
    };
    Some(SequenceHeader { stream: 0, number, units: 1, clock: ExporterClock::default() })
}

/// Of the sequences whose numbers need no address beside them, the bytes that no other datagram of any sender has: the
/// number, and what tells its stream from others. With RTP also its time, because 65,536 numbers are soon used up.
#[inline]
pub(super) fn number_bytes(sequence: Sequence, payload: &[u8]) -> Option<&[u8]> {
    match sequence {
        Sequence::NetFlow | Sequence::NetFlow5 | Sequence::NetFlow9 | Sequence::Ipfix => None,
        Sequence::Sflow => {
            sflow(payload)?;
            // The agent with its kind, the sub-agent and the number.
            payload.get(4..if long(payload, 4)? == 1 { 20 } else { 32 })
        }
        Sequence::Rtp => rtp(payload).and_then(|_| payload.get(2..12)),
        Sequence::Fixed(Fixed { offset, bytes, .. }) => payload.get(offset..offset + bytes),
    }
}

pub(super) fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// From here on an agent is the hash of an IPv6 address.
pub(super) const HASHED_AGENTS: u32 = 0xf000_0000;

/// A hash (FNV) of an address of sixteen bytes.
fn mixed(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |mixed, byte| (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::settings::Sequence;

    fn parse(sequence: Sequence, payload: &[u8]) -> Option<SequenceHeader> {
        match sequence {
            Sequence::NetFlow => None,
            Sequence::NetFlow5 => netflow5(payload),
            Sequence::NetFlow9 => netflow9(payload),
            Sequence::Ipfix => ipfix(payload),
            Sequence::Sflow => sflow(payload),
            Sequence::Rtp => rtp(payload),
            Sequence::Fixed(place) => fixed(place, payload),
        }
    }

    const ALL: &[Sequence] = &[
        Sequence::NetFlow5,
        Sequence::NetFlow9,
        Sequence::Ipfix,
        Sequence::Sflow,
        Sequence::Rtp,
        Sequence::Fixed(Fixed { offset: 3, bytes: 8, order: NumberOrder::Big }),
    ];

    fn bytes(parts: &[(u64, usize)]) -> Vec<u8> {
        parts.iter().flat_map(|(value, width)| value.to_be_bytes()[8 - width..].to_vec()).collect()
    }

    #[test]
    fn each_header_gives_its_number_its_stream_and_its_clocks() {
        let clock = ExporterClock { uptime_ms: Some(70_000), made_at: Some(1_700_000_000) };
        let v5 = bytes(&[(5, 2), (30, 2), (70_000, 4), (1_700_000_000, 4), (0, 4), (900, 4), (0x0102, 2), (0, 2)]);
        let expected = SequenceHeader { stream: 0x0102, number: 900, units: 30, clock };
        assert_eq!(parse(Sequence::NetFlow5, &v5), Some(expected));
        let v9 = bytes(&[(9, 2), (3, 2), (70_000, 4), (1_700_000_000, 4), (900, 4), (12, 4)]);
        assert_eq!(parse(Sequence::NetFlow9, &v9), Some(SequenceHeader { stream: 12, number: 900, units: 1, clock }));
        let ipfix = bytes(&[(10, 2), (16, 2), (1_700_000_000, 4), (900, 4), (12, 4)]);
        let clock = ExporterClock { uptime_ms: None, ..clock };
        assert_eq!(parse(Sequence::Ipfix, &ipfix), Some(SequenceHeader { stream: 12, number: 900, units: 0, clock }));
        let sflow = bytes(&[(5, 4), (1, 4), (0x0a00_0001, 4), (2, 4), (900, 4), (70_000, 4), (1, 4)]);
        let clock = ExporterClock { uptime_ms: Some(70_000), made_at: None };
        let expected = SequenceHeader { stream: 0x0a00_0001_0000_0002, number: 900, units: 1, clock };
        assert_eq!(parse(Sequence::Sflow, &sflow), Some(expected));
        let sflow = bytes(&[(5, 4), (2, 4), (1, 8), (2, 8), (2, 4), (900, 4), (70_000, 4), (1, 4)]);
        assert_eq!(parse(Sequence::Sflow, &sflow).map(|header| (header.number, header.clock)), Some((900, clock)));
        let rtp = bytes(&[(0x8060, 2), (900, 2), (5, 4), (77, 4)]);
        let expected = SequenceHeader { stream: 77, number: 900, units: 1, clock: ExporterClock::default() };
        assert_eq!(parse(Sequence::Rtp, &rtp), Some(expected));
    }

    #[test]
    fn a_number_at_a_fixed_place_has_any_width_and_either_order() {
        for width in 1..=8_usize {
            let number = 0x1122_3344_5566_7788_u64 >> (8 * (8 - width));
            for order in [NumberOrder::Big, NumberOrder::Little] {
                let mut payload = bytes(&[(0, 3), (number, width), (0xffff, 2)]);
                if order == NumberOrder::Little {
                    payload[3..3 + width].reverse();
                }
                let place = Sequence::Fixed(Fixed { offset: 3, bytes: width, order });
                let header = SequenceHeader { stream: 0, number, units: 1, clock: ExporterClock::default() };
                assert_eq!(parse(place, &payload), Some(header));
                assert_eq!(parse(place, &payload[..2 + width]), None);
            }
        }
    }

    #[test]
    fn what_is_short_or_of_another_protocol_has_no_number() {
        let noise: Vec<u8> = (0..=255_u8).map(|byte| byte.wrapping_mul(37)).collect();
        for &sequence in ALL {
            for length in 0..noise.len() {
                // It must not panic, whatever there is.
                let _ = parse(sequence, &noise[..length]);
            }
            assert_eq!(parse(sequence, &[]), None);
        }
        let rtcp = bytes(&[(0x80c8, 2), (6, 2), (5, 4), (77, 4)]);
        assert_eq!(parse(Sequence::Rtp, &rtcp), None, "a sender report is no RTP");
        let v9 = bytes(&[(9, 2), (3, 2), (70_000, 4), (1, 4), (900, 4), (12, 4), (0, 4)]);
        assert_eq!(parse(Sequence::NetFlow5, &v9), None);
        for (flows, length, is_right) in
            [(0, 2000, false), (30, 24, true), (31, 1511, false), (31, 1512, true), (65_535, 1512, false)]
        {
            let mut v5 = bytes(&[(5, 2), (flows, 2)]);
            v5.resize(length, 0);
            assert_eq!(parse(Sequence::NetFlow5, &v5).is_some(), is_right, "{flows} flows in {length} bytes");
        }
    }
}
