//! A hash for short keys that others choose: a multiplication for every eight bytes, with two random numbers that
//! nobody outside knows. The library's SipHash took three of every four instructions of counting senders
//! (benches/runs/2026-11-22-xeon-2-cores/sampling.md).
//!
//! It is for tables in which a forged collision costs a few comparisons and nothing more.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The two numbers.
#[derive(Debug, Clone)]
pub struct Keyed {
    start: u64,
    factor: u64,
}

impl Keyed {
    pub(super) fn new() -> Self {
        // The library seeds its hash tables at random.
        let random = RandomState::new();
        Self { start: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
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
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
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
}
