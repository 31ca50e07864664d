//! When a consumer may begin. As a rule that is at once. One whose sink writes what a sink of before still writes, a
//! file above all, waits until that one has handed on everything and closed it: a file never has two writers, and what
//! arrives meanwhile waits in the queue.
//!
//! Which those are is known when the heir takes the place of its pipeline, and not before. An heir that is given up
//! lets nobody in, and its consumers end without having touched anything.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use udpd_base::os::threads;

/// How often one that waits looks whether it is given up.
const LOOK: Duration = Duration::from_millis(50);

/// Disconnected when a consumer has ended and its sink is closed.
pub(super) type Ended = Receiver<Infallible>;

/// Held by the thread of a consumer.
pub(super) type Alive = Sender<Infallible>;

/// What a consumer waits for before it begins.
#[derive(Debug)]
pub(super) struct Entry {
    /// Those that must have ended; `None` where nobody must.
    before: Option<Receiver<Vec<Ended>>>,
    has_begun: Arc<AtomicBool>,
}

/// Lets a consumer in.
#[derive(Debug)]
pub(super) struct Admission {
    /// The index of its sink.
    pub(super) sink: usize,
    before: Sender<Vec<Ended>>,
}

/// A new consumer's thread, and the end of it as others see it.
pub(super) fn life() -> (Alive, Ended) {
    bounded(0)
}

/// Whether a consumer has ended.
pub(super) fn has_ended(ended: &Ended) -> bool {
    ended.try_recv() == Err(TryRecvError::Disconnected)
}

impl Entry {
    /// For a consumer whose sink is new.
    pub(super) fn free() -> Self {
        Self { before: None, has_begun: Arc::default() }
    }

    /// For one whose sink takes the place of others.
    pub(super) fn after_others(sink: usize) -> (Self, Admission) {
        let (before, others) = bounded(1);
        (Self { before: Some(others), has_begun: Arc::default() }, Admission { sink, before })
    }

    /// Set when the consumer has begun.
    pub(super) fn begun(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_begun)
    }

    /// Waits for those that have to end and then begins; not at all, when nobody lets it in, or it is given up.
    pub(super) fn begin(self, begin: impl FnOnce()) {
        if let Some(before) = self.before {
            let Ok(others) = threads::blocking(|| before.recv()) else { return };
            for other in &others {
                // Nothing is ever sent.
                while threads::blocking(|| other.recv_timeout(LOOK)).is_err_and(|error| error.is_timeout()) {
                    if threads::is_given_up() {
                        return;
                    }
                }
            }
        }
        begin();
        self.has_begun.store(true, Ordering::Release);
    }
}

impl Admission {
    /// Lets it in when these have ended.
    pub(super) fn after(self, others: Vec<Ended>) {
        // A thread that is gone has said so by its alarm.
        let _ = self.before.send(others);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_consumer_begins_when_all_those_before_it_have_ended_and_not_earlier() {
        let (entry, admission) = Entry::after_others(0);
        let (begun, order) = (entry.begun(), mpsc::channel());
        let (first, second) = (life(), life());
        let said = order.0.clone();
        let own = thread::spawn(move || entry.begin(|| said.send("begun").expect("heard")));
        admission.after(vec![first.1, second.1]);
        for alive in [first.0, second.0] {
            assert!(!begun.load(Ordering::Acquire));
            order.0.send("ended").expect("heard");
            drop(alive);
        }
        own.join().expect("it begins");
        assert!(begun.load(Ordering::Acquire));
        assert_eq!(order.1.try_iter().collect::<Vec<_>>(), ["ended", "ended", "begun"]);
    }

    #[test]
    fn a_consumer_that_nobody_lets_in_does_not_begin_and_a_new_one_does_at_once() {
        let (entry, admission) = Entry::after_others(0);
        drop(admission);
        entry.begin(|| unreachable!("it was given up"));
        let entry = Entry::free();
        let begun = entry.begun();
        entry.begin(|| {});
        assert!(begun.load(Ordering::Acquire));
    }
}
