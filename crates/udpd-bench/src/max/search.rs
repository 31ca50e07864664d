//! The search for the highest rate, after RFC 2544: double until something is lost, halve the distance, and then prove
//! the answer by repetition. Pure: the caller makes the trials.
//!
//! Only what was really sent proves anything. A trial whose sender was short says nothing about the rate that was asked
//! for: it is repeated, and when the sender stays short the answer is what it did send and the pipeline kept.

use serde::Serialize;

/// How often the answer has to hold.
pub(super) const REPETITIONS: usize = 3;

/// How often in a row a sender may be short at a rate before it counts as unable. As many as the answer has to hold, so
/// that what it sent in those trials is proved as well as any other rate.
const SHORTS_MAX: usize = REPETITIONS;

/// After so many steps down the next ones are twice as long: an unsteady pipeline is not worth a hundred trials.
const STEPS_OF_ONE_LENGTH: u32 = 4;

/// The outcome of a trial at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TrialVerdict {
    /// The rate was sent, and no more was lost than is allowed.
    Kept,
    /// The rate was sent, and more was lost than is allowed.
    Lost,
    /// The sender could not keep the rate.
    Short {
        /// Datagrams a second that it sent.
        sent: u64,
        /// Whether no more of them was lost than is allowed.
        kept: bool,
    },
    Interrupted,
}

/// What ended the search upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SearchLimit {
    /// The pipeline lost datagrams above this rate.
    Pipeline,
    /// The sender could not offer more: the pipeline's own limit is higher and unknown. The rate is what it sent; 0
    /// when it sent nothing.
    Sender,
    /// The highest rate that was asked for was kept.
    Asked,
    /// Even the lowest rate lost datagrams.
    Nothing,
    /// A signal ended the search: the rate was kept, and a higher one may be.
    Interrupted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RateFound {
    /// Datagrams a second, really sent and kept; 0 with [`SearchLimit::Nothing`].
    pub(super) rate: u64,
    pub(super) limit: SearchLimit,
    /// How often the rate was kept in a row at the end.
    pub(super) repetitions: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    pub(super) lowest: u64,
    pub(super) highest: u64,
    /// How exact the answer has to be, as a share of it.
    pub(super) precision: f64,
}

/// Searches. `trial` measures a rate.
pub(super) fn search<E>(bounds: Bounds, trial: impl FnMut(u64) -> Result<TrialVerdict, E>) -> Result<RateFound, E> {
    let mut search = RateSearch { bounds, trial, kept: Vec::new(), lost: u64::MAX };
    Ok(match search.run()? {
        Some(found) => found,
        None => RateFound { rate: search.proved(), limit: SearchLimit::Interrupted, repetitions: 0 },
    })
}

/// The outcome of a rate, after the sender had its chances.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RateOutcome {
    Kept,
    /// The pipeline loses from this rate on, which is the one that was asked for or what a short sender sent.
    Lost(u64),
    /// The sender was short every time, and every time at least this much was sent and kept.
    Short(u64),
}

struct RateSearch<T> {
    bounds: Bounds,
    trial: T,
    /// Rates that were really sent and kept.
    kept: Vec<u64>,
    /// The lowest that was really sent and lost.
    lost: u64,
}

impl<T> RateSearch<T> {
    /// The highest rate that was sent and kept, below all that were sent and lost.
    fn proved(&self) -> u64 {
        self.kept.iter().copied().filter(|rate| *rate < self.lost).max().unwrap_or(0)
    }
}

/// Each returns `None` after a signal.
impl<E, T: FnMut(u64) -> Result<TrialVerdict, E>> RateSearch<T> {
    fn run(&mut self) -> Result<Option<RateFound>, E> {
        let Bounds { lowest, highest, precision } = self.bounds;
        let (mut kept, mut rate) = (0, lowest);
        // Upwards, until something ends it.
        let mut high = loop {
            match self.ask(rate)? {
                None => return Ok(None),
                Some(RateOutcome::Kept) => kept = rate,
                Some(RateOutcome::Lost(_)) if kept == 0 => return Ok(Some(nothing())),
                Some(RateOutcome::Lost(at)) => break at,
                Some(RateOutcome::Short(sent)) if sent > kept || kept == 0 => return Ok(Some(senders(sent))),
                // It has kept a higher rate before: it was disturbed, and what it sent is no answer.
                Some(RateOutcome::Short(_)) => return self.confirm(kept, SearchLimit::Sender),
            }
            if kept == highest {
                return self.confirm(kept, SearchLimit::Asked);
            }
            rate = rate.saturating_mul(2).min(highest);
        };
        // Inwards, between the last that was kept and the first that was not.
        let mut limit = SearchLimit::Pipeline;
        while high.saturating_sub(kept) as f64 > (kept as f64 * precision).max(1.0) {
            let middle = kept.midpoint(high);
            match self.ask(middle)? {
                None => return Ok(None),
                Some(RateOutcome::Kept) => kept = middle,
                Some(RateOutcome::Lost(at)) => {
                    (high, limit) = (if at > kept { at } else { middle }, SearchLimit::Pipeline)
                }
                Some(RateOutcome::Short(sent)) => (kept, high, limit) = (kept.max(sent), middle, SearchLimit::Sender),
            }
        }
        self.confirm(kept, limit)
    }

    /// One trial, whose result is remembered.
    fn trial(&mut self, rate: u64) -> Result<TrialVerdict, E> {
        let verdict = match (self.trial)(rate)? {
            TrialVerdict::Short { sent, kept } => TrialVerdict::Short { sent: sent.min(rate), kept },
            other => other,
        };
        match verdict {
            TrialVerdict::Kept => self.kept.push(rate),
            TrialVerdict::Short { sent, kept: true } => self.kept.push(sent),
            TrialVerdict::Lost => self.lost = self.lost.min(rate),
            TrialVerdict::Short { sent, kept: false } => self.lost = self.lost.min(sent),
            TrialVerdict::Interrupted => {}
        }
        Ok(verdict)
    }

    /// Repeats a rate until the sender has kept it, up to [`SHORTS_MAX`] times.
    fn ask(&mut self, rate: u64) -> Result<Option<RateOutcome>, E> {
        let (mut least_kept, mut least_lost) = (u64::MAX, None);
        for _ in 0..SHORTS_MAX {
            match self.trial(rate)? {
                TrialVerdict::Kept => return Ok(Some(RateOutcome::Kept)),
                TrialVerdict::Lost => return Ok(Some(RateOutcome::Lost(rate))),
                TrialVerdict::Short { sent, kept: true } => least_kept = least_kept.min(sent),
                TrialVerdict::Short { sent, kept: false } => {
                    least_lost = Some(least_lost.map_or(sent, |least: u64| least.min(sent)))
                }
                TrialVerdict::Interrupted => return Ok(None),
            }
        }
        Ok(Some(least_lost.map_or(RateOutcome::Short(least_kept), RateOutcome::Lost)))
    }

    /// Repeats the trial until it has held often enough in a row, going down by the precision whenever it has not.
    fn confirm(&mut self, mut rate: u64, mut limit: SearchLimit) -> Result<Option<RateFound>, E> {
        let step = ((rate as f64 * self.bounds.precision) as u64).max(1);
        let mut steps_down = 0;
        // What was sent in the trials since the last loss, all of it kept; in how many of them it was the rate, and in
        // how many of the last ones it was not.
        let (mut row, mut held, mut shorts) = (Vec::new(), 0, 0);
        while rate > 0 {
            match self.trial(rate)? {
                TrialVerdict::Interrupted => return Ok(None),
                TrialVerdict::Kept => {
                    row.push(rate);
                    (held, shorts) = (held + 1, 0);
                }
                TrialVerdict::Short { sent, kept: true } => {
                    row.push(sent);
                    shorts += 1;
                }
                TrialVerdict::Lost | TrialVerdict::Short { kept: false, .. } => {
                    let length = step.saturating_mul(1 << (steps_down / STEPS_OF_ONE_LENGTH).min(32));
                    (rate, limit) = (rate.saturating_sub(length), SearchLimit::Pipeline);
                    steps_down += 1;
                    (row, held, shorts) = (Vec::new(), 0, 0);
                }
            }
            if held == REPETITIONS {
                return Ok(Some(RateFound { rate, limit, repetitions: REPETITIONS }));
            }
            if shorts == SHORTS_MAX {
                row.sort_unstable();
                return Ok(Some(senders(row[row.len() - REPETITIONS])));
            }
        }
        Ok(Some(nothing()))
    }
}

fn nothing() -> RateFound {
    RateFound { rate: 0, limit: SearchLimit::Nothing, repetitions: 0 }
}

/// The answer where the sender could not do more: what it sent often enough, all of it kept.
fn senders(rate: u64) -> RateFound {
    RateFound { rate, limit: SearchLimit::Sender, repetitions: if rate > 0 { REPETITIONS } else { 0 } }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
