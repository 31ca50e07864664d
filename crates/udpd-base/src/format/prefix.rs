//! What stands in front of a line, where `prefix` asks for it: when the datagram came, who sent it, or both.
//!
//! Each part is followed by one space and has none in it, and the parts stand in the order in which `prefix` names
//! them: `2026-11-21T06:42:21.000000001Z 192.0.2.7:40000 the line`. So a line with a prefix is as reversible as one
//! without: cut off as many words as `prefix` has, each with the one space behind it, and what is left is a line of the
//! format `lines`. No sender can forge a part, because what it sends comes behind. The time is UTC with nanoseconds
//! (where it is that of a batch, microseconds); the source is address and port, with brackets around an IPv6 address.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::text::units::CalendarTime;

/// What stands in front of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinePrefix {
    #[default]
    None,
    Time,
    Source,
    TimeSource,
    SourceTime,
}

impl LinePrefix {
    /// As they are written.
    pub const WORDS: [(&'static str, LinePrefix); 5] = [
        ("", LinePrefix::None),
        ("time", LinePrefix::Time),
        ("source", LinePrefix::Source),
        ("time source", LinePrefix::TimeSource),
        ("source time", LinePrefix::SourceTime),
    ];

    /// Whether it says when a datagram came.
    pub fn has_time(self) -> bool {
        matches!(self, Self::Time | Self::TimeSource | Self::SourceTime)
    }
}

/// The most bytes that a prefix has: a time of 30, an address with scope and port of 70, and two spaces.
pub const BYTES_MAX: usize = 104;

/// What a time has behind its microseconds: three digits and the letter for UTC.
const BEYOND_MICROSECONDS: usize = 4;

/// Appends the prefix of one line. Where the time `is_of_batch` it ends with the microsecond.
pub fn append(
    line: &mut Vec<u8>,
    prefix: LinePrefix,
    arrival: impl FnOnce() -> Duration,
    is_of_batch: bool,
    source: SocketAddr,
) {
    if matches!(prefix, LinePrefix::Source | LinePrefix::SourceTime) {
        append_source(line, source);
    }
    if prefix.has_time() {
        append_time(line, arrival());
        if is_of_batch {
            line.truncate(line.len() - BEYOND_MICROSECONDS);
            line.push(b'Z');
        }
        line.push(b' ');
    }
    if prefix == LinePrefix::TimeSource {
        append_source(line, source);
    }
}

fn append_source(line: &mut Vec<u8>, source: SocketAddr) {
    // Writing to a vector cannot fail.
    let _ = write!(line, "{source} ");
}

/// Appends a moment in UTC with nanoseconds, always as long.
pub fn append_time(line: &mut Vec<u8>, since_epoch: Duration) {
    let CalendarTime { year, month, day, hour, minute, second } = CalendarTime::at(since_epoch.as_secs());
    let mut text = *b"0000-00-00T00:00:00.000000000Z";
    put_digits(&mut text[0..4], year);
    put_digits(&mut text[5..7], month);
    put_digits(&mut text[8..10], day);
    put_digits(&mut text[11..13], hour);
    put_digits(&mut text[14..16], minute);
    put_digits(&mut text[17..19], second);
    put_digits(&mut text[20..29], u64::from(since_epoch.subsec_nanos()));
    line.extend_from_slice(&text);
}

/// Writes the last digits of a number, as many as there is room for.
fn put_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_parts_that_are_asked_for_and_a_space_behind_each() {
        let arrival = || Duration::new(1_795_243_341, 1);
        let text = |prefix, source: &str| {
            let mut line = Vec::new();
            append(&mut line, prefix, arrival, false, source.parse().expect("an address"));
            assert!(line.len() <= BYTES_MAX);
            String::from_utf8(line).expect("text")
        };
        let (time, v4) = ("2026-11-21T06:42:21.000000001Z", "192.0.2.7:40000");
        assert_eq!(text(LinePrefix::None, v4), "");
        assert_eq!(text(LinePrefix::Time, v4), format!("{time} "));
        assert_eq!(text(LinePrefix::Source, v4), format!("{v4} "));
        assert_eq!(text(LinePrefix::TimeSource, v4), format!("{time} {v4} "));
        let v6 = "[fe80:1111:2222:3333:4444:5555:6666:7777%4294967295]:65535";
        assert_eq!(text(LinePrefix::SourceTime, v6), format!("{v6} {time} "));
        let mut line = Vec::new();
        append(
            &mut line,
            LinePrefix::TimeSource,
            || Duration::new(1_795_243_341, 1_999),
            true,
            v4.parse().expect("one"),
        );
        assert_eq!(String::from_utf8(line).expect("text"), format!("2026-11-21T06:42:21.000001Z {v4} "));
    }
}
