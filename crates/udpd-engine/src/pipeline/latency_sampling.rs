//! Measures how long datagrams stay in udpd, by samples: the receiver stamps some batches, and the consumer measures
//! them when its sink has decided about their datagrams.
//!
//! One batch in sixteen or so is a sample. Its arrival is stamped, which takes a look at the clock, and its senders are
//! counted, which takes a look at each datagram. How many batches lie between two samples is random. Otherwise a sender
//! whose bursts are as regular as the samples would be seen always or never.
//!
//! A sink may take datagrams now and hand them on later: when it is flushed, when a destination has acknowledged. So a
//! stamp waits until the consumer's counts say that everything up to its batch is decided. Whatever the sink, that is
//! what the ledger calls delivered.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use udpd_base::handover::batch::LatencyStamp;
use udpd_base::ledger::{CounterTable as _, Published, ResidenceTally, SinkTally, Tallies};
use udpd_base::seams::clock;

/// One batch in so many is sampled, on average.
pub(super) const BATCHES_PER_SAMPLE: u64 = 16;

/// Picks samples among the batches of one lane.
#[derive(Debug)]
pub(super) struct BatchSampler {
    /// Batches until the next one.
    left: u64,
    random: u64,
}

impl BatchSampler {
    /// The first batch is a sample, so that a lone datagram is measured.
    pub(super) fn new() -> Self {
        // Never 0, of which the generator would make nothing else. The library seeds its hash tables at random.
        Self { left: 1, random: RandomState::new().hash_one(0_u8) | 1 }
    }

    /// Whether the batch that has come now is to be sampled.
    pub(super) fn is_due(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        // Marsaglia's xorshift: three instructions, and as random as this needs.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.left = 1 + self.random % (2 * BATCHES_PER_SAMPLE - 1);
        true
    }
}

/// How many stamps can wait at once, and so how many are checked at once. Those beyond are dropped.
const WAITING_MAX: usize = 128;

/// The stamps of one consumer.
#[derive(Debug)]
pub(super) struct ResidenceTracker {
    waiting: Vec<WaitingStamp>,
    tally: ResidenceTally,
    ledger: Arc<Published<ResidenceTally>>,
}

/// A stamp whose batch is with the sink.
#[derive(Debug)]
struct WaitingStamp {
    stamp: LatencyStamp,
    listener: usize,
    /// It is decided when the listener has as many decided as this.
    decided_by: u64,
    /// What the sink had refused before. When it refuses more it is not known whether these were delivered.
    refused_before: u64,
}

impl ResidenceTracker {
    pub(super) fn new(ledger: Arc<Published<ResidenceTally>>) -> Self {
        Self { waiting: Vec::with_capacity(WAITING_MAX), tally: ResidenceTally::default(), ledger }
    }

    /// A batch with a stamp has been counted as taken and goes to the sink now.
    pub(super) fn track(&mut self, stamp: LatencyStamp, listener: usize, tallies: &Tallies) {
        if self.waiting.len() == WAITING_MAX {
            return;
        }
        let counts = &tallies[listener];
        let (decided_by, refused_before) = (decided(counts) + counts.pending, counts.dropped.by_destination());
        self.waiting.push(WaitingStamp { stamp, listener, decided_by, refused_before });
    }

    /// Measures those stamps whose datagrams are decided by now.
    #[inline]
    pub(super) fn measure_decided(&mut self, tallies: &Tallies) {
        if !self.waiting.is_empty() {
            self.measure(tallies, clock::now);
        }
    }

    fn measure(&mut self, tallies: &Tallies, clock: impl FnOnce() -> Instant) {
        let is_decided = |waiting: &WaitingStamp| decided(&tallies[waiting.listener]) >= waiting.decided_by;
        if !self.waiting.iter().any(is_decided) {
            return;
        }
        let now = clock();
        let tally = &mut self.tally;
        self.waiting.retain(|waiting| {
            let is_decided = is_decided(waiting);
            if is_decided && tallies[waiting.listener].dropped.by_destination() == waiting.refused_before {
                tally.observe(now.saturating_duration_since(waiting.stamp.arrived), waiting.stamp.datagrams);
            }
            !is_decided
        });
        self.ledger.publish(&self.tally);
    }
}

/// What the sink has decided in this ledger. Not what was taken and is not pending: what it held when a pipeline took
/// the place of another is pending here, and was taken there.
fn decided(tally: &SinkTally) -> u64 {
    tally.delivered + tally.dropped.total()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_batch_is_sampled_and_then_one_in_sixteen_at_no_fixed_distance() {
        let mut sampler = BatchSampler::new();
        let batches = 160_000;
        let sampled: Vec<usize> = (0..batches).filter(|_| sampler.is_due()).collect();
        assert_eq!(sampled[0], 0);
        let expected = batches / BATCHES_PER_SAMPLE as usize;
        // The spread of such a sum is about sixty: this is sixteen times as much.
        assert!(sampled.len().abs_diff(expected) < 1_000, "{} of {batches}", sampled.len());
        let distances: std::collections::BTreeSet<usize> = sampled.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(distances, (1..2 * BATCHES_PER_SAMPLE as usize).collect());
    }

    const LATER: Duration = Duration::from_millis(3);

    struct TrackedSink {
        residence: ResidenceTracker,
        tallies: Tallies,
        start: Instant,
    }

    impl TrackedSink {
        fn new() -> Self {
            Self {
                residence: ResidenceTracker::new(Arc::default()),
                tallies: Tallies::new(0..2),
                start: Instant::now(),
            }
        }

        fn take(&mut self, listener: usize, datagrams: u64) {
            let tally = &mut self.tallies[listener];
            tally.taken += datagrams;
            tally.pending += datagrams;
            self.residence.track(LatencyStamp { arrived: self.start, datagrams }, listener, &self.tallies);
        }

        fn deliver(&mut self, listener: usize, datagrams: u64) {
            let tally = &mut self.tallies[listener];
            tally.pending -= datagrams;
            tally.delivered += datagrams;
        }

        /// How many datagrams are measured by now, all of which stayed as long as that.
        fn measured(&mut self) -> u64 {
            let now = self.start + LATER;
            self.residence.measure(&self.tallies, || now);
            let Some(read) = self.residence.ledger.read().read() else { return 0 };
            assert_eq!((read.buckets.len(), read.buckets[0].le_seconds), (1, Some(0.003)));
            read.count
        }
    }

    #[test]
    fn a_batch_is_measured_when_the_sink_has_handed_on_the_last_of_it() {
        let mut tracked = TrackedSink::new();
        tracked.take(1, 10);
        assert_eq!(tracked.measured(), 0, "the sink holds it");
        tracked.deliver(1, 9);
        assert_eq!(tracked.measured(), 0, "one is left");
        tracked.take(1, 5);
        tracked.deliver(1, 1);
        assert_eq!(tracked.measured(), 10);
        tracked.deliver(1, 5);
        assert_eq!(tracked.measured(), 15);
        assert_eq!(tracked.measured(), 15, "each once");
    }

    #[test]
    fn another_listener_of_the_same_sink_does_not_decide_for_it() {
        let mut tracked = TrackedSink::new();
        tracked.take(0, 3);
        tracked.take(1, 4);
        tracked.deliver(1, 4);
        assert_eq!(tracked.measured(), 4);
    }

    #[test]
    fn what_the_sink_refuses_is_no_delivery() {
        let mut tracked = TrackedSink::new();
        tracked.take(0, 3);
        let tally = &mut tracked.tallies[0];
        tally.pending = 0;
        tally.dropped.sink_error = 3;
        assert_eq!(tracked.measured(), 0);
        tracked.take(0, 2);
        tracked.deliver(0, 2);
        assert_eq!(tracked.measured(), 2, "those after it are measured again");
    }

    #[test]
    fn what_was_taken_in_an_earlier_ledger_and_is_pending_in_this_one_is_decided_first() {
        let mut tracked = TrackedSink::new();
        tracked.tallies[0].pending = 7;
        tracked.take(0, 3);
        tracked.deliver(0, 7);
        assert_eq!(tracked.measured(), 0, "these were before it");
        tracked.deliver(0, 3);
        assert_eq!(tracked.measured(), 3);
    }

    #[test]
    fn a_sink_that_decides_nothing_holds_no_more_stamps_than_there_are_places() {
        let mut tracked = TrackedSink::new();
        let memory = tracked.residence.waiting.capacity();
        (0..2 * WAITING_MAX).for_each(|_| tracked.take(0, 1));
        assert_eq!((tracked.residence.waiting.len(), tracked.residence.waiting.capacity()), (WAITING_MAX, memory));
        tracked.deliver(0, 2 * WAITING_MAX as u64);
        assert_eq!(tracked.measured(), WAITING_MAX as u64);
    }
}
