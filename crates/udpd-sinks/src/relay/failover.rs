//! Which of several destinations gets the datagrams when one is to get them all: the first that works.
//!
//! UDP tells little of whether a destination works, and late. What counts against one is what the kernel says: there is
//! no route, it refuses to send, or the network has answered with an error (no socket on that port, no host with that
//! address). A destination that is silent counts as working.
//!
//! One that has failed is tried again after a period, by one datagram. When the time in which an answer would come has
//! passed without one, it works again. So while the first of the list is gone, it costs the datagrams that were under
//! way when it went, and one in each period. Where none works the one in use is on trial with all that it gets.

use std::time::{Duration, Instant};

/// How long after a datagram no error may come until the destination counts as working. The kernel gives up a host that
/// does not answer on its own network after three seconds.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(4);

/// Chooses among destinations, which it knows by their places only.
#[derive(Debug)]
pub(super) struct Failover {
    /// When each failed last, while it counts as failed.
    failed: Vec<Option<Instant>>,
    /// The place of the one in use.
    current: usize,
    /// One that was sent to although it counts as failed, and since when.
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

    /// Whether the one in use counts as working. Otherwise none does.
    pub(super) fn works(&self) -> bool {
        self.failed[self.current].is_none()
    }

    /// Whether all is as it should be, so that only the first can have failed.
    pub(super) fn is_at_rest(&self) -> bool {
        self.current == 0 && self.works() && self.trial.is_none()
    }

    /// Takes account of those that have failed since it was last asked, and chooses.
    pub(super) fn review(&mut self, now: Instant, mut has_failed: impl FnMut(usize) -> bool) {
        if self.is_at_rest() {
            // Only the first was sent to, so nothing is known of the others.
            self.failed.fill(None);
        }
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
        self.current = chosen.unwrap_or(0);
    }

    /// One that the next datagram is to try: the one in use where that has failed, or one before it after its period.
    /// It is the same until the trial has begun.
    pub(super) fn tries(&self, now: Instant) -> Option<usize> {
        if self.trial.is_some() {
            return None;
        }
        let is_due = |failed: &Option<Instant>| failed.is_some_and(|failed| now.duration_since(failed) >= self.every);
        let own = (!self.works()).then_some(self.current);
        own.or_else(|| self.failed[..self.current].iter().position(is_due))
    }

    /// A datagram goes to the one that was to be tried: what is heard of it counts from now on.
    pub(super) fn begin_trial(&mut self, place: usize, now: Instant) {
        self.trial = Some((place, now));
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

    /// Reviews, and says which is in use then.
    fn review(failover: &mut Failover, now: Instant, has_failed: impl FnMut(usize) -> bool) -> usize {
        failover.review(now, has_failed);
        failover.current()
    }

    /// Begins the next trial, and returns the place that is tried.
    fn try_one(failover: &mut Failover, now: Instant) -> Option<usize> {
        let place = failover.tries(now)?;
        failover.begin_trial(place, now);
        Some(place)
    }

    #[test]
    fn the_next_one_takes_over_and_the_first_has_it_back_when_a_trial_is_not_answered_with_an_error() {
        let (mut failover, at) = three();
        assert_eq!((review(&mut failover, at(0), |_| false), failover.is_at_rest()), (0, true));
        assert_eq!(review(&mut failover, at(1), |place| place == 0), 1);
        assert_eq!((try_one(&mut failover, at(10)), failover.is_at_rest()), (None, false), "not before its period");
        assert_eq!([at(11), at(11)].map(|now| try_one(&mut failover, now)), [Some(0), None], "one datagram");
        assert_eq!(review(&mut failover, at(12), |place| place == 0), 1, "it is answered with an error");
        assert_eq!(try_one(&mut failover, at(21)), None);
        assert_eq!(try_one(&mut failover, at(22)), Some(0));
        assert_eq!(review(&mut failover, at(25), |_| false), 1, "an answer may still come");
        assert_eq!(review(&mut failover, at(26), |_| false), 0);
        assert!(failover.is_at_rest());
    }

    #[test]
    fn one_that_nothing_was_sent_to_is_not_back_however_long_it_is_silent() {
        let (mut failover, at) = three();
        review(&mut failover, at(1), |place| place == 0);
        for seconds in 11..40 {
            assert_eq!(failover.tries(at(seconds)), Some(0), "until it is tried");
            assert_eq!(review(&mut failover, at(seconds), |_| false), 1);
        }
    }

    #[test]
    fn the_first_that_works_is_in_use_and_where_none_does_the_one_that_failed_longest_ago() {
        let (mut failover, at) = three();
        assert_eq!(review(&mut failover, at(1), |place| place == 0), 1);
        assert_eq!(review(&mut failover, at(2), |place| place == 1), 2);
        assert_eq!(review(&mut failover, at(3), |place| place == 2), 0);
        assert!(!failover.works() && !failover.is_at_rest(), "the first is in use because all have failed");
        assert_eq!(review(&mut failover, at(4), |place| place == 0), 1);
        // The second is tried from the third once it is its turn, and the first before it.
        let (mut failover, at) = three();
        assert_eq!(review(&mut failover, at(1), |place| place < 2), 2);
        assert_eq!(try_one(&mut failover, at(20)), Some(0));
        review(&mut failover, at(21), |place| place == 0);
        assert_eq!(try_one(&mut failover, at(21)), Some(1), "the first has just failed again");
        assert_eq!(review(&mut failover, at(30), |_| false), 1);
    }

    #[test]
    fn where_none_works_the_one_in_use_is_on_trial_until_it_fails_or_has_been_silent_for_long_enough() {
        let (mut failover, at) = three();
        review(&mut failover, at(1), |_| true);
        assert_eq!((try_one(&mut failover, at(1)), failover.works()), (Some(0), false));
        assert_eq!(review(&mut failover, at(2), |place| place == 0), 1, "the others failed before it");
        assert_eq!(try_one(&mut failover, at(2)), Some(1));
        assert_eq!(review(&mut failover, at(6), |_| false), 1);
        assert!(failover.works(), "it has had datagrams for four seconds, and nothing was heard");
        assert_eq!(try_one(&mut failover, at(12)), Some(0), "and those before it are tried again");
    }
}
