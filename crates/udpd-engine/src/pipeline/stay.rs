//! Measures at a consumer how long datagrams stayed, from their stamps and from what its sink has decided.
//!
//! A sink may take datagrams now and hand them on later: when it is flushed, when a destination has acknowledged. So a
//! stamp waits until the consumer's counts say that everything up to its batch is decided. Whatever the sink, that is
//! what the ledger calls delivered.

use std::sync::Arc;
use std::time::Instant;

use udpd_base::handover::stamp::LatencyStamp;
use udpd_base::ledger::{CounterTable as _, Published, ResidenceTally, SinkTally, Tallies};

/// How many stamps can wait at once, and so how many a look goes through. Those beyond are let go.
const WAITING_MAX: usize = 128;

/// The stamps of one consumer.
#[derive(Debug)]
pub struct Stays {
    waiting: Vec<Waiting>,
    tally: ResidenceTally,
    ledger: Arc<Published<ResidenceTally>>,
}

/// A stamp whose batch is with the sink.
#[derive(Debug)]
struct Waiting {
    stamp: LatencyStamp,
    listener: usize,
    /// It is decided when the listener has as many decided as this.
    decided_by: u64,
    /// What the sink had refused before. When it refuses more nobody can say whether these were delivered.
    refused_before: u64,
}

impl Stays {
    pub fn new(ledger: Arc<Published<ResidenceTally>>) -> Self {
        Self { waiting: Vec::with_capacity(WAITING_MAX), tally: ResidenceTally::default(), ledger }
    }

    /// A batch with a stamp has been counted as taken and goes to the sink now.
    pub fn begin(&mut self, stamp: LatencyStamp, listener: usize, tallies: &Tallies) {
        if self.waiting.len() == WAITING_MAX {
            return;
        }
        let counts = &tallies[listener];
        let (decided_by, refused_before) = (decided(counts) + counts.pending, counts.dropped.by_destination());
        self.waiting.push(Waiting { stamp, listener, decided_by, refused_before });
    }

    /// Measures those stamps whose datagrams are decided by now.
    #[inline]
    pub fn note(&mut self, tallies: &Tallies) {
        if !self.waiting.is_empty() {
            self.measure(tallies, Instant::now);
        }
    }

    fn measure(&mut self, tallies: &Tallies, clock: impl FnOnce() -> Instant) {
        let is_decided = |waiting: &Waiting| decided(&tallies[waiting.listener]) >= waiting.decided_by;
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

/// What the sink has decided in these books. Not what was taken and is not pending: what it held when a pipeline took
/// the place of another is pending here, and was taken there.
fn decided(tally: &SinkTally) -> u64 {
    tally.delivered + tally.dropped.total()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LATER: Duration = Duration::from_millis(3);

    struct Bench {
        stays: Stays,
        tallies: Tallies,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { stays: Stays::new(Arc::default()), tallies: Tallies::new(0..2), start: Instant::now() }
        }

        fn take(&mut self, listener: usize, datagrams: u64) {
            let tally = &mut self.tallies[listener];
            tally.taken += datagrams;
            tally.pending += datagrams;
            self.stays.begin(LatencyStamp { arrived: self.start, datagrams }, listener, &self.tallies);
        }

        fn deliver(&mut self, listener: usize, datagrams: u64) {
            let tally = &mut self.tallies[listener];
            tally.pending -= datagrams;
            tally.delivered += datagrams;
        }

        /// How many datagrams are measured by now, all of which stayed as long as that.
        fn measured(&mut self) -> u64 {
            let now = self.start + LATER;
            self.stays.measure(&self.tallies, || now);
            let Some(read) = self.stays.ledger.read().read() else { return 0 };
            assert_eq!((read.buckets.len(), read.buckets[0].le_seconds), (1, Some(0.003)));
            read.count
        }
    }

    #[test]
    fn a_batch_is_measured_when_the_sink_has_handed_on_the_last_of_it() {
        let mut bench = Bench::new();
        bench.take(1, 10);
        assert_eq!(bench.measured(), 0, "the sink holds it");
        bench.deliver(1, 9);
        assert_eq!(bench.measured(), 0, "one is left");
        bench.take(1, 5);
        bench.deliver(1, 1);
        assert_eq!(bench.measured(), 10);
        bench.deliver(1, 5);
        assert_eq!(bench.measured(), 15);
        assert_eq!(bench.measured(), 15, "each once");
    }

    #[test]
    fn another_listener_of_the_same_sink_does_not_decide_for_it() {
        let mut bench = Bench::new();
        bench.take(0, 3);
        bench.take(1, 4);
        bench.deliver(1, 4);
        assert_eq!(bench.measured(), 4);
    }

    #[test]
    fn what_the_sink_refuses_is_no_delivery() {
        let mut bench = Bench::new();
        bench.take(0, 3);
        let tally = &mut bench.tallies[0];
        tally.pending = 0;
        tally.dropped.sink_error = 3;
        assert_eq!(bench.measured(), 0);
        bench.take(0, 2);
        bench.deliver(0, 2);
        assert_eq!(bench.measured(), 2, "those after it are measured again");
    }

    #[test]
    fn what_was_taken_in_earlier_books_and_is_pending_in_these_is_decided_first() {
        let mut bench = Bench::new();
        bench.tallies[0].pending = 7;
        bench.take(0, 3);
        bench.deliver(0, 7);
        assert_eq!(bench.measured(), 0, "these were before it");
        bench.deliver(0, 3);
        assert_eq!(bench.measured(), 3);
    }

    #[test]
    fn a_sink_that_decides_nothing_holds_no_more_stamps_than_there_are_places() {
        let mut bench = Bench::new();
        let memory = bench.stays.waiting.capacity();
        (0..2 * WAITING_MAX).for_each(|_| bench.take(0, 1));
        assert_eq!((bench.stays.waiting.len(), bench.stays.waiting.capacity()), (WAITING_MAX, memory));
        bench.deliver(0, 2 * WAITING_MAX as u64);
        assert_eq!(bench.measured(), WAITING_MAX as u64);
    }
}
