//! What the main thread notices while the pipeline runs: losses, said once per interval with their layer and their
//! cure, and datagrams that arrive on another core than planned.
//!
//! Both compare two readings of the ledger. A line about losses is written only when something was lost since the line
//! before, so a host that loses nothing logs nothing, and one that loses a million a second logs one line in ten
//! seconds. A drift loses nothing and lasts until somebody acts, so it is said once, and again only after it was over.

use std::collections::BTreeMap;

use crate::ledger::Snapshot;
use crate::ledger::snapshot::{LaneSnapshot, ListenerSnapshot};

/// Remembers the reading before.
#[derive(Debug, Default)]
pub struct LossWatch {
    before: Option<Snapshot>,
}

impl LossWatch {
    /// The lines that are due: what was lost between the last call and `now`.
    pub fn compare(&mut self, now: Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, listener) in now.listeners.iter().enumerate() {
            let before = self.before.as_ref().and_then(|before| before.listeners.get(index));
            losses(listener, before, &mut lines);
        }
        self.before = Some(now);
        lines
    }
}

fn losses(now: &ListenerSnapshot, before: Option<&ListenerSnapshot>, lines: &mut Vec<String>) {
    let name = &now.name;
    let mut say = |what: &str, count: u64, cure: &str| {
        if count > 0 {
            lines.push(format!("listener {name}: {what} {count} since the last report; {cure}"));
        }
    };
    let since = |field: fn(&ListenerSnapshot) -> u64| field(now).saturating_sub(before.map_or(0, field));
    // A reading without it says nothing of the time before it.
    let kernel_before = before.map_or(Some(0), |before| before.kernel_dropped);
    let kernel_dropped = now.kernel_dropped.zip(kernel_before).map_or(0, |(now, before)| now.saturating_sub(before));
    say(
        "the kernel dropped",
        kernel_dropped,
        "the receive buffer was full: raise receive_buffer or absorb, or add lanes",
    );
    say(
        "dropped as longer than max_length",
        since(|listener| listener.dropped.truncated),
        "raise max_length, or keep their heads with on_truncate = \"keep\"",
    );
    say("GRO trains that could not be split:", since(|listener| listener.dropped.unsplit), "set gro = \"off\"");
    say(
        "no batch was free for",
        since(|listener| listener.dropped.no_batch),
        "this is a bug of udpd: please report it",
    );
    for (place, sink) in now.sinks.iter().enumerate() {
        let earlier = before.and_then(|before| before.sinks.get(place));
        let full = sink.dropped.queue_full - earlier.map_or(0, |earlier| earlier.dropped.queue_full);
        let failed = sink.dropped.sink_error - earlier.map_or(0, |earlier| earlier.dropped.sink_error);
        say(
            &format!("sink {} was too slow for", sink.name),
            full,
            "raise its queue_batches for bursts, give it consumers = \"per_lane\", or make its destination faster",
        );
        say(&format!("sink {} could not deliver", sink.name), failed, "the log has the error");
    }
}

/// How many readings without a datagram on the wrong core end a drift.
const QUIET_READINGS: u32 = 60;

/// Remembers which lanes have drifted.
#[derive(Debug, Default)]
pub struct DriftWatch {
    lanes: BTreeMap<(usize, usize), Drift>,
}

/// One lane that has drifted.
#[derive(Debug)]
struct Drift {
    /// The counts of the reading before.
    arrived_on: BTreeMap<usize, u64>,
    wrong: u64,
    /// Readings since the last datagram on a wrong core.
    quiet: u32,
}

impl DriftWatch {
    /// The lines that are due: lanes whose datagrams have begun to arrive elsewhere since the last call.
    pub fn compare(&mut self, now: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, listener) in now.listeners.iter().enumerate() {
            for lane in &listener.lanes {
                let (Some(wrong), Some(arrived_on)) = (lane.wrong_cpu, &lane.arrived_on) else { continue };
                let drift = self.lanes.entry((index, lane.lane)).or_insert_with(|| Drift {
                    arrived_on: BTreeMap::new(),
                    wrong: 0,
                    quiet: QUIET_READINGS,
                });
                let since = wrong.saturating_sub(drift.wrong);
                if since > 0 && drift.quiet >= QUIET_READINGS {
                    lines.push(drift_line(listener, lane, since, drift.most(lane, arrived_on)));
                }
                drift.quiet = if since > 0 { 0 } else { drift.quiet.saturating_add(1) };
                drift.wrong = wrong;
                drift.arrived_on.clone_from(arrived_on);
            }
        }
        lines
    }
}

impl Drift {
    /// The wrong core on which most have arrived since the reading before.
    fn most(&self, lane: &LaneSnapshot, now: &BTreeMap<usize, u64>) -> Option<usize> {
        let since = |core: usize, count: u64| count.saturating_sub(self.arrived_on.get(&core).copied().unwrap_or(0));
        let wrong = now.iter().filter(|(core, _)| !lane.planned_cpus.contains(core));
        wrong.max_by_key(|(core, count)| since(**core, **count)).map(|(core, _)| *core)
    }
}

fn drift_line(listener: &ListenerSnapshot, lane: &LaneSnapshot, count: u64, found: Option<usize>) -> String {
    let unit = &listener.kernel_dropped_unit;
    let found = found.map_or("another core".to_owned(), |core| format!("core {core}"));
    let wanted = steer::format_core_list(&lane.planned_cpus);
    let (queue, what, other_cure) = match lane.queue {
        Some(queue) => (format!(" (queue {queue})"), format!("the interrupt of queue {queue}"), String::new()),
        None => {
            (String::new(), "the interrupts of its interface".to_owned(), format!(", or let [steer] cpus name {found}"))
        }
    };
    format!(
        "listener {}, lane {}{queue}: {count} {unit} arrived on {found} instead of {wanted}; put {what} back there \
         (/proc/irq/N/smp_affinity_list) and stop what moves them (irqbalance, a driver reset){other_cure}; logged \
         again only after {QUIET_READINGS} s without one",
        listener.name, lane.lane
    )
}

#[cfg(test)]
#[path = "losses_tests.rs"]
mod tests;
