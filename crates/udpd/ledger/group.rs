//! A group of counters that one thread writes and anybody may read as a whole.
//!
//! The writer keeps its counts in plain integers and publishes them once per batch with ordinary stores: no locked
//! instruction on the way of a datagram. A version number around the stores lets a reader notice that it read in the
//! middle of a publication and read again, so the terms of a ledger always belong to the same moment.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

/// `N` counters with one writer, on cache lines of their own.
#[derive(Debug)]
pub struct Group<const N: usize> {
    inner: CachePadded<Inner<N>>,
}

#[derive(Debug)]
struct Inner<const N: usize> {
    /// Odd while the writer is in the middle of a publication.
    version: AtomicU64,
    values: [AtomicU64; N],
}

impl<const N: usize> Default for Group<N> {
    fn default() -> Self {
        Self {
            inner: CachePadded::new(Inner {
                version: AtomicU64::new(0),
                values: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        }
    }
}

impl<const N: usize> Group<N> {
    /// Replaces the first `values.len()` counters. Only ever called by the one thread that owns the group.
    pub fn publish(&self, values: &[u64]) {
        let version = self.inner.version.load(Ordering::Relaxed);
        self.inner.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (slot, value) in self.inner.values.iter().zip(values) {
            slot.store(*value, Ordering::Relaxed);
        }
        self.inner.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// All counters as they were at one moment.
    pub fn read(&self) -> [u64; N] {
        loop {
            let before = self.inner.version.load(Ordering::Acquire);
            let values = std::array::from_fn(|index| self.inner.values[index].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.inner.version.load(Ordering::Relaxed) == before {
                return values;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_reader_never_sees_half_a_publication() {
        let group = Arc::new(Group::<4>::default());
        let writer = Arc::clone(&group);
        let thread = std::thread::spawn(move || (1..=200_000).for_each(|count| writer.publish(&[count; 4])));
        let mut last = 0;
        while last < 200_000 {
            let values = group.read();
            assert_eq!(values, [values[0]; 4]);
            assert!(values[0] >= last, "counters do not run backwards");
            last = values[0];
        }
        thread.join().expect("the writer ends");
    }
}
