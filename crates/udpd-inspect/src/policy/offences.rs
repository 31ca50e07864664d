//! The sources that exceed the rate limit of a lane: noted by its receiver without a lock, read by the main thread.
//!
//! An offence begins with the first datagram that is refused and ends when no datagram of the source was refused for a
//! while. A fixed number of them are named at a time, and the others are counted. An offence keeps its number and its
//! source until well after its end, so a reader that looks once a second sees each begin and end, with its final count.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use udpd_base::ledger::{Published, cells};

/// Offences of one lane that are named at a time.
pub const NAMED_MAX: usize = 16;

/// How long after its last refusal an offence keeps its place. The reader considers it over somewhat earlier.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

/// The place of a source's offence, kept beside its bucket. It may be out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hint(u8);

impl Hint {
    /// Nowhere yet.
    pub(super) const NONE: Self = Self(u8::MAX);
    /// There was no place, and that has been counted.
    const UNNAMED: Self = Self(u8::MAX - 1);
}

/// One offence as a reader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offence {
    /// Which offence of its lane it is, from 1.
    pub number: u64,
    pub source: IpAddr,
    /// Datagrams refused so far.
    pub refused: u64,
}

/// The published side: one writer, any number of readers.
#[derive(Debug, Default)]
pub struct Offences {
    named: [Published<PublishedOffence>; NAMED_MAX],
    others: Published<Others>,
}

/// An offence as it is published.
#[derive(Debug, Default)]
struct PublishedOffence {
    number: u64,
    source_high: u64,
    source_low: u64,
    refused: u64,
}

cells!(PublishedOffence { number: u64, source_high: u64, source_low: u64, refused: u64 });

/// Offences and datagrams that are not named.
#[derive(Debug, Default, Clone, Copy)]
pub struct Others {
    /// How many offences began without being named.
    pub unnamed: u64,
    /// How many datagrams were admitted unchecked, because the table had no place for their source.
    pub unwatched: u64,
}

cells!(Others { unnamed: u64, unwatched: u64 });

impl Offences {
    /// The offence at each place, if there was one.
    pub fn read(&self) -> [Option<Offence>; NAMED_MAX] {
        std::array::from_fn(|place| {
            let PublishedOffence { number, source_high, source_low, refused } = self.named[place].read();
            let source = address_of(u128::from(source_high) << 64 | u128::from(source_low));
            (number > 0).then_some(Offence { number, source, refused })
        })
    }

    pub fn others(&self) -> Others {
        self.others.read()
    }
}

/// One place, as the receiver keeps it.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    number: u64,
    source: u128,
    refused: u64,
    last: Duration,
    changed: bool,
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct OffenceWriter {
    published: Arc<Offences>,
    noted: [Noted; NAMED_MAX],
    begun: u64,
    others: Others,
    now: Duration,
    changed: bool,
}

impl OffenceWriter {
    pub(super) fn new(published: Arc<Offences>) -> Self {
        let noted = [Noted::default(); NAMED_MAX];
        Self { published, noted, begun: 0, others: Others::default(), now: Duration::ZERO, changed: false }
    }

    pub(super) fn set_time(&mut self, since_start: Duration) {
        self.now = since_start;
    }

    pub(super) fn count_unwatched(&mut self) {
        self.others.unwatched += 1;
        self.changed = true;
    }

    /// One datagram of `source` was refused.
    pub(super) fn note(&mut self, source: u128, hint: &mut Hint) {
        if *hint == Hint::UNNAMED {
            return;
        }
        self.changed = true;
        let known = self.noted.get(usize::from(hint.0)).is_some_and(|noted| self.is_of(noted, source));
        if !known {
            *hint = self.find_or_begin(source);
        }
        match self.noted.get_mut(usize::from(hint.0)) {
            Some(noted) => {
                noted.refused += 1;
                noted.last = self.now;
                noted.changed = true;
            }
            None => self.others.unnamed += 1,
        }
    }

    fn is_of(&self, noted: &Noted, source: u128) -> bool {
        noted.number > 0 && noted.source == source && self.is_remembered(noted)
    }

    fn is_remembered(&self, noted: &Noted) -> bool {
        self.now.saturating_sub(noted.last) <= FORGOTTEN_AFTER
    }

    fn find_or_begin(&mut self, source: u128) -> Hint {
        let hint = |place: usize| Hint(u8::try_from(place).unwrap_or(Hint::UNNAMED.0));
        if let Some(place) = self.noted.iter().position(|noted| self.is_of(noted, source)) {
            return hint(place);
        }
        let free = self.noted.iter().position(|noted| noted.number == 0 || !self.is_remembered(noted));
        let Some(place) = free else { return Hint::UNNAMED };
        self.begun += 1;
        self.noted[place] = Noted { number: self.begun, source, ..Noted::default() };
        hint(place)
    }

    /// Once per batch.
    pub(super) fn publish(&mut self) {
        if !self.changed {
            return;
        }
        self.changed = false;
        for (noted, place) in self.noted.iter_mut().zip(&self.published.named).filter(|(noted, _)| noted.changed) {
            noted.changed = false;
            let (source_high, source_low) = ((noted.source >> 64) as u64, noted.source as u64);
            place.publish(&PublishedOffence { number: noted.number, source_high, source_low, refused: noted.refused });
        }
        self.published.others.publish(&self.others);
    }
}

/// An address as one number, the same for an IPv4 sender whichever kind of socket it reached.
pub(super) fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address of such a number.
fn address_of(number: u128) -> IpAddr {
    IpAddr::V6(number.into()).to_canonical()
}
