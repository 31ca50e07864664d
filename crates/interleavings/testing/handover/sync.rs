//! What stands in the place of `udpd_base`'s `handover/sync.rs`: loom's atomics, threads and counted references, and
//! queues made of them.
//!
//! A queue here promises what crossbeam's documents and no more: who takes a load sees what was done before it was
//! queued. A look into an empty queue orders nothing, although crossbeam has a fence there: the hand-over is to need
//! none of what another crate may change. And a look may see an older end of the queue, as it may on a real machine.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(super) use loom::sync::Arc;
use loom::sync::atomic::Ordering;
pub(super) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
pub(super) use loom::thread::{self, Thread};

/// A flag whose store is a swap. loom forgets that nothing comes between the two halves of a swap: a store beside it
/// could come before and behind it at once, and a consumer would sleep for ever that no machine lets sleep.
#[derive(Debug, Default)]
pub struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}

/// Seen by another thread only where the memory order has it so.
#[derive(Debug)]
pub(super) struct OnceLock<T> {
    is_set: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self { is_set: AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }
}

impl<T> OnceLock<T> {
    pub(super) fn get(&self) -> Option<&T> {
        self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }

    pub(super) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(make);
        if !self.is_set.load(Ordering::Acquire) {
            self.is_set.store(true, Ordering::Release);
        }
        value
    }
}

/// A bounded queue for any number of threads.
pub struct ArrayQueue<T> {
    /// How many were ever taken.
    taken: AtomicUsize,
    /// How many were ever queued.
    queued: AtomicUsize,
    /// No thread is interrupted while it holds this, so it orders nothing in the model.
    places: Mutex<Vec<Option<T>>>,
}

impl<T> fmt::Debug for ArrayQueue<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ArrayQueue").finish_non_exhaustive()
    }
}

impl<T> ArrayQueue<T> {
    pub fn new(places: usize) -> Self {
        let places = Mutex::new((0..places).map(|_| None).collect());
        Self { taken: AtomicUsize::new(0), queued: AtomicUsize::new(0), places }
    }

    fn at<R>(&self, number: usize, change: impl FnOnce(&mut Option<T>) -> R) -> R {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let count = places.len();
        change(&mut places[number % count])
    }

    /// Takes the next place and fills it in one step.
    pub fn push(&self, value: T) -> Result<(), T> {
        let number = self.queued.fetch_add(1, Ordering::AcqRel);
        let before = self.at(number, |place| place.replace(value));
        assert!(before.is_none(), "more is queued than there are places");
        Ok(())
    }

    pub fn pop(&self) -> Option<T> {
        let mut first = self.taken.load(Ordering::Relaxed);
        loop {
            if first >= self.queued.load(Ordering::Acquire) {
                return None;
            }
            match self.taken.compare_exchange(first, first + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(number) => return Some(self.at(number, Option::take).expect("it was queued")),
                Err(later) => first = later,
            }
        }
    }

    pub fn len(&self) -> usize {
        let taken = self.taken.load(Ordering::Acquire);
        self.queued.load(Ordering::Acquire).saturating_sub(taken)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Both ends of a channel: nothing here waits for the other end to go.
#[derive(Debug)]
pub(super) struct Receiver<T>(std::sync::Arc<ArrayQueue<T>>);

pub(super) type Sender<T> = Receiver<T>;

pub(super) fn bounded<T>(places: usize) -> (Sender<T>, Receiver<T>) {
    let end = Receiver(std::sync::Arc::new(ArrayQueue::new(places)));
    (end.clone(), end)
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self(std::sync::Arc::clone(&self.0))
    }
}

impl<T> Receiver<T> {
    pub(super) fn send(&self, value: T) -> Result<(), T> {
        self.0.push(value)
    }

    pub(super) fn try_send(&self, value: T) -> Result<(), T> {
        self.0.push(value)
    }

    pub(super) fn try_recv(&self) -> Result<T, ()> {
        self.0.pop().ok_or(())
    }

    /// Looks once, and lets others go on where there is nothing.
    pub(super) fn recv_timeout(&self, _limit: Duration) -> Result<T, ()> {
        let received = self.try_recv();
        if received.is_err() {
            loom::thread::yield_now();
        }
        received
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        Some(self.0.capacity())
    }
}

/// crossbeam's for two channels, in the one form in which the hand-over has it. It looks once into both.
macro_rules! select {
    (
        recv($first:expr) -> $from_first:ident => $first_outcome:expr,
        recv($second:expr) -> $from_second:ident => $second_outcome:expr,
        default($limit:ident) => $nothing:expr,
    ) => {
        match $first.try_recv() {
            $from_first @ Ok(_) => $first_outcome,
            Err(()) => match $second.recv_timeout($limit) {
                $from_second @ Ok(_) => $second_outcome,
                Err(()) => $nothing,
            },
        }
    };
}
pub(super) use select;
