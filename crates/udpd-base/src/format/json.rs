//! The pieces of JSON that records are made of: text, numbers, addresses and times, appended to bytes without an
//! allocation and without the machinery of `format!`, which costs more than all the rest of a record.
//!
//! Whatever some reader takes for the end of a line, for a command to a terminal or for an order to show text backwards
//! is escaped, so that a record is the same record for everybody.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use super::prefix::put_digits;

/// The most bytes that one byte of a text becomes.
pub const EXPANSION_MAX: usize = 6;

/// The most bytes that one byte of a text becomes that stands in a JSON text, which is itself a string of JSON.
pub const NESTED_EXPANSION_MAX: usize = 7;

/// Appends a text as it stands between the quotes of a string.
pub fn append_text(line: &mut Vec<u8>, text: &str) {
    append_by_runs(line, text, append_character);
}

/// The same for a JSON text that is itself a string of JSON: what escapes is escaped once more.
pub fn append_nested_text(line: &mut Vec<u8>, text: &str) {
    append_by_runs(line, text, |line, character| {
        let begin = line.len();
        append_character(line, character);
        let mut at = begin;
        while at < line.len() {
            if matches!(line[at], b'\\' | b'"') {
                line.insert(at, b'\\');
                at += 1;
            }
            at += 1;
        }
    });
}

fn append_by_runs(line: &mut Vec<u8>, text: &str, append_escaped: impl Fn(&mut Vec<u8>, char)) {
    let mut rest = text;
    while !rest.is_empty() {
        let plain = plain_prefix(rest);
        line.extend_from_slice(&rest.as_bytes()[..plain]);
        rest = &rest[plain..];
        let mut characters = rest.chars();
        let Some(character) = characters.next() else { return };
        rest = characters.as_str();
        append_escaped(line, character);
    }
}

/// How many bytes at the start are printable ASCII, and neither a quote nor a backslash.
fn plain_prefix(text: &str) -> usize {
    let is_plain = |byte: &u8| (b' '..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    // Eight at a time: the compiler makes one comparison of several.
    let chunks = text.as_bytes().chunks_exact(8).take_while(|chunk| chunk.iter().all(is_plain)).count() * 8;
    chunks + text.as_bytes()[chunks..].iter().take_while(|byte| is_plain(byte)).count()
}

fn append_character(line: &mut Vec<u8>, character: char) {
    match character {
        '"' => line.extend_from_slice(b"\\\""),
        '\\' => line.extend_from_slice(b"\\\\"),
        '\n' => line.extend_from_slice(b"\\n"),
        '\r' => line.extend_from_slice(b"\\r"),
        '\t' => line.extend_from_slice(b"\\t"),
        unsafe_to_show if is_control(unsafe_to_show) => {
            // Writing to a vector cannot fail.
            let _ = write!(line, "\\u{:04x}", u32::from(character));
        }
        _ => line.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// Whether some reader takes it for the end of a line, for a command to a terminal, or for an order to show text
/// backwards.
pub fn is_control(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// Appends a number.
pub fn append_number(line: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let count = number.checked_ilog10().map_or(1, |zeros| zeros as usize + 1);
    let digits = &mut digits[..count];
    put_digits(digits, number);
    line.extend_from_slice(digits);
}

/// Appends an address without a port and without the scope that only this host understands. One of IPv4 that a socket
/// of both families has written as one of IPv6 is one of IPv4.
pub fn append_ip(line: &mut Vec<u8>, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            for (place, octet) in ip.octets().into_iter().enumerate() {
                if place > 0 {
                    line.push(b'.');
                }
                append_number(line, octet.into());
            }
        }
        IpAddr::V6(ip) => {
            let _ = write!(line, "{ip}");
        }
    }
}

/// Appends a moment as nanoseconds since 1970.
pub fn append_nanoseconds(line: &mut Vec<u8>, since_epoch: Duration) {
    append_with_fraction(line, since_epoch, b"");
}

/// Appends a moment as seconds since 1970 with nine decimals.
pub fn append_decimal_seconds(line: &mut Vec<u8>, since_epoch: Duration) {
    append_with_fraction(line, since_epoch, b".");
}

fn append_with_fraction(line: &mut Vec<u8>, since_epoch: Duration, point: &[u8]) {
    let mut nanoseconds = [0; 9];
    put_digits(&mut nanoseconds, since_epoch.subsec_nanos().into());
    append_number(line, since_epoch.as_secs());
    line.extend_from_slice(point);
    line.extend_from_slice(&nanoseconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(append: impl Fn(&mut Vec<u8>)) -> String {
        let mut line = Vec::new();
        append(&mut line);
        String::from_utf8(line).expect("text")
    }

    #[test]
    fn numbers_addresses_and_times_are_written_as_the_standard_library_writes_them() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, u64::from(u32::MAX), 999_999_999_999_999_999, u64::MAX] {
            assert_eq!(text_of(|line| append_number(line, number)), number.to_string());
        }
        for ip in ["0.0.0.0", "192.0.2.7", "255.255.255.255", "::", "2001:db8::1", "fe80::1:2:3:4"] {
            assert_eq!(text_of(|line| append_ip(line, ip.parse().expect("an address"))), ip);
        }
        assert_eq!(text_of(|line| append_ip(line, "::ffff:192.0.2.7".parse().expect("an address"))), "192.0.2.7");
        let moment = Duration::new(1_795_243_341, 7);
        assert_eq!(text_of(|line| append_nanoseconds(line, moment)), "1795243341000000007");
        assert_eq!(text_of(|line| append_decimal_seconds(line, moment)), "1795243341.000000007");
    }

    #[test]
    fn a_text_in_a_text_reads_back_through_both() {
        for text in ["plain", "\"", "\\", "a\nb\tc\r", "\0\u{1b}\u{202e}", "ü😀 \"x\\y\"", ""] {
            let nested = text_of(|line| {
                line.extend_from_slice(b"\"\\\"");
                append_nested_text(line, text);
                line.extend_from_slice(b"\\\"\"");
            });
            assert!(nested.len() <= NESTED_EXPANSION_MAX * text.len() + 6);
            let inner: String = serde_json::from_str(&nested).expect("a string");
            assert_eq!(serde_json::from_str::<String>(&inner).expect("a string in it"), text);
        }
    }
}
