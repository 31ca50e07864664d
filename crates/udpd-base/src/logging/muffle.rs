//! What would be said again and again is said once a minute, with a count: what ten thousand files have to say alike,
//! and what others can have said as often as they like.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing is said after something was.
const SILENCE: Duration = Duration::from_secs(60);

/// Shared by those who would say the same; one for each thing that is said.
#[derive(Debug, Default)]
pub struct Muffle {
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// When something was last said.
    last: Option<Instant>,
    /// How often it was not said since.
    silent: u64,
}

impl Heard {
    fn is_within_silence(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < SILENCE)
    }
}

impl Muffle {
    /// Whether what happens now is not said.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).is_within_silence(now)
    }

    /// How many of them had to be silent before this one, which may speak; `None` when it is to be silent, too.
    pub fn let_speak(&self, now: Instant) -> Option<u64> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.is_within_silence(now) {
            heard.silent += 1;
            return None;
        }
        heard.last = Some(now);
        Some(std::mem::take(&mut heard.silent))
    }
}

/// How often it has happened since it was last said, as the end of a line.
pub fn count(silent: u64) -> String {
    if silent > 0 { format!("; {} times since this was last said", silent + 1) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_minute_speaks_for_all() {
        let (muffle, start) = (Muffle::default(), Instant::now());
        let said: Vec<u64> =
            (0..130).filter_map(|second| muffle.let_speak(start + Duration::from_secs(second))).collect();
        assert_eq!(said, [0, 59, 59]);
        assert_eq!((count(0), count(59)), (String::new(), "; 60 times since this was last said".to_owned()));
    }
}
