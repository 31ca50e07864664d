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
    assert_eq!(access.v4.turns.as_ref(), [0x0a00_0000, 0x0c00_0000], "two neighbours and a child are one range");
}

/// Turns as lists have them: anywhere, in one corner, side by side, at the ends.
fn turns_of<T: Number>(noise: &mut Noise, address: impl Fn(&mut Noise) -> T) -> Vec<T> {
    let count = [0, 1, 2, 3, 64, 5000][noise.below(6) as usize];
    let mut turns: Vec<T> = (0..count).map(|_| address(noise)).filter(|turn| *turn != T::ZERO).collect();
    turns.sort();
    turns.dedup();
    turns
}

/// Holds what is found by the index against a search through all turns, at each turn and beside it.
fn check_index<T: Number>(noise: &mut Noise, turns: &[T], address: impl Fn(&mut Noise) -> T, before: impl Fn(T) -> T) {
    let otherwise = noise.below(2) == 0;
    let ranges = Ranges::with_index(otherwise, turns.into());
    let beside = turns.iter().flat_map(|turn| [*turn, before(*turn), turn.next().unwrap_or(T::ZERO)]);
    let sources: Vec<T> = beside.chain((0..100).map(|_| address(noise))).collect();
    for &source in &sources {
        let passed = turns.partition_point(|turn| *turn <= source);
        assert_eq!(ranges.accepts(source), otherwise == passed.is_multiple_of(2), "{source:?} in {turns:?}");
        // It copies all of them.
        if turns.len() > 64 && noise.below(500) > 0 {
            continue;
        }
        let other = sources[noise.below(sources.len() as u64) as usize];
        let (start, last) =
            (source.min(other), if noise.below(2) == 0 { source.min(other) } else { source.max(other) });
        let with = ranges.also_accepting(start, last);
        let ends = [before(start), start, last, last.next().unwrap_or(T::ZERO)];
        for other in ends.into_iter().chain(sources.iter().copied().filter(|_| turns.len() <= 64)) {
            let expected = (start..=last).contains(&other) || ranges.accepts(other);
            assert_eq!(with.accepts(other), expected, "{other:?} with {start:?} to {last:?}");
        }
    }
}

#[test]
fn the_index_finds_what_a_search_through_all_finds() {
    for seed in 0..200 {
        let noise = &mut Noise(seed);
        let (base, spread) = (noise.next() as u32, noise.below(33) as u32);
        let v4 = |noise: &mut Noise| match noise.below(20) {
            0 => noise.next() as u32,
            1 => u32::MAX,
            _ => base ^ (noise.next() as u32).checked_shr(spread).unwrap_or(0),
        };
        let turns = turns_of(noise, v4);
        check_index(noise, &turns, v4, |address| address.wrapping_sub(1));
        let wide = |noise: &mut Noise| u128::from(noise.next()) << 64 | u128::from(noise.next());
        let (base, spread) = (wide(noise), noise.below(129) as u32);
        let v6 = |noise: &mut Noise| match noise.below(20) {
            0 => wide(noise),
            1 => u128::MAX,
            _ => base ^ wide(noise).checked_shr(spread).unwrap_or(0),
        };
        let turns = turns_of(noise, v6);
        check_index(noise, &turns, v6, |address| address.wrapping_sub(1));
    }
}

#[test]
fn lists_that_lie_in_one_corner_or_end_at_an_end_answer_as_the_model() {
    for seed in 0..40 {
        let mut noise = Noise(100 + seed);
        let (top, mut lists) = (seed % 2 == 0, [Vec::new(), Vec::new()]);
        let mut taken = std::collections::BTreeSet::new();
        let address = |noise: &mut Noise| {
            let low = noise.next() as u32 & 0xfff;
            IpAddr::V4(Ipv4Addr::from_bits(if top { u32::MAX - low } else { low }))
        };
        for _ in 0..noise.below(300) {
            let bits = (32 - noise.below(13)) as u8;
            let network = (masked(address(&mut noise), bits), bits);
            if taken.insert(network) {
                lists[noise.below(2) as usize].push(network);
            }
        }
        let networks = |list: &[(IpAddr, u8)]| -> Vec<IpNet> {
            list.iter().map(|&(address, bits)| IpNet::new(address, bits).expect("a network")).collect()
        };
        let access = AccessList::new(&networks(&lists[0]), &networks(&lists[1]));
        assert_eq!(access.networks(), taken.len());
        for low in 0..0x1010 {
            let source = IpAddr::V4(Ipv4Addr::from_bits(if top { u32::MAX - low } else { low }));
            assert_eq!(access.accepts(source), slow(&lists[0], &lists[1], source), "{source} with seed {seed}");
        }
    }
}

#[test]
fn one_network_more_is_one_network_more() {
    let network = |text: &str| text.parse::<IpNet>().expect("a network");
    let access = list(&["10.0.0.0/8"], &["10.1.0.0/16"]);
    let with = access.also_accepting(network("10.1.2.0/31"));
    for (source, expected) in [("10.1.2.0", true), ("10.1.2.1", true), ("10.1.1.255", false), ("10.1.2.2", false)] {
        assert_eq!(with.accepts(ip(source)), expected, "{source}");
    }
    assert!(access.also_accepting(network("2001:db8::/32")).accepts(ip("2001:db8::1")));
    assert!(access.also_accepting(network("255.255.255.255/32")).accepts(ip("255.255.255.255")));
    let all = access.also_accepting(network("0.0.0.0/0"));
    assert!(["0.0.0.0", "10.1.2.3", "255.255.255.255"].iter().all(|source| all.accepts(ip(source))));
}

#[test]
fn half_a_million_networks_take_a_few_bytes_each() {
    // Every second network of 4,096 addresses, so that nothing can be joined.
    let deny: Vec<IpNet> = (0..500_000_u32)
        .map(|number| IpNet::from(ipnet::Ipv4Net::new_assert(Ipv4Addr::from_bits(number << 13), 20)))
        .collect();
    let access = AccessList::new(&[], &deny);
    assert_eq!(access.networks(), 500_000);
    assert!(access.bytes() < 500_000 * 8 + 300_000, "{}", access.bytes());
    assert!(!access.accepts(ip("0.0.1.0")) && access.accepts(ip("0.0.16.0")));
}
