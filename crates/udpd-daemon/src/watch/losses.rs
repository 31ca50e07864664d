//! What the main thread notices while the pipeline runs: losses, said once per interval with their layer and their
//! cure.
//!
//! Two readings of the ledger are compared, and a line is written only when something was lost since the line before:
//! a host that loses nothing logs nothing, and one that loses a million a second logs one line in ten seconds.

use udpd_base::ledger::counter_list::{KERNEL_DROPPED, QUEUE_DROPPED};
use udpd_base::ledger::snapshot::{ListenerSnapshot, Snapshot};
use udpd_base::ledger::{CounterTable, LedgerCounter};

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
    if let Some((now_dropped, before_dropped)) = now.kernel_dropped.zip(kernel_before) {
        let all = now_dropped.saturating_sub(before_dropped);
        let of_queues = of_queues(now).saturating_sub(before.map_or(0, of_queues)).min(all);
        let who = format!("listener {name}: the kernel");
        say(&who, &QUEUE_DROPPED, (of_queues, QUEUE_DROPPED.unit), lines);
        say(&who, &KERNEL_DROPPED, (all - of_queues, now.kernel_dropped_unit.as_str()), lines);
    }
    say_table(&format!("listener {name}:"), &now.counts.dropped, before.map(|before| &before.counts.dropped), lines);
    for (place, sink) in now.sinks.iter().enumerate() {
        let before = before.and_then(|before| before.sinks.get(place));
        let who = format!("listener {name}: sink {}", sink.name);
        say_table(&who, &sink.counts.dropped, before.map(|before| &before.counts.dropped), lines);
    }
}

/// What the kernel dropped of receive queues past its stack.
fn of_queues(listener: &ListenerSnapshot) -> u64 {
    listener.lanes.iter().filter(|lane| lane.xdp.is_some()).filter_map(|lane| lane.kernel_dropped).sum()
}

/// What was dropped for each reason of a table, but for those that are quiet.
fn say_table<T: CounterTable>(who: &str, now: &T, before: Option<&T>, lines: &mut Vec<String>) {
    let nothing = T::default();
    for ((counter, now), (_, before)) in now.values().zip(before.unwrap_or(&nothing).values()) {
        if !counter.is_quiet {
            say(who, counter, (now.saturating_sub(before), counter.unit), lines);
        }
    }
}

fn say(who: &str, counter: &LedgerCounter, (count, unit): (u64, &str), lines: &mut Vec<String>) {
    if count > 0 {
        let LedgerCounter { name, help, cure, .. } = counter;
        let line = format!("{who} dropped {count} {unit} since the last report ({name}). {help} {cure}");
        lines.push(line.replace('`', ""));
    }
}

#[cfg(test)]
#[path = "losses_tests.rs"]
mod tests;
