//! Waiting for another thread, and starting one. A simulation runs one thread at a time and picks the next, so a wait
//! there is a question that is asked again when another thread has done something.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError};

#[cfg(any(test, feature = "testing"))]
use crate::testing::scheduler::{self, Scheduler};

use super::clock;

/// Waits by `wait`; in a simulation until `ready` returns something or the deadline has passed.
#[inline]
pub fn until<T>(
    _deadline: Option<Instant>,
    _ready: impl FnMut() -> Option<T>,
    wait: impl FnOnce() -> Option<T>,
) -> Option<T> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(scheduler) = scheduler::current() {
        return scheduler.wait(_deadline, _ready);
    }
    wait()
}

/// Another thread may go on here, and nothing else happens.
#[inline]
pub fn turn() {
    #[cfg(any(test, feature = "testing"))]
    if let Some(scheduler) = scheduler::current() {
        scheduler.turn();
    }
}

/// In a simulation waits until `ready`, and returns true; else false, because the call that follows waits itself.
#[inline]
pub fn has_waited(_ready: impl FnMut() -> bool) -> bool {
    #[cfg(any(test, feature = "testing"))]
    if let Some(scheduler) = scheduler::current() {
        let mut ready = _ready;
        scheduler.wait(None, || ready().then_some(()));
        return true;
    }
    false
}

/// What comes next, or that nothing ever does.
pub fn recv<T>(from: &Receiver<T>) -> Result<T, RecvError> {
    let ready = || match from.try_recv() {
        Err(error) if error.is_empty() => None,
        received => Some(received.map_err(|_| RecvError)),
    };
    until(None, ready, || Some(from.recv())).unwrap_or(Err(RecvError))
}

/// The same, at most for this long.
pub fn recv_timeout<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    recv_until(from, clock::now().checked_add(limit), || from.recv_timeout(limit))
}

/// The same, at most until then.
pub fn recv_deadline<T>(from: &Receiver<T>, deadline: Instant) -> Result<T, RecvTimeoutError> {
    recv_until(from, Some(deadline), || from.recv_deadline(deadline))
}

fn recv_until<T>(
    from: &Receiver<T>,
    deadline: Option<Instant>,
    wait: impl FnOnce() -> Result<T, RecvTimeoutError>,
) -> Result<T, RecvTimeoutError> {
    let ready = || match from.try_recv() {
        Err(error) if error.is_empty() => None,
        received => Some(received.map_err(|_| RecvTimeoutError::Disconnected)),
    };
    until(deadline, ready, || Some(wait())).unwrap_or(Err(RecvTimeoutError::Timeout))
}

/// Sleeps until [`unpark`], or until the deadline. It may also return for no reason.
#[inline]
pub fn park(deadline: Option<Instant>) {
    let sleep = || {
        match deadline.map(|deadline| deadline.saturating_duration_since(clock::now())) {
            None => thread::park(),
            Some(left) => thread::park_timeout(left),
        }
        Some(())
    };
    #[cfg(any(test, feature = "testing"))]
    let token = || scheduler::current().and_then(|scheduler| scheduler.take_token());
    #[cfg(not(any(test, feature = "testing")))]
    let token = || None;
    until(deadline, token, sleep);
}

/// Wakes a thread that sleeps in [`park`], or is about to.
#[inline]
pub fn unpark(thread: &Thread) {
    #[cfg(any(test, feature = "testing"))]
    if let Some(scheduler) = scheduler::current() {
        return scheduler.give_token(thread.id());
    }
    thread.unpark();
}

/// Locks a mutex also when a thread has panicked with it. The daemon ends then, and its other threads still need what
/// the mutex guards for the last ledger.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(scheduler) = scheduler::current() {
        let free = || match mutex.try_lock() {
            Err(std::sync::TryLockError::WouldBlock) => None,
            locked => Some(locked.unwrap_or_else(|error| match error {
                std::sync::TryLockError::Poisoned(poisoned) => poisoned.into_inner(),
                std::sync::TryLockError::WouldBlock => unreachable!("handled above"),
            })),
        };
        // A run that has failed waits for nothing any more.
        if let Some(locked) = scheduler.wait(None, free) {
            return locked;
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a thread has ended, and returns what it has returned.
pub fn join<T>(thread: JoinHandle<T>) -> thread::Result<T> {
    has_waited(|| thread.is_finished());
    thread.join()
}

/// Starts a thread, which is in the simulation of the calling one.
pub fn spawn<T: Send + 'static>(
    builder: thread::Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(scheduler) = scheduler::current() {
        return Scheduler::spawn(&scheduler, builder, body);
    }
    builder.spawn(body)
}
