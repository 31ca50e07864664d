//! What was received: each second, and in the end. What was lost is set against the ledger, so that each loss has a
//! layer.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::flows::Flow;
use super::latency::Percentiles;
use super::timeline::Arrivals;
use super::tracker::{Counts, Interval, Shared};
use crate::clock;
use crate::machine::Used;
use udpd_base::ledger::snapshot::ListenerSnapshot;
use udpd_base::ledger::{CounterTable as _, Snapshot};
use udpd_engine::pipeline::Lane;

/// A report lists no more flows.
const FLOWS_LISTED: usize = 1 << 16;

const SECOND: Duration = Duration::from_secs(1);

/// What a measurement tells while it runs.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Every socket is bound and every receiver reads.
    Ready(&'a [Lane]),
    Second(&'a Second),
}

/// What was received in one second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Second {
    /// Its number, from 1.
    pub second: u64,
    pub seconds: f64,
    #[serde(flatten)]
    pub counts: Counts,
    /// How many more are missing than a second ago; negative when more of the missing came than went missing.
    pub lost: i64,
    /// From the sender's call to the consumer.
    pub one_way: Option<Percentiles>,
    /// From the kernel to the consumer.
    pub residence: Option<Percentiles>,
}

/// Where datagrams were lost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Layers {
    /// Dropped by the kernel at the socket of each lane, its receive buffer being full.
    pub kernel: Vec<LaneLoss>,
    /// "datagrams", or "buffers" with GRO, where a dropped train counts as one.
    pub kernel_unit: String,
    /// No empty batch was at hand.
    pub no_batch: u64,
    /// GRO trains that could not be split.
    pub unsplit: u64,
    /// The channel to the consumer was full.
    pub queue_full: u64,
    pub corrupted: u64,
    /// What of the loss is in none of these layers: lost before the socket (sender, network, interface, backlog), or
    /// dropped here without being missing (a repeat, a datagram of others), and then negative. Null where the kernel
    /// counts buffers.
    pub elsewhere: Option<i64>,
    /// What the kernel refused at the end of the run: it came too late and is not lost.
    pub after_the_end: Option<u64>,
}

/// What one lane lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LaneLoss {
    pub lane: usize,
    pub cpu: Option<usize>,
    /// What the kernel dropped at its socket; null where it does not say.
    pub dropped: Option<u64>,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// From being ready to the end.
    pub seconds: f64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Datagrams that did not come: of those expected, or up to the highest sequence of each flow.
    pub lost: u64,
    /// `lost` of `lost` + `received`.
    pub loss_percent: f64,
    /// How many were said to be expected.
    pub expected: Option<u64>,
    /// From the sender's call to the kernel.
    pub network: Option<Percentiles>,
    /// From the kernel to the consumer.
    pub residence: Option<Percentiles>,
    /// From the sender's call to the consumer.
    pub one_way: Option<Percentiles>,
    pub arrivals: Arrivals,
    pub layers: Layers,
    /// How many flows were seen.
    pub flow_count: usize,
    /// How many sequences of each are told apart, and the memory that this takes.
    pub flow_window: u64,
    pub flow_memory_bytes: usize,
    /// Each flow, in the order of their first datagrams; of more than 65,536 the first ones.
    pub flows: Vec<Flow>,
    pub each_second: Vec<Second>,
    /// CPU time from being ready to the end.
    pub used: Used,
    pub ledger: Snapshot,
    /// The count of each millisecond from the first arrival to the last; for charts, not in the JSON.
    #[serde(skip)]
    pub timeline: Vec<u32>,
}

/// Collects the intervals of a tracker.
#[derive(Debug)]
pub(super) struct Collector {
    tracker: Shared,
    expected: Option<u64>,
    started: Instant,
    last: Instant,
    lost_before: u64,
    spare: Interval,
    total: Interval,
    seconds: Vec<Second>,
}

impl Collector {
    pub(super) fn new(tracker: Shared, expected: Option<u64>) -> Self {
        let now = Instant::now();
        Self {
            tracker,
            expected,
            started: now,
            last: now,
            lost_before: 0,
            spare: Interval::default(),
            total: Interval::default(),
            seconds: Vec::new(),
        }
    }

    pub(super) fn arrived(&self) -> u64 {
        self.total.counts.arrived + self.tracker.lock().counts().arrived
    }

    /// The second that is over, if one is.
    pub(super) fn sample_when_due(&mut self, now: Instant) -> Option<&Second> {
        let due = self.started + SECOND * (self.seconds.len() as u32 + 1);
        (now >= due).then(|| self.sample(now))
    }

    fn sample(&mut self, now: Instant) -> &Second {
        let offset_ns = clock::realtime_offset_ns();
        self.spare.clear();
        let lost = {
            let mut tracker = self.tracker.lock();
            tracker.change_interval(&mut self.spare, offset_ns);
            tracker.flows().lost()
        };
        self.seconds.push(Second {
            second: self.seconds.len() as u64 + 1,
            seconds: (now - self.last).as_secs_f64(),
            counts: self.spare.counts,
            lost: lost.wrapping_sub(self.lost_before).cast_signed(),
            one_way: self.spare.latencies.one_way.percentiles(),
            residence: self.spare.latencies.residence.percentiles(),
        });
        self.total.add(&self.spare);
        (self.last, self.lost_before) = (now, lost);
        &self.seconds[self.seconds.len() - 1]
    }

    /// The report, when the pipeline has ended: what it drained in the end is a second of its own if it was anything.
    pub(super) fn finish(
        mut self,
        before_the_end: &Snapshot,
        ledger: Snapshot,
        used: Used,
        tell: &mut dyn FnMut(Progress<'_>),
    ) -> Report {
        let last = self.sample(Instant::now()).clone();
        if last.counts.arrived > 0 {
            tell(Progress::Second(&last));
        } else {
            self.seconds.pop();
        }
        let Interval { counts, latencies } = &self.total;
        let tracker = self.tracker.lock();
        let lost = match self.expected {
            Some(expected) => expected.saturating_sub(counts.received),
            None => tracker.flows().lost(),
        };
        let all = lost + counts.received;
        Report {
            seconds: used.wall_ns as f64 / 1e9,
            counts: *counts,
            lost,
            loss_percent: if all == 0 { 0.0 } else { lost as f64 / all as f64 * 100.0 },
            expected: self.expected,
            network: latencies.network.percentiles(),
            residence: latencies.residence.percentiles(),
            one_way: latencies.one_way.percentiles(),
            arrivals: tracker.timeline().arrivals(),
            layers: layers(lost, counts, &before_the_end.listeners[0], &ledger.listeners[0]),
            flow_count: tracker.flows().all().len(),
            flow_window: tracker.flows().window(),
            flow_memory_bytes: tracker.flows().memory_bytes(),
            flows: tracker.flows().all().iter().take(FLOWS_LISTED).copied().collect(),
            timeline: tracker.timeline().counts().to_vec(),
            each_second: self.seconds,
            used,
            ledger,
        }
    }
}

/// Sets what was lost against what the ledger knows. At the end arrivals are refused and counted: those came too late
/// and are told apart by the reading from before.
fn layers(lost: u64, counts: &Counts, before: &ListenerSnapshot, ledger: &ListenerSnapshot) -> Layers {
    let lane = |lane: &udpd_base::ledger::snapshot::LaneSnapshot| LaneLoss {
        lane: lane.lane,
        cpu: lane.cpu,
        dropped: lane.kernel_dropped,
    };
    let sum =
        |field: fn(&udpd_base::ledger::snapshot::SinkSnapshot) -> u64| ledger.sinks.iter().map(field).sum::<u64>();
    let queue_full = sum(|sink| sink.counts.dropped.total());
    let (no_batch, unsplit) = (ledger.counts.dropped.no_batch, ledger.counts.dropped.unsplit);
    let kernel = before.kernel_dropped.filter(|&dropped| ledger.kernel_dropped_unit == "datagrams" || dropped == 0);
    let known = |kernel| kernel + no_batch + unsplit + queue_full + counts.corrupted;
    Layers {
        kernel: before.lanes.iter().map(lane).collect(),
        kernel_unit: ledger.kernel_dropped_unit.clone(),
        no_batch,
        unsplit,
        queue_full,
        corrupted: counts.corrupted,
        elsewhere: kernel.map(|kernel| lost.wrapping_sub(known(kernel)).cast_signed()),
        after_the_end: ledger.kernel_dropped.zip(before.kernel_dropped).map(|(end, before)| end - before),
    }
}
