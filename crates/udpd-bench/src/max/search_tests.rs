//! The search against simulated pipelines and senders, whose limits are known, and which can be as unsteady as machines
//! are.

use super::*;

const BOUNDS: Bounds = Bounds { lowest: 10_000, highest: 10_000_000, precision: 0.01 };

/// What a pipeline that keeps every rate up to `pipeline` makes of a rate, with a sender that reaches `sender`.
fn verdict(rate: u64, pipeline: u64, sender: u64) -> TrialVerdict {
    match (rate <= sender, rate.min(sender) <= pipeline) {
        (true, true) => TrialVerdict::Kept,
        (true, false) => TrialVerdict::Lost,
        (false, kept) => TrialVerdict::Short { sent: sender, kept },
    }
}

fn simulate(pipeline: u64, sender: u64) -> (RateFound, Vec<u64>) {
    let mut asked = Vec::new();
    let found = search(BOUNDS, |rate| {
        asked.push(rate);
        Ok::<_, ()>(verdict(rate, pipeline, sender))
    });
    (found.expect("no trial fails"), asked)
}

#[test]
fn a_steady_limit_is_found_to_the_precision_and_held_three_times() {
    for limit in [10_000, 12_345, 99_999, 640_000, 3_141_592] {
        let (found, asked) = simulate(limit, u64::MAX);
        assert_eq!((found.limit, found.repetitions), (SearchLimit::Pipeline, 3), "{limit}");
        assert!(found.rate <= limit && found.rate as f64 >= limit as f64 * 0.985, "{limit}: {found:?}");
        assert!(asked.len() < 25, "{limit}: {} trials", asked.len());
        assert_eq!(asked[asked.len() - 3..], [found.rate; 3]);
    }
}

#[test]
fn a_sender_that_can_no_more_is_never_called_the_pipelines_limit() {
    for sender in [450_000, 38_000, 9_000, 1] {
        let (found, asked) = simulate(u64::MAX, sender);
        assert_eq!((found.rate, found.limit, found.repetitions), (sender, SearchLimit::Sender, 3));
        assert_eq!(asked[asked.len() - 3..], [*asked.last().expect("a trial"); 3], "it is given three chances");
    }
    assert_eq!(simulate(u64::MAX, 0).0, RateFound { rate: 0, limit: SearchLimit::Sender, repetitions: 0 });
}

#[test]
fn a_sender_that_is_short_while_the_answer_is_proved_confirms_only_what_it_sends() {
    // It keeps 2,500,000 a second for as long as the search goes upwards, and then no more than 38,000.
    let bounds = Bounds { highest: 2_500_000, ..BOUNDS };
    let mut has_kept_all = false;
    let found = search(bounds, |rate| {
        let sender = if has_kept_all { 38_000 } else { u64::MAX };
        has_kept_all |= rate == bounds.highest;
        Ok::<_, ()>(verdict(rate, u64::MAX, sender))
    });
    assert_eq!(found, Ok(RateFound { rate: 38_000, limit: SearchLimit::Sender, repetitions: 3 }));
}

#[test]
fn a_sender_that_is_short_now_and_then_is_asked_again_and_costs_no_precision() {
    for every in 2..7 {
        let mut trials = 0;
        let found = search(BOUNDS, |rate| {
            trials += 1;
            Ok::<_, ()>(verdict(rate, 640_000, if trials % every == 0 { 5_000 } else { u64::MAX }))
        })
        .expect("no trial fails");
        assert_eq!((found.limit, found.repetitions), (SearchLimit::Pipeline, 3), "every {every}: {found:?}");
        assert!((630_000..=640_000).contains(&found.rate), "every {every}: {found:?}");
    }
}

#[test]
fn a_loss_under_a_short_sender_is_no_proof_of_a_higher_rate() {
    // The pipeline loses from 300,000 on, and the sender never reaches more than 400,000.
    let (found, _) = simulate(300_000, 400_000);
    assert_eq!((found.limit, found.repetitions), (SearchLimit::Pipeline, 3));
    assert!((295_000..=300_000).contains(&found.rate), "{found:?}");
}

#[test]
fn the_highest_rate_that_was_asked_for_ends_the_search() {
    let (found, asked) = simulate(u64::MAX, u64::MAX);
    assert_eq!((found.rate, found.limit), (BOUNDS.highest, SearchLimit::Asked));
    assert!(asked.iter().all(|rate| *rate <= BOUNDS.highest));
}

#[test]
fn a_pipeline_that_keeps_nothing_has_no_rate() {
    assert_eq!(simulate(9_999, u64::MAX).0, RateFound { rate: 0, limit: SearchLimit::Nothing, repetitions: 0 });
}

#[test]
fn a_rate_that_holds_only_now_and_then_is_lowered_until_it_holds() {
    // Above 500,000 every third trial fails.
    let mut trials = 0;
    let found = search(BOUNDS, |rate| {
        trials += 1;
        let fails = rate > 600_000 || (rate > 500_000 && trials % 3 == 0);
        Ok::<_, ()>(if fails { TrialVerdict::Lost } else { TrialVerdict::Kept })
    })
    .expect("no trial fails");
    assert_eq!((found.limit, found.repetitions), (SearchLimit::Pipeline, 3));
    assert!((450_000..=500_000).contains(&found.rate), "{found:?}");
}

#[test]
fn an_interrupted_search_tells_what_was_kept() {
    let found =
        search(BOUNDS, |rate| Ok::<_, ()>(if rate < 100_000 { TrialVerdict::Kept } else { TrialVerdict::Interrupted }));
    assert_eq!(found.map(|found| (found.rate, found.limit)), Ok((80_000, SearchLimit::Interrupted)));
    // Once more while it goes down, where the rate it has come to was never tried, and the highest that was kept has
    // lost since.
    let mut trials = Vec::new();
    let found = search(Bounds { highest: 40_000, ..BOUNDS }, |rate| {
        trials.push(rate);
        Ok::<_, ()>(match trials.len() {
            1..=3 => TrialVerdict::Kept,
            4 => TrialVerdict::Lost,
            _ => TrialVerdict::Interrupted,
        })
    });
    assert_eq!(found.map(|found| (found.rate, found.limit)), Ok((20_000, SearchLimit::Interrupted)), "{trials:?}");
}

/// Random numbers that are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// `rate`, or up to so many percent less.
    fn shaken(&mut self, rate: u64, percent: u64) -> u64 {
        rate - rate / 100 * self.below(percent + 1)
    }
}

/// A trial as a machine made it.
#[derive(Debug, Clone, Copy)]
struct Made {
    sent: u64,
    kept: bool,
}

#[test]
fn whatever_pipeline_and_sender_do_the_answer_was_really_sent_and_kept_as_often_as_it_says() {
    let mut noise = Noise(11);
    for run in 0..20_000 {
        let pipeline = 1 << noise.below(26);
        let pipeline = pipeline + noise.below(pipeline);
        let sender = 1 << noise.below(26);
        let sender = sender + noise.below(sender);
        let (shake_pipeline, shake_sender) = (noise.below(40), noise.below(40));
        let (disturbed, interrupted) = (noise.below(60), noise.below(400));
        let bounds = Bounds { highest: 10_000 + noise.below(20_000_000), ..BOUNDS };
        let mut made: Vec<Made> = Vec::new();
        let found = search(bounds, |rate| {
            assert!(rate > 0 && rate <= bounds.highest, "run {run} asks for {rate}");
            if interrupted > 200 && made.len() as u64 > interrupted - 200 {
                return Ok(TrialVerdict::Interrupted);
            }
            let mut able = noise.shaken(sender, shake_sender);
            if noise.below(100) < disturbed {
                able = noise.below(able);
            }
            let sent = rate.min(able);
            let kept = sent <= noise.shaken(pipeline, shake_pipeline);
            made.push(Made { sent, kept });
            Ok::<_, ()>(match (sent == rate, kept) {
                (true, true) => TrialVerdict::Kept,
                (true, false) => TrialVerdict::Lost,
                (false, kept) => TrialVerdict::Short { sent, kept },
            })
        })
        .expect("no trial fails");
        let in_a_row =
            made.iter().rev().take_while(|trial| trial.kept).filter(|trial| trial.sent >= found.rate).count();
        match found.limit {
            SearchLimit::Interrupted => {
                let proved = made.iter().any(|trial| trial.kept && trial.sent >= found.rate);
                assert!(found.rate == 0 || proved, "run {run}: {found:?} of {made:?}");
            }
            SearchLimit::Nothing => {
                assert!(found.rate == 0 && made.iter().any(|trial| !trial.kept), "run {run}: {made:?}")
            }
            _ if found.rate == 0 => assert_eq!((found.limit, found.repetitions), (SearchLimit::Sender, 0), "run {run}"),
            _ => assert!(found.repetitions == 3 && in_a_row >= 3, "run {run}: {found:?} of {made:?}"),
        }
        assert!(made.len() < 250, "run {run}: {} trials", made.len());
    }
}
