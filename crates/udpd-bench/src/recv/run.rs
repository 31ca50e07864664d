//! A receiving run from the first socket to the report.
//!
//! [`run`] is the library call: a [`RecvTask`], a stop flag, and a closure that is told of readiness and of each
//! second. The lanes, the channel and the ledger are the daemon's own; only the sink is the bench's. It has one
//! consumer whatever the number of lanes, so that a flow whose datagrams change lanes is still followed exactly. The
//! report sets what was lost against the ledger, so that each loss has a layer.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde::Serialize;

use super::flows::FlowRecord;
use super::tracker::{
    ArrivalSummary, DatagramTracker, Interval, KEPT_MS_MAX, Percentiles, SharedTracker, TrackerCounts, TrackerSink,
};
use crate::clock;
use crate::machine::{Usage, Used};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::snapshot::ListenerSnapshot;
use udpd_base::ledger::{CounterTable as _, Snapshot};
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::sink::Supplied;
use udpd_endpoint::control::Neighbours;
use udpd_engine::config::{Config, ConsumerCount, EngineKind, Gro, RunArguments, SinkConfig, Timestamps};
use udpd_engine::pipeline::{Lane, Pipeline};
use udpd_engine::plan;
use udpd_sinks::null::NullSink;

/// How many flows are followed by default: 8 MiB of bitmaps.
pub(super) const FLOWS_MAX: usize = 1024;

/// With --expect, so much silence after the first datagram ends the run.
const SILENCE: Duration = Duration::from_secs(1);

/// How often to check for the end.
const LOOK: Duration = Duration::from_millis(20);

/// How long a consumer may take to empty its channel in the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq)]
pub struct RecvTask {
    pub listen: String,
    /// Multicast groups to join, and on which interface.
    pub groups: Vec<IpAddr>,
    pub interface: Option<String>,
    /// How many lanes; `None`: as many as the configuration's "auto" gives.
    pub lanes: Option<usize>,
    pub engine: Option<EngineKind>,
    pub gro: bool,
    pub inline: bool,
    pub gather: Duration,
    pub max_length_bytes: usize,
    /// End after this long, counted from being ready.
    pub duration: Option<Duration>,
    pub expect: Option<u64>,
    /// How many flows are followed, 8 KiB each up to 16,384 of them and less beyond.
    pub flows_max: usize,
}

impl RecvTask {
    /// The configuration of a daemon that does this, but for its sink.
    fn config(&self) -> Result<Config, Failure> {
        let mut config =
            Config::from_arguments(&RunArguments { lanes: self.lanes, ..RunArguments::new(&self.listen, "null:") })?;
        let listener = &mut config.listeners[0];
        listener.name = "bench".to_owned();
        listener.multicast.groups.clone_from(&self.groups);
        listener.multicast.interface.clone_from(&self.interface);
        listener.engine = self.engine;
        listener.gro = if self.gro { Gro::On } else { Gro::Off };
        listener.gather = self.gather;
        listener.max_length_bytes = self.max_length_bytes;
        listener.timestamps = Timestamps::On;
        config.sinks = vec![SinkConfig::new("tracker", NullSink)];
        if self.inline {
            (config.sinks[0].inline, config.sinks[0].consumers) = (true, ConsumerCount::PerLane);
        }
        Ok(config)
    }

    fn kept_ms(&self) -> u64 {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.duration.map_or(KEPT_MS_MAX, |duration| ms(duration + DRAIN_LIMIT))
    }
}

/// Receives until the task's end or until `stop` is raised.
pub(super) fn run(
    task: &RecvTask,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(RecvProgress<'_>),
) -> Result<RecvReport, Failure> {
    let mut config = task.config()?;
    let plan = plan::make(&config, &Neighbours::default())?;
    let tracker = SharedTracker::new(DatagramTracker::new(task.flows_max, task.kept_ms()));
    let (registry, events) = ThreadRegistry::new();
    let own = tracker.clone();
    config.sinks[0].settings = Arc::new(Supplied(move || TrackerSink { tracker: own.clone() }));
    let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry)?;
    let usage = Usage::read();
    let mut collector = Collector::new(tracker.clone(), task.expect);
    tell(RecvProgress::Ready(pipeline.lanes()));
    let waited = wait_for_end(task, stop, &events, &mut collector, tell);
    let used = Usage::read().since(&usage);
    let before_the_end = pipeline.ledger().snapshot();
    let ledger = pipeline.stop(DRAIN_LIMIT, |wait| {
        std::thread::sleep(wait);
        false
    });
    waited?;
    Ok(collector.finish(&before_the_end, ledger, used, tell))
}

/// Waits for the end of the run; tells of each second meanwhile.
fn wait_for_end(
    task: &RecvTask,
    stop: &AtomicBool,
    events: &Receiver<DaemonEvent>,
    collector: &mut Collector,
    tell: &mut dyn FnMut(RecvProgress<'_>),
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut silent_since = None;
    let mut arrived = 0;
    while !stop.load(Ordering::Relaxed) {
        match events.recv_timeout(LOOK) {
            Ok(DaemonEvent::SinkClosed(why)) => return Err(Failure::new(ExitCode::Failure, why)),
            Ok(DaemonEvent::ThreadPanicked(name)) => {
                let text = format!("thread {name} has panicked, which is a bug of udpd: please report it");
                return Err(Failure::new(ExitCode::Failure, text));
            }
            Ok(DaemonEvent::Signal(_)) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(second) = collector.sample_when_due(Instant::now()) {
            tell(RecvProgress::Second(second));
        }
        if task.duration.is_some_and(|duration| started.elapsed() >= duration) {
            return Ok(());
        }
        let now_arrived = collector.arrived();
        if now_arrived > arrived {
            (arrived, silent_since) = (now_arrived, Some(Instant::now()));
        }
        let is_silent = silent_since.is_some_and(|since: Instant| since.elapsed() >= SILENCE);
        if task.expect.is_some_and(|expected| arrived >= expected || is_silent) {
            return Ok(());
        }
    }
    Ok(())
}

/// A report lists no more flows.
const FLOWS_LISTED: usize = 1 << 16;

const SECOND: Duration = Duration::from_secs(1);

/// What a run tells while it runs.
#[derive(Debug)]
pub(super) enum RecvProgress<'a> {
    /// Every socket is bound and every receiver reads.
    Ready(&'a [Lane]),
    Second(&'a RecvSecond),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RecvSecond {
    pub second: u64,
    pub seconds: f64,
    #[serde(flatten)]
    pub counts: TrackerCounts,
    /// How many more are missing than a second ago; negative when more of the missing came than went missing.
    pub lost: i64,
    /// From the sender's call to the consumer.
    pub one_way: Option<Percentiles>,
    /// From the kernel to the consumer.
    pub residence: Option<Percentiles>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct LossByLayer {
    /// Dropped by the kernel at the socket of each lane, its receive buffer being full.
    pub kernel: Vec<LaneLoss>,
    /// "datagrams", or "buffers" with GRO, where a dropped train counts as one.
    pub kernel_unit: String,
    pub no_batch: u64,
    pub unsplit: u64,
    pub queue_full: u64,
    pub corrupted: u64,
    /// What of the loss is in none of these layers: lost before the socket (sender, network, interface, backlog), or
    /// dropped here without being missing (a repeat, a datagram of others), and then negative. Null where the kernel
    /// counts buffers.
    pub elsewhere: Option<i64>,
    /// What the kernel refused at the end of the run: it came too late and is not lost.
    pub after_the_end: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct LaneLoss {
    pub lane: usize,
    pub cpu: Option<usize>,
    /// What the kernel dropped at its socket; null where it does not say.
    pub dropped: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RecvReport {
    /// From being ready to the end.
    pub seconds: f64,
    #[serde(flatten)]
    pub counts: TrackerCounts,
    /// Datagrams that did not come: of those expected, or up to the highest sequence of each flow.
    pub lost: u64,
    /// `lost` of `lost` + `received`.
    pub loss_percent: f64,
    pub expected: Option<u64>,
    /// From the sender's call to the kernel.
    pub network: Option<Percentiles>,
    /// From the kernel to the consumer.
    pub residence: Option<Percentiles>,
    /// From the sender's call to the consumer.
    pub one_way: Option<Percentiles>,
    pub arrivals: ArrivalSummary,
    pub layers: LossByLayer,
    pub flow_count: usize,
    /// How many sequences of each are told apart, and the memory that this takes.
    pub flow_window: u64,
    pub flow_memory_bytes: usize,
    /// Each flow, in the order of their first datagrams; of more than 65,536 the first ones.
    pub flows: Vec<FlowRecord>,
    pub each_second: Vec<RecvSecond>,
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
    tracker: SharedTracker,
    expected: Option<u64>,
    started: Instant,
    last: Instant,
    lost_before: u64,
    spare: Interval,
    total: Interval,
    seconds: Vec<RecvSecond>,
}

impl Collector {
    pub(super) fn new(tracker: SharedTracker, expected: Option<u64>) -> Self {
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
    pub(super) fn sample_when_due(&mut self, now: Instant) -> Option<&RecvSecond> {
        let due = self.started + SECOND * (self.seconds.len() as u32 + 1);
        (now >= due).then(|| self.sample(now))
    }

    fn sample(&mut self, now: Instant) -> &RecvSecond {
        let offset_ns = clock::realtime_offset_ns();
        self.spare.clear();
        let lost = {
            let mut tracker = self.tracker.lock();
            tracker.change_interval(&mut self.spare, offset_ns);
            tracker.flows().lost()
        };
        self.seconds.push(RecvSecond {
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
        tell: &mut dyn FnMut(RecvProgress<'_>),
    ) -> RecvReport {
        let last = self.sample(Instant::now()).clone();
        if last.counts.arrived > 0 {
            tell(RecvProgress::Second(&last));
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
        RecvReport {
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
fn layers(lost: u64, counts: &TrackerCounts, before: &ListenerSnapshot, ledger: &ListenerSnapshot) -> LossByLayer {
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
    LossByLayer {
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
