//! The memory of the hand-over in every order of its threads: a batch is empty again with its last reference, no queue
//! borrows more than it may, every block comes home.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use interleavings::explore::in_every_order;
use interleavings::handover::batch::{Parcel, exclusive};
use interleavings::handover::pool::{Allowance, Blocks, Homes, Owner, Pool, Stock};
use interleavings::handover::within::{BlocksWithin, is_borrowed};
use loom::thread;
use mmsg::{BatchShape, PackedBatch, RecvBatch};

/// A lane with these batches, whose datagrams go to so many consumers.
fn lane(batches: usize, consumers: usize) -> (Pool, Homes) {
    let (batches, _) = RecvBatch::pool(batches, &BatchShape::new(1, 64)).expect("a small pool");
    let (pool, home) = Pool::new(batches, consumers, Owner::default());
    (pool, Homes::new([home].into(), Vec::new()))
}

fn packed(count: usize) -> std::vec::IntoIter<PackedBatch> {
    PackedBatch::pool(count, 1, false).expect("a small pool").0.into_iter()
}

/// Queues with a block of their own each, that may borrow so many of these shared ones.
fn queues<const N: usize>(shared: usize, borrowed_max: usize) -> [Blocks; N] {
    let shared = Stock::shared(packed(shared));
    [(); N].map(|()| Blocks::new(Stock::of_queue(packed(1)), shared.clone(), Allowance::new(borrowed_max)))
}

fn all(blocks: &Blocks) -> Vec<Parcel> {
    std::iter::from_fn(|| blocks.take()).collect()
}

/// How many blocks a queue has borrowed, counted outside of the model.
#[derive(Clone, Default)]
struct Borrowed(Rc<Cell<usize>>);

impl Borrowed {
    /// Takes a block, and checks that the queue may have it.
    fn take(&self, blocks: &Blocks, borrowed_max: usize) -> Option<Parcel> {
        let block = blocks.take()?;
        self.0.set(self.0.get() + usize::from(is_borrowed(&block)));
        assert!(self.0.get() <= borrowed_max, "a queue has more than it may borrow");
        Some(block)
    }

    fn put(&self, blocks: &Blocks, block: Parcel) {
        self.0.set(self.0.get() - usize::from(is_borrowed(&block)));
        blocks.put(block);
    }
}

#[test]
fn a_batch_is_empty_again_only_when_its_last_reference_is_home() {
    in_every_order(3, || {
        let (mut pool, homes) = lane(1, 2);
        let batch = pool.take().expect("one batch");
        let done = Rc::new(Cell::new(0));
        let consumers = [(); 2].map(|()| {
            let (reference, homes, done) = (batch.clone(), homes.clone(), Rc::clone(&done));
            thread::spawn(move || {
                done.set(done.get() + 1);
                homes.send(reference);
            })
        });
        pool.put(batch);
        let mut again = None;
        for _ in 0..3 {
            again = again.or_else(|| pool.take());
            assert!(again.is_none() || done.get() == 2, "a consumer still has a reference");
        }
        consumers.into_iter().for_each(|consumer| consumer.join().expect("it ends"));
        let mut again = again.or_else(|| pool.take()).expect("it is home");
        exclusive(&mut again).clear();
        assert!(pool.take().is_none(), "one batch does not become two");
    });
}

#[test]
fn batches_of_two_lanes_that_come_home_together_come_each_to_its_own() {
    in_every_order(3, || {
        let shape = BatchShape::new(1, 64);
        let batches = RecvBatch::pool(2, &shape).expect("a small pool").0;
        let owner = |lane| Owner { lane, ..Owner::default() };
        let mut lanes: Vec<_> =
            batches.into_iter().enumerate().map(|(lane, batch)| Pool::new(vec![batch], 1, owner(lane))).collect();
        let homes = Homes::new(lanes.iter().map(|(_, home)| Arc::clone(home)).collect(), Vec::new());
        let taken: Vec<Parcel> = lanes.iter_mut().map(|(pool, _)| pool.take().expect("one batch")).collect();
        let consumers: Vec<_> = taken
            .into_iter()
            .map(|batch| (batch, homes.clone()))
            .map(|(batch, homes)| thread::spawn(move || homes.send(batch)))
            .collect();
        let early = lanes[0].0.take();
        consumers.into_iter().for_each(|consumer| consumer.join().expect("it ends"));
        assert!(early.or_else(|| lanes[0].0.take()).is_some_and(|batch| batch.lane == 0));
        assert!(lanes[1].0.take().is_some_and(|batch| batch.lane == 1));
    });
}

#[test]
fn a_queue_never_borrows_more_than_it_may_while_blocks_come_back() {
    in_every_order(3, || {
        let [blocks] = queues(2, 1);
        let borrowed = Borrowed::default();
        let taken = [borrowed.take(&blocks, 1).expect("its own"), borrowed.take(&blocks, 1).expect("a shared one")];
        assert!(blocks.take().is_none());
        let consumer = thread::spawn({
            let (blocks, borrowed) = (blocks.clone(), borrowed.clone());
            move || taken.into_iter().rev().for_each(|block| borrowed.put(&blocks, block))
        });
        let again: Vec<Parcel> = (0..3).filter_map(|_| borrowed.take(&blocks, 1)).collect();
        consumer.join().expect("it ends");
        again.into_iter().for_each(|block| borrowed.put(&blocks, block));
        assert_eq!(Blocks::gauge(std::slice::from_ref(&blocks)).expect("a node").in_use(), 0);
        assert_eq!(all(&blocks).len(), 2);
    });
}

#[test]
fn two_receivers_of_a_queue_together_borrow_no_more_than_it_may() {
    in_every_order(3, || {
        let [blocks] = queues(2, 1);
        let (borrowed, own) = (Borrowed::default(), blocks.take().expect("its own"));
        let taker = || {
            let (blocks, borrowed) = (blocks.clone(), borrowed.clone());
            thread::spawn(move || borrowed.take(&blocks, 1))
        };
        let taken: Vec<_> = [taker(), taker()].into_iter().map(|taker| taker.join().expect("it ends")).collect();
        assert_eq!(taken.iter().flatten().count(), 1, "one of them borrows");
        taken.into_iter().flatten().chain([own]).for_each(|block| borrowed.put(&blocks, block));
        assert_eq!(all(&blocks).len(), 2);
    });
}

#[test]
fn two_queues_that_borrow_the_same_block_give_everything_back() {
    in_every_order(3, || {
        let queues: [Blocks; 2] = queues(1, 1);
        let others = queues[1].clone();
        let other = thread::spawn(move || all(&others).into_iter().for_each(|block| others.put(block)));
        let taken = all(&queues[0]);
        assert!((1..=2).contains(&taken.len()), "its own is its own");
        taken.into_iter().for_each(|block| queues[0].put(block));
        other.join().expect("it ends");
        for queue in &queues {
            let taken = all(queue);
            assert_eq!(taken.len(), 2, "a block or the right to borrow it is lost");
            taken.into_iter().for_each(|block| queue.put(block));
        }
    });
}

#[test]
fn what_a_queue_waits_for_and_may_not_borrow_goes_back() {
    in_every_order(3, || {
        let queues: [Blocks; 2] = queues(1, 1);
        let [own, shared] = [(); 2].map(|()| queues[0].take().expect("two"));
        // The other queue's consumer gives the shared block back when this one may borrow none.
        let consumer = thread::spawn({
            let blocks = queues[0].clone();
            move || {
                blocks.put(own);
                blocks.put(shared);
            }
        });
        let waiting = thread::spawn({
            let blocks = queues[1].clone();
            move || [(); 2].map(|()| blocks.wait(Duration::from_secs(1))).into_iter().flatten().collect::<Vec<_>>()
        });
        let again = queues[0].wait(Duration::from_secs(1));
        consumer.join().expect("it ends");
        waiting.join().expect("it ends").into_iter().for_each(|block| queues[1].put(block));
        again.into_iter().for_each(|block| queues[0].put(block));
        for queue in &queues {
            assert_eq!(Blocks::gauge(std::slice::from_ref(queue)).expect("a node").in_use(), 0);
        }
        assert_eq!(all(&queues[1]).len(), 2);
    });
}
