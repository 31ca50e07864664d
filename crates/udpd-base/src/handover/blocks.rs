//! Blocks for what waits: who owns them, who may borrow how many, and where they go back to.
//!
//! The blocks of a memory node lie in one stock of one length. Some of them belong to one queue: what its sink was
//! promised, and a few in any case. The others are shared by all queues of the node, and each of those may borrow up to
//! its limit. So a sink that takes nothing uses up its own and what is shared, and never what another was promised.
//!
//! A block goes back where it came from, by the hand that empties it: a consumer as a rule, a receiver under
//! `drop_oldest`. All of this costs a few atomic steps for a block of many datagrams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use crossbeam_utils::CachePadded;
use mmsg::PackedBatch;

use super::batch::{LaneBatch, LaneLoad, LoadOrigin, Parcel, packed};

/// Empty blocks; the first taker gets them.
#[derive(Debug, Clone)]
pub struct Stock {
    free: Receiver<Parcel>,
    home: Sender<Parcel>,
}

/// What one queue may use of the blocks of one memory node.
#[derive(Debug, Clone)]
pub struct Blocks {
    own: Stock,
    shared: Stock,
    allowance: Arc<Allowance>,
}

/// How many shared blocks a queue may still borrow, of all nodes together.
#[derive(Debug)]
pub struct Allowance {
    left: CachePadded<AtomicUsize>,
    whole: usize,
}

/// Sees how many blocks of a queue are in use.
#[derive(Debug, Clone)]
pub struct BlockGauge {
    own: Vec<Stock>,
    allowance: Arc<Allowance>,
}

impl Stock {
    /// The blocks that belong to the queue of one consumer.
    pub fn of_queue(blocks: impl ExactSizeIterator<Item = PackedBatch>) -> Self {
        Self::new(blocks, LoadOrigin::Queue)
    }

    /// Those of a node that have no owner.
    pub fn shared(blocks: impl ExactSizeIterator<Item = PackedBatch>) -> Self {
        Self::new(blocks, LoadOrigin::Node)
    }

    fn new(blocks: impl ExactSizeIterator<Item = PackedBatch>, origin: LoadOrigin) -> Self {
        let (home, free) = bounded(blocks.len());
        for block in blocks {
            let sent = home.send(LaneBatch::new(LaneLoad::Packed(block), origin));
            debug_assert!(sent.is_ok(), "there is a place for each");
        }
        Self { free, home }
    }

    fn put(&self, block: Parcel) {
        self.home.try_send(block).expect("there is a place for each");
    }

    fn in_use(&self) -> usize {
        self.free.capacity().unwrap_or(0).saturating_sub(self.free.len())
    }
}

impl Allowance {
    /// To borrow so many blocks.
    pub fn new(blocks: usize) -> Arc<Self> {
        Arc::new(Self { left: CachePadded::new(AtomicUsize::new(blocks)), whole: blocks })
    }

    fn take(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn put(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

impl Blocks {
    /// What belongs to the queue on this node, what it shares with others, and how much of that.
    pub fn new(own: Stock, shared: Stock, allowance: Arc<Allowance>) -> Self {
        Self { own, shared, allowance }
    }

    /// How many it can have in use at once.
    pub fn count_max(&self) -> usize {
        let shared = self.shared.free.capacity().unwrap_or(0).min(self.allowance.whole);
        self.own.free.capacity().unwrap_or(0) + shared
    }

    /// An empty block, or `None` while the queue may have no other.
    pub(super) fn take(&self) -> Option<Parcel> {
        let mut block = self.own.free.try_recv().ok().or_else(|| self.borrow())?;
        packed(&mut block).clear();
        Some(block)
    }

    fn borrow(&self) -> Option<Parcel> {
        if self.shared.free.is_empty() || !self.allowance.take() {
            return None;
        }
        let block = self.shared.free.try_recv().ok();
        if block.is_none() {
            self.allowance.put();
        }
        block
    }

    /// Whether there is one.
    pub(super) fn has_any(&self) -> bool {
        !self.own.free.is_empty() || (!self.shared.free.is_empty() && self.allowance.left.load(Ordering::Relaxed) > 0)
    }

    /// As [`take`](Self::take); where there is none it waits this long for one to come back.
    pub(super) fn wait(&self, limit: Duration) -> Option<Parcel> {
        let mut block = if self.allowance.whole == 0 {
            self.own.free.recv_timeout(limit).ok()
        } else {
            select! {
                recv(self.own.free) -> block => block.ok(),
                recv(self.shared.free) -> block => block.ok().and_then(|block| self.lend(block)),
                default(limit) => None,
            }
        }?;
        packed(&mut block).clear();
        Some(block)
    }

    /// The block, unless the queue may borrow no other.
    fn lend(&self, block: Parcel) -> Option<Parcel> {
        if self.allowance.take() {
            return Some(block);
        }
        self.shared.put(block);
        None
    }

    /// Gives a block back to which there is no other reference.
    pub(super) fn put(&self, block: Parcel) {
        if block.origin == LoadOrigin::Queue {
            self.own.put(block);
        } else {
            // In this order, so that who waits for the block may have it.
            self.allowance.put();
            self.shared.put(block);
        }
    }

    /// For watching how many of them are in use, over all nodes of a queue.
    pub fn gauge(nodes: &[Blocks]) -> Option<BlockGauge> {
        let own = nodes.iter().map(|blocks| blocks.own.clone()).collect();
        nodes.first().map(|blocks| BlockGauge { own, allowance: Arc::clone(&blocks.allowance) })
    }
}

impl BlockGauge {
    /// How many it can keep from them.
    pub fn capacity(&self) -> usize {
        self.own.iter().filter_map(|stock| stock.free.capacity()).sum::<usize>() + self.allowance.whole
    }

    /// How many blocks the queue keeps from others now.
    pub fn in_use(&self) -> usize {
        let borrowed = self.allowance.whole.saturating_sub(self.allowance.left.load(Ordering::Relaxed));
        self.own.iter().map(Stock::in_use).sum::<usize>() + borrowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(count: usize, make: fn(std::vec::IntoIter<PackedBatch>) -> Stock) -> Stock {
        match count {
            0 => make(Vec::new().into_iter()),
            _ => make(PackedBatch::pool(count, 4096, false).expect("small").0.into_iter()),
        }
    }

    /// Queues with so many blocks of their own each, that may borrow so many of so many shared ones.
    fn queues(own: [usize; 2], borrowed_max: [usize; 2], shared: usize) -> [Blocks; 2] {
        let shared = stock(shared, Stock::shared);
        [0, 1].map(|queue| {
            let own = stock(own[queue], Stock::of_queue);
            Blocks::new(own, shared.clone(), Allowance::new(borrowed_max[queue]))
        })
    }

    fn take_all(blocks: &Blocks) -> Vec<Parcel> {
        std::iter::from_fn(|| blocks.take()).collect()
    }

    #[test]
    fn a_queue_that_gives_nothing_back_leaves_the_others_what_is_theirs() {
        let [dead, other] = queues([1, 2], [100, 100], 3);
        assert_eq!(take_all(&dead).len(), 4, "its own and all that is shared");
        assert!(!dead.has_any() && other.has_any());
        assert_eq!(take_all(&other).len(), 2);
    }

    #[test]
    fn nobody_borrows_more_than_its_limit() {
        let [first, second] = queues([1, 1], [2, 100], 5);
        let taken = take_all(&first);
        assert_eq!((taken.len(), first.count_max()), (3, 3));
        assert!(!first.has_any());
        assert_eq!(take_all(&second).len(), 4, "its own, and what the first may not have");
    }

    #[test]
    fn every_block_goes_back_where_it_came_from() {
        let queues = queues([1, 2], [2, 1], 2);
        for _ in 0..10 {
            let taken = queues.each_ref().map(take_all);
            assert_eq!(taken.each_ref().map(Vec::len), [3, 2], "the first borrows all that is shared");
            for (blocks, taken) in queues.iter().zip(taken) {
                taken.into_iter().rev().for_each(|block| blocks.put(block));
            }
        }
        let gauge = Blocks::gauge(&queues[..1]).expect("a node");
        assert_eq!(gauge.in_use(), 0);
        let taken = take_all(&queues[0]);
        assert_eq!(gauge.in_use(), taken.len());
    }

    #[test]
    fn what_is_taken_is_empty_whatever_was_in_it() {
        let [blocks, _] = queues([1, 0], [0, 0], 0);
        let block = blocks.take().expect("one");
        assert!(blocks.take().is_none());
        blocks.put(block);
        assert!(matches!(&blocks.take().expect("again").datagrams, LaneLoad::Packed(batch) if batch.is_empty()));
    }

    #[test]
    fn who_waits_gets_what_comes_back_from_either_stock() {
        // All that may be borrowed is with the one that waits, as with the only queue of a node.
        let [waiting, _] = queues([1, 0], [1, 1], 1);
        let (own, shared) = (waiting.take().expect("its own"), waiting.take().expect("the shared one"));
        let giver = std::thread::spawn({
            let waiting = waiting.clone();
            move || {
                waiting.put(shared);
                waiting.put(own);
            }
        });
        let long = Duration::from_secs(60);
        let got = [waiting.wait(long).expect("one"), waiting.wait(long).expect("the other")];
        assert_ne!(got[0].origin, got[1].origin);
        giver.join().expect("it ends");
        assert!(waiting.wait(Duration::ZERO).is_none(), "and no more than there are");
        got.into_iter().for_each(|block| waiting.put(block));
        assert_eq!(Blocks::gauge(&[waiting]).expect("a node").in_use(), 0);
    }
}
