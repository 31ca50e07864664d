//! How long datagrams took, as histograms that are exact to three digits from a nanosecond to a minute.
//!
//! `network` is from the sender's call to the kernel's time of arrival, `residence` from there to the consumer,
//! `one_way` the whole. Two hosts' clocks differ; what seems to arrive before it was sent is counted and not recorded,
//! so that it cannot pull a percentile down.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A minute: what takes longer is recorded as that.
const MAX_NS: u64 = 60_000_000_000;

/// The percentiles that are reported.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// One kind of latency.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    behind: u64,
}

impl Default for Latency {
    fn default() -> Self {
        // These bounds are valid, whatever the machine.
        let histogram = Histogram::new_with_bounds(1, MAX_NS, 3).expect("bounds of 1 to a minute and three digits");
        Self { histogram, behind: 0 }
    }
}

/// What a report says of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub count: u64,
    /// Datagrams that seemed to end before they began: two clocks that differ.
    pub behind: u64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub p99_99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// From one moment to another, both on CLOCK_REALTIME.
    pub fn record(&mut self, from_ns: u64, to_ns: u64) {
        match to_ns.checked_sub(from_ns) {
            Some(took) => self.histogram.saturating_record(took),
            None => self.behind += 1,
        }
    }

    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can fail to fit.
        let _ = self.histogram.add(&other.histogram);
        self.behind += other.behind;
    }

    pub fn clear(&mut self) {
        self.histogram.reset();
        self.behind = 0;
    }

    /// The percentiles; `None` when nothing was timed.
    pub fn percentiles(&self) -> Option<Percentiles> {
        if self.histogram.is_empty() && self.behind == 0 {
            return None;
        }
        let us = |ns: u64| ns as f64 / 1000.0;
        let [p50_us, p90_us, p99_us, p99_9_us, p99_99_us] =
            QUANTILES.map(|quantile| us(self.histogram.value_at_quantile(quantile)));
        let max_us = us(self.histogram.max());
        let count = self.histogram.len();
        Some(Percentiles { count, behind: self.behind, p50_us, p90_us, p99_us, p99_9_us, p99_99_us, max_us })
    }
}

/// All kinds.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    /// From the sender's call to the kernel's time of arrival.
    pub network: Latency,
    pub residence: Latency,
    /// From the sender's call to the consumer.
    pub one_way: Latency,
}

impl Latencies {
    pub fn add(&mut self, other: &Self) {
        self.network.add(&other.network);
        self.residence.add(&other.residence);
        self.one_way.add(&other.one_way);
    }

    pub fn clear(&mut self) {
        self.network.clear();
        self.residence.clear();
        self.one_way.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded_to_three_digits() {
        let mut latency = Latency::default();
        (1..=10_000_u64).for_each(|number| latency.record(5, 5 + number * 1_000));
        let found = latency.percentiles().expect("recorded");
        assert_eq!((found.count, found.behind), (10_000, 0));
        for (found, exact) in [
            (found.p50_us, 5_000.0),
            (found.p90_us, 9_000.0),
            (found.p99_us, 9_900.0),
            (found.p99_9_us, 9_990.0),
            (found.p99_99_us, 9_999.0),
            (found.max_us, 10_000.0),
        ] {
            assert!((found / exact - 1.0).abs() < 0.001, "{found} for {exact}");
        }
    }

    #[test]
    fn what_ends_before_it_begins_is_counted_and_pulls_nothing_down() {
        let mut latency = Latency::default();
        assert_eq!(latency.percentiles(), None);
        latency.record(2_000, 1_000);
        latency.record(1_000, 2_000);
        let mut sum = Latency::default();
        sum.add(&latency);
        let found = sum.percentiles().expect("recorded");
        assert_eq!((found.count, found.behind, found.p50_us), (1, 1, 1.0));
        sum.clear();
        assert_eq!(sum.percentiles(), None);
    }
}
