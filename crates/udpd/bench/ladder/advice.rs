//! What this machine should set, as keys of the configuration, each with the figure that speaks for it.
//!
//! Nothing is advised that did not save more than the machine's own noise, and nothing that lost more datagrams: the noise
//! is how far the step that is taken twice differs from itself.

use std::cmp::Ordering;

use serde::Serialize;

use super::row::Row;
use super::step::Step;

/// No machine is quieter than this.
const NOISE_MIN: f64 = 0.03;

/// Less than this share is no loss to choose by.
const LOSS_MARGIN_PERCENT: f64 = 0.01;

/// A key, what to write there, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The key, or the name of a kernel setting.
    pub key: String,
    /// What to write there.
    pub value: String,
    /// The figure behind it.
    pub why: String,
}

/// By how much a step that is taken twice differs from itself; never less than [`NOISE_MIN`].
pub(super) fn noise(rows: &[Row]) -> f64 {
    match (cost(rows, Step::Pinned), cost(rows, Step::Again)) {
        (Some(once), Some(again)) if once > 0.0 => (again / once - 1.0).abs().max(NOISE_MIN),
        _ => NOISE_MIN,
    }
}

/// What to set. `granted_bytes` is what the kernel granted where it clamped a receive buffer.
pub(super) fn advise(rows: &[Row], granted_bytes: Option<usize>, asked_bytes: usize) -> Vec<Advice> {
    let noise = noise(rows);
    let mut advice = Vec::new();
    advice.extend(engine_and_gather(rows, noise));
    advice.extend(gro(rows, noise));
    advice.extend(lanes(rows));
    if let Some(granted) = granted_bytes {
        advice.push(Advice {
            key: "net.core.rmem_max".to_owned(),
            value: asked_bytes.to_string(),
            why: format!("the kernel granted {granted} bytes of receive buffer, less than was asked for"),
        });
    }
    advice
}

fn row(rows: &[Row], step: Step) -> Option<&Row> {
    rows.iter().find(|row| row.step == step && row.received > 0)
}

fn cost(rows: &[Row], step: Step) -> Option<f64> {
    row(rows, step)?.receiver_ns
}

/// By which share `step` is cheaper than `base`, when that is more than noise and it does not lose more.
fn saving(rows: &[Row], base: Step, step: Step, noise: f64) -> Option<f64> {
    let loses_more = row(rows, step)?.loss_percent() > row(rows, base)?.loss_percent() + LOSS_MARGIN_PERCENT;
    let share = 1.0 - cost(rows, step)? / cost(rows, base)?;
    (share > noise && !loses_more).then_some(share)
}

fn engine_and_gather(rows: &[Row], noise: f64) -> Vec<Advice> {
    let found = [Step::IoUring, Step::Gather, Step::IoUringGather]
        .into_iter()
        .filter_map(|step| Some((step, saving(rows, Step::Pinned, step, noise)?)))
        .max_by(|(_, one), (_, other)| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    let Some((step, share)) = found else { return Vec::new() };
    let percent = share * 100.0;
    let mut advice = Vec::new();
    if step != Step::IoUring {
        let why = format!("saves {percent:.0} % of the receivers' CPU, and costs up to 1 ms of latency");
        advice.push(Advice { key: "gather".to_owned(), value: "\"1ms\"".to_owned(), why });
    }
    if step != Step::Gather {
        let why = match cost(rows, Step::Gather).zip(cost(rows, step)) {
            Some((calls, ring)) if step == Step::IoUringGather => {
                format!("saves {:.0} % more than recvmmsg does with gather", (1.0 - ring / calls) * 100.0)
            }
            _ => format!("saves {percent:.0} % of the receivers' CPU"),
        };
        advice.push(Advice { key: "engine".to_owned(), value: "\"io_uring\"".to_owned(), why });
    }
    advice
}

fn gro(rows: &[Row], noise: f64) -> Option<Advice> {
    let share = saving(rows, Step::Pinned, Step::Gro, noise)?;
    let why = format!(
        "saves {:.0} % here, where the sender makes trains; only for senders of equal datagrams in runs, and slots are then 64 KiB",
        share * 100.0
    );
    Some(Advice { key: "gro".to_owned(), value: "\"on\"".to_owned(), why })
}

/// More lanes are for a rate that one does not keep up with. They cost CPU, so they are not advised to save any.
fn lanes(rows: &[Row]) -> Vec<Advice> {
    let loss = |step| row(rows, step).map(Row::loss_percent);
    let Some(single) = loss(Step::Pinned) else { return Vec::new() };
    let several = [Step::Reuseport, Step::ByCpu].into_iter().filter_map(|step| Some((step, loss(step)?)));
    let best = several.min_by(|(_, one), (_, other)| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    match best {
        Some((step, lost)) if lost + LOSS_MARGIN_PERCENT < single => {
            let lanes = row(rows, step).map_or(2, |row| row.lanes.len());
            let why = format!("one lane lost {single:.2} % of this rate, {lanes} lost {lost:.2} %");
            let mut advice = vec![Advice { key: "lanes".to_owned(), value: lanes.to_string(), why }];
            if step == Step::ByCpu {
                let why = "lost less than the spread by flow".to_owned();
                advice.push(Advice { key: "spread".to_owned(), value: "\"cpu\"".to_owned(), why });
            }
            advice
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ladder::trial::Trial;

    /// A row that costs so many ns each, with so many of 1,000 lost.
    fn made(step: Step, each_ns: u64, lost: u64) -> Row {
        let received = 1_000 - lost;
        let trial = Trial {
            sent: 1_000,
            lanes: vec![received],
            dropped: lost,
            receiver_ns: each_ns * received,
            calls: 10,
            ..Trial::default()
        };
        Row::of(step, &[trial])
    }

    fn keys(rows: &[Row]) -> Vec<String> {
        advise(rows, None, 0).into_iter().map(|advice| format!("{} = {}", advice.key, advice.value)).collect()
    }

    #[test]
    fn the_cheapest_way_is_advised_and_the_ring_by_its_name() {
        let base = [made(Step::Pinned, 1000, 0), made(Step::Again, 1010, 0)];
        let rows = [&base[..], &[made(Step::Gather, 800, 0), made(Step::IoUringGather, 700, 0)]].concat();
        assert_eq!(keys(&rows), ["gather = \"1ms\"", "engine = \"io_uring\""]);
        let rows = [&base[..], &[made(Step::Gather, 600, 0), made(Step::IoUringGather, 700, 0)]].concat();
        assert_eq!(keys(&rows), ["gather = \"1ms\""]);
        let rows = [&base[..], &[made(Step::IoUring, 600, 0), made(Step::IoUringGather, 700, 0)]].concat();
        assert_eq!(keys(&rows), ["engine = \"io_uring\""]);
    }

    #[test]
    fn what_saves_no_more_than_noise_or_loses_more_is_not_advised() {
        let rows = [made(Step::Pinned, 1000, 0), made(Step::Again, 1200, 0), made(Step::Gather, 850, 0)];
        assert!(keys(&rows).is_empty(), "{:?}", keys(&rows));
        let rows = [made(Step::Pinned, 1000, 0), made(Step::Gather, 500, 5), made(Step::Gro, 100, 5)];
        assert!(keys(&rows).is_empty(), "{:?}", keys(&rows));
    }

    #[test]
    fn more_lanes_are_advised_for_a_loss_and_not_for_cpu() {
        let mut several = made(Step::Reuseport, 1500, 0);
        several.lanes = vec![400, 300, 300];
        let rows = [made(Step::Pinned, 1000, 100), several, made(Step::ByCpu, 900, 50)];
        assert_eq!(keys(&rows), ["lanes = 3"]);
        let rows = [made(Step::Pinned, 1000, 0), made(Step::Reuseport, 500, 0)];
        assert!(keys(&rows).is_empty());
    }

    #[test]
    fn a_clamped_buffer_names_the_kernel_setting() {
        let advice = advise(&[], Some(212_992), 16 << 20);
        assert_eq!((advice[0].key.as_str(), advice[0].value.as_str()), ("net.core.rmem_max", "16777216"));
    }
}
