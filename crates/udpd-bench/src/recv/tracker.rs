//! The sink that checks what a bench sends: it reads every datagram, places it in its flow, times it and counts it.
//!
//! It is a sink like any other, behind a real lane and a real channel, so the daemon is what is measured. The consumer
//! locks it once per batch; the reporter locks it for an instant now and then, to change the interval that is being
//! filled for an empty one. The clock is read once per batch.
//!
//! Latencies are histograms, exact to three digits from a nanosecond to a minute: `network` from the sender's call to
//! the kernel's time of arrival, `residence` from there to the consumer, `one_way` the whole. Clocks of two hosts
//! differ; what seems to arrive before it was sent is counted and not recorded, so that it cannot pull a percentile
//! down.
//!
//! Arrivals are counted per millisecond, because bursts fill a buffer and averages hide them. All counters are
//! allocated at the start; pages of milliseconds that never come are never touched.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::flows::{DatagramOutcome, FlowTable};
use crate::clock;
use crate::payload::{self, PayloadHeader, PayloadReading};
use udpd_base::handover::batch::{LaneBatch, LaneLoad};
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::sink::{Sink, deliver};

/// Clocks that are nearer than this are those of one host.
const SAME_CLOCK_NS: u64 = 1_000_000;

/// What was counted in an interval. Every datagram is in exactly one of `received`, `duplicated`, `late`, `untracked`,
/// `corrupted` and `foreign`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct TrackerCounts {
    /// All datagrams that the sink was given.
    pub arrived: u64,
    pub bytes: u64,
    /// The first of each sequence, and those too short to have one.
    pub received: u64,
    /// Of these, those that came after a higher sequence.
    pub reordered: u64,
    /// Of these, those below 16 bytes: they can be counted and not told apart.
    pub short: u64,
    pub duplicated: u64,
    /// Too far behind to tell a repeat from a first arrival.
    pub late: u64,
    /// Of flows for which there was no room.
    pub untracked: u64,
    /// Damaged on the way; which one it was cannot be told, so it is among the lost as well.
    pub corrupted: u64,
    pub foreign: u64,
    /// Longer than `max_length`: only the head was checked.
    pub truncated: u64,
    /// Timed by a clock that is not this host's.
    pub other_clock: u64,
}

impl TrackerCounts {
    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            arrived,
            bytes,
            received,
            reordered,
            short,
            duplicated,
            late,
            untracked,
            corrupted,
            foreign,
            truncated,
            other_clock,
        } = other;
        self.arrived += arrived;
        self.bytes += bytes;
        self.received += received;
        self.reordered += reordered;
        self.short += short;
        self.duplicated += duplicated;
        self.late += late;
        self.untracked += untracked;
        self.corrupted += corrupted;
        self.foreign += foreign;
        self.truncated += truncated;
        self.other_clock += other_clock;
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Interval {
    pub counts: TrackerCounts,
    pub latencies: Latencies,
}

impl Interval {
    pub(super) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.latencies.add(&other.latencies);
    }

    pub(super) fn clear(&mut self) {
        self.counts = TrackerCounts::default();
        self.latencies.clear();
    }
}

/// What is known of all that has arrived. Everything it will ever need is allocated when it is made.
#[derive(Debug)]
pub(super) struct DatagramTracker {
    flows: FlowTable,
    interval: Interval,
    timeline: Timeline,
    offset_ns: i64,
}

impl DatagramTracker {
    /// Room for `flows_max` flows and a timeline of `kept_ms`.
    pub(super) fn new(flows_max: usize, kept_ms: u64) -> Self {
        Self {
            flows: FlowTable::new(flows_max),
            interval: Interval::default(),
            timeline: Timeline::new(kept_ms),
            offset_ns: clock::realtime_offset_ns(),
        }
    }

    /// Counts a batch that a consumer holds at `now_ns` on CLOCK_REALTIME.
    pub(super) fn take(&mut self, batch: &LaneLoad, now_ns: u64) {
        for datagram in batch.datagrams() {
            self.take_one(datagram.payload(), datagram.length(), datagram.arrival_since_epoch(), now_ns);
        }
    }

    /// Counts one datagram that was `length` bytes on the wire. `arrival` is the kernel's time.
    pub(super) fn take_one(&mut self, payload: &[u8], length: usize, arrival: Option<Duration>, now_ns: u64) {
        let arrival_ns = arrival.and_then(|arrival| u64::try_from(arrival.as_nanos()).ok());
        self.timeline.record(arrival_ns.unwrap_or(now_ns));
        let counts = &mut self.interval.counts;
        counts.arrived += 1;
        counts.bytes += payload.len() as u64;
        counts.truncated += u64::from(length > payload.len());
        match payload::read(payload, length) {
            PayloadReading::Datagram(header) => self.take_header(&header, arrival_ns, now_ns),
            PayloadReading::Short => {
                counts.received += 1;
                counts.short += 1;
            }
            PayloadReading::Corrupted => counts.corrupted += 1,
            PayloadReading::Foreign => counts.foreign += 1,
        }
    }

    fn take_header(&mut self, header: &PayloadHeader, arrival_ns: Option<u64>, now_ns: u64) {
        let counts = &mut self.interval.counts;
        match self.flows.take(header.run, header.flow, header.sequence) {
            DatagramOutcome::New => counts.received += 1,
            DatagramOutcome::Reordered => {
                counts.received += 1;
                counts.reordered += 1;
            }
            DatagramOutcome::Duplicated => counts.duplicated += 1,
            DatagramOutcome::Late => counts.late += 1,
            DatagramOutcome::Untracked => counts.untracked += 1,
        }
        let latencies = &mut self.interval.latencies;
        if let Some(arrival_ns) = arrival_ns {
            latencies.residence.record(arrival_ns, now_ns);
        }
        if let Some(sent) = header.sent {
            counts.other_clock += u64::from(sent.realtime_offset_ns.abs_diff(self.offset_ns) > SAME_CLOCK_NS);
            let sent_ns = sent.realtime_ns();
            latencies.one_way.record(sent_ns, now_ns);
            if let Some(arrival_ns) = arrival_ns {
                latencies.network.record(sent_ns, arrival_ns);
            }
        }
    }

    /// Swaps the current interval for an empty one, and notes the distance of the clocks.
    pub(super) fn change_interval(&mut self, other: &mut Interval, offset_ns: i64) {
        std::mem::swap(&mut self.interval, other);
        self.offset_ns = offset_ns;
    }

    /// What was counted since the interval was changed.
    pub(super) fn counts(&self) -> &TrackerCounts {
        &self.interval.counts
    }

    pub(super) fn flows(&self) -> &FlowTable {
        &self.flows
    }

    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }
}

/// A tracker that a consumer and a reporter share.
#[derive(Debug, Clone)]
pub(super) struct SharedTracker(Arc<Mutex<DatagramTracker>>);

impl SharedTracker {
    pub(super) fn new(tracker: DatagramTracker) -> Self {
        Self(Arc::new(Mutex::new(tracker)))
    }

    /// For a moment: the consumer waits meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, DatagramTracker> {
        // Counts that a panic has left behind are still counts; the panic itself ends the run.
        threads::lock(&self.0)
    }
}

/// The sink that feeds a tracker. No configuration file can name it.
#[derive(Debug)]
pub(super) struct TrackerSink {
    pub tracker: SharedTracker,
}

impl Sink for TrackerSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.tracker.lock().take(&batch.datagrams, clock::realtime_ns());
        deliver(&mut tallies[batch.listener], batch.datagrams.summary().datagrams);
    }
}

/// A minute: what takes longer is recorded as that.
const MAX_NS: u64 = 60_000_000_000;

/// The percentiles that are reported.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

#[derive(Debug, Clone)]
pub(super) struct Latency {
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

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub count: u64,
    /// Datagrams that seemed to end before they began: two clocks that differ.
    pub behind: u64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub p99_99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// From one moment to another, both on CLOCK_REALTIME.
    pub(super) fn record(&mut self, from_ns: u64, to_ns: u64) {
        match to_ns.checked_sub(from_ns) {
            Some(took) => self.histogram.saturating_record(took),
            None => self.behind += 1,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can fail to fit.
        let _ = self.histogram.add(&other.histogram);
        self.behind += other.behind;
    }

    pub(super) fn clear(&mut self) {
        self.histogram.reset();
        self.behind = 0;
    }

    /// The percentiles; `None` when nothing was timed.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
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

#[derive(Debug, Clone, Default)]
pub(super) struct Latencies {
    /// From the sender's call to the kernel's time of arrival.
    pub network: Latency,
    pub residence: Latency,
    /// From the sender's call to the consumer.
    pub one_way: Latency,
}

impl Latencies {
    pub(super) fn add(&mut self, other: &Self) {
        self.network.add(&other.network);
        self.residence.add(&other.residence);
        self.one_way.add(&other.one_way);
    }

    pub(super) fn clear(&mut self) {
        self.network.clear();
        self.residence.clear();
        self.one_way.clear();
    }
}

/// Lanes are read one after the other, so an earlier arrival than the first may still come: by this much at most.
const LEAD_MS: u64 = 1_000;

/// The longest time that is kept: an hour.
pub(super) const KEPT_MS_MAX: u64 = 3_600_000;

/// Counts of arrivals by millisecond.
#[derive(Debug, Clone)]
pub(super) struct Timeline {
    begin_ms: Option<u64>,
    counts: Vec<u32>,
    outside: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ArrivalSummary {
    /// Milliseconds from the first arrival to the last, both included.
    pub milliseconds: u64,
    pub mean: f64,
    pub peak_1ms: u64,
    /// The most in ten milliseconds, counted from the first.
    pub peak_10ms: u64,
    /// The most in a hundred milliseconds, counted from the first.
    pub peak_100ms: u64,
    /// Arrivals outside of the time that is kept: they are in none of these figures.
    pub outside: u64,
    /// How many milliseconds had how many arrivals.
    pub histogram: Vec<HistogramBar>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct HistogramBar {
    pub from: u64,
    pub to: u64,
    /// How many milliseconds had as many.
    pub milliseconds: u64,
}

impl Timeline {
    /// Room for `kept_ms`, an hour at most.
    pub(super) fn new(kept_ms: u64) -> Self {
        let length = LEAD_MS + kept_ms.min(KEPT_MS_MAX);
        Self { begin_ms: None, counts: vec![0; usize::try_from(length).unwrap_or(0)], outside: 0 }
    }

    /// One arrival, at a time on any clock that does not go back by more than a second.
    pub(super) fn record(&mut self, arrival_ns: u64) {
        let arrival_ms = arrival_ns / 1_000_000;
        let begin_ms = *self.begin_ms.get_or_insert(arrival_ms.saturating_sub(LEAD_MS));
        let place = arrival_ms.checked_sub(begin_ms).and_then(|place| usize::try_from(place).ok());
        match place.and_then(|place| self.counts.get_mut(place)) {
            Some(count) => *count += 1,
            None => self.outside += 1,
        }
    }

    /// The counts from the first millisecond with an arrival to the last.
    pub(super) fn counts(&self) -> &[u32] {
        let first = self.counts.iter().position(|count| *count > 0);
        let last = self.counts.iter().rposition(|count| *count > 0);
        first.zip(last).map_or(&[], |(first, last)| &self.counts[first..=last])
    }

    pub(super) fn arrivals(&self) -> ArrivalSummary {
        let counts = self.counts();
        let peak = |width: usize| counts.chunks(width).map(|part| part.iter().map(|&one| u64::from(one)).sum()).max();
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        ArrivalSummary {
            milliseconds: counts.len() as u64,
            mean: total as f64 / counts.len().max(1) as f64,
            peak_1ms: peak(1).unwrap_or(0),
            peak_10ms: peak(10).unwrap_or(0),
            peak_100ms: peak(100).unwrap_or(0),
            outside: self.outside,
            histogram: histogram(counts),
        }
    }
}

/// Bars of 0, 1, 2 to 3, 4 to 7 and so on, from the first that is not empty to the last.
fn histogram(counts: &[u32]) -> Vec<HistogramBar> {
    let bar = |power: u32| match power {
        0 => HistogramBar { from: 0, to: 0, milliseconds: 0 },
        _ => HistogramBar { from: 1 << (power - 1), to: (1 << power) - 1, milliseconds: 0 },
    };
    let mut bars: Vec<HistogramBar> = (0..=u32::BITS).map(bar).collect();
    for count in counts {
        bars[(u32::BITS - count.leading_zeros()) as usize].milliseconds += 1;
    }
    let is_used = |bar: &HistogramBar| bar.milliseconds > 0;
    let last = bars.iter().rposition(is_used).map_or(0, |last| last + 1);
    bars.truncate(last);
    let first = bars.iter().position(is_used).unwrap_or(0);
    bars.split_off(first)
}

pub(super) fn bars_text(bars: &[HistogramBar]) -> String {
    const WIDTH: u64 = 50;
    let most = bars.iter().map(|bar| bar.milliseconds).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for HistogramBar { from, to, milliseconds } in bars {
        let range = if from == to { from.to_string() } else { format!("{from}-{to}") };
        let length = (milliseconds * WIDTH).div_ceil(most) as usize;
        text += format!("{range:>15}  {milliseconds:>9}  {}", "#".repeat(length)).trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{HeaderStamp, SendTime, fill};

    const NOW: u64 = 1_700_000_000_000_000_000;

    fn datagram(sequence: u64, length: usize) -> Vec<u8> {
        let mut payload = vec![0; length];
        fill(&mut payload);
        let sent = SendTime { monotonic_ns: NOW - 30_000, realtime_offset_ns: 0 };
        HeaderStamp::new(1, sent).write(&mut payload, 2, sequence);
        payload
    }

    fn take(tracker: &mut DatagramTracker, payload: &[u8]) {
        tracker.take_one(payload, payload.len(), Some(Duration::from_nanos(NOW - 10_000)), NOW);
    }

    #[test]
    fn every_datagram_is_counted_in_one_place() {
        let mut tracker = DatagramTracker::new(1, 1_000);
        let mut damaged = datagram(9, 64);
        damaged[40] ^= 1;
        let own = [(0, 64), (2, 64), (1, 64), (2, 64), (70_000, 64), (3, 64), (5, 8)];
        own.iter().for_each(|(sequence, length)| take(&mut tracker, &datagram(*sequence, *length)));
        take(&mut tracker, &damaged);
        take(&mut tracker, b"<13>not of the bench");
        tracker.take_one(&datagram(70_001, 64)[..40], 64, None, NOW);
        let expected = TrackerCounts {
            arrived: 10,
            bytes: 6 * 64 + 8 + 64 + 20 + 40,
            received: 6,
            reordered: 1,
            short: 1,
            duplicated: 1,
            late: 1,
            untracked: 0,
            corrupted: 1,
            foreign: 1,
            truncated: 1,
            other_clock: 7,
        };
        assert_eq!(*tracker.counts(), expected);
        let TrackerCounts { received, duplicated, late, untracked, corrupted, foreign, arrived, .. } = expected;
        assert_eq!(received + duplicated + late + untracked + corrupted + foreign, arrived);
        assert_eq!(tracker.flows().lost(), 70_002 - 5);
    }

    #[test]
    fn the_way_is_timed_in_two_parts_and_as_a_whole() {
        let mut tracker = DatagramTracker::new(1, 1_000);
        take(&mut tracker, &datagram(0, 32));
        take(&mut tracker, &datagram(1, 31));
        let mut interval = Interval::default();
        tracker.change_interval(&mut interval, 0);
        let Latencies { network, residence, one_way } = &interval.latencies;
        let found = [network, residence, one_way].map(|latency| latency.percentiles().expect("timed"));
        assert_eq!(found.each_ref().map(|part| part.count), [1, 2, 1], "below 32 bytes there is no time of sending");
        for (part, us) in found.iter().zip([20.0, 10.0, 30.0]) {
            assert!((part.p50_us / us - 1.0).abs() < 0.001, "{part:?}");
        }
        assert_eq!(*tracker.counts(), TrackerCounts::default(), "the new interval is empty");
        take(&mut tracker, &datagram(2, 32));
        assert_eq!(tracker.counts().other_clock, 0, "now it knows the sender's clock as its own");
    }

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

    const MS: u64 = 1_000_000;

    fn timeline(arrivals_ms: impl IntoIterator<Item = u64>) -> Timeline {
        let mut timeline = Timeline::new(5_000);
        arrivals_ms.into_iter().for_each(|at| timeline.record(1_700_000_000_000 * MS + at * MS + 999_999));
        timeline
    }

    #[test]
    fn a_burst_shows_that_an_average_hides() {
        // One a millisecond for a hundred of them, and a hundred more in one.
        let arrivals = timeline((0..100).chain([55; 100])).arrivals();
        assert_eq!((arrivals.milliseconds, arrivals.mean), (100, 2.0));
        assert_eq!((arrivals.peak_1ms, arrivals.peak_10ms, arrivals.peak_100ms), (101, 110, 200));
        assert_eq!(arrivals.histogram[0], HistogramBar { from: 1, to: 1, milliseconds: 99 });
        assert_eq!(arrivals.histogram[6], HistogramBar { from: 64, to: 127, milliseconds: 1 });
        assert_eq!(arrivals.histogram.len(), 7, "from the first bar with something in it to the last");
    }

    #[test]
    fn silence_within_the_run_counts_and_silence_around_it_does_not() {
        let timeline = timeline([7, 9]);
        assert_eq!(timeline.counts(), [1, 0, 1]);
        let zero = HistogramBar { from: 0, to: 0, milliseconds: 1 };
        assert_eq!(timeline.arrivals().histogram, [zero, HistogramBar { from: 1, to: 1, milliseconds: 2 }]);
        assert_eq!(bars_text(&[zero]).trim_end().split("  ").last(), Some("#".repeat(50).as_str()));
    }

    #[test]
    fn an_arrival_from_another_lane_may_be_a_second_earlier_and_none_is_forgotten() {
        let timeline = timeline([2_000, 1_000, 999, 7_000, 6_999]);
        assert_eq!(timeline.counts().len(), 6_000);
        assert_eq!(timeline.arrivals().outside, 2, "a millisecond before the lead and one beyond the end");
    }

    #[test]
    fn an_empty_timeline_has_no_figures() {
        assert_eq!(Timeline::new(10).arrivals(), ArrivalSummary::default());
    }
}
