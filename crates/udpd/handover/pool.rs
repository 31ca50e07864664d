//! Batches and who has them.
//!
//! A lane is born with all the batches it will ever have, and a batch is only ever in one of the places that
//! [`PoolSize`] adds up. It travels as a counted reference, because a listener may feed several sinks: each consumer
//! sends its reference home when it is done, and the batch is empty again once the lane holds the only one. So nothing
//! is allocated, copied or locked for a batch on its way, and safe code alone proves that nobody reads what is being
//! filled.
//!
//! Empty batches are taken last in, first out: the one that came home most recently is still in the cache.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use mmsg::RecvBatch;

/// A batch that knows where it comes from.
#[derive(Debug)]
pub struct LaneBatch {
    pub datagrams: RecvBatch,
    /// Index of the listener, for the ledger and for paths.
    pub listener: usize,
    /// Index of the lane over all listeners; the way home.
    pub lane: usize,
}

/// A batch on its way: a reference that is counted, never copied.
pub type Parcel = Arc<LaneBatch>;

/// How many batches a lane needs, one term for each place where one can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// In the receiver, being filled.
    pub in_receiver: usize,
    /// In the channels: the depth of every channel that the lane feeds.
    pub in_channels: usize,
    /// In the consumers' hands: one each.
    pub in_consumers: usize,
}

impl PoolSize {
    /// The sum over `depths`, the depth of each channel that the lane feeds.
    pub fn new(depths: impl IntoIterator<Item = usize>) -> Self {
        let mut size = Self { in_receiver: 1, in_channels: 0, in_consumers: 0 };
        for depth in depths {
            size.in_channels += depth;
            size.in_consumers += 1;
        }
        size
    }

    pub fn batches(&self) -> usize {
        self.in_receiver + self.in_channels + self.in_consumers
    }
}

impl fmt::Display for PoolSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { in_receiver, in_channels, in_consumers } = self;
        write!(formatter, "{in_receiver} in the receiver + {in_channels} in channels + {in_consumers} with consumers")
    }
}

/// The empty batches of one lane, owned by its receiver.
#[derive(Debug)]
pub struct Pool {
    empty: Vec<Parcel>,
    home: Receiver<Parcel>,
}

impl Pool {
    /// Takes over the batches of a lane. `references` is how many references to a batch can be under way at once, which
    /// is the number of its sinks. The sender is the way home; it has room for every reference there is, so it never
    /// fills.
    pub fn new(batches: Vec<RecvBatch>, listener: usize, lane: usize, references: usize) -> (Self, Sender<Parcel>) {
        let (sender, home) = bounded(batches.len() * references.max(1));
        let empty =
            batches.into_iter().map(|datagrams| Arc::new(LaneBatch { datagrams, listener, lane })).collect::<Vec<_>>();
        (Self { empty, home }, sender)
    }

    /// An empty batch that nobody else refers to, or `None` while all are under way.
    pub fn take(&mut self) -> Option<Parcel> {
        while let Ok(parcel) = self.home.try_recv() {
            self.put(parcel);
        }
        self.empty.pop()
    }

    /// Gives a reference back. It is dropped while others are still out: the last one to come home is the batch.
    pub fn put(&mut self, mut parcel: Parcel) {
        if Arc::get_mut(&mut parcel).is_some() {
            debug_assert!(self.empty.len() < self.empty.capacity(), "more batches come home than were born here");
            self.empty.push(parcel);
        }
    }
}

/// The datagrams of a parcel that [`Pool::take`] returned.
///
/// # Panics
/// When somebody else refers to the parcel, which `take` rules out and which would be a bug here.
pub fn exclusive(parcel: &mut Parcel) -> &mut RecvBatch {
    &mut Arc::get_mut(parcel).expect("a batch from the pool has no other reference").datagrams
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmsg::BatchShape;

    fn pool(batches: usize, references: usize) -> (Pool, Sender<Parcel>) {
        let shape = BatchShape::new(2, 64);
        let (batches, _) = RecvBatch::pool(batches, &shape).expect("a small pool");
        Pool::new(batches, 0, 0, references)
    }

    #[test]
    fn a_batch_is_empty_again_only_when_its_last_reference_is_home() {
        let (mut pool, home) = pool(1, 2);
        let first = pool.take().expect("one batch");
        let second = Arc::clone(&first);
        home.send(first).expect("room");
        assert!(pool.take().is_none(), "one reference is still out");
        home.send(second).expect("room");
        assert!(pool.take().is_some());
    }

    #[test]
    fn two_references_that_come_home_together_are_one_batch() {
        let (mut pool, home) = pool(1, 2);
        let first = pool.take().expect("one batch");
        home.send(Arc::clone(&first)).expect("room");
        home.send(first).expect("room");
        assert!(pool.take().is_some());
        assert!(pool.take().is_none(), "one batch does not become two");
    }

    #[test]
    fn the_batch_that_came_home_last_is_taken_first() {
        let (mut pool, home) = pool(3, 1);
        let parcels = [pool.take(), pool.take()].map(|parcel| parcel.expect("a batch"));
        let last = Arc::as_ptr(&parcels[1]);
        for parcel in parcels {
            home.send(parcel).expect("room");
        }
        assert_eq!(Arc::as_ptr(&pool.take().expect("a batch")), last);
    }

    #[test]
    fn the_size_of_a_pool_counts_every_place_a_batch_can_be() {
        let size = PoolSize::new([256, 4]);
        assert_eq!(size.batches(), 1 + 256 + 4 + 2);
        assert_eq!(size.to_string(), "1 in the receiver + 260 in channels + 2 with consumers");
    }
}
