//! What is advised for rows that are made up: each has three rounds whose figures are chosen.

use super::*;
use crate::ladder::trial::LadderTrial;

/// A row whose rounds cost so many ns each, with so many of 1,000 lost in every one.
fn costing<const ROUNDS: usize>(step: LadderStep, each_ns: [u64; ROUNDS], lost: u64) -> StepRow {
    rounds_of(step, each_ns.map(|ns| (ns, lost)))
}

/// A row of one round for each pair of a cost and a loss.
fn rounds_of<const ROUNDS: usize>(step: LadderStep, rounds: [(u64, u64); ROUNDS]) -> StepRow {
    let trial = |(each_ns, lost): (u64, u64)| {
        let received = 1_000 - lost;
        LadderTrial {
            sent: 1_000,
            lanes: vec![received],
            dropped: lost,
            receiver_ns: each_ns * received,
            calls: 10,
            ..LadderTrial::default()
        }
    };
    StepRow::of(step, &rounds.map(trial))
}

fn made(step: LadderStep, each_ns: u64, lost: u64) -> StepRow {
    costing(step, [each_ns; 3], lost)
}

/// A quiet machine: a noise of 3 %.
fn quiet() -> Vec<StepRow> {
    vec![made(LadderStep::Pinned, 1000, 0), made(LadderStep::Again, 1010, 0)]
}

fn keys(rows: &[StepRow]) -> Vec<String> {
    advise(rows, None, 0).into_iter().map(|advice| format!("{} = {}", advice.key, advice.value)).collect()
}

fn with(mut base: Vec<StepRow>, rows: impl IntoIterator<Item = StepRow>) -> Vec<StepRow> {
    base.extend(rows);
    base
}

#[test]
fn the_cheapest_way_is_advised_and_the_ring_by_its_name() {
    let rows = with(quiet(), [made(LadderStep::Gather, 800, 0), made(LadderStep::IoUringGather, 700, 0)]);
    assert_eq!(keys(&rows), ["gather = \"1ms\"", "engine = \"io_uring\""]);
    let rows = with(quiet(), [made(LadderStep::Gather, 600, 0), made(LadderStep::IoUringGather, 700, 0)]);
    assert_eq!(keys(&rows), ["gather = \"1ms\""]);
    let rows = with(quiet(), [made(LadderStep::IoUring, 600, 0), made(LadderStep::IoUringGather, 700, 0)]);
    assert_eq!(keys(&rows), ["engine = \"io_uring\""]);
}

#[test]
fn what_goes_past_the_sockets_is_advised_with_what_it_goes_past() {
    let cables =
        [made(LadderStep::Gather, 800, 0), made(LadderStep::AfXdp, 300, 0), made(LadderStep::AfXdpGather, 100, 0)];
    let rows = with(quiet(), cables);
    assert_eq!(keys(&rows), ["gather = \"1ms\"", "engine = \"af_xdp\""]);
    assert!(advise(&rows, None, 0)[1].why.contains("firewall"));
    assert_eq!(keys(&with(quiet(), [made(LadderStep::AfXdp, 300, 0)])), ["engine = \"af_xdp\""]);
}

#[test]
fn a_ring_that_saves_4_percent_under_a_noise_of_6_is_not_advised() {
    let base = vec![made(LadderStep::Pinned, 1000, 0), made(LadderStep::Again, 1060, 0)];
    let rows = with(base, [made(LadderStep::Gather, 700, 0), made(LadderStep::IoUringGather, 672, 0)]);
    assert_eq!(noise(&rows).map(|noise| (noise * 100.0).round()), Some(6.0));
    assert_eq!(keys(&rows), ["gather = \"1ms\""], "gather saves 30 %, and the ring 4 % more");
}

#[test]
fn a_saving_has_to_be_twice_the_noise() {
    for (cost, advised) in [(935, true), (945, false)] {
        let rows = with(quiet(), [made(LadderStep::Gather, cost, 0), made(LadderStep::Gro, cost, 0)]);
        assert_eq!(keys(&rows).len(), if advised { 2 } else { 0 }, "{cost}: {:?}", keys(&rows));
    }
}

#[test]
fn the_noise_is_that_of_the_worst_pair_and_not_of_the_medians() {
    let base =
        vec![costing(LadderStep::Pinned, [1000, 1000, 1000], 0), costing(LadderStep::Again, [1000, 1000, 1300], 0)];
    assert_eq!(noise(&base).map(|noise| (noise * 100.0).round()), Some(30.0));
    let rows = with(base, [made(LadderStep::Gather, 600, 0)]);
    assert!(keys(&rows).is_empty(), "{:?}", keys(&rows));
}

#[test]
fn a_saving_that_one_round_contradicts_is_not_advised() {
    let rows =
        with(quiet(), [costing(LadderStep::Gather, [500, 500, 1000], 0), costing(LadderStep::Gro, [500, 500, 999], 0)]);
    assert_eq!(keys(&rows), ["gro = \"on\""]);
}

#[test]
fn one_round_or_a_step_that_was_not_taken_twice_tells_no_noise_and_nothing_is_advised() {
    let one = |step, ns| costing(step, [ns], 0);
    for rows in [
        vec![one(LadderStep::Pinned, 1000), one(LadderStep::Again, 1000), one(LadderStep::Gather, 100)],
        vec![made(LadderStep::Pinned, 1000, 0), made(LadderStep::Gather, 100, 0)],
        vec![made(LadderStep::Again, 1000, 0), made(LadderStep::Gather, 100, 0)],
    ] {
        assert_eq!((noise(&rows), keys(&rows).len()), (None, 0), "{rows:?}");
    }
}

#[test]
fn what_loses_more_is_not_advised() {
    let rows = with(quiet(), [made(LadderStep::Gather, 500, 5), made(LadderStep::Gro, 100, 5)]);
    assert!(keys(&rows).is_empty(), "{:?}", keys(&rows));
}

#[test]
fn more_lanes_are_advised_for_a_loss_and_not_for_cpu() {
    let losing = || vec![made(LadderStep::Pinned, 1000, 100), made(LadderStep::Again, 1000, 100)];
    let mut several = made(LadderStep::Reuseport, 1500, 0);
    several.lanes = vec![400, 300, 300];
    assert_eq!(keys(&with(losing(), [several, made(LadderStep::ByCpu, 900, 50)])), ["lanes = 3"]);
    let rows = with(losing(), [made(LadderStep::Reuseport, 1500, 50), made(LadderStep::ByCpu, 1500, 0)]);
    assert_eq!(keys(&rows), ["lanes = 1", "spread = \"cpu\""]);
    assert!(keys(&with(quiet(), [made(LadderStep::Reuseport, 500, 0)])).is_empty());
}

#[test]
fn a_loss_that_comes_and_goes_is_no_reason_for_more_lanes() {
    let once = rounds_of(LadderStep::Pinned, [(1000, 0), (1000, 300), (1000, 0)]);
    let rows = vec![once, made(LadderStep::Again, 1000, 0), made(LadderStep::Reuseport, 1000, 0)];
    assert!(keys(&rows).is_empty(), "{:?}", keys(&rows));
}

#[test]
fn a_clamped_buffer_names_the_kernel_setting() {
    let advice = advise(&[], Some(212_992), 16 << 20);
    assert_eq!((advice[0].key.as_str(), advice[0].value.as_str()), ("net.core.rmem_max", "16777216"));
}
