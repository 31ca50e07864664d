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

use crossbeam_queue::ArrayQueue;
use mmsg::RecvBatch;

use super::batch::{LaneBatch, LaneLoad, LoadOrigin, Parcel, whole};
use super::blocks::Blocks;

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
        if Arc::get_mut(&mut parcel).is_some() {
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
}
