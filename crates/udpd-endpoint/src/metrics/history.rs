//! The last hour, for the page.
//!
//! Of all listeners together, a point a second: how much arrived and was delivered, what was lost in which layer, how
//! full buffers and queues were, how long datagrams stayed, and what the host dropped before its sockets. The ring of
//! points is taken at start and never grows: 3,600 of 64 bytes, 225 KiB. Beside it stands the latest residence of each
//! sink, as many as are configured. A point is what happened between two readings of the ledger, with the time between
//! them, so a rate is right also where a second was longer.
//!
//! Of each listener, in steps of ten seconds: what arrived and what udpd lost of it. That is 360 steps of two numbers
//! for each of the first 64 listeners, 180 KiB in all, taken when a listener is first seen.
//!
//! Starts and reloads of the hour stand beside it. Where days are kept (`days`), each point is added to its minute.
//!
//! What is not known is null, and never 0.

use std::collections::VecDeque;

use serde::Serialize;

use super::days::DayHistory;
use hostloss::KernelLayer;
use udpd_base::ledger::snapshot::{ListenerSnapshot, SinkSnapshot};
use udpd_base::ledger::{CounterTable, ResidenceSnapshot, Snapshot};
use udpd_base::seams::clock;

const POINTS: usize = 3600;

/// What stands for a residence beyond the last bucket, 700 s: a little more than any that is told.
const LONGER_MICROS: u64 = 701_000_000;

/// How the points of several seconds become one.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Max,
    /// The highest of those that are known: a second in which nothing was measured hides no other.
    MaxKnown,
}

/// One series: its key, how its points are folded, and how it is read.
pub(super) struct Series {
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

pub(super) const SERIES: [Series; 12] = [
    sum("arrived", |now| of_listeners(now, |listener| listener.arrived)),
    sum("delivered", |now| of_sinks(now, |sink| sink.counts.delivered)),
    sum("lost_socket", |now| of_listeners(now, |listener| listener.kernel_dropped)),
    sum("lost_listener", |now| of_listeners(now, |listener| Some(lost_by(listener, false)))),
    // Denied and limited: lost because the operator asked for it.
    sum("refused", |now| of_listeners(now, |listener| Some(lost_by(listener, true)))),
    sum("lost_queue", |now| of_sinks(now, |sink| sink.counts.dropped.queue_full)),
    sum("lost_sink", |now| of_sinks(now, |sink| sink.counts.dropped.by_destination())),
    max("buffer_fill_permille", |now| {
        let lanes = now.listeners.iter().flat_map(|listener| &listener.lanes);
        lanes.map(|lane| permille(lane.receive_buffer_used_bytes, lane.receive_buffer_bytes)).max()
    }),
    max("queue_fill_permille", |now| {
        let sinks = now.listeners.iter().flat_map(|listener| &listener.sinks);
        sinks.map(|sink| permille(sink.queue_depth, sink.queue_capacity)).max()
    }),
    // Of any protocol: packets that the card, or the kernel before the sockets, dropped.
    sum("host_nic", |now| of_host(now, |layer| layer == KernelLayer::Nic)),
    sum("host_kernel", |now| {
        of_host(now, |layer| matches!(layer, KernelLayer::Softnet | KernelLayer::Conntrack | KernelLayer::Ip))
    }),
    // What its name says is read in `record`, which knows the reading before.
    Series { key: "residence_p99_micros", fold: Fold::MaxKnown, read: |_| None },
];

/// The place of the last series.
const RESIDENCE: usize = SERIES.len() - 1;

fn of_listeners(now: &Snapshot, read: impl Fn(&ListenerSnapshot) -> Option<u64>) -> Option<u64> {
    now.listeners.iter().map(read).sum()
}

fn of_sinks(now: &Snapshot, read: impl Fn(&SinkSnapshot) -> u64) -> Option<u64> {
    Some(now.listeners.iter().flat_map(|listener| &listener.sinks).map(read).sum())
}

/// Not known before the host has been looked at.
fn of_host(now: &Snapshot, is_asked_for: fn(KernelLayer) -> bool) -> Option<u64> {
    let lost = now.host.lost.lost.iter().filter(|loss| is_asked_for(loss.layer)).map(|loss| loss.count).sum();
    (!now.host.nic.is_empty() || !now.host.softnet.is_empty()).then_some(lost)
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

/// Several points as one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FoldedPoint {
    pub seen_ms: u64,
    pub values: [Option<u64>; SERIES.len()],
}

impl Default for FoldedPoint {
    fn default() -> Self {
        let nothing = |place: usize| (!matches!(SERIES[place].fold, Fold::MaxKnown)).then_some(0);
        Self { seen_ms: 0, values: std::array::from_fn(nothing) }
    }
}

impl FoldedPoint {
    pub(super) fn add(&mut self, other: &Self) {
        self.seen_ms += other.seen_ms;
        for ((series, own), more) in SERIES.iter().zip(&mut self.values).zip(other.values) {
            *own = match series.fold {
                Fold::Sum => own.zip(more).map(|(own, more)| own.saturating_add(more)),
                Fold::Max => own.zip(more).map(|(own, more)| own.max(more)),
                Fold::MaxKnown => (*own).max(more),
            };
        }
    }
}

impl From<&Point> for FoldedPoint {
    fn from(point: &Point) -> Self {
        let known = |value: u32| (value != UNKNOWN).then_some(value.into());
        Self { seen_ms: point.length_ms.into(), values: point.values.map(known) }
    }
}

/// A moment that explains what the charts show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HistoryMark {
    /// Seconds since 1970.
    pub at: f64,
    /// "start", "restart" (after another process), "reload" or "reload_refused".
    pub what: &'static str,
    /// What a reload has done.
    pub text: String,
}

/// The most marks of an hour that are kept.
const MARKS: usize = 60;

/// The ring and what its next point begins with.
#[derive(Debug)]
pub(super) struct HourHistory {
    points: PointRing,
    marks: VecDeque<HistoryMark>,
    /// The last days, where the configuration asks for them.
    days: Option<DayHistory>,
    last: Option<HistoryReading>,
    reloaded_at: Option<f64>,
    /// What the latest reading had measured since the start, by sink.
    residence: Vec<(String, ResidenceSnapshot)>,
    listeners: ListenerHours,
}

struct PointRing {
    points: Vec<Point>,
    /// Where the next one goes once all places are taken.
    next: usize,
}

impl std::fmt::Debug for PointRing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PointRing({} points)", self.points.len())
    }
}

#[derive(Debug, Clone, Copy)]
struct HistoryReading {
    at_ms: u64,
    values: [Option<u64>; SERIES.len()],
}

/// The history as JSON: a place in each column for every step, oldest first.
#[derive(Debug, Serialize)]
struct Columns {
    /// Of this answer, in seconds since 1970.
    now: f64,
    uptime_seconds: f64,
    step_seconds: u64,
    /// How many days are kept; null where only the hour is.
    days_kept: Option<u32>,
    marks: Vec<HistoryMark>,
    /// When each step ended, in seconds since the process started, or of days, since 1970.
    end_seconds: Vec<u64>,
    /// How much of the step was seen.
    seen_seconds: Vec<f64>,
    series: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_listener: Option<ListenersJson>,
}

impl HourHistory {
    pub(super) fn new(days: Option<DayHistory>) -> Self {
        let points = PointRing { points: Vec::with_capacity(POINTS), next: 0 };
        let marks = VecDeque::with_capacity(MARKS);
        let (last, reloaded_at) = (None, None);
        Self { points, marks, days, last, reloaded_at, residence: Vec::new(), listeners: ListenerHours::default() }
    }

    /// Takes the next point.
    pub(super) fn record(&mut self, now: &Snapshot) {
        let mut values = SERIES.map(|series| (series.read)(now));
        values[RESIDENCE] = self.slowest(now);
        self.listeners.record(now);
        let started = clock::seconds_since_1970() - now.uptime_seconds;
        self.mark(now, started);
        let reading = HistoryReading { at_ms: (now.uptime_seconds * 1000.0) as u64, values };
        if let Some(last) = self.last.replace(reading) {
            let point = point(&last, &reading);
            if let Some(days) = &mut self.days {
                let reload = now.last_reload.as_ref().map(|reload| (reload.at, reload.done));
                days.add(&FoldedPoint::from(&point), started, reload);
            }
            self.points.push(point);
        }
    }

    /// Notes a start or a reload that is new.
    fn mark(&mut self, now: &Snapshot, started: f64) {
        let mut add = |mark| {
            if self.marks.len() == MARKS {
                self.marks.pop_front();
            }
            self.marks.push_back(mark);
        };
        if self.last.is_none() {
            let what = if now.before.is_some() { "restart" } else { "start" };
            add(HistoryMark { at: started, what, text: String::new() });
        }
        let Some(reload) = &now.last_reload else { return };
        if self.reloaded_at.replace(reload.at) != Some(reload.at) {
            let what = if reload.done { "reload" } else { "reload_refused" };
            add(HistoryMark { at: reload.at, what, text: reload.text.clone() });
        }
    }

    /// Within how many microseconds 99 of 100 datagrams went through the slowest sink since the last reading; `None`
    /// where no batch was measured.
    fn slowest(&mut self, now: &Snapshot) -> Option<u64> {
        let sinks = now.listeners.iter().flat_map(|listener| &listener.sinks);
        let mut measured: Vec<(String, ResidenceSnapshot)> =
            sinks.filter_map(|sink| Some((sink.name.clone(), sink.residence.clone()?))).collect();
        // A sink of several listeners stands under each.
        measured.sort_by(|(one, _), (other, _)| one.cmp(other));
        measured.dedup_by(|(one, _), (other, _)| one == other);
        let since = measured.iter().filter_map(|(name, residence)| {
            let before = self.residence.iter().find(|(other, _)| other == name);
            before.map_or(Some(residence.clone()), |(_, before)| residence.since(before))
        });
        let micros = |since: ResidenceSnapshot| {
            since.p99_seconds.map_or(LONGER_MICROS, |seconds| (seconds * 1e6).round() as u64)
        };
        let slowest = since.map(micros).max();
        self.residence = measured;
        slowest
    }

    /// The last hour in steps of so many seconds.
    pub(super) fn json(&self, step_seconds: u64) -> String {
        let step_ms = step_seconds.max(1) * 1000;
        let mut steps: Vec<(u64, FoldedPoint)> = Vec::new();
        for point in self.points.in_order() {
            let end = point.end_ms.div_ceil(step_ms) * step_ms / 1000;
            if steps.last().is_none_or(|(last, _)| *last != end) {
                steps.push((end, FoldedPoint::default()));
            }
            steps.last_mut().expect("just pushed").1.add(&point.into());
        }
        let hour_ago = clock::seconds_since_1970() - 3600.0;
        let marks = self.marks.iter().filter(|mark| mark.at > hour_ago).cloned().collect();
        self.columns(step_ms / 1000, &steps, marks, Some(self.listeners.json()))
    }

    /// The last days, as far as they are kept, in steps of so many minutes.
    pub(super) fn json_of_days(&self, days: u64, step_minutes: u64) -> String {
        let kept = self.days.as_ref().map(|kept| (kept.steps(days * 1440, step_minutes), kept.marks(days * 1440)));
        let (steps, marks) = kept.unwrap_or_default();
        self.columns(step_minutes * 60, &steps, marks, None)
    }

    fn columns(
        &self,
        step_seconds: u64,
        steps: &[(u64, FoldedPoint)],
        marks: Vec<HistoryMark>,
        by_listener: Option<ListenersJson>,
    ) -> String {
        let series = SERIES.iter().enumerate().map(|(place, series)| {
            let values = steps.iter().map(|(_, point)| point.values[place].into());
            (series.key.to_owned(), serde_json::Value::Array(values.collect()))
        });
        let columns = Columns {
            now: clock::seconds_since_1970(),
            uptime_seconds: self.last.map_or(0.0, |last| last.at_ms as f64 / 1000.0),
            step_seconds,
            days_kept: self.days.as_ref().map(DayHistory::days),
            marks,
            end_seconds: steps.iter().map(|(end, _)| *end).collect(),
            seen_seconds: steps.iter().map(|(_, point)| point.seen_ms as f64 / 1000.0).collect(),
            series: series.collect(),
            by_listener,
        };
        serde_json::to_string(&columns).unwrap_or_default()
    }
}

fn point(before: &HistoryReading, now: &HistoryReading) -> Point {
    let values = std::array::from_fn(|place| {
        let value = match SERIES[place].fold {
            Fold::Sum => now.values[place].zip(before.values[place]).map(|(now, before)| now.saturating_sub(before)),
            Fold::Max | Fold::MaxKnown => now.values[place],
        };
        value.map_or(UNKNOWN, |value| u32::try_from(value).unwrap_or(UNKNOWN - 1).min(UNKNOWN - 1))
    });
    let length_ms = u32::try_from(now.at_ms.saturating_sub(before.at_ms)).unwrap_or(u32::MAX);
    Point { end_ms: now.at_ms, length_ms, values }
}

impl PointRing {
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

/// How many seconds one place of an answer stands for, unless the client asks for another number.
pub(super) const STEP_SECONDS: u64 = 10;

/// What stands for what is not known; no count of a step comes near it.
pub(super) const UNKNOWN: u32 = u32::MAX;

const STEPS: usize = 3600 / STEP_SECONDS as usize;

/// The most listeners that have an hour of their own: those that the configuration names first.
const LISTENERS_MAX: usize = 64;

/// What happened to one listener, by step.
#[derive(Debug)]
struct ListenerHour {
    name: String,
    last: [Option<u64>; 2],
    steps: Vec<[u32; 2]>,
}

/// The steps of all listeners, in a ring.
#[derive(Debug, Default)]
pub(super) struct ListenerHours {
    rows: Vec<ListenerHour>,
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
    listeners: Vec<ListenerHourJson>,
}

#[derive(Debug, Serialize)]
struct ListenerHourJson {
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
                self.rows.push(ListenerHour { name: listener.name.clone(), last: read, steps });
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
        let column = |row: &ListenerHour, which: usize| {
            order().map(|place| Some(row.steps[place][which]).filter(|count| *count != UNKNOWN)).collect()
        };
        let row = |row: &ListenerHour| ListenerHourJson {
            name: row.name.clone(),
            arrived: column(row, 0),
            lost: column(row, 1),
        };
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
    use std::time::Duration;

    use super::*;
    use serde_json::{Value, json};
    use udpd_base::ledger::ResidenceTally;
    use udpd_base::ledger::testing::example;

    fn at(seconds: f64, arrived: Option<u64>, used: u64) -> Snapshot {
        let mut snapshot = example();
        snapshot.uptime_seconds = seconds;
        snapshot.listeners[0].arrived = arrived;
        snapshot.listeners[0].lanes.truncate(1);
        snapshot.listeners[0].lanes[0].receive_buffer_used_bytes = used;
        snapshot
    }

    fn json_of(history: &HourHistory, step: u64) -> Value {
        serde_json::from_str(&history.json(step)).unwrap()
    }

    #[test]
    fn counts_are_added_over_a_step_levels_are_its_highest_and_what_is_not_known_is_null() {
        let mut history = HourHistory::new(None);
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
    fn a_start_and_each_reload_are_marks_and_each_stands_once() {
        let mut history = HourHistory::new(None);
        let reload = |at, done| udpd_base::ledger::snapshot::ReloadSnapshot { at, done, text: "in force".to_owned() };
        let now = clock::seconds_since_1970();
        for (second, reload) in [(1.0, None), (2.0, Some(reload(now, true))), (3.0, Some(reload(now, true)))] {
            history.record(&Snapshot { last_reload: reload, ..at(second, Some(0), 0) });
        }
        history.record(&Snapshot { last_reload: Some(reload(now + 1.0, false)), ..at(4.0, Some(0), 0) });
        let found = json_of(&history, 10);
        let marks: Vec<&str> =
            found["marks"].as_array().unwrap().iter().map(|mark| mark["what"].as_str().unwrap()).collect();
        assert_eq!(marks, ["restart", "reload", "reload_refused"]);
        assert_eq!((&found["days_kept"], &found["marks"][1]["text"]), (&json!(null), &json!("in force")));
        assert!((found["marks"][0]["at"].as_f64().unwrap() - now + 1.0).abs() < 60.0);
    }

    #[test]
    fn the_residence_of_a_step_is_that_of_its_slowest_second_and_not_of_the_whole_life() {
        let mut history = HourHistory::new(None);
        let mut tally = ResidenceTally::default();
        for (seconds, micros, datagrams) in [(1.0, 100, 1000), (2.0, 40_000, 1000), (3.0, 100, 0), (11.0, 100, 10)] {
            tally.observe(Duration::from_micros(micros), datagrams);
            let mut snapshot = at(seconds, Some(0), 0);
            snapshot.listeners[0].sinks[0].residence = tally.read();
            history.record(&snapshot);
        }
        assert_eq!(json_of(&history, 10)["series"]["residence_p99_micros"], json!([50_000, 100]));
        history.record(&at(21.0, Some(0), 0));
        assert_eq!(json_of(&history, 10)["series"]["residence_p99_micros"], json!([50_000, 100, null]));
        // Beyond the last bucket it is told as a little longer than that.
        for (seconds, stayed) in [(31.0, 700), (41.0, 800)] {
            tally.observe(Duration::from_secs(stayed), 1000);
            let mut snapshot = at(seconds, Some(0), 0);
            snapshot.listeners[0].sinks[0].residence = tally.read();
            history.record(&snapshot);
        }
        let found = json_of(&history, 10);
        let residence = found["series"]["residence_p99_micros"].as_array().unwrap();
        assert_eq!(residence[3..], [json!(700_000_000), json!(701_000_000)]);
    }

    #[test]
    fn what_the_host_dropped_before_its_sockets_stands_apart_and_is_null_before_the_first_look() {
        let mut history = HourHistory::new(None);
        let host = |dropped: u64| {
            let mut host = hostloss::HostReading::default();
            let link = hostloss::tables::LinkCounters { rx_dropped: Some(dropped), ..Default::default() };
            host.nic.insert("eth0".into(), hostloss::InterfaceReading { link, ..Default::default() });
            host.ip.in_discards = Some(2 * dropped);
            host.udp.in_errors = Some(1000 * dropped);
            host.lost = hostloss::Losses::of(&host);
            host
        };
        for (seconds, dropped) in [(1.0, Some(5)), (2.0, Some(8)), (11.0, None)] {
            let mut snapshot = at(seconds, Some(0), 0);
            snapshot.host = dropped.map(host).unwrap_or_default();
            history.record(&snapshot);
        }
        let found = json_of(&history, 10);
        assert_eq!(found["series"]["host_nic"], json!([3, null]));
        assert_eq!(found["series"]["host_kernel"], json!([6, null]));
    }

    #[test]
    fn it_keeps_an_hour_in_the_memory_that_it_took_at_start() {
        let mut history = HourHistory::new(None);
        let capacity = history.points.points.capacity();
        for second in 0..10_000_u64 {
            history.record(&at(second as f64, Some(second * 7), 0));
        }
        assert_eq!(history.points.points.capacity(), capacity);
        assert_eq!(capacity * size_of::<Point>(), 3600 * 64, "as it says above");
        let found = json_of(&history, 1);
        let ends = found["end_seconds"].as_array().unwrap();
        assert_eq!((ends.len(), &ends[0], &ends[3599]), (3600, &json!(6400), &json!(9999)));
        assert!(found["series"]["arrived"].as_array().unwrap().iter().all(|count| *count == json!(7)));
    }

    fn at_each(seconds: u64, queue_full: u64, names: &[&str]) -> Snapshot {
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
            hours.record(&at_each(seconds, lost, &["a", "b"]));
        }
        let mut blind = at_each(12, 45, &["a", "b"]);
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
        (0..5000).step_by(10).for_each(|seconds| hours.record(&at_each(seconds, seconds, &names)));
        let held: usize = hours.rows.iter().map(|row| row.steps.capacity() * size_of::<[u32; 2]>()).sum();
        assert_eq!((hours.rows.len(), hours.left_out, held), (64, 236, 64 * 360 * 8));
        let json = serde_json::to_value(hours.json()).expect("JSON");
        let ends = json["end_seconds"].as_array().expect("a list");
        assert_eq!((ends.len(), &ends[0], &ends[359]), (360, &json!(1400), &json!(4990)));
        assert_eq!(json["listeners"][0]["lost"][359], json!(10));
    }
}
