//! When a consumer may begin. As a rule it begins at once. One whose sink writes what an earlier sink still writes, a
//! file above all, waits until that sink has handed on everything and closed it: a file never has two writers, and what
//! arrives meanwhile waits in the queue.
//!
//! Which consumers it waits for is known only when the replacement takes the place of its pipeline. Where a replacement
//! is dropped no permit is granted, and its consumers end without having touched anything.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use udpd_base::os::threads;
use udpd_base::seams::waits;

/// How often a waiting consumer checks whether it was given up.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Disconnected when a consumer has ended and its sink is closed.
pub(super) type EndSignal = Receiver<Infallible>;

/// Held by the thread of a consumer.
pub(super) type AliveToken = Sender<Infallible>;

/// What a consumer waits for before it begins.
#[derive(Debug)]
pub(super) struct StartGate {
    /// Sends the consumers that must have ended before; `None` where there are none.
    permit: Option<Receiver<Vec<EndSignal>>>,
    has_begun: Arc<AtomicBool>,
}

/// Opens the gate of a consumer.
#[derive(Debug)]
pub(super) struct StartPermit {
    pub(super) sink: usize,
    permit: Sender<Vec<EndSignal>>,
}

/// The token for a new consumer's thread, and the signal that it has ended.
pub(super) fn end_signal() -> (AliveToken, EndSignal) {
    bounded(0)
}

pub(super) fn has_ended(ended: &EndSignal) -> bool {
    ended.try_recv() == Err(TryRecvError::Disconnected)
}

impl StartGate {
    /// For a consumer that waits for no other.
    pub(super) fn open() -> Self {
        Self { permit: None, has_begun: Arc::default() }
    }

    /// For a consumer whose sink takes the place of others.
    pub(super) fn closed(sink: usize) -> (Self, StartPermit) {
        let (sender, permit) = bounded(1);
        (Self { permit: Some(permit), has_begun: Arc::default() }, StartPermit { sink, permit: sender })
    }

    /// Set when the consumer has begun.
    pub(super) fn has_begun(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_begun)
    }

    /// Waits for the permit and for the end of the other consumers, then calls `begin`. Returns without it when the
    /// permit is dropped or the consumer is given up.
    pub(super) fn pass(self, begin: impl FnOnce()) {
        if let Some(permit) = self.permit {
            let Ok(others) = threads::blocking(|| waits::recv(&permit)) else { return };
            for other in &others {
                // Nothing is ever sent.
                while threads::blocking(|| waits::recv_timeout(other, CHECK_EVERY))
                    .is_err_and(|error| error.is_timeout())
                {
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

impl StartPermit {
    /// Lets the consumer begin when these have ended.
    pub(super) fn grant(self, others: Vec<EndSignal>) {
        // A thread that has panicked is reported by the thread registry.
        let _ = self.permit.send(others);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_consumer_begins_when_all_those_before_it_have_ended_and_not_earlier() {
        let (gate, permit) = StartGate::closed(0);
        let (begun, order) = (gate.has_begun(), mpsc::channel());
        let (first, second) = (end_signal(), end_signal());
        let said = order.0.clone();
        let own = thread::spawn(move || gate.pass(|| said.send("begun").expect("heard")));
        permit.grant(vec![first.1, second.1]);
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
    fn a_consumer_whose_permit_is_dropped_does_not_begin_and_a_new_one_does_at_once() {
        let (gate, permit) = StartGate::closed(0);
        drop(permit);
        gate.pass(|| unreachable!("it was given up"));
        let gate = StartGate::open();
        let begun = gate.has_begun();
        gate.pass(|| {});
        assert!(begun.load(Ordering::Acquire));
    }
}
