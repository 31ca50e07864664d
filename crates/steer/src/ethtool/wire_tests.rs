//! Tests of the ethtool bytes: offsets, rules and features against what a C program leaves in the kernel's own
//! structures, and answers that are noise.

use super::*;
use crate::testing::Random;

#[test]
fn setting_keeps_what_it_does_not_name() {
    let mut bytes: Vec<u8> = (0..92).collect();
    let before = bytes.clone();
    let coalescing = Coalescing { rx_usecs: 50, rx_frames: 64, adaptive_rx: true };
    put_coalescing(&mut bytes, &coalescing);
    assert_eq!(super::coalescing(&bytes), coalescing);
    assert_eq!(
        (u32_at(&bytes, 4), u32_at(&bytes, 8), u32_at(&bytes, 40)),
        (50, 64, 1),
        "as in struct ethtool_coalesce"
    );
    assert_eq!((&bytes[..4], &bytes[12..40], &bytes[44..]), (&before[..4], &before[12..40], &before[44..]));
    let mut bytes: Vec<u8> = (0..36).collect();
    put_rings(&mut bytes, &Rings { rx: 1024, tx: 512, ..Rings::default() });
    assert_eq!((u32_at(&bytes, 20), u32_at(&bytes, 32), bytes[24]), (1024, 512, 24));
}

fn rule_to(destination: Option<IpAddr>, family: Family) -> Rule {
    Rule { family, destination, port: 5140, queue: 3 }
}

fn bytes_of(rule: &Rule, place: Option<u32>) -> [u8; RXNFC_BYTES] {
    let mut bytes = [0; RXNFC_BYTES];
    put_rule(&mut bytes, rule, place);
    bytes
}

/// All zeroes but for these.
fn bytes_with(pieces: &[(usize, &[u8])]) -> [u8; RXNFC_BYTES] {
    let mut bytes = [0; RXNFC_BYTES];
    for (at, piece) in pieces {
        bytes[*at..*at + piece.len()].copy_from_slice(piece);
    }
    bytes
}

// Written down from `struct ethtool_rxnfc` of linux/ethtool.h as gcc lays it out, with its fields set by name.
#[cfg(target_endian = "little")]
#[test]
fn a_rule_has_the_bytes_of_the_kernels_own_structure() {
    let to_v4 = bytes_with(&[
        (16, &[2]),               // fs.flow_type = UDP_V4_FLOW
        (24, &[198, 51, 100, 7]), // fs.h_u.udp_ip4_spec.ip4dst
        (30, &[0x14, 0x14]),      // fs.h_u.udp_ip4_spec.pdst = htons(5140)
        (96, &[0xff; 4]),         // fs.m_u.udp_ip4_spec.ip4dst
        (102, &[0xff; 2]),        // fs.m_u.udp_ip4_spec.pdst
        (168, &[3]),              // fs.ring_cookie
        (176, &[0xfd, 0x03]),     // fs.location = 1021
    ]);
    let rule_v4 = rule_to(Some(IpAddr::from([198, 51, 100, 7])), Family::V4);
    assert_eq!(bytes_of(&rule_v4, Some(1021)), to_v4);
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
    let to_v6 = bytes_with(&[
        (16, &[6]),              // fs.flow_type = UDP_V6_FLOW
        (36, &address.octets()), // fs.h_u.udp_ip6_spec.ip6dst
        (54, &[0x14, 0x14]),     // fs.h_u.udp_ip6_spec.pdst = htons(5140)
        (108, &[0xff; 16]),      // fs.m_u.udp_ip6_spec.ip6dst
        (126, &[0xff; 2]),       // fs.m_u.udp_ip6_spec.pdst
        (168, &[3]),             // fs.ring_cookie
        (176, &[0xff; 4]),       // fs.location = RX_CLS_LOC_ANY
    ]);
    assert_eq!(bytes_of(&rule_to(Some(address.into()), Family::V6), None), to_v6);
    assert_eq!((rule(&to_v4), u32_at(&to_v4, PLACE_AT)), (Some(rule_v4), 1021));
}

#[test]
fn a_rule_is_read_back_as_it_was_written() {
    for (family, address) in [(Family::V4, IpAddr::from([192, 0, 2, 1])), (Family::V6, IpAddr::from([7; 16]))] {
        for wanted in [rule_to(Some(address), family), rule_to(None, family)] {
            assert_eq!(rule(&bytes_of(&wanted, Some(7))), Some(wanted));
        }
    }
}

#[test]
fn a_rule_that_compares_anything_else_is_never_taken_for_one_of_ours() {
    for (family, fields) in [(Family::V4, 13), (Family::V6, 37)] {
        let bytes = bytes_of(&rule_to(None, family), Some(7));
        assert!(rule(&bytes).is_some());
        for at in (92..92 + fields).filter(|at| bytes[*at] == 0) {
            let mut other = bytes;
            other[at] = 0xf0;
            assert_eq!(rule(&other), None, "a mask at {at}");
        }
        let mut ranged = bytes;
        ranged[92 + super::fields(family).port_at] = 0xf0;
        assert_eq!(rule(&ranged), None, "a range of ports");
        for (at, value, what) in [(16, 1, "TCP"), (19, 0x20, "a context of queues"), (19, 0x40, "a MAC address")] {
            let mut other = bytes;
            other[at] |= value;
            assert_eq!(rule(&other), None, "{what}");
        }
        let mut dropped = bytes;
        put_u64(&mut dropped, 168, u64::MAX);
        assert_eq!(rule(&dropped), None, "a rule that drops");
        put_u64(&mut dropped, 168, 1 << 32);
        assert_eq!(rule(&dropped), None, "a virtual function");
    }
}

#[test]
fn a_rule_with_the_flag_of_further_fields_is_ours_while_none_of_them_is_compared() {
    for wanted in [rule_to(None, Family::V4), rule_to(Some(IpAddr::from([7; 16])), Family::V6)] {
        let mut flagged = bytes_of(&wanted, Some(1021));
        let flow_type = u32_at(&flagged, 16);
        put_u32(&mut flagged, 16, flow_type | 0x8000_0000); // fs.flow_type |= FLOW_EXT, as ixgbe answers
        assert_eq!(rule(&flagged), Some(wanted));
        for at in 144..164 {
            let mut other = flagged;
            other[at] = 1;
            assert_eq!(rule(&other), None, "a mask at {at} of fs.m_ext");
        }
    }
}

#[test]
fn a_feature_is_a_bit_that_is_found_by_its_name() {
    let mut names = vec![0; names_bytes(40)];
    put_name_count(&mut names, FEATURE_NAMES, 40);
    assert_eq!(u32_at(&names, 4), 4, "ETH_SS_FEATURES");
    names[STRINGS_HEADER_BYTES + 33 * STRING_BYTES..][..16].copy_from_slice(b"rx-ntuple-filter");
    assert_eq!(bit_named(&names, "rx-ntuple-filter"), Some(33));
    assert_eq!(bit_named(&names, "rx-ntuple"), None);
    // available, requested, active, never_changed of bits 0 to 31, then of bits 32 to 63.
    let answer = |second: [u32; 4]| {
        let words = [0x3a, 2, 0, 0, 0, 0].into_iter().chain(second);
        words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>()
    };
    assert_eq!(feature(&answer([2, 2, 2, 0]), 33), Feature { is_on: true, is_changeable: true });
    assert_eq!(feature(&answer([2, 0, 0, 0]), 33), Feature { is_on: false, is_changeable: true });
    assert_eq!(feature(&answer([2, 0, 0, 2]), 33), Feature { is_on: false, is_changeable: false });
    assert_eq!(feature(&answer([0, 0, 2, 0]), 33), Feature { is_on: true, is_changeable: false });
    let mut request = [0; 24];
    put_feature_words(&mut request, 2);
    put_feature(&mut request, 33, true);
    let words: Vec<u32> = request.chunks_exact(4).map(|word| u32_at(word, 0)).collect();
    assert_eq!(words, [0, 2, 0, 0, 2, 2], "cmd, size, then valid and requested of each word");
}

#[test]
fn no_answer_makes_a_decoder_panic() {
    let mut random = Random::default();
    let mut bytes = [0_u8; 256];
    for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 1_000_000 } {
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_ne_bytes()));
        // Half of them look like a rule, so that more than the first branch is reached.
        if random.below(2) == 0 {
            put_u32(&mut bytes, FLOW_SPEC_AT, [2, 6][random.below(2)]);
        }
        let answer = &bytes[..random.below(257)];
        let _ = (driver(answer), channels(answer), rings(answer), super::coalescing(answer));
        let count = usize::try_from(random.next()).unwrap_or(usize::MAX);
        assert!(table(answer, 24, count).len() <= 64);
        let _ = (rule(answer), string_count(answer, FEATURE_NAMES));
        let _ = (feature(answer, random.below(5000)), bit_named(answer, "rx-gro"));
    }
}

#[test]
fn the_structure_of_a_rule_is_that_of_the_target() {
    // As `offsetof` and `sizeof` tell of linux/ethtool.h on x86-64 and with -m32.
    let of = |[ring_cookie_at, place_at, rule_count_at, places_at, bytes]: [usize; 5]| Rxnfc {
        ring_cookie_at,
        place_at,
        rule_count_at,
        places_at,
        bytes,
    };
    assert_eq!(Rxnfc::new(8), of([168, 176, 184, 188, 192]));
    assert_eq!(Rxnfc::new(4), of([164, 172, 176, 180, 180]));
}
