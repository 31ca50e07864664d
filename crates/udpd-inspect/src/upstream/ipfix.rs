//! IPFIX: how many records a message has, and what its sequence number counts.
//!
//! Of a message only the headers of its sets and its templates are read, no field of a record. So the records of a
//! template with fields of variable length have a least and a greatest number.
//!
//! RFC 7011 says that the number counts the records before the message, options among them. Exporters differ: some
//! count the message's own records too, some leave options out. So the convention is learnt for each stream. Between
//! two consecutive messages the numbers differ by the records of the first or of the second, with or without options;
//! each such pair is evidence for the conventions that it fits. Until one convention is ahead, messages wait in a short
//! queue, so that what is learnt from later messages is applied to earlier ones. While two conventions are possible and
//! disagree on what is missing between two messages, messages wait on, and if they cannot, that has bounds only.

use std::hash::{BuildHasher, RandomState};

use super::header::{ExporterClock, short};
use super::note_ring::StreamKey;
use super::stream::{Arrival, NumberedStream, SequenceRules, StreamCounts};
use super::table::STREAMS_MAX;

const MESSAGE_HEADER_BYTES: usize = 16;
const SET_HEADER_BYTES: usize = 4;
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
const FIRST_OF_RECORDS: u16 = 256;
const VARIABLE: u16 = u16::MAX;
const ENTERPRISE: u16 = 0x8000;

/// A set, or a template in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// Records of a template take so many bytes together.
    Records {
        template: u16,
        bytes: u16,
    },
    Template {
        template: u16,
        format: RecordFormat,
    },
}

/// What a template says of its records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecordFormat {
    /// The bytes of a record, at least.
    bytes: u16,
    /// Whether a record can be longer.
    is_variable: bool,
    is_options: bool,
}

impl RecordFormat {
    /// As a note carries it.
    pub(super) fn to_units(self) -> u32 {
        u32::from(self.is_options) << 17 | u32::from(self.is_variable) << 16 | u32::from(self.bytes)
    }

    pub(super) fn from_units(units: u32) -> Self {
        Self { bytes: units as u16, is_variable: units >> 16 & 1 == 1, is_options: units >> 17 & 1 == 1 }
    }
}

/// Visits each set of a message, and each template. False when a part cannot be read: it is truncated or damaged.
pub(super) fn each_set(payload: &[u8], mut visit: impl FnMut(Set) -> bool) -> bool {
    let length = short(payload, 2).map_or(0, usize::from);
    let is_whole = (MESSAGE_HEADER_BYTES..=payload.len()).contains(&length);
    let length = length.min(payload.len());
    let mut rest = payload.get(MESSAGE_HEADER_BYTES..length).unwrap_or_default();
    while let (Some(id), Some(bytes)) = (short(rest, 0), short(rest, 2)) {
        let Some(content) = rest.get(SET_HEADER_BYTES..usize::from(bytes)) else { return false };
        let is_right = match id {
            TEMPLATES | OPTIONS_TEMPLATES => each_template(content, id == OPTIONS_TEMPLATES, &mut visit),
            FIRST_OF_RECORDS.. => visit(Set::Records { template: id, bytes: content.len() as u16 }),
            _ => true,
        };
        if !is_right {
            return false;
        }
        rest = &rest[usize::from(bytes)..];
    }
    is_whole && rest.len() < SET_HEADER_BYTES
}

fn each_template(mut content: &[u8], is_options: bool, visit: &mut impl FnMut(Set) -> bool) -> bool {
    // Less than a header is padding, and so are zeros.
    while let (Some(template), Some(fields)) = (short(content, 0), short(content, 2)) {
        if template < FIRST_OF_RECORDS {
            return true;
        }
        let is_withdrawn = fields == 0;
        let mut at = if is_options && !is_withdrawn { 6 } else { 4 };
        let mut format = RecordFormat { bytes: 0, is_variable: false, is_options };
        for _ in 0..fields {
            let (Some(element), Some(length)) = (short(content, at), short(content, at + 2)) else { return false };
            at += if element & ENTERPRISE == 0 { 4 } else { 8 };
            format.is_variable |= length == VARIABLE;
            // A field of variable length begins with a byte that says how long it is.
            format.bytes = format.bytes.saturating_add(if length == VARIABLE { 1 } else { length });
        }
        let Some(rest) = content.get(at..) else { return false };
        if !visit(Set::Template { template, format }) {
            return false;
        }
        content = rest;
    }
    true
}

/// At least and at most so many records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecordCount {
    pub(super) least: u16,
    pub(super) most: u16,
}

impl RecordCount {
    fn add(&mut self, other: Self) {
        self.least = self.least.saturating_add(other.least);
        self.most = self.most.saturating_add(other.most);
    }
}

/// The templates of all streams of a listener, in a table of fixed size: sets of a few places each. A template that
/// finds no free place takes another's; exporters repeat theirs every few minutes.
#[derive(Debug)]
pub(super) struct Templates {
    all: Box<[KnownTemplate]>,
    hasher: RandomState,
    turn: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct KnownTemplate {
    /// A hash of its stream and its number; 0 marks a free place.
    mark: u64,
    format: RecordFormat,
}

const TEMPLATES_MAX: usize = 1 << 15;
const WAYS: usize = 4;

/// The memory of the table.
pub(super) const TEMPLATES_BYTES: usize = TEMPLATES_MAX * size_of::<KnownTemplate>();

impl Templates {
    pub(super) fn new() -> Self {
        Self { all: vec![KnownTemplate::default(); TEMPLATES_MAX].into(), hasher: RandomState::new(), turn: 0 }
    }

    /// The mark of a template, and the places where it may be.
    fn ways(&mut self, key: &StreamKey, template: u64) -> (u64, &mut [KnownTemplate]) {
        let mark = self.hasher.hash_one((key, template)).max(1);
        let first = (mark as usize % (TEMPLATES_MAX / WAYS)) * WAYS;
        (mark, &mut self.all[first..first + WAYS])
    }

    pub(super) fn learn(&mut self, key: &StreamKey, template: u64, format: RecordFormat) {
        self.turn = (self.turn + 1) % WAYS;
        let turn = self.turn;
        let (mark, ways) = self.ways(key, template);
        let place = ways.iter().position(|way| way.mark == mark || way.mark == 0).unwrap_or(turn);
        ways[place] = KnownTemplate { mark, format };
    }

    /// Adds the records of a set of so many bytes to those of its message. Of a set without a known template it is only
    /// known that it has a record.
    pub(super) fn count(&mut self, key: &StreamKey, template: u64, bytes: u16, records: &mut MessageRecords) {
        let (mark, ways) = self.ways(key, template);
        let known = ways.iter().find(|way| way.mark == mark && way.format.bytes > 0).map(|way| way.format);
        let most = bytes / known.map_or(1, |format| format.bytes);
        let is_exact = known.is_some_and(|format| !format.is_variable);
        let least = if is_exact { most } else { most.min(1) };
        let is_options = known.is_some_and(|format| format.is_options);
        let of_kind = if is_options { &mut records.options } else { &mut records.data };
        of_kind.add(RecordCount { least, most });
    }
}

/// The records of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MessageRecords {
    pub(super) data: RecordCount,
    pub(super) options: RecordCount,
}

/// One message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IpfixMessage {
    pub(super) number: u32,
    pub(super) made_at: u32,
    pub(super) records: MessageRecords,
}

/// What the number of a message counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Convention {
    counts_itself: bool,
    counts_options: bool,
}

/// The first is that of the RFC.
const CONVENTIONS: [Convention; 4] = [
    Convention { counts_itself: false, counts_options: true },
    Convention { counts_itself: false, counts_options: false },
    Convention { counts_itself: true, counts_options: true },
    Convention { counts_itself: true, counts_options: false },
];

impl Convention {
    fn records(self, message: &IpfixMessage) -> RecordCount {
        let mut records = message.records.data;
        if self.counts_options {
            records.add(message.records.options);
        }
        records
    }

    /// Whether two consecutive messages can be numbered so.
    fn fits(self, first: &IpfixMessage, second: &IpfixMessage) -> bool {
        let between = second.number.wrapping_sub(first.number);
        let RecordCount { least, most } = self.records(if self.counts_itself { second } else { first });
        between > 0 && least == most && u32::from(least) == between
    }

    /// How many numbers are missing between two messages, at most where their own records are not known.
    fn between(self, first: &IpfixMessage, second: &IpfixMessage) -> u64 {
        let (first, second) = (self.arrival(first), self.arrival(second));
        let end = first.number.wrapping_add(first.units.into());
        u64::try_from((second.number.wrapping_sub(end) as u32).cast_signed()).unwrap_or(0)
    }

    fn arrival(self, message: &IpfixMessage) -> Arrival {
        let RecordCount { least, most } = self.records(message);
        let (own, more) = (u32::from(least), u32::from(most - least));
        let back = if self.counts_itself { own } else { 0 };
        let (more_before, more_behind) = if self.counts_itself { (more, 0) } else { (0, more) };
        Arrival {
            number: message.number.wrapping_sub(back).into(),
            units: own,
            more_behind,
            more_before,
            datagrams: 1,
            clock: ExporterClock { uptime_ms: None, made_at: Some(message.made_at) },
        }
    }
}

/// How many messages may wait.
const WAITING: usize = 32;

/// With how many of the last messages a new one is compared.
const RECENT: usize = 16;

/// By how many pairs one convention must be ahead of every other.
const CERTAIN: u32 = 4;

/// The same to rule another one out while few messages have come: a message that was lost may make one pair fit. Later,
/// and where they differ in options alone, which are rare, one pair is enough.
const LIKELY: u32 = 2;

/// The memory for all streams.
pub(super) const LEARNING_BYTES: usize = STREAMS_MAX * size_of::<Learning>();

/// The stream that messages are passed on to, and where its losses are counted.
pub(super) struct CountedStream<'a> {
    /// `None` until its first message is passed on.
    pub(super) stream: &'a mut Option<NumberedStream>,
    pub(super) rules: &'a SequenceRules,
    pub(super) counts: &'a mut StreamCounts,
}

/// What a stream has taught of its convention, and the messages that wait until it is certain.
#[derive(Debug, Clone, Default)]
pub(super) struct Learning {
    waiting: [IpfixMessage; WAITING],
    first: u8,
    count: u8,
    /// Whether nothing has come since the last sweep.
    is_quiet: bool,
    /// How many messages came, up to 255: those that have waited stay in their places and are compared with.
    heard: u8,
    /// The last message that the stream has taken.
    taken: Option<IpfixMessage>,
    /// By convention: how many pairs fit it.
    fitting: [u32; CONVENTIONS.len()],
    chosen: u8,
}

impl Learning {
    /// Takes a message, and passes on those that need not wait any longer.
    pub(super) fn take(&mut self, message: IpfixMessage, stream: &mut CountedStream<'_>) {
        self.learn(&message);
        self.is_quiet = false;
        if usize::from(self.count) == WAITING {
            self.pass_on(stream);
        }
        self.waiting[self.end()] = message;
        self.count += 1;
        self.heard = self.heard.saturating_add(1);
        if self.is_certain() {
            self.flush(stream);
        }
    }

    /// The place of the next message.
    fn end(&self) -> usize {
        (usize::from(self.first) + usize::from(self.count)) % WAITING
    }

    /// Compares a message with its neighbours by number among the last ones; messages may have overtaken each other.
    fn learn(&mut self, message: &IpfixMessage) {
        let recent =
            (1..=RECENT.min(self.heard.into())).map(|back| &self.waiting[(self.end() + WAITING - back) % WAITING]);
        let away = |other: &IpfixMessage| message.number.wrapping_sub(other.number).cast_signed();
        let below = recent.clone().filter(|other| away(other) > 0).min_by_key(|other| away(other));
        let above = recent.filter(|other| away(other) < 0).max_by_key(|other| away(other));
        let pairs = [below.map(|below| (*below, *message)), above.map(|above| (*message, *above))];
        for (first, second) in pairs.into_iter().flatten() {
            for (fitting, convention) in self.fitting.iter_mut().zip(CONVENTIONS) {
                *fitting = fitting.saturating_add(convention.fits(&first, &second).into());
            }
        }
    }

    /// The convention that most pairs fit; of several the first, which is nearest to the RFC.
    fn best(&self) -> usize {
        (1..CONVENTIONS.len())
            .fold(0, |best, other| if self.fitting[other] > self.fitting[best] { other } else { best })
    }

    fn is_certain(&self) -> bool {
        let best = self.best();
        let mut others = self.fitting.iter().enumerate().filter(|(place, _)| *place != best);
        others.all(|(_, other)| self.fitting[best] >= other.saturating_add(CERTAIN))
    }

    /// By which convention the next message is passed on: that by which most is missing before it, of those that are
    /// possible. And whether another one disagrees.
    fn choose(&self, message: &IpfixMessage) -> (usize, bool) {
        let best = self.best();
        let Some(taken) = self.taken else { return (best, false) };
        if message.number.wrapping_sub(taken.number).cast_signed() <= 0 {
            return (self.chosen.into(), false);
        }
        let is_possible = |convention: &usize| {
            let is_like = CONVENTIONS[*convention].counts_itself == CONVENTIONS[best].counts_itself;
            let is_old = usize::from(self.heard) > WAITING;
            let ahead = if is_like || is_old { 1 } else { LIKELY };
            self.fitting[*convention].saturating_add(ahead) > self.fitting[best]
        };
        let possible = (0..CONVENTIONS.len()).filter(is_possible);
        let between = |convention: usize| CONVENTIONS[convention].between(&taken, message);
        let most = possible.clone().fold(best, |most, other| if between(other) > between(most) { other } else { most });
        let is_doubtful = possible.clone().any(|other| between(other) != between(most));
        (most, is_doubtful)
    }

    /// What may be missing before and between the messages that wait.
    fn missing_at_most(&self) -> u64 {
        let waiting = (0..self.count).map(|place| &self.waiting[usize::from((self.first + place) % WAITING as u8)]);
        let pairs = self.taken.iter().chain(waiting.clone()).zip(waiting.skip(usize::from(self.taken.is_none())));
        let most = |(first, second): (&IpfixMessage, &IpfixMessage)| {
            CONVENTIONS.iter().map(|convention| convention.between(first, second)).max().unwrap_or(0)
        };
        pairs.map(most).sum()
    }

    /// Whether messages wait.
    pub(super) fn is_waiting(&self) -> bool {
        self.count > 0
    }

    /// Passes on all messages that wait.
    pub(super) fn flush(&mut self, stream: &mut CountedStream<'_>) {
        while self.count > 0 {
            self.pass_on(stream);
        }
    }

    /// Passes on those that nothing makes doubtful, where nothing came since the last sweep. Returns whether to call it
    /// again, and how many numbers may be missing of what still waits.
    pub(super) fn sweep(&mut self, stream: &mut CountedStream<'_>) -> (bool, u64) {
        if !std::mem::replace(&mut self.is_quiet, true) {
            return (self.count > 0, self.missing_at_most());
        }
        while self.count > 0 && !self.choose(&self.waiting[usize::from(self.first)]).1 {
            self.pass_on(stream);
        }
        (false, self.missing_at_most())
    }

    fn pass_on(&mut self, CountedStream { stream, rules, counts }: &mut CountedStream<'_>) {
        let message = self.waiting[usize::from(self.first)];
        self.first = (self.first + 1) % WAITING as u8;
        self.count -= 1;
        let (chosen, is_doubtful) = self.choose(&message);
        let convention = CONVENTIONS[chosen];
        let is_changed = usize::from(std::mem::replace(&mut self.chosen, chosen as u8)) != chosen;
        let mut arrival = convention.arrival(&message);
        if is_doubtful {
            // All that is missing before it has bounds only.
            arrival.more_before = u32::MAX;
        }
        let restarts = counts.restarts;
        match stream {
            None => **stream = Some(NumberedStream::new(&arrival)),
            Some(stream) => {
                if let Some(last) = self.taken.filter(|_| is_changed) {
                    let last = convention.arrival(&last);
                    stream.stand_at(rules, last.number.wrapping_add(last.units.into()));
                }
                stream.take(rules, &arrival, counts);
            }
        }
        // A message out of order does not tell where the stream stands. The first one after a restart does.
        if counts.restarts != restarts
            || self.taken.is_none_or(|taken| message.number.wrapping_sub(taken.number).cast_signed() >= 0)
        {
            self.taken = Some(message);
        }
    }
}

#[cfg(test)]
#[path = "ipfix_tests.rs"]
mod tests;
