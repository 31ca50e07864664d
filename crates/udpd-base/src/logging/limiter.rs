//! Limits a repeated log line to one or a few a minute, with a count of the lines left out: for what ten thousand files
//! may report alike, and what other processes can trigger as often as they like.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After a line, the same line is left out for this long.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// Limits one log line, for all that share it.
#[derive(Debug)]
pub struct LogLimiter {
    /// How many lines may be logged within [`INTERVAL`].
    lines_max: u32,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// When the first line of this interval was logged.
    begun: Option<Instant>,
    /// How many lines were logged since.
    logged: u32,
    /// How many lines were left out since the last one.
    suppressed: u64,
}

impl LimiterState {
    fn is_over(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= INTERVAL)
    }
}

impl Default for LogLimiter {
    fn default() -> Self {
        Self::of(1)
    }
}

impl LogLimiter {
    /// For lines of which so many may be logged within [`INTERVAL`], because they differ.
    pub fn of(lines_max: u32) -> Self {
        Self { lines_max, state: Mutex::default() }
    }

    /// Whether a line would be left out now.
    pub fn suppresses(&self, now: Instant) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.logged >= self.lines_max && !state.is_over(now)
    }

    /// How many lines were left out before this one, which is to be logged; `None` when this one is left out too.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over(now) {
            (state.begun, state.logged) = (Some(now), 0);
        }
        if state.logged >= self.lines_max {
            state.suppressed += 1;
            return None;
        }
        state.logged += 1;
        Some(std::mem::take(&mut state.suppressed))
    }

    /// How many lines were left out in an interval that is over, for a line that tells so. Each is counted once.
    pub fn take_suppressed(&self, now: Instant) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over(now) { std::mem::take(&mut state.suppressed) } else { 0 }
    }
}

/// The end of a line that tells how many like it were left out.
pub fn repeats(suppressed: u64) -> String {
    if suppressed > 0 { format!("; {} times since this was last said", suppressed + 1) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_may_be_several_a_minute_and_those_left_out_are_told_when_it_is_over() {
        let (limiter, start) = (LogLimiter::of(5), Instant::now());
        assert_eq!((0..20).filter_map(|_| limiter.pass(start)).collect::<Vec<_>>(), [0; 5]);
        assert_eq!((limiter.take_suppressed(start), limiter.suppresses(start)), (0, true), "not before it is over");
        assert_eq!([start + INTERVAL; 2].map(|now| limiter.take_suppressed(now)), [15, 0]);
    }

    #[test]
    fn one_line_a_minute_is_logged_and_counts_the_others() {
        let (limiter, start) = (LogLimiter::default(), Instant::now());
        let passed: Vec<u64> =
            (0..130).filter_map(|second| limiter.pass(start + Duration::from_secs(second))).collect();
        assert_eq!(passed, [0, 59, 59]);
        assert_eq!((repeats(0), repeats(59)), (String::new(), "; 60 times since this was last said".to_owned()));
    }
}
