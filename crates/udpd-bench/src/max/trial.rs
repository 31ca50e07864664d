//! The search with real trials. Each trial starts a pipeline of its own, offers it a rate, empties it and closes its
//! ledger, so a trial owes nothing to the one before.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::discarding_peer;
use super::search::{Bounds, SearchLimit, TrialVerdict, search};
use super::stand_ins::SinkStandIns;
use crate::cable::Cable;
use crate::machine::{Usage, Used};
use crate::pacer::{Rate, SendAmount};
use crate::send::{self, SendLoad};
use crate::sizes::Sizes;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::snapshot::Snapshot;
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_endpoint::control::Neighbours;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct MaxTask {
    pub(super) bounds: Bounds,
    pub(super) duration: Duration,
    /// How much may be lost, in percent.
    pub(super) loss_percent: f64,
    pub(super) sizes: Sizes,
    pub(super) flows: usize,
    pub(super) gso: Option<NonZeroUsize>,
    pub(super) threads: usize,
    /// The sender's cores; `None`: those that no lane has.
    pub(super) cpus: Option<Vec<usize>>,
    /// None: loopback.
    pub(super) cable: Option<Cable>,
}

/// A sender that took longer by more than this share has not offered its rate, although it has sent all of it.
const SENDER_SHORT: f64 = 0.01;

/// How long the consumers may take to deliver when the sender has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How often to check whether they have.
const LOOK: Duration = Duration::from_millis(5);

/// Where datagrams were lost: `sent` = delivered to the sink that got least + these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct TrialLoss {
    pub before_the_socket: u64,
    pub kernel: u64,
    /// By the listener: too long, without a batch.
    pub listener: u64,
    /// The sink's channel was full.
    pub queue_full: u64,
    pub sink_error: u64,
}

impl TrialLoss {
    pub(super) fn total(self) -> u64 {
        self.before_the_socket + self.kernel + self.listener + self.queue_full + self.sink_error
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct MaxTrial {
    /// Datagrams a second that were asked for.
    pub rate: u64,
    pub sent_per_second: f64,
    pub sent: u64,
    /// Datagrams delivered by the sink that delivered least.
    pub delivered: u64,
    pub sink: String,
    pub lost: TrialLoss,
    /// CPU time of the pipeline for each datagram delivered, the sender not counted.
    pub pipeline_ns: Option<f64>,
    /// Whether no more was lost than is allowed.
    pub kept: bool,
    pub offered: bool,
}

/// Starts a pipeline and offers it `rate`.
pub(super) fn run_trial(
    task: &MaxTask,
    stand_ins: &SinkStandIns,
    rate: u64,
    stop: &Arc<AtomicBool>,
) -> Result<MaxTrial, Failure> {
    stand_ins.clear()?;
    let plan = plan::make(stand_ins.config(), &Neighbours::default())?;
    let (registry, events) = ThreadRegistry::new();
    let pipeline = Pipeline::start(stand_ins.config(), &plan, Instant::now(), &registry)?;
    let address = pipeline.lanes()[0].address;
    let cores: Vec<usize> = match &task.cpus {
        Some(cores) => cores.clone(),
        None => free_cores(&pipeline),
    };
    let load = SendLoad {
        sizes: task.sizes,
        flows: task.flows,
        gso: task.gso,
        threads: task.threads,
        burst: NonZeroUsize::new(32),
        cpus: cores,
        ..SendLoad::new(address, Rate::Steady(rate), SendAmount::Seconds(task.duration))
    };
    let before = Usage::read();
    let mut trouble = None;
    let mut look = |_: &send::SendSecond| {
        trouble = trouble.take().or_else(|| stand_ins.trouble());
        if trouble.is_some() {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let report = match &task.cable {
        Some(cable) => cable.send(&load, stop, &mut look),
        None => send::run(&load, stop, &mut look),
    };
    if let Ok(report) = &report {
        wait_until_handed_on(&pipeline, report.sent);
    }
    let used = Usage::read().since(&before);
    let ledger = pipeline.stop(DRAIN_LIMIT, |wait| {
        std::thread::sleep(wait);
        false
    });
    if let Some(why) = trouble {
        return Err(Failure::new(ExitCode::Disk, why));
    }
    match events.try_recv() {
        Ok(DaemonEvent::SinkClosed(why)) => return Err(Failure::new(ExitCode::Failure, why)),
        Ok(DaemonEvent::ThreadPanicked(name)) => {
            let text = format!("the thread {name} has panicked, which is a bug of udpd: please report it");
            return Err(Failure::new(ExitCode::Failure, text));
        }
        Ok(_) | Err(_) => {}
    }
    let report = report?;
    // The sender's threads have ended, and what they used is in the sum of the process but in none of its threads.
    let sender_ns = (report.cpu_seconds * 1e9) as u64;
    close(task, rate, &report, &ledger, used.process_ns.saturating_sub(sender_ns + peers_ns(&used)))
}

/// CPU time of the peers.
fn peers_ns(used: &Used) -> u64 {
    #[cfg(feature = "kafka")]
    let mock_ns = used.threads_ns(super::cluster::THREAD);
    #[cfg(not(feature = "kafka"))]
    let mock_ns = 0;
    used.threads_ns(discarding_peer::THREADS) + mock_ns
}

/// The cores that no lane is pinned to; empty: the sender runs on any core.
fn free_cores(pipeline: &Pipeline) -> Vec<usize> {
    let taken: Vec<usize> = pipeline.lanes().iter().filter_map(|lane| lane.core).collect();
    steer::allowed_cores().unwrap_or_default().into_iter().filter(|core| !taken.contains(core)).collect()
}

/// Waits until everything that arrived is delivered or dropped, or nothing moves any more.
fn wait_until_handed_on(pipeline: &Pipeline, sent: u64) {
    let books = pipeline.ledger();
    let begun = Instant::now();
    let mut before = None;
    while begun.elapsed() < DRAIN_LIMIT {
        let snapshot = books.snapshot();
        let listener = &snapshot.listeners[0];
        let under_way = listener.sinks.iter().any(|sink| sink.in_flight > 0);
        if !under_way && (listener.arrived >= Some(sent) || before == Some(listener.arrived)) {
            return;
        }
        before = Some(listener.arrived);
        std::thread::sleep(LOOK);
    }
}

fn close(
    task: &MaxTask,
    rate: u64,
    report: &send::SenderReport,
    ledger: &Snapshot,
    used_ns: u64,
) -> Result<MaxTrial, Failure> {
    let listener = &ledger.listeners[0];
    let (Some(residual), Some(kernel)) = (listener.residual, listener.kernel_dropped) else {
        let text = "the kernel does not report what it drops at a socket (SO_MEMINFO), so no trial can be judged; \
                    this needs Linux 4.12 and no filter on getsockopt";
        return Err(Failure::new(ExitCode::Failure, text));
    };
    if residual != 0 {
        let text = format!("the ledger does not close, by {residual} datagrams, which is a bug of udpd");
        return Err(Failure::new(ExitCode::Failure, text));
    }
    let Some(worst) = listener.sinks.iter().min_by_key(|sink| sink.counts.delivered) else {
        return Err(Failure::new(ExitCode::Failure, "the listener has no sink, which is a bug of udpd"));
    };
    let mut lost = TrialLoss {
        before_the_socket: 0,
        kernel,
        listener: listener.counts.received - worst.offered,
        queue_full: worst.counts.dropped.queue_full,
        sink_error: worst.counts.dropped.by_destination() + worst.in_flight,
    };
    let counted = worst.counts.delivered + lost.total();
    // With GRO the kernel counts a dropped train as one: the datagrams that this hides count as its drops too.
    match listener.kernel_dropped_unit.as_str() {
        "buffers" if lost.kernel > 0 => lost.kernel += report.sent.saturating_sub(counted),
        _ => lost.before_the_socket = report.sent.saturating_sub(counted),
    }
    let missing = report.sent.saturating_sub(worst.counts.delivered);
    Ok(MaxTrial {
        rate,
        sent_per_second: report.rate,
        sent: report.sent,
        delivered: worst.counts.delivered,
        sink: worst.name.clone(),
        lost,
        pipeline_ns: (worst.counts.delivered > 0).then(|| used_ns as f64 / worst.counts.delivered as f64),
        kept: missing as f64 * 100.0 <= task.loss_percent * report.sent as f64,
        offered: is_offered(rate, task.duration, report.sent, report.rate),
    })
}

/// Whether the sender has sent all that was due, in time.
fn is_offered(rate: u64, duration: Duration, sent: u64, sent_per_second: f64) -> bool {
    let due = (rate as f64 * duration.as_secs_f64()).round() as u64;
    sent > 0 && sent >= due && sent_per_second >= rate as f64 * (1.0 - SENDER_SHORT)
}

impl MaxTrial {
    pub(super) fn verdict(&self, stop: &AtomicBool) -> TrialVerdict {
        match (self.kept, self.offered) {
            _ if stop.load(Ordering::Relaxed) => TrialVerdict::Interrupted,
            (true, true) => TrialVerdict::Kept,
            (false, true) => TrialVerdict::Lost,
            (kept, false) => TrialVerdict::Short { sent: self.sent_per_second as u64, kept },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct MaxReport {
    pub listener: String,
    /// What differs from the configuration.
    pub changed: Vec<String>,
    /// Datagrams a second; 0 when even the lowest rate lost some.
    pub rate: u64,
    pub limit: SearchLimit,
    /// How often the rate was kept in a row at the end.
    pub repetitions: usize,
    /// The most that the sender reached in any trial.
    pub highest_sent: u64,
    pub trials: Vec<MaxTrial>,
}

/// Searches until it is done or `stop` is raised; calls `tell` for each trial.
pub(super) fn run(
    task: &MaxTask,
    stand_ins: &SinkStandIns,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(usize, &MaxTrial),
) -> Result<MaxReport, Failure> {
    let mut trials: Vec<MaxTrial> = Vec::new();
    let found = search(task.bounds, |rate| {
        let trial = run_trial(task, stand_ins, rate, stop)?;
        tell(trials.len() + 1, &trial);
        let verdict = trial.verdict(stop);
        trials.push(trial);
        Ok::<_, Failure>(verdict)
    })?;
    Ok(MaxReport {
        listener: stand_ins.config().listeners[0].name.clone(),
        changed: stand_ins.notes().to_vec(),
        rate: found.rate,
        limit: found.limit,
        repetitions: found.repetitions,
        highest_sent: trials.iter().map(|trial| trial.sent_per_second as u64).max().unwrap_or(0),
        trials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_offered_when_all_of_it_is_sent_and_in_time() {
        let offered = |sent, seconds: f64| is_offered(100_000, Duration::from_secs(2), sent, sent as f64 / seconds);
        assert!(offered(200_000, 2.0) && offered(200_000, 2.019));
        assert!(!offered(200_000, 2.03), "all of it, but too slowly");
        assert!(!offered(199_999, 2.0), "nearly all of it, as when the kernel refuses some");
        assert!(!offered(76_000, 2.0));
        assert!(!is_offered(1, Duration::from_millis(100), 0, 0.0), "nothing was due, so nothing is proved");
    }
}
