//! One reading of the ledger, in the shape that `udpd stats --json`, `stats_on_exit` and the metrics share.
//!
//! arrived = received + kernel_dropped; received = offered (to each sink) + dropped; offered = delivered + dropped +
//! in_flight. Every term is counted on its own by the thread that saw it happen, so `residual`, what is left of those
//! sums, is a check and not a definition. What cannot be known is null, and so is then the residual. Keys are only ever
//! added.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use hostloss::HostReading;
use serde::{Deserialize, Serialize};

use super::counter::CounterSet;
use super::counter_list::{DestinationTally, FileTally, LaneTally, SinkTally, UpstreamTally};
use super::lane::XdpSnapshot;
use super::peers::PeersSnapshot;
use super::residence::ResidenceSnapshot;
use super::senders::SenderSnapshot;

/// The whole ledger at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of udpd that counted.
    pub version: String,
    /// Since the process started.
    pub uptime_seconds: f64,
    /// The process before, whose sockets this one goes on with; null where there was none, or nothing is known of it.
    #[serde(default)]
    pub before: Option<BeforeSnapshot>,
    /// In the order of the configuration.
    pub listeners: Vec<ListenerSnapshot>,
    /// What the kernel and the cards counted on this host since the process started, and what of it was lost.
    pub host: HostReading,
    /// Log lines that could not be written because stderr was full or closed.
    pub log_lines_lost: u64,
    /// What became of the last wish to read the configuration again; absent while there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<ReloadSnapshot>,
    /// Since when the daemon ends and only hands on what it holds, in seconds since 1970; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<f64>,
    /// Whether a balancer is to send here; absent where no daemon has looked, as in a bench.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<ReadinessSnapshot>,
    /// What came since udpd was told to leave and receives on; absent where it was not, or was told to stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSnapshot>,
}

/// Whether the daemon is ready, and in one word and one sentence why not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadinessSnapshot {
    pub ready: bool,
    /// "ready", or what keeps it from being so: "starting", "draining", "lane", "sink", "queue", "residual".
    pub reason: String,
    pub text: String,
    /// Since when it is ready, or is not, in seconds since 1970.
    pub since: f64,
}

/// A daemon that is not ready on purpose and receives on, so that what is still sent to it is not lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrainSnapshot {
    /// When it began, in seconds since 1970.
    pub since: f64,
    /// When udpd ends at the latest; null where it waits for `udpd undrain` or a stop.
    pub until: Option<f64>,
    /// How many datagrams have arrived since then.
    pub arrived: u64,
    /// When the last of them was seen; null where none came.
    pub last_arrived: Option<f64>,
}

impl Snapshot {
    /// How many datagrams have arrived at all listeners, as far as the kernel tells.
    pub fn arrived(&self) -> u64 {
        self.listeners.iter().map(|listener| listener.arrived.unwrap_or(listener.counts.received)).sum()
    }
}

/// How a sink fares, of all its listeners together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SinkStateSnapshot {
    pub name: SinkCondition,
    /// Seconds since 1970.
    pub since: f64,
    /// The last line of the log that warned of the sink, without its name; null where there was none since then.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SinkCondition {
    Up,
    /// It hands on, but not all, its queue is nearly full, or its files cannot be uploaded.
    Slow,
    /// It hands on nothing of what is there for it.
    Down,
}

impl SinkCondition {
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Slow => "slow",
            Self::Down => "down",
        }
    }
}

/// What became of a reload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReloadSnapshot {
    /// Seconds since 1970.
    pub at: f64,
    /// Whether the configuration is in force.
    pub done: bool,
    /// What was done, or why nothing was.
    pub text: String,
}

/// What is known of the process before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeforeSnapshot {
    pub pid: u32,
    /// False when it was killed, or has crashed.
    pub ended: bool,
    /// What it may have received and not delivered: all that it had room for; 0 when it has ended by itself, because
    /// its own ledger says what became of everything. Null where its sockets are gone with it: it is not known how much
    /// waited in them.
    pub lost_datagrams_at_most: Option<u64>,
    /// The memory that these were in.
    pub lost_bytes_at_most: Option<u64>,
    /// How many datagrams it had received and not delivered when it looked last, up to a second before its end; counted
    /// once for each sink.
    pub in_flight: Option<u64>,
    /// What the kernel had dropped at its sockets when it looked last, and between it and the one before it. What came
    /// after that is in `kernel_dropped_between`. 0 when it has ended by itself: its own ledger has them. Null when
    /// that is not known.
    #[serde(default)]
    pub kernel_dropped: Option<u64>,
    /// What it had dropped itself by then, at its listeners and sinks, in the same way.
    #[serde(default)]
    pub dropped: Option<u64>,
}

/// One listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListenerSnapshot {
    pub name: String,
    /// Its addresses, joined by ", ".
    pub address: String,
    /// Datagrams that reached its sockets: received + kernel_dropped. Null when that cannot be known.
    pub arrived: Option<u64>,
    /// What the kernel dropped at its sockets, see `kernel_dropped_unit`. Null when the kernel does not say.
    pub kernel_dropped: Option<u64>,
    /// What it dropped there after the process before had looked last and before this one began; in no other count.
    /// Null where none of the sockets is of that process, or that is not known.
    #[serde(default)]
    pub kernel_dropped_between: Option<u64>,
    /// "datagrams", or "buffers" with GRO, where a dropped train counts as one.
    pub kernel_dropped_unit: String,
    /// Whether trains are taken in one piece: "off", "on", "auto" while it finds out, then "auto: off" or "auto: on".
    #[serde(default)]
    pub gro: String,
    /// The feed that it has sides of, where it drops copies: of several listeners by its name, of this one alone empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<String>,
    #[serde(flatten)]
    pub counts: LaneTally,
    /// What never reached this host, by the numbers in its datagrams; null without `sequence`.
    #[serde(default)]
    pub upstream: Option<UpstreamSnapshot>,
    /// Other processes with sockets on its port, of which the kernel lets only some users' be there. Null when they
    /// cannot be seen.
    #[serde(default)]
    pub shared_with: Option<Vec<SharerSnapshot>>,
    /// The sum of its lanes' `wrong_cpu`; null when that of every lane is.
    pub wrong_cpu: Option<u64>,
    /// What the sums leave over; 0 unless udpd has lost count. Null when a term is not known.
    pub residual: Option<i64>,
    /// In the order of the configuration.
    pub sinks: Vec<SinkSnapshot>,
    /// In the order of their numbers.
    pub lanes: Vec<LaneSnapshot>,
    /// It is no longer in the configuration: its counts stay in the ledger.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// What the numbers in the datagrams of a listener say, in `unit`. Between datagrams that came: what was lost before a
/// stream's first or after its last cannot be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamSnapshot {
    /// "datagrams", "flows" (NetFlow 5), "records" (IPFIX), or "units" where each stream has its own of these.
    pub unit: String,
    /// What was sent and never reached this host; null where only bounds are known.
    pub missing: Option<u64>,
    /// Missing even if all that this host lost, and whose numbers were not seen, was among it.
    pub missing_at_least: u64,
    /// Missing if nothing of that was.
    pub missing_at_most: u64,
    #[serde(flatten)]
    pub counts: UpstreamTally,
    /// Datagrams that were received and whose numbers there was no time to follow.
    pub unseen: u64,
    /// Datagrams without such a number: of another protocol, or too short.
    pub unnumbered: u64,
    /// The streams that lost most, at most [`WORST_MAX`], the worst first.
    #[serde(default)]
    pub worst: Vec<StreamSnapshot>,
}

/// How many streams of a listener the ledger names.
pub const WORST_MAX: usize = 16;

/// One stream, in `unit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSnapshot {
    /// The exporter, and the port that it sends from.
    pub source: IpAddr,
    pub port: u16,
    /// Where it sends to: an address of this host or a group; null where that is not known.
    pub destination: Option<SocketAddr>,
    /// What tells it from others of the same session: a source id, an observation domain, an engine (type/id), an agent
    /// with its sub-agent, an SSRC. Empty where the protocol has nothing of this kind.
    pub domain: String,
    pub protocol: String,
    pub unit: String,
    /// Numbers that came, those that came twice included.
    pub arrived: u64,
    /// As of a listener.
    pub missing: Option<u64>,
    pub missing_at_least: u64,
    pub missing_at_most: u64,
    pub duplicate: u64,
    pub reordered: u64,
    pub late: u64,
    pub restarts: u64,
    /// When its first datagram came, and its last one, in seconds since 1970.
    pub since: u64,
    pub heard: u64,
    /// The numbers that it has come to use here; null where one cannot say, as with IPFIX.
    #[serde(default)]
    pub numbers: Option<NumberSpan>,
    /// It lost something within the last minute.
    pub losing: bool,
    /// It has sent nothing for as long as `silence` says.
    pub silent: bool,
}

/// From which number to which a stream came, since it began here or began anew. They are continued past every wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberSpan {
    pub first: u64,
    /// The number behind the last one.
    pub next: u64,
    /// How many bits the number has in the datagram.
    pub bits: u32,
}

/// A ledger with all streams that udpd remembers, as a fleet is asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LedgerWithStreams {
    #[serde(flatten)]
    pub ledger: Snapshot,
    pub streams: Vec<ListenerStreams>,
}

/// All streams of a listener that udpd remembers, as `udpd stats --streams` asks for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStreams {
    pub listener: String,
    pub streams: Vec<StreamSnapshot>,
}

impl StreamSnapshot {
    /// Whether it is the same stream.
    fn is(&self, other: &Self) -> bool {
        (self.source, self.port, self.destination, &self.domain, &self.protocol)
            == (other.source, other.port, other.destination, &other.domain, &other.protocol)
    }
}

/// The sockets of another process on the port of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharerSnapshot {
    /// The process; null when this one may not look into it.
    pub pid: Option<u32>,
    pub command: Option<String>,
    pub uid: u32,
    /// What the sockets are bound to.
    pub address: String,
    pub sockets: u64,
    /// What they take of what is sent to the listener.
    pub takes: Takes,
}

/// What a socket takes of what is sent to another's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Takes {
    /// It is the other way round.
    Nothing,
    /// All that fits it better, by address, interface or sender.
    Part,
    /// As many as the kernel's choice among equals gives it.
    Share,
}

/// What one sink did with the datagrams of one listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SinkSnapshot {
    pub name: String,
    /// It runs on the threads of its receivers, without a queue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inline: bool,
    pub offered: u64,
    /// What its consumers have counted, and what the lanes could not give it.
    #[serde(flatten)]
    pub counts: SinkTally,
    /// Datagrams in its channels and in its hands.
    pub in_flight: u64,
    /// The bytes of the pool that what waits for it takes now, whatever listener it is from.
    pub queue_depth: u64,
    /// How many that can be before `when_full` decides, if nothing else waits.
    pub queue_capacity: u64,
    /// How long datagrams stayed from arrival to delivery: of all listeners of the sink together. Null where nothing
    /// was measured yet.
    #[serde(default)]
    pub residence: Option<ResidenceSnapshot>,
    /// What it has written, for a sink of type `file`: of all its listeners together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesSnapshot>,
    /// What it has sent where, for a sink of type `udp`: of all its listeners together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationSnapshot>,
    /// Its connections, and what servers refuse, for a sink of type `http` or `tcp`: of all its listeners together.
    #[serde(flatten)]
    pub peers: PeersSnapshot,
    /// Absent before anything was seen of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SinkStateSnapshot>,
    /// It is no longer in the configuration: its counts stay in the ledger.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// What a relay has sent to one destination, in datagrams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DestinationSnapshot {
    pub address: String,
    #[serde(flatten)]
    pub counts: DestinationTally,
}

/// What a sink has written to files. Bytes of records, as the files hold them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FilesSnapshot {
    #[serde(flatten)]
    pub counts: FileTally,
    /// Everything that was written before is on the disk, or doubtful; seconds since 1970, null before the first sync.
    pub synced_at: Option<f64>,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneSnapshot {
    pub lane: usize,
    /// The address its socket is bound to.
    pub address: String,
    /// The one core that its receiver may run on now; null when that is not one alone: it was not pinned, its core is
    /// off, or it was moved.
    pub cpu: Option<usize>,
    /// The memory node of the core that it was planned for, when the machine tells: there lie its batches.
    pub node: Option<usize>,
    /// The RX queue that feeds it, when a plan says so.
    pub queue: Option<usize>,
    pub engine: String,
    /// received + kernel_dropped; null when that cannot be known.
    pub arrived: Option<u64>,
    /// From SO_MEMINFO, without `denied_in_kernel`; null when the kernel does not say.
    pub kernel_dropped: Option<u64>,
    /// Of its `denied`, those that a filter in the kernel has refused (`kernel_filter`), in the listener's
    /// `kernel_dropped_unit`; absent where it never had one. The kernel has them in its own counts of drops and errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_in_kernel: Option<u64>,
    /// Of what arrived, what did so on another core than planned: for its receive queue where the device records one
    /// that the plan knows, and otherwise for the lane, see `planned_cpus`. Null when nothing is planned, or when the
    /// kernel does not let us count. In the listener's `kernel_dropped_unit`: with GRO a train counts one. What is
    /// refused at the end of the daemon is not counted any more.
    #[serde(default)]
    pub wrong_cpu: Option<u64>,
    /// The cores on which its datagrams should arrive; empty when that is not known.
    #[serde(default)]
    pub planned_cpus: Vec<usize>,
    /// How many arrived on each core, where that is counted.
    #[serde(default)]
    pub arrived_on: Option<BTreeMap<usize, u64>>,
    /// The same of each receive queue that the plan knows, without what came from none of them.
    #[serde(default)]
    pub arrived_by_queue: Option<BTreeMap<u32, BTreeMap<usize, u64>>>,
    #[serde(flatten)]
    pub counts: LaneTally,
    /// What the kernel granted, as it accounts (twice the value set).
    pub receive_buffer_bytes: u64,
    /// How much of it is in use now.
    pub receive_buffer_used_bytes: u64,
    /// What it has instead of a socket, where it takes a receive queue past the kernel's stack. What the kernel has
    /// dropped is then what the queue's AF_XDP socket has lost; null where the device writes frames itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpSnapshot>,
    /// Who sends most to it of late, the busiest first. The metrics never have an address.
    #[serde(default)]
    pub senders: Vec<SenderSnapshot>,
    /// It is no longer in the configuration: its counts stay in the ledger.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

// Adding one reading of the ledger to another: what was counted before the pipeline was made anew, and what after.
//
// Listeners, lanes and sinks go on by their names. What only the earlier ledger has stays in the sum and is marked
// as removed, so nothing that was ever delivered or lost leaves the ledger.

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
        // What was found in a spill of this process is the same that is in the earlier ledger.
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
        self.peers.add_earlier(&before.peers);
    }

    fn removed(self) -> Self {
        let peers = PeersSnapshot { connections: Vec::new(), ..self.peers };
        Self { removed: true, queue_capacity: 0, peers, ..self }
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
        // The streams of before have begun anew.
        let UpstreamTally { streams, losing, silent, .. } = self.counts;
        self.counts.add(&before.counts);
        (self.counts.streams, self.counts.losing, self.counts.silent) = (streams, losing, silent);
        self.unseen += before.unseen;
        self.unnumbered += before.unnumbered;
        for stream in before.worst {
            match self.worst.iter_mut().find(|own| own.is(&stream)) {
                Some(own) => {
                    own.missing = both(own.missing, stream.missing, |own, other| own + other);
                    own.missing_at_least += stream.missing_at_least;
                    own.missing_at_most += stream.missing_at_most;
                    own.arrived += stream.arrived;
                    own.duplicate += stream.duplicate;
                    own.reordered += stream.reordered;
                    own.late += stream.late;
                    own.restarts += stream.restarts;
                    own.since = stream.since;
                }
                None => self.worst.push(StreamSnapshot { losing: false, silent: false, ..stream }),
            }
        }
        self.worst.sort_by_key(|stream| std::cmp::Reverse(stream.missing_at_most));
        self.worst.truncate(WORST_MAX);
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
