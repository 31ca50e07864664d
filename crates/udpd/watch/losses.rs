//! What the main thread notices while the pipeline runs: losses, said once per interval with their layer and their
//! cure, and datagrams that arrive on another core than planned.
//!
//! Both compare two readings of the ledger. A line about losses is written only when something was lost since the line
//! before, so a host that loses nothing logs nothing, and one that loses a million a second logs one line in ten
//! seconds. A drift loses nothing and lasts until somebody acts, so it is said once, and again only after it was over.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::snapshot::{LaneSnapshot, ListenerSnapshot, Snapshot};
use crate::ledger::tables::KERNEL_DROPPED;
use crate::ledger::{Counter, Table};

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
    // A reading without the kernel's count says nothing of the time before it.
    let kernel_before = before.map_or(Some(0), |before| before.kernel_dropped);
    if let Some((now_dropped, before)) = now.kernel_dropped.zip(kernel_before) {
        let what = (now_dropped.saturating_sub(before), now.kernel_dropped_unit.as_str());
        say(&format!("listener {name}: the kernel"), &KERNEL_DROPPED, what, lines);
    }
    say_table(&format!("listener {name}:"), &now.counts.dropped, before.map(|before| &before.counts.dropped), lines);
    for (place, sink) in now.sinks.iter().enumerate() {
        let before = before.and_then(|before| before.sinks.get(place));
        let who = format!("listener {name}: sink {}", sink.name);
        say_table(&who, &sink.counts.dropped, before.map(|before| &before.counts.dropped), lines);
    }
}

/// What was dropped for each reason of a table, but for those that are quiet.
fn say_table<T: Table>(who: &str, now: &T, before: Option<&T>, lines: &mut Vec<String>) {
    let nothing = T::default();
    for ((counter, now), (_, before)) in now.values().zip(before.unwrap_or(&nothing).values()) {
        if !counter.is_quiet {
            say(who, counter, (now.saturating_sub(before), counter.unit), lines);
        }
    }
}

fn say(who: &str, counter: &Counter, (count, unit): (u64, &str), lines: &mut Vec<String>) {
    if count > 0 {
        let Counter { name, help, cure, .. } = counter;
        let line = format!("{who} dropped {count} {unit} since the last report ({name}). {help} {cure}");
        lines.push(line.replace('`', ""));
    }
}

/// How many readings without a datagram on the wrong core end a drift.
const QUIET_READINGS: u32 = 60;

/// Remembers which lanes have drifted.
#[derive(Debug, Default)]
pub struct DriftWatch {
    /// The lanes, by listener and number, whose interface somebody steers. When that is set anew an interrupt goes over
    /// to its new core only after it has fired once more on the old one, so what arrives there in one reading and not
    /// in the next is no drift.
    steered: BTreeSet<(usize, usize)>,
    lanes: BTreeMap<(usize, usize), Drift>,
}

/// One lane that has drifted.
#[derive(Debug)]
struct Drift {
    /// The counts of the reading before.
    arrived_on: BTreeMap<usize, u64>,
    wrong: u64,
    /// What arrived on a wrong core in the last reading that had arrivals, where the next has to confirm it.
    suspected: u64,
    /// Readings since the last datagram on a wrong core.
    quiet: u32,
}

impl DriftWatch {
    pub fn new(steered: BTreeSet<(usize, usize)>) -> Self {
        Self { steered, lanes: BTreeMap::new() }
    }

    /// The lines that are due: lanes whose datagrams have begun to arrive elsewhere since the last call.
    pub fn compare(&mut self, now: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, listener) in now.listeners.iter().enumerate() {
            for lane in &listener.lanes {
                let (Some(wrong), Some(arrived_on)) = (lane.wrong_cpu, &lane.arrived_on) else { continue };
                let waits = self.steered.contains(&(index, lane.lane));
                let drift = self.lanes.entry((index, lane.lane)).or_insert_with(|| Drift {
                    arrived_on: BTreeMap::new(),
                    wrong: 0,
                    suspected: 0,
                    quiet: QUIET_READINGS,
                });
                if let Some(count) = drift.take(wrong, arrived_on, waits) {
                    lines.push(drift_line(listener, lane, count, drift.most(lane, arrived_on)));
                }
                drift.wrong = wrong;
                drift.arrived_on.clone_from(arrived_on);
            }
        }
        lines
    }
}

impl Drift {
    /// How many datagrams on wrong cores are to be told of now; `None` when nothing is.
    fn take(&mut self, wrong: u64, arrived_on: &BTreeMap<usize, u64>, waits: bool) -> Option<u64> {
        let since = wrong.saturating_sub(self.wrong);
        if since == 0 {
            // A reading without any datagram neither confirms nor clears.
            if arrived_on != &self.arrived_on {
                self.suspected = 0;
            }
            self.quiet = self.quiet.saturating_add(1);
            return None;
        }
        let suspected = std::mem::take(&mut self.suspected);
        let was_quiet = self.quiet >= QUIET_READINGS;
        if was_quiet && waits && suspected == 0 {
            self.suspected = since;
            return None;
        }
        self.quiet = 0;
        was_quiet.then_some(suspected + since)
    }

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
