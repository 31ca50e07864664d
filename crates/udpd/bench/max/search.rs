//! The search for the highest rate, after RFC 2544: double until something is lost, halve the distance, and then prove the
//! answer by repetition. Pure: what a trial is, is for the caller to know.

use serde::Serialize;

/// How often the answer has to hold.
pub(super) const REPETITIONS: usize = 3;

/// After so many steps down the next ones are twice as long: an unsteady pipeline is not worth a hundred trials.
const STEPS_OF_ONE_LENGTH: u32 = 4;

/// What a trial at some rate came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// No more was lost than is allowed.
    Kept,
    /// More was.
    Lost,
    /// The sender could not keep the rate; at this one, which it reached, no more was lost than is allowed.
    SenderShort(u64),
    /// Somebody wants an end.
    Interrupted,
}

/// What ended the search upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The pipeline lost datagrams above this rate.
    Pipeline,
    /// The sender could not offer more: the pipeline's own limit is higher, nobody knows by how much.
    Sender,
    /// The highest rate that was asked for was kept.
    Asked,
    /// Even the lowest rate lost datagrams.
    Nothing,
    /// Somebody ended the search: the rate was kept, and a higher one may be.
    Interrupted,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Datagrams a second; 0 with [`Limit::Nothing`].
    pub(super) rate: u64,
    /// Why not more.
    pub(super) limit: Limit,
    /// How often the rate was kept in a row at the end.
    pub(super) repetitions: usize,
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    /// Where to begin.
    pub(super) lowest: u64,
    /// Where to end.
    pub(super) highest: u64,
    /// How exact the answer has to be, as a share of it.
    pub(super) precision: f64,
}

/// Searches. `trial` gets a rate and tells what came of it.
pub(super) fn search<E>(bounds: Bounds, mut trial: impl FnMut(u64) -> Result<Verdict, E>) -> Result<Found, E> {
    let found = |rate, limit| Found { rate, limit, repetitions: 0 };
    let (mut kept, mut lost, mut rate) = (0, None, bounds.lowest);
    let mut limit = Limit::Pipeline;
    // Upwards, until something ends it.
    while lost.is_none() {
        match trial(rate)? {
            Verdict::Kept => kept = rate,
            Verdict::Lost => lost = Some(rate),
            Verdict::SenderShort(reached) => {
                (kept, limit) = (kept.max(reached), Limit::Sender);
                break;
            }
            Verdict::Interrupted => return Ok(found(kept, Limit::Interrupted)),
        }
        if kept == bounds.highest {
            limit = Limit::Asked;
            break;
        }
        rate = rate.saturating_mul(2).min(bounds.highest);
    }
    if kept == 0 {
        return Ok(found(0, Limit::Nothing));
    }
    // Inwards, between the last that was kept and the first that was not.
    while let Some(high) = lost.filter(|high| (high - kept) as f64 > (kept as f64 * bounds.precision).max(1.0)) {
        let middle = kept.midpoint(high);
        match trial(middle)? {
            Verdict::Kept => kept = middle,
            Verdict::Lost => lost = Some(middle),
            // It has kept a higher rate before: it was disturbed, and what it reached is no answer.
            Verdict::SenderShort(_) => lost = Some(middle),
            Verdict::Interrupted => return Ok(found(kept, Limit::Interrupted)),
        }
    }
    confirm(kept, limit, bounds, &mut trial)
}

/// Repeats the trial until it has held often enough in a row, going down by the precision whenever it has not.
fn confirm<E>(
    mut rate: u64,
    mut limit: Limit,
    bounds: Bounds,
    trial: &mut impl FnMut(u64) -> Result<Verdict, E>,
) -> Result<Found, E> {
    let step = ((rate as f64 * bounds.precision) as u64).max(1);
    let (mut repetitions, mut steps_down) = (0, 0);
    while repetitions < REPETITIONS && rate > 0 {
        match trial(rate)? {
            Verdict::Interrupted => return Ok(Found { rate, limit: Limit::Interrupted, repetitions }),
            // A sender at its limit reaches a little less each time.
            Verdict::Kept | Verdict::SenderShort(_) => repetitions += 1,
            Verdict::Lost => {
                let length = step.saturating_mul(1 << (steps_down / STEPS_OF_ONE_LENGTH).min(32));
                (rate, repetitions, limit) = (rate.saturating_sub(length), 0, Limit::Pipeline);
                steps_down += 1;
            }
        }
    }
    Ok(Found { rate, limit: if rate == 0 { Limit::Nothing } else { limit }, repetitions })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { lowest: 10_000, highest: 10_000_000, precision: 0.01 };

    /// Searches a pipeline that keeps every rate up to `pipeline`, with a sender that reaches `sender`.
    fn simulate(pipeline: u64, sender: u64) -> (Found, Vec<u64>) {
        let mut asked = Vec::new();
        let found = search(BOUNDS, |rate| {
            asked.push(rate);
            Ok::<_, ()>(match (rate.min(sender) <= pipeline, rate <= sender) {
                (true, true) => Verdict::Kept,
                (true, false) => Verdict::SenderShort(sender),
                (false, _) => Verdict::Lost,
            })
        });
        (found.expect("no trial fails"), asked)
    }

    #[test]
    fn a_steady_limit_is_found_to_the_precision_and_held_three_times() {
        for limit in [10_000, 12_345, 99_999, 640_000, 3_141_592] {
            let (found, asked) = simulate(limit, u64::MAX);
            assert_eq!((found.limit, found.repetitions), (Limit::Pipeline, 3), "{limit}");
            assert!(found.rate <= limit && found.rate as f64 >= limit as f64 * 0.985, "{limit}: {found:?}");
            assert!(asked.len() < 25, "{limit}: {} trials", asked.len());
            assert_eq!(asked[asked.len() - 3..], [found.rate; 3]);
        }
    }

    #[test]
    fn a_sender_that_can_no_more_is_never_called_the_pipelines_limit() {
        let (found, _) = simulate(u64::MAX, 450_000);
        assert_eq!((found.rate, found.limit, found.repetitions), (450_000, Limit::Sender, 3));
    }

    #[test]
    fn the_highest_rate_that_was_asked_for_ends_the_search() {
        let (found, asked) = simulate(u64::MAX, u64::MAX);
        assert_eq!((found.rate, found.limit), (BOUNDS.highest, Limit::Asked));
        assert!(asked.iter().all(|rate| *rate <= BOUNDS.highest));
    }

    #[test]
    fn a_pipeline_that_keeps_nothing_has_no_rate() {
        assert_eq!(simulate(9_999, u64::MAX).0, Found { rate: 0, limit: Limit::Nothing, repetitions: 0 });
    }

    #[test]
    fn a_rate_that_holds_only_now_and_then_is_lowered_until_it_holds() {
        // Above 500,000 every third trial fails.
        let mut trials = 0;
        let found = search(BOUNDS, |rate| {
            trials += 1;
            let fails = rate > 600_000 || (rate > 500_000 && trials % 3 == 0);
            Ok::<_, ()>(if fails { Verdict::Lost } else { Verdict::Kept })
        })
        .expect("no trial fails");
        assert_eq!((found.limit, found.repetitions), (Limit::Pipeline, 3));
        assert!((450_000..=500_000).contains(&found.rate), "{found:?}");
    }

    #[test]
    fn an_interrupted_search_tells_what_was_kept() {
        let found =
            search(BOUNDS, |rate| Ok::<_, ()>(if rate < 100_000 { Verdict::Kept } else { Verdict::Interrupted }));
        assert_eq!(found.map(|found| (found.rate, found.limit)), Ok((80_000, Limit::Interrupted)));
    }
}
