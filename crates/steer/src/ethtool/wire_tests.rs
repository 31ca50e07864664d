//! Tests of the ethtool bytes: the offsets against the kernel's own structures, and answers that are noise.

use super::*;

fn rule_of_everything(family: Family) -> NtupleRule {
    let (source, destination) = match family {
        Family::V4 => (IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 7])),
        Family::V6 => {
            (IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]))
        }
    };
    NtupleRule {
        location: Some(7),
        family,
        source: Some(source),
        destination: Some(destination),
        source_port: Some(514),
        destination_port: Some(5140),
        queue: Some(3),
    }
}

#[test]
fn a_rule_is_read_back_as_it_was_written() {
    for family in [Family::V4, Family::V6] {
        let everything = rule_of_everything(family);
        let port_only =
            NtupleRule { source: None, destination: None, source_port: None, queue: None, ..everything.clone() };
        for wanted in [everything, port_only] {
            let mut bytes = [0; RXNFC_BYTES];
            put_rule(&mut bytes, &wanted);
            assert_eq!(rule(&bytes), Some(wanted));
        }
    }
}

#[test]
fn a_rule_lies_where_the_kernel_looks_for_it() {
    let mut bytes = [0; RXNFC_BYTES];
    put_rule(&mut bytes, &rule_of_everything(Family::V4));
    assert_eq!(u32_at(&bytes, 16), 2, "flow_type");
    assert_eq!(bytes[20..24], [192, 0, 2, 1], "ip4src");
    assert_eq!(bytes[30..32], 5140_u16.to_be_bytes(), "pdst");
    assert_eq!(bytes[92..96], [0xff; 4], "the mask of ip4src");
    assert_eq!(u64_at(&bytes, 168), 3, "ring_cookie");
    assert_eq!(u32_at(&bytes, 176), 7, "location");
}

#[test]
fn a_rule_with_a_partial_mask_or_a_virtual_function_is_not_shown_as_ours() {
    let mut bytes = [0; RXNFC_BYTES];
    put_rule(&mut bytes, &rule_of_everything(Family::V4));
    let mut partial = bytes;
    partial[92] = 0xf0;
    assert_eq!(rule(&partial), None);
    put_u64(&mut bytes, 168, 1 << 32);
    assert_eq!(rule(&bytes), None);
}

#[test]
fn a_rule_that_compares_the_type_of_service_is_not_shown_as_one_that_does_not() {
    // The places of tos and tclass: behind two addresses and two ports.
    for (family, service_at) in [(Family::V4, 92 + 12), (Family::V6, 92 + 36)] {
        let mut bytes = [0; RXNFC_BYTES];
        put_rule(&mut bytes, &rule_of_everything(family));
        bytes[service_at] = 0xfc;
        assert_eq!(rule(&bytes), None, "{family}");
    }
}

#[test]
fn setting_keeps_what_it_does_not_name() {
    let mut bytes: Vec<u8> = (0..92).collect();
    let before = bytes.clone();
    let coalescing = Coalescing { rx_usecs: 50, rx_frames: 64, adaptive_rx: true };
    put_coalescing(&mut bytes, &coalescing);
    assert_eq!(super::coalescing(&bytes), coalescing);
    assert_eq!((&bytes[..4], &bytes[12..40], &bytes[44..]), (&before[..4], &before[12..40], &before[44..]));
    let mut bytes: Vec<u8> = (0..36).collect();
    put_rings(&mut bytes, &Rings { rx: 1024, tx: 512, ..Rings::default() });
    assert_eq!((u32_at(&bytes, 20), u32_at(&bytes, 32), bytes[24]), (1024, 512, 24));
}

#[test]
fn no_answer_makes_a_decoder_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let rounds = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let mut bytes = [0_u8; 256];
    for _ in 0..rounds {
        let length = usize::try_from(next() % 257).expect("small");
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&next().to_ne_bytes());
        }
        // Half of them look like a rule, so that more than the first branch is reached.
        if next() % 2 == 0 {
            put_u32(&mut bytes, FLOW_SPEC_AT, if next() % 2 == 0 { UDP_OVER_IPV4 } else { UDP_OVER_IPV6 });
        }
        let answer = &bytes[..length];
        let _ = (driver(answer), channels(answer), rings(answer), coalescing(answer), rule(answer));
        let _ = (rule_count(answer), location(answer));
        let count = usize::try_from(next()).unwrap_or(usize::MAX);
        assert!(table(answer, 24, count).len() <= 64);
    }
}
