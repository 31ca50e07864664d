//! A hash for short keys that others choose: a multiplication for every eight bytes and one at the end, with two random
//! numbers that are unknown outside, drawn for each table. The library's SipHash took three of every four instructions
//! of counting senders (benches/runs/2026-11-22-xeon-2-cores/sampling.md).
//!
//! It is for tables that are bounded, in which a forged collision costs comparisons and nothing more.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The two numbers.
#[derive(Debug, Clone)]
pub struct Keyed {
    start: u64,
    factor: u64,
}

impl Keyed {
    pub fn new() -> Self {
        // The library seeds its hash tables at random.
        let random = RandomState::new();
        Self { start: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
    }
}

impl Default for Keyed {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { state: self.start, factor: self.factor }
    }
}

/// A hash in the making.
#[derive(Debug)]
pub struct Folded {
    state: u64,
    factor: u64,
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.factor);
    }

    fn write_u128(&mut self, words: u128) {
        self.write_u64((words >> 64) as u64);
        // Between the two, so that what cancels the one cannot cancel the other.
        self.state = self.state.rotate_left(23);
        self.write_u64(words as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    /// Once more: after one fold, keys that follow one another have hashes that do, at a distance which may be a bad
    /// one.
    fn finish(&self) -> u64 {
        fold(self.state.rotate_left(23), self.factor)
    }
}

/// Both halves of the product.
fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn neighbouring_addresses_spread_over_all_chains_and_each_key_spreads_them_otherwise() {
        let v4 = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number));
        let v6 = |number: u32| IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number) << 64));
        let keys: Vec<Keyed> = (0..8).map(|_| Keyed::new()).collect();
        for address in [v4, v6] {
            for key in &keys {
                let mut chains = [0; 256];
                (0..25_600).for_each(|number| chains[key.hash_one(address(number)) as usize % 256] += 1);
                // A hundred each; the spread of such a count is ten.
                assert!(chains.iter().all(|&count| (30..200).contains(&count)), "{key:?}: {chains:?}");
            }
            let hashes: std::collections::BTreeSet<u64> = keys.iter().map(|key| key.hash_one(address(7))).collect();
            assert_eq!(hashes.len(), keys.len());
        }
    }

    #[test]
    fn neighbours_spread_over_all_bits_that_a_table_looks_at() {
        let keys = |index: u64| {
            let (v4, v6) = (0xffff_0a00_0000 + u128::from(index), 0x2001_0db8 << 96);
            [(v4, 7), (v6, index << 16), (v4, index), (0, index << 32)]
        };
        for form in 0..4 {
            for _ in 0..8 {
                let hash = Keyed::new();
                let hashes: Vec<u64> = (0..16_384).map(|index| hash.hash_one(keys(index)[form])).collect();
                // 16,384 that are thrown at random into as many buckets find about 10,357 of them; the spread of that
                // is 50.
                for shift in [0, 24, 50] {
                    let buckets: HashSet<u64> = hashes.iter().map(|hash| hash >> shift & 0x3fff).collect();
                    assert!(buckets.len() > 9_500, "{} at {shift} of form {form}, {hash:?}", buckets.len());
                }
            }
        }
    }
}
