//! How each sink fares: up, slow or down, since when, and what the log said of it last. The main thread compares the
//! ledger with the look before, once a second, so the answer does not depend on who looks at a page.
//!
//! A sink gets worse at once and better after some looks without a fault, so a destination that fails now and then does
//! not seem to come and go. Where nothing came for a sink, what was known of it stays.

use std::collections::BTreeMap;
use std::time::Duration;

use udpd_base::ledger::counter_list::SinkTally;
use udpd_base::ledger::snapshot::{SinkCondition, SinkStateSnapshot};
use udpd_base::ledger::{CounterTable as _, Snapshot};

/// After so many looks in a row that show a better state a sink has it.
const CALM_LOOKS: u32 = 5;

/// A line of the log may come so long before the state that it explains.
const EARLIER_SECONDS: f64 = 10.0;

#[derive(Debug, Default)]
pub struct SinkStateWatch {
    seen: BTreeMap<String, SeenSink>,
}

#[derive(Debug)]
struct SeenSink {
    counts: SinkCounts,
    state: SinkStateSnapshot,
    calm_looks: u32,
    /// The last try to upload a file has failed. The next may come much later.
    uploads_fail: bool,
}

/// Of all listeners of a sink together.
#[derive(Debug, Clone, Copy, Default)]
struct SinkCounts {
    delivered: u64,
    /// Lost, or put on the disk because the destination did not take it.
    kept_back: u64,
    queue_is_nearly_full: bool,
    uploaded: u64,
    upload_failures: u64,
}

impl SinkCounts {
    fn add(&mut self, tally: &SinkTally, (depth, capacity): (u64, u64)) {
        self.delivered += tally.delivered;
        self.kept_back += tally.dropped.total() + tally.spilled;
        self.queue_is_nearly_full |= capacity > 0 && depth.saturating_mul(5) >= capacity.saturating_mul(4);
    }

    /// `None` where nothing happened from which anything follows.
    fn condition(&self, before: &Self, is_stalled: bool) -> Option<SinkCondition> {
        let (delivers, keeps_back) = (self.delivered > before.delivered, self.kept_back > before.kept_back);
        match (delivers, keeps_back) {
            _ if is_stalled => Some(SinkCondition::Down),
            (false, true) => Some(SinkCondition::Down),
            (true, true) => Some(SinkCondition::Slow),
            _ if self.queue_is_nearly_full => Some(SinkCondition::Slow),
            (true, false) => Some(SinkCondition::Up),
            (false, false) => None,
        }
    }
}

impl SinkStateWatch {
    /// The state of each sink now, `now` seconds since 1970. `stalled`: those that take nothing, and for how long.
    pub fn look(
        &mut self,
        snapshot: &Snapshot,
        stalled: &BTreeMap<&str, Duration>,
        now: f64,
        last_line: impl Fn(&str) -> Option<(f64, String)>,
    ) -> BTreeMap<String, SinkStateSnapshot> {
        let mut found: BTreeMap<&str, SinkCounts> = BTreeMap::new();
        for sink in snapshot.listeners.iter().flat_map(|listener| &listener.sinks).filter(|sink| !sink.removed) {
            let counts = found.entry(&sink.name).or_default();
            counts.add(&sink.counts, (sink.queue_depth, sink.queue_capacity));
            if let Some(files) = &sink.files {
                counts.uploaded = counts.uploaded.max(files.counts.uploaded);
                counts.upload_failures = counts.upload_failures.max(files.counts.upload_failures);
            }
        }
        self.seen.retain(|name, _| found.contains_key(name.as_str()));
        for (name, counts) in found {
            let lasts = stalled.get(name).copied();
            let Some(seen) = self.seen.get_mut(name) else {
                let state = SinkStateSnapshot { name: SinkCondition::Up, since: now, error: None };
                self.seen.insert(name.to_owned(), SeenSink { counts, state, calm_looks: 0, uploads_fail: false });
                continue;
            };
            seen.uploads_fail = match (counts.upload_failures > seen.counts.upload_failures, counts.uploaded) {
                (true, _) => true,
                (false, uploaded) => seen.uploads_fail && uploaded == seen.counts.uploaded,
            };
            let fails_to_upload = seen.uploads_fail.then_some(SinkCondition::Slow);
            let condition = counts.condition(&seen.counts, lasts.is_some()).max(fails_to_upload);
            seen.counts = counts;
            seen.note(condition, now - lasts.unwrap_or_default().as_secs_f64());
            let line = last_line(name).filter(|(at, _)| *at >= seen.state.since - EARLIER_SECONDS);
            seen.state.error = line.filter(|_| seen.state.name != SinkCondition::Up).map(|(_, text)| text);
        }
        self.seen.iter().map(|(name, seen)| (name.clone(), seen.state.clone())).collect()
    }
}

impl SeenSink {
    fn note(&mut self, condition: Option<SinkCondition>, since: f64) {
        let Some(condition) = condition else { return };
        let is_better = condition < self.state.name;
        self.calm_looks = if is_better { self.calm_looks + 1 } else { 0 };
        if condition > self.state.name || self.calm_looks >= CALM_LOOKS {
            (self.state.name, self.state.since, self.calm_looks) = (condition, since, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::ledger::testing::example;

    /// The states at one look a second of what a sink has delivered and lost, and whether it stands still.
    fn states(looks: &[(u64, u64, bool)]) -> Vec<(SinkCondition, f64)> {
        let mut watch = SinkStateWatch::default();
        let look = |(second, &(delivered, lost, is_stalled)): (usize, &(u64, u64, bool))| {
            let mut snapshot = example();
            let counts = &mut snapshot.listeners[0].sinks[0].counts;
            (counts.delivered, counts.dropped.sink_error) = (delivered, lost);
            let stalled = is_stalled.then_some(("archive", Duration::from_secs(4)));
            let line = |_: &str| Some((second as f64, "no route".to_owned()));
            let found = watch.look(&snapshot, &stalled.into_iter().collect(), 100.0 + second as f64, line);
            (found["archive"].name, found["archive"].since)
        };
        looks.iter().enumerate().map(look).collect()
    }

    #[test]
    fn a_sink_that_only_fails_is_down_one_that_fails_in_part_is_slow_and_calm_looks_bring_it_up() {
        use SinkCondition::{Down, Slow, Up};
        let found = states(&[(1, 0, false), (2, 0, false), (2, 5, false), (2, 5, false), (3, 6, false), (4, 6, false)]);
        assert_eq!(found, [(Up, 100.0), (Up, 100.0), (Down, 102.0), (Down, 102.0), (Down, 102.0), (Down, 102.0)]);
        let calm: Vec<(u64, u64, bool)> = (0..8).map(|look| (look, u64::from(look > 0), false)).collect();
        let found = states(&calm);
        assert_eq!((found[1], found[5], found[6]), ((Slow, 101.0), (Slow, 101.0), (Up, 106.0)));
    }

    #[test]
    fn a_sink_that_stands_still_is_down_since_it_does_and_without_datagrams_a_state_stays() {
        let found = states(&[(1, 0, false), (1, 0, true), (1, 0, false), (1, 0, false)]);
        assert_eq!(found[1..], [(SinkCondition::Down, 97.0); 3]);
    }

    #[test]
    fn a_sink_that_cannot_upload_its_files_is_slow_until_one_has_got_there() {
        let mut watch = SinkStateWatch::default();
        let mut look = |second: u64, failures, uploaded| {
            let mut snapshot = example();
            let sink = &mut snapshot.listeners[0].sinks[0];
            sink.counts.delivered = second;
            let counts = &mut sink.files.get_or_insert_default().counts;
            (counts.upload_failures, counts.uploaded) = (failures, uploaded);
            watch.look(&snapshot, &BTreeMap::new(), second as f64, |_| None)["archive"].name
        };
        assert_eq!((look(1, 0, 0), look(2, 1, 0)), (SinkCondition::Up, SinkCondition::Slow));
        assert!((3..30).all(|second| look(second, 1, 0) == SinkCondition::Slow), "between two tries");
        let found: Vec<SinkCondition> = (30..35).map(|second| look(second, 1, 1)).collect();
        assert_eq!((found[3], found[4]), (SinkCondition::Slow, SinkCondition::Up));
    }

    #[test]
    fn the_last_line_of_the_log_stands_beside_a_state_that_it_explains() {
        let mut watch = SinkStateWatch::default();
        let mut look = |lost, at, line: f64| {
            let mut snapshot = example();
            snapshot.listeners[0].sinks[0].counts.dropped.sink_error = lost;
            let found = watch.look(&snapshot, &BTreeMap::new(), at, |_| Some((line, "no route".to_owned())));
            found["archive"].error.clone()
        };
        assert_eq!((look(0, 100.0, 100.0), look(5, 101.0, 80.0)), (None, None), "up, and a line of long ago");
        assert_eq!(look(9, 102.0, 95.0), Some("no route".to_owned()));
    }
}
