//! Rates as they are written, and when each datagram is due.
//!
//! The schedule is a function of the time since the start and of nothing else, so it cannot drift: each look works out
//! anew how many are due, and never adds up intervals. A sender that was held up catches up.
//!
//! Datagrams are due in units: one at a time when smooth, a burst or a train otherwise; a unit is due as a whole with
//! its first datagram. Threads take units in turn, each by the same schedule, so that together they keep the whole
//! rate.

use std::fmt;
use std::time::Duration;

use udpd_base::text::advice::ValueAdvice;

/// The highest rate that can be asked for, far above what one host can send.
pub(crate) const RATE_MAX: u64 = 1_000_000_000;

const RIGHT: &str = "write datagrams a second such as 5000, 10k or 1.5M, a ramp such as 10k..1M, or max";

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
pub(crate) fn parse_number(text: &str) -> Result<u64, ValueAdvice> {
    parse_scaled(text)
        .filter(|rate| (1..=RATE_MAX).contains(rate))
        .ok_or_else(|| ValueAdvice::new(format!("{text:?} is not a rate from 1 to {RATE_MAX}"), RIGHT))
}

/// A count from `"5000"`, `"10k"` or `"1.5M"`.
pub(crate) fn parse_count(text: &str) -> Result<u64, ValueAdvice> {
    parse_scaled(text).filter(|count| *count > 0).ok_or_else(|| {
        ValueAdvice::new(format!("{text:?} is not a number of datagrams"), "write one such as 5000, 10k or 1.5M")
    })
}

/// The number, exact to the unit; fractions of one are refused, not rounded.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendAmount {
    /// After this long; with a rate that means exactly the datagrams that are due until then.
    Seconds(Duration),
    Count(u64),
    UntilStopped,
}

/// What is due when, for all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Schedule {
    rate: Rate,
    ramp_seconds: f64,
    total: Option<u64>,
    unit: u64,
}

impl Schedule {
    /// `unit` is how many datagrams are due together. A ramp without an end stays at its first rate.
    pub(crate) fn new(rate: Rate, amount: SendAmount, unit: u64) -> Self {
        let (from, to) = match rate {
            Rate::Max => (0.0, 0.0),
            Rate::Steady(rate) => (rate as f64, rate as f64),
            Rate::Ramp(from, to) => (from as f64, to as f64),
        };
        let mean = f64::midpoint(from, to);
        let total = match (rate, amount) {
            (_, SendAmount::Count(count)) => Some(count),
            (_, SendAmount::UntilStopped) | (Rate::Max, _) => None,
            (_, SendAmount::Seconds(duration)) => Some((mean * duration.as_secs_f64()).round() as u64),
        };
        let ramp_seconds = match amount {
            SendAmount::Seconds(duration) => duration.as_secs_f64(),
            SendAmount::Count(count) => count as f64 / mean,
            SendAmount::UntilStopped => f64::INFINITY,
        };
        Self { rate, ramp_seconds, total, unit: unit.max(1) }
    }

    /// How many are to be sent in all, if that is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    /// How many the rate alone makes due until `elapsed_ns`, in whole units and without an end; `None` at the highest
    /// rate.
    pub(crate) fn asked(&self, elapsed_ns: u64) -> Option<u64> {
        let single = match self.rate {
            Rate::Max => return None,
            Rate::Steady(rate) => u64::try_from(u128::from(rate) * u128::from(elapsed_ns) / NS).unwrap_or(u64::MAX),
            Rate::Ramp(from, to) => self.ramp(from as f64, to as f64, elapsed_ns as f64 / 1e9),
        };
        // The first is due at once.
        Some(single.saturating_add(1).div_ceil(self.unit).saturating_mul(self.unit))
    }

    /// The same up to the end of the run; everything at once at the highest rate.
    pub(crate) fn due(&self, elapsed_ns: u64) -> u64 {
        self.asked(elapsed_ns).unwrap_or(u64::MAX).min(self.total.unwrap_or(u64::MAX))
    }

    fn ramp(&self, from: f64, to: f64, seconds: f64) -> u64 {
        let on_ramp = seconds.min(self.ramp_seconds);
        let grown = (to - from) / self.ramp_seconds * on_ramp * on_ramp / 2.0;
        (from * on_ramp + grown + to * (seconds - on_ramp)) as u64
    }

    /// The first moment at which datagram `number`, from 0, is due.
    pub(crate) fn due_at_ns(&self, number: u64) -> u64 {
        match self.rate {
            Rate::Max => 0,
            Rate::Steady(rate) => {
                u64::try_from((u128::from(number) * NS).div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
            }
            Rate::Ramp(from, to) => {
                let (from, to, number) = (from as f64, to as f64, number as f64);
                let slope = (to - from) / self.ramp_seconds;
                let seconds = if slope == 0.0 {
                    number / from
                } else {
                    // Never below zero while the number is on the ramp; beyond it the last rate goes on.
                    let on_ramp = f64::midpoint(from, to) * self.ramp_seconds;
                    let root = (from * from + 2.0 * slope * number.min(on_ramp)).max(0.0).sqrt();
                    (root - from) / slope + (number - on_ramp).max(0.0) / to
                };
                (seconds * 1e9) as u64
            }
        }
    }
}

/// The share of one thread in a schedule.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    schedule: Schedule,
    index: u64,
    threads: u64,
    sent: u64,
}

impl Pacer {
    /// For thread `index` of `threads`.
    pub(crate) fn new(schedule: Schedule, index: usize, threads: usize) -> Self {
        Self { schedule, index: index as u64, threads: threads.max(1) as u64, sent: 0 }
    }

    /// How many this thread owes at `elapsed_ns`.
    pub(crate) fn owed(&self, elapsed_ns: u64) -> u64 {
        self.share(self.schedule.due(elapsed_ns)).saturating_sub(self.sent)
    }

    /// When the next is due; `None` when this thread has sent all it had to.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        if self.schedule.total.is_some_and(|total| self.sent >= self.share(total)) {
            return None;
        }
        let unit = self.schedule.unit;
        let number = (self.sent / unit).saturating_mul(self.threads).saturating_add(self.index).saturating_mul(unit);
        Some(self.schedule.due_at_ns(number))
    }

    /// Counts datagrams that were sent or refused.
    pub(crate) fn advance(&mut self, datagrams: u64) {
        self.sent += datagrams;
    }

    /// How many of the first `due` are this thread's.
    fn share(&self, due: u64) -> u64 {
        let unit = self.schedule.unit;
        let units = due.div_ceil(unit);
        let own = units.saturating_add(self.threads - 1 - self.index) / self.threads;
        // The last unit may be a short one, and then it is short for the thread that has it.
        let has_last = units > 0 && (units - 1) % self.threads == self.index;
        let missing = if has_last { units.saturating_mul(unit).saturating_sub(due) } else { 0 };
        own.saturating_mul(unit).saturating_sub(missing)
    }
}

const NS: u128 = 1_000_000_000;

#[cfg(test)]
#[path = "pacer_tests.rs"]
mod tests;
