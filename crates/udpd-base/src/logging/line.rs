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

use crate::seams::clock;
use crate::text::units::CalendarTime;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `level message`, with the journal's priority prefix when stderr is the journal.
    Text,
    Json,
}

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
        self.line_at(clock::wall(), level, message)
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

/// Whether systemd connected stderr to the journal, and it was not redirected since.
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
    let CalendarTime { year, month, day, hour, minute, second } = CalendarTime::at(since_epoch.as_secs());
    let microseconds = since_epoch.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{microseconds:06}Z")
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
}
