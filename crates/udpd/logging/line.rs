//! How one log line looks: plain text, text for the journal, or JSON.
//!
//! Whatever a message contains, it stays one line: a line break inside would let part of a message pass for a line of
//! its own, with a level of its own choosing.

use std::fmt::{self, Write};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use log::Level;
use serde::Serialize;

use crate::config::LogFormat;

/// The look of every line of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `warn: message`
    Text,
    /// `<4>message`: the journal takes the priority off and keeps it as a field.
    Journal,
    /// `{"time":"...","level":"warn","thread":"...","message":"..."}`
    Json,
}

/// A JSON line; the order of the fields is the order in the output.
#[derive(Serialize)]
struct JsonLine<'a> {
    time: &'a str,
    level: &'a str,
    thread: &'a str,
    message: &'a str,
}

impl Style {
    /// The style for a format, given where stderr leads.
    pub(super) fn new(format: LogFormat) -> Self {
        match format {
            LogFormat::Json => Self::Json,
            LogFormat::Text if stderr_is_the_journal() => Self::Journal,
            LogFormat::Text => Self::Text,
        }
    }

    /// One line with its newline, stamped with the present time and the calling thread.
    pub(super) fn line(self, level: Level, message: fmt::Arguments<'_>) -> Vec<u8> {
        self.line_at(SystemTime::now(), level, message)
    }

    fn line_at(self, now: SystemTime, level: Level, message: fmt::Arguments<'_>) -> Vec<u8> {
        let mut text = String::new();
        // A Display that reports an error leaves what it had written; `to_string` would panic instead.
        let _ = text.write_fmt(message);
        let mut line = match self {
            Self::Text => format!("{}: {}", name(level), without_control_characters(&text)),
            Self::Journal => format!("<{}>{}", priority(level), without_control_characters(&text)),
            Self::Json => {
                let thread = thread::current();
                let fields = JsonLine {
                    time: &rfc3339_utc(now),
                    level: name(level),
                    thread: thread.name().unwrap_or("unnamed"),
                    message: &text,
                };
                // Four strings always serialize; were that ever wrong, an empty line would show it.
                serde_json::to_string(&fields).unwrap_or_default()
            }
        };
        line.push('\n');
        line.into_bytes()
    }
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// The syslog priority that the journal expects between angle brackets.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

fn without_control_characters(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() { clean.extend(character.escape_default()) } else { clean.push(character) }
    }
    clean
}

/// Whether systemd connected stderr to the journal, and nobody has redirected it since.
fn stderr_is_the_journal() -> bool {
    let Ok(announced) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr: io::Result<_> = io::stderr().as_fd().try_clone_to_owned();
    let metadata = stderr.and_then(|descriptor| File::from(descriptor).metadata());
    metadata.is_ok_and(|metadata| names_file(&announced, metadata.dev(), metadata.ino()))
}

/// Whether `announced`, in the form `device:inode`, means this file.
fn names_file(announced: &str, device: u64, inode: u64) -> bool {
    announced.split_once(':').is_some_and(|(announced_device, announced_inode)| {
        announced_device.parse() == Ok(device) && announced_inode.parse() == Ok(inode)
    })
}

/// Date and time to the microsecond in the form of RFC 3339. A clock before 1970 counts as 1970.
fn rfc3339_utc(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let microseconds = since_epoch.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{microseconds:06}Z")
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Years are taken to begin in March, so that the leap day is the last of its year and the lengths of the months
/// before it never change: five months from March, or from August, always have 153 days.
fn date(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    const DAYS_FROM_MARCH_OF_YEAR_0: u64 = 719_468;
    let days = days_since_epoch + DAYS_FROM_MARCH_OF_YEAR_0;
    let (era, day_of_era) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    // Take the leap days that have passed out of the count, so that what is left divides by 365.
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 { months_from_march + 3 } else { months_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn line(style: Style, level: Level, message: &str) -> String {
        let time = UNIX_EPOCH + Duration::from_micros(1_767_323_045_000_042);
        String::from_utf8(style.line_at(time, level, format_args!("{message}"))).unwrap()
    }

    #[test]
    fn text_names_the_level_and_the_journal_gets_a_priority() {
        assert_eq!(line(Style::Text, Level::Warn, "careful"), "warn: careful\n");
        assert_eq!(line(Style::Journal, Level::Warn, "careful"), "<4>careful\n");
        assert_eq!(line(Style::Journal, Level::Error, "broken"), "<3>broken\n");
        assert_eq!(line(Style::Journal, Level::Info, "fine"), "<6>fine\n");
        assert_eq!(line(Style::Journal, Level::Debug, "detail"), "<7>detail\n");
    }

    #[test]
    fn json_holds_time_level_thread_and_message() {
        let text = line(Style::Json, Level::Info, "say \"hello\"\n");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["time"], "2026-01-02T03:04:05.000042Z");
        assert_eq!(value["level"], "info");
        assert_eq!(value["thread"], thread::current().name().unwrap());
        assert_eq!(value["message"], "say \"hello\"\n");
        assert_eq!(value.as_object().unwrap().len(), 4);
    }

    #[test]
    fn a_message_can_never_pass_for_two_lines() {
        for style in [Style::Text, Style::Journal, Style::Json] {
            let text = line(style, Level::Info, "one\n<0>two\r\u{1b}[31mthree");
            assert_eq!(text.chars().filter(|character| character.is_control()).count(), 1, "{text:?}");
        }
        assert_eq!(line(Style::Text, Level::Info, "a\nb"), "info: a\\nb\n");
    }

    #[test]
    fn the_date_is_right_around_leap_days_and_the_turn_of_years() {
        let shown = |seconds| rfc3339_utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(shown(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(shown(951_782_399), "2000-02-28T23:59:59.000000Z");
        assert_eq!(shown(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(shown(951_868_800), "2000-03-01T00:00:00.000000Z");
        assert_eq!(shown(1_735_689_599), "2024-12-31T23:59:59.000000Z");
        assert_eq!(shown(4_107_542_400), "2100-03-01T00:00:00.000000Z");
    }

    #[test]
    fn every_day_of_a_thousand_years_follows_the_one_before() {
        let mut before = date(0);
        for day in 1..365_243 {
            let (year, month, day_of_month) = date(day);
            let next_day = (before.0, before.1, before.2 + 1);
            let first_of_month = before.2 >= 28 && day_of_month == 1;
            let next_month = first_of_month && (year, month) == (before.0, before.1 + 1);
            let next_year = before.1 == 12 && before.2 == 31 && (year, month, day_of_month) == (before.0 + 1, 1, 1);
            assert!(
                (year, month, day_of_month) == next_day || next_month || next_year,
                "{before:?} and then day {day}"
            );
            before = (year, month, day_of_month);
        }
        assert_eq!(before, (2969, 12, 31));
    }

    #[test]
    fn stderr_is_the_journal_only_when_device_and_inode_agree() {
        assert!(names_file("9:8123", 9, 8123));
        assert!(!names_file("9:8123", 9, 8124));
        assert!(!names_file("8:8123", 9, 8123));
        for nonsense in ["", "9", "9:", ":8123", "9:8123:1", "a:b"] {
            assert!(!names_file(nonsense, 9, 8123), "{nonsense:?}");
        }
    }
}
