//! The layout of the memory for datagrams: what lanes receive into, what may wait for each sink, and what is shared.
//!
//! ```text
//! pool = batches of all lanes + own blocks of all queues + shared blocks of all memory nodes
//! ```
//!
//! A lane receives into a few batches of full-length slots; with more than sixteen lanes each has two. What waits for a
//! sink is packed into blocks. A queue owns what `queue_bytes` says, or else what a written `absorb` asks for, and at
//! least two blocks. All queues of a node share the rest. An inline sink has no queue.
//!
//! [`PoolPlan::stalls`] says which stalls that survives.

use std::time::Duration;

use super::SinkPlan;
use super::lane::LanePlan;
use super::memory::Bytes;
use crate::config::{Config, SinkConfig};
use udpd_base::exit::{ExitCode, Failure};

/// The batches of all lanes are one of so many parts of the pool.
const BATCHES_PART: usize = 3;

/// The most memory that one lane receives into, and its fewest and most batches. More brings nothing.
const LANE_BYTES_MAX: usize = 8 << 20;
const LANE_BATCHES_MIN: usize = 4;
const LANE_BATCHES_MAX: usize = 24;

/// A smaller mapping uses ordinary pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// With more lanes than this each has the fewest batches that work: one is filled while a consumer has the other.
const LANES_MANY: usize = 16;
const LANE_BATCHES_OF_MANY: usize = 2;

/// The length of a block, and that of a block for long datagrams. A long block wastes memory where little waits; a
/// short one wastes its end where datagrams are long.
const BLOCK_BYTES: usize = 32 << 10;
const LONG_BLOCK_BYTES: usize = 64 << 10;

/// The memory of one place in a queue, and of the administration of a block.
const PLACE_BYTES: usize = 16;
const BLOCK_STATE_BYTES: usize = 208;

/// The fewest blocks that a queue owns.
const OWN_BLOCKS_MIN: usize = 2;

/// One of so many parts of what may wait for a sink may wait unpacked, in full batches: what arrives in a burst while a
/// consumer sleeps is not worth copying.
const LENT_PART: usize = 16;

/// The fewest such batches, where `queue_bytes` is not written.
const LENT_BATCHES_MIN: usize = 4;

/// One memory node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePool {
    /// A core on it, where its blocks are first touched.
    pub core: Option<usize>,
    /// The blocks that its queues share.
    pub shared_blocks: usize,
    lanes: usize,
}

/// What may wait for one consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueuePlan {
    /// The blocks that only this queue can use, by node.
    pub own_blocks: Vec<usize>,
    /// How many of these `absorb` or `queue_bytes` asks for.
    asked_blocks: usize,
    /// How many shared blocks it may have beside these.
    pub borrowed_max: usize,
    /// How much of each lane may wait in batches as they were received, and at least how many batches.
    lent_bytes: usize,
    lent_batches_min: usize,
}

/// The whole pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPlan {
    pub block_bytes: usize,
    pub nodes: Vec<NodePool>,
    /// By sink and consumer.
    pub queues: Vec<Vec<QueuePlan>>,
    /// What all lanes receive into.
    pub batches_bytes: usize,
    /// The blocks that `absorb` and `queue_bytes` ask for.
    pub asked_bytes: usize,
}

/// For how long a listener loses nothing while a sink takes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    pub listener: usize,
    pub sink: usize,
    /// Datagrams a second, of so many bytes.
    pub rate: u64,
    pub payload_bytes: usize,
    /// How many of them may wait, when nothing else waits on the node.
    pub datagrams: u64,
    /// How many may wait in the sink's own blocks, whatever waits elsewhere, while every other listener of the sink
    /// sends at the rate of its `absorb`.
    pub own_datagrams: u64,
}

impl Stall {
    /// How long that many last.
    pub fn survived(&self, datagrams: u64) -> Duration {
        Duration::from_secs_f64(datagrams as f64 / self.rate.max(1) as f64)
    }
}

impl QueuePlan {
    /// How many batches of a lane may wait as they were received.
    pub fn lent_max(&self, lane: &LanePlan) -> usize {
        (self.lent_bytes / lane.shape.bytes()).max(self.lent_batches_min)
    }

    fn own(&self) -> usize {
        self.own_blocks.iter().sum()
    }
}

/// Lays out the pool, which has `automatic_bytes` unless the configuration says how many, and tells each lane its part.
pub(super) fn lay_out(
    config: &Config,
    sinks: &[SinkPlan],
    lanes: &mut [LanePlan],
    automatic_bytes: usize,
) -> Result<PoolPlan, Failure> {
    let base_bytes = config.daemon.pool_bytes.unwrap_or(automatic_bytes);
    let mut nodes = divide_nodes(lanes);
    let count = lanes.len().max(1);
    let lane_bytes = (base_bytes / BATCHES_PART / count).min(LANE_BYTES_MAX);
    let least = if count > LANES_MANY { LANE_BATCHES_OF_MANY } else { LANE_BATCHES_MIN };
    for lane in lanes.iter_mut() {
        lane.batches = (lane_bytes / lane.shape.bytes()).clamp(least, LANE_BATCHES_MAX);
        lane.shape = lane.shape.huge_pages(lane.batches_bytes() >= HUGE_PAGE_BYTES);
    }
    let batches_bytes: usize = lanes.iter().map(LanePlan::batches_bytes).sum();
    let longest = lanes.iter().map(LanePlan::longest_packed_bytes).max().unwrap_or(0);
    let block_bytes = match longest {
        short if short * 4 <= BLOCK_BYTES => BLOCK_BYTES,
        long => long.max(LONG_BLOCK_BYTES).next_multiple_of(4096),
    };
    let places = nodes.len();
    let of_sink = |(sink, plan): (&SinkConfig, &SinkPlan)| -> Vec<QueuePlan> {
        let queue = |consumer| own_blocks(sink, plan, consumer, lanes, places, block_bytes);
        (0..plan.consumers).map(queue).collect()
    };
    let mut queues: Vec<Vec<QueuePlan>> = config.sinks.iter().zip(sinks).map(of_sink).collect();
    let own_blocks: usize = queues.iter().flatten().map(QueuePlan::own).sum();
    let shared_bytes = match config.daemon.pool_bytes {
        None => base_bytes / BATCHES_PART * (BATCHES_PART - 1),
        Some(pool_bytes) => pool_bytes
            .checked_sub(batches_bytes + own_blocks * block_bytes)
            .ok_or_else(|| too_little(pool_bytes, batches_bytes, count, own_blocks * block_bytes))?,
    };
    // Inline sinks need no blocks.
    let shared_bytes = if sinks.iter().all(|sink| sink.is_inline) { 0 } else { shared_bytes };
    for node in &mut nodes {
        node.shared_blocks = shared_bytes / block_bytes * node.lanes / count;
    }
    let asked_bytes = queues.iter().flatten().map(|queue| queue.asked_blocks).sum::<usize>() * block_bytes;
    for (sink, (settings, plan)) in config.sinks.iter().zip(sinks).enumerate() {
        for (consumer, queue) in queues[sink].iter_mut().enumerate() {
            borrow(settings, plan, consumer, queue, &nodes, block_bytes);
        }
    }
    Ok(PoolPlan { block_bytes, nodes, queues, batches_bytes, asked_bytes })
}

/// The memory nodes of the lanes. Sets the node of each lane.
fn divide_nodes(lanes: &mut [LanePlan]) -> Vec<NodePool> {
    let mut known = Vec::new();
    let mut nodes: Vec<NodePool> = Vec::new();
    for lane in lanes {
        let place = known.iter().position(|node| *node == lane.node).unwrap_or_else(|| {
            known.push(lane.node);
            nodes.push(NodePool { core: lane.core, shared_blocks: 0, lanes: 0 });
            nodes.len() - 1
        });
        nodes[place].lanes += 1;
        lane.node_place = place;
    }
    nodes
}

/// The queue of a consumer with the blocks that it owns.
fn own_blocks(
    sink: &SinkConfig,
    plan: &SinkPlan,
    consumer: usize,
    lanes: &[LanePlan],
    places: usize,
    block_bytes: usize,
) -> QueuePlan {
    let feeding: Vec<&LanePlan> =
        plan.feeders.iter().filter(|feeder| feeder.consumer == consumer).map(|feeder| &lanes[feeder.lane]).collect();
    let count = feeding.len().max(1);
    if plan.is_inline {
        return QueuePlan { own_blocks: vec![0; places], ..QueuePlan::default() };
    }
    let lent_bytes = sink.queue_bytes.map_or(0, |bytes| bytes / LENT_PART / count);
    let mut asked_blocks = 0;
    let mut blocks_on = |place: usize| -> usize {
        let here: Vec<&&LanePlan> = feeding.iter().filter(|lane| lane.node_place == place).collect();
        if here.is_empty() {
            return 0;
        }
        if let Some(bytes) = sink.queue_bytes {
            let lent: usize = feeding.iter().map(|lane| lent_bytes - lent_bytes % lane.shape.bytes()).sum();
            let blocks = ((bytes - lent) / block_bytes * here.len() / count).max(OWN_BLOCKS_MIN);
            asked_blocks += blocks;
            return blocks;
        }
        let asked: usize = here.iter().map(|lane| lane.asked_blocks(block_bytes)).sum();
        asked_blocks += asked;
        OWN_BLOCKS_MIN + asked
    };
    let own_blocks = (0..places).map(&mut blocks_on).collect();
    QueuePlan { own_blocks, asked_blocks, lent_bytes, ..QueuePlan::default() }
}

/// Sets what the queue may have beyond that. A sink with a written `queue_bytes` has no more.
fn borrow(
    sink: &SinkConfig,
    plan: &SinkPlan,
    consumer: usize,
    queue: &mut QueuePlan,
    nodes: &[NodePool],
    block_bytes: usize,
) {
    if sink.queue_bytes.is_some() || plan.is_inline {
        return;
    }
    queue.lent_batches_min = LENT_BATCHES_MIN;
    let near = nodes.iter().zip(&queue.own_blocks).filter(|(_, own)| **own > 0);
    queue.borrowed_max = near.map(|(node, _)| node.shared_blocks).sum();
    let feeders = plan.feeders.iter().filter(|feeder| feeder.consumer == consumer).count().max(1);
    queue.lent_bytes = (queue.own() + queue.borrowed_max) * block_bytes / LENT_PART / feeders;
}

fn too_little(pool_bytes: usize, batches_bytes: usize, lanes: usize, own_bytes: usize) -> Failure {
    let message = format!(
        "[daemon] pool_bytes = {}: {lanes} lanes receive into {}, and the queues need {} for what queue_bytes and \
         absorb ask for and two blocks each; raise pool_bytes to {} or more, or lower lanes, batch_size, max_length, \
         absorb or queue_bytes",
        Bytes(pool_bytes),
        Bytes(batches_bytes),
        Bytes(own_bytes),
        // Rounded up, so that it is enough.
        Bytes(batches_bytes + own_bytes + (1 << 17))
    );
    Failure::new(ExitCode::Configuration, message)
}

impl PoolPlan {
    /// All blocks of a node.
    pub fn blocks_on(&self, place: usize) -> usize {
        self.queues.iter().flatten().map(|queue| queue.own_blocks[place]).sum::<usize>()
            + self.nodes[place].shared_blocks
    }

    /// The memory of all blocks.
    pub fn blocks_bytes(&self) -> usize {
        (0..self.nodes.len()).map(|place| self.blocks_on(place)).sum::<usize>() * self.block_bytes
    }

    /// The unused ends of mappings for huge pages: address space, not memory.
    pub(super) fn mapping_slack_bytes(&self, lanes: &[LanePlan]) -> usize {
        let large = lanes.iter().filter(|lane| lane.batches_bytes() >= HUGE_PAGE_BYTES).count();
        (large + self.nodes.len()) * 2 * HUGE_PAGE_BYTES
    }

    /// The memory of the queues themselves and of the administration of blocks. It is much where a thousand lanes may
    /// all fill a large pool.
    pub(super) fn places_bytes(&self, sinks: &[SinkPlan], lanes: &[LanePlan]) -> usize {
        let blocks: usize = (0..self.nodes.len()).map(|place| self.blocks_on(place)).sum();
        let places_of = |sink: usize| {
            sinks[sink].feeders.iter().filter(move |_| !sinks[sink].is_inline).map(move |feeder| {
                let (lane, queue) = (&lanes[feeder.lane], &self.queues[sink][feeder.consumer]);
                let shared = self.nodes[lane.node_place].shared_blocks.min(queue.borrowed_max);
                lane.batches + queue.own_blocks[lane.node_place] + shared
            })
        };
        let places: usize = (0..sinks.len()).flat_map(places_of).sum();
        blocks * BLOCK_STATE_BYTES + places * PLACE_BYTES
    }

    /// Which stall each listener survives of each of its sinks, at the rate and size of its `absorb`.
    pub fn stalls(&self, config: &Config, sinks: &[SinkPlan], lanes: &[LanePlan]) -> Vec<Stall> {
        let pairs = config.listeners.iter().enumerate();
        let pairs = pairs.flat_map(|(listener, settings)| settings.sinks.iter().map(move |&sink| (listener, sink)));
        let pairs = pairs.filter(|(_, sink)| !sinks[*sink].is_inline);
        pairs.filter_map(|(listener, sink)| self.stall(listener, sink, &sinks[sink], lanes)).collect()
    }

    fn stall(&self, listener: usize, sink: usize, plan: &SinkPlan, lanes: &[LanePlan]) -> Option<Stall> {
        let feeding = plan.feeders.iter().filter(|feeder| feeder.listener == listener);
        let (mut consumers, mut places, mut rate) = (Vec::new(), Vec::new(), 0);
        for feeder in feeding.clone() {
            consumers.push(feeder.consumer);
            places.push(lanes[feeder.lane].node_place);
            rate += lanes[feeder.lane].queue_rate;
        }
        for list in [&mut consumers, &mut places] {
            list.sort_unstable();
            list.dedup();
        }
        let lane = &lanes[feeding.clone().next()?.lane];
        // All listeners of the sink share its queues: each fills blocks at its rate.
        let fills = |lane: &LanePlan| lane.queue_rate as f64 / (self.block_bytes / lane.packed_bytes()) as f64;
        let beside = plan.feeders.iter().filter(|feeder| consumers.contains(&feeder.consumer));
        let beside = beside.map(|feeder| &lanes[feeder.lane]).filter(|lane| places.contains(&lane.node_place));
        let lanes_of_queues = beside.clone().count();
        let filled: f64 = beside.map(fills).sum();
        let part = feeding.clone().map(|feeder| fills(&lanes[feeder.lane])).sum::<f64>() / filled;
        let queues = || consumers.iter().map(|&consumer| &self.queues[sink][consumer]);
        let own: usize = queues().flat_map(|queue| places.iter().map(|&place| queue.own_blocks[place])).sum();
        let shared: usize = places.iter().map(|&place| self.nodes[place].shared_blocks).sum();
        let borrowed = shared.min(queues().map(|queue| queue.borrowed_max).sum());
        // Every lane fills a block of its own, so the blocks of all but one lane may stay partly empty.
        let lanes_beside = feeding.clone().count() - 1;
        let of_blocks =
            |blocks: usize| (blocks.saturating_sub(lanes_beside) * (self.block_bytes / lane.packed_bytes())) as u64;
        Some(Stall {
            listener,
            sink,
            rate,
            payload_bytes: lane.payload_bytes,
            datagrams: of_blocks(own + borrowed),
            own_datagrams: (of_blocks(own.saturating_sub(lanes_of_queues - feeding.clone().count())) as f64 * part)
                as u64,
        })
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
