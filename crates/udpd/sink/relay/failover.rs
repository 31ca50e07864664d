//! Which of several destinations gets the datagrams when one is to get them all: the first that works.
//!
//! UDP tells little of whether a destination works, and late. What counts against one is what the kernel says: there is
//! no way, it refuses to send, or the network has answered with an error (nobody listens on that port, no host has that
//! address). A destination that is silent works, as far as anybody can know.
//!
//! One that has failed is tried again after a period, by one datagram. When the time in which an answer would come has
//! passed without one, it works again. So while the first of the list is gone, it costs the datagrams that were under
//! way when it went, and one in each period.

use std::time::{Duration, Instant};

/// How long nothing may be heard of a datagram until the destination is believed to have it. A host that nobody answers
/// for on its own network is given up after three seconds.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(4);

/// Chooses among destinations, which it knows by their places only.
#[derive(Debug)]
pub(super) struct Failover {
    /// When each failed last, while it counts as failed.
    failed: Vec<Option<Instant>>,
    /// The place of the one in use.
    current: usize,
    /// One that is tried, and since when.
    trial: Option<(usize, Instant)>,
    /// After how long one that has failed is tried.
    every: Duration,
}

impl Failover {
    pub(super) fn new(destinations: usize, every: Duration) -> Self {
        Self { failed: vec![None; destinations], current: 0, trial: None, every }
    }

    /// The one in use.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Whether all is as it should be, so that only the first can have failed.
    pub(super) fn is_at_rest(&self) -> bool {
        self.current == 0 && self.trial.is_none()
    }

    /// Takes account of those that have failed since it was last asked, and chooses. Which one is in use from now on,
    /// when that is another.
    pub(super) fn review(&mut self, now: Instant, mut has_failed: impl FnMut(usize) -> bool) -> Option<usize> {
        for (place, failed) in self.failed.iter_mut().enumerate() {
            if has_failed(place) {
                *failed = Some(now);
                self.trial.take_if(|trial| trial.0 == place);
            }
        }
        if let Some((place, _)) = self.trial.take_if(|trial| now.duration_since(trial.1) >= ANSWER_TIME) {
            self.failed[place] = None;
        }
        let working = self.failed.iter().position(Option::is_none);
        // Where none works, the one that failed longest ago: it is the likeliest to be back.
        let chosen = working.or_else(|| (0..self.failed.len()).min_by_key(|&place| self.failed[place]));
        let before = std::mem::replace(&mut self.current, chosen.unwrap_or(0));
        (before != self.current).then_some(self.current)
    }

    /// One before the one in use that the next datagram is to try.
    pub(super) fn tries(&mut self, now: Instant) -> Option<usize> {
        if self.trial.is_some() {
            return None;
        }
        let is_due = |failed: &Option<Instant>| failed.is_some_and(|failed| now.duration_since(failed) >= self.every);
        let place = self.failed[..self.current].iter().position(is_due)?;
        self.trial = Some((place, now));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failover among three, and a clock.
    fn three() -> (Failover, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (Failover::new(3, Duration::from_secs(10)), move |seconds| start + Duration::from_secs(seconds))
    }

    #[test]
    fn the_next_one_takes_over_and_the_first_has_it_back_when_a_trial_is_not_answered_with_an_error() {
        let (mut failover, at) = three();
        assert_eq!((failover.review(at(0), |_| false), failover.current(), failover.is_at_rest()), (None, 0, true));
        assert_eq!(failover.review(at(1), |place| place == 0), Some(1));
        assert_eq!((failover.tries(at(10)), failover.is_at_rest()), (None, false), "not before its period");
        assert_eq!((failover.tries(at(11)), failover.tries(at(11))), (Some(0), None), "one datagram");
        assert_eq!(failover.review(at(12), |place| place == 0), None, "it is answered with an error");
        assert_eq!(failover.tries(at(21)), None);
        assert_eq!(failover.tries(at(22)), Some(0));
        assert_eq!(failover.review(at(25), |_| false), None, "an answer may still come");
        assert_eq!(failover.review(at(26), |_| false), Some(0));
        assert!(failover.is_at_rest());
    }

    #[test]
    fn the_first_that_works_is_in_use_and_where_none_does_the_one_that_failed_longest_ago() {
        let (mut failover, at) = three();
        assert_eq!(failover.review(at(1), |place| place == 0), Some(1));
        assert_eq!(failover.review(at(2), |place| place == 1), Some(2));
        assert_eq!(failover.review(at(3), |place| place == 2), Some(0));
        assert_eq!(failover.review(at(4), |place| place == 0), Some(1));
        // The second is tried from the third once it is its turn, and the first before it.
        let (mut failover, at) = three();
        failover.review(at(1), |place| place < 2);
        assert_eq!(failover.current(), 2);
        assert_eq!(failover.tries(at(20)), Some(0));
        assert_eq!(failover.review(at(21), |place| place == 0), None);
        assert_eq!(failover.tries(at(21)), Some(1), "the first has just failed again");
        assert_eq!(failover.review(at(30), |_| false), Some(1));
    }
}
