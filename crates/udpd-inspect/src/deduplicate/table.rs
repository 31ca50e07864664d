//! What came within the window, in memory that is fixed at start and that all receivers of a feed share without a lock.
//!
//! A datagram is a fingerprint, which names one bucket. A place of a bucket is two words: a *stamp*, with the time and
//! a part of the fingerprint, and the rest of it with the sides that have brought the datagram. A new datagram takes
//! the place with the lowest stamp of its bucket, by one compare-and-exchange of the stamp, and only where that is out
//! of the window.
//!
//! So two receivers never both find one datagram new, whatever the order of memory. A stamp only grows. Let both have
//! taken places, neither having seen the stamp of the other. Each took the lowest stamp that it saw, and what it saw in
//! the other's place was no higher than what was there before the other took it. Then each of the two stamps is lower
//! than the other. Where the two places are one, the exchange of the later one fails, and it looks again.
//!
//! Between its two words a place is half written. Its version, which each writer of the stamp counts up, tells: a
//! receiver that meets its part of a fingerprint there waits for the few instructions that are left. Where these do not
//! come, because the writer is not running, the part decides.

use crossbeam_utils::CachePadded;

use super::sync::{AtomicU64, Ordering, spin_loop};

/// How many sides a feed can have.
pub const SIDES_MAX: usize = 8;

/// The places of a bucket: its stamps fill two cache lines.
pub(super) const WAYS: usize = 16;

/// A stamp: the time, the version, a part of the fingerprint.
const PART_BITS: u32 = 22;
const VERSION_BITS: u32 = 4;
const TIME_AT: u32 = PART_BITS + VERSION_BITS;
const PART: u64 = (1 << PART_BITS) - 1;
const VERSION: u64 = (1 << VERSION_BITS) - 1;

/// The other word: the rest of the fingerprint, the version, the sides.
const VERSION_AT: u32 = SIDES_MAX as u32;
const REST_AT: u32 = VERSION_AT + VERSION_BITS;

/// How often a receiver looks at a place that is half written.
const LOOKS_MAX: usize = 64;

/// What a datagram is compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// The upper half names the bucket, the lowest bits are in the stamp.
    pub(super) bucket_and_part: u64,
    /// Compared without its lowest bits.
    pub(super) rest: u64,
}

/// What a datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// It has not come within the window.
    New,
    /// Another side has brought it, and this one brings it for the first time.
    Copy,
    /// This side has brought it before.
    Repeated,
    /// It is not known: its bucket is full of younger ones.
    Overflow,
}

#[derive(Debug)]
struct Bucket<const N: usize> {
    stamps: [AtomicU64; N],
    rests: [AtomicU64; N],
}

/// Time is in milliseconds, and must begin beyond the window: a place that was never taken has the time 0.
#[derive(Debug)]
pub struct CopyTable<const N: usize = WAYS> {
    buckets: Box<[CachePadded<Bucket<N>>]>,
    window: u64,
}

impl<const N: usize> CopyTable<N> {
    /// Buckets for so many datagrams and no fewer.
    pub const fn buckets(datagrams: usize) -> usize {
        datagrams.div_ceil(N)
    }

    /// The memory of that many buckets.
    pub const fn bytes(buckets: usize) -> usize {
        buckets * size_of::<CachePadded<Bucket<N>>>()
    }

    /// An empty table, all of which the calling thread touches.
    pub fn new(buckets: usize, window: u64) -> Self {
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        let bucket = |_| CachePadded::new(Bucket { stamps: empty(), rests: empty() });
        Self { buckets: (0..buckets).map(bucket).collect(), window }
    }

    /// Looks for a datagram that `side` brings now, and remembers it where it is new.
    pub fn meet(&self, fingerprint: Fingerprint, side: usize, now: u64) -> Meeting {
        let Fingerprint { bucket_and_part, rest } = fingerprint;
        let place = ((bucket_and_part >> 32) * self.buckets.len() as u64) >> 32;
        let bucket = &*self.buckets[place as usize];
        loop {
            let (mut lowest, mut way) = (u64::MAX, 0);
            let mut is_steady = true;
            for (place, cell) in bucket.stamps.iter().enumerate() {
                let stamp = cell.load(Ordering::Acquire);
                if (stamp ^ bucket_and_part) & PART == 0 && self.is_within(stamp, now) {
                    match bucket.compare(place, stamp, rest, side) {
                        Compared::Same(meeting) => return meeting,
                        Compared::Other => {}
                        Compared::Changed => is_steady = false,
                    }
                }
                if stamp < lowest {
                    (lowest, way) = (stamp, place);
                }
            }
            if !is_steady {
                continue;
            }
            if self.is_within(lowest, now) {
                return Meeting::Overflow;
            }
            let version = ((lowest >> PART_BITS) + 1) & VERSION;
            let stamp = now << TIME_AT | version << PART_BITS | bucket_and_part & PART;
            let taken = bucket.stamps[way].compare_exchange(lowest, stamp, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                let word = rest >> REST_AT << REST_AT | version << VERSION_AT | 1 << side;
                bucket.rests[way].store(word, Ordering::Release);
                return Meeting::New;
            }
        }
    }

    /// A receiver whose time is behind meets stamps of its future.
    fn is_within(&self, stamp: u64, now: u64) -> bool {
        now <= (stamp >> TIME_AT) + self.window
    }
}

/// What stands in a place whose stamp fits.
enum Compared {
    Same(Meeting),
    Other,
    /// Another datagram has taken the place.
    Changed,
}

impl<const N: usize> Bucket<N> {
    fn compare(&self, place: usize, stamp: u64, rest: u64, side: usize) -> Compared {
        let version = stamp >> PART_BITS & VERSION;
        let (cell, own) = (&self.rests[place], 1 << side);
        let mut looks = 0;
        loop {
            let word = cell.load(Ordering::Acquire);
            if word >> VERSION_AT & VERSION == version {
                if (word ^ rest) >> REST_AT != 0 {
                    return Compared::Other;
                }
                if word & own != 0 {
                    return Compared::Same(Meeting::Repeated);
                }
                if cell.compare_exchange(word, word | own, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Compared::Same(Meeting::Copy);
                }
            } else if self.stamps[place].load(Ordering::Acquire) != stamp {
                return Compared::Changed;
            } else if looks == LOOKS_MAX {
                return Compared::Same(Meeting::Copy);
            } else {
                looks += 1;
                spin_loop();
            }
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
