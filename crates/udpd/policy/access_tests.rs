//! The table of prefixes against a model that is too slow to be wrong, and the cases one would ask about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn networks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().expect("a network")).collect()
}

fn list(allow: &[&str], deny: &[&str]) -> AccessList {
    AccessList::new(&networks(allow), &networks(deny))
}

/// Random numbers that are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// An address from a small part of the space, so that prefixes nest and are hit.
    fn address(&mut self) -> IpAddr {
        if self.below(2) == 0 {
            IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | (self.next() as u32 & 0x0003_ffff)))
        } else {
            let low = u128::from(self.next() & 0x3_ffff) << (8 * self.below(3));
            IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | low))
        }
    }

    /// A network around such an address.
    fn network(&mut self) -> (IpAddr, u8) {
        let address = self.address();
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = if self.below(20) == 0 { self.below(width + 1) } else { width - self.below(19) };
        (masked(address, bits as u8), bits as u8)
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            Ipv4Addr::from_bits(v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into()
        }
        IpAddr::V6(v6) => {
            Ipv6Addr::from_bits(v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into()
        }
    }
}

fn slow(allow: &[(IpAddr, u8)], deny: &[(IpAddr, u8)], source: IpAddr) -> bool {
    let longest = |networks: &[(IpAddr, u8)]| {
        let holds =
            |network: &&(IpAddr, u8)| network.0.is_ipv4() == source.is_ipv4() && masked(source, network.1) == network.0;
        networks.iter().filter(holds).map(|network| i16::from(network.1)).max().unwrap_or(-1)
    };
    match (longest(allow), longest(deny)) {
        (-1, -1) => allow.is_empty(),
        (allowed, denied) => allowed > denied,
    }
}

#[test]
fn ten_thousand_random_prefixes_answer_as_a_model_that_looks_at_each() {
    for (seed, count) in [(1, 0), (2, 1), (3, 7), (4, 100), (5, 100), (6, 10_000)] {
        let mut noise = Noise(seed);
        let mut lists: [Vec<(IpAddr, u8)>; 2] = [Vec::new(), Vec::new()];
        let mut taken = std::collections::BTreeSet::new();
        for _ in 0..count {
            let network = noise.network();
            if taken.insert(network) {
                lists[noise.below(2) as usize].push(network);
            }
        }
        let [allow, deny] = lists;
        let networks = |list: &[(IpAddr, u8)]| -> Vec<IpNet> {
            list.iter().map(|&(address, bits)| IpNet::new(address, bits).expect("a network")).collect()
        };
        let access = AccessList::new(&networks(&allow), &networks(&deny));
        let mut accepted = 0;
        for _ in 0..3000 {
            let source = noise.address();
            let answer = access.accepts(source);
            assert_eq!(answer, slow(&allow, &deny, source), "{source} with seed {seed}");
            accepted += u32::from(answer);
        }
        // The bounds of every network, and their neighbours, are where a table would be wrong.
        for (address, bits) in allow.iter().chain(&deny).take(500) {
            let IpAddr::V4(v4) = address else { continue };
            let last = v4.to_bits() | u32::MAX.checked_shr((*bits).into()).unwrap_or(0);
            for source in [v4.to_bits(), v4.to_bits().wrapping_sub(1), last, last.wrapping_add(1)] {
                let source = IpAddr::V4(Ipv4Addr::from_bits(source));
                assert_eq!(access.accepts(source), slow(&allow, &deny, source), "{source} with seed {seed}");
            }
        }
        assert!(count < 100 || (1..3000).contains(&accepted), "both answers were seen");
    }
}

#[test]
fn the_longest_prefix_decides_whichever_list_it_is_in() {
    let access = list(&["10.0.0.0/8", "10.1.2.0/24"], &["10.1.0.0/16", "10.1.2.3/32"]);
    for (source, accepted) in [
        ("10.2.0.1", true),
        ("10.1.0.1", false),
        ("10.1.2.1", true),
        ("10.1.2.3", false),
        ("10.1.2.4", true),
        ("10.1.255.255", false),
        ("10.255.255.255", true),
        ("11.0.0.0", false),
        ("9.255.255.255", false),
    ] {
        assert_eq!(access.accepts(ip(source)), accepted, "{source}");
    }
}

#[test]
fn an_empty_allow_accepts_all_that_is_not_denied_and_a_written_one_nothing_else() {
    assert!(list(&[], &[]).accepts(ip("192.0.2.1")));
    assert!(list(&[], &["10.0.0.0/8"]).accepts(ip("2001:db8::1")));
    assert!(!list(&[], &["10.0.0.0/8"]).accepts(ip("10.0.0.0")));
    assert!(!list(&["10.0.0.0/8"], &[]).accepts(ip("2001:db8::1")), "the other family is not listed either");
}

#[test]
fn a_mapped_source_is_an_ipv4_source() {
    let access = list(&[], &["10.0.0.0/8"]);
    assert!(!access.accepts(ip("::ffff:10.1.2.3")));
    assert!(access.accepts(ip("::ffff:11.1.2.3")));
    assert!(list(&[], &["::/0"]).accepts(ip("::ffff:10.1.2.3")), "::/0 is IPv6 only");
}

#[test]
fn whole_families_and_their_last_addresses_are_ranges_like_any_other() {
    let access = list(&["0.0.0.0/0"], &["255.255.255.255/32", "128.0.0.0/1"]);
    assert!(access.accepts(ip("127.255.255.255")));
    assert!(!access.accepts(ip("128.0.0.0")));
    assert!(!access.accepts(ip("255.255.255.255")));
    assert!(!list(&[], &["::/0"]).accepts(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
    assert!(list(&["::/0"], &["8000::/1"]).accepts(ip("7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
}

#[test]
fn what_changes_nothing_is_not_kept() {
    let access = list(&["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8"], &[]);
    assert_eq!(access.v4.at.as_ref(), [0x0a00_0000, 0x0c00_0000], "two neighbours and a child are one range");
}
