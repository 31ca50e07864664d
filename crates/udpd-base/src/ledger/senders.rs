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

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::keyed::Keyed;

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

#[cfg(test)]
#[path = "senders_tests.rs"]
mod tests;
