//! The batches of a lane, and who has them.
//!
//! A lane is born with all the batches that it will ever receive into. Each is only ever in one of few places: empty
//! here, with the receiver, or under way. It travels as a counted reference, because a listener may feed several sinks:
//! each consumer sends its reference home when it is done, and a batch is empty again once the lane holds the only one.
//! So nothing is allocated or locked for a batch on its way, and safe code alone proves that no thread reads what is
//! being filled.
//!
//! Empty batches are taken last in, first out: the one that came home most recently is still in the cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use mmsg::{PackedBatch, RecvBatch};

use super::batch::{LaneBatch, LaneLoad, LoadOrigin, Parcel, is_last, packed, whole};
use super::sync::{ArrayQueue, AtomicUsize, Receiver, Sender, bounded, select};
use crate::seams::{clock, waits};

/// Whose batches these are, as everything that the lane sends on is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// Index of the listener.
    pub listener: usize,
    /// Index of the lane over all listeners.
    pub lane: usize,
    /// Index of the memory node among those of the plan.
    pub node: usize,
}

/// The way home to a lane. It has room for every reference there is, so it never fills.
pub type Home = ArrayQueue<Parcel>;

/// The empty batches of one lane, owned by its receiver.
#[derive(Debug)]
pub struct Pool {
    empty: Vec<Parcel>,
    born: usize,
    home: Arc<Home>,
    owner: Owner,
    next_number: u64,
}

impl Pool {
    /// Takes over the batches of a lane that has so many routes.
    pub fn new(batches: Vec<RecvBatch>, routes: usize, owner: Owner) -> (Self, Arc<Home>) {
        let born = batches.len();
        let home = Arc::new(ArrayQueue::new((born * routes).max(1)));
        let empty =
            batches.into_iter().map(|batch| LaneBatch::new(LaneLoad::Received(batch), LoadOrigin::Lane)).collect();
        (Self { empty, born, home: Arc::clone(&home), owner, next_number: 0 }, home)
    }

    /// An empty batch to which there is no other reference, or `None` while all are under way.
    pub fn take(&mut self) -> Option<Parcel> {
        self.come_home();
        let mut parcel = self.empty.pop()?;
        self.mark(&mut parcel);
        Some(parcel)
    }

    /// Makes a load one of this lane, begun now.
    pub(super) fn mark(&mut self, parcel: &mut Parcel) {
        self.next_number += 1;
        let load = whole(parcel);
        load.number = self.next_number;
        load.stamp = None;
        (load.listener, load.lane, load.node) = (self.owner.listener, self.owner.lane, self.owner.node);
    }

    /// Whether there is a batch to receive into next, should the one in hand be given away.
    pub(super) fn can_give(&mut self) -> bool {
        if self.empty.is_empty() {
            self.come_home();
        }
        !self.empty.is_empty()
    }

    /// Whether there are so many of them that one more may wait with a consumer that is behind: for as long as a
    /// quarter is left.
    pub(super) fn can_lend(&mut self) -> bool {
        self.can_give() && self.empty.len() * 4 > self.born
    }

    /// Gives a reference back. It is dropped while others are still out: the last one to come home is the batch.
    pub fn put(&mut self, mut parcel: Parcel) {
        if is_last(&mut parcel) {
            debug_assert!(self.empty.len() < self.born, "more comes home than was born here");
            self.empty.push(parcel);
        }
    }

    fn come_home(&mut self) {
        while let Some(parcel) = self.home.pop() {
            self.put(parcel);
        }
    }
}

/// The ways home of everything that a consumer empties.
#[derive(Debug, Clone)]
pub struct Homes {
    /// By lane.
    lanes: Arc<[Arc<Home>]>,
    /// By memory node of the plan.
    blocks: Vec<Blocks>,
}

impl Homes {
    /// For the consumer whose queue has these blocks on each node.
    pub fn new(lanes: Arc<[Arc<Home>]>, blocks: Vec<Blocks>) -> Self {
        Self { lanes, blocks }
    }

    /// Sends a load home.
    pub fn send(&self, parcel: Parcel) {
        match parcel.origin {
            LoadOrigin::Lane => {
                self.lanes[parcel.lane].push(parcel).expect("there is room for every reference");
            }
            LoadOrigin::Queue | LoadOrigin::Node => self.blocks[parcel.node].put(parcel),
            LoadOrigin::Nowhere => drop(parcel),
        }
    }
}

// Blocks for what waits: who owns them, who may borrow how many, and where they go back to.
//
// The blocks of a memory node lie in one stock of one length. Some of them belong to one queue: what its sink was
// promised, and a few in any case. The others are shared by all queues of the node, and each of those may borrow up to
// its limit. So a sink that takes nothing uses up its own and what is shared, and never what another was promised.
//
// A block goes back where it came from, by the hand that empties it: a consumer as a rule, a receiver under
// `drop_oldest`. All of this costs a few atomic steps for a block of many datagrams.

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
        waits::until(
            clock::now().checked_add(limit),
            || self.take(),
            || {
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
            },
        )
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
    use mmsg::BatchShape;

    fn pool(batches: usize, routes: usize) -> (Pool, Arc<Home>) {
        let (batches, _) = RecvBatch::pool(batches, &BatchShape::new(2, 64)).expect("a small pool");
        Pool::new(batches, routes, Owner::default())
    }

    #[test]
    fn a_batch_is_empty_again_only_when_its_last_reference_is_home() {
        let (mut pool, home) = pool(1, 2);
        let first = pool.take().expect("one batch");
        let second = Arc::clone(&first);
        home.push(first).expect("room");
        assert!(pool.take().is_none(), "one reference is still out");
        home.push(second).expect("room");
        assert!(pool.take().is_some());
    }

    #[test]
    fn two_references_that_come_home_together_are_one_batch() {
        let (mut pool, home) = pool(1, 2);
        let first = pool.take().expect("one batch");
        home.push(Arc::clone(&first)).expect("room");
        home.push(first).expect("room");
        assert!(pool.take().is_some());
        assert!(pool.take().is_none(), "one batch does not become two");
    }

    #[test]
    fn the_one_in_hand_can_be_given_away_as_soon_as_another_is_home() {
        let (mut pool, home) = pool(2, 1);
        let [away, in_hand] = [pool.take(), pool.take()].map(|parcel| parcel.expect("a batch"));
        assert!(!pool.can_give() && !pool.can_lend());
        home.push(away).expect("room");
        assert!(pool.can_give());
        pool.put(in_hand);
    }

    #[test]
    fn the_batch_that_came_home_last_is_taken_first() {
        let (mut pool, home) = pool(3, 1);
        let parcels = [pool.take(), pool.take()].map(|parcel| parcel.expect("a batch"));
        let last = Arc::as_ptr(&parcels[1]);
        for parcel in parcels {
            home.push(parcel).expect("room");
        }
        assert_eq!(Arc::as_ptr(&pool.take().expect("a batch")), last);
    }

    #[test]
    fn every_load_has_a_higher_number_than_the_one_begun_before_it() {
        let (mut pool, _home) = pool(3, 1);
        let loads = [pool.take(), pool.take(), pool.take()];
        let numbers: Vec<u64> = loads.iter().flatten().map(|parcel| parcel.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }

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
        let [borrows_alone, _] = queues([0, 0], [1, 0], 1);
        assert!(borrows_alone.has_any());
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
