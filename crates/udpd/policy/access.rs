//! `allow` and `deny` as one sorted table: who may send, by longest prefix, in the time of one binary search.
//!
//! Prefixes nest and never cross, so all of them together cut the addresses into ranges that are accepted and refused
//! in turn. Only the addresses where the answer changes are kept. How many of them are not above an address says the
//! answer: even, it is that of the lowest address, odd, the other. Ten thousand prefixes are at most twenty thousand
//! numbers, built once.

use std::net::IpAddr;

use ipnet::IpNet;

/// Which sources are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessList {
    v4: Changes<u32>,
    v6: Changes<u128>,
}

/// The answer for every address of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Changes<T> {
    /// The answer for the lowest address.
    first: bool,
    /// The addresses at which the answer turns over, in order.
    at: Box<[T]>,
}

impl<T: Ord + Copy> Changes<T> {
    fn accepts(&self, address: T) -> bool {
        let passed = self.at.partition_point(|change| *change <= address);
        self.first == passed.is_multiple_of(2)
    }
}

/// A prefix as a range of addresses, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u128,
    last: u128,
    accept: bool,
}

impl AccessList {
    /// The longest network that holds a source decides; a source in none is accepted when `allow` is empty. No network
    /// may be in both, which is for the configuration to see to.
    pub fn new(allow: &[IpNet], deny: &[IpNet]) -> Self {
        let otherwise = allow.is_empty();
        let networks = || {
            let allowed = allow.iter().map(|network| (network, true));
            allowed.chain(deny.iter().map(|network| (network, false)))
        };
        let v4 = networks().filter_map(|(network, accept)| match network {
            IpNet::V4(v4) => {
                Some(Range { first: v4.network().to_bits().into(), last: v4.broadcast().to_bits().into(), accept })
            }
            IpNet::V6(_) => None,
        });
        let v6 = networks().filter_map(|(network, accept)| match network {
            IpNet::V4(_) => None,
            IpNet::V6(v6) => Some(Range { first: v6.network().to_bits(), last: v6.broadcast().to_bits(), accept }),
        });
        let (first, at) = changes(v4.collect(), otherwise, u32::MAX.into());
        // Every bound of an IPv4 range fits: the ranges were made from 32 bits.
        let v4 = Changes { first, at: at.iter().map(|&change| change as u32).collect() };
        let (first, at) = changes(v6.collect(), otherwise, u128::MAX);
        Self { v4, v6: Changes { first, at: at.into() } }
    }

    /// Whether datagrams of `source` are accepted. An IPv4 address is IPv4 also in IPv6 clothes.
    pub fn accepts(&self, source: IpAddr) -> bool {
        match source.to_canonical() {
            IpAddr::V4(v4) => self.v4.accepts(v4.to_bits()),
            IpAddr::V6(v6) => self.v6.accepts(v6.to_bits()),
        }
    }
}

/// Where the answer changes on the way from address 0 to `highest`, and the answer there. An inner range decides over
/// an outer.
fn changes(mut ranges: Vec<Range>, otherwise: bool, highest: u128) -> (bool, Vec<u128>) {
    // Outer before inner where both begin at one address.
    ranges.sort_by_key(|range| (range.first, u128::MAX - range.last));
    let mut steps = vec![(0, otherwise)];
    let mut open: Vec<Range> = Vec::new();
    for range in ranges {
        while let Some(done) = open.pop_if(|outer| outer.last < range.first) {
            steps.push((done.last + 1, open.last().map_or(otherwise, |outer| outer.accept)));
        }
        steps.push((range.first, range.accept));
        open.push(range);
    }
    while let Some(done) = open.pop() {
        if done.last < highest {
            steps.push((done.last + 1, open.last().map_or(otherwise, |outer| outer.accept)));
        }
    }
    // Of several steps at one address the last holds.
    let mut answers: Vec<(u128, bool)> = Vec::with_capacity(steps.len());
    for step in steps {
        answers.pop_if(|before| before.0 == step.0);
        answers.push(step);
    }
    let first = answers[0].1;
    let turns = answers.windows(2).filter(|pair| pair[0].1 != pair[1].1).map(|pair| pair[1].0);
    (first, turns.collect())
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
