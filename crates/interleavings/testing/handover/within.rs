//! What the hand-over keeps to itself, for the tests of this crate.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mmsg::PackedBatch;

use super::batch::{LaneBatch, LaneLoad, LoadOrigin, Parcel, whole};
use super::channel::{Caller, Feed};
use super::pool::Blocks;

/// Loads that no pool knows, numbered from 1.
pub fn loads(count: usize) -> Vec<Parcel> {
    let (batches, _) = PackedBatch::pool(count, 1, false).expect("a small pool");
    let load = |(number, batch)| {
        let mut load = LaneBatch::new(LaneLoad::Packed(batch), LoadOrigin::Nowhere);
        whole(&mut load).number = number;
        load
    };
    (1..).zip(batches).map(load).collect()
}

/// Grows from each load of a lane to the next.
pub fn number(load: &Parcel) -> u64 {
    load.number
}

/// Whether a block is one of those that the queues of a memory node share.
pub fn is_borrowed(block: &Parcel) -> bool {
    block.origin == LoadOrigin::Node
}

/// What a receiver does with its end of a channel.
pub trait FeedWithin {
    fn send(&self, load: Parcel);
    fn send_quietly(&self, load: Parcel);
    fn ring(&self);
    fn leave(&self, load: Parcel);
    fn take_open(&self) -> Option<Parcel>;
    fn evict(&self) -> Option<Parcel>;
}

impl FeedWithin for Feed {
    fn send(&self, load: Parcel) {
        self.send(load);
    }

    fn send_quietly(&self, load: Parcel) {
        self.send_quietly(load);
    }

    fn ring(&self) {
        self.ring();
    }

    fn leave(&self, load: Parcel) {
        self.leave(load);
    }

    fn take_open(&self) -> Option<Parcel> {
        self.take_open()
    }

    fn evict(&self) -> Option<Parcel> {
        self.evict()
    }
}

/// What a route does with the blocks of its queue.
pub trait BlocksWithin {
    fn take(&self) -> Option<Parcel>;
    fn wait(&self, limit: Duration) -> Option<Parcel>;
    fn put(&self, block: Parcel);
}

impl BlocksWithin for Blocks {
    fn take(&self) -> Option<Parcel> {
        self.take()
    }

    fn wait(&self, limit: Duration) -> Option<Parcel> {
        self.wait(limit)
    }

    fn put(&self, block: Parcel) {
        self.put(block);
    }
}

/// Whether a call waits to be heard.
pub fn is_called(caller: &Caller) -> bool {
    caller.0.called.load(Ordering::Relaxed)
}
