//! Sizes, durations and CPU lists, from text and back.
//!
//! One spelling for each unit, no spaces, no fractions: a configuration is read by more people than write it, and
//! `32M` means two different numbers to two of them. Each refusal says how the value would be written.

use std::time::Duration;

use crate::text::advice::ValueAdvice;

const SIZE_UNITS: [(&str, u64); 5] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];
const DURATION_UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// Other spellings that people use, each with the one that is meant. Decimal units are among them on purpose: the
/// suggestion is the binary unit, and the operator decides.
const SPELLINGS: [(&str, &str); 22] = [
    ("k", "KiB"),
    ("kb", "KiB"),
    ("kib", "KiB"),
    ("mb", "MiB"),
    ("mib", "MiB"),
    ("g", "GiB"),
    ("gb", "GiB"),
    ("gib", "GiB"),
    ("b", "B"),
    ("byte", "B"),
    ("bytes", "B"),
    ("µs", "us"),
    ("usec", "us"),
    ("msec", "ms"),
    ("millis", "ms"),
    ("sec", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("min", "m"),
    ("minutes", "m"),
    ("hour", "h"),
    ("hours", "h"),
];

/// Bytes from `"32MiB"`, `"2KiB"`, `"1GiB"`, `"512B"` or `"1500"`.
pub fn parse_size(text: &str) -> Result<u64, ValueAdvice> {
    parse_amount(
        text,
        "size",
        &SIZE_UNITS,
        "a whole number with KiB, MiB or GiB, such as \"32MiB\", or bytes as a plain number",
    )
}

/// The shortest text that [`parse_size`] reads as `bytes`.
pub fn print_size(bytes: u64) -> String {
    print_amount(bytes, &SIZE_UNITS[..3]).unwrap_or_else(|| bytes.to_string())
}

/// A duration from `"250ms"`, `"0us"`, `"1s"`, `"1m"` or `"1h"`.
pub fn parse_duration(text: &str) -> Result<Duration, ValueAdvice> {
    parse_amount(text, "duration", &DURATION_UNITS, "a whole number with us, ms, s, m or h, such as \"250ms\"")
        .map(Duration::from_micros)
}

/// The shortest text that [`parse_duration`] reads as `duration`; what is finer than a microsecond is cut off.
pub fn print_duration(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    match micros {
        0 => "0s".to_owned(),
        _ => print_amount(micros, &DURATION_UNITS).unwrap_or_else(|| format!("{micros}us")),
    }
}

/// A short time as people read it, with three digits at most: "90 us", "1.5 ms", "30 s".
pub fn print_seconds(seconds: f64) -> String {
    let (amount, unit) = match seconds {
        ..1e-3 => (seconds * 1e6, "us"),
        1e-3..1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    // Rounded first, so that a binary fraction does not show.
    let tenths = (amount * 10.0).round();
    let digits = usize::from(tenths < 100.0 && tenths % 10.0 != 0.0);
    format!("{:.digits$} {unit}", tenths / 10.0)
}

fn parse_amount(text: &str, noun: &str, units: &[(&str, u64)], right: &str) -> Result<u64, ValueAdvice> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let refuse = |what: &str| Err(ValueAdvice::new(format!("{text:?} {what}"), format!("write {right}")));
    if text.starts_with('-') {
        return refuse("is negative");
    }
    if number.is_empty() {
        return refuse(&format!("is not a {noun}"));
    }
    if unit.is_empty() && !units.iter().any(|(name, _)| name.is_empty()) {
        return refuse("has no unit");
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let meant = meant_unit(unit, units);
        return match meant {
            Some(name) => Err(ValueAdvice::new(
                format!("{:?} in {text:?} is not a unit here", unit.trim()),
                format!("write \"{number}{name}\" if you mean that"),
            )),
            None if unit.starts_with('.') => refuse("is not a whole number; use the next smaller unit"),
            None => refuse(&format!("is not a {noun}")),
        };
    };
    match number.parse::<u64>().ok().and_then(|count| count.checked_mul(*scale)) {
        Some(amount) => Ok(amount),
        None => refuse("is too large"),
    }
}

fn meant_unit(unit: &str, units: &[(&str, u64)]) -> Option<&'static str> {
    let lower = unit.trim().to_lowercase();
    // `M` after a size is MiB, `m` after a duration is a minute: the list of units decides.
    let is_size = units.iter().any(|(name, _)| *name == "MiB");
    if lower == "m" {
        return Some(if is_size { "MiB" } else { "m" });
    }
    let own = SIZE_UNITS.iter().chain(&DURATION_UNITS).map(|(name, _)| *name).find(|name| name.to_lowercase() == lower);
    let meant = own.or_else(|| SPELLINGS.iter().find(|(other, _)| *other == lower).map(|(_, name)| *name))?;
    units.iter().any(|(name, _)| *name == meant && !name.is_empty()).then_some(meant)
}

fn print_amount(amount: u64, units: &[(&str, u64)]) -> Option<String> {
    let (name, scale) = units.iter().find(|(_, scale)| amount != 0 && amount.is_multiple_of(*scale))?;
    Some(format!("{}{name}", amount / scale))
}

/// Cores from `"0-3,8"`: sorted, each once.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, ValueAdvice> {
    match steer::parse_core_list(text) {
        Ok(cpus) if cpus.is_empty() => {
            Err(ValueAdvice::new("\"\" is not a core number", "write some, such as \"0-3,8\""))
        }
        Ok(cpus) => Ok(cpus),
        Err(error) => Err(ValueAdvice::new(error.what, error.cure)),
    }
}

/// A second as a date in UTC, the only time by which files and log lines of several hosts can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarTime {
    /// From 1970 on.
    pub year: u64,
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    /// 0 to 59; leap seconds are not counted.
    pub second: u64,
}

impl CalendarTime {
    /// The moment so many seconds after 1970 began.
    pub fn at(seconds: u64) -> Self {
        let (year, month, day) = date(seconds / 86_400);
        Self { year, month, day, hour: seconds / 3600 % 24, minute: seconds / 60 % 60, second: seconds % 60 }
    }
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

    #[test]
    fn sizes_are_read_in_binary_units_or_bytes() {
        for (text, bytes) in
            [("32MiB", 33_554_432), ("2KiB", 2048), ("1GiB", 1_073_741_824), ("1500", 1500), ("7B", 7), ("0", 0)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_printed_size_is_read_as_the_same_size() {
        for bytes in [0, 1, 1023, 1024, 1500, 2048, 1 << 20, (1 << 20) + 1, 3 << 30, u64::MAX] {
            assert_eq!(parse_size(&print_size(bytes)), Ok(bytes));
        }
        assert_eq!(print_size(2048), "2KiB");
    }

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, micros) in
            [("250ms", 250_000), ("0us", 0), ("1h", 3_600_000_000), ("1s", 1_000_000), ("1m", 60_000_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn a_printed_duration_is_read_as_the_same_duration() {
        for micros in [0, 1, 999, 1000, 250_000, 1_000_000, 90_000_000, 7_200_000_000] {
            let duration = Duration::from_micros(micros);
            assert_eq!(parse_duration(&print_duration(duration)), Ok(duration));
        }
        assert_eq!(print_duration(Duration::from_millis(250)), "250ms");
    }

    #[test]
    fn short_times_have_three_digits_at_most() {
        let printed = [1e-6, 1.5e-6, 9e-5, 7e-4, 0.001, 0.0015, 0.05, 0.7, 1.5, 30.0, 700.0].map(print_seconds);
        let expected = "1 us,1.5 us,90 us,700 us,1 ms,1.5 ms,50 ms,700 ms,1.5 s,30 s,700 s";
        assert_eq!(printed.join(","), expected);
    }

    #[test]
    fn cpu_lists_are_read_sorted_and_printed_as_ranges() {
        for (text, printed) in [("0-3,8", "0-3,8"), ("8,0-3,2", "0-3,8"), ("5", "5"), ("0,1", "0-1")] {
            let cpus = parse_cpus(text).expect("a valid list");
            assert_eq!(steer::format_core_list(&cpus), printed);
            assert_eq!(parse_cpus(&steer::format_core_list(&cpus)), Ok(cpus));
        }
    }

    #[test]
    fn a_wrong_amount_says_what_would_be_right() {
        for (text, words) in [
            ("32M", "write \"32MiB\""),
            ("32 MiB", "write \"32MiB\""),
            ("32mb", "write \"32MiB\""),
            ("1.5MiB", "not a whole number"),
            ("-1", "is negative"),
            ("", "is not a size"),
            ("99999999999GiB", "is too large"),
            ("5s", "is not a size"),
        ] {
            let advice = parse_size(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
        for (text, words) in [
            ("250", "has no unit"),
            ("1 s", "write \"1s\""),
            ("5sec", "write \"5s\""),
            ("2KiB", "is not a duration"),
            ("99999999999999h", "is too large"),
        ] {
            let advice = parse_duration(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
        for (text, words) in [
            ("3-0", "write \"0-3\""),
            ("", "not a core"),
            ("0-", "not a core"),
            ("0-4000000000", "highest"),
            ("a", "\"0-3,8\""),
        ] {
            let advice = parse_cpus(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
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
    fn a_moment_is_taken_apart() {
        let moment = CalendarTime { year: 2026, month: 1, day: 2, hour: 3, minute: 4, second: 5 };
        assert_eq!(CalendarTime::at(1_767_323_045), moment);
    }
}
