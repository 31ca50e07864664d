//! Limits a repeated log line to one a minute, with a count of the lines left out: for what ten thousand files may
//! report alike, and what other processes can trigger as often as they like.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After a line, the same line is left out for this long.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// Limits one log line, for all that share it.
#[derive(Debug, Default)]
pub struct LogLimiter {
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// When the line was last logged.
    last: Option<Instant>,
    /// How many lines were left out since.
    suppressed: u64,
}

impl LimiterState {
    fn suppresses(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL)
    }
}

impl LogLimiter {
    /// Whether a line would be left out now.
    pub fn suppresses(&self, now: Instant) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).suppresses(now)
    }

    /// How many lines were left out before this one, which is to be logged; `None` when this one is left out too.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.suppresses(now) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
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
    fn one_line_a_minute_is_logged_and_counts_the_others() {
        let (limiter, start) = (LogLimiter::default(), Instant::now());
        let passed: Vec<u64> =
            (0..130).filter_map(|second| limiter.pass(start + Duration::from_secs(second))).collect();
        assert_eq!(passed, [0, 59, 59]);
        assert_eq!((repeats(0), repeats(59)), (String::new(), "; 60 times since this was last said".to_owned()));
    }
}
