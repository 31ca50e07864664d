//! The last hour, a point a second: how much arrived and was delivered, what was lost in which layer, and how full
//! buffers and queues were. All listeners together, so that its size depends on nothing.
//!
//! Its memory is taken at start and never grows: 3,600 points in a ring. A point is what happened between two readings
//! of the ledger, with the time between them, so a rate is right also where a second was longer. What nobody knows is
//! null, and never 0.

use serde::Serialize;

use crate::ledger::snapshot::{ListenerSnapshot, SinkSnapshot};
use crate::ledger::{Snapshot, Table};

/// An hour.
const POINTS: usize = 3600;

/// How many seconds one place of an answer stands for, unless somebody asks for another number.
pub(super) const STEP_SECONDS: u64 = 10;

/// What stands for what is not known; no count of a second comes near it.
const UNKNOWN: u32 = u32::MAX;

/// How the points of several seconds become one.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Max,
}

/// One series: its key, how its points are folded, and how it is read.
struct Series {
    key: &'static str,
    fold: Fold,
    /// Counts since the start, whose differences are the points; or levels, which are the points.
    read: fn(&Snapshot) -> Option<u64>,
}

const fn sum(key: &'static str, read: fn(&Snapshot) -> Option<u64>) -> Series {
    Series { key, fold: Fold::Sum, read }
}

const fn max(key: &'static str, read: fn(&Snapshot) -> Option<u64>) -> Series {
    Series { key, fold: Fold::Max, read }
}

const SERIES: [Series; 9] = [
    sum("arrived", |now| of_listeners(now, |listener| listener.arrived)),
    sum("delivered", |now| of_sinks(now, |sink| sink.counts.delivered)),
    sum("lost_socket", |now| of_listeners(now, |listener| listener.kernel_dropped)),
    sum("lost_listener", |now| of_listeners(now, |listener| Some(lost_by(listener, false)))),
    // Denied and limited: lost because the operator asked for it.
    sum("refused", |now| of_listeners(now, |listener| Some(lost_by(listener, true)))),
    sum("lost_queue", |now| of_sinks(now, |sink| sink.counts.dropped.queue_full)),
    sum("lost_sink", |now| of_sinks(now, |sink| sink.counts.dropped.sink_error)),
    max("buffer_fill_permille", |now| {
        let lanes = now.listeners.iter().flat_map(|listener| &listener.lanes);
        lanes.map(|lane| permille(lane.receive_buffer_used_bytes, lane.receive_buffer_bytes)).max()
    }),
    max("queue_fill_permille", |now| {
        let sinks = now.listeners.iter().flat_map(|listener| &listener.sinks);
        sinks.map(|sink| permille(sink.queue_depth, sink.queue_capacity)).max()
    }),
];

fn of_listeners(now: &Snapshot, read: impl Fn(&ListenerSnapshot) -> Option<u64>) -> Option<u64> {
    now.listeners.iter().map(read).sum()
}

fn of_sinks(now: &Snapshot, read: impl Fn(&SinkSnapshot) -> u64) -> Option<u64> {
    Some(now.listeners.iter().flat_map(|listener| &listener.sinks).map(read).sum())
}

fn lost_by(listener: &ListenerSnapshot, wanted: bool) -> u64 {
    listener.counts.dropped.values().filter(|(counter, _)| counter.is_quiet == wanted).map(|(_, count)| count).sum()
}

fn permille(used: u64, all: u64) -> u64 {
    used.saturating_mul(1000).checked_div(all).unwrap_or(0).min(1000)
}

/// What happened between two readings.
#[derive(Clone, Copy)]
struct Point {
    /// When it ended, since the process started.
    end_ms: u64,
    length_ms: u32,
    values: [u32; SERIES.len()],
}

/// The ring and what its next point begins with.
#[derive(Debug)]
pub(super) struct History {
    points: Ring,
    last: Option<Reading>,
}

struct Ring {
    points: Vec<Point>,
    /// Where the next one goes once all places are taken.
    next: usize,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Ring({} points)", self.points.len())
    }
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at_ms: u64,
    values: [Option<u64>; SERIES.len()],
}

/// The history as JSON: a place in each column for every step, oldest first.
#[derive(Debug, Serialize)]
struct Columns {
    uptime_seconds: f64,
    step_seconds: u64,
    /// When each step ended, in seconds since the process started.
    end_seconds: Vec<u64>,
    /// How much of the step was seen.
    seen_seconds: Vec<f64>,
    series: serde_json::Map<String, serde_json::Value>,
}

impl History {
    pub(super) fn new() -> Self {
        Self { points: Ring { points: Vec::with_capacity(POINTS), next: 0 }, last: None }
    }

    /// Takes the next point.
    pub(super) fn record(&mut self, now: &Snapshot) {
        let reading =
            Reading { at_ms: (now.uptime_seconds * 1000.0) as u64, values: SERIES.map(|series| (series.read)(now)) };
        if let Some(last) = self.last.replace(reading) {
            self.points.push(point(&last, &reading));
        }
    }

    /// The last hour in steps of so many seconds.
    pub(super) fn json(&self, step_seconds: u64) -> String {
        let step_ms = step_seconds.max(1) * 1000;
        let mut ends: Vec<u64> = Vec::new();
        let mut seen: Vec<u64> = Vec::new();
        let mut columns: [Vec<u64>; SERIES.len()] = Default::default();
        let mut known: [Vec<bool>; SERIES.len()] = Default::default();
        for point in self.points.in_order() {
            let end = point.end_ms.div_ceil(step_ms) * step_ms / 1000;
            if ends.last() != Some(&end) {
                ends.push(end);
                seen.push(0);
                columns.iter_mut().for_each(|column| column.push(0));
                known.iter_mut().for_each(|column| column.push(true));
            }
            *seen.last_mut().expect("just pushed") += u64::from(point.length_ms);
            for (place, value) in point.values.into_iter().enumerate() {
                let (Some(folded), Some(is_known)) = (columns[place].last_mut(), known[place].last_mut()) else {
                    continue;
                };
                *is_known &= value != UNKNOWN;
                *folded = match SERIES[place].fold {
                    Fold::Sum => folded.saturating_add(value.into()),
                    Fold::Max => (*folded).max(value.into()),
                };
            }
        }
        let series = SERIES.iter().zip(columns.iter().zip(&known)).map(|(series, (column, known))| {
            let values = column.iter().zip(known).map(|(value, known)| known.then_some(*value).into());
            (series.key.to_owned(), serde_json::Value::Array(values.collect()))
        });
        let columns = Columns {
            uptime_seconds: self.last.map_or(0.0, |last| last.at_ms as f64 / 1000.0),
            step_seconds: step_ms / 1000,
            end_seconds: ends,
            seen_seconds: seen.into_iter().map(|ms| ms as f64 / 1000.0).collect(),
            series: series.collect(),
        };
        serde_json::to_string(&columns).unwrap_or_default()
    }
}

fn point(before: &Reading, now: &Reading) -> Point {
    let values = std::array::from_fn(|place| {
        let value = match SERIES[place].fold {
            Fold::Sum => now.values[place].zip(before.values[place]).map(|(now, before)| now.saturating_sub(before)),
            Fold::Max => now.values[place],
        };
        value.map_or(UNKNOWN, |value| u32::try_from(value).unwrap_or(UNKNOWN - 1).min(UNKNOWN - 1))
    });
    let length_ms = u32::try_from(now.at_ms.saturating_sub(before.at_ms)).unwrap_or(u32::MAX);
    Point { end_ms: now.at_ms, length_ms, values }
}

impl Ring {
    fn push(&mut self, point: Point) {
        if self.points.len() < POINTS {
            self.points.push(point);
        } else {
            self.points[self.next] = point;
            self.next = (self.next + 1) % POINTS;
        }
    }

    /// From the oldest on.
    fn in_order(&self) -> impl Iterator<Item = &Point> {
        let (newer, older) = self.points.split_at(self.next);
        older.iter().chain(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::example;
    use serde_json::{Value, json};

    fn at(seconds: f64, arrived: Option<u64>, used: u64) -> Snapshot {
        let mut snapshot = example();
        snapshot.uptime_seconds = seconds;
        snapshot.listeners[0].arrived = arrived;
        snapshot.listeners[0].lanes.truncate(1);
        snapshot.listeners[0].lanes[0].receive_buffer_used_bytes = used;
        snapshot
    }

    fn json_of(history: &History, step: u64) -> Value {
        serde_json::from_str(&history.json(step)).unwrap()
    }

    #[test]
    fn counts_are_added_over_a_step_levels_are_its_highest_and_what_is_not_known_is_null() {
        let mut history = History::new();
        let half = example().listeners[0].lanes[0].receive_buffer_bytes / 2;
        for (seconds, arrived, used) in [
            (7.5, Some(1_000), 0),
            (8.5, Some(1_010), half),
            (9.5, Some(1_030), 0),
            (10.5, Some(1_060), 0),
            (12.5, None, 0),
        ] {
            history.record(&at(seconds, arrived, used));
        }
        let found = json_of(&history, 5);
        assert_eq!(found["end_seconds"], json!([10, 15]));
        assert_eq!(found["seen_seconds"], json!([2.0, 3.0]));
        assert_eq!(found["series"]["arrived"], json!([30, null]));
        assert_eq!(found["series"]["buffer_fill_permille"], json!([500, 0]));
        assert_eq!(found["series"]["lost_queue"], json!([0, 0]));
        assert_eq!(found["uptime_seconds"], json!(12.5));
    }

    #[test]
    fn it_keeps_an_hour_in_the_memory_that_it_took_at_start() {
        let mut history = History::new();
        let capacity = history.points.points.capacity();
        for second in 0..10_000_u64 {
            history.record(&at(second as f64, Some(second * 7), 0));
        }
        assert_eq!(history.points.points.capacity(), capacity);
        let found = json_of(&history, 1);
        let ends = found["end_seconds"].as_array().unwrap();
        assert_eq!((ends.len(), &ends[0], &ends[3599]), (3600, &json!(6400), &json!(9999)));
        assert!(found["series"]["arrived"].as_array().unwrap().iter().all(|count| *count == json!(7)));
    }
}
