//! Tests of the ethtool bytes: the offsets against the kernel's own structures, and answers that are noise.

use super::*;

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
        let answer = &bytes[..length];
        let _ = (driver(answer), channels(answer), rings(answer), super::coalescing(answer));
        let count = usize::try_from(next()).unwrap_or(usize::MAX);
        assert!(table(answer, 24, count).len() <= 64);
    }
}
