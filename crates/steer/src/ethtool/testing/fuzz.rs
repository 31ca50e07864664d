//! A fuzz target: what drivers answer to ethtool.

use super::wire::{
    CHANNELS_BYTES, COALESCING_BYTES, FEATURES_HEADER_BYTES, RINGS_BYTES, RXNFC_BYTES, bit_named, channels, coalescing,
    driver, feature, names, put_channels, put_coalescing, put_rings, put_rule, put_table, rings, rule, string_count,
    table,
};

/// No answer is read beyond its end; what is written over an answer is read as it was meant.
pub(crate) fn answer(input: &[u8]) {
    assert!(!driver(input).contains('\0'));
    let (found_channels, found_rings, found_coalescing) = (channels(input), rings(input), coalescing(input));
    assert!(names(input).count() <= input.len() / 32);
    if let Some(bit) = bit_named(input, "rx-ntuple-filter") {
        let _ = feature(input, bit);
        let _ = feature(input.get(FEATURES_HEADER_BYTES..).unwrap_or_default(), bit);
    }
    for set in 0..63 {
        let _ = string_count(input, set);
    }
    let entries = table(input, usize::from(*input.first().unwrap_or(&0)), 128);
    assert!(entries.len() <= input.len() / 4);
    let mut written = vec![0; 4 * entries.len()];
    put_table(&mut written, 0, &entries);
    assert_eq!(table(&written, 0, entries.len()), entries);
    let mut answer = input.to_vec();
    answer.resize(input.len().max(COALESCING_BYTES).max(CHANNELS_BYTES).max(RINGS_BYTES), 0);
    put_channels(&mut answer, &found_channels);
    let read = channels(&answer);
    assert_eq!((read.rx, read.tx, read.combined), (found_channels.rx, found_channels.tx, found_channels.combined));
    put_rings(&mut answer, &found_rings);
    let read = rings(&answer);
    assert_eq!((read.rx, read.tx), (found_rings.rx, found_rings.tx));
    put_coalescing(&mut answer, &found_coalescing);
    assert_eq!(coalescing(&answer), found_coalescing);
    if let Some(found) = rule(input) {
        let mut written = [0; RXNFC_BYTES];
        put_rule(&mut written, &found, None);
        assert_eq!(rule(&written), Some(found));
    }
}
