//! What was sent: each second, and in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hdrhistogram::Histogram;
use nix::errno::Errno;
use serde::Serialize;

use super::run::{Done, FlowSent, Progress, SendFlow};
use crate::clock::{Monotonic, PacingClock};
use crate::pacer::Schedule;

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SendSecond {
    pub second: u64,
    /// How long it really was; the last one is as long as it lasted.
    pub seconds: f64,
    /// Datagrams that the rate made due in it; null at the highest rate.
    pub asked: Option<u64>,
    pub sent: u64,
    pub refused: u64,
    pub calls: u64,
}

impl FlowSent {
    pub(super) fn of(flow: &SendFlow) -> Self {
        Self { flow: flow.number, source: flow.source, sent: flow.sent, sequences: flow.sequence }
    }
}

/// How long after its moment a datagram went out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Lateness {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SenderReport {
    pub run: u16,
    /// From the start to the end of the last thread.
    pub seconds: f64,
    /// Datagrams that the rate made due in that time; null at the highest rate.
    pub asked: Option<u64>,
    pub sent: u64,
    pub bytes: u64,
    /// Datagrams that it refused, by the name of the error. Their sequences are missing at the receiver.
    pub refused: BTreeMap<String, u64>,
    /// Calls that it refused as a whole and that were repeated, by the name of the error.
    pub repeated: BTreeMap<String, u64>,
    /// Errors about datagrams that had gone out before, by name: `ECONNREFUSED` where no program listens. The kernel
    /// does not report an answer that interrupts a batch, so there may have been more.
    pub answers: BTreeMap<String, u64>,
    pub calls: u64,
    pub rate: f64,
    /// By how much what was sent differs from what the rate asked for; null at the highest rate.
    pub pacing_error_percent: Option<f64>,
    pub lateness: Option<Lateness>,
    /// CPU time of the sender threads.
    pub cpu_seconds: f64,
    /// Whether the route could not cut trains, so that their datagrams went out one by one.
    pub segmentation_refused: bool,
    pub each_second: Vec<SendSecond>,
    /// Each flow, by number; of frames there are too many.
    pub flows: Vec<FlowSent>,
    /// What the interface of frames has counted meanwhile; null for sockets and where the kernel does not say.
    pub interface: Option<InterfaceSent>,
    /// Whether each call had to wait for all cores, so that frames came in groups of ten milliseconds and more.
    pub long_calls: bool,
}

/// By the interface's own counters, during the run, packets of other programs included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct InterfaceSent {
    pub name: String,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// Reads the counters of the threads once a second.
pub(super) struct Sampler<'a> {
    schedule: Schedule,
    progress: &'a Arc<[Progress]>,
    start_ns: u64,
    last_ns: u64,
    last: Totals,
    seconds: Vec<SendSecond>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    asked: Option<u64>,
    sent: u64,
    refused: u64,
    calls: u64,
    bytes: u64,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(schedule: Schedule, progress: &'a Arc<[Progress]>, start_ns: u64) -> Self {
        let last = Totals { asked: schedule.asked(0).map(|_| 0), ..Totals::default() };
        Self { schedule, progress, start_ns, last_ns: start_ns, last, seconds: Vec::new() }
    }

    /// How long until the next second is over, counted from the start.
    pub(super) fn until_next(&self) -> Duration {
        let due_ns = self.start_ns + (self.seconds.len() as u64 + 1) * SECOND_NS;
        Duration::from_nanos(due_ns.saturating_sub(Monotonic.now_ns()))
    }

    pub(super) fn sample(&mut self) -> &SendSecond {
        self.sample_at(Monotonic.now_ns())
    }

    fn sample_at(&mut self, now_ns: u64) -> &SendSecond {
        let sum = |field: fn(&Progress) -> u64| self.progress.iter().map(field).sum();
        let elapsed_ns = now_ns.saturating_sub(self.start_ns);
        let totals = Totals {
            // Also of a run with an end: what is due is due until there is no more of it.
            asked: self.schedule.asked(elapsed_ns).map(|_| self.schedule.due(elapsed_ns)),
            sent: sum(|counters| counters.sent.load(Ordering::Relaxed)),
            refused: sum(|counters| counters.refused.load(Ordering::Relaxed)),
            calls: sum(|counters| counters.calls.load(Ordering::Relaxed)),
            bytes: sum(|counters| counters.bytes.load(Ordering::Relaxed)),
        };
        self.seconds.push(SendSecond {
            second: self.seconds.len() as u64 + 1,
            seconds: now_ns.saturating_sub(self.last_ns) as f64 / SECOND_NS as f64,
            asked: totals.asked.zip(self.last.asked).map(|(now, before)| now - before),
            sent: totals.sent - self.last.sent,
            refused: totals.refused - self.last.refused,
            calls: totals.calls - self.last.calls,
        });
        (self.last, self.last_ns) = (totals, now_ns);
        &self.seconds[self.seconds.len() - 1]
    }

    /// The report, when all threads have ended. What came after the last whole second is a sample of its own.
    pub(super) fn finish(
        mut self,
        run: u16,
        ended: Vec<Done>,
        each_second: &mut dyn FnMut(&SendSecond),
    ) -> SenderReport {
        let ended_ns = ended.iter().map(|done| done.ended_ns).max().unwrap_or(self.start_ns);
        let last = self.sample_at(ended_ns.max(self.last_ns)).clone();
        if last.sent + last.refused + last.calls == 0 {
            self.seconds.pop();
        } else {
            each_second(&last);
        }
        let Totals { sent, refused, calls, bytes, .. } = self.last;
        let elapsed_ns = ended_ns.saturating_sub(self.start_ns).max(1);
        let seconds = elapsed_ns as f64 / SECOND_NS as f64;
        let mut flows: Vec<FlowSent> = ended.iter().flat_map(|done| done.flows.iter().cloned()).collect();
        flows.sort_by_key(|flow| flow.flow);
        SenderReport {
            run,
            seconds,
            asked: self.last.asked,
            sent,
            bytes,
            refused: by_name(ended.iter().map(|done| &done.refused)),
            repeated: by_name(ended.iter().map(|done| &done.repeated)),
            answers: by_name(ended.iter().map(|done| &done.answers)),
            calls,
            rate: sent as f64 / seconds,
            pacing_error_percent: pacing_error_percent(&self.schedule, sent + refused, elapsed_ns),
            lateness: lateness(&ended),
            cpu_seconds: ended.iter().map(|done| done.cpu_ns).sum::<u64>() as f64 / SECOND_NS as f64,
            segmentation_refused: ended.iter().any(|done| done.segmentation_refused),
            each_second: self.seconds,
            flows,
            interface: None,
            long_calls: false,
        }
    }
}

/// The rate kept against the rate asked for, in percent. A run that has sent everything is measured by when its last
/// datagram was due and when it had gone; one that was cut short by what was due when it ended.
fn pacing_error_percent(schedule: &Schedule, offered: u64, elapsed_ns: u64) -> Option<f64> {
    let asked = schedule.asked(elapsed_ns)?;
    if schedule.total().is_some_and(|total| offered >= total) {
        let due_ns = schedule.due_at_ns(offered).max(1);
        // On time is when the last went out within the interval after its moment.
        let took_ns = elapsed_ns.max(due_ns);
        return Some((due_ns as f64 / took_ns as f64 - 1.0) * 100.0);
    }
    Some((offered as f64 / asked as f64 - 1.0) * 100.0)
}

fn lateness(ended: &[Done]) -> Option<Lateness> {
    let mut whole: Option<Histogram<u64>> = None;
    for part in ended.iter().filter_map(|done| done.lateness.as_ref()) {
        match &mut whole {
            None => whole = Some(part.clone()),
            // They have the same bounds, so nothing can fail to fit.
            Some(whole) => drop(whole.add(part)),
        }
    }
    let whole = whole.filter(|whole| !whole.is_empty())?;
    let at = |quantile: f64| whole.value_at_quantile(quantile) as f64 / 1000.0;
    Some(Lateness { p50_us: at(0.5), p99_us: at(0.99), max_us: whole.max() as f64 / 1000.0 })
}

fn by_name<'a>(parts: impl Iterator<Item = &'a BTreeMap<i32, u64>>) -> BTreeMap<String, u64> {
    let mut named = BTreeMap::new();
    for (errno, count) in parts.flatten().filter(|(_, count)| **count > 0) {
        let name = match errno {
            0 => "no reason given".to_owned(),
            errno => format!("{:?}", Errno::from_raw(*errno)),
        };
        *named.entry(name).or_default() += count;
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacer::{Rate, SendAmount};

    #[test]
    fn the_pacing_error_is_that_of_the_rate_over_the_whole_run() {
        let schedule = Schedule::new(Rate::Steady(1_000), SendAmount::Count(10_000), 1);
        let error = |offered, elapsed_ns| pacing_error_percent(&schedule, offered, elapsed_ns).expect("paced");
        assert_eq!(error(10_000, 9_999_060_000), 0.0, "the last went out 60 us after its moment");
        assert!((error(10_000, 10_010_000_000) + 0.1).abs() < 0.001, "everything, 10 ms too late");
        assert!((error(4_001, 5_000_000_000) + 20.0).abs() < 0.1, "cut short, a fifth behind");
        assert_eq!(pacing_error_percent(&Schedule::new(Rate::Max, SendAmount::Count(1), 1), 1, 5), None);
    }

    #[test]
    fn errors_are_counted_by_their_names() {
        let (one, two) = (BTreeMap::from([(111, 3), (90, 1)]), BTreeMap::from([(111, 4), (1, 0)]));
        let named = by_name([&one, &two].into_iter());
        assert_eq!(named, BTreeMap::from([("ECONNREFUSED".to_owned(), 7), ("EMSGSIZE".to_owned(), 1)]));
    }
}
