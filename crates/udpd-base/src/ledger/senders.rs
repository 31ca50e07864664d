//! Who sends most to a lane: a table of constant size, after the Space-Saving algorithm of Metwally, Agrawal and El
//! Abbadi.
//!
//! A sender that has no slot takes that of the sender with the least count, and its count too, which from then on is
//! its possible error. So a sender with more than one part in 128 of the datagrams is always in the table, however many
//! others there are and whatever addresses are forged, and no count is too low.
//!
//! Only the batches that are sampled are counted, so it costs next to nothing a datagram, and every count is halved
//! each ten seconds: who is asked for is who sends most now. The receiver tries the lock once a sampled batch and lets
//! that batch go uncounted while another thread reads, so it never waits.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How many senders a lane remembers. A place of the table fits a byte.
const PLACES: usize = 128;

/// How many of them the ledger shows.
pub const SENDERS_SHOWN: usize = 10;

/// After this time what was counted weighs half.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// The part of a count that halving leaves whole: a datagram fades out over so many halvings.
const ONE: u64 = 1 << 16;

const CHAINS: usize = 256;
const NONE: u8 = u8::MAX;

/// A sender that is remembered.
#[derive(Debug, Clone, Copy)]
struct SenderSlot {
    address: IpAddr,
    /// The port of all its datagrams since it has the place; `None` when they came from several.
    port: Option<u16>,
    count: u64,
    /// How much of the count may belong to others.
    error: u64,
    /// The next place whose address has the same hash.
    next: u8,
}

/// The busiest senders of a lane.
#[derive(Debug)]
pub struct Senders<S = Keyed> {
    places: Vec<SenderSlot>,
    /// The first place of each hash.
    chains: [u8; CHAINS],
    hasher: S,
    /// The lowest count of a full table, and from where on to look for a place that has it.
    lowest: u64,
    cursor: usize,
    total: u64,
    halved_at: Instant,
}

/// One of the busiest senders of a lane, as it stands in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SenderSnapshot {
    pub address: IpAddr,
    /// Null when it sends from several.
    pub port: Option<u16>,
    /// Its part of what the lane received of late, from 0 to 1, never too low by more than sampling is.
    pub share: f64,
    /// How many datagrams that is, where those of ten seconds ago weigh half, and so on. An estimate from samples.
    pub datagrams: u64,
    /// How many of them may be those of others that the table has forgotten.
    pub error: u64,
}

impl Senders {
    /// No sender yet. Nothing is allocated from here on.
    pub fn new(now: Instant) -> Self {
        Self::with_hasher(Keyed::new(), now)
    }
}

impl<S: BuildHasher> Senders<S> {
    fn with_hasher(hasher: S, now: Instant) -> Self {
        let places = Vec::with_capacity(PLACES);
        Self { places, chains: [NONE; CHAINS], hasher, lowest: 0, cursor: 0, total: 0, halved_at: now }
    }

    /// Counts the datagrams of a sampled batch by their senders, each for `weight` datagrams.
    pub fn count(&mut self, sources: impl Iterator<Item = SocketAddr>, weight: u64, now: Instant) {
        self.fade(now);
        // Datagrams of one sender come in a row, and always do in a train.
        let mut row: Option<(SocketAddr, u64)> = None;
        for source in sources {
            match &mut row {
                Some((same, length)) if *same == source => *length += 1,
                _ => {
                    let before = row.replace((source, 1));
                    before.into_iter().for_each(|(source, length)| self.add(source, length * weight * ONE));
                }
            }
        }
        row.into_iter().for_each(|(source, length)| self.add(source, length * weight * ONE));
    }

    /// Halves every count as often as the half-life has passed.
    fn fade(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.halved_at);
        if passed < HALF_LIFE {
            return;
        }
        let halvings = u32::try_from(passed.as_nanos() / HALF_LIFE.as_nanos()).unwrap_or(u32::MAX);
        self.halved_at += HALF_LIFE * halvings;
        let half = |count: u64| count.checked_shr(halvings).unwrap_or(0);
        for place in &mut self.places {
            (place.count, place.error) = (half(place.count), half(place.error));
        }
        (self.total, self.lowest) = (half(self.total), half(self.lowest));
    }

    fn add(&mut self, source: SocketAddr, weight: u64) {
        self.total += weight;
        let address = source.ip().to_canonical();
        let chain = self.hasher.hash_one(address) as usize % CHAINS;
        let mut at = self.chains[chain];
        while at != NONE {
            let place = &mut self.places[usize::from(at)];
            if place.address == address {
                place.count += weight;
                place.port = place.port.filter(|&port| port == source.port());
                return;
            }
            at = place.next;
        }
        let (place, count) = self.vacate();
        let next = std::mem::replace(&mut self.chains[chain], place as u8);
        let new = SenderSlot { address, port: Some(source.port()), count: count + weight, error: count, next };
        match self.places.get_mut(place) {
            Some(old) => *old = new,
            None => self.places.push(new),
        }
    }

    /// A place for a newcomer, and the count that goes with it.
    fn vacate(&mut self) -> (usize, u64) {
        if self.places.len() < PLACES {
            return (self.places.len(), 0);
        }
        let place = self.least();
        let SenderSlot { address, count, next, .. } = self.places[place];
        let chain = self.hasher.hash_one(address) as usize % CHAINS;
        if usize::from(self.chains[chain]) == place {
            self.chains[chain] = next;
        } else {
            let mut at = usize::from(self.chains[chain]);
            while usize::from(self.places[at].next) != place {
                at = usize::from(self.places[at].next);
            }
            self.places[at].next = next;
        }
        (place, count)
    }

    /// Who counts least. Counts only grow between two halvings, and a halving keeps their order: while a place with the
    /// lowest count is left no other can have less, so the table is searched once for many newcomers.
    fn least(&mut self) -> usize {
        let lowest = self.lowest;
        let later = self.places[self.cursor..].iter().position(|place| place.count <= lowest);
        let found = later.map(|place| self.cursor + place).unwrap_or_else(|| {
            self.lowest = self.places.iter().map(|place| place.count).min().unwrap_or(0);
            self.places.iter().position(|place| place.count <= self.lowest).unwrap_or(0)
        });
        self.cursor = found;
        found
    }

    /// The busiest ones as of now, the busiest first.
    pub fn busiest(&mut self, now: Instant) -> Vec<SenderSnapshot> {
        self.fade(now);
        let mut busiest: Vec<&SenderSlot> = self.places.iter().filter(|place| place.count >= ONE).collect();
        // Of several that may be equal the one that is certain goes first.
        busiest.sort_by_key(|place| (std::cmp::Reverse(place.count), place.error, place.address));
        let shown = busiest.into_iter().take(SENDERS_SHOWN).map(|place| SenderSnapshot {
            address: place.address,
            port: place.port,
            share: place.count as f64 / self.total.max(1) as f64,
            datagrams: place.count / ONE,
            error: place.error / ONE,
        });
        shown.collect()
    }
}

// Whether what comes to a lane has come before, word for word: counted on a sample, for a listener that relays. Where
// the host behind the relay sends back what it gets, the same datagrams go round for ever and nothing else is seen.
//
// A table of hashes remembers some hundred payloads. Short ones are left out: many senders say "ping".

/// How many hashes are remembered, each at a place of its own.
const HASHES: usize = 1024;

/// What is shorter says too little.
const PAYLOAD_BYTES_MIN: usize = 16;

/// So much of a payload is looked at.
const LOOKED_AT_BYTES: usize = 256;

/// What has been seen in the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Echoes {
    pub datagrams: u64,
    /// Those of them that had come before.
    pub repeated: u64,
}

/// What counts them.
#[derive(Debug)]
pub(super) struct EchoesSeen {
    hasher: Keyed,
    hashes: Box<[u64]>,
    seen: Echoes,
}

impl EchoesSeen {
    pub(super) fn new() -> Self {
        Self { hasher: Keyed::new(), hashes: vec![0; HASHES].into(), seen: Echoes::default() }
    }

    pub(super) fn count(&mut self, payload: &[u8]) {
        if payload.len() < PAYLOAD_BYTES_MIN {
            return;
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write_usize(payload.len());
        hasher.write(&payload[..payload.len().min(LOOKED_AT_BYTES)]);
        let hash = hasher.finish();
        let place = &mut self.hashes[hash as usize % HASHES];
        self.seen.datagrams += 1;
        self.seen.repeated += u64::from(*place == hash);
        *place = hash;
    }

    pub(super) fn read(&self) -> Echoes {
        self.seen
    }
}

// A hash for short keys that others choose: a multiplication for every eight bytes and one at the end, with two random
// numbers that are unknown outside, drawn for each table. The library's SipHash took three of every four instructions
// of counting senders (benches/runs/2026-11-22-xeon-2-cores/sampling.md).
//
// It is for tables that are bounded, in which a forged collision costs comparisons and nothing more.

/// The two numbers.
#[derive(Debug, Clone)]
pub struct Keyed {
    start: u64,
    factor: u64,
}

impl Keyed {
    pub fn new() -> Self {
        // The library seeds its hash tables at random.
        let random = RandomState::new();
        Self { start: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
    }
}

impl Default for Keyed {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { state: self.start, factor: self.factor }
    }
}

/// A hash in the making.
#[derive(Debug)]
pub struct Folded {
    state: u64,
    factor: u64,
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.factor);
    }

    fn write_u128(&mut self, words: u128) {
        self.write_u64((words >> 64) as u64);
        // Between the two, so that what cancels the one cannot cancel the other.
        self.state = self.state.rotate_left(23);
        self.write_u64(words as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    /// Once more: after one fold, keys that follow one another have hashes that do, at a distance which may be a bad
    /// one.
    fn finish(&self) -> u64 {
        fold(self.state.rotate_left(23), self.factor)
    }
}

/// Both halves of the product.
fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
#[path = "senders_tests.rs"]
mod senders_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn seen(payloads: impl Iterator<Item = String>) -> Echoes {
        let mut seen = EchoesSeen::new();
        payloads.for_each(|payload| seen.count(payload.as_bytes()));
        seen.read()
    }

    #[test]
    fn what_goes_round_has_come_before_and_what_is_new_has_not() {
        let round = seen((0..5_000).map(|number| format!("datagram number {}", number % 50)));
        assert!(round.datagrams == 5_000 && round.repeated > 4_000, "{round:?}");
        let new = seen((0..5_000).map(|number| format!("datagram number {number}")));
        assert_eq!((new.datagrams, new.repeated), (5_000, 0));
    }

    #[test]
    fn short_ones_say_nothing() {
        assert_eq!(seen((0..100).map(|_| "ping".to_owned())), Echoes::default());
    }

    #[test]
    fn neighbouring_addresses_spread_over_all_chains_and_each_key_spreads_them_otherwise() {
        let v4 = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number));
        let v6 = |number: u32| IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number) << 64));
        let keys: Vec<Keyed> = (0..8).map(|_| Keyed::new()).collect();
        for address in [v4, v6] {
            for key in &keys {
                let mut chains = [0; 256];
                (0..25_600).for_each(|number| chains[key.hash_one(address(number)) as usize % 256] += 1);
                // A hundred each; the spread of such a count is ten.
                assert!(chains.iter().all(|&count| (30..200).contains(&count)), "{key:?}: {chains:?}");
            }
            let hashes: std::collections::BTreeSet<u64> = keys.iter().map(|key| key.hash_one(address(7))).collect();
            assert_eq!(hashes.len(), keys.len());
        }
    }

    #[test]
    fn neighbours_spread_over_all_bits_that_a_table_looks_at() {
        let keys = |index: u64| {
            let (v4, v6) = (0xffff_0a00_0000 + u128::from(index), 0x2001_0db8 << 96);
            [(v4, 7), (v6, index << 16), (v4, index), (0, index << 32)]
        };
        for form in 0..4 {
            for _ in 0..8 {
                let hash = Keyed::new();
                let hashes: Vec<u64> = (0..16_384).map(|index| hash.hash_one(keys(index)[form])).collect();
                // 16,384 that are thrown at random into as many buckets find about 10,357 of them; the spread of that
                // is 50.
                for shift in [0, 24, 50] {
                    let buckets: HashSet<u64> = hashes.iter().map(|hash| hash >> shift & 0x3fff).collect();
                    assert!(buckets.len() > 9_500, "{} at {shift} of form {form}, {hash:?}", buckets.len());
                }
            }
        }
    }
}
