//! Which of several destinations gets what a source sends: rendezvous hashing, for everyone who has to come to the same
//! answer. Pure: no system calls, no `unsafe`, nothing allocated after construction.
//!
//! Each destination gives each source a score, and the highest wins. A score depends on that source and that
//! destination alone, so the order of destinations does not matter. One that comes takes over the sources that it
//! scores highest for, 1 of n + 1, and no other source moves. When it goes, they return to where they were. The places
//! that a source would have, one behind the other, are its destinations in the order of their scores.
//!
//! A destination with weight 3 gives three scores and counts with the highest of them, which gets it three times the
//! sources of one with weight 1, and no more of them move when a weight changes than have to.
//!
//! # The arithmetic
//!
//! All numbers have 64 bits, and sums and products wrap around.
//!
//! ```text
//! mix(x):     x = (x xor (x >> 30)) * 0xbf58476d1ce4e5b9      as at the end of SplitMix64
//!             x = (x xor (x >> 27)) * 0x94d049bb133111eb
//!             return x xor (x >> 31)
//!
//! key(source):   of an IPv4 address, its 32 bits a as a number:         mix(a)
//!                of an IPv6 address, its upper and lower 64 bits h, l:  mix(mix(h) xor l)
//!                an IPv4 address written as IPv6 (::ffff:192.0.2.7) is the IPv4 address
//!
//! name(text):    FNV-1a: n = 0xcbf29ce484222325; for each byte b of the text: n = (n xor b) * 0x100000001b3
//! seed(text, k): mix(name(text) + k * 0x9e3779b97f4a7c15)     k from 1 to the weight
//!
//! score:         the greatest of mix(key(source) xor seed(text, k)) over k
//! ```
//!
//! The text of a destination is what its operator calls it, such as `10.0.0.9:514` or `collector.example.net:514`.
//!
//! # Test vectors
//!
//! The last column is the destination among `10.0.0.9:514`, `10.0.0.10:514` and `10.0.0.11:514`, all with weight 1.
//!
//! | source | key | score of `10.0.0.9:514` | goes to |
//! |---|---|---|---|
//! | `192.0.2.7` | `0xf1e7940b7558fe7c` | `0x00e8ed9a1c910442` | `10.0.0.11:514` |
//! | `10.0.0.1` | `0x8a975842f4745f16` | `0x5783d3858075a106` | `10.0.0.10:514` |
//! | `2001:db8::1` | `0xc5753b065faead2c` | `0xe891f85b5b30a613` | `10.0.0.9:514` |

use std::net::IpAddr;

/// Destinations that share sources. They are known by their places in the order in which they were given.
///
/// ```
/// use mmsg::shares::Shares;
///
/// let shares = Shares::new([("10.0.0.9:514", 1), ("10.0.0.10:514", 1)]);
/// let other_order = Shares::new([("10.0.0.10:514", 1), ("10.0.0.9:514", 1)]);
/// let source = "192.0.2.7".parse().expect("an address");
/// assert_eq!(shares.place_of(source), 1 - other_order.place_of(source));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// One for each unit of weight, and whose it is.
    seeds: Vec<(u64, usize)>,
}

impl Shares {
    /// Destinations by name, each with its weight. The time that a choice takes follows the sum of the weights, so
    /// write small ones. One with weight 0 gets nothing.
    pub fn new<'a>(destinations: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let seeds_of = |(place, (text, weight)): (usize, (&str, u32))| {
            let name = text.bytes().fold(FNV_OFFSET, |name, byte| (name ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
            (1..=u64::from(weight)).map(move |k| (mix(name.wrapping_add(k.wrapping_mul(GOLDEN_RATIO))), place))
        };
        Self { seeds: destinations.into_iter().enumerate().flat_map(seeds_of).collect() }
    }

    /// The place of the destination that gets what this source sends; 0 where no destination has a weight.
    #[inline]
    pub fn place_of(&self, source: IpAddr) -> usize {
        let key = key(source);
        let (mut highest, mut chosen) = (0, 0);
        for &(seed, place) in &self.seeds {
            let score = mix(key ^ seed);
            if score >= highest {
                (highest, chosen) = (score, place);
            }
        }
        chosen
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

fn key(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(address) => mix(u64::from(address.to_bits())),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            mix(mix((bits >> 64) as u64) ^ bits as u64)
        }
    }
}

/// Spreads numbers that are close together over all of their range.
#[inline]
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
