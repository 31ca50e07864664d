//! Adding one reading of the ledger to another: what was counted before the pipeline was made anew, and what after.
//!
//! Listeners, lanes and sinks go on by their names. What is only in the books of before stays in the sum and is marked
//! as removed, so nothing that was ever delivered or lost leaves the ledger.

use super::counter::CounterSet;
use super::snapshot::{FilesSnapshot, LaneSnapshot, ListenerSnapshot, SinkSnapshot, Snapshot, UpstreamSnapshot};

impl Snapshot {
    /// Adds what was counted before.
    pub fn add_earlier(&mut self, before: Self) {
        before.listeners.into_iter().for_each(|listener| self.add_earlier_listener(listener));
    }

    /// The same of one listener.
    pub fn add_earlier_listener(&mut self, listener: ListenerSnapshot) {
        match self.listeners.iter_mut().find(|own| own.name == listener.name) {
            Some(own) => own.add_earlier(listener),
            None => self.listeners.push(listener.removed()),
        }
    }
}

impl ListenerSnapshot {
    fn add_earlier(&mut self, before: Self) {
        self.arrived = both(self.arrived, before.arrived, |own, other| own + other);
        self.kernel_dropped = both(self.kernel_dropped, before.kernel_dropped, |own, other| own + other);
        self.kernel_dropped_between =
            either(self.kernel_dropped_between, before.kernel_dropped_between, |own, other| own + other);
        self.residual = both(self.residual, before.residual, |own, other| own + other);
        self.wrong_cpu = either(self.wrong_cpu, before.wrong_cpu, |own, other| own + other);
        // What was offered is not read by the place of a sink, which may be another now: each sink tells it.
        self.counts.add(&before.counts);
        self.upstream = either(self.upstream.take(), before.upstream, UpstreamSnapshot::with);
        for lane in before.lanes {
            match self.lanes.iter_mut().find(|own| own.lane == lane.lane) {
                Some(own) => own.add_earlier(lane),
                None => self.lanes.push(lane.removed()),
            }
        }
        for sink in before.sinks {
            match self.sinks.iter_mut().find(|own| own.name == sink.name) {
                Some(own) => own.add_earlier(sink),
                None => self.sinks.push(sink.removed()),
            }
        }
    }

    fn removed(mut self) -> Self {
        self.lanes = self.lanes.into_iter().map(LaneSnapshot::removed).collect();
        self.sinks = self.sinks.into_iter().map(SinkSnapshot::removed).collect();
        Self { removed: true, shared_with: None, ..self }
    }
}

impl LaneSnapshot {
    fn add_earlier(&mut self, before: Self) {
        self.arrived = both(self.arrived, before.arrived, |own, other| own + other);
        self.kernel_dropped = both(self.kernel_dropped, before.kernel_dropped, |own, other| own + other);
        self.denied_in_kernel = either(self.denied_in_kernel, before.denied_in_kernel, |own, other| own + other);
        self.wrong_cpu = either(self.wrong_cpu, before.wrong_cpu, |own, other| own + other);
        self.arrived_on = either(self.arrived_on.take(), before.arrived_on, |mut own, other| {
            other.into_iter().for_each(|(core, count)| *own.entry(core).or_default() += count);
            own
        });
        self.arrived_by_queue = either(self.arrived_by_queue.take(), before.arrived_by_queue, |mut own, other| {
            for (queue, cores) in other {
                let own = own.entry(queue).or_default();
                cores.into_iter().for_each(|(core, count)| *own.entry(core).or_default() += count);
            }
            own
        });
        self.counts.add(&before.counts);
    }

    fn removed(self) -> Self {
        Self {
            removed: true,
            cpu: None,
            receive_buffer_bytes: 0,
            receive_buffer_used_bytes: 0,
            senders: Vec::new(),
            ..self
        }
    }
}

impl SinkSnapshot {
    fn add_earlier(&mut self, before: Self) {
        self.offered += before.offered;
        // What was found in a spill of this process is the same that is in the books of before.
        let same = self.counts.spilled_again.min(before.counts.spilled);
        self.counts.add(&before.counts);
        self.counts.spilled -= same;
        self.counts.spilled_again -= same;
        self.in_flight += before.in_flight;
        self.queue_depth += before.queue_depth;
        self.residence = either(self.residence.take(), before.residence, |own, other| own.with(&other));
        self.files = either(self.files.take(), before.files, FilesSnapshot::with);
        for destination in before.destinations {
            match self.destinations.iter_mut().find(|own| own.address == destination.address) {
                Some(own) => own.counts.add(&destination.counts),
                None => self.destinations.push(destination),
            }
        }
    }

    fn removed(self) -> Self {
        Self { removed: true, queue_capacity: 0, ..self }
    }
}

impl FilesSnapshot {
    /// What is written in both. Of before it is on the disk, or it counts as doubtful or unsynced.
    fn with(mut self, before: Self) -> Self {
        self.counts.add(&before.counts);
        self.synced_at = self.synced_at.or(before.synced_at);
        self
    }
}

impl UpstreamSnapshot {
    fn with(mut self, before: Self) -> Self {
        if self.unit != before.unit {
            return self;
        }
        self.missing = both(self.missing, before.missing, |own, other| own + other);
        self.missing_at_least += before.missing_at_least;
        self.missing_at_most += before.missing_at_most;
        self.counts.add(&before.counts);
        self.unseen += before.unseen;
        self.unnumbered += before.unnumbered;
        self
    }
}

/// The sum of what both know; unknown where one of them is unknown.
fn both<T>(own: Option<T>, other: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    own.zip(other).map(|(own, other)| add(own, other))
}

/// The sum of what is there.
fn either<T>(own: Option<T>, other: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    match (own, other) {
        (Some(own), Some(other)) => Some(add(own, other)),
        (own, other) => own.or(other),
    }
}
