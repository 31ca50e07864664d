//! The way of one lane's datagrams to one sink, and what happens when the sink does not keep up.
//!
//! While a consumer keeps up it gets batches as they were received. When it is behind, what comes for it is packed into
//! the blocks that its queue may use, so a stall is survived for as long as these bytes last, whatever the datagrams
//! look like, and other sinks of the listener are not touched. The first few batches are handed over unpacked, because
//! that costs nothing. When every block is full, `when_full` decides, and each datagram that it costs is told
//! to the ledger.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mmsg::PackedBatch;

use super::batch::LatencyStamp;
use super::batch::{LaneBatch, LaneLoad, LoadOrigin, Parcel, packed, whole};
use super::channel::Feed;
use super::pool::Blocks;
use super::pool::Pool;
use super::sync::{Arc, AtomicBool};
use crate::os::threads;

/// How often a receiver that waits for room looks whether it is told to give up.
const GIVE_UP_POLL: Duration = Duration::from_millis(20);

/// The places that memory beside the stocks takes in a queue, one for the block that is open.
const SPARE_PLACES: usize = 2;

/// What happens when what may wait for a consumer is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullPolicy {
    /// What just arrived and finds no room is dropped.
    #[default]
    DropNewest,
    /// The oldest of the same lane that wait are dropped to make room.
    DropOldest,
    /// The receiver waits; the kernel then drops what does not fit the receive buffer.
    Block,
}

/// How long a receiver waits for room, as others tell it.
#[derive(Debug, Default)]
pub struct RoomTimeout {
    /// No longer: what it has in hand has failed.
    pub gives_up: AtomicBool,
    /// Another receiver begins when it has ended: what it has in hand gets memory of its own.
    pub is_relieved: AtomicBool,
}

/// Why datagrams will not be consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// There was no room, and the policy is to drop.
    Full,
    /// The consumer is gone, or the receiver was told not to wait for it any longer.
    GivenUp,
}

/// One way out of a lane.
#[derive(Debug)]
pub struct SinkRoute {
    feed: Feed,
    policy: FullPolicy,
    /// The sink, by its index in the configuration.
    pub sink: usize,
    /// For what waits.
    blocks: Blocks,
    /// How many batches may wait as they are.
    lend_max: usize,
    /// A block was left in the feed.
    has_open: bool,
    /// A batch was left quietly.
    owes_ring: bool,
}

impl SinkRoute {
    /// The route to a sink. For as long as the consumer is behind, no more than `lend_max` batches of the lane wait for
    /// it, or half as many that are not full, and everything else in `blocks`.
    pub fn new(feed: Feed, policy: FullPolicy, sink: usize, blocks: Blocks, lend_max: usize) -> Self {
        Self { feed, policy, sink, blocks, lend_max, has_open: false, owes_ring: false }
    }

    /// True when a batch that is handed over now would be looked at soon.
    pub fn is_awaited(&self) -> bool {
        self.feed.is_awaited()
    }

    /// Whether a receiver may have to wait here until there is room.
    pub fn may_block(&self) -> bool {
        self.policy == FullPolicy::Block
    }

    /// Wakes the consumer, if something was left for it quietly.
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.owes_ring) {
            self.feed.ring();
        }
    }

    /// Hands the datagrams of a batch over: the batch itself, or their copies. `is_full` says that the batch has no
    /// slot left, so that lending it wastes nothing. With `quietly` the consumer is woken by [`SinkRoute::ring`], which
    /// the caller owes before it sleeps; a consumer that would get too much at once is woken all the same. Each number
    /// of datagrams that no consumer will take goes to `dropped`.
    pub fn hand(
        &mut self,
        parcel: &Parcel,
        is_full: bool,
        quietly: bool,
        pool: &mut Pool,
        patience: &RoomTimeout,
        dropped: &mut dyn FnMut(u64, NotTaken),
    ) {
        let open = if self.has_open { self.feed.take_open() } else { None };
        self.has_open = false;
        let waiting = self.feed.len();
        let is_lent = match open.is_none() && waiting == 0 {
            // The consumer keeps up.
            true => pool.can_give(),
            // A batch that is not full wastes what it has not, so fewer of those may wait.
            false => waiting < self.lend_max / if is_full { 1 } else { 2 } && pool.can_lend(),
        };
        if is_lent || self.displaces(parcel, open.as_ref(), pool, dropped) {
            open.into_iter().for_each(|open| self.feed.send(open));
            self.feed.send_quietly(Arc::clone(parcel));
            self.owes_ring = true;
            if !quietly || waiting + 1 >= self.lend_max {
                self.ring();
            }
        } else {
            // It may have to wait for a block, which comes from a consumer that is awake.
            self.ring();
            self.pack(parcel, open, pool, patience, dropped);
        }
    }

    /// Under `drop_oldest`, when there is no room for the datagrams and the oldest load that waits is a batch that was
    /// lent: this one takes its place. So one batch is given up for one, and not many for the block behind them.
    fn displaces(
        &self,
        parcel: &Parcel,
        open: Option<&Parcel>,
        pool: &mut Pool,
        dropped: &mut dyn FnMut(u64, NotTaken),
    ) -> bool {
        if self.policy != FullPolicy::DropOldest || self.blocks.has_any() || fits(parcel, open) {
            return false;
        }
        let Some(oldest) = self.feed.evict() else { return false };
        dropped(oldest.datagrams.summary().datagrams, NotTaken::Full);
        let was_lent = oldest.origin == LoadOrigin::Lane;
        self.put(oldest, pool);
        was_lent && pool.can_give()
    }

    /// Gives back what the consumer will not get.
    fn put(&self, parcel: Parcel, pool: &mut Pool) {
        match parcel.origin {
            LoadOrigin::Lane => pool.put(parcel),
            LoadOrigin::Queue | LoadOrigin::Node => self.blocks.put(parcel),
            LoadOrigin::Nowhere => drop(parcel),
        }
    }

    /// Copies the datagrams behind those in the open block, and into as many blocks more as that takes.
    fn pack(
        &mut self,
        parcel: &Parcel,
        mut open: Option<Parcel>,
        pool: &mut Pool,
        patience: &RoomTimeout,
        dropped: &mut dyn FnMut(u64, NotTaken),
    ) {
        let mut left = parcel.datagrams.summary().datagrams;
        // How many of them are in the open block.
        let mut pushed = 0;
        for datagram in parcel.datagrams.datagrams() {
            if !open.as_mut().is_some_and(|block| packed(block).push(&datagram)) {
                if let Some(mut full) = open.take() {
                    stamp(&mut full, parcel, pushed);
                    self.feed.send(full);
                }
                pushed = 0;
                match self.block(parcel, pool, patience, dropped) {
                    Ok(block) => open = Some(block),
                    // The rest of the batch too: what came later is not to overtake.
                    Err(why) => return dropped(left, why),
                }
                let is_in = open.as_mut().is_some_and(|block| packed(block).push(&datagram));
                assert!(is_in, "a block is longer than any datagram");
            }
            left -= 1;
            pushed += 1;
        }
        if let Some(mut open) = open {
            stamp(&mut open, parcel, pushed);
            self.feed.leave(open);
            self.has_open = true;
        }
    }

    /// An empty block, as the policy has it.
    fn block(
        &self,
        parcel: &Parcel,
        pool: &mut Pool,
        patience: &RoomTimeout,
        dropped: &mut dyn FnMut(u64, NotTaken),
    ) -> Result<Parcel, NotTaken> {
        let mut block = loop {
            if let Some(block) = self.blocks.take() {
                break block;
            }
            match self.policy {
                FullPolicy::DropNewest => return Err(NotTaken::Full),
                FullPolicy::DropOldest => {
                    let oldest = self.feed.evict().ok_or(NotTaken::Full)?;
                    dropped(oldest.datagrams.summary().datagrams, NotTaken::Full);
                    self.put(oldest, pool);
                }
                FullPolicy::Block => {
                    if patience.gives_up.load(Ordering::Relaxed) || self.feed.is_gone() {
                        return Err(NotTaken::GivenUp);
                    }
                    if patience.is_relieved.load(Ordering::Relaxed)
                        && let Some(block) = self.spare(parcel)
                    {
                        break block;
                    }
                    if let Some(block) = threads::blocking(|| self.blocks.wait(GIVE_UP_POLL)) {
                        break block;
                    }
                }
            }
        };
        pool.mark(&mut block);
        Ok(block)
    }

    /// Memory of its own for all that is in hand, once: a wait for the end of its receiver is no wait for a sink. It
    /// does not come back to any stock. `None` where its queue has no place for it.
    fn spare(&self, parcel: &Parcel) -> Option<Parcel> {
        let bytes = parcel.datagrams.datagrams().map(|datagram| PackedBatch::bytes_for(&datagram)).sum::<usize>();
        let (blocks, _) = PackedBatch::pool(1, bytes, false).ok().filter(|_| self.feed.has_places(SPARE_PLACES))?;
        blocks.into_iter().next().map(|block| LaneBatch::new(LaneLoad::Packed(block), LoadOrigin::Nowhere))
    }
}

/// Stamps a block for as many datagrams as it has of a batch: each block gets to the consumer at a time of its own.
fn stamp(block: &mut Parcel, parcel: &Parcel, datagrams: u64) {
    if let Some(stamp) = parcel.stamp.filter(|_| datagrams > 0) {
        let (block, stamp) = (whole(block), LatencyStamp { datagrams, ..stamp });
        block.stamp = Some(block.stamp.map_or(stamp, |earlier| earlier.join(stamp)));
    }
}

/// Whether an open block has room for all datagrams of a batch.
fn fits(parcel: &Parcel, open: Option<&Parcel>) -> bool {
    let Some(LaneLoad::Packed(block)) = open.map(|open| &open.datagrams) else { return false };
    let bytes = parcel.datagrams.datagrams().map(|datagram| PackedBatch::bytes_for(&datagram)).sum::<usize>();
    block.used_bytes() + bytes <= block.capacity_bytes()
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
