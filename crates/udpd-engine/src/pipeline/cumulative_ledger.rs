//! The ledger of a daemon across its pipelines: the one that runs, those that still hand on what they hold, and one sum
//! of all that have ended, so that many reloads take no more room than one.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use super::pipeline_ledger::{Drops, LedgerPosition, PipelineLedger, Progress};
use udpd_base::ledger::snapshot::{
    BeforeSnapshot, DrainSnapshot, ListenerSnapshot, ListenerStreams, ReadinessSnapshot, ReloadSnapshot,
    SinkStateSnapshot, StreamSnapshot,
};
use udpd_base::ledger::{CounterTable as _, Snapshot};
use udpd_base::os::threads::lock;
use udpd_inspect::upstream::StreamChange;

/// The ledger that clients read.
#[derive(Debug)]
pub struct CumulativeLedger {
    parts: Mutex<Parts>,
    /// Held by a consumer while what its sink holds moves from one ledger to the next.
    transfer: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct Parts {
    current: Arc<PipelineLedger>,
    /// Of pipelines with threads that have yet to end, the oldest first.
    draining: Vec<Arc<PipelineLedger>>,
    /// The sum of those that have ended.
    ended: Option<Snapshot>,
    /// Listeners of an earlier process that this one never had.
    removed: Vec<ListenerSnapshot>,
    last_reload: Option<ReloadSnapshot>,
    draining_since: Option<f64>,
    readiness: Option<ReadinessSnapshot>,
    /// As it began, with how many datagrams had arrived before.
    drain: Option<(DrainSnapshot, u64)>,
    sink_states: BTreeMap<String, SinkStateSnapshot>,
    before: Option<BeforeSnapshot>,
}

impl Parts {
    /// What the kernel has dropped and what the process itself has, of all but the pipeline that runs.
    fn earlier_drops(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let draining = self.draining.iter().map(|ledger| ledger.position());
        let ended = self.ended.iter().flat_map(|ended| &ended.listeners).chain(&self.removed);
        draining.map(|position| (position.kernel_dropped, position.dropped)).chain(ended.map(|listener| {
            let at_sinks: u64 = listener.sinks.iter().map(|sink| sink.counts.dropped.total()).sum();
            let between = listener.kernel_dropped_between.unwrap_or(0);
            (listener.kernel_dropped.map(|dropped| dropped + between), listener.counts.dropped.total() + at_sinks)
        }))
    }

    fn open_ledgers(&self) -> impl Iterator<Item = &Arc<PipelineLedger>> {
        self.draining.iter().chain([&self.current])
    }
}

impl CumulativeLedger {
    pub(super) fn new(current: Arc<PipelineLedger>) -> Self {
        let parts = Parts {
            current,
            draining: Vec::new(),
            ended: None,
            removed: Vec::new(),
            last_reload: None,
            draining_since: None,
            readiness: None,
            drain: None,
            sink_states: BTreeMap::new(),
            before: None,
        };
        Self { parts: Mutex::new(parts), transfer: Arc::default() }
    }

    /// Reads the kernel's counts of drops, which wrap, and nothing else: to be called once a second.
    pub fn read_kernel_drops(&self) {
        self.current().read_kernel_drops();
    }

    /// Reads what the kernel and the cards count: to be called once a second. A driver may take its time.
    pub fn read_host_counters(&self) {
        self.current().read_host_counters();
    }

    /// The core that a lane's receiver runs on, which is null where that is none in particular, without the rest of a
    /// reading; `None` where there is no such lane.
    pub fn core_of(&self, listener: &str, lane: usize) -> Option<Option<usize>> {
        self.current().core_of(listener, lane)
    }

    /// How far it has counted. What the kernel drops from then on is for the next process to find.
    pub fn position(&self) -> LedgerPosition {
        let parts = self.parts();
        let mut position = parts.current.position();
        for (kernel_dropped, dropped) in parts.earlier_drops() {
            position.kernel_dropped = position.kernel_dropped.zip(kernel_dropped).map(|(own, earlier)| own + earlier);
            position.dropped += dropped;
        }
        position
    }

    /// How many drops at each socket are in this ledger, as of the last reading.
    pub fn counted_drops(&self) -> Drops {
        self.current().counted_drops()
    }

    /// How many datagrams have been offered to sinks and are not decided there at most, once for each sink.
    pub fn under_way(&self) -> u64 {
        self.parts().open_ledgers().map(|ledger| ledger.under_way()).sum()
    }

    /// How far each consumer of each sink has come, in all pipelines together.
    pub fn progress(&self) -> BTreeMap<(String, usize), Progress> {
        let mut found = BTreeMap::new();
        self.parts().open_ledgers().for_each(|ledger| ledger.add_progress(&mut found));
        found
    }

    pub fn set_previous_process(&self, before: BeforeSnapshot) {
        self.parts().before = Some(before);
    }

    /// Writes down what was found in the sockets of a listener that an earlier process had and this one has not.
    pub(super) fn add_removed_listener(&self, listener: ListenerSnapshot) {
        self.parts().removed.push(listener);
    }

    pub fn snapshot(&self) -> Snapshot {
        self.sum_with(PipelineLedger::snapshot)
    }

    /// All streams of each listener that follows sequence numbers.
    pub fn streams(&self) -> Vec<ListenerStreams> {
        let current = self.current();
        // A reading tells what this host has lost by now, which may have been of any stream.
        current.snapshot();
        let streams = current
            .upstream()
            .map(|(listener, own)| ListenerStreams { listener: listener.to_owned(), streams: own.streams() });
        streams.collect()
    }

    /// Visits what has changed with streams since the last call: listener by listener, with how many more changes there
    /// were.
    pub fn each_stream_change(&self, mut visit: impl FnMut(&str, &[(StreamChange, StreamSnapshot)], u64)) {
        for (listener, upstream) in self.current().upstream() {
            let (changes, more) = upstream.changes();
            visit(listener, &changes, more);
        }
    }

    /// The last reading, when every thread has ended or is given up.
    pub(super) fn final_snapshot(&self, all_ended_well: bool) -> Snapshot {
        self.sum_with(|current| {
            if current.host.has_begun() {
                current.read_host_counters();
            }
            current.final_snapshot(all_ended_well)
        })
    }

    fn sum_with(&self, read: impl FnOnce(&PipelineLedger) -> Snapshot) -> Snapshot {
        let parts = self.parts();
        let _transfer = lock(&self.transfer);
        // The oldest first: what has moved to a later pipeline was offered in an earlier one.
        let draining: Vec<Snapshot> = parts.draining.iter().map(|ledger| ledger.snapshot()).collect();
        let mut sum = read(&parts.current);
        draining.into_iter().chain(parts.ended.clone()).for_each(|earlier| sum.add_earlier(earlier));
        parts.removed.iter().for_each(|listener| sum.add_earlier_listener(listener.clone()));
        sum.before = parts.before;
        sum.last_reload.clone_from(&parts.last_reload);
        sum.draining_since = parts.draining_since;
        sum.readiness.clone_from(&parts.readiness);
        let arrived = sum.arrived();
        let since = |(drain, before): &(DrainSnapshot, u64)| DrainSnapshot {
            arrived: arrived.saturating_sub(*before),
            ..drain.clone()
        };
        sum.drain = parts.drain.as_ref().map(since);
        for sink in sum.listeners.iter_mut().flat_map(|listener| &mut listener.sinks) {
            sink.state = parts.sink_states.get(&sink.name).cloned();
        }
        sum
    }

    /// The daemon ends: from now on it only hands on what it holds.
    pub fn set_draining(&self, since: f64) {
        self.parts().draining_since = Some(since);
    }

    /// Whether a balancer is to send here, for the readings from now on.
    pub fn set_readiness(&self, readiness: ReadinessSnapshot) {
        self.parts().readiness = Some(readiness);
    }

    /// udpd is to leave and receives on, or (`None`) stays after all. `arrived` of it is counted by the readings, from
    /// `before` on.
    pub fn set_drain(&self, drain: Option<(DrainSnapshot, u64)>) {
        self.parts().drain = drain;
    }

    /// How each sink fares, for the readings from now on.
    pub fn set_sink_states(&self, states: BTreeMap<String, SinkStateSnapshot>) {
        self.parts().sink_states = states;
    }

    pub fn set_last_reload(&self, outcome: ReloadSnapshot) {
        self.parts().last_reload = Some(outcome);
    }

    /// From now on `next` is the ledger of the pipeline that runs, and the files and destinations of the retained sinks
    /// are in it. A reading sees both or neither.
    pub(super) fn switch_to(&self, next: Arc<PipelineLedger>, retained: &[usize]) {
        let mut parts = self.parts();
        retained.iter().for_each(|&sink| parts.current.sinks[sink].is_handed_on.store(true, Ordering::Relaxed));
        let before = std::mem::replace(&mut parts.current, next);
        parts.draining.push(before);
    }

    /// Adds a ledger to the sum when every thread of its pipeline has ended.
    pub(super) fn close(&self, ledger: &Arc<PipelineLedger>, all_ended_well: bool) {
        let mut parts = self.parts();
        let Some(place) = parts.draining.iter().position(|own| Arc::ptr_eq(own, ledger)) else { return };
        let mut last = parts.draining.remove(place).final_snapshot(all_ended_well);
        if let Some(ended) = parts.ended.take() {
            last.add_earlier(ended);
        }
        parts.ended = Some(last);
    }

    pub(super) fn transfer(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.transfer)
    }

    fn current(&self) -> Arc<PipelineLedger> {
        Arc::clone(&self.parts().current)
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        lock(&self.parts)
    }
}
