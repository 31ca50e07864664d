//! What is said, when, and how often.

use super::*;
use crate::ledger::LaneTally;
use crate::ledger::snapshot::HostSnapshot;

fn reading(kernel_dropped: u64) -> Snapshot {
    Snapshot {
        version: String::new(),
        uptime_seconds: 0.0,
        host: HostSnapshot::default(),
        log_lines_lost: 0,
        listeners: vec![ListenerSnapshot {
            name: "syslog".into(),
            address: String::new(),
            arrived: Some(kernel_dropped),
            kernel_dropped: Some(kernel_dropped),
            kernel_dropped_unit: String::new(),
            counts: LaneTally::default(),
            wrong_cpu: None,
            shared_with: None,
            residual: Some(0),
            sinks: vec![],
            lanes: vec![],
        }],
    }
}

#[test]
fn a_loss_is_said_once_with_its_layer_and_its_cure() {
    let mut watch = LossWatch::default();
    assert!(watch.compare(reading(0)).is_empty(), "nothing lost, nothing said");
    let lines = watch.compare(reading(744));
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("listener syslog: the kernel dropped 744") && lines[0].contains("absorb"), "{lines:?}");
    assert!(watch.compare(reading(744)).is_empty(), "what was said is not said again");
}

#[test]
fn every_reason_for_a_drop_is_said_by_its_name_but_for_the_quiet_ones() {
    let (snapshot, numbers) = crate::ledger::tests::numbered();
    let lines = LossWatch::default().compare(snapshot);
    for (counter, number) in numbers.iter().filter(|(counter, _)| !counter.layer.is_empty()) {
        let words = format!("dropped {number} datagrams since the last report ({})", counter.name);
        let said = lines.iter().filter(|line| line.contains(&words)).count();
        assert_eq!(said, usize::from(!counter.is_quiet), "{counter:?}: {lines:?}");
    }
}

/// A reading with one lane, planned for cores 2 and 3, with these counts by core.
fn arrivals(counts: &[(usize, u64)]) -> Snapshot {
    let mut snapshot = reading(0);
    let arrived_on: BTreeMap<usize, u64> = counts.iter().copied().collect();
    let wrong = counts.iter().filter(|(core, _)| ![2, 3].contains(core)).map(|(_, count)| count).sum();
    snapshot.listeners[0].kernel_dropped_unit = "datagrams".into();
    snapshot.listeners[0].lanes = vec![LaneSnapshot {
        queue: Some(7),
        wrong_cpu: Some(wrong),
        planned_cpus: vec![2, 3],
        arrived_on: Some(arrived_on),
        ..crate::ledger::tests::example().listeners[0].lanes[1].clone()
    }];
    snapshot
}

#[test]
fn a_drift_is_said_once_with_the_core_found_and_the_cores_wanted() {
    let mut watch = DriftWatch::default();
    assert!(watch.compare(&arrivals(&[(2, 100), (3, 100)])).is_empty(), "all as planned");
    let lines = watch.compare(&arrivals(&[(0, 5), (2, 100), (5, 20)]));
    assert_eq!(lines.len(), 1);
    for words in ["listener syslog, lane 1 (queue 7)", "25 datagrams arrived on core 5", "instead of 2-3", "irqbalance"]
    {
        assert!(lines[0].contains(words), "{words}: {lines:?}");
    }
    for count in 21..200 {
        assert!(watch.compare(&arrivals(&[(0, 5), (5, count)])).is_empty(), "it goes on and nothing is said again");
    }
}

#[test]
fn a_drift_that_was_over_is_said_again_about_the_core_of_its_second_time() {
    let mut watch = DriftWatch::default();
    assert_eq!(watch.compare(&arrivals(&[(5, 100)])).len(), 1);
    for _ in 1..QUIET_READINGS {
        assert!(watch.compare(&arrivals(&[(5, 100)])).is_empty());
    }
    assert!(watch.compare(&arrivals(&[(5, 101)])).is_empty(), "one reading too early");
    for _ in 0..QUIET_READINGS {
        assert!(watch.compare(&arrivals(&[(5, 101)])).is_empty());
    }
    let lines = watch.compare(&arrivals(&[(4, 3), (5, 101)]));
    assert!(lines.len() == 1 && lines[0].contains("3 datagrams arrived on core 4"), "{lines:?}");
}

/// The same for a lane whose interface is steered: the lines after each of these readings.
fn steered(readings: &[&[(usize, u64)]]) -> Vec<Vec<String>> {
    let lane = arrivals(&[]).listeners[0].lanes[0].lane;
    let mut watch = DriftWatch::new([(0, lane)].into());
    readings.iter().map(|counts| watch.compare(&arrivals(counts))).collect()
}

fn counts(lines: &[Vec<String>]) -> Vec<usize> {
    lines.iter().map(Vec::len).collect()
}

#[test]
fn the_first_datagrams_after_an_interrupt_was_put_elsewhere_are_no_drift() {
    for first in 1..=28 {
        let lines = steered(&[&[(5, first)], &[(5, first)], &[(2, 10), (5, first)], &[(2, 20), (5, first)]]);
        assert_eq!(counts(&lines), [0, 0, 0, 0]);
        let again =
            steered(&[&[(5, first)], &[(2, 1), (5, first)], &[(2, 1), (5, first + 1)], &[(2, 2), (5, first + 1)]]);
        assert_eq!(counts(&again), [0, 0, 0, 0], "and once more after the next change");
    }
}

#[test]
fn what_goes_on_arriving_on_a_wrong_core_is_a_drift_at_the_second_reading_that_has_it() {
    let lines = steered(&[&[(2, 9)], &[(2, 9), (5, 4)], &[(2, 9), (5, 4)], &[(2, 10), (5, 10)], &[(2, 10), (5, 90)]]);
    assert_eq!(counts(&lines), [0, 0, 0, 1, 0], "the third reading has no datagram, and the fourth confirms");
    assert!(lines[3][0].contains("10 datagrams arrived on core 5"), "with those of both readings: {lines:?}");
}

#[test]
fn without_evidence_there_is_no_drift() {
    let mut watch = DriftWatch::default();
    let mut snapshot = arrivals(&[(5, 100)]);
    snapshot.listeners[0].lanes[0].wrong_cpu = None;
    snapshot.listeners[0].lanes[0].arrived_on = None;
    assert!(watch.compare(&snapshot).is_empty());
}
