//! The ledger of one pipeline: the counters of its listeners, lanes, sinks and consumers, and one reading of all of
//! them.
//!
//! Consumers are read before lanes, see `udpd_base::ledger`: so a reading never shows a datagram taken that was not yet
//! offered.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use mmsg::{Arrivals, CoreCounter};

use super::discarded_sockets::{DiscardReport, DiscardReports};
use super::latency_sampling::ResidenceTracker;
use crate::config::Gro;
use crate::plan::spread::Intake;
use hostloss::HostLedger;
use udpd_base::handover::channel::Closer;
use udpd_base::handover::pool::BlockGauge;
use udpd_base::ledger::counter_list::{LaneTally, SinkDropped, SinkTally};
use udpd_base::ledger::snapshot::{
    DestinationSnapshot, FilesSnapshot, LaneSnapshot, ListenerSnapshot, SharerSnapshot, SinkSnapshot, Snapshot,
};
use udpd_base::ledger::{
    ConsumerLedger, CounterSet, CounterTable, DestinationLedger, FileLedger, LaneLedger, LaneReading, PeerLedger,
    PeersSnapshot, Published, ResidenceSnapshot, ResidenceTally, Tallies, XdpSnapshot,
};
use udpd_base::os::holder;
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;
use udpd_inspect::upstream::UpstreamMonitor;

/// The kernel's counts of drops, by the inode of the socket.
pub type Drops = BTreeMap<u64, u32>;

/// What the kernel dropped between two processes at the sockets of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DropsBetweenProcesses {
    /// `None` where that is not known.
    pub dropped: Option<u64>,
    /// A train counts as one in it.
    pub in_buffers: bool,
}

/// How far a ledger has counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerPosition {
    /// The kernel's count at each socket that lanes receive from.
    pub drops: Drops,
    /// What the kernel has dropped in all; `None` where it does not say.
    pub kernel_dropped: Option<u64>,
    /// What the process itself has dropped, at listeners and sinks.
    pub dropped: u64,
    /// The listeners that take receive queues past the kernel's stack.
    pub queues: BTreeSet<String>,
}

/// The counters of one pipeline, by listener, lane, sink and consumer.
#[derive(Debug)]
pub(super) struct PipelineLedger {
    pub started: Instant,
    /// By listener of the configuration.
    pub listeners: Vec<ListenerSection>,
    /// By sink of the configuration.
    pub sinks: Vec<SinkSection>,
    /// What the kernel counts before and at the sockets.
    pub host: Arc<HostLedger>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The datagrams that are delivered or dropped, or that wait on a disk.
    pub decided: u64,
    /// Whether more wait.
    pub waits: bool,
}

#[derive(Debug)]
pub(super) struct ListenerSection {
    pub name: String,
    /// Its addresses, as bound.
    pub address: String,
    /// Whether the kernel counts trains as one.
    pub gro: Gro,
    /// The interface and the mode of its XDP program, where it has one.
    pub interface: String,
    pub xdp_mode: &'static str,
    pub sinks: Vec<usize>,
    pub lanes: Vec<LaneSection>,
    /// The feed that it has sides of, where it drops copies; empty where it is all of it.
    pub feed: Option<String>,
    /// What never reached this host, where its datagrams have numbers.
    pub upstream: Option<UpstreamMonitor>,
    /// What the kernel dropped at sockets of the previous process since that looked last; empty where it has none.
    pub between: OnceLock<DropsBetweenProcesses>,
    /// Which other sockets are on its port; `None` where that cannot be seen.
    pub sharers: Mutex<Option<Vec<SharerSnapshot>>>,
}

#[derive(Debug)]
pub(super) struct LaneSection {
    /// What its socket is bound to.
    pub address: String,
    /// The memory node of its batches.
    pub node: Option<usize>,
    /// What was planned of its arrivals.
    pub intake: Intake,
    /// Counts on which core and queue they arrive.
    pub arrivals: Option<CoreCounter>,
    pub receive_buffer_bytes: u64,
    pub engine: &'static str,
    /// Room for so many frames, where it takes an XDP queue.
    pub queue: Option<u64>,
    pub ledger: Arc<LaneLedger>,
}

#[derive(Debug)]
pub(super) struct SinkSection {
    pub name: String,
    /// It runs on its lanes' receivers and has no channels.
    pub is_inline: bool,
    /// Its channels, to end them.
    pub channels: Vec<Closer>,
    /// What waits in them.
    pub queues: Vec<BlockGauge>,
    pub block_bytes: usize,
    pub consumers: Vec<Arc<ConsumerLedger>>,
    /// How long datagrams stayed, by consumer.
    pub residence: Vec<Arc<Published<ResidenceTally>>>,
    pub files: Vec<Arc<FileLedger>>,
    /// Its destinations, once for each consumer.
    pub destinations: Vec<Arc<DestinationLedger>>,
    /// Its connections to servers, once for each consumer.
    pub peers: Vec<Arc<PeerLedger>>,
    /// A later pipeline has retained the sink, and its files and destinations count in the ledger of that one.
    pub is_handed_on: AtomicBool,
}

/// What a reading shows of a sink alike under each listener that feeds it.
struct WholeSink {
    queue_depth: u64,
    queue_capacity: u64,
    residence: Option<ResidenceSnapshot>,
    destinations: Vec<DestinationSnapshot>,
    peers: PeersSnapshot,
    files: Option<FilesSnapshot>,
}

impl PipelineLedger {
    /// Reads the kernel's counts of drops, which wrap, and nothing else: to be called once a second.
    pub(super) fn read_kernel_drops(&self) {
        for (_, lane) in self.lanes() {
            lane.ledger.kernel();
        }
    }

    /// The core that a lane's receiver runs on, which is null where that is none in particular, without the rest of a
    /// reading; `None` where there is no such lane.
    pub(super) fn core_of(&self, listener: &str, lane: usize) -> Option<Option<usize>> {
        let listener = self.listeners.iter().find(|books| books.name == listener)?;
        listener.lanes.get(lane).map(|lane| lane.ledger.core())
    }

    /// Reads what the kernel and the cards count: to be called once a second. A driver may take its time.
    pub(super) fn read_host_counters(&self) {
        self.host.look(self.lanes().filter_map(|(_, lane)| holder::inode_of(lane.ledger.socket()?).ok()));
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        // Once, and not once for each listener: a sink of a thousand listeners has a thousand queues.
        let whole: Vec<WholeSink> = self.sinks.iter().map(SinkSection::whole).collect();
        let listeners = self.listeners.iter().enumerate();
        let listeners = listeners.map(|(index, listener)| self.listener(index, listener, &whole));
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: clock::since(self.started).as_secs_f64(),
            before: None,
            listeners: listeners.collect(),
            host: self.host.sums(),
            log_lines_lost: udpd_base::logging::lines_lost(),
            last_reload: None,
            draining_since: None,
            readiness: None,
            drain: None,
        }
    }

    /// What each consumer of each sink has decided, added to `found`.
    pub(super) fn add_progress(&self, found: &mut BTreeMap<(String, usize), Progress>) {
        for sink in &self.sinks {
            for (number, (consumer, channel)) in sink.consumers.iter().zip(&sink.channels).enumerate() {
                let tally = consumer.sum();
                let progress = found.entry((sink.name.clone(), number)).or_default();
                progress.decided += tally.delivered + tally.dropped.total() + tally.spilled;
                progress.waits |= tally.pending > 0 || channel.has_any();
            }
        }
    }

    /// How far it has counted, each socket and its part of the sum as of one moment.
    pub(super) fn position(&self) -> LedgerPosition {
        let mut position = LedgerPosition { kernel_dropped: Some(0), ..LedgerPosition::default() };
        let mut add = |dropped: Option<u64>| {
            position.kernel_dropped = position.kernel_dropped.zip(dropped).map(|(sum, one)| sum.saturating_add(one));
        };
        for listener in &self.listeners {
            add(listener.between.get().map_or(Some(0), |between| between.dropped));
            for lane in &listener.lanes {
                let own = lane.ledger.look();
                add(own.dropped);
                position.dropped += lane.ledger.read().dropped.total() + own.denied;
                if let Some((socket, drops)) = own.seen {
                    position.drops.extend(holder::inode_of(socket).ok().map(|inode| (inode, drops)));
                }
                if lane.queue.is_some() {
                    position.queues.insert(listener.name.clone());
                }
            }
        }
        position.dropped += self.not_taken() + self.sum_of_consumers(|tally| tally.dropped.total());
        position
    }

    /// Counts what came to the sockets of a replacement that is given up.
    pub(super) fn count_in_vain(&self, reports: &DiscardReports) {
        for report in reports.all().drain(..) {
            let listener = self.listeners.iter().find(|listener| listener.name == report.listener);
            let Some(lane) = listener.and_then(|listener| listener.lanes.first()) else { continue };
            lane.ledger.count_elsewhere(report.drops.map(u64::from), report.unread);
        }
    }

    /// How many drops at each socket are in this ledger, as of the last reading; wrapped as the kernel's own count.
    pub(super) fn counted_drops(&self) -> Drops {
        let counted = self.lanes().filter_map(|(_, lane)| lane.ledger.counted());
        counted.filter_map(|(socket, drops)| Some((holder::inode_of(socket).ok()?, drops as u32))).collect()
    }

    /// How many datagrams have been offered to sinks and are not decided there, once for each sink.
    pub(super) fn under_way(&self) -> u64 {
        // In this order, see `udpd_base::ledger`.
        let found = |tally: &SinkTally| tally.spilled_before + tally.spilled_again;
        let decided = self.sum_of_consumers(|tally| {
            (tally.delivered + tally.dropped.total() + tally.spilled).saturating_sub(found(&tally))
        });
        let offered: u64 = self.lanes().map(|(_, lane)| lane.ledger.read().offered.iter().sum::<u64>()).sum();
        offered.saturating_sub(self.not_taken() + decided)
    }

    /// What lanes could not give to sinks.
    fn not_taken(&self) -> u64 {
        let by_sink =
            self.lanes().flat_map(|(listener, lane)| listener.sinks.iter().map(|&sink| lane.ledger.not_taken(sink)));
        by_sink.map(|cells| SinkDropped::load(cells).total()).sum()
    }

    /// The sum of something that all consumers have counted.
    fn sum_of_consumers(&self, what: impl Fn(SinkTally) -> u64) -> u64 {
        let by_sink = self.listeners.iter().enumerate();
        by_sink
            .flat_map(|(index, listener)| listener.sinks.iter().map(move |&sink| (index, sink)))
            .flat_map(|(index, sink)| self.sinks[sink].consumers.iter().map(move |consumer| consumer.read(index)))
            .map(what)
            .sum()
    }

    /// What knows the streams of each listener that follows sequence numbers.
    pub(super) fn upstream(&self) -> impl Iterator<Item = (&str, &UpstreamMonitor)> {
        self.listeners.iter().filter_map(|listener| Some((listener.name.as_str(), listener.upstream.as_ref()?)))
    }

    fn lanes(&self) -> impl Iterator<Item = (&ListenerSection, &LaneSection)> {
        self.listeners.iter().flat_map(|listener| listener.lanes.iter().map(move |lane| (listener, lane)))
    }

    /// How many datagrams consumers have decided, of all sinks together.
    pub(super) fn decided(&self) -> u64 {
        let mut found = BTreeMap::new();
        self.add_progress(&mut found);
        found.values().map(|progress| progress.decided).sum()
    }

    /// Counts what waits for this sink as failed. Its consumer keeps what it has taken.
    pub(super) fn give_up_waiting(&self, sink: &str) {
        let Some(place) = self.sinks.iter().position(|books| books.name == sink) else { return };
        let mut given_up = 0;
        for parcel in self.sinks[place].channels.iter().flat_map(Closer::drain) {
            let datagrams = parcel.datagrams.summary().datagrams;
            let Some(lane) = self.listeners[parcel.listener].lanes.first() else { continue };
            lane.ledger.not_taken(place).sink_error.fetch_add(datagrams, Ordering::Relaxed);
            given_up += datagrams;
        }
        if given_up > 0 {
            log::error!(
                "sink {sink}: gave up {given_up} datagrams that have waited for it since an earlier reload, because \
                 later ones need their memory; they count as sink_error: look at its disk or its peer, which takes \
                 nothing"
            );
        }
    }

    /// Ends all channels: consumers take what is there and end.
    pub(super) fn end_channels(&self) {
        self.sinks.iter().flat_map(|sink| &sink.channels).for_each(Closer::end);
    }

    /// The last reading. When every thread has ended as it should nothing can be in flight any more: what seems to be
    /// is residual. Where a consumer still hangs in its sink, or a thread has died, this ledger cannot promise that
    /// what is in flight will be delivered, and counts it as the sink's failure.
    pub(super) fn final_snapshot(&self, all_ended_well: bool) -> Snapshot {
        let mut snapshot = self.snapshot();
        for listener in &mut snapshot.listeners {
            for sink in listener.sinks.iter_mut().filter(|sink| sink.in_flight > 0) {
                let left = std::mem::take(&mut sink.in_flight);
                if let Some(residual) = listener.residual.as_mut().filter(|_| all_ended_well) {
                    *residual += left.cast_signed();
                } else {
                    log::error!("sink {}: gave up {left} datagrams that it did not take in time", sink.name);
                    sink.counts.dropped.sink_error += left;
                }
            }
        }
        snapshot
    }

    fn listener(&self, index: usize, listener: &ListenerSection, whole: &[WholeSink]) -> ListenerSnapshot {
        // Sinks first: what a consumer took, or a channel did not take, was offered before.
        let at_sinks: Vec<(SinkTally, SinkDropped)> =
            listener.sinks.iter().map(|&sink| (self.sinks[sink].tally(index), listener.not_taken(sink))).collect();
        let lanes: Vec<LaneSnapshot> =
            listener.lanes.iter().enumerate().map(|(index, lane)| lane.read(index, listener)).collect();
        let counts = LaneTally::sum(lanes.iter().map(|lane| lane.counts));
        let arrived: Option<u64> = lanes.iter().map(|lane| lane.arrived).sum();
        let between = listener.between.get();
        let mut residual = 0;
        let mut sinks = Vec::with_capacity(listener.sinks.len());
        for ((&sink, offered), (tally, not_taken)) in listener.sinks.iter().zip(counts.offered).zip(at_sinks) {
            let (snapshot, left_over) = self.sinks[sink].read(offered, not_taken, tally, &whole[sink]);
            residual += left_over + signed_difference(counts.received, counts.dropped.total() + offered);
            sinks.push(snapshot);
        }
        ListenerSnapshot {
            name: listener.name.clone(),
            address: listener.address.clone(),
            arrived,
            kernel_dropped: lanes.iter().map(|lane| lane.kernel_dropped).sum(),
            kernel_dropped_between: between.and_then(|between| between.dropped),
            kernel_dropped_unit: if listener.gro.is_on() || between.is_some_and(|between| between.in_buffers) {
                "buffers"
            } else {
                "datagrams"
            }
            .to_owned(),
            gro: listener.gro.state().to_owned(),
            feed: listener.feed.clone(),
            counts,
            upstream: listener.upstream.as_ref().map(|upstream| {
                let own = &counts.dropped;
                let refused = own.malformed + own.header_checksum + own.checksum + own.no_checksum;
                let others = own.unsplit + own.unread + refused;
                // What is refused at the end leaves no gap in the numbers.
                let dropped = lanes.iter().zip(&listener.lanes);
                let dropped =
                    dropped.map(|(lane, books)| Some(lane.kernel_dropped?.min(books.ledger.dropped_at_end())));
                upstream.read(dropped, listener.gro.is_on(), others + counts.dropped.of_proxies())
            }),
            shared_with: lock(&listener.sharers).clone(),
            wrong_cpu: lanes.iter().filter_map(|lane| lane.wrong_cpu).reduce(|sum, one| sum + one),
            residual: arrived.map(|_| residual),
            sinks,
            lanes,
            removed: false,
        }
    }
}

impl ListenerSection {
    /// Counts what waited in its sockets that are closed.
    pub(super) fn count_unread(&self, closed: &[DiscardReport]) {
        let Some(lane) = self.lanes.first() else { return };
        closed.iter().for_each(|report| match report.unread {
            Some(unread) => lane.ledger.count_unread(unread),
            None => lane.ledger.note_uncountable(),
        });
    }

    /// What the lanes could not give to a sink.
    fn not_taken(&self, sink: usize) -> SinkDropped {
        SinkDropped::sum(self.lanes.iter().map(|lane| SinkDropped::load(lane.ledger.not_taken(sink))))
    }
}

impl LaneSection {
    fn read(&self, number: usize, listener: &ListenerSection) -> LaneSnapshot {
        let LaneReading { dropped: kernel_dropped, denied, used_bytes } = self.ledger.kernel();
        let counts = self.ledger.read().with_denied(denied.unwrap_or_default());
        let xdp = self.ledger.queue().zip(self.queue).map(|(queue, chunks)| XdpSnapshot {
            interface: listener.interface.clone(),
            mode: listener.xdp_mode.to_owned(),
            chunks,
            ..queue
        });
        // A counter that cannot be read tells nothing, which is not 0.
        let arrivals = self.arrivals.as_ref().and_then(|counter| counter.read().ok());
        let arrivals = arrivals.as_deref();
        let is_countable = self.ledger.is_countable();
        LaneSnapshot {
            lane: number,
            address: self.address.clone(),
            cpu: self.ledger.core(),
            node: self.node,
            queue: self.intake.queue,
            engine: self.engine.to_owned(),
            arrived: kernel_dropped.filter(|_| is_countable).map(|dropped| counts.received + dropped),
            kernel_dropped,
            denied_in_kernel: denied.map(|denied| denied.messages),
            wrong_cpu: arrivals.map(|arrivals| self.wrong_cpu(arrivals)),
            planned_cpus: self.intake.expected_cores().to_vec(),
            arrived_on: arrivals.map(by_core),
            arrived_by_queue: arrivals.map(by_queue),
            counts,
            receive_buffer_bytes: self.receive_buffer_bytes,
            receive_buffer_used_bytes: xdp.as_ref().map_or(used_bytes, |xdp| self.bytes_waiting(xdp)),
            xdp,
            senders: self.ledger.senders(),
            removed: false,
        }
    }

    /// Of the memory in which frames wait, what is in use.
    fn bytes_waiting(&self, xdp: &XdpSnapshot) -> u64 {
        self.receive_buffer_bytes / xdp.chunks.max(1) * xdp.waiting
    }

    fn wrong_cpu(&self, arrivals: &[Arrivals]) -> u64 {
        let wrong = arrivals.iter().filter(|found| self.intake.is_wrong(found.queue, found.core));
        wrong.map(|found| found.count).sum()
    }
}

/// How many datagrams arrived on each core that had any.
fn by_core(arrivals: &[Arrivals]) -> BTreeMap<usize, u64> {
    let mut cores = BTreeMap::new();
    for found in arrivals {
        *cores.entry(found.core).or_default() += found.count;
    }
    cores
}

/// The same for each queue, without those that no device has recorded.
fn by_queue(arrivals: &[Arrivals]) -> BTreeMap<u32, BTreeMap<usize, u64>> {
    let mut queues: BTreeMap<u32, BTreeMap<usize, u64>> = BTreeMap::new();
    for (queue, found) in arrivals.iter().filter_map(|found| Some((found.queue?, found))) {
        queues.entry(queue).or_default().insert(found.core, found.count);
    }
    queues
}

impl SinkSection {
    /// Of a sink without consumers yet.
    pub(super) fn new(name: String, block_bytes: usize) -> Self {
        Self {
            name,
            is_inline: false,
            channels: Vec::new(),
            queues: Vec::new(),
            block_bytes,
            consumers: Vec::new(),
            residence: Vec::new(),
            files: Vec::new(),
            destinations: Vec::new(),
            peers: Vec::new(),
            is_handed_on: AtomicBool::new(false),
        }
    }

    /// Adds a consumer that counts for these listeners.
    pub(super) fn add_consumer(&mut self, listeners: Range<usize>) -> (Arc<ConsumerLedger>, Tallies, ResidenceTracker) {
        let (ledger, residence) = (Arc::new(ConsumerLedger::new(listeners.clone())), Arc::default());
        self.consumers.push(Arc::clone(&ledger));
        self.residence.push(Arc::clone(&residence));
        (ledger, Tallies::new(listeners), ResidenceTracker::new(residence))
    }

    /// What all consumers of this sink have counted for one listener.
    fn tally(&self, listener: usize) -> SinkTally {
        SinkTally::sum(self.consumers.iter().map(|consumer| consumer.read(listener)))
    }

    fn bytes(&self, blocks: fn(&BlockGauge) -> usize) -> u64 {
        (self.queues.iter().map(blocks).sum::<usize>() * self.block_bytes) as u64
    }

    /// What is the same for all listeners that feed this sink.
    fn whole(&self) -> WholeSink {
        let is_handed_on = self.is_handed_on.load(Ordering::Relaxed);
        let (files, destinations, peers): (&[_], &[_], &[_]) = match is_handed_on {
            true => (&[], &[], &[]),
            false => (&self.files, &self.destinations, &self.peers),
        };
        WholeSink {
            queue_depth: self.bytes(BlockGauge::in_use),
            queue_capacity: self.bytes(BlockGauge::capacity),
            residence: ResidenceTally::sum(self.residence.iter().map(|residence| residence.read())).read(),
            destinations: DestinationLedger::sum(destinations.iter().map(Arc::as_ref)),
            peers: PeerLedger::sum(peers.iter().map(Arc::as_ref)),
            files: (!files.is_empty()).then(|| FileLedger::sum(files.iter().map(Arc::as_ref))),
        }
    }

    /// The snapshot of this sink for one listener, and what its own sum leaves over.
    ///
    /// What waits in the channels is the one term without a counter: it is what was offered and neither dropped nor
    /// taken. A negative number is a datagram counted twice, and so is what is left when every thread has ended, see
    /// [`PipelineLedger::final_snapshot`].
    fn read(
        &self,
        offered: u64,
        not_taken: SinkDropped,
        mut counts: SinkTally,
        whole: &WholeSink,
    ) -> (SinkSnapshot, i64) {
        let waiting = signed_difference(offered, not_taken.total() + counts.taken);
        let decided = counts.delivered + counts.dropped.total() + counts.pending + counts.spilled;
        let taken = counts.taken + counts.spilled_before + counts.spilled_again;
        let left_over = signed_difference(taken, decided) + waiting.min(0);
        counts.dropped.add(&not_taken);
        let snapshot = SinkSnapshot {
            name: self.name.clone(),
            inline: self.is_inline,
            offered,
            counts,
            in_flight: waiting.max(0).cast_unsigned() + counts.pending,
            queue_depth: whole.queue_depth,
            queue_capacity: whole.queue_capacity,
            residence: whole.residence.clone(),
            destinations: whole.destinations.clone(),
            peers: whole.peers.clone(),
            files: whole.files.clone(),
            state: None,
            removed: false,
        };
        (snapshot, left_over)
    }
}

fn signed_difference(left: u64, right: u64) -> i64 {
    left.wrapping_sub(right).cast_signed()
}
