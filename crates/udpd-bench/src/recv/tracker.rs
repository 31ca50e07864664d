//! The sink that checks what a bench sends: every datagram is read, placed in its flow, timed and counted.
//!
//! It is a sink like any other, behind a real lane and a real channel, so what is measured is the daemon. The consumer
//! locks it once per batch; the reporter locks it for an instant now and then, to change the interval that is being
//! filled for an empty one. The clock is asked once per batch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::flows::{Fate, Flows};
use super::latency::Latencies;
use super::timeline::Timeline;
use crate::clock;
use crate::payload;
use crate::payload::{Header, Reading};
use udpd_base::handover::batch::{LaneBatch, LaneLoad};
use udpd_base::ledger::Tallies;
use udpd_base::sink::{Sink, deliver};

/// Clocks that are nearer than this are those of one host.
const SAME_CLOCK_NS: u64 = 1_000_000;

/// What was counted in an interval. Every datagram is in exactly one of `received`, `duplicated`, `late`, `untracked`,
/// `corrupted` and `foreign`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All datagrams that the sink was given.
    pub arrived: u64,
    /// Their payload bytes.
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
    /// Not sent by `udpd bench send`.
    pub foreign: u64,
    /// Longer than `max_length`: only the head was checked.
    pub truncated: u64,
    /// Timed by a clock that is not this host's.
    pub other_clock: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
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

/// What is counted between two reports.
#[derive(Debug, Clone, Default)]
pub struct Interval {
    pub counts: Counts,
    pub latencies: Latencies,
}

impl Interval {
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.latencies.add(&other.latencies);
    }

    pub fn clear(&mut self) {
        self.counts = Counts::default();
        self.latencies.clear();
    }
}

/// What is known of all that has arrived. Everything it will ever need is allocated when it is made.
#[derive(Debug)]
pub struct Tracker {
    flows: Flows,
    interval: Interval,
    timeline: Timeline,
    offset_ns: i64,
}

impl Tracker {
    /// Room for `flows_max` flows and a timeline of `kept_ms`.
    pub fn new(flows_max: usize, kept_ms: u64) -> Self {
        Self {
            flows: Flows::new(flows_max),
            interval: Interval::default(),
            timeline: Timeline::new(kept_ms),
            offset_ns: clock::realtime_offset_ns(),
        }
    }

    /// Takes account of a batch that a consumer has in its hands at `now_ns` on CLOCK_REALTIME.
    pub fn take(&mut self, batch: &LaneLoad, now_ns: u64) {
        for datagram in batch.datagrams() {
            self.take_one(datagram.payload(), datagram.length(), datagram.arrival_since_epoch(), now_ns);
        }
    }

    /// Takes account of one datagram that was `length` bytes on the wire. `arrival` is the kernel's time.
    pub fn take_one(&mut self, payload: &[u8], length: usize, arrival: Option<Duration>, now_ns: u64) {
        let arrival_ns = arrival.and_then(|arrival| u64::try_from(arrival.as_nanos()).ok());
        self.timeline.record(arrival_ns.unwrap_or(now_ns));
        let counts = &mut self.interval.counts;
        counts.arrived += 1;
        counts.bytes += payload.len() as u64;
        counts.truncated += u64::from(length > payload.len());
        match payload::read(payload, length) {
            Reading::Datagram(header) => self.take_header(&header, arrival_ns, now_ns),
            Reading::Short => {
                counts.received += 1;
                counts.short += 1;
            }
            Reading::Corrupted => counts.corrupted += 1,
            Reading::Foreign => counts.foreign += 1,
        }
    }

    fn take_header(&mut self, header: &Header, arrival_ns: Option<u64>, now_ns: u64) {
        let counts = &mut self.interval.counts;
        match self.flows.take(header.run, header.flow, header.sequence) {
            Fate::New => counts.received += 1,
            Fate::Reordered => {
                counts.received += 1;
                counts.reordered += 1;
            }
            Fate::Duplicated => counts.duplicated += 1,
            Fate::Late => counts.late += 1,
            Fate::Untracked => counts.untracked += 1,
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

    /// Puts an empty interval in the place of the one that was being filled, and takes note of the clocks' distance.
    pub fn change_interval(&mut self, other: &mut Interval, offset_ns: i64) {
        std::mem::swap(&mut self.interval, other);
        self.offset_ns = offset_ns;
    }

    /// What was counted since the interval was changed.
    pub fn counts(&self) -> &Counts {
        &self.interval.counts
    }

    pub fn flows(&self) -> &Flows {
        &self.flows
    }

    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }
}

/// A tracker in the hands of a consumer and of a reporter.
#[derive(Debug, Clone)]
pub struct Shared(Arc<Mutex<Tracker>>);

impl Shared {
    pub fn new(tracker: Tracker) -> Self {
        Self(Arc::new(Mutex::new(tracker)))
    }

    /// For a moment: the consumer waits meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Tracker> {
        // Counts that a panic has left behind are still counts; the panic itself ends the run.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sink that feeds a tracker. No configuration file can name it.
#[derive(Debug)]
pub struct TrackerSink {
    pub tracker: Shared,
}

impl Sink for TrackerSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.tracker.lock().take(&batch.datagrams, clock::realtime_ns());
        deliver(&mut tallies[batch.listener], batch.datagrams.summary().datagrams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{SendTime, Stamp, fill};

    const NOW: u64 = 1_700_000_000_000_000_000;

    fn datagram(sequence: u64, length: usize) -> Vec<u8> {
        let mut payload = vec![0; length];
        fill(&mut payload);
        let sent = SendTime { monotonic_ns: NOW - 30_000, realtime_offset_ns: 0 };
        Stamp::new(1, sent).write(&mut payload, 2, sequence);
        payload
    }

    fn take(tracker: &mut Tracker, payload: &[u8]) {
        tracker.take_one(payload, payload.len(), Some(Duration::from_nanos(NOW - 10_000)), NOW);
    }

    #[test]
    fn every_datagram_is_counted_in_one_place() {
        let mut tracker = Tracker::new(1, 1_000);
        let mut damaged = datagram(9, 64);
        damaged[40] ^= 1;
        let own = [(0, 64), (2, 64), (1, 64), (2, 64), (70_000, 64), (3, 64), (5, 8)];
        own.iter().for_each(|(sequence, length)| take(&mut tracker, &datagram(*sequence, *length)));
        take(&mut tracker, &damaged);
        take(&mut tracker, b"<13>not of the bench");
        tracker.take_one(&datagram(70_001, 64)[..40], 64, None, NOW);
        let expected = Counts {
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
        let Counts { received, duplicated, late, untracked, corrupted, foreign, arrived, .. } = expected;
        assert_eq!(received + duplicated + late + untracked + corrupted + foreign, arrived);
        assert_eq!(tracker.flows().lost(), 70_002 - 5);
    }

    #[test]
    fn the_way_is_timed_in_two_parts_and_as_a_whole() {
        let mut tracker = Tracker::new(1, 1_000);
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
        assert_eq!(*tracker.counts(), Counts::default(), "the new interval is empty");
        take(&mut tracker, &datagram(2, 32));
        assert_eq!(tracker.counts().other_clock, 0, "now it knows the sender's clock as its own");
    }
}
