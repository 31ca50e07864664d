//! One lane as it will be built: its core, its socket and its batches, and how they are computed.

use std::net::SocketAddr;
use std::time::Duration;

use mmsg::{BatchShape, Control, PackedBatch};

use super::engine::EngineChoice;
use super::spread::Intake;
use crate::config::{Absorb, Config, Gro, ListenerConfig, ReceiveBuffer, Timestamps};
use udpd_inspect::policy::{self, ProxyProtocol};
use udpd_inspect::upstream::Sequence;

/// The largest receive buffer: beyond it kernels have computed sizes wrongly.
const RECEIVE_BUFFER_MAX: u64 = 1 << 30;

/// The most slots of a batch with GRO, where each slot holds a whole train.
const GRO_SLOTS_MAX: usize = 16;

/// What the kernel charges a receive buffer for one datagram: payload, headers and bookkeeping, rounded as its
/// allocator rounds. Measured on loopback with Linux 6.18; drivers that pass whole pages charge more.
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
    /// Whether other sockets may be bound to that address too (SO_REUSEPORT).
    pub shares: bool,
    pub core: Option<usize>,
    /// The memory node of that core.
    pub node: Option<usize>,
    /// The cores that its receiver may run on, where the scheduler picks one of them.
    pub cores: Vec<usize>,
    /// The receive queues of its interface that it takes, where they are known.
    pub queues: Vec<usize>,
    /// Which datagrams it gets, and where they should arrive.
    pub intake: Intake,
    /// The value for SO_RCVBUF; the kernel accounts twice as much.
    pub receive_buffer_bytes: usize,
    /// Datagrams per second that this lane must take.
    pub rate: u64,
    /// Its share of the listener's rate, for which its queues are sized: the rate is divided among the addresses.
    pub queue_rate: u64,
    /// The payload of each of these, by `absorb`.
    pub payload_bytes: usize,
    /// How its batches are made.
    pub shape: BatchShape,
    /// How many batches it receives into.
    pub batches: usize,
    /// Its memory node, by its place among those of the pool.
    pub node_place: usize,
    /// The stall that its queues reserve memory for.
    pub asked_stall: Duration,
    pub engine: EngineChoice,
    /// What it has instead of a socket, where it takes a receive queue with AF_XDP.
    pub xdp: Option<XdpPlan>,
    /// The memory of its rate limit.
    pub policy_bytes: usize,
    /// The memory for its notes of sequence numbers; of the first lane also for the streams of its listener.
    pub upstream_bytes: usize,
}

/// What a lane with AF_XDP has instead of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpPlan {
    /// The receive queue.
    pub queue: u32,
    /// The batches in whose memory frames wait.
    pub batches: usize,
    /// Whether `absorb` asks for them.
    pub is_asked: bool,
}

impl LanePlan {
    /// All of its batches, also those that the engine keeps to itself.
    pub fn batches(&self) -> usize {
        let reserve = self.xdp.as_ref().map_or(0, |xdp| xdp.batches);
        self.batches + self.engine.own_batches(self.shape.slots) + reserve
    }

    /// Whether it is the first of its listener with its engine.
    pub fn is_first_of_its_engine(&self) -> bool {
        self.number == 0 || self.xdp.as_ref().is_some_and(|xdp| xdp.queue == 0)
    }

    /// Whether it has a socket.
    pub fn has_socket(&self) -> bool {
        self.xdp.is_none()
    }

    /// The memory in which frames wait with AF_XDP.
    pub fn ring_bytes(&self) -> usize {
        self.xdp.as_ref().map_or(0, |xdp| xdp.batches * self.shape.bytes())
    }

    /// The memory that the kernel locks for it: with AF_XDP all of its batches.
    pub fn locked_bytes(&self) -> usize {
        self.xdp.as_ref().map_or(0, |_| self.batches_bytes())
    }

    /// The memory of its batches.
    pub fn batches_bytes(&self) -> usize {
        self.batches() * self.shape.bytes()
    }

    /// What a datagram of `absorb` takes in a block.
    pub fn packed_bytes(&self) -> usize {
        PackedBatch::bytes_expected(&self.shape.control, self.address.is_ipv6(), self.payload_bytes)
    }

    /// What the longest datagram takes in a block.
    pub(super) fn longest_packed_bytes(&self) -> usize {
        PackedBatch::bytes_max(&self.shape)
    }

    /// The blocks that `absorb` asks for, where it is written.
    pub(super) fn asked_blocks(&self, block_bytes: usize) -> usize {
        let datagrams = (self.queue_rate as f64 * self.asked_stall.as_secs_f64()).ceil() as usize;
        datagrams.div_ceil(block_bytes / self.packed_bytes())
    }

    /// How long a granted buffer, as the kernel accounts it, lasts at the lane's rate. A quarter of it is not counted:
    /// the kernel may hold that much back while a reader works.
    pub fn covered(&self, granted_bytes: usize) -> Duration {
        let in_buffer = || granted_bytes as u64 / 4 * 3 / charge_bytes(self.payload_bytes);
        let datagrams = self.xdp.as_ref().map_or_else(in_buffer, |xdp| (xdp.batches * self.shape.slots) as u64);
        Duration::from_secs_f64(datagrams as f64 / self.rate.max(1) as f64)
    }
}

/// The value for SO_RCVBUF that survives `absorb`. The kernel doubles it, and may hold a quarter back while a reader
/// works.
pub(super) fn receive_buffer(listener: &ListenerConfig, lane_rate: u64) -> usize {
    let Absorb { stall, .. } = listener.absorb;
    match listener.receive_buffer {
        ReceiveBuffer::Bytes(bytes) => bytes,
        ReceiveBuffer::Auto => {
            let datagrams = (lane_rate as f64 * stall.as_secs_f64()).ceil() as u64;
            let charged = datagrams.saturating_mul(charge_bytes(listener.absorbed_bytes()));
            let accounted = (charged / 3).saturating_mul(4).clamp(1 << 20, RECEIVE_BUFFER_MAX);
            usize::try_from(accounted / 2).unwrap_or(usize::MAX)
        }
    }
}

/// The memory of `sequence` at a lane; the first lane's includes the table of its listener.
pub(super) fn upstream_bytes(listener: &ListenerConfig, is_first: bool) -> usize {
    let bytes = |sequence: Sequence| sequence.lane_bytes() + if is_first { sequence.table_bytes() } else { 0 };
    listener.sequence.map_or(0, bytes)
}

/// The memory of `rate_limit` at a lane; the first lane's includes the flows behind proxies of its listener.
pub(super) fn policy_bytes(listener: &ListenerConfig, is_first: bool) -> usize {
    let has_flows = is_first && listener.proxies.protocol == ProxyProtocol::V2First;
    listener.rate_limit.map_or(0, |_| policy::TABLE_BYTES) + if has_flows { policy::FLOW_TABLE_BYTES } else { 0 }
}

pub(super) fn shape(config: &Config, listener: &ListenerConfig) -> BatchShape {
    let slots = if listener.gro.is_on() { listener.batch_size.min(GRO_SLOTS_MAX) } else { listener.batch_size };
    let mut sinks = listener.sinks.iter().map(|&sink| &config.sinks[sink].settings);
    let is_recorded = sinks.clone().any(|sink| sink.records_arrival());
    let is_stamped = match listener.timestamps {
        Timestamps::On => true,
        Timestamps::Auto => is_recorded,
        Timestamps::Off => false,
    };
    // All datagrams that the kernel cut from one train have the same time, which decides `gro = "auto"`.
    // Streams of one exporter to two addresses or groups are two.
    let is_any = listener.addresses.iter().any(|address| address.ip().is_unspecified());
    let tells_streams = listener.sequence.is_some() && is_any;
    let control = Control::new()
        .packet_info(tells_streams || is_recorded || sinks.clone().any(|sink| sink.records_destination()))
        .timestamps(is_stamped || listener.gro == Gro::Auto && !listener.is_past_the_stack())
        .gro(listener.gro.is_on())
        .drop_overflow(listener.reads_drops() || sinks.any(|sink| sink.records_drops()));
    BatchShape::new(slots, listener.max_length_bytes).control(control)
}
