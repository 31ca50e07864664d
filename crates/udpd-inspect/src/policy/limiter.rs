//! The rate limit by source: a token bucket for each address, in a table whose size is fixed at start.
//!
//! A bucket is one number, the time at which it will be full again. Each datagram moves it on by the time that one
//! token takes; a datagram that would move it further ahead than the bucket is deep is refused and moves nothing.
//!
//! A full bucket equals a new one, so its place may be given to another source. No other place is given away: a source
//! that finds none is admitted, and counted. Hence two things hold whatever arrives. A source within its limit never
//! loses a datagram to it, because only datagrams from that very address count against it. And a source that has a
//! place is held to its limit exactly. A million forged sources can at most fill the table; then new sources go
//! unlimited until buckets are full again.
//!
//! A keyed hash with a random key decides the place of a source, so no sender can aim at a place.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::offences::{Hint, OffenceWriter, Offences, number_of};
use super::settings::SourceLimit;

/// Places in the table of a lane. A source needs one while its bucket is not full.
const ENTRIES: usize = 1 << 16;

/// Places for one hash. Two cache lines.
const WAYS: usize = 4;

/// The memory of a lane's table.
pub const TABLE_BYTES: usize = ENTRIES * size_of::<Bucket>();

/// The resolution of tokens, finer than a nanosecond so that high limits are exact too.
const TICKS_PER_NANOSECOND: u64 = 16;

/// The ticks of a second.
const TICKS_PER_SECOND: u64 = TICKS_PER_NANOSECOND * 1_000_000_000;

/// The bucket of one source.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    source: u128,
    /// When the bucket is full, in ticks since the start.
    full_at: u64,
    hint: Hint,
}

impl Bucket {
    /// A full bucket of the unspecified address, from which no datagram comes.
    const FREE: Self = Self { source: 0, full_at: 0, hint: Hint::NONE };
}

/// The buckets of one lane.
#[derive(Debug)]
pub struct RateLimiter {
    entries: Box<[Bucket]>,
    hasher: RandomState,
    /// What one datagram adds to `full_at`.
    token_ticks: u64,
    /// How far ahead of now `full_at` may be while datagrams are admitted.
    depth_ticks: u64,
    now_ticks: u64,
    offences: OffenceWriter,
}

impl RateLimiter {
    /// An empty table. All of its memory is touched by the calling thread.
    pub fn new(limit: SourceLimit, offences: Arc<Offences>) -> Self {
        Self::with_entries(limit, offences, ENTRIES)
    }

    fn with_entries(limit: SourceLimit, offences: Arc<Offences>, entries: usize) -> Self {
        // Rounded down, which is in favour of the source.
        let token_ticks = TICKS_PER_SECOND / limit.per_source;
        Self {
            entries: vec![Bucket::FREE; entries].into_boxed_slice(),
            hasher: RandomState::new(),
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
        ways[free] = Bucket { source, ..Bucket::FREE };
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
