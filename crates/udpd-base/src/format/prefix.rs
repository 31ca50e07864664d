//! What stands in front of a line, where `prefix` asks for it: when the datagram came, who sent it, or both.
//!
//! Each part is followed by one space and has none in it, and the parts stand in the order in which `prefix` names
//! them: `2026-11-21T06:42:21.000000001Z 192.0.2.7:40000 the line`. So a line with a prefix is as reversible as one
//! without: cut off as many words as `prefix` has, each with the one space behind it, and what is left is a line of the
//! format `lines`. No sender can forge a part, because what it sends comes behind. The time is UTC or local time, with
//! nanoseconds (where it is that of a batch, microseconds); local time says how far it is ahead of UTC, so no moment is
//! written like another. The source is address and port, with brackets around an IPv6 address.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::os::local_time::ShownTime;
use crate::text::units::CalendarTime;

/// How a line is written, beside its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineStyle {
    pub prefix: LinePrefix,
    /// Of the time in the prefix.
    pub time: ShownTime,
    pub strip: Strip,
}

/// What is removed from the end of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strip {
    #[default]
    Nothing,
    /// One byte that is zero.
    Nul,
}

impl Strip {
    /// As they are written.
    pub const WORDS: [(&'static str, Self); 2] = [("", Self::Nothing), ("nul", Self::Nul)];

    /// What is left of a payload.
    pub fn of(self, payload: &[u8]) -> &[u8] {
        match (self, payload) {
            (Self::Nul, [rest @ .., 0]) => rest,
            _ => payload,
        }
    }
}

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

/// The most bytes that a prefix has: a time of 38, an address with scope and port of 70, and two spaces.
pub const BYTES_MAX: usize = 110;

/// Where the nanoseconds of a time stand that are more than microseconds, from its end.
const BEYOND_MICROSECONDS: usize = 3;

/// When a datagram came, as a line says it.
#[derive(Debug, Clone, Copy)]
pub struct LineTime {
    /// Since 1970.
    pub arrival: Duration,
    /// How many seconds local time is ahead then; `None` for UTC.
    pub offset: Option<i32>,
    /// It is when the batch came, and ends with the microsecond.
    pub is_of_batch: bool,
}

/// Appends the prefix of one line. `time` is asked where there is one.
pub fn append(line: &mut Vec<u8>, prefix: LinePrefix, time: impl FnOnce() -> LineTime, source: SocketAddr) {
    if matches!(prefix, LinePrefix::Source | LinePrefix::SourceTime) {
        append_source(line, source);
    }
    if prefix.has_time() {
        let LineTime { arrival, offset, is_of_batch } = time();
        let shown = arrival.as_secs().saturating_add_signed(offset.unwrap_or(0).into());
        append_time(line, Duration::new(shown, arrival.subsec_nanos()));
        line.pop();
        line.truncate(line.len() - if is_of_batch { BEYOND_MICROSECONDS } else { 0 });
        append_offset(line, offset);
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

/// Appends `Z`, or how far local time is ahead: `+02:00`, with seconds where there are some.
fn append_offset(line: &mut Vec<u8>, offset: Option<i32>) {
    let Some(offset) = offset else { return line.push(b'Z') };
    let mut text = *b"+00:00:00";
    text[0] = if offset < 0 { b'-' } else { b'+' };
    let seconds = u64::from(offset.unsigned_abs());
    put_digits(&mut text[1..3], seconds / 3600);
    put_digits(&mut text[4..6], seconds / 60 % 60);
    put_digits(&mut text[7..9], seconds % 60);
    line.extend_from_slice(if seconds % 60 == 0 { &text[..6] } else { &text });
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
pub(super) fn put_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(prefix: LinePrefix, nanoseconds: u32, offset: Option<i32>, is_of_batch: bool, source: &str) -> String {
        let mut line = Vec::new();
        let time = || LineTime { arrival: Duration::new(1_795_243_341, nanoseconds), offset, is_of_batch };
        append(&mut line, prefix, time, source.parse().expect("an address"));
        assert!(line.len() <= BYTES_MAX);
        String::from_utf8(line).expect("text")
    }

    #[test]
    fn a_prefix_has_the_parts_that_are_asked_for_and_a_space_behind_each() {
        let text = |prefix, source| text(prefix, 1, None, false, source);
        let (time, v4) = ("2026-11-21T06:42:21.000000001Z", "192.0.2.7:40000");
        assert_eq!(text(LinePrefix::None, v4), "");
        assert_eq!(text(LinePrefix::Time, v4), format!("{time} "));
        assert_eq!(text(LinePrefix::Source, v4), format!("{v4} "));
        assert_eq!(text(LinePrefix::TimeSource, v4), format!("{time} {v4} "));
        let v6 = "[fe80:1111:2222:3333:4444:5555:6666:7777%4294967295]:65535";
        assert_eq!(text(LinePrefix::SourceTime, v6), format!("{v6} {time} "));
    }

    #[test]
    fn a_time_of_a_batch_has_microseconds_and_local_time_says_how_far_it_is_ahead() {
        let v6 = "[fe80:1111:2222:3333:4444:5555:6666:7777%4294967295]:65535";
        for (offset, is_of_batch, expected) in [
            (None, true, "2026-11-21T06:42:21.000001Z"),
            (Some(0), false, "2026-11-21T06:42:21.000001999+00:00"),
            (Some(3600), true, "2026-11-21T07:42:21.000001+01:00"),
            (Some(-34_200), false, "2026-11-20T21:12:21.000001999-09:30"),
            (Some(5 * 3600 + 53 * 60 + 28), false, "2026-11-21T12:35:49.000001999+05:53:28"),
        ] {
            assert_eq!(text(LinePrefix::TimeSource, 1999, offset, is_of_batch, v6), format!("{expected} {v6} "));
        }
    }

    #[test]
    fn only_one_nul_at_the_end_is_removed_and_only_where_that_is_asked_for() {
        for (payload, left) in
            [(&b"a\0"[..], &b"a"[..]), (b"a\0\0", b"a\0"), (b"\0a", b"\0a"), (b"", b""), (b"\0", b"")]
        {
            assert_eq!(Strip::Nul.of(payload), left);
            assert_eq!(Strip::Nothing.of(payload), payload);
        }
    }
}
