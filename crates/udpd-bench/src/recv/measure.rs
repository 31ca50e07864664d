//! A receiving run from the first socket to the closed books.
//!
//! [`run`] is the library call: a [`Task`], a stop flag, and a closure that hears of readiness and of each second. The
//! lanes, the channel and the ledger are the daemon's own; only the sink is the bench's. It has one consumer whatever
//! the number of lanes, so that a flow whose datagrams change lanes is still followed exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::report::{Collector, Progress, Report};
use super::timeline;
use super::tracker::{Shared, Tracker, TrackerSink};
use crate::machine::Usage;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::sink::Supplied;
use udpd_endpoint::control::Neighbours;
use udpd_engine::config::{Config, ConsumerCount, EngineKind, Gro, RunArguments, SinkConfig, Timestamps};
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan;
use udpd_sinks::null::NullSink;

/// Flows that are followed unless somebody says otherwise: 8 MiB of bitmaps.
pub const FLOWS_MAX: usize = 1024;

/// With an expected number, so much silence after the first datagram is the end.
const SILENCE: Duration = Duration::from_secs(1);

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// How long a consumer may take to empty its channel in the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How to receive.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Where, as in the configuration.
    pub listen: String,
    /// How many lanes; `None`: as many as the configuration's "auto" gives.
    pub lanes: Option<usize>,
    pub engine: Option<EngineKind>,
    /// UDP_GRO.
    pub gro: bool,
    /// Handle datagrams on the receivers' threads.
    pub inline: bool,
    /// Let datagrams gather this long after a short batch.
    pub gather: Duration,
    /// The longest payload that is checked whole.
    pub max_length_bytes: usize,
    /// End after this long, counted from being ready.
    pub duration: Option<Duration>,
    /// End after this many datagrams, or after a second of silence.
    pub expect: Option<u64>,
    /// How many flows are followed, 8 KiB each up to 16,384 of them and less beyond.
    pub flows_max: usize,
}

impl Task {
    /// One address, with what the configuration has as defaults; until told to stop.
    pub fn new(listen: impl Into<String>) -> Self {
        Self {
            listen: listen.into(),
            lanes: None,
            engine: None,
            gro: false,
            inline: false,
            gather: Duration::ZERO,
            max_length_bytes: 2048,
            duration: None,
            expect: None,
            flows_max: FLOWS_MAX,
        }
    }

    /// The configuration of a daemon that does this, but for its sink. What a task has no field for can be changed in
    /// it before [`run_with`].
    pub fn config(&self) -> Result<Config, Failure> {
        let mut config =
            Config::from_arguments(&RunArguments { lanes: self.lanes, ..RunArguments::new(&self.listen, "null:") })?;
        let listener = &mut config.listeners[0];
        listener.name = "bench".to_owned();
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

    /// How long a timeline has to be.
    fn kept_ms(&self) -> u64 {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.duration.map_or(timeline::KEPT_MS_MAX, |duration| ms(duration + DRAIN_LIMIT))
    }
}

/// Receives until the task's end or until `stop` is raised.
pub fn run(task: &Task, stop: &AtomicBool, tell: &mut dyn FnMut(Progress<'_>)) -> Result<Report, Failure> {
    run_with(task, &task.config()?, stop, tell)
}

/// The same with a configuration that the caller has changed. Its first listener is reported, and its sinks must be
/// those of [`Task::config`].
pub fn run_with(
    task: &Task,
    config: &Config,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, Failure> {
    let plan = plan::make(config, &Neighbours::default())?;
    let tracker = Shared::new(Tracker::new(task.flows_max, task.kept_ms()));
    let (registry, events) = ThreadRegistry::new();
    let own = tracker.clone();
    let mut config = config.clone();
    config.sinks[0].settings = Arc::new(Supplied(move || TrackerSink { tracker: own.clone() }));
    let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry)?;
    let usage = Usage::read();
    let mut collector = Collector::new(tracker.clone(), task.expect);
    tell(Progress::Ready(pipeline.lanes()));
    let waited = wait_for_end(task, stop, &events, &mut collector, tell);
    let used = Usage::read().since(&usage);
    let before_the_end = pipeline.books().snapshot();
    let ledger = pipeline.stop(DRAIN_LIMIT, |wait| {
        std::thread::sleep(wait);
        false
    });
    waited?;
    Ok(collector.finish(&before_the_end, ledger, used, tell))
}

/// Waits until there is nothing more to wait for; tells of each second meanwhile.
fn wait_for_end(
    task: &Task,
    stop: &AtomicBool,
    events: &Receiver<DaemonEvent>,
    collector: &mut Collector,
    tell: &mut dyn FnMut(Progress<'_>),
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
            Ok(DaemonEvent::Reload | DaemonEvent::TakeOver | DaemonEvent::TakenOver(_) | DaemonEvent::Stranded(_))
            | Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(second) = collector.sample_when_due(Instant::now()) {
            tell(Progress::Second(second));
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
