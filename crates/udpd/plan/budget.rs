//! What a configuration asks of the machine, worked out before anything is opened: the lanes, their cores, their memory
//! and their receive buffers. `udpd check` prints it, the pipeline builds it; both see the same numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use mmsg::{BatchShape, Control};
use steer::plan::QueueSeat;
use steer::{Seat, Seating, Topology, place};

use super::engine::Choice;
use super::steering::{self, Members, Steering};
use crate::config::feeds::{Feed, Feeds};
use crate::config::{Absorb, Config, Listener, ReceiveBuffer, Sink, SinkKind, Spread, Timestamps, UnixSocket, overlap};
use crate::handover::pool::PoolSize;
use crate::policy;
use crate::sink::{outbox, relay};

/// What the queue of librdkafka may hold for each consumer, unless `properties` say otherwise.
pub const KAFKA_QUEUE_BYTES: usize = 64 << 20;

/// The payload that buffers are sized for; what the kernel charges for it is [`charge_bytes`].
const PAYLOAD_ASSUMED: usize = 512;

/// The most that is asked for one socket: beyond it kernels have had their sums wrong.
const RECEIVE_BUFFER_MAX: u64 = 1 << 30;

/// The most slots of a batch whose slots hold a whole train.
const GRO_SLOTS_MAX: usize = 16;

/// What the kernel charges a socket's buffer for one datagram: the payload, its headers and its bookkeeping, rounded
/// the way its allocator rounds. Measured on loopback with Linux 6.18; drivers that hand up whole pages charge more.
pub fn charge_bytes(payload: usize) -> u64 {
    match payload {
        0..=64 => 832,
        65..=512 => 1280,
        513..=1472 => 2304,
        _ => (payload as u64).next_multiple_of(4096) + 4352,
    }
}

/// One lane as it will be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanePlan {
    /// Index of the listener.
    pub listener: usize,
    /// Number within the listener.
    pub number: usize,
    /// Number within the lanes of its address, which is its place in their reuseport group.
    pub member: usize,
    /// What its socket is bound to.
    pub address: SocketAddr,
    /// Its socket is not alone on that address, or need not be: sockets of the same user can be bound beside it.
    pub shares: bool,
    /// Its core.
    pub core: Option<usize>,
    /// The memory node of that core.
    pub node: Option<usize>,
    /// Which datagrams it gets, and where they should arrive.
    pub steering: Steering,
    /// The value for SO_RCVBUF; the kernel accounts twice as much.
    pub receive_buffer_bytes: usize,
    /// Datagrams per second that this lane must take.
    pub rate: u64,
    /// How its batches are made.
    pub shape: BatchShape,
    /// How many it has.
    pub pool: PoolSize,
    /// What fills them.
    pub engine: Choice,
    /// The memory of its rate limit.
    pub policy_bytes: usize,
}

impl LanePlan {
    /// All of its batches, with the one that is never handed over and those that the engine keeps to itself.
    pub fn batches(&self) -> usize {
        self.pool.batches() + 1 + self.engine.own_batches(self.shape.slots)
    }

    /// Their memory.
    pub fn pool_bytes(&self) -> usize {
        self.batches() * self.shape.bytes()
    }

    /// How long a granted buffer, as the kernel accounts it, lasts at the lane's rate. A quarter of it is not counted:
    /// the kernel may hold that much back while a reader works.
    pub fn covered(&self, granted_bytes: usize) -> Duration {
        let datagrams = granted_bytes as u64 / 4 * 3 / charge_bytes(PAYLOAD_ASSUMED.min(self.shape.slot_bytes));
        Duration::from_secs_f64(datagrams as f64 / self.rate.max(1) as f64)
    }
}

/// One sink as it will be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkPlan {
    /// How many consumers it has; none where no listener names it.
    pub consumers: usize,
    /// The lanes that feed it, in order.
    pub feeds: Vec<Feed>,
}

impl SinkPlan {
    /// Every file that is written where its lanes and consumers fill in `path`, with the codes for the time still in it.
    pub fn files(&self, listeners: &[Listener], sink: &str, path: &str) -> BTreeSet<String> {
        self.feeds.iter().map(|feed| feed.file(listeners, sink, path)).collect()
    }
}

/// The whole plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Every lane, in the order of the listeners.
    pub lanes: Vec<LanePlan>,
    /// By sink of the configuration.
    pub sinks: Vec<SinkPlan>,
    /// Where consumers may run.
    pub consumer_cores: Vec<usize>,
    /// What all sinks may take for records and messages on their way.
    pub sink_bytes: usize,
    /// True when receivers share cores.
    pub shared_cores: bool,
    /// The memory node of each core, as far as the machine tells.
    pub node_of_core: BTreeMap<usize, usize>,
    /// What has to be said of this plan on this machine.
    pub remarks: Vec<String>,
}

impl Budget {
    /// Works it out. `receive_queues` tells how many receive queues an interface has, and `planned` where its plan puts
    /// each of them; `None` where there is no plan for it. `engines` has one for each listener.
    pub fn new(
        config: &Config,
        topology: &Topology,
        allowed: &[usize],
        receive_queues: impl Fn(&str) -> Option<usize>,
        planned: impl Fn(&str) -> Option<Vec<QueueSeat>>,
        engines: &[Choice],
    ) -> Self {
        let plans: Vec<Option<Vec<QueueSeat>>> =
            config.listeners.iter().map(|listener| listener.interface.as_deref().and_then(&planned)).collect();
        let feeds = Feeds::new(&config.listeners, &receive_queues);
        let unplanned = (0..plans.len()).filter(|&index| plans[index].is_none()).map(|index| feeds.lanes(index)).sum();
        let taken: Vec<usize> =
            plans.iter().flatten().flatten().flat_map(|seat| [seat.arrival_core(), seat.receiver_core]).collect();
        let Seating { receivers, consumer_cores, shared } = place(unplanned, &without(allowed, &taken), topology);
        let usable: Vec<usize> = allowed.iter().copied().filter(|core| topology.online.contains(core)).collect();
        let mut seats = receivers.into_iter();
        let mut lanes = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate() {
            let count = feeds.lanes_on_address(index);
            let queues = listener.interface.as_deref().and_then(&receive_queues);
            let rate = listener.absorb.rate.div_ceil(count as u64);
            for (group, &address) in listener.addresses.iter().enumerate() {
                let plan = plans[index].as_ref().filter(|plan| !plan.is_empty());
                let planned: Vec<&QueueSeat> = plan.iter().flat_map(|plan| plan.iter().cycle().take(count)).collect();
                let seat = |member: usize| match planned.get(member) {
                    Some(seat) => Some(Seat { core: seat.receiver_core, node: seat.node }),
                    None => seats.next(),
                };
                let seats: Vec<Option<Seat>> = (0..count).map(seat).collect();
                let arrival_cores: Vec<Option<usize>> = planned.iter().map(|seat| Some(seat.arrival_core())).collect();
                let members = Members { seats: &seats, cores: &usable, queues, arrival_cores: &arrival_cores };
                let steered = steering::steer(listener.spread, &members, topology).into_iter().zip(seats);
                lanes.extend(steered.enumerate().map(|(member, (steering, seat))| LanePlan {
                    listener: index,
                    number: group * count + member,
                    member,
                    address,
                    shares: count > 1 || listener.share_port || has_company(config, index, address),
                    core: seat.map(|seat| seat.core),
                    node: seat.and_then(|seat| seat.node),
                    steering,
                    receive_buffer_bytes: receive_buffer(listener, rate),
                    rate,
                    shape: shape(config, listener),
                    pool: PoolSize::new(listener.sinks.iter().map(|&sink| config.sinks[sink].queue_batches)),
                    engine: engines[index].clone(),
                    policy_bytes: listener.rate_limit.map_or(0, |_| policy::TABLE_BYTES),
                }));
            }
        }
        let node_of_core = topology.node_of_core.clone();
        let sinks = config.sinks.iter().enumerate().map(|(index, sink)| SinkPlan {
            consumers: feeds.consumers(index, sink.consumers),
            feeds: feeds.of_sink(index, sink.consumers).collect(),
        });
        let sinks: Vec<SinkPlan> = sinks.collect();
        let bytes_of = |(sink, plan)| sink_bytes(&config.listeners, sink, plan);
        let sink_bytes = config.sinks.iter().zip(&sinks).map(bytes_of).sum();
        let remarks = Vec::new();
        Self { lanes, sinks, consumer_cores, sink_bytes, shared_cores: shared, node_of_core, remarks }
    }

    /// Where a consumer may run that these lanes feed: on their memory nodes, where there are cores for consumers at
    /// all.
    pub fn cores_of_consumer(&self, lanes: &[bool]) -> Vec<usize> {
        let feeds = |node: Option<usize>| {
            self.lanes.iter().zip(lanes).any(|(lane, feeds)| *feeds && (lane.node == node || lane.node.is_none()))
        };
        let near = |core: &usize| feeds(self.node_of_core.get(core).copied());
        let cores: Vec<usize> = self.consumer_cores.iter().copied().filter(near).collect();
        if cores.is_empty() { self.consumer_cores.clone() } else { cores }
    }

    /// The lanes that the table of their group gives nothing to, so that they would stay idle.
    pub fn idle_lanes<'a>(&'a self, config: &'a Config, spread: Spread) -> impl Iterator<Item = &'a LanePlan> {
        let listed = |lane: &LanePlan| !lane.steering.cores.is_empty() || !lane.steering.queues.is_empty();
        self.lanes.iter().filter(move |lane| config.listeners[lane.listener].spread == spread && !listed(lane))
    }

    /// The memory of all batches.
    pub fn pool_bytes(&self) -> usize {
        self.lanes.iter().map(LanePlan::pool_bytes).sum()
    }

    /// The memory of all rate limits.
    pub fn policy_bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.policy_bytes).sum()
    }

    /// What all receive buffers together may take when the kernel grants them.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.lanes.iter().map(|lane| 2 * lane.receive_buffer_bytes).sum()
    }
}

/// Whether the kernel takes the address of a listener for one that another of our own listeners has: one of the two is
/// bound to an interface, which for the kernel makes a difference between datagrams and none between addresses.
fn has_company(config: &Config, listener: usize, address: SocketAddr) -> bool {
    let own = &config.listeners[listener];
    let others = config.listeners.iter().enumerate().filter(|(index, _)| *index != listener);
    let competes = |other: &Listener| {
        (own.interface.is_none() || other.interface.is_none())
            && other.addresses.iter().any(|taken| overlap(taken, &address))
    };
    others.map(|(_, other)| other).any(competes)
}

/// `cores` without `taken`; all of them when nothing would be left, because sharing is better than nowhere.
fn without(cores: &[usize], taken: &[usize]) -> Vec<usize> {
    let free: Vec<usize> = cores.iter().copied().filter(|core| !taken.contains(core)).collect();
    if free.is_empty() { cores.to_vec() } else { free }
}

/// The value for SO_RCVBUF that survives `absorb`. The kernel doubles it, and may hold a quarter back while a reader
/// works.
fn receive_buffer(listener: &Listener, lane_rate: u64) -> usize {
    let Absorb { stall, .. } = listener.absorb;
    match listener.receive_buffer {
        ReceiveBuffer::Bytes(bytes) => bytes,
        ReceiveBuffer::Auto => {
            let datagrams = (lane_rate as f64 * stall.as_secs_f64()).ceil() as u64;
            let charged = datagrams.saturating_mul(charge_bytes(PAYLOAD_ASSUMED.min(listener.max_length_bytes)));
            let accounted = (charged / 3).saturating_mul(4).clamp(1 << 20, RECEIVE_BUFFER_MAX);
            usize::try_from(accounted / 2).unwrap_or(usize::MAX)
        }
    }
}

fn shape(config: &Config, listener: &Listener) -> BatchShape {
    let slots = if listener.gro { listener.batch_size.min(GRO_SLOTS_MAX) } else { listener.batch_size };
    let mut kinds = listener.sinks.iter().map(|&sink| &config.sinks[sink].kind);
    let is_recorded = kinds.clone().any(SinkKind::records_arrival);
    let is_stamped = match listener.timestamps {
        Timestamps::On => true,
        Timestamps::Auto => is_recorded,
        Timestamps::Off => false,
    };
    let control = Control::new()
        .packet_info(is_recorded)
        .timestamps(is_stamped)
        .gro(listener.gro)
        .drop_overflow(kinds.any(SinkKind::records_drops));
    BatchShape::new(slots, listener.max_length_bytes).control(control).huge_pages(true)
}

/// The memory of a sink.
fn sink_bytes(listeners: &[Listener], sink: &Sink, plan: &SinkPlan) -> usize {
    let outboxes = match &sink.kind {
        SinkKind::Null | SinkKind::Supplied => 0,
        SinkKind::File(file) => plan.files(listeners, &sink.name, &file.path).len(),
        SinkKind::Unix(unix) if unix.socket == UnixSocket::Datagram => 0,
        SinkKind::Stdout(_) | SinkKind::Unix(_) => plan.consumers,
        SinkKind::Udp(udp) => return plan.consumers * relay::memory_bytes(udp.destinations.len(), udp.keep_source),
        SinkKind::Kafka(_) => return plan.consumers * KAFKA_QUEUE_BYTES,
    };
    outboxes * outbox::memory_bytes_max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::engine::EngineKind;

    const TEXT: &str = r#"
        [[listener]]
        name = "a"
        address = ["127.0.0.1:5140", "[::1]:5140"]
        lanes = 2
        absorb = { rate = 300000, stall = "100ms" }
        sinks = ["x", "y"]
        [sink.x]
        type = "null"
        queue_batches = 10
        consumers = "per_lane"
        [sink.y]
        type = "null"
        consumers = 3
        [sink.unused]
        type = "null"
    "#;

    fn budget(text: &str) -> Budget {
        let config = Config::parse(text, "test", &crate::config::Host::default()).expect("a valid configuration");
        let topology = Topology { online: vec![0, 1], node_of_core: [(0, 0), (1, 0)].into(), ..Topology::default() };
        let engines = [Choice { kind: EngineKind::Recvmmsg, why: String::new() }];
        Budget::new(&config, &topology, &[0, 1], |_| Some(4), |_| None, &engines)
    }

    #[test]
    fn each_address_gets_its_lanes_and_each_lane_its_core_and_pool() {
        let budget = budget(TEXT);
        assert_eq!(budget.lanes.len(), 4);
        assert_eq!(budget.lanes.iter().map(|lane| lane.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(budget.lanes.iter().map(|lane| lane.core).collect::<Vec<_>>(), [Some(1), Some(0), Some(1), Some(0)]);
        assert!(budget.shared_cores);
        assert_eq!(budget.lanes[0].pool, PoolSize { in_receiver: 1, in_channels: 266, in_consumers: 2 });
        assert_eq!(budget.sinks.iter().map(|sink| sink.consumers).collect::<Vec<_>>(), [4, 3, 0]);
    }

    #[test]
    fn an_automatic_buffer_covers_the_stall_it_is_made_for() {
        for lane in &budget(TEXT).lanes {
            assert_eq!(lane.rate, 150_000);
            let covered = lane.covered(2 * lane.receive_buffer_bytes);
            assert!(covered >= Duration::from_micros(99_900) && covered < Duration::from_millis(102), "{covered:?}");
        }
    }

    #[test]
    fn lanes_come_from_the_rate_unless_they_are_written() {
        let lanes = |absorb: u64| {
            let text = TEXT.replace("lanes = 2", "").replace("300000", &absorb.to_string());
            budget(&text).lanes.len()
        };
        assert_eq!((lanes(200_000), lanes(500_001), lanes(2_000_000)), (2, 4, 8));
    }
}
