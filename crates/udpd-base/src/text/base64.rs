//! Bytes to and from base64. Both alphabets are read: browsers send passwords in the usual one, and the claims of a
//! token are in the one for addresses. Neither has a letter that means something else in the other.

/// Appends the bytes in the usual alphabet, padded.
pub fn append(text: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |index: usize| group.get(index).copied().map_or(0, u32::from);
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |place: u32| DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
        let mut digits = [digit(0), digit(1), digit(2), digit(3)];
        // As many digits as the bytes need, and signs of equality for the others.
        digits[group.len() + 1..].fill(b'=');
        text.extend_from_slice(&digits);
    }
}

/// Decodes, padded or not.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        (bits, count) = ((bits << 6 | u32::from(value)) & 0xff_ffff, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_padded_and_reads_back() {
        for (bytes, expected) in [(&b""[..], ""), (b"any:0", "YW55OjA="), (b"\xfb\xff", "+/8="), (b"\0\0\0", "AAAA")] {
            let mut text = Vec::new();
            append(&mut text, bytes);
            assert_eq!(text, expected.as_bytes());
            assert_eq!(decode(expected).as_deref(), Some(bytes));
        }
    }

    #[test]
    fn both_alphabets_are_read_padded_or_not() {
        assert_eq!(decode("").as_deref(), Some(&b""[..]));
        for text in ["YW55OjA=", "YW55OjA"] {
            assert_eq!(decode(text).as_deref(), Some(&b"any:0"[..]), "{text}");
        }
        for text in ["-_8=", "+/8", "-_8"] {
            assert_eq!(decode(text).as_deref(), Some(&[0xfb, 0xff][..]), "{text}");
        }
        for text in ["a.b", "§", "a b"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
