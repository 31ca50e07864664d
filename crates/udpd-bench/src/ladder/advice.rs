//! What to set on this machine, as keys of the configuration, each with the figure that supports it.
//!
//! No advice inside the noise. One step is taken twice in every round: the distance between its figures is how far any
//! two figures can be apart by chance. A saving counts when it is more than twice that, and when the worst round of the
//! cheaper way still beats the best round of the dearer one. With a single round the noise is unknown, and nothing is
//! advised that needs a figure.

use serde::Serialize;

use super::measure::{Round, StepRow};
use super::step::LadderStep;

/// The least noise that is assumed of any machine.
const NOISE_MIN: f64 = 0.03;

/// A saving has to be this many times the noise.
const CLEAR: f64 = 2.0;

/// With fewer rounds the noise is unknown.
const ROUNDS_MIN: usize = 2;

/// A smaller difference in loss decides nothing.
const LOSS_MARGIN_PERCENT: f64 = 0.01;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LadderAdvice {
    /// The key, or the name of a kernel setting.
    pub key: String,
    pub value: String,
    pub why: String,
}

/// By how much the step that is taken twice differs from itself: the largest difference of a pair in one round, or of
/// the medians; never less than [`NOISE_MIN`]. `None` when it was not taken twice in [`ROUNDS_MIN`] rounds.
pub(super) fn noise(rows: &[StepRow]) -> Option<f64> {
    let (once, again) = (row(rows, LadderStep::Pinned)?, row(rows, LadderStep::Again)?);
    let difference = |one: Option<f64>, other: Option<f64>| Some((other? / one.filter(|ns| *ns > 0.0)? - 1.0).abs());
    let pairs: Vec<f64> = once
        .each_round
        .iter()
        .zip(&again.each_round)
        .filter_map(|(one, other)| difference(one.receiver_ns, other.receiver_ns))
        .collect();
    if pairs.len() < ROUNDS_MIN {
        return None;
    }
    let medians = difference(once.receiver_ns, again.receiver_ns);
    Some(pairs.into_iter().chain(medians).fold(NOISE_MIN, f64::max))
}

/// What to set. `granted_bytes` is what the kernel granted where it clamped a receive buffer.
pub(super) fn advise(rows: &[StepRow], granted_bytes: Option<usize>, asked_bytes: usize) -> Vec<LadderAdvice> {
    let mut advice = Vec::new();
    if let Some(noise) = noise(rows) {
        advice.extend(engine_and_gather(rows, noise));
        advice.extend(gro(rows, noise));
        advice.extend(lanes(rows));
    }
    if let Some(granted) = granted_bytes {
        advice.push(LadderAdvice {
            key: "net.core.rmem_max".to_owned(),
            value: asked_bytes.to_string(),
            why: format!("the kernel granted {granted} bytes of receive buffer, less than requested"),
        });
    }
    advice
}

fn row(rows: &[StepRow], step: LadderStep) -> Option<&StepRow> {
    rows.iter().find(|row| row.step == step && row.received > 0)
}

/// The rounds of a step; those of the step that is taken twice are twice as many.
fn rounds(rows: &[StepRow], step: LadderStep) -> impl Iterator<Item = &Round> {
    let twin = (step == LadderStep::Pinned).then_some(LadderStep::Again);
    rows.iter().filter(move |row| row.step == step || Some(row.step) == twin).flat_map(|row| &row.each_round)
}

/// By which share `step` is cheaper than `base`, when that is beyond the noise and it does not lose more.
fn saving(rows: &[StepRow], base: LadderStep, step: LadderStep, noise: f64) -> Option<f64> {
    let (dear, cheap) = (row(rows, base)?, row(rows, step)?);
    let share = 1.0 - cheap.receiver_ns? / dear.receiver_ns?;
    let loses_more = cheap.loss_percent() > dear.loss_percent() + LOSS_MARGIN_PERCENT;
    let costs = |step| rounds(rows, step).filter_map(|round| round.receiver_ns);
    let is_always_cheaper = costs(step).fold(0.0, f64::max) < costs(base).fold(f64::INFINITY, f64::min);
    (share > CLEAR * noise && is_always_cheaper && !loses_more).then_some(share)
}

/// Whether `step` lost less than `base` in every round.
fn always_loses_less(rows: &[StepRow], base: LadderStep, step: LadderStep) -> bool {
    let losses = |step| rounds(rows, step).map(|round| round.loss_percent);
    let most = losses(step).fold(f64::NEG_INFINITY, f64::max);
    most + LOSS_MARGIN_PERCENT < losses(base).fold(f64::INFINITY, f64::min)
}

/// The simplest way, unless another one is clearly cheaper.
fn engine_and_gather(rows: &[StepRow], noise: f64) -> Vec<LadderAdvice> {
    let mut best = LadderStep::Pinned;
    for step in
        [LadderStep::Gather, LadderStep::IoUring, LadderStep::IoUringGather, LadderStep::AfXdp, LadderStep::AfXdpGather]
    {
        if saving(rows, best, step, noise).is_some() && saving(rows, LadderStep::Pinned, step, noise).is_some() {
            best = step;
        }
    }
    let Some(share) = saving(rows, LadderStep::Pinned, best, noise) else { return Vec::new() };
    let percent = share * 100.0;
    let mut advice = Vec::new();
    if matches!(best, LadderStep::Gather | LadderStep::IoUringGather | LadderStep::AfXdpGather) {
        let why = format!("saves {percent:.0} % of the receivers' CPU, and costs up to 1 ms of latency");
        advice.push(LadderAdvice { key: "gather".to_owned(), value: "\"1ms\"".to_owned(), why });
    }
    let of_all = format!("saves {percent:.0} % of the receivers' CPU");
    let engine = match best {
        LadderStep::AfXdp | LadderStep::AfXdpGather => {
            let why = format!("{of_all}, and goes past the host's firewall; read docs/af_xdp.md first");
            Some(("\"af_xdp\"", why))
        }
        LadderStep::IoUring => Some(("\"io_uring\"", of_all)),
        LadderStep::IoUringGather => {
            let more = saving(rows, LadderStep::Gather, best, noise);
            let why = more.map(|more| format!("saves {:.0} % more than recvmmsg does with gather", more * 100.0));
            Some(("\"io_uring\"", why.unwrap_or(of_all)))
        }
        _ => None,
    };
    let engine = engine.map(|(value, why)| LadderAdvice { key: "engine".to_owned(), value: value.to_owned(), why });
    advice.into_iter().chain(engine).collect()
}

fn gro(rows: &[StepRow], noise: f64) -> Option<LadderAdvice> {
    let share = saving(rows, LadderStep::Pinned, LadderStep::Gro, noise)?;
    let why = format!(
        "saves {:.0} % here, where the sender makes trains; only for senders of equal datagrams in runs, and slots \
         are then 64 KiB",
        share * 100.0
    );
    Some(LadderAdvice { key: "gro".to_owned(), value: "\"on\"".to_owned(), why })
}

/// More lanes are for a rate that one does not keep up with. They cost CPU, so they are not advised to save any.
fn lanes(rows: &[StepRow]) -> Vec<LadderAdvice> {
    let helps = |step: &LadderStep| row(rows, *step).is_some() && always_loses_less(rows, LadderStep::Pinned, *step);
    let several: Vec<LadderStep> = [LadderStep::Reuseport, LadderStep::ByCpu].into_iter().filter(helps).collect();
    let (step, is_by_cpu) = match several[..] {
        [flow, by_cpu] if always_loses_less(rows, flow, by_cpu) => (by_cpu, true),
        [LadderStep::ByCpu] => (LadderStep::ByCpu, true),
        [first, ..] => (first, false),
        [] => return Vec::new(),
    };
    let loss = |step| row(rows, step).map_or(0.0, StepRow::loss_percent);
    let lanes = row(rows, step).map_or(2, |row| row.lanes.len());
    let why = format!("one lane lost {:.2} % of this rate, {lanes} lost {:.2} %", loss(LadderStep::Pinned), loss(step));
    let mut advice = vec![LadderAdvice { key: "lanes".to_owned(), value: lanes.to_string(), why }];
    if is_by_cpu {
        let why = "lost less than the spread by flow".to_owned();
        advice.push(LadderAdvice { key: "spread".to_owned(), value: "\"cpu\"".to_owned(), why });
    }
    advice
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
