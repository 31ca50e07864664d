//! The books of a running pipeline: whose counters they are, and one reading of all of them.
//!
//! Consumers are read before lanes, see `ledger`: so a reading never shows a datagram taken that was not yet offered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use mmsg::CoreCounter;

use crate::handover::channel::Gauge;
use crate::ledger::snapshot::{
    HostSnapshot, LaneSnapshot, ListenerDropped, ListenerSnapshot, SharerSnapshot, SinkDropped, SinkSnapshot, Snapshot,
};
use crate::ledger::{ConsumerLedger, DestinationLedger, FileLedger, LaneLedger, LaneTally, Tally};
use crate::plan::spread::Intake;

/// Everything a reading needs.
#[derive(Debug)]
pub struct Books {
    /// When the process started.
    pub started: Instant,
    /// By listener of the configuration.
    pub listeners: Vec<ListenerBooks>,
    /// By sink of the configuration.
    pub sinks: Vec<SinkBooks>,
}

/// One listener.
#[derive(Debug)]
pub struct ListenerBooks {
    /// Its name.
    pub name: String,
    /// Its addresses, as bound.
    pub address: String,
    /// Whether the kernel counts trains as one.
    pub gro: bool,
    /// Its sinks, by index.
    pub sinks: Vec<usize>,
    /// Its lanes.
    pub lanes: Vec<LaneBooks>,
    /// Who else is on its port, as far as somebody has looked.
    pub sharers: Mutex<Option<Vec<SharerSnapshot>>>,
}

/// One lane.
#[derive(Debug)]
pub struct LaneBooks {
    /// What its socket is bound to.
    pub address: String,
    /// Its core.
    pub core: Option<usize>,
    /// The memory node of that core.
    pub node: Option<usize>,
    /// What was planned of its arrivals.
    pub intake: Intake,
    /// The evidence of where they arrive.
    pub arrivals: Option<CoreCounter>,
    /// What the kernel granted.
    pub receive_buffer_bytes: u64,
    /// What it receives with.
    pub engine: &'static str,
    /// What its receiver counts.
    pub ledger: Arc<LaneLedger>,
}

/// One sink.
#[derive(Debug)]
pub struct SinkBooks {
    /// Its name.
    pub name: String,
    /// Its channels, to see how full they are.
    pub channels: Vec<Gauge>,
    /// What its consumers count.
    pub consumers: Vec<Arc<ConsumerLedger>>,
    /// Its files.
    pub files: Vec<Arc<FileLedger>>,
    /// Its destinations, once for each consumer.
    pub destinations: Vec<Arc<DestinationLedger>>,
}

impl Books {
    /// Looks at the kernel's counts of drops, which wrap, and at nothing else: to be called once a second.
    pub fn observe_kernel(&self) {
        for lane in self.listeners.iter().flat_map(|listener| &listener.lanes) {
            lane.ledger.kernel();
        }
    }

    /// Reads everything.
    pub fn snapshot(&self) -> Snapshot {
        let listeners = self.listeners.iter().enumerate().map(|(index, listener)| self.listener(index, listener));
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            listeners: listeners.collect(),
            host: HostSnapshot::default(),
            log_lines_lost: crate::logging::lines_lost(),
        }
    }

    /// Nothing more comes out of the channels' other ends: consumers take what is there and end.
    pub(super) fn end_channels(&self) {
        self.sinks.iter().flat_map(|sink| &sink.channels).for_each(Gauge::end);
    }

    /// The last reading. When every thread has ended as it should nothing can be in flight any more: what seems to be
    /// is residual. Where a consumer still hangs in its sink, or a thread has died, what is in flight never will be
    /// delivered as far as these books can promise, and is counted as the sink's failure.
    pub fn final_snapshot(&self, all_ended_well: bool) -> Snapshot {
        let mut snapshot = self.snapshot();
        for listener in &mut snapshot.listeners {
            for sink in listener.sinks.iter_mut().filter(|sink| sink.in_flight > 0) {
                let left = std::mem::take(&mut sink.in_flight);
                if let Some(residual) = listener.residual.as_mut().filter(|_| all_ended_well) {
                    *residual += left.cast_signed();
                } else {
                    log::error!("sink {}: gave up {left} datagrams that it did not take in time", sink.name);
                    sink.dropped.sink_error += left;
                }
            }
        }
        snapshot
    }

    fn listener(&self, index: usize, listener: &ListenerBooks) -> ListenerSnapshot {
        let taken: Vec<Tally> = listener.sinks.iter().map(|&sink| self.sinks[sink].tally(index)).collect();
        let queue_full: Vec<u64> = listener
            .sinks
            .iter()
            .map(|&sink| listener.lanes.iter().map(|lane| lane.ledger.queue_full(sink)).sum())
            .collect();
        let given_up = |sink: usize| listener.lanes.iter().map(|lane| lane.ledger.given_up(sink)).sum();
        let lanes: Vec<(LaneTally, LaneSnapshot)> =
            listener.lanes.iter().enumerate().map(|(number, lane)| lane.read(number)).collect();
        let sum = |field: fn(&LaneTally) -> u64| lanes.iter().map(|(tally, _)| field(tally)).sum::<u64>();
        let dropped = ListenerDropped {
            truncated: sum(|tally| tally.dropped_truncated),
            denied: sum(|tally| tally.dropped_denied),
            rate_limited: sum(|tally| tally.dropped_rate_limited),
            no_batch: sum(|tally| tally.dropped_no_batch),
            unsplit: sum(|tally| tally.dropped_unsplit),
            unread: listener.lanes.iter().map(|lane| lane.ledger.unread()).sum(),
        };
        let received = lanes.iter().map(|(_, lane)| lane.received).sum::<u64>();
        let kernel_dropped: Option<u64> = lanes.iter().map(|(_, lane)| lane.kernel_dropped).sum();
        let arrived: Option<u64> = lanes.iter().map(|(_, lane)| lane.arrived).sum();
        let ListenerDropped { truncated, denied, rate_limited, no_batch, unsplit, unread } = dropped;
        let to_offer = received - truncated - denied - rate_limited - no_batch - unsplit - unread;
        let mut residual = 0;
        let mut sinks = Vec::with_capacity(listener.sinks.len());
        for (place, &sink) in listener.sinks.iter().enumerate() {
            let offered = lanes.iter().map(|(tally, _)| tally.offered[place]).sum();
            let (snapshot, left_over) = self.sinks[sink].read(offered, queue_full[place], given_up(sink), taken[place]);
            residual += left_over + signed_difference(to_offer, offered);
            sinks.push(snapshot);
        }
        ListenerSnapshot {
            name: listener.name.clone(),
            address: listener.address.clone(),
            arrived,
            kernel_dropped,
            kernel_dropped_unit: if listener.gro { "buffers" } else { "datagrams" }.to_owned(),
            received,
            bytes: sum(|tally| tally.bytes),
            truncated: sum(|tally| tally.truncated),
            dropped,
            shared_with: listener.sharers.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            wrong_cpu: lanes.iter().filter_map(|(_, lane)| lane.wrong_cpu).reduce(|sum, one| sum + one),
            residual: arrived.map(|_| residual),
            sinks,
            lanes: lanes.into_iter().map(|(_, snapshot)| snapshot).collect(),
        }
    }
}

impl LaneBooks {
    fn read(&self, number: usize) -> (LaneTally, LaneSnapshot) {
        let tally = self.ledger.read();
        let (kernel_dropped, memory) = self.ledger.kernel().unzip();
        let received = tally.received + self.ledger.unread();
        let arrived_on = self.arrived_on();
        let snapshot = LaneSnapshot {
            lane: number,
            address: self.address.clone(),
            cpu: self.core,
            node: self.node,
            queue: self.intake.queue,
            engine: self.engine.to_owned(),
            arrived: kernel_dropped.filter(|_| self.ledger.is_countable()).map(|dropped| received + dropped),
            kernel_dropped,
            wrong_cpu: arrived_on.as_ref().map(|counts| self.wrong_cpu(counts)),
            planned_cpus: self.intake.expected_cores().to_vec(),
            arrived_on,
            received,
            calls: tally.calls,
            receive_errors: tally.errors,
            receive_buffer_bytes: self.receive_buffer_bytes,
            receive_buffer_used_bytes: memory.map_or(0, |memory| u64::from(memory.receive_used_bytes)),
        };
        (tally, snapshot)
    }

    /// How many datagrams arrived on each core that had any.
    fn arrived_on(&self) -> Option<BTreeMap<usize, u64>> {
        let counts = self.arrivals.as_ref()?.read().ok()?;
        Some(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }

    fn wrong_cpu(&self, counts: &BTreeMap<usize, u64>) -> u64 {
        let expected = self.intake.expected_cores();
        counts.iter().filter(|(core, _)| !expected.contains(core)).map(|(_, count)| count).sum()
    }
}

impl SinkBooks {
    /// What all consumers of this sink have counted for one listener.
    fn tally(&self, listener: usize) -> Tally {
        self.consumers.iter().map(|consumer| consumer.read(listener)).fold(Tally::default(), |sum, one| Tally {
            taken: sum.taken + one.taken,
            delivered: sum.delivered + one.delivered,
            failed: sum.failed + one.failed,
            pending: sum.pending + one.pending,
        })
    }

    /// The snapshot of this sink, and what its own sum leaves over.
    ///
    /// What waits in the channels is the one term that nobody counts: it is what was offered and neither dropped nor
    /// taken. A negative number of them is a datagram counted twice, and so is what is left when every thread has
    /// ended, see [`Books::final_snapshot`].
    fn read(&self, offered: u64, queue_full: u64, given_up: u64, tally: Tally) -> (SinkSnapshot, i64) {
        let waiting = signed_difference(offered, queue_full + given_up + tally.taken);
        let decided = tally.delivered + tally.failed + tally.pending;
        let snapshot = SinkSnapshot {
            name: self.name.clone(),
            offered,
            delivered: tally.delivered,
            dropped: SinkDropped { queue_full, sink_error: tally.failed + given_up },
            in_flight: waiting.max(0).cast_unsigned() + tally.pending,
            queue_depth: self.channels.iter().map(|channel| channel.depth() as u64).sum(),
            queue_capacity: self.channels.iter().map(|channel| channel.capacity() as u64).sum(),
            destinations: DestinationLedger::sum(self.destinations.iter().map(Arc::as_ref)),
            files: (!self.files.is_empty()).then(|| FileLedger::sum(self.files.iter().map(Arc::as_ref))),
        };
        (snapshot, signed_difference(tally.taken, decided) + waiting.min(0))
    }
}

fn signed_difference(left: u64, right: u64) -> i64 {
    left.wrapping_sub(right).cast_signed()
}
