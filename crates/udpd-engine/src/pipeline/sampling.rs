//! Which batches are looked at more closely: one in sixteen or so. Its arrival is stamped, which takes a look at the
//! clock, and its senders are counted, which takes a look at each datagram.
//!
//! How many batches lie between two of them is random. Otherwise a sender whose bursts are as regular as the samples
//! would be seen always or never.

use std::hash::{BuildHasher, RandomState};

/// One batch in so many is sampled, on average.
pub(super) const BATCHES_PER_SAMPLE: u64 = 16;

/// The batches of one lane.
#[derive(Debug)]
pub struct Sampling {
    /// Batches until the next one.
    left: u64,
    random: u64,
}

impl Sampling {
    /// The first batch is one: whoever asks after a lone datagram gets an answer.
    pub(super) fn new() -> Self {
        // Never 0, of which the generator would make nothing else. The library seeds its hash tables at random.
        Self { left: 1, random: RandomState::new().hash_one(0_u8) | 1 }
    }

    /// Whether the batch that has come now is to be sampled.
    pub(super) fn is_due(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        // Marsaglia's xorshift: three instructions, and as random as this needs.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.left = 1 + self.random % (2 * BATCHES_PER_SAMPLE - 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_is_sampled_and_then_one_in_sixteen_at_no_fixed_distance() {
        let mut sampling = Sampling::new();
        let batches = 160_000;
        let sampled: Vec<usize> = (0..batches).filter(|_| sampling.is_due()).collect();
        assert_eq!(sampled[0], 0);
        let expected = batches / BATCHES_PER_SAMPLE as usize;
        // The spread of such a sum is about sixty: this is sixteen times as much.
        assert!(sampled.len().abs_diff(expected) < 1_000, "{} of {batches}", sampled.len());
        let distances: std::collections::BTreeSet<usize> = sampled.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(distances, (1..2 * BATCHES_PER_SAMPLE as usize).collect());
    }
}
