//! The channel with real threads: nothing is lost, nothing overtakes, no consumer sleeps through a wake-up.

use super::*;
use crate::handover::batch::packed;
use crate::handover::pool::{Allowance, Blocks, Stock};
use crate::handover::pool::{Homes, Owner, Pool};
use mmsg::{BatchShape, PackedBatch, RecvBatch};

/// A debug build does a tenth, and under miri a few dozen are what there is time for.
const SCALE: usize = match (cfg!(miri), cfg!(debug_assertions)) {
    (true, _) => 10_000,
    (_, true) => 10,
    _ => 1,
};

/// A lane and the blocks of its only queue, and the ways home.
fn lane(batches: usize, blocks: usize) -> (Pool, Blocks, Homes) {
    let (batches, _) = RecvBatch::pool(batches, &BatchShape::new(1, 64)).expect("a small pool");
    let (blocks, _) = PackedBatch::pool(blocks, 4096, false).expect("a small pool");
    let nothing = Stock::shared(Vec::new().into_iter());
    let blocks = Blocks::new(Stock::of_queue(blocks.into_iter()), nothing, Allowance::new(0));
    let (pool, home) = Pool::new(batches, 1, Owner::default());
    (pool, blocks.clone(), Homes::new([home].into(), vec![blocks]))
}

fn begun(pool: &mut Pool, blocks: &Blocks) -> Option<Parcel> {
    let mut block = blocks.take()?;
    pool.mark(&mut block);
    Some(block)
}

fn parcels(count: usize) -> Vec<Parcel> {
    let (mut pool, ..) = lane(count, 1);
    std::iter::from_fn(|| pool.take()).collect()
}

fn numbers(inbox: &mut ConsumerInbox) -> Vec<u64> {
    std::iter::from_fn(|| inbox.take()).map(|parcel| parcel.number).collect()
}

#[test]
fn an_open_block_is_taken_in_its_turn_whatever_is_queued_before_and_after() {
    for (before, after) in [(0, 0), (1, 0), (2, 0), (3, 2)] {
        let (mut pool, blocks, _homes) = lane(8, 1);
        let mut inbox = ConsumerInbox::default();
        let feed = inbox.attach(16);
        (0..before).for_each(|_| feed.send(pool.take().expect("a batch")));
        feed.leave(begun(&mut pool, &blocks).expect("a block"));
        // A receiver takes an open block out and queues it before it queues anything else.
        if after > 0 {
            feed.send(feed.take_open().expect("it is not taken"));
        }
        (0..after).for_each(|_| feed.send(pool.take().expect("a batch")));
        assert_eq!(numbers(&mut inbox), (1..=before + 1 + after).collect::<Vec<u64>>());
    }
}

#[test]
fn what_is_left_quietly_wakes_nobody_until_the_ring() {
    let (mut pool, ..) = lane(2, 1);
    let mut inbox = ConsumerInbox::default();
    let feed = inbox.attach(2);
    let is_asleep = |inbox: &ConsumerInbox| inbox.bell.asleep.load(Ordering::Relaxed);
    inbox.bell.asleep.store(true, Ordering::Relaxed);
    feed.send_quietly(pool.take().expect("a batch"));
    assert!(is_asleep(&inbox));
    feed.ring();
    assert!(!is_asleep(&inbox));
    assert_eq!(numbers(&mut inbox), [1]);
}

#[test]
fn a_call_ends_one_wait_and_the_next_lasts_to_its_deadline() {
    let mut inbox = ConsumerInbox::default();
    let _feed = inbox.attach(2);
    inbox.caller().call();
    assert!(matches!(inbox.wait(None), Waited::Deadline));
    let deadline = clock::now() + Duration::from_millis(1);
    assert!(matches!(inbox.wait(Some(deadline)), Waited::Deadline));
    assert!(clock::now() >= deadline);
}

#[test]
fn a_queue_has_places_up_to_its_capacity() {
    let mut inbox = ConsumerInbox::default();
    let feed = inbox.attach(3);
    parcels(1).into_iter().for_each(|parcel| feed.send(parcel));
    let capacity = feed.passage.queue.capacity();
    assert!(feed.has_places(capacity - 1) && !feed.has_places(capacity));
}

#[test]
fn every_lane_has_its_turn() {
    let mut inbox = ConsumerInbox::default();
    let feeds = [inbox.attach(4), inbox.attach(4), inbox.attach(4)];
    let mut parcels = parcels(6).into_iter();
    for feed in [&feeds[0], &feeds[0], &feeds[0], &feeds[2], &feeds[2], &feeds[1]] {
        feed.send(parcels.next().expect("six"));
    }
    assert_eq!(numbers(&mut inbox), [1, 6, 4, 2, 5, 3]);
}

#[test]
fn a_consumer_that_takes_open_blocks_gets_every_load_once_and_in_order() {
    const LOADS: u64 = 200_000 / SCALE as u64;
    let (mut pool, stock, homes) = lane(8, 8);
    let mut inbox = ConsumerInbox::default();
    let feed = inbox.attach(64);
    let receiver = std::thread::spawn(move || {
        let (mut sent, mut blocks) = (0, 0);
        while sent < LOADS {
            if let Some(batch) = pool.take() {
                feed.take_open().into_iter().for_each(|open| feed.send(open));
                feed.send(batch);
                sent += 1;
            }
            let open = feed.take_open();
            blocks += u64::from(open.is_none());
            let Some(mut block) = open.or_else(|| begun(&mut pool, &stock)) else {
                blocks -= 1;
                // Under miri the threads take turns, and this one has nothing to do until the other had one.
                std::hint::spin_loop();
                continue;
            };
            assert!(packed(&mut block).is_empty());
            feed.leave(block);
        }
        // The pool with it: loads are still on their way home.
        (blocks, pool)
    });
    let (mut taken, mut batches, mut last) = (0, 0, 0);
    while let Waited::Batch(parcel) = inbox.wait(None) {
        assert!(parcel.number > last, "{} overtakes {last}", parcel.number);
        last = parcel.number;
        taken += 1;
        batches += u64::from(matches!(parcel.datagrams, crate::handover::batch::LaneLoad::Received(_)));
        homes.send(parcel);
    }
    let (blocks, _pool) = receiver.join().expect("the receiver ends");
    assert_eq!((batches, taken), (LOADS, LOADS + blocks));
}

#[test]
fn a_sleeping_consumer_hears_of_every_load_and_of_the_end() {
    let parcels = parcels((20_000 / SCALE).max(10));
    let count = parcels.len();
    let mut inbox = ConsumerInbox::default();
    let feeds = [inbox.attach(count), inbox.attach(count)];
    let halves = [parcels[..count / 2].to_vec(), parcels[count / 2..].to_vec()];
    let senders: Vec<_> = feeds
        .into_iter()
        .zip(halves)
        .map(|(feed, parcels)| std::thread::spawn(move || parcels.into_iter().for_each(|parcel| feed.send(parcel))))
        .collect();
    let mut taken = 0;
    while let Waited::Batch(_) = inbox.wait(None) {
        taken += 1;
    }
    assert_eq!(taken, count);
    senders.into_iter().for_each(|sender| sender.join().expect("the sender ends"));
}

#[test]
fn what_is_left_open_by_a_feed_that_goes_is_still_taken() {
    let (mut pool, blocks, _homes) = lane(1, 1);
    let mut inbox = ConsumerInbox::default();
    let feed = inbox.attach(4);
    feed.leave(begun(&mut pool, &blocks).expect("a block"));
    drop(feed);
    assert!(matches!(inbox.wait(None), Waited::Batch(_)));
    assert!(matches!(inbox.wait(None), Waited::Ended));
}

#[test]
fn a_wait_with_a_deadline_ends_at_it() {
    let mut inbox = ConsumerInbox::default();
    let _feed = inbox.attach(4);
    assert!(matches!(inbox.wait(Some(Instant::now() + Duration::from_millis(5))), Waited::Deadline));
}

#[test]
fn a_sleeping_consumer_hears_every_call_and_one_before_its_sleep_too() {
    let mut inbox = ConsumerInbox::default();
    let _feed = inbox.attach(4);
    let caller = inbox.caller();
    let (heard, hearing) = crossbeam_channel::bounded(0);
    caller.call();
    let calling = std::thread::spawn(move || {
        for () in hearing {
            caller.call();
        }
    });
    for _ in 0..10_000 / SCALE {
        assert!(matches!(inbox.wait(None), Waited::Deadline));
        heard.send(()).expect("the other thread calls");
    }
    assert!(matches!(inbox.wait(None), Waited::Deadline));
    drop(heard);
    calling.join().expect("the caller ends");
}

#[test]
fn a_channel_that_is_ended_gives_what_it_has_and_no_more_although_a_feed_is_left() {
    let mut inbox = ConsumerInbox::default();
    let feed = inbox.attach(4);
    parcels(2).into_iter().for_each(|parcel| feed.send(parcel));
    inbox.closer().end();
    assert!(matches!(inbox.wait(None), Waited::Batch(_)));
    assert!(matches!(inbox.wait(None), Waited::Batch(_)));
    assert!(matches!(inbox.wait(None), Waited::Ended));
}
