//! The blocks of the pool: made on each memory node by a thread that runs there, and shared out among the queues.
//!
//! Lanes make their own batches, see [`lane`](super::lane). Blocks belong to no lane, so on each node a thread that
//! ends with this touches them first, pinned to a core of that node; what the kernel hands out is then near.

use std::io;

use mmsg::{Backing, PackedBatch};

use crate::plan::memory::Bytes;
use crate::plan::pool::{HUGE_PAGE_BYTES, NodePool, PoolPlan};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::handover::pool::{Allowance, Blocks, Stock};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{ThreadRegistry, blocking};
use udpd_base::seams::waits;

#[derive(Debug)]
pub(super) struct BlockPools {
    /// By sink, consumer and node.
    queues: Vec<Vec<Vec<Blocks>>>,
    /// What memory they lie in, by node.
    pub backings: Vec<Backing>,
}

impl BlockPools {
    pub(super) fn make(plan: &PoolPlan, registry: &ThreadRegistry) -> Result<Self, Failure> {
        // The watchdog may look on by now, and to touch all the memory is one long wait for the kernel.
        let begin = |(place, node): (usize, &NodePool)| {
            let (core, count, bytes) = (node.core, plan.blocks_on(place), plan.block_bytes);
            registry
                .spawn(format!("pool{place}"), ThreadRole::Unconfined, move || blocking(|| touch(core, count, bytes)))
        };
        let threads: Vec<_> = plan.nodes.iter().enumerate().map(begin).collect();
        let mut made = Vec::new();
        let mut backings = Vec::new();
        for thread in threads {
            let end = |thread: std::thread::JoinHandle<_>| {
                waits::join(thread).unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
            };
            let (blocks, backing) = thread.and_then(end).map_err(|error| refused(plan, &error))?;
            made.push(blocks.into_iter());
            backings.push(backing);
        }
        let deal = |place: usize, count: usize| -> Vec<PackedBatch> { made[place].by_ref().take(count).collect() };
        Ok(Self { queues: deal_out(plan, deal), backings })
    }

    /// What the queue of a consumer may use, by node.
    pub(super) fn of_queue(&self, sink: usize, consumer: usize) -> &[Blocks] {
        &self.queues[sink][consumer]
    }
}

/// Gives every queue its own blocks, and all of them what is left.
fn deal_out(plan: &PoolPlan, mut deal: impl FnMut(usize, usize) -> Vec<PackedBatch>) -> Vec<Vec<Vec<Blocks>>> {
    let node = |(place, node): (usize, &NodePool)| Stock::shared(deal(place, node.shared_blocks).into_iter());
    let shared: Vec<Stock> = plan.nodes.iter().enumerate().map(node).collect();
    let mut queues = Vec::with_capacity(plan.queues.len());
    for consumers in &plan.queues {
        let mut of_sink = Vec::with_capacity(consumers.len());
        for queue in consumers {
            let allowance = Allowance::new(queue.borrowed_max);
            let own = queue.own_blocks.iter().enumerate();
            let own = own.map(|(place, &count)| {
                let stock = Stock::of_queue(deal(place, count).into_iter());
                Blocks::new(stock, shared[place].clone(), allowance.clone())
            });
            of_sink.push(own.collect());
        }
        queues.push(of_sink);
    }
    queues
}

fn touch(core: Option<usize>, count: usize, bytes: usize) -> io::Result<(Vec<PackedBatch>, Backing)> {
    if count == 0 {
        return Ok((Vec::new(), Backing::Ordinary { why: None }));
    }
    // Where this fails the lane says so, and the memory is as near as the scheduler has it.
    let _ = core.map(steer::pin_current_thread);
    PackedBatch::pool(count, bytes, count * bytes >= HUGE_PAGE_BYTES)
}

fn refused(plan: &PoolPlan, error: &io::Error) -> Failure {
    let message = format!(
        "cannot get {} of memory for what waits: {error}; lower [daemon] pool_bytes, queue_bytes or absorb",
        Bytes(plan.blocks_bytes())
    );
    Failure::new(ExitCode::Failure, message)
}
