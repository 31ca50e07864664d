//! Datagrams that arrive on other cores than planned: which queues and lanes are affected, and what it does to the
//! lanes. `wrong_cpu_causes` finds out why.
//!
//! An interrupt moves to another core only after it has fired once more on the old one, so what arrives there in a
//! reading or two after an apply is no drift: on an interface that is steered an alarm takes `STEERED_READINGS`
//! readings in a row. Readings without any datagram neither confirm nor clear. A drift is logged once, and again only
//! after it was over.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::wrong_cpu_causes::{CauseQuery, Why};
use udpd_base::ledger::snapshot::{LaneSnapshot, ListenerSnapshot, Snapshot};
use udpd_base::text::tables::grouped;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan::spread::Intake;

/// How many readings without a datagram on a wrong core end a drift.
const QUIET_READINGS: u32 = 60;

/// How many readings in a row show a drift on an interface that is steered.
const STEERED_READINGS: u32 = 3;

/// The most queues or lanes that one line names.
const NAMED_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct ArrivalWatch {
    listeners: Vec<WatchedListener>,
}

/// One listener as it was planned, and what its readings have shown.
#[derive(Debug, Default)]
struct WatchedListener {
    interface: String,
    lanes: Vec<Intake>,
    sources: BTreeMap<ArrivalSource, SourceState>,
}

/// Where datagrams come from that should arrive on the same cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ArrivalSource {
    /// A receive queue that the plan knows.
    Queue(u32),
    /// What a lane got from no such queue.
    Lane(usize),
}

#[derive(Debug)]
struct SourceState {
    /// The counts of the reading before.
    before: BTreeMap<usize, u64>,
    /// Readings in a row that had datagrams on a wrong core.
    streak: u32,
    /// How many datagrams those were.
    suspected: u64,
    /// Readings since the last datagram on a wrong core.
    quiet: u32,
}

/// The log line of one source.
#[derive(Debug)]
struct MisplacedArrivals {
    source: ArrivalSource,
    count: u64,
    /// The wrong core on which most have arrived.
    found: usize,
    wanted: Vec<usize>,
}

impl ArrivalWatch {
    pub fn new(pipeline: &Pipeline) -> Self {
        let mut watch = Self::default();
        for lane in pipeline.lanes() {
            let plan = &lane.setup.plan;
            let interface = lane.setup.listener.interface.clone().unwrap_or_default();
            watch.add(plan.listener, interface, plan.intake.clone());
        }
        watch
    }

    /// The next lane of a listener.
    fn add(&mut self, listener: usize, interface: String, intake: Intake) {
        if self.listeners.len() <= listener {
            self.listeners.resize_with(listener + 1, WatchedListener::default);
        }
        let watched = &mut self.listeners[listener];
        watched.interface = interface;
        watched.lanes.push(intake);
    }

    /// The lines that are due. `why` says why the datagrams of a queue of an interface do not arrive on these cores.
    pub fn compare(&mut self, now: &Snapshot, why: impl Fn(&str, CauseQuery, &[usize]) -> Why) -> Vec<String> {
        let listeners = self.listeners.iter_mut().zip(&now.listeners);
        listeners.flat_map(|(watched, listener)| watched.compare(listener, &why)).collect()
    }
}

impl WatchedListener {
    fn compare(&mut self, now: &ListenerSnapshot, why: &impl Fn(&str, CauseQuery, &[usize]) -> Why) -> Vec<String> {
        let is_steered = self.lanes.iter().any(|lane| !lane.cores_of_queue.is_empty());
        let needed = if is_steered { STEERED_READINGS } else { 1 };
        let sources = self.sources_of(now);
        let far_off = self.far_off(now, &sources);
        let mut moved = Vec::new();
        for (source, counts) in sources {
            let wanted = self.wanted(source).to_vec();
            let suspect = self.sources.entry(source).or_insert_with(SourceState::new);
            if let Some((count, found)) = suspect.take(counts, &wanted, needed) {
                moved.push(MisplacedArrivals { source, count, found, wanted });
            }
        }
        let of_queues = |moved: &&MisplacedArrivals| matches!(moved.source, ArrivalSource::Queue(_));
        let queues: Vec<&MisplacedArrivals> = moved.iter().filter(of_queues).collect();
        let lanes = moved.iter().filter(|moved| !of_queues(moved)).map(|moved| self.line_of_lane(now, moved));
        let mut lines: Vec<String> = lanes.collect();
        if !queues.is_empty() {
            lines.push(self.line_of_queues(now, &queues, &far_off, why));
        }
        lines
    }

    fn wanted(&self, source: ArrivalSource) -> &[usize] {
        match source {
            // Every lane has the plan of all queues.
            ArrivalSource::Queue(queue) => self.lanes.first().map_or(&[], |lane| lane.cores_for(Some(queue))),
            ArrivalSource::Lane(lane) => self.lanes.get(lane).map_or(&[], |lane| lane.expected_cores()),
        }
    }

    /// The counts by core of everything that has a planned core.
    fn sources_of(&self, now: &ListenerSnapshot) -> BTreeMap<ArrivalSource, BTreeMap<usize, u64>> {
        let mut sources: BTreeMap<ArrivalSource, BTreeMap<usize, u64>> = BTreeMap::new();
        for (number, (lane, intake)) in now.lanes.iter().zip(&self.lanes).enumerate() {
            let Some(arrived_on) = &lane.arrived_on else { continue };
            let mut rest = arrived_on.clone();
            for (&queue, cores) in lane.arrived_by_queue.iter().flatten() {
                if !intake.cores_of_queue.contains_key(&queue) {
                    continue;
                }
                let sum = sources.entry(ArrivalSource::Queue(queue)).or_default();
                for (&core, &count) in cores {
                    *sum.entry(core).or_default() += count;
                    if let Some(rest) = rest.get_mut(&core) {
                        *rest -= count.min(*rest);
                    }
                }
            }
            if !intake.expected_cores().is_empty() {
                sources.insert(ArrivalSource::Lane(number), rest);
            }
        }
        sources
    }

    /// The lanes that got much more or less since the reading before than their queues have sent: each with what it got
    /// and what would be right. Only where the core chooses the lane.
    fn far_off(
        &self,
        now: &ListenerSnapshot,
        sources: &BTreeMap<ArrivalSource, BTreeMap<usize, u64>>,
    ) -> Vec<(usize, u64, u64)> {
        let mut right = vec![0; self.lanes.len()];
        let mut got = vec![0; self.lanes.len()];
        for (source, counts) in sources {
            let since = |core: &usize, count: &u64| {
                let before = self.sources.get(source).and_then(|suspect| suspect.before.get(core));
                count.saturating_sub(before.copied().unwrap_or(0))
            };
            let ArrivalSource::Queue(_) = source else { continue };
            let lane_of = |core: &usize| self.lanes.iter().position(|lane| lane.cores.contains(core));
            for (core, count) in counts {
                if let Some(lane) = lane_of(core) {
                    got[lane] += since(core, count);
                }
                // Of several cores each lane would get its part; one stands for all.
                if let Some(lane) = self.wanted(*source).iter().find_map(lane_of) {
                    right[lane] += since(core, count);
                }
            }
        }
        let total: u64 = got.iter().sum();
        let shares = now.lanes.iter().zip(got.into_iter().zip(right));
        let shares = shares.map(|(lane, (got, right))| (lane.lane, got, right));
        shares.filter(|(_, got, right)| got.abs_diff(*right) * 10 > total).collect()
    }

    fn line_of_queues(
        &self,
        now: &ListenerSnapshot,
        moved: &[&MisplacedArrivals],
        far_off: &[(usize, u64, u64)],
        why: &impl Fn(&str, CauseQuery, &[usize]) -> Why,
    ) -> String {
        let unit = &now.kernel_dropped_unit;
        let mut line = format!(
            "listener {}: {unit} of {} arrive on other cores than planned (wrong_cpu): ",
            now.name, self.interface
        );
        let mut cures: Vec<String> = Vec::new();
        let asked = CauseQuery::default();
        for (place, MisplacedArrivals { source, count, found, wanted }) in moved.iter().enumerate().take(NAMED_MAX) {
            let ArrivalSource::Queue(queue) = source else { continue };
            let Why { fact, cure } = why(&self.interface, asked.of(*queue), wanted);
            let wanted = steer::format_core_list(wanted);
            let between = if place == 0 { "" } else { "; " };
            let _ = write!(line, "{between}queue {queue}: {count} on core {found} instead of {wanted}: {fact}");
            if !cure.is_empty() && !cures.contains(&cure) {
                cures.push(cure);
            }
        }
        if moved.len() > NAMED_MAX {
            let _ = write!(line, "; and {} queues more", moved.len() - NAMED_MAX);
        }
        for cure in cures {
            let _ = write!(line, "; {cure}");
        }
        for (place, (lane, got, right)) in far_off.iter().take(NAMED_MAX).enumerate() {
            // The counts above are of all readings that made the alarm.
            let when = if place == 0 { "in the last second " } else { "" };
            let (got, right) = (grouped(*got), grouped(*right));
            let _ = write!(line, "; {when}lane {lane} got {got} where its queues sent {right}");
        }
        let _ = write!(line, "; logged again only after {QUIET_READINGS} s without one");
        line
    }

    /// The same where no queue is known to come from.
    fn line_of_lane(&self, now: &ListenerSnapshot, moved: &MisplacedArrivals) -> String {
        let MisplacedArrivals { source, count, found, wanted } = moved;
        let lane: Option<&LaneSnapshot> = match source {
            ArrivalSource::Lane(lane) => now.lanes.get(*lane),
            ArrivalSource::Queue(_) => None,
        };
        let (unit, wanted) = (&now.kernel_dropped_unit, steer::format_core_list(wanted));
        format!(
            "listener {}, lane {}: {count} {unit} arrived on core {found} instead of {wanted}; put the interrupts of \
             its interface back there (/proc/irq/N/smp_affinity_list) and stop what moves them (irqbalance, a driver \
             reset), or let [steer] cpus name core {found}; logged again only after {QUIET_READINGS} s without one",
            now.name,
            lane.map_or(0, |lane| lane.lane)
        )
    }
}

impl SourceState {
    fn new() -> Self {
        Self { before: BTreeMap::new(), streak: 0, suspected: 0, quiet: QUIET_READINGS }
    }

    /// How many datagrams on wrong cores are to be told of now, and on which core most of the last were.
    fn take(&mut self, now: BTreeMap<usize, u64>, wanted: &[usize], needed: u32) -> Option<(u64, usize)> {
        let before = std::mem::replace(&mut self.before, now);
        let since =
            |(core, count): (&usize, &u64)| (*core, count.saturating_sub(before.get(core).copied().unwrap_or(0)));
        let wrong = self.before.iter().filter(|(core, _)| !wanted.contains(core)).map(since);
        let (sum, most) = wrong.fold((0, (0, 0)), |(sum, most), (core, count)| {
            (sum + count, if count > most.1 { (core, count) } else { most })
        });
        if sum == 0 {
            // A reading without any datagram neither confirms nor clears.
            if self.before != before {
                (self.streak, self.suspected) = (0, 0);
            }
            self.quiet = self.quiet.saturating_add(1);
            return None;
        }
        if self.quiet < QUIET_READINGS {
            self.quiet = 0;
            return None;
        }
        self.streak += 1;
        self.suspected += sum;
        if self.streak < needed {
            return None;
        }
        let told = self.suspected;
        (self.streak, self.suspected, self.quiet) = (0, 0, 0);
        Some((told, most.0))
    }
}

#[cfg(test)]
#[path = "wrong_cpu_tests.rs"]
mod tests;
