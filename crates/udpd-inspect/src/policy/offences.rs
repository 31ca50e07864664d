//! Who exceeds the rate limit of a lane: noted by its receiver without a lock, read by the main thread.
//!
//! An offence begins with the first datagram that is refused and ends when nothing of the source was refused for a
//! while. Only so many are named at a time, whatever is sent: those beyond are counted. A noted offence keeps its
//! number and its source until well after its end, so a reader that looks once a second sees each begin and end, with
//! its final count.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use udpd_base::ledger::{Published, cells};

/// Offences of one lane that are named at a time.
pub const NAMED_MAX: usize = 16;

/// How long nothing must have been refused for an offence to give its place to another. The reader takes it to be over
/// somewhat earlier.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

/// Where a source's offence is noted, kept beside its bucket. It may be out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hint(u8);

impl Hint {
    /// Nowhere yet.
    pub(super) const NONE: Self = Self(u8::MAX);
    /// There was no room, and that has been counted.
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
    named: [Published<Named>; NAMED_MAX],
    others: Published<Others>,
}

/// An offence as it is published.
#[derive(Debug, Default)]
struct Named {
    number: u64,
    source_high: u64,
    source_low: u64,
    refused: u64,
}

cells!(Named { number: u64, source_high: u64, source_low: u64, refused: u64 });

/// What is not named.
#[derive(Debug, Default, Clone, Copy)]
pub struct Others {
    /// How many offences began without being named.
    pub unnamed: u64,
    /// How many datagrams were admitted without a look, because there was no room to remember their source.
    pub unwatched: u64,
}

cells!(Others { unnamed: u64, unwatched: u64 });

impl Offences {
    /// The offence that is noted at each place, if there was one.
    pub fn read(&self) -> [Option<Offence>; NAMED_MAX] {
        std::array::from_fn(|place| {
            let Named { number, source_high, source_low, refused } = self.named[place].read();
            let source = address_of(u128::from(source_high) << 64 | u128::from(source_low));
            (number > 0).then_some(Offence { number, source, refused })
        })
    }

    /// What is not named.
    pub fn others(&self) -> Others {
        self.others.read()
    }
}

/// One place, in the memory of the receiver.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    number: u64,
    source: u128,
    refused: u64,
    last: Duration,
    changed: bool,
}

/// The side of the receiver.
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
            place.publish(&Named { number: noted.number, source_high, source_low, refused: noted.refused });
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

/// The address behind such a number.
fn address_of(number: u128) -> IpAddr {
    IpAddr::V6(number.into()).to_canonical()
}
