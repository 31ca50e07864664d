//! When a captured datagram is due.

use std::time::{Duration, Instant};

/// The clock of one replay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// `None`: everything is due at once.
    speed: Option<f64>,
    /// When the first datagram was captured, and when it was sent.
    first: Option<(Duration, Instant)>,
}

impl Pace {
    /// So many times faster than it was captured.
    pub(super) fn new(speed: Option<f64>) -> Self {
        Self { speed, first: None }
    }

    /// When a datagram is due that was captured at this time. The first is due now, and so is one from before the
    /// first: interfaces are written in the order in which their packets were seen, which can differ by a little.
    pub(super) fn due(&mut self, captured: Duration) -> Option<Instant> {
        let speed = self.speed?;
        let (first, began) = *self.first.get_or_insert_with(|| (captured, Instant::now()));
        let after = captured.saturating_sub(first).as_secs_f64() / speed;
        // A capture that spans more than the clock can count would never end either way.
        began.checked_add(Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX)).or(Some(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_capture_divided_by_the_speed() {
        let at = |milliseconds| Duration::from_secs(1_795_243_341) + Duration::from_millis(milliseconds);
        for (speed, expected) in [(1.0, 300), (10.0, 30), (0.5, 600)] {
            let mut pace = Pace::new(Some(speed));
            let first = pace.due(at(0)).expect("paced");
            assert_eq!(pace.due(at(300)).expect("paced") - first, Duration::from_millis(expected));
            assert_eq!(pace.due(Duration::ZERO).expect("paced"), first, "one from before the first is due at once");
        }
        assert_eq!(Pace::new(None).due(at(0)), None);
    }
}
