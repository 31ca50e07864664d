//! The rate limit by source: a token bucket for each address, in a table whose size is fixed at start.
//!
//! A bucket is one number, the time at which it will be full again. Each datagram moves it on by the time that one
//! token takes; a datagram that would move it further ahead than the bucket is deep is refused and moves nothing.
//!
//! A full bucket says nothing that a new one would not, so its place may be given to another source without losing
//! anything. No other place is ever given away, and a source for which there is none is let through, and counted. Hence
//! two things hold whatever arrives: a source within its limit never loses a datagram to it, because nobody is limited
//! but by the record of what was received from that very address; and a source that has a place is held to its limit
//! exactly. A million forged sources can at most fill the table, and then newcomers go unlimited until the buckets are
//! full again.
//!
//! Where a source stands in the table is decided by a keyed hash with a random key, so nobody can aim at one place.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::offences::{Hint, OffenceWriter, Offences, number_of};
use super::settings::Limit;

/// Places in the table of a lane. A source needs one for as long as its bucket is not full.
const ENTRIES: usize = 1 << 16;

/// Places that one hash can mean. Two lines of the cache.
const WAYS: usize = 4;

/// What the table of one lane takes.
pub const TABLE_BYTES: usize = ENTRIES * size_of::<Entry>();

/// Parts of a nanosecond: the finest step of time in which a token can be had, so that also high limits are kept.
const TICKS_PER_NANOSECOND: u64 = 16;

/// The ticks of a second.
const TICKS_PER_SECOND: u64 = TICKS_PER_NANOSECOND * 1_000_000_000;

/// One source.
#[derive(Debug, Clone, Copy)]
struct Entry {
    source: u128,
    /// When the bucket will be full, in ticks since the start; in the past, it is.
    full_at: u64,
    hint: Hint,
}

impl Entry {
    /// A full bucket of the unspecified address, which is as good as nobody.
    const FREE: Self = Self { source: 0, full_at: 0, hint: Hint::NONE };
}

/// The buckets of one lane.
#[derive(Debug)]
pub struct RateLimiter<S = RandomState> {
    entries: Box<[Entry]>,
    hasher: S,
    /// What one datagram adds to `full_at`.
    token_ticks: u64,
    /// How far ahead of now `full_at` may be for another datagram to be admitted.
    depth_ticks: u64,
    now_ticks: u64,
    offences: OffenceWriter,
}

impl RateLimiter {
    /// An empty table. All of its memory is touched by the calling thread.
    pub fn new(limit: Limit, offences: Arc<Offences>) -> Self {
        Self::with_hasher(limit, offences, ENTRIES, RandomState::new())
    }
}

impl<S: BuildHasher> RateLimiter<S> {
    fn with_hasher(limit: Limit, offences: Arc<Offences>, entries: usize, hasher: S) -> Self {
        // Rounded down, which is in favour of the source.
        let token_ticks = TICKS_PER_SECOND / limit.per_source;
        Self {
            entries: vec![Entry::FREE; entries].into_boxed_slice(),
            hasher,
            token_ticks,
            depth_ticks: token_ticks.saturating_mul(limit.burst - 1),
            now_ticks: 0,
            offences: OffenceWriter::new(offences),
        }
    }

    /// The time since the start, for all that follows.
    pub fn set_time(&mut self, since_start: Duration) {
        let nanoseconds = u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX);
        self.now_ticks = nanoseconds.saturating_mul(TICKS_PER_NANOSECOND);
        self.offences.set_time(since_start);
    }

    /// Whether one more datagram of `source` is within its limit.
    pub fn admits(&mut self, source: IpAddr) -> bool {
        let (source, now) = (number_of(source), self.now_ticks);
        let Some(place) = self.place(source) else {
            self.offences.count_unwatched();
            return true;
        };
        let entry = &mut self.entries[place];
        if entry.full_at <= now {
            entry.full_at = now;
            entry.hint = Hint::NONE;
        }
        if entry.full_at - now > self.depth_ticks {
            self.offences.note(source, &mut entry.hint);
            return false;
        }
        entry.full_at += self.token_ticks;
        true
    }

    /// The place of `source`: its own, or one whose bucket is full.
    fn place(&mut self, source: u128) -> Option<usize> {
        let sets = self.entries.len() / WAYS;
        // The number of sets is a power of two, and every bit of the hash is as good as another.
        let first = (self.hasher.hash_one(source) as usize & (sets - 1)) * WAYS;
        let ways = &mut self.entries[first..first + WAYS];
        if let Some(own) = ways.iter().position(|entry| entry.source == source) {
            return Some(first + own);
        }
        let now = self.now_ticks;
        let free = ways.iter().position(|entry| entry.full_at <= now)?;
        ways[free] = Entry { source, ..Entry::FREE };
        Some(first + free)
    }

    /// Lets the reader of the offences see what was noted since the last call.
    pub fn publish(&mut self) {
        self.offences.publish();
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;
