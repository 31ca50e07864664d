//! Batches and who has them.
//!
//! A lane is born with all the memory it will ever have: a few batches to receive into, and for each of its sinks
//! blocks for datagrams that wait, which are packed into them. Each is only ever in one of the places that [`PoolSize`]
//! adds up. It travels as a counted reference, because a listener may feed several sinks: each consumer sends its
//! reference home when it is done, and a batch is empty again once the lane holds the only one. So nothing is allocated
//! or locked for a batch on its way, and safe code alone proves that nobody reads what is being filled.
//!
//! Empty batches are taken last in, first out: the one that came home most recently is still in the cache.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use mmsg::{PackedBatch, RecvBatch};

use super::batch::{LaneBatch, Load, Parcel, packed, whole};

/// What a lane has, and where it can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSize {
    /// Batches to receive into; all but one of them may be with consumers that keep up.
    pub batches: usize,
    /// Blocks for what waits, of each sink in the order of the listener's list.
    pub blocks: Vec<usize>,
    /// The length of a block.
    pub block_bytes: usize,
}

impl PoolSize {
    /// The memory of all blocks.
    pub fn blocks_bytes(&self) -> usize {
        self.blocks.iter().sum::<usize>().saturating_mul(self.block_bytes)
    }
}

impl fmt::Display for PoolSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batches, blocks, block_bytes } = self;
        let blocks: usize = blocks.iter().sum();
        write!(formatter, "{batches} batches to receive into + {blocks} blocks of {block_bytes} bytes for what waits")
    }
}

/// The empty batches and blocks of one lane, owned by its receiver.
#[derive(Debug)]
pub struct Pool {
    batches: Vec<Parcel>,
    batches_born: usize,
    /// By route.
    blocks: Vec<Vec<Parcel>>,
    home: Receiver<Parcel>,
    next_number: u64,
}

impl Pool {
    /// Takes over the batches of a lane, and the blocks of each of its routes. The sender is the way home; it has room
    /// for every reference there is, so it never fills.
    pub fn new(
        batches: Vec<RecvBatch>,
        blocks: Vec<Vec<PackedBatch>>,
        listener: usize,
        lane: usize,
    ) -> (Self, Sender<Parcel>) {
        let references = batches.len() * blocks.len().max(1) + blocks.iter().map(Vec::len).sum::<usize>();
        let (sender, home) = bounded(references);
        let parcel = |load, route| LaneBatch::new(load, listener, lane, route);
        let batches: Vec<_> = batches.into_iter().map(|batch| parcel(Load::Received(batch), 0)).collect();
        let of_route = |(route, blocks): (usize, Vec<PackedBatch>)| {
            blocks.into_iter().map(|block| parcel(Load::Packed(block), route)).collect()
        };
        let blocks = blocks.into_iter().enumerate().map(of_route).collect();
        (Self { batches_born: batches.len(), batches, blocks, home, next_number: 0 }, sender)
    }

    /// An empty batch that nobody else refers to, or `None` while all are under way.
    pub fn take(&mut self) -> Option<Parcel> {
        self.come_home();
        let mut parcel = self.batches.pop()?;
        whole(&mut parcel).number = self.number();
        Some(parcel)
    }

    /// An empty block of a route, or `None` while all of them are full and wait.
    pub(super) fn take_block(&mut self, route: usize) -> Option<Parcel> {
        if !self.has_block(route) {
            return None;
        }
        let mut parcel = self.blocks[route].pop()?;
        packed(&mut parcel).clear();
        whole(&mut parcel).number = self.number();
        Some(parcel)
    }

    /// Whether there is one.
    pub(super) fn has_block(&mut self, route: usize) -> bool {
        if self.blocks[route].is_empty() {
            self.come_home();
        }
        !self.blocks[route].is_empty()
    }

    /// As [`take_block`](Self::take_block); where there is none it waits this long for something to come home.
    pub(super) fn wait_for_block(&mut self, route: usize, limit: Duration) -> Option<Parcel> {
        if let Ok(parcel) = self.home.recv_timeout(limit) {
            self.put(parcel);
        }
        self.take_block(route)
    }

    /// Whether there is a batch to receive into next, should the one in hand be given away.
    pub(super) fn can_give(&mut self) -> bool {
        if self.batches.is_empty() {
            self.come_home();
        }
        !self.batches.is_empty()
    }

    /// Whether there are so many of them that one may wait with a consumer that is behind: a full one for as long as a
    /// quarter is left, one that is not full for as long as half of them are.
    pub(super) fn can_lend(&mut self, is_full: bool) -> bool {
        self.can_give() && self.batches.len() * 4 > self.batches_born * if is_full { 1 } else { 2 }
    }

    /// Gives a reference back. It is dropped while others are still out: the last one to come home is the batch.
    pub fn put(&mut self, mut parcel: Parcel) {
        if let Some(own) = Arc::get_mut(&mut parcel) {
            let place = match own.datagrams {
                Load::Received(_) => &mut self.batches,
                Load::Packed(_) => &mut self.blocks[own.route],
            };
            debug_assert!(place.len() < place.capacity(), "more comes home than was born here");
            place.push(parcel);
        }
    }

    fn come_home(&mut self) {
        while let Ok(parcel) = self.home.try_recv() {
            self.put(parcel);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmsg::BatchShape;

    fn pool(batches: usize, blocks: &[usize]) -> (Pool, Sender<Parcel>) {
        let (batches, _) = RecvBatch::pool(batches, &BatchShape::new(2, 64)).expect("a small pool");
        let blocks = blocks.iter().map(|&count| PackedBatch::pool(count, 4096, false).expect("small").0).collect();
        Pool::new(batches, blocks, 0, 0)
    }

    #[test]
    fn a_batch_is_empty_again_only_when_its_last_reference_is_home() {
        let (mut pool, home) = pool(1, &[1, 1]);
        let first = pool.take().expect("one batch");
        let second = Arc::clone(&first);
        home.send(first).expect("room");
        assert!(pool.take().is_none(), "one reference is still out");
        home.send(second).expect("room");
        assert!(pool.take().is_some());
    }

    #[test]
    fn two_references_that_come_home_together_are_one_batch() {
        let (mut pool, home) = pool(1, &[1, 1]);
        let first = pool.take().expect("one batch");
        home.send(Arc::clone(&first)).expect("room");
        home.send(first).expect("room");
        assert!(pool.take().is_some());
        assert!(pool.take().is_none(), "one batch does not become two");
    }

    #[test]
    fn the_batch_that_came_home_last_is_taken_first() {
        let (mut pool, home) = pool(3, &[1]);
        let parcels = [pool.take(), pool.take()].map(|parcel| parcel.expect("a batch"));
        let last = Arc::as_ptr(&parcels[1]);
        for parcel in parcels {
            home.send(parcel).expect("room");
        }
        assert_eq!(Arc::as_ptr(&pool.take().expect("a batch")), last);
    }

    #[test]
    fn a_block_comes_home_to_its_route_and_never_to_another() {
        let (mut pool, home) = pool(1, &[1, 2]);
        let of_second: Vec<Parcel> = std::iter::from_fn(|| pool.take_block(1)).collect();
        assert_eq!(of_second.len(), 2);
        for parcel in of_second {
            home.send(parcel).expect("room");
        }
        let of_first = pool.take_block(0).expect("its own");
        assert!(pool.take_block(0).is_none(), "those of the other route are not lent");
        home.send(of_first).expect("room");
        assert!(pool.take_block(0).is_some() && pool.take_block(1).is_some() && pool.take_block(1).is_some());
    }

    #[test]
    fn every_load_has_a_higher_number_than_the_one_begun_before_it() {
        let (mut pool, _home) = pool(2, &[2]);
        let loads = [pool.take(), pool.take_block(0), pool.take(), pool.take_block(0)];
        let numbers: Vec<u64> = loads.iter().flatten().map(|parcel| parcel.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
    }
}
