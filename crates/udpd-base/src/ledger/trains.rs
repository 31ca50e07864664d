//! Whether datagrams come in trains, counted on a sample while a listener with `gro = "auto"` finds out.
//!
//! A socket without `UDP_GRO` gets a train cut into datagrams, and the kernel copies the time of arrival to each of
//! them. So neighbours of one sender with one time are of one train. Equal lengths would say less: a sender of single
//! datagrams has them too, and its datagrams are never merged on the way through a loopback.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

/// What has been seen in the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trains {
    /// Datagrams.
    pub datagrams: u64,
    /// Those of them that are of a train of two or more.
    pub in_trains: u64,
    /// The trains.
    pub trains: u64,
}

/// The same, counted by one thread and read by another.
#[derive(Debug, Default)]
pub(super) struct TrainsSeen {
    datagrams: AtomicU64,
    in_trains: AtomicU64,
    trains: AtomicU64,
}

impl TrainsSeen {
    /// Counts one batch, of which each datagram has a time and a sender. Without a time it is alone.
    pub(super) fn count<T: PartialEq, S: PartialEq>(&self, batch: impl Iterator<Item = (Option<T>, S)>) {
        let mut seen = Trains::default();
        let mut before = None;
        let mut is_in_train = false;
        for datagram in batch {
            seen.datagrams += 1;
            let goes_on = datagram.0.is_some() && before.as_ref() == Some(&datagram);
            if goes_on {
                seen.in_trains += if is_in_train { 1 } else { 2 };
                seen.trains += u64::from(!is_in_train);
            }
            is_in_train = goes_on;
            before = Some(datagram);
        }
        // The reader looks at the datagrams first, so it never has more of them than were looked at for trains.
        self.trains.fetch_add(seen.trains, Ordering::Relaxed);
        self.in_trains.fetch_add(seen.in_trains, Ordering::Relaxed);
        self.datagrams.fetch_add(seen.datagrams, Ordering::Release);
    }

    pub(super) fn read(&self) -> Trains {
        let datagrams = self.datagrams.load(Ordering::Acquire);
        let (in_trains, trains) = (self.in_trains.load(Ordering::Relaxed), self.trains.load(Ordering::Relaxed));
        Trains { datagrams, in_trains: in_trains.min(datagrams), trains }
    }
}

impl Add for Trains {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            datagrams: self.datagrams + other.datagrams,
            in_trains: self.in_trains + other.in_trains,
            trains: self.trains + other.trains,
        }
    }
}

impl Trains {
    /// Datagrams that have to be seen before anything is decided.
    const ENOUGH: u64 = 2_048;

    /// Whether trains are worth it: half of all datagrams, four in a train. `None` until enough have been seen.
    pub fn decide(self) -> Option<bool> {
        let are_worth_it = 2 * self.in_trains >= self.datagrams && self.in_trains >= 4 * self.trains;
        (self.datagrams >= Self::ENOUGH).then_some(are_worth_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(batch: &[(Option<u32>, u8)]) -> Trains {
        let seen = TrainsSeen::default();
        seen.count(batch.iter().copied());
        seen.read()
    }

    #[test]
    fn neighbours_of_one_sender_and_one_time_are_a_train_and_others_are_not() {
        let batch = [(Some(1), 1), (Some(1), 1), (Some(1), 1), (Some(1), 2), (Some(2), 2), (Some(3), 3), (Some(3), 3)];
        assert_eq!(seen(&batch), Trains { datagrams: 7, in_trains: 5, trains: 2 });
        assert_eq!(seen(&[(None, 1), (None, 1)]), Trains { datagrams: 2, in_trains: 0, trains: 0 });
    }

    #[test]
    fn trains_are_worth_it_from_half_of_all_datagrams_and_four_in_each() {
        let decided = |datagrams, in_trains, trains| Trains { datagrams, in_trains, trains }.decide();
        assert_eq!(decided(2_047, 2_047, 100), None);
        assert_eq!(decided(2_048, 1_024, 256), Some(true));
        assert_eq!(decided(2_048, 1_023, 100), Some(false));
        assert_eq!(decided(2_048, 1_024, 257), Some(false));
        assert_eq!(decided(2_048, 0, 0), Some(false));
    }
}
