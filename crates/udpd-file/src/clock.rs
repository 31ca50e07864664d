//! The clock that dates are read from. It may be set at any moment, either way, by seconds or by years; so it gives
//! names and nothing else, and what waits, waits by the other clock, which only ever goes on. A test sets it as it
//! likes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

/// When the two clocks have come apart by more than this, somebody has set the one of dates.
const SET_BY: Duration = Duration::from_secs(2);

/// The clock of dates.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    /// By how many seconds a test has set it.
    #[cfg(test)]
    set_by: Arc<AtomicI64>,
}

impl Clock {
    pub(super) fn now(&self) -> SystemTime {
        #[cfg(test)]
        {
            let set_by = self.set_by.load(Ordering::Relaxed);
            let by = Duration::from_secs(set_by.unsigned_abs());
            if set_by < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
        }
        #[cfg(not(test))]
        SystemTime::now()
    }

    /// The same in seconds since 1970. A clock before that stands still.
    pub(super) fn seconds(&self) -> u64 {
        self.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Sets it by so many seconds.
    #[cfg(test)]
    pub(super) fn set(&self, by: i64) {
        self.set_by.fetch_add(by, Ordering::Relaxed);
    }
}

/// A moment that the clock of dates will reach, and when that is by the clock that waits, unless somebody sets the
/// first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) at: Instant,
    wall: SystemTime,
    /// When both clocks were read, and what they said.
    read: (SystemTime, Instant),
}

impl Ends {
    /// The moment `wall`, seen from now.
    pub(super) fn new(wall: SystemTime, clock: &Clock, now: Instant) -> Self {
        let read = clock.now();
        Self { at: now + wall.duration_since(read).unwrap_or_default(), wall, read: (read, now) }
    }

    /// Whether it has come, by either clock, or whether nobody can say any more, because the clock of dates was set.
    pub(super) fn has_come(&self, clock: &Clock, now: Instant) -> bool {
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
            let clock = Clock::default();
            let now = Instant::now();
            let ends = Ends::new(clock.now() + Duration::from_secs(600), &clock, now);
            clock.set(set_by);
            assert_eq!(ends.has_come(&clock, now), expected, "set by {set_by} s");
            assert!(ends.has_come(&clock, now + Duration::from_secs(601)), "set by {set_by} s");
        }
    }
}
