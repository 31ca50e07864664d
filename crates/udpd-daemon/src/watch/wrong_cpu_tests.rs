//! What is said of arrivals on wrong cores, when, and how often.

use super::*;

/// The counts of a lane by queue and core; no queue is none that is known.
type Counts<'a> = &'a [(Option<u32>, usize, u64)];

/// A reading of a listener with these lanes.
fn reading(lanes: &[Counts<'_>]) -> Snapshot {
    let mut snapshot = udpd_base::ledger::testing::example();
    let example = snapshot.listeners[0].lanes[0].clone();
    let lane = |(number, counts): (usize, &Counts<'_>)| {
        let (mut arrived_on, mut by_queue) = (BTreeMap::new(), BTreeMap::<u32, BTreeMap<usize, u64>>::new());
        for &(queue, core, count) in *counts {
            *arrived_on.entry(core).or_default() += count;
            if let Some(queue) = queue {
                by_queue.entry(queue).or_default().insert(core, count);
            }
        }
        LaneSnapshot { lane: number, arrived_on: Some(arrived_on), arrived_by_queue: Some(by_queue), ..example.clone() }
    };
    snapshot.listeners[0].lanes = lanes.iter().enumerate().map(lane).collect();
    snapshot
}

/// A card with two queues, planned on the cores 2 and 3, whose core chooses the lane.
fn steered() -> ArrivalWatch {
    let mut watch = ArrivalWatch::default();
    let cores_of_queue: BTreeMap<u32, Vec<usize>> = [(0, vec![2]), (1, vec![3])].into();
    for cores in [vec![2, 0], vec![3, 1]] {
        let expected = cores[..1].to_vec();
        let intake = Intake { expected, cores, cores_of_queue: cores_of_queue.clone(), ..Intake::default() };
        watch.add(0, "eth0".to_owned(), intake);
    }
    watch
}

/// A lane that should get its datagrams on the cores 2 and 3, of an interface that is not steered.
fn unsteered() -> ArrivalWatch {
    let mut watch = ArrivalWatch::default();
    watch.add(0, String::new(), Intake { expected: vec![2, 3], cores: vec![2, 3], ..Intake::default() });
    watch
}

fn look(watch: &mut ArrivalWatch, lanes: &[Counts<'_>]) -> Vec<String> {
    let why = |interface: &str, asked: CauseQuery, wanted: &[usize]| {
        let fact = format!("{interface} {} {wanted:?}", asked.queue);
        Why { fact, cure: "do this".to_owned() }
    };
    watch.compare(&reading(lanes), why)
}

#[test]
fn an_interrupt_that_was_moved_is_named_with_its_queue_its_cause_and_the_shares_of_the_lanes() {
    let mut watch = steered();
    assert!(look(&mut watch, &[&[(Some(0), 2, 1000)], &[(Some(1), 3, 1000)]]).is_empty(), "all as planned");
    // Queue 1 now fires on the core of queue 0, and lane 1 starves.
    for count in [300, 600] {
        assert!(
            look(&mut watch, &[&[(Some(0), 2, 1000 + count), (Some(1), 2, count)], &[(Some(1), 3, 1000)]]).is_empty()
        );
    }
    let lines = look(&mut watch, &[&[(Some(0), 2, 1900), (Some(1), 2, 900)], &[(Some(1), 3, 1000)]]);
    let said = "listener syslog: datagrams of eth0 arrive on other cores than planned (wrong_cpu): queue 1: 900 on \
                core 2 instead of 3: eth0 1 [3]; do this; in the last second lane 0 got 600 where its queues sent \
                300; lane 1 got 0 where its queues sent 300; logged again only after 60 s without one";
    assert_eq!(lines, [said]);
    for count in 901..1000 {
        let lanes: [Counts<'_>; 2] = [&[(Some(0), 2, 1900), (Some(1), 2, count)], &[(Some(1), 3, 1000)]];
        assert!(look(&mut watch, &lanes).is_empty(), "it goes on and nothing is said again");
    }
}

#[test]
fn the_last_datagrams_on_the_old_core_after_an_apply_are_no_drift() {
    let mut watch = steered();
    for (old, new) in [(0, 0), (5, 0), (28, 10), (28, 500), (28, 900)] {
        let lanes: [Counts<'_>; 2] = [&[(Some(0), 2, new), (Some(1), 0, old)], &[(Some(1), 3, new)]];
        assert!(look(&mut watch, &lanes).is_empty(), "{old} on the old core, {new} on the new one");
    }
}

#[test]
fn a_slow_queue_is_found_out_too_though_most_readings_have_none_of_its_datagrams() {
    let mut watch = steered();
    let mut lines = Vec::new();
    for count in [1, 1, 1, 2, 2, 2, 3] {
        assert!(lines.is_empty(), "{lines:?}");
        lines = look(&mut watch, &[&[(Some(1), 2, count)], &[]]);
    }
    assert!(lines.len() == 1 && lines[0].contains("queue 1: 3 on core 2 instead of 3"), "{lines:?}");
}

#[test]
fn queues_that_drift_together_are_one_line_with_each_cure_once() {
    let mut watch = steered();
    let lines: Vec<String> =
        (1..4).flat_map(|count| look(&mut watch, &[&[(Some(0), 1, count), (Some(1), 1, count)], &[]])).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("queue 0: 3 on core 1 instead of 2") && lines[0].contains("queue 1: 3 on core 1"));
    assert_eq!(lines[0].matches("do this").count(), 1, "{lines:?}");
}

#[test]
fn where_nobody_steers_a_drift_is_said_at_once_with_the_core_found_and_the_cores_wanted() {
    let mut watch = unsteered();
    assert!(look(&mut watch, &[&[(None, 2, 100), (None, 3, 100)]]).is_empty(), "all as planned");
    let lines = look(&mut watch, &[&[(None, 0, 5), (None, 2, 100), (None, 5, 20)]]);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("listener syslog, lane 0: 25 datagrams arrived on core 5 instead of 2-3"),
        "{lines:?}"
    );
    for count in 21..200 {
        assert!(look(&mut watch, &[&[(None, 0, 5), (None, 5, count)]]).is_empty(), "nothing is said again");
    }
}

#[test]
fn a_drift_that_was_over_is_said_again_about_the_core_of_its_second_time() {
    let mut watch = unsteered();
    assert_eq!(look(&mut watch, &[&[(None, 5, 100)]]).len(), 1);
    for _ in 1..QUIET_READINGS {
        assert!(look(&mut watch, &[&[(None, 5, 100)]]).is_empty());
    }
    assert!(look(&mut watch, &[&[(None, 5, 101)]]).is_empty(), "one reading too early");
    for _ in 0..QUIET_READINGS {
        assert!(look(&mut watch, &[&[(None, 5, 101)]]).is_empty());
    }
    let lines = look(&mut watch, &[&[(None, 4, 3), (None, 5, 101)]]);
    assert!(lines.len() == 1 && lines[0].contains("3 datagrams arrived on core 4"), "{lines:?}");
}

#[test]
fn without_evidence_there_is_no_drift() {
    let mut watch = unsteered();
    let mut snapshot = reading(&[&[(None, 5, 100)]]);
    snapshot.listeners[0].lanes[0].arrived_on = None;
    let why = |_: &str, _, _: &[usize]| unreachable!("nothing is asked");
    assert!(watch.compare(&snapshot, why).is_empty());
}
