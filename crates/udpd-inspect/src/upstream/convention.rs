//! What the number of an IPFIX message means, learnt for each stream.
//!
//! RFC 7011 counts the records before the message, options among them. Exporters differ: some count the message's own
//! records too, some leave options out. Between two messages that follow one another the numbers differ by the records
//! of the first, or of the second, with options or without: every such pair speaks for the conventions that it fits.
//! Until one is ahead, messages wait a little in a line, so that what is learnt from the next messages is applied to
//! those before. Where two conventions fit equally they also give the same answer.

use super::header::Clock;
use super::stream::{Arrival, Counts, Rules, Stream};

/// Messages that wait.
const WAITING: usize = 32;

/// How many of the last messages a new one is compared with.
const RECENT: usize = 16;

/// By how many pairs one convention must be ahead of every other.
const CERTAIN: u32 = 4;

/// At least and at most so many records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) least: u16,
    pub(super) most: u16,
}

impl Records {
    pub(super) fn add(&mut self, other: Self) {
        self.least = self.least.saturating_add(other.least);
        self.most = self.most.saturating_add(other.most);
    }

    fn exactly(self) -> Option<u64> {
        (self.least == self.most).then_some(self.least.into())
    }
}

/// One message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Message {
    pub(super) number: u32,
    pub(super) made_at: u32,
    pub(super) data: Records,
    pub(super) options: Records,
}

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
    fn records(self, message: &Message) -> Records {
        let mut records = message.data;
        if self.counts_options {
            records.add(message.options);
        }
        records
    }

    fn fits(self, first: &Message, second: &Message) -> bool {
        let between = second.number.wrapping_sub(first.number);
        let records = self.records(if self.counts_itself { second } else { first });
        between > 0 && records.exactly() == Some(between.into())
    }

    fn arrival(self, message: &Message) -> Arrival {
        let Records { least, most } = self.records(message);
        let (own, more) = (u32::from(least), u32::from(most - least));
        let back = if self.counts_itself { own } else { 0 };
        let (more_before, more_behind) = if self.counts_itself { (more, 0) } else { (0, more) };
        Arrival {
            number: message.number.wrapping_sub(back).into(),
            units: own,
            more_behind,
            more_before,
            datagrams: 1,
            clock: Clock { uptime_ms: None, made_at: Some(message.made_at) },
        }
    }
}

/// What a stream has taught, and the messages that wait for more.
#[derive(Debug, Clone)]
pub(super) struct Learning {
    waiting: [Message; WAITING],
    first: u8,
    count: u8,
    /// Nothing has come since the last sweep.
    is_quiet: bool,
    /// How many messages came at all, as far as that matters: those that waited stay in their places for a while.
    heard: u8,
    /// The last that its stream has taken.
    taken: Option<Message>,
    fitting: [u32; 4],
    chosen: u8,
}

impl Learning {
    pub(super) const NEW: Self = Self {
        waiting: [NO_MESSAGE; WAITING],
        first: 0,
        count: 0,
        is_quiet: false,
        heard: 0,
        taken: None,
        fitting: [0; 4],
        chosen: 0,
    };

    /// Takes a message; `stream` gets those that need not wait any more.
    pub(super) fn take(&mut self, message: Message, stream: &mut Option<Stream>, rules: &Rules, counts: &mut Counts) {
        self.learn(&message);
        self.is_quiet = false;
        if usize::from(self.count) == WAITING {
            self.pass_on(stream, rules, counts);
        }
        self.waiting[self.end()] = message;
        self.count += 1;
        self.heard = self.heard.saturating_add(1);
        if self.is_certain() {
            self.flush(stream, rules, counts);
        }
    }

    /// The place of the next message.
    fn end(&self) -> usize {
        (usize::from(self.first) + usize::from(self.count)) % WAITING
    }

    /// Compares a message with its neighbours by number among the last ones: those before it may have been overtaken.
    fn learn(&mut self, message: &Message) {
        let recent =
            (1..=RECENT.min(self.heard.into())).map(|back| &self.waiting[(self.end() + WAITING - back) % WAITING]);
        let away = |other: &Message| message.number.wrapping_sub(other.number).cast_signed();
        let below = recent.clone().filter(|other| away(other) > 0).min_by_key(|other| away(other));
        let above = recent.filter(|other| away(other) < 0).max_by_key(|other| away(other));
        let pairs = [below.map(|below| (*below, *message)), above.map(|above| (*message, *above))];
        for (first, second) in pairs.into_iter().flatten() {
            for (fitting, convention) in self.fitting.iter_mut().zip(CONVENTIONS) {
                *fitting = fitting.saturating_add(convention.fits(&first, &second).into());
            }
        }
    }

    fn best(&self) -> usize {
        // Of several the first, which is nearest to the RFC.
        (1..4).fold(0, |best, other| if self.fitting[other] > self.fitting[best] { other } else { best })
    }

    fn is_certain(&self) -> bool {
        let best = self.best();
        let others = self.fitting.iter().enumerate().filter(|(place, _)| *place != best);
        others.into_iter().all(|(_, other)| self.fitting[best] >= other.saturating_add(CERTAIN))
    }

    /// Lets nothing wait any longer.
    pub(super) fn flush(&mut self, stream: &mut Option<Stream>, rules: &Rules, counts: &mut Counts) {
        while self.count > 0 {
            self.pass_on(stream, rules, counts);
        }
    }

    /// The same where nothing came since the last sweep. Returns whether something waits.
    pub(super) fn sweep(&mut self, stream: &mut Option<Stream>, rules: &Rules, counts: &mut Counts) -> bool {
        if std::mem::replace(&mut self.is_quiet, true) {
            self.flush(stream, rules, counts);
        }
        self.count > 0
    }

    fn pass_on(&mut self, stream: &mut Option<Stream>, rules: &Rules, counts: &mut Counts) {
        let message = self.waiting[usize::from(self.first)];
        self.first = (self.first + 1) % WAITING as u8;
        self.count -= 1;
        let best = self.best();
        let convention = CONVENTIONS[best];
        let is_changed = usize::from(std::mem::replace(&mut self.chosen, best as u8)) != best;
        let arrival = convention.arrival(&message);
        let restarts = counts.restarts;
        match stream {
            None => *stream = Some(Stream::new(&arrival)),
            Some(stream) => {
                if let Some(last) = self.taken.filter(|_| is_changed) {
                    let last = convention.arrival(&last);
                    stream.stand_at(rules, last.number.wrapping_add(last.units.into()));
                }
                stream.take(rules, &arrival, counts);
            }
        }
        // One that came out of order says nothing of where the stream stands; one of another start says all.
        if counts.restarts != restarts
            || self.taken.is_none_or(|taken| message.number.wrapping_sub(taken.number).cast_signed() >= 0)
        {
            self.taken = Some(message);
        }
    }
}

const NO_MESSAGE: Message =
    Message { number: 0, made_at: 0, data: Records { least: 0, most: 0 }, options: Records { least: 0, most: 0 } };

#[cfg(test)]
#[path = "convention_tests.rs"]
mod tests;
