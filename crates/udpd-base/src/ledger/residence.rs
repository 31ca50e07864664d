//! How long datagrams stay in udpd, from arrival to delivery: a histogram with fixed buckets for each sink.
//!
//! Arrival is the moment at which the receive call that brought the datagram returned, so the time in the socket's
//! receive buffer is not part of it; how full that buffer is says more of that. Delivery is the moment at which the
//! consumer saw that its sink had handed on everything up to that datagram. Asking for the time twice a batch would
//! cost more than counting does, so one batch in some sixteen carries a stamp, and counts for as many datagrams as it
//! has. Where a batch is packed into several blocks, each of them carries the stamp for what it got of it; what found
//! no room counts nowhere.
//!
//! Buckets end at 1, 1.5, 2, 3, 5 and 7 times each power of ten: fine enough for a p99 to be read off, and constant, so
//! that consumers and readings can be added and subtracted.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::counter::cells;

/// The ends of the buckets of one power of ten, in tenths of it.
const STEPS: [u64; 6] = [10, 15, 20, 30, 50, 70];

/// Powers of ten, from a microsecond to a hundred seconds.
const DECADES: usize = 9;

/// The end of the first bucket, in tenths of a nanosecond.
const FIRST_END: u64 = 1_000;

/// The ends that Prometheus gets: every other would be a time series more for each sink, and no chart draws them all.
const EXPORTED: [u64; 3] = [10, 20, 50];

/// What a consumer has measured. It is the only writer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ResidenceTally {
    /// Datagrams by bucket, each in the first one that does not end before it.
    buckets: [[u64; STEPS.len()]; DECADES],
    /// Those that stayed longer than the last bucket.
    beyond: u64,
    nanoseconds: u64,
}

cells!(ResidenceTally { buckets: [[u64; STEPS.len()]; DECADES], beyond: u64, nanoseconds: u64 });

impl ResidenceTally {
    /// So many datagrams stayed so long.
    pub fn observe(&mut self, stayed: Duration, datagrams: u64) {
        let nanoseconds = u64::try_from(stayed.as_nanos()).unwrap_or(u64::MAX);
        match ends().position(|end| nanoseconds <= end) {
            Some(place) => self.buckets[place / STEPS.len()][place % STEPS.len()] += datagrams,
            None => self.beyond += datagrams,
        }
        self.nanoseconds = self.nanoseconds.saturating_add(nanoseconds.saturating_mul(datagrams));
    }

    /// As it stands in the ledger; `None` when nothing was measured.
    pub fn read(&self) -> Option<ResidenceSnapshot> {
        let counts = self.buckets.iter().flatten().copied();
        let ends = ends().map(|end| Some(end as f64 / 1e9)).chain([None]);
        let buckets = ends.zip(counts.chain([self.beyond])).filter(|(_, count)| *count > 0);
        let buckets = buckets.map(|(le_seconds, count)| ResidenceBucket { le_seconds, count }).collect();
        ResidenceSnapshot::new(buckets, self.nanoseconds as f64 / 1e9)
    }
}

/// Where the buckets end, in nanoseconds.
fn ends() -> impl Iterator<Item = u64> {
    (0..DECADES as u32).flat_map(|decade| STEPS.map(|step| step * FIRST_END / 10 * 10_u64.pow(decade)))
}

/// The ends of the buckets that Prometheus gets, in nanoseconds.
fn exported() -> impl Iterator<Item = u64> {
    (0..DECADES as u32).flat_map(|decade| EXPORTED.map(|step| step * FIRST_END / 10 * 10_u64.pow(decade)))
}

/// How long datagrams stayed, in the shape of the ledger. Quantiles are the ends of buckets: what they name was not
/// longer than that.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ResidenceSnapshot {
    /// Datagrams in the batches that were measured.
    pub count: u64,
    pub sum_seconds: f64,
    /// Null, as the two below, when that one stayed longer than the last bucket.
    pub p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
    pub p999_seconds: Option<f64>,
    /// Those buckets that have any.
    pub buckets: Vec<ResidenceBucket>,
}

/// Datagrams that stayed so long, and longer than the bucket before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResidenceBucket {
    /// Null for the last, which has no end.
    pub le_seconds: Option<f64>,
    pub count: u64,
}

impl ResidenceSnapshot {
    fn new(buckets: Vec<ResidenceBucket>, sum_seconds: f64) -> Option<Self> {
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let mut snapshot = Self { count, sum_seconds, buckets, ..Self::default() };
        (snapshot.p50_seconds, snapshot.p99_seconds, snapshot.p999_seconds) =
            (snapshot.quantile(500), snapshot.quantile(990), snapshot.quantile(999));
        (count > 0).then_some(snapshot)
    }

    /// So many of a thousand stayed no longer than this.
    fn quantile(&self, permille: u64) -> Option<f64> {
        let wanted = (self.count * permille).div_ceil(1000);
        let mut seen = 0;
        let mut buckets = self.buckets.iter();
        let reached = buckets.find(|bucket| {
            seen += bucket.count;
            seen >= wanted
        });
        reached.and_then(|bucket| bucket.le_seconds)
    }

    /// What was measured since an earlier reading of the same daemon; `None` when that is nothing.
    pub fn since(&self, before: &Self) -> Option<Self> {
        let earlier = |end: Option<f64>| {
            before.buckets.iter().find(|bucket| bucket.le_seconds == end).map_or(0, |bucket| bucket.count)
        };
        let since = self.buckets.iter().map(|bucket| ResidenceBucket {
            count: bucket.count.saturating_sub(earlier(bucket.le_seconds)),
            ..bucket.clone()
        });
        Self::new(since.filter(|bucket| bucket.count > 0).collect(), self.sum_seconds - before.sum_seconds)
    }

    /// The same with what was measured by another one.
    pub fn with(mut self, other: &Self) -> Self {
        for bucket in &other.buckets {
            match self.buckets.iter_mut().find(|own| own.le_seconds == bucket.le_seconds) {
                Some(own) => own.count += bucket.count,
                None => self.buckets.push(bucket.clone()),
            }
        }
        let end = |bucket: &ResidenceBucket| bucket.le_seconds.unwrap_or(f64::INFINITY);
        self.buckets.sort_by(|left, right| end(left).total_cmp(&end(right)));
        let sum_seconds = self.sum_seconds + other.sum_seconds;
        Self::new(self.buckets, sum_seconds).unwrap_or_default()
    }

    /// For Prometheus: how many stayed no longer than each of some ends, which are always the same.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        exported().map(|end| {
            let end = end as f64 / 1e9;
            let within = self.buckets.iter().filter(|bucket| bucket.le_seconds.is_some_and(|le| le <= end));
            (end, within.map(|bucket| bucket.count).sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{CounterSet, Published};

    fn tally(stays: &[(u64, u64)]) -> ResidenceTally {
        let mut tally = ResidenceTally::default();
        stays.iter().for_each(|&(micros, datagrams)| tally.observe(Duration::from_micros(micros), datagrams));
        tally
    }

    #[test]
    fn each_stay_is_in_the_first_bucket_that_does_not_end_before_it() {
        let ends: Vec<u64> = ends().collect();
        assert!(ends.is_sorted() && ends.len() == STEPS.len() * DECADES);
        assert_eq!((ends[0], ends[1], *ends.last().expect("some")), (1_000, 1_500, 700_000_000_000));
        for (nanoseconds, le) in [(0, 1e-6), (1_000, 1e-6), (1_001, 1.5e-6), (7_001, 1e-5), (2_999_999_999, 3.0)] {
            let mut tally = ResidenceTally::default();
            tally.observe(Duration::from_nanos(nanoseconds), 3);
            let bucket = ResidenceBucket { le_seconds: Some(le), count: 3 };
            assert_eq!(tally.read().expect("measured").buckets, [bucket], "{nanoseconds}");
        }
    }

    #[test]
    fn quantiles_are_of_datagrams_and_not_of_batches() {
        let read = tally(&[(90, 985), (900, 10), (40_000, 5)]).read().expect("measured");
        assert_eq!(read.count, 1000);
        assert_eq!((read.p50_seconds, read.p99_seconds, read.p999_seconds), (Some(1e-4), Some(1e-3), Some(0.05)));
        assert!((read.sum_seconds - 0.297_65).abs() < 1e-9, "{}", read.sum_seconds);
    }

    #[test]
    fn nothing_measured_is_nothing_said() {
        assert_eq!(ResidenceTally::default().read(), None);
        let read = tally(&[(90, 1)]).read().expect("measured");
        assert_eq!(read.since(&read), None);
    }

    #[test]
    fn what_stays_longer_than_the_last_bucket_has_no_end() {
        let read = tally(&[(90, 1), (701_000_000, 1)]).read().expect("measured");
        assert_eq!((read.p50_seconds, read.p99_seconds), (Some(1e-4), None));
        assert_eq!(read.cumulative().last(), Some((500.0, 1)));
    }

    #[test]
    fn consumers_are_added_and_readings_subtracted() {
        let (first, second) = (tally(&[(90, 7), (900, 1)]), tally(&[(90, 3), (9_000, 10)]));
        let sum = ResidenceTally::sum([first, second]);
        assert_eq!(sum, tally(&[(90, 10), (900, 1), (9_000, 10)]));
        let read = |tally: ResidenceTally| tally.read().expect("measured");
        let since = read(sum).since(&read(first)).expect("more was measured");
        assert_eq!(since.buckets, read(second).buckets);
        assert!((since.sum_seconds - read(second).sum_seconds).abs() < 1e-9);
    }

    #[test]
    fn what_is_published_is_what_is_read() {
        let published = Published::default();
        let measured = tally(&[(1, 1), (90, 7), (900, 1), (701_000_000, 2)]);
        published.publish(&measured);
        assert_eq!(published.read(), measured);
    }

    #[test]
    fn what_prometheus_gets_ends_where_buckets_end_and_never_falls() {
        let read = tally(&[(4, 1), (6, 2), (90, 7), (900, 1)]).read().expect("measured");
        let cumulative: Vec<(f64, u64)> = read.cumulative().collect();
        assert!(cumulative.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert_eq!(cumulative[..4], [(1e-6, 0), (2e-6, 0), (5e-6, 1), (1e-5, 3)]);
        let all: Vec<u64> = ends().collect();
        assert!(exported().all(|end| all.contains(&end)));
    }
}
