//! Arrivals per millisecond: bursts are what fills a buffer, and averages hide them.
//!
//! One counter for each millisecond of the run, allocated at start for as long as the run may take; pages of
//! milliseconds that never come are never touched.

use serde::Serialize;

/// Lanes are read one after the other, so an earlier arrival than the first may still come: by this much at most.
const LEAD_MS: u64 = 1_000;

/// The longest time that is kept: an hour.
pub const KEPT_MS_MAX: u64 = 3_600_000;

/// Counts of arrivals by millisecond.
#[derive(Debug, Clone)]
pub struct Timeline {
    begin_ms: Option<u64>,
    counts: Vec<u32>,
    outside: u64,
}

/// What the timeline comes to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Arrivals {
    /// Milliseconds from the first arrival to the last, both included.
    pub milliseconds: u64,
    pub mean: f64,
    /// The most in a millisecond.
    pub peak_1ms: u64,
    /// The most in ten milliseconds, counted from the first.
    pub peak_10ms: u64,
    /// The most in a hundred milliseconds, counted from the first.
    pub peak_100ms: u64,
    /// Arrivals outside of the time that is kept: they are in none of these figures.
    pub outside: u64,
    /// How many milliseconds had how many arrivals.
    pub histogram: Vec<Bar>,
}

/// A bar of the histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bar {
    pub from: u64,
    /// The most.
    pub to: u64,
    /// How many milliseconds had as many.
    pub milliseconds: u64,
}

impl Timeline {
    /// Room for `kept_ms`, an hour at most.
    pub fn new(kept_ms: u64) -> Self {
        let length = LEAD_MS + kept_ms.min(KEPT_MS_MAX);
        Self { begin_ms: None, counts: vec![0; usize::try_from(length).unwrap_or(0)], outside: 0 }
    }

    /// One arrival, at a time on any clock that does not go back by more than a second.
    pub fn record(&mut self, arrival_ns: u64) {
        let arrival_ms = arrival_ns / 1_000_000;
        let begin_ms = *self.begin_ms.get_or_insert(arrival_ms.saturating_sub(LEAD_MS));
        let place = arrival_ms.checked_sub(begin_ms).and_then(|place| usize::try_from(place).ok());
        match place.and_then(|place| self.counts.get_mut(place)) {
            Some(count) => *count += 1,
            None => self.outside += 1,
        }
    }

    /// The counts from the first millisecond with an arrival to the last.
    pub fn counts(&self) -> &[u32] {
        let first = self.counts.iter().position(|count| *count > 0);
        let last = self.counts.iter().rposition(|count| *count > 0);
        first.zip(last).map_or(&[], |(first, last)| &self.counts[first..=last])
    }

    pub fn arrivals(&self) -> Arrivals {
        let counts = self.counts();
        let peak = |width: usize| counts.chunks(width).map(|part| part.iter().map(|&one| u64::from(one)).sum()).max();
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        Arrivals {
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
fn histogram(counts: &[u32]) -> Vec<Bar> {
    let bar = |power: u32| match power {
        0 => Bar { from: 0, to: 0, milliseconds: 0 },
        _ => Bar { from: 1 << (power - 1), to: (1 << power) - 1, milliseconds: 0 },
    };
    let mut bars: Vec<Bar> = (0..=u32::BITS).map(bar).collect();
    for count in counts {
        bars[(u32::BITS - count.leading_zeros()) as usize].milliseconds += 1;
    }
    let is_used = |bar: &Bar| bar.milliseconds > 0;
    let last = bars.iter().rposition(is_used).map_or(0, |last| last + 1);
    bars.truncate(last);
    let first = bars.iter().position(is_used).unwrap_or(0);
    bars.split_off(first)
}

pub fn bars_text(bars: &[Bar]) -> String {
    const WIDTH: u64 = 50;
    let most = bars.iter().map(|bar| bar.milliseconds).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for Bar { from, to, milliseconds } in bars {
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
        assert_eq!(arrivals.histogram[0], Bar { from: 1, to: 1, milliseconds: 99 });
        assert_eq!(arrivals.histogram[6], Bar { from: 64, to: 127, milliseconds: 1 });
        assert_eq!(arrivals.histogram.len(), 7, "from the first bar with something in it to the last");
    }

    #[test]
    fn silence_within_the_run_counts_and_silence_around_it_does_not() {
        let timeline = timeline([7, 9]);
        assert_eq!(timeline.counts(), [1, 0, 1]);
        let zero = Bar { from: 0, to: 0, milliseconds: 1 };
        assert_eq!(timeline.arrivals().histogram, [zero, Bar { from: 1, to: 1, milliseconds: 2 }]);
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
        assert_eq!(Timeline::new(10).arrivals(), Arrivals::default());
    }
}
