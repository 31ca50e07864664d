//! The hash of the table's index. Its keys come from the network, so it has secrets, which are drawn when a table is
//! made: nobody who does not know them can choose addresses that all fall into one bucket. A key takes three
//! multiplications, several times less than the hash of the standard library, and every note needs one.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The secrets of one table.
#[derive(Debug, Clone)]
pub(super) struct Keyed {
    start: u64,
    factor: u64,
}

impl Keyed {
    pub(super) fn new() -> Self {
        let draw = || RandomState::new().hash_one(0);
        Self { start: draw(), factor: draw() | 1 }
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { state: self.start, factor: self.factor }
    }
}

/// A hash on its way.
#[derive(Debug)]
pub(super) struct Folded {
    state: u64,
    factor: u64,
}

impl Hasher for Folded {
    fn write_u64(&mut self, word: u64) {
        // All 128 bits of the product count, so each bit of the word reaches each bit of the state.
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = (product >> 64) as u64 ^ product as u64;
    }

    fn write_u128(&mut self, words: u128) {
        self.write_u64((words >> 64) as u64);
        // Between the two, so that what cancels the one cannot cancel the other.
        self.state = self.state.rotate_left(23);
        self.write_u64(words as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::upstream::note::Key;

    #[test]
    fn neighbours_spread_over_the_bits_that_a_table_looks_at_and_no_two_tables_agree() {
        let keys = |index: u64| {
            [
                Key { source: 0xffff_0a00_0000 + u128::from(index), stream: 7 },
                Key { source: 0x2001_0db8 << 96, stream: index << 16 },
            ]
        };
        for form in 0..2 {
            let hash = Keyed::new();
            let hashes: Vec<u64> = (0..16_384).map(|index| hash.hash_one(keys(index)[form])).collect();
            // 16,384 that are thrown at random into as many buckets find about 10,357 of them.
            for shift in [0, 24, 50] {
                let buckets: HashSet<u64> = hashes.iter().map(|hash| hash >> shift & 0x3fff).collect();
                assert!(buckets.len() > 10_000, "{} at {shift}", buckets.len());
            }
            let other = Keyed::new();
            assert!(hashes.iter().enumerate().all(|(index, hash)| other.hash_one(keys(index as u64)[form]) != *hash));
        }
    }
}
