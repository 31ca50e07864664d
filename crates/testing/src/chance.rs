//! Chance that is the same on every machine: splitmix64.

use std::ops::Range;

/// A source of chance.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The same seed gives the same chance.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The chance of one step of a seed.
    pub(super) fn of_step(seed: u64, step: u64) -> Self {
        let mut mixed = Self(seed ^ step.wrapping_mul(0xd134_2543_de82_ef95));
        Self(mixed.next())
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(end)) >> 64).unwrap_or(0)
    }

    /// An index below `end`.
    pub fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    /// A number of the range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True `times` of `of` times.
    pub fn happens(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// One of these, each as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut left = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in of {
            if left < *weight {
                return *value;
            }
            left -= weight;
        }
        of[of.len() - 1].1
    }

    /// Fills it with any bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Puts them in any order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for end in (2..=values.len()).rev() {
            values.swap(end - 1, self.index(end));
        }
    }
}
