//! The bell between receivers and a consumer: wakes a consumer that sleeps, and costs a fence where it is awake.
//!
//! Before it sleeps, crossbeam's own `recv` yields its core many times over, which costs more than receiving does when
//! a consumer is woken often. Here a consumer that finds nothing parks at once, and a receiver rings only for a
//! consumer that has said it is going to sleep.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// Wakes one sleeping consumer.
#[derive(Debug, Default)]
pub(super) struct ConsumerWaker {
    /// The consumer sleeps until it is woken, or is about to sleep.
    pub(super) asleep: AtomicBool,
    /// The consumer sleeps for a fixed time and would not hear.
    pub(super) napping: AtomicBool,
    /// The consumer is to look at something else than its queues.
    pub(super) called: AtomicBool,
    /// There is no consumer any more. A queue alone would not tell: its other end is held for eviction and for
    /// watching.
    pub(super) gone: AtomicBool,
    /// Nothing more comes, whatever feeds are left.
    pub(super) ended: AtomicBool,
    pub(super) consumer: OnceLock<Thread>,
}

impl ConsumerWaker {
    /// Rings if the consumer sleeps or is about to. The fence pairs with the one in
    /// [`ConsumerInbox::wait`](super::channel::ConsumerInbox::wait): either the consumer sees what was left before this
    /// call, or this call sees that it is going to sleep.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Acquire)
            && let Some(consumer) = self.consumer.get()
        {
            consumer.unpark();
        }
    }
}

/// A feed's hold on the bell; rings when the feed goes.
#[derive(Debug)]
pub(super) struct Ringer(pub(super) Arc<ConsumerWaker>);

impl Drop for Ringer {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Wakes a sleeping consumer without a batch: its sink has something to do. A consumer that is awake finds that by
/// itself.
#[derive(Debug, Clone, Default)]
pub struct Caller(pub(super) Arc<ConsumerWaker>);

impl Caller {
    /// Calls. Costs a fence where the consumer is awake.
    pub fn call(&self) {
        self.0.called.store(true, Ordering::Relaxed);
        self.0.ring();
    }
}
