//! Rates as they are written: a number with k or M, `max`, or a ramp.

use std::fmt;

use udpd_base::text::advice::ValueAdvice;

/// The highest rate that can be asked for, far above what one host can send.
pub const RATE_MAX: u64 = 1_000_000_000;

const RIGHT: &str = "write datagrams a second such as 5000, 10k or 1.5M, a ramp such as 10k..1M, or max";

/// How fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    Max,
    Steady(u64),
    /// From the first to the second, evenly over the whole run.
    Ramp(u64, u64),
}

impl Rate {
    /// From `"10k"`, `"max"` or `"10k..1M"`.
    pub fn parse(text: &str) -> Result<Self, ValueAdvice> {
        match text.split_once("..") {
            _ if text == "max" => Ok(Self::Max),
            None => parse_number(text).map(Self::Steady),
            Some((from, to)) => {
                let (from, to) = (parse_number(from)?, parse_number(to)?);
                Ok(if from == to { Self::Steady(from) } else { Self::Ramp(from, to) })
            }
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => formatter.write_str("max"),
            Self::Steady(rate) => write!(formatter, "{rate}"),
            Self::Ramp(from, to) => write!(formatter, "{from}..{to}"),
        }
    }
}

/// Datagrams a second from `"5000"`, `"10k"` or `"1.5M"`.
pub fn parse_number(text: &str) -> Result<u64, ValueAdvice> {
    parse_scaled(text)
        .filter(|rate| (1..=RATE_MAX).contains(rate))
        .ok_or_else(|| ValueAdvice::new(format!("{text:?} is not a rate from 1 to {RATE_MAX}"), RIGHT))
}

/// A count from `"5000"`, `"10k"` or `"1.5M"`.
pub fn parse_count(text: &str) -> Result<u64, ValueAdvice> {
    parse_scaled(text).filter(|count| *count > 0).ok_or_else(|| {
        ValueAdvice::new(format!("{text:?} is not a number of datagrams"), "write one such as 5000, 10k or 1.5M")
    })
}

/// The number, exact to the unit: what is finer than one is refused, not rounded.
fn parse_scaled(text: &str) -> Option<u64> {
    let (number, digits) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 3),
        None => text.strip_suffix('M').map_or((text, 0), |number| (number, 6)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > digits || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    format!("{whole}{fraction:0<digits$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_suffix_and_exactly() {
        for (text, rate) in [
            ("5000", Rate::Steady(5000)),
            ("10k", Rate::Steady(10_000)),
            ("1.5M", Rate::Steady(1_500_000)),
            ("0.001k", Rate::Steady(1)),
            ("max", Rate::Max),
            ("10k..1M", Rate::Ramp(10_000, 1_000_000)),
            ("1M..10k", Rate::Ramp(1_000_000, 10_000)),
            ("5..5", Rate::Steady(5)),
        ] {
            assert_eq!(Rate::parse(text), Ok(rate), "{text}");
            assert_eq!(Rate::parse(&rate.to_string()), Ok(rate), "{text}");
        }
    }

    #[test]
    fn a_wrong_rate_says_what_would_be_right() {
        for text in ["", "0", "fast", "1.2345k", "-1", "10 k", "10G", "k", "1..", "2000M", "1.5"] {
            let advice = Rate::parse(text).expect_err(text).to_string();
            assert!(advice.contains("10k..1M"), "{text}: {advice}");
        }
    }
}
