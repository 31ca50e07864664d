//! One lane as it will be built: its core, its socket, its batches, and what each of them follows from.

use std::net::SocketAddr;
use std::time::Duration;

use mmsg::{BatchShape, Control, PackedBatch};

use super::engine::Choice;
use super::spread::Intake;
use crate::config::{Absorb, Config, Gro, ListenerConfig, ReceiveBuffer, Timestamps};
use udpd_inspect::upstream::Sequence;

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
    pub core: Option<usize>,
    /// The memory node of that core.
    pub node: Option<usize>,
    /// The cores that its receiver may run on, where the scheduler picks one of them.
    pub cores: Vec<usize>,
    /// The receive queues of its interface that it takes, where the number of those is known.
    pub queues: Vec<usize>,
    /// Which datagrams it gets, and where they should arrive.
    pub intake: Intake,
    /// The value for SO_RCVBUF; the kernel accounts twice as much.
    pub receive_buffer_bytes: usize,
    /// Datagrams per second that this lane must take.
    pub rate: u64,
    /// Its part of the rate of the whole listener, which is what its queues are made for: of several addresses one is
    /// as busy as all.
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
    pub engine: Choice,
    /// What it has instead of a socket, where it takes a receive queue past the kernel's stack.
    pub xdp: Option<XdpPlan>,
    /// The memory of its rate limit.
    pub policy_bytes: usize,
    /// The memory for what it notes of sequence numbers, and the first lane's also for all that its listener knows.
    pub upstream_bytes: usize,
}

/// What a lane has instead of a socket that takes a receive queue past the kernel's stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpPlan {
    /// The receive queue.
    pub queue: u32,
    /// The batches whose memory frames wait in.
    pub batches: usize,
    /// The configuration asks for them by `absorb`.
    pub is_asked: bool,
}

impl LanePlan {
    /// All of its batches, with those that the engine keeps to itself.
    pub fn batches(&self) -> usize {
        let reserve = self.xdp.as_ref().map_or(0, |xdp| xdp.batches);
        self.batches + self.engine.own_batches(self.shape.slots) + reserve
    }

    /// Whether it is the first of its listener with its engine.
    pub fn is_first_of_its_engine(&self) -> bool {
        self.number == 0 || self.xdp.as_ref().is_some_and(|xdp| xdp.queue == 0)
    }

    /// Whether it has a socket of its own, which is bound and kept.
    pub fn has_socket(&self) -> bool {
        self.xdp.is_none()
    }

    /// The memory that frames wait in, where it has no socket for that.
    pub fn ring_bytes(&self) -> usize {
        self.xdp.as_ref().map_or(0, |xdp| xdp.batches * self.shape.bytes())
    }

    /// The memory that the kernel locks for it: all of its batches, where it has no socket.
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

    /// What the longest datagram takes that can come.
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

/// What `sequence` takes at a lane; the first has the table of its listener, too.
pub(super) fn upstream_bytes(listener: &ListenerConfig, is_first: bool) -> usize {
    let bytes = |sequence: Sequence| sequence.lane_bytes() + if is_first { sequence.table_bytes() } else { 0 };
    listener.sequence.map_or(0, bytes)
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
    // What the kernel has cut from one train has one time.
    let control = Control::new()
        .packet_info(is_recorded || sinks.clone().any(|sink| sink.records_destination()))
        .timestamps(is_stamped || listener.gro == Gro::Auto && !listener.is_past_the_stack())
        .gro(listener.gro.is_on())
        .drop_overflow(listener.reads_drops() || sinks.any(|sink| sink.records_drops()));
    BatchShape::new(slots, listener.max_length_bytes).control(control)
}
