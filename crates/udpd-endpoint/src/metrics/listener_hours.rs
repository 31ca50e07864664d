//! The last hour of each listener: what arrived and what udpd lost of it, in steps of ten seconds.
//!
//! Its memory is bounded: 360 steps of two numbers for each of the first 64 listeners, 180 KiB in all, taken when a
//! listener is first seen. What nobody knows is null, and never 0.

use serde::Serialize;

use udpd_base::ledger::CounterTable;
use udpd_base::ledger::snapshot::{ListenerSnapshot, Snapshot};

/// How many seconds one place of an answer stands for, unless somebody asks for another number.
pub(super) const STEP_SECONDS: u64 = 10;

/// What stands for what is not known; no count of a step comes near it.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// An hour.
const STEPS: usize = 3600 / STEP_SECONDS as usize;

/// The most listeners that have an hour of their own: those that the configuration names first.
const LISTENERS_MAX: usize = 64;

/// What happened to one listener, by step.
#[derive(Debug)]
struct Row {
    name: String,
    last: [Option<u64>; 2],
    steps: Vec<[u32; 2]>,
}

/// The steps of all listeners, in a ring.
#[derive(Debug, Default)]
pub(super) struct ListenerHours {
    rows: Vec<Row>,
    /// When each step ends, in seconds since the process started.
    ends: Vec<u64>,
    current: usize,
    left_out: usize,
}

/// As JSON, the oldest step first.
#[derive(Debug, Serialize)]
pub(super) struct ListenersJson {
    end_seconds: Vec<u64>,
    /// Listeners beyond those that are shown.
    left_out: usize,
    listeners: Vec<RowJson>,
}

#[derive(Debug, Serialize)]
struct RowJson {
    name: String,
    arrived: Vec<Option<u32>>,
    lost: Vec<Option<u32>>,
}

impl ListenerHours {
    /// Takes what happened since the last reading.
    pub(super) fn record(&mut self, now: &Snapshot) {
        let step_ms = STEP_SECONDS * 1000;
        let end = ((now.uptime_seconds * 1000.0) as u64).div_ceil(step_ms) * STEP_SECONDS;
        if self.ends.get(self.current) != Some(&end) {
            self.begin(end);
        }
        self.left_out = now.listeners.len().saturating_sub(LISTENERS_MAX);
        for listener in now.listeners.iter().take(LISTENERS_MAX) {
            let read = [listener.arrived, lost(listener)];
            let Some(row) = self.rows.iter_mut().find(|row| row.name == listener.name) else {
                let mut steps = Vec::with_capacity(STEPS);
                steps.resize(self.ends.len(), [UNKNOWN; 2]);
                steps[self.current] = [0; 2];
                self.rows.push(Row { name: listener.name.clone(), last: read, steps });
                continue;
            };
            let before = std::mem::replace(&mut row.last, read);
            let place = &mut row.steps[self.current];
            for ((sum, now), before) in place.iter_mut().zip(read).zip(before) {
                let more = now.zip(before).map(|(now, before)| now.saturating_sub(before));
                *sum = match more {
                    Some(more) if *sum != UNKNOWN => {
                        sum.saturating_add(more.min(UNKNOWN.into()) as u32).min(UNKNOWN - 1)
                    }
                    _ => UNKNOWN,
                };
            }
        }
    }

    /// Goes on to the next step, which takes the place of the oldest once there are enough.
    fn begin(&mut self, end: u64) {
        if self.ends.len() < STEPS {
            self.ends.push(end);
            self.current = self.ends.len() - 1;
            self.rows.iter_mut().for_each(|row| row.steps.push([0; 2]));
            return;
        }
        self.current = (self.current + 1) % STEPS;
        self.ends[self.current] = end;
        self.rows.iter_mut().for_each(|row| row.steps[self.current] = [0; 2]);
    }

    pub(super) fn json(&self) -> ListenersJson {
        let oldest = if self.ends.len() < STEPS { 0 } else { self.current + 1 };
        let order = || (oldest..oldest + self.ends.len()).map(|place| place % self.ends.len());
        let column = |row: &Row, which: usize| {
            order().map(|place| Some(row.steps[place][which]).filter(|count| *count != UNKNOWN)).collect()
        };
        let row = |row: &Row| RowJson { name: row.name.clone(), arrived: column(row, 0), lost: column(row, 1) };
        ListenersJson {
            end_seconds: order().map(|place| self.ends[place]).collect(),
            left_out: self.left_out,
            listeners: self.rows.iter().map(row).collect(),
        }
    }
}

/// What udpd lost of a listener, wherever; without what the operator asked it to refuse.
fn lost(listener: &ListenerSnapshot) -> Option<u64> {
    let dropped = listener.counts.dropped.values().filter(|(counter, _)| !counter.is_quiet).map(|(_, count)| count);
    let at_sinks = listener.sinks.iter().map(|sink| sink.counts.dropped.total());
    listener.kernel_dropped.map(|kernel| kernel + dropped.chain(at_sinks).sum::<u64>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use udpd_base::ledger::testing::example;

    fn at(seconds: u64, queue_full: u64, names: &[&str]) -> Snapshot {
        let mut snapshot = example();
        snapshot.uptime_seconds = seconds as f64;
        let listener = |name: &&str| {
            let mut listener = snapshot.listeners[0].clone();
            listener.name = (*name).to_owned();
            listener.arrived = Some(seconds * 7);
            listener
        };
        let mut listeners: Vec<ListenerSnapshot> = names.iter().map(listener).collect();
        listeners[0].sinks[0].counts.dropped.queue_full += queue_full;
        snapshot.listeners = listeners;
        snapshot
    }

    #[test]
    fn the_loss_stands_with_its_listener_and_what_is_not_known_is_null() {
        let mut hours = ListenerHours::default();
        for (seconds, lost) in [(1, 0), (2, 0), (9, 40), (10, 40), (11, 45)] {
            hours.record(&at(seconds, lost, &["a", "b"]));
        }
        let mut blind = at(12, 45, &["a", "b"]);
        (blind.listeners[1].arrived, blind.listeners[1].kernel_dropped) = (None, None);
        hours.record(&blind);
        let expected = json!({
            "end_seconds": [10, 20], "left_out": 0,
            "listeners": [
                { "name": "a", "arrived": [63, 14], "lost": [40, 5] },
                { "name": "b", "arrived": [63, null], "lost": [0, null] },
            ],
        });
        assert_eq!(serde_json::to_value(hours.json()).expect("JSON"), expected);
    }

    #[test]
    fn its_memory_depends_neither_on_time_nor_on_the_number_of_listeners() {
        let names: Vec<String> = (0..300).map(|number| format!("l{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut hours = ListenerHours::default();
        (0..5000).step_by(10).for_each(|seconds| hours.record(&at(seconds, seconds, &names)));
        let held: usize = hours.rows.iter().map(|row| row.steps.capacity() * size_of::<[u32; 2]>()).sum();
        assert_eq!((hours.rows.len(), hours.left_out, held), (64, 236, 64 * 360 * 8));
        let json = serde_json::to_value(hours.json()).expect("JSON");
        let ends = json["end_seconds"].as_array().expect("a list");
        assert_eq!((ends.len(), &ends[0], &ends[359]), (360, &json!(1400), &json!(4990)));
        assert_eq!(json["listeners"][0]["lost"][359], json!(10));
    }
}
