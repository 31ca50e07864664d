//! Counters that one thread writes and any thread may read as a whole.
//!
//! The writer keeps its counts in plain integers and publishes them once per batch with ordinary stores: no locked
//! instruction on the way of a datagram. A version number around the stores lets a reader notice that it read in the
//! middle of a publication and read again, so the terms of a ledger always belong to the same moment.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

use super::counter::{Cells, CounterSet};

/// Counters with one writer, on cache lines of their own.
#[derive(Default)]
pub struct Published<C: CounterSet> {
    inner: CachePadded<PublishedCells<C>>,
}

#[derive(Default)]
struct PublishedCells<C: CounterSet> {
    /// Odd while the writer is in the middle of a publication.
    version: AtomicU64,
    cells: Cells<C>,
}

impl<C: CounterSet> Published<C> {
    /// Replaces the counters. Only ever called by the one thread that owns them.
    pub fn publish(&self, counters: &C) {
        let version = self.inner.version.load(Ordering::Relaxed);
        self.inner.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        counters.each(&self.inner.cells, &mut |number, cell| cell.store(number, Ordering::Relaxed));
        self.inner.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// All counters as they were at one moment.
    pub fn read(&self) -> C {
        loop {
            let before = self.inner.version.load(Ordering::Acquire);
            let counters = C::load(&self.inner.cells);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.inner.version.load(Ordering::Relaxed) == before {
                return counters;
            }
            std::hint::spin_loop();
        }
    }
}

impl<C: CounterSet + Debug> Debug for Published<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Published").field(&self.read()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_reader_never_sees_half_a_publication() {
        let published = Arc::new(Published::<[u64; 4]>::default());
        let writer = Arc::clone(&published);
        let thread = std::thread::spawn(move || (1..=200_000).for_each(|count| writer.publish(&[count; 4])));
        let mut last = 0;
        while last < 200_000 {
            let values = published.read();
            assert_eq!(values, [values[0]; 4]);
            assert!(values[0] >= last, "counters do not run backwards");
            last = values[0];
        }
        thread.join().expect("the writer ends");
    }
}
