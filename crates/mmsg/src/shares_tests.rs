//! Shares of 200,000 sources against what rendezvous hashing promises: fair, and nothing moves that does not have to.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

/// Neighbours, as hosts of one network are, of both families.
fn sources() -> Vec<IpAddr> {
    let v4 = (0..100_000).map(|number| Ipv4Addr::from_bits(0x0a00_0000 + number).into());
    let v6 = (0..100_000_u128).map(|number| Ipv6Addr::from_bits((0x2001_0db8 << 96) + (number << 64) + 1).into());
    v4.chain(v6).collect()
}

/// Destinations as they are named, and whose each source is.
fn chosen<'a>(destinations: &[(&'a str, u32)], sources: &[IpAddr]) -> Vec<&'a str> {
    let shares = Shares::new(destinations.iter().copied());
    sources.iter().map(|&source| destinations[shares.place_of(source)].0).collect()
}

/// The count is what chance makes of this share of all, to within four standard deviations: so far off is one of
/// 16,000 good hash functions.
fn assert_share(count: usize, all: usize, share: f64, what: &str) {
    let (expected, deviation) = (all as f64 * share, (all as f64 * share * (1.0 - share)).sqrt());
    assert!((count as f64 - expected).abs() <= 4.0 * deviation, "{what}: {count}, not {expected} of {all}");
}

const NAMES: [&str; 10] = [
    "10.0.0.9:514",
    "10.0.0.10:514",
    "10.0.0.11:514",
    "10.0.0.12:514",
    "[2001:db8::9]:514",
    "[2001:db8::10]:514",
    "collector-1.example.net:514",
    "collector-2.example.net:514",
    "collector-3.example.net:514",
    "10.0.0.9:515",
];

fn equal(count: usize) -> Vec<(&'static str, u32)> {
    NAMES[..count].iter().map(|&name| (name, 1)).collect()
}

#[test]
fn one_destination_more_takes_its_share_from_all_others_and_nothing_else_moves() {
    let sources = sources();
    for count in 1..NAMES.len() {
        let (before, after) = (chosen(&equal(count), &sources), chosen(&equal(count + 1), &sources));
        let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        assert!(moved.iter().all(|(_, after)| **after == NAMES[count]), "only to the new one");
        let what = format!("{count} to {}", count + 1);
        assert_share(moved.len(), sources.len(), 1.0 / (count + 1) as f64, &what);
        for name in &NAMES[..count] {
            let own = moved.iter().filter(|(before, _)| **before == *name).count();
            assert_share(own, sources.len(), 1.0 / (count * (count + 1)) as f64, &format!("{what}, from {name}"));
        }
    }
}

#[test]
fn from_two_to_three_to_four_and_back_a_source_is_where_it_was() {
    let sources = sources();
    let [two, three, four] = [2, 3, 4].map(|count| chosen(&equal(count), &sources));
    assert_eq!(chosen(&equal(3), &sources), three);
    for (source, ((two, three), four)) in two.iter().zip(&three).zip(&four).enumerate() {
        assert!(two == three || *three == NAMES[2], "{source}");
        assert!(three == four || *four == NAMES[3], "{source}");
    }
    // Without any one of four only its own sources move, to the second of each.
    for gone in &NAMES[..4] {
        let left: Vec<_> = equal(4).into_iter().filter(|(name, _)| name != gone).collect();
        let after = chosen(&left, &sources);
        assert!(four.iter().zip(&after).all(|(four, after)| four == after || four == gone));
    }
}

#[test]
fn the_order_of_destinations_does_not_matter() {
    let sources = sources();
    let expected = chosen(&equal(7), &sources);
    let mut turned = equal(7);
    for _ in 0..7 {
        turned.rotate_left(1);
        assert_eq!(chosen(&turned, &sources), expected);
    }
    turned.reverse();
    assert_eq!(chosen(&turned, &sources), expected);
}

#[test]
fn weights_are_kept_and_a_change_moves_only_the_difference() {
    let sources = sources();
    let weighted = [(NAMES[0], 1), (NAMES[1], 2), (NAMES[2], 5), (NAMES[3], 16)];
    let before = chosen(&weighted, &sources);
    for (name, weight) in weighted {
        let own = before.iter().filter(|chosen| **chosen == name).count();
        assert_share(own, sources.len(), f64::from(weight) / 24.0, name);
    }
    let heavier = [(NAMES[0], 3), weighted[1], weighted[2], weighted[3]];
    let after = chosen(&heavier, &sources);
    let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
    assert!(moved.iter().all(|(_, after)| **after == NAMES[0]), "only to the one that is heavier");
    // Of 26 shares 2 are new, and of 24 sources that those take the heavier one had one.
    assert_share(moved.len(), sources.len(), 2.0 / 26.0 * 23.0 / 24.0, "1 to 3");
    assert!(!chosen(&[(NAMES[0], 0), (NAMES[1], 1)], &sources).contains(&NAMES[0]), "a weight of 0 gets nothing");
}

#[test]
fn a_source_has_the_destination_that_the_documented_arithmetic_gives() {
    // Fixed values: a change of them would send sources elsewhere, here and in what others have written.
    let of = |text: &str| text.parse::<IpAddr>().expect(text);
    let sources = ["192.0.2.7", "10.0.0.1", "2001:db8::1"].map(of);
    assert_eq!(sources.map(key), [0xf1e7_940b_7558_fe7c, 0x8a97_5842_f474_5f16, 0xc575_3b06_5fae_ad2c]);
    assert_eq!(key(of("::ffff:192.0.2.7")), key(sources[0]));
    let shares = Shares::new([(NAMES[0], 2)]);
    let seeds = [0x5c81_038f_bb45_de44, 0x35c1_ed52_3b83_3631];
    assert_eq!(shares.seeds, seeds.map(|seed| (seed, 0)));
    let scores = sources.map(|source| mix(key(source) ^ seeds[0]));
    assert_eq!(scores, [0x00e8_ed9a_1c91_0442, 0x5783_d385_8075_a106, 0xe891_f85b_5b30_a613]);
    assert_eq!(chosen(&equal(3), &sources), [NAMES[2], NAMES[1], NAMES[0]]);
}
