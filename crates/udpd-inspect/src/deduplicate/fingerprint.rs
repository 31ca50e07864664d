//! The fingerprint of a datagram: NH, the hash of UMAC (RFC 4418) with words of 64 bits, and a keyed mixture that
//! loses nothing of its 128 bits.
//!
//! NH has a proof: of two different payloads, however they were chosen without the key, the sums agree with a chance of
//! at most 1 in 2^64. The key is drawn at random by each process. And it is quick: one multiplication for 16 bytes.

use std::hash::{BuildHasher, RandomState};

use super::table::Fingerprint;

/// The longest payload of UDP.
const LENGTH_MAX: usize = 65_535;

/// What is multiplied at once.
const BLOCK: usize = 16;

/// An odd number, to spread lengths.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The memory of a key.
pub(super) const KEY_BYTES: usize = LENGTH_MAX.div_ceil(BLOCK) * BLOCK;

#[derive(Debug)]
pub struct FingerprintKey {
    words: Box<[[u64; 2]]>,
    seeds: [u64; 3],
}

impl FingerprintKey {
    /// A key that no other process has.
    pub fn random() -> Self {
        // SipHash with a random key, which is as good as chance.
        let chance = RandomState::new();
        let word = |number: usize| chance.hash_one(number);
        let words = (0..KEY_BYTES / BLOCK).map(|block| [word(2 * block), word(2 * block + 1)]).collect();
        Self { words, seeds: std::array::from_fn(|seed| word(usize::MAX - seed)) }
    }

    /// The fingerprint of `bytes`. Those of two kinds never agree because their bytes do.
    #[inline]
    pub fn of(&self, bytes: &[u8], kind: u8) -> Fingerprint {
        let (blocks, tail) = bytes.as_chunks::<BLOCK>();
        let mut sum = ((bytes.len() as u128) << 8 | u128::from(kind)).wrapping_mul(SPREAD);
        for (block, key) in blocks.iter().zip(&self.words) {
            sum = sum.wrapping_add(product(block, key));
        }
        if let (false, Some(key)) = (tail.is_empty(), self.words.get(blocks.len())) {
            let mut block = [0; BLOCK];
            block[..tail.len()].copy_from_slice(tail);
            sum = sum.wrapping_add(product(&block, key));
        }
        // Two words that are mixed into each other: each step can be undone, so different sums stay different.
        let [first, second, third] = self.seeds;
        let (low, high) = (sum as u64, (sum >> 64) as u64);
        let low = mixed(low ^ first);
        let high = mixed(high ^ low ^ second);
        Fingerprint { bucket_and_part: high, rest: low ^ mixed(high ^ third) }
    }
}

fn product(block: &[u8; BLOCK], key: &[u64; 2]) -> u128 {
    let both = u128::from_le_bytes(*block);
    let (low, high) = (both as u64, (both >> 64) as u64);
    u128::from(low.wrapping_add(key[0])) * u128::from(high.wrapping_add(key[1]))
}

/// The last step of MurmurHash3, which can be undone.
fn mixed(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn payloads_that_differ_in_a_bit_or_in_length_have_different_fingerprints() {
        let key = FingerprintKey::random();
        let mut seen = HashSet::new();
        let mut see = |bytes: &[u8], kind| {
            let Fingerprint { bucket_and_part, rest } = key.of(bytes, kind);
            assert_eq!(key.of(bytes, kind), Fingerprint { bucket_and_part, rest });
            assert!(seen.insert((bucket_and_part, rest)), "{} bytes, kind {kind}", bytes.len());
        };
        for length in (0..70).chain([1399, 1400, LENGTH_MAX - 1, LENGTH_MAX]) {
            // Zeros behind the end are not the same as a longer payload.
            let mut bytes = vec![0; length];
            see(&bytes, 0);
            see(&bytes, 1);
            for bit in (0..8 * length).step_by((length / 20).max(1)) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                see(&bytes, 0);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn another_process_has_another_key() {
        let [one, other] = [(); 2].map(|()| FingerprintKey::random().of(b"the same", 0));
        assert_ne!(one, other);
    }
}
