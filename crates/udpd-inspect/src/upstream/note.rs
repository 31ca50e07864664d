//! What a receiver leaves for the thread that keeps the streams of its listener: a few numbers a datagram, or a run of
//! datagrams that follow one another, and nothing of the payload.

use std::net::IpAddr;

use super::header::Clock;

/// How many words a note has: a line of the cache.
pub(super) const WORDS: usize = 8;

/// What stands before an IPv4 address in the IPv6 address that stands for it.
const MAPPED: u128 = 0xffff << 32;

/// What tells one stream from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Key {
    /// An IPv4 address as the IPv6 address that stands for it.
    pub(super) source: u128,
    pub(super) stream: u64,
}

impl Key {
    #[inline]
    pub(super) fn new(source: IpAddr, stream: u64) -> Self {
        let source = match source {
            IpAddr::V4(v4) => MAPPED | u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        Self { source, stream }
    }
}

/// What is noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum What {
    /// Datagrams, each of which begins where the one before it ended.
    #[default]
    Run,
    /// An IPFIX message: the sets that were noted before it are its own.
    Message,
    /// The same, of which not all sets could be read.
    MessageInPart,
    /// Records: `number` is their template, `units` their bytes.
    Records,
    /// A template: `number` is its own, `units` the bytes of a record.
    Template,
    TemplateVariable,
    OptionsTemplate,
    OptionsTemplateVariable,
}

const ALL: [What; 8] = [
    What::Run,
    What::Message,
    What::MessageInPart,
    What::Records,
    What::Template,
    What::TemplateVariable,
    What::OptionsTemplate,
    What::OptionsTemplateVariable,
];

/// One note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Note {
    pub(super) key: Key,
    pub(super) what: What,
    /// The first number that is covered.
    pub(super) number: u64,
    /// How many are.
    pub(super) units: u32,
    pub(super) datagrams: u16,
    pub(super) clock: Clock,
    /// What the kernel had dropped at the socket when the first of these datagrams came.
    pub(super) drops: u32,
}

impl Note {
    pub(super) fn words(&self) -> [u64; WORDS] {
        let Self { key, what, number, units, datagrams, clock, drops } = *self;
        let half = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let flags = u32::from(clock.uptime_ms.is_some()) << 8 | u32::from(clock.made_at.is_some()) << 9 | what as u32;
        [
            (key.source >> 64) as u64,
            key.source as u64,
            key.stream,
            number,
            half(units, drops),
            half(clock.uptime_ms.unwrap_or(0), clock.made_at.unwrap_or(0)),
            half(datagrams.into(), flags),
            0,
        ]
    }

    pub(super) fn from_words(words: [u64; WORDS]) -> Self {
        let high = |word: u64| (word >> 32) as u32;
        let flags = words[6] as u32;
        let has = |bit: u32, value: u32| (flags >> bit & 1 == 1).then_some(value);
        Self {
            key: Key { source: u128::from(words[0]) << 64 | u128::from(words[1]), stream: words[2] },
            what: ALL[(flags & 7) as usize],
            number: words[3],
            units: high(words[4]),
            drops: words[4] as u32,
            datagrams: high(words[6]) as u16,
            clock: Clock { uptime_ms: has(8, high(words[5])), made_at: has(9, words[5] as u32) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_sender_is_the_same_as_its_mapped_address() {
        let key = |text: &str| Key::new(text.parse().expect("an address"), 7);
        assert_eq!(key("192.0.2.129"), key("::ffff:192.0.2.129"));
        assert_ne!(key("192.0.2.129"), key("::192.0.2.129"));
    }

    #[test]
    fn a_note_comes_out_as_it_was_written() {
        for what in ALL {
            for uptime_ms in [None, Some(0), Some(u32::MAX)] {
                let note = Note {
                    key: Key::new("2001:db8::7".parse().expect("an address"), u64::MAX - 1),
                    what,
                    number: u64::MAX - 2,
                    units: u32::MAX - 3,
                    datagrams: 65_533,
                    clock: Clock { uptime_ms, made_at: Some(5) },
                    drops: u32::MAX,
                };
                assert_eq!(Note::from_words(note.words()), note);
            }
        }
    }
}
