//! The wall clock, which names files. It may be set at any time, forward or back, by seconds or by years, so nothing
//! waits by it: all waits use the monotonic clock. A test can set it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use udpd_base::seams::clock;

/// The wall clock counts as set when it differs from the monotonic clock by more than this.
const SET_BY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default)]
pub(super) struct WallClock {
    /// By how many seconds a test has set it.
    #[cfg(test)]
    set_by: Arc<AtomicI64>,
}

impl WallClock {
    pub(super) fn now(&self) -> SystemTime {
        #[cfg(test)]
        {
            let set_by = self.set_by.load(Ordering::Relaxed);
            let by = Duration::from_secs(set_by.unsigned_abs());
            if set_by < 0 { clock::wall() - by } else { clock::wall() + by }
        }
        #[cfg(not(test))]
        clock::wall()
    }

    /// The same in seconds since 1970; 0 for a clock before that.
    pub(super) fn seconds(&self) -> u64 {
        self.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    #[cfg(test)]
    pub(super) fn set(&self, by: i64) {
        self.set_by.fetch_add(by, Ordering::Relaxed);
    }
}

/// A moment of the wall clock, and when the monotonic clock reaches it unless the wall clock is set.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileEnd {
    pub(super) at: Instant,
    wall: SystemTime,
    /// When both clocks were read, and what they said.
    read: (SystemTime, Instant),
}

impl FileEnd {
    /// The moment `wall`, seen from now.
    pub(super) fn new(wall: SystemTime, clock: &WallClock, now: Instant) -> Self {
        let read = clock.now();
        Self { at: now + wall.duration_since(read).unwrap_or_default(), wall, read: (read, now) }
    }

    /// Whether it has come by either clock, or is unknown because the wall clock was set.
    pub(super) fn has_come(&self, clock: &WallClock, now: Instant) -> bool {
        let wall = clock.now();
        let (read, read_at) = self.read;
        let expected = read + now.saturating_duration_since(read_at);
        self.at <= now || self.wall <= wall || wall + SET_BY < expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_comes_by_either_clock_and_at_once_when_the_one_of_dates_is_set() {
        const HOUR: i64 = 3600;
        for (set_by, expected) in
            [(0, false), (-1, false), (1, false), (HOUR, true), (-HOUR, true), (-30 * 8766 * HOUR, true)]
        {
            let clock = WallClock::default();
            let now = Instant::now();
            let ends = FileEnd::new(clock.now() + Duration::from_secs(600), &clock, now);
            clock.set(set_by);
            assert_eq!(ends.has_come(&clock, now), expected, "set by {set_by} s");
            assert!(ends.has_come(&clock, now + Duration::from_secs(601)), "set by {set_by} s");
        }
    }
}
