//! `sequence`: which sequence number the datagrams of a listener carry, as it may be written.

use std::fmt;
use std::net::Ipv4Addr;

use toml::de::DeValue;

use super::header;
use udpd_base::settings::kinds::{OneOf, SubTable, WholeNumber};
use udpd_base::settings::{Field, Findings, KeyDeclaration, TableSettings as _, ValueKind, settings};

/// The protocol or the place of a sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// Each datagram is of the version that it says: 5, 9 or IPFIX.
    NetFlow,
    NetFlow5,
    NetFlow9,
    Ipfix,
    Sflow,
    Rtp,
    Fixed(Fixed),
}

settings! {
    /// A number at a fixed place of every datagram, one more with each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Fixed {
        /// Where the number begins, in bytes from the start of the payload.
        offset: usize = 0 like 4, WholeNumber(0..=65_499);
        /// How many bytes it has.
        bytes: usize = 4, WholeNumber(1..=8), elsewhere "length size width";
        /// Which of its bytes comes first: the highest ("big", as in network order) or the lowest ("little").
        order: NumberOrder = "big" like "little", OneOf(ORDERS), elsewhere "endian endianness byte_order";
    }
}

/// Which byte of a number comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberOrder {
    Big,
    Little,
}

const ORDERS: &[(&str, NumberOrder)] = &[("big", NumberOrder::Big), ("little", NumberOrder::Little)];

const PROTOCOLS: &[(&str, Option<Sequence>)] = &[
    ("", None),
    ("netflow", Some(Sequence::NetFlow)),
    ("netflow5", Some(Sequence::NetFlow5)),
    ("netflow9", Some(Sequence::NetFlow9)),
    ("ipfix", Some(Sequence::Ipfix)),
    ("sflow", Some(Sequence::Sflow)),
    ("rtp", Some(Sequence::Rtp)),
];

/// What a sequence number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceUnit {
    Datagrams,
    Flows,
    Records,
    /// Each stream has its own of these.
    Mixed,
}

impl fmt::Display for SequenceUnit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Datagrams => "datagrams",
            Self::Flows => "flows",
            Self::Records => "records",
            Self::Mixed => "units",
        })
    }
}

impl Sequence {
    pub fn unit(self) -> SequenceUnit {
        match self {
            Self::NetFlow => SequenceUnit::Mixed,
            Self::NetFlow5 => SequenceUnit::Flows,
            Self::Ipfix => SequenceUnit::Records,
            Self::NetFlow9 | Self::Sflow | Self::Rtp | Self::Fixed(_) => SequenceUnit::Datagrams,
        }
    }

    /// Whether messages of IPFIX come.
    pub(super) fn has_messages(self) -> bool {
        matches!(self, Self::NetFlow | Self::Ipfix)
    }

    /// What a stream of this number speaks.
    pub(super) fn of_stream(self, stream: u64) -> Self {
        match (self, stream >> header::VERSION_AT) {
            (Self::NetFlow, 5) => Self::NetFlow5,
            (Self::NetFlow, 9) => Self::NetFlow9,
            (Self::NetFlow, _) => Self::Ipfix,
            (own, _) => own,
        }
    }

    /// How the protocol calls what tells this stream from others of its session.
    pub(super) fn domain(self, stream: u64) -> String {
        let (high, low) = ((stream >> 32) as u32, stream as u32);
        match self {
            Self::NetFlow5 => format!("{}/{}", low >> 8 & 0xff, low & 0xff),
            Self::NetFlow | Self::NetFlow9 | Self::Ipfix => low.to_string(),
            Self::Sflow if high >= header::HASHED_AGENTS => format!("IPv6 agent {high:x}/{low}"),
            Self::Sflow => format!("{}/{low}", Ipv4Addr::from_bits(high)),
            Self::Rtp => format!("{low:#x}"),
            Self::Fixed(_) => String::new(),
        }
    }

    /// How many bits the number has.
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::NetFlow | Self::NetFlow5 | Self::NetFlow9 | Self::Ipfix | Self::Sflow => 32,
            Self::Rtp => 16,
            Self::Fixed(Fixed { bytes, .. }) => 8 * bytes as u32,
        }
    }

    /// Whether its numbers tell a datagram from all others of a listener, whichever address brings it.
    pub fn needs_no_address(self) -> bool {
        matches!(self, Self::Sflow | Self::Rtp | Self::Fixed(_))
    }

    /// The bytes of a datagram that do so; `None` where it has no number.
    pub fn number_bytes(self, payload: &[u8]) -> Option<&[u8]> {
        header::number_bytes(self, payload)
    }

    /// How many datagrams of a stream come before a number comes again; `None` where that is as good as never.
    pub fn numbers_until_again(self) -> Option<u64> {
        match self {
            Self::Fixed(Fixed { bytes: bytes @ ..8, .. }) => Some(1 << (8 * bytes)),
            _ => None,
        }
    }

    /// How many bytes of a datagram must be kept for its number to be read.
    pub fn header_bytes(self) -> usize {
        match self {
            Self::NetFlow | Self::NetFlow5 => 24,
            Self::NetFlow9 => 20,
            Self::Ipfix => 16,
            // With an IPv6 address of its agent.
            Self::Sflow => 40,
            Self::Rtp => 12,
            Self::Fixed(Fixed { offset, bytes, .. }) => offset + bytes,
        }
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(_, protocol)| *protocol == Some(*self)) {
            Some((name, _)) => formatter.write_str(name),
            None => formatter.write_str("a number at a fixed offset"),
        }
    }
}

/// The name of a protocol, or the place of a number.
#[derive(Debug)]
pub struct AnySequence;

impl ValueKind<Option<Sequence>> for AnySequence {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Option<Sequence>> {
        match field.value {
            DeValue::String(_) => OneOf(PROTOCOLS).read(field, findings),
            DeValue::Table(_) => {
                let fixed: Fixed = SubTable.read(field, findings)?;
                Some(Some(Sequence::Fixed(fixed)))
            }
            _ => field.wrong(findings, "the name of a protocol, or a table such as { offset = 4, bytes = 4 }"),
        }
    }

    fn bounds(&self) -> String {
        format!("{}, or {{ offset = ..., bytes = ..., order = ... }}", OneOf(PROTOCOLS).bounds())
    }

    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        let inner = Fixed::keys(&own.path);
        std::iter::once(own).chain(inner).collect()
    }
}
