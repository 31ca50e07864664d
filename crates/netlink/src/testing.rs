//! What the tests of this crate share.

use crate::message::attribute;

/// The bytes of a recording, written as hexadecimal digits with spaces between them.
pub(crate) fn recorded(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.chunks(2).map(|pair| byte(pair).expect("two digits")).collect()
}

/// Attributes that are numbers of four bytes.
pub(crate) fn numbers(pairs: &[(u16, u32)]) -> Vec<u8> {
    pairs.iter().flat_map(|(kind, value)| attribute(*kind, &value.to_ne_bytes())).collect()
}

/// Damages a template in a few places and cuts it off somewhere, a million times (fewer in a slow build).
pub(crate) fn mutate(template: &[u8], mut read: impl FnMut(&[u8])) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state).unwrap_or_default()
    };
    for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 1_000_000 } {
        let mut bytes = template.to_vec();
        for _ in 0..next() % 6 {
            let at = next() % bytes.len();
            bytes[at] = next().to_ne_bytes()[0];
        }
        bytes.truncate(next() % (template.len() + 1));
        read(&bytes);
    }
}
