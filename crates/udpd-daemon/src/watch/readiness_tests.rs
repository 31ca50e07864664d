//! Readiness from look to look, against the rule in words, and the word of each fault.

use super::*;
use udpd_base::ledger::testing::example;

fn fault() -> Option<Fault> {
    Some(Fault { word: "sink", text: "sink archive has lost it".to_owned() })
}

/// What is told at each of these looks, one a second: `true` is a look without a fault.
fn told(looks: impl IntoIterator<Item = bool>) -> Vec<bool> {
    let (mut readiness, begun) = (Readiness::new(0.0), Instant::now());
    let mut look = |(second, is_well): (u64, bool)| {
        let found = if is_well { None } else { fault() };
        readiness.look(found, None, begun + Duration::from_secs(second), second as f64);
        readiness.told().ready
    };
    (0..).zip(looks).map(&mut look).collect()
}

#[test]
fn a_start_without_a_fault_is_ready_at_the_first_look_and_one_with_a_fault_says_which() {
    assert_eq!(told([true]), [true]);
    let mut readiness = Readiness::new(0.0);
    assert_eq!((readiness.told().ready, readiness.told().reason.as_str()), (false, "starting"));
    assert!(readiness.look(fault(), None, Instant::now(), 1.0));
    let said = readiness.told();
    assert_eq!((said.reason.as_str(), said.text.as_str()), ("sink", "sink archive has lost it"));
    assert_eq!(told([false, true, true, true, true, true]), [false, false, false, false, false, true]);
}

#[test]
fn a_fault_of_two_looks_is_none_and_one_of_three_is_over_after_five_without() {
    let looks = [true, false, false, true, false, false, true];
    assert_eq!(told(looks), [true; 7]);
    let looks = [&[true; 70][..], &[false; 3], &[true; 6]].concat();
    let found = told(looks);
    assert_eq!(found[69..], [true, true, true, false, false, false, false, false, true, true]);
}

#[test]
fn a_fault_that_stays_and_is_seen_only_while_datagrams_come_does_not_make_udpd_come_and_go() {
    let (mut readiness, begun) = (Readiness::new(0.0), Instant::now());
    let mut falls = Vec::new();
    for second in 0..3600_u64 {
        let was = readiness.told().ready;
        // No balancer sends to a member that is not ready, so nothing is lost there either.
        readiness.look(if was { fault() } else { None }, None, begun + Duration::from_secs(second), second as f64);
        if was && !readiness.told().ready {
            falls.push(second);
        }
    }
    assert!(falls.len() <= 18, "{falls:?}");
    let gaps: Vec<u64> = falls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.is_sorted() && gaps.last() == Some(&303), "{gaps:?}");
}

/// The rule in words, on the whole history: the state is that of the last run of looks that was long enough.
#[test]
fn whatever_comes_the_state_is_that_of_the_last_run_that_was_long_enough() {
    let mut random = 7_u64;
    for _ in 0..2_000 {
        let looks: Vec<bool> = (0..60)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) & 3 > 0
            })
            .collect();
        let found = told(looks.iter().copied());
        let run = |upto: usize| looks[..=upto].iter().rev().take_while(|look| **look == looks[upto]).count();
        for (look, is_ready) in found.iter().enumerate() {
            let was_ready = look > 0 && found[look - 1];
            if was_ready && !is_ready {
                assert!(!looks[look] && run(look) >= FALL as usize, "{looks:?}");
            }
            if was_ready && run(look) >= FALL as usize {
                assert!(looks[look] || !is_ready, "{looks:?}");
            }
            let is_first = look == 0 || found[..look].iter().all(|ready| !ready) && looks[..look].is_empty();
            if !was_ready && *is_ready && !is_first {
                assert!(looks[look] && run(look) >= RISE as usize, "{looks:?}");
            }
        }
    }
}

#[test]
fn draining_is_told_at_once_and_so_is_its_end() {
    let (mut readiness, now) = (Readiness::new(0.0), Instant::now());
    readiness.look(None, None, now, 1.0);
    assert!(readiness.tell(Some("udpd is told to leave"), 2.0));
    assert_eq!((readiness.told().reason.as_str(), readiness.told().since), ("draining", 2.0));
    assert!(!readiness.look(None, Some("udpd is told to leave"), now, 3.0), "nothing new");
    assert!(readiness.tell(None, 4.0));
    assert_eq!((readiness.told().ready, readiness.told().since), (true, 4.0));
}

/// What is found at the second of two looks, of which the later one is made of the example by `change`.
fn found(change: impl FnOnce(&mut Snapshot), other: &OtherFacts<'_>) -> Option<(&'static str, String)> {
    let (mut finder, mut snapshot) = (FaultFinder::default(), example());
    snapshot.listeners[0].lanes.iter_mut().for_each(|lane| lane.receive_buffer_used_bytes = 0);
    assert_eq!(finder.look(&snapshot, &OtherFacts::default()), None);
    change(&mut snapshot);
    finder.look(&snapshot, other).map(|fault| (fault.word, fault.text))
}

#[test]
fn each_fault_has_its_word() {
    let none = OtherFacts::default();
    assert_eq!(found(|_| (), &none), None);
    let word = |change: fn(&mut Snapshot)| found(change, &none).map(|(word, _)| word);
    let sink = |snapshot: &mut Snapshot, lost, delivered, spilled| {
        let counts = &mut snapshot.listeners[0].sinks[0].counts;
        counts.dropped.sink_error += lost;
        counts.delivered += delivered;
        counts.spilled += spilled;
    };
    assert_eq!(found(|snapshot| sink(snapshot, 5, 0, 0), &none).map(|(word, _)| word), Some("sink"));
    assert_eq!(found(|snapshot| sink(snapshot, 5, 1, 0), &none), None, "it hands on");
    assert_eq!(found(|snapshot| sink(snapshot, 5, 0, 1), &none), None, "it spills");
    assert_eq!(word(|snapshot| snapshot.listeners[0].sinks[0].queue_depth = 205), Some("queue"));
    assert_eq!(word(|snapshot| snapshot.listeners[0].sinks[0].queue_depth = 204), None);
    assert_eq!(word(|snapshot| snapshot.listeners[0].residual = Some(-1)), Some("residual"));
    assert_eq!(word(|snapshot| snapshot.listeners[0].residual = None), None, "unknown is no fault");
    let deaf = OtherFacts { deaf: vec!["interface eth0 is gone".to_owned()], ..OtherFacts::default() };
    assert_eq!(found(|_| (), &deaf), Some(("lane", "interface eth0 is gone".to_owned())));
    let waiting = OtherFacts { waiting: vec!["archive"], ..OtherFacts::default() };
    assert_eq!(found(|_| (), &waiting), Some(("sink", "sink archive has yet to begin".to_owned())));
    let stalled =
        OtherFacts { stalled: BTreeMap::from([("archive", Duration::from_secs(4))]), ..OtherFacts::default() };
    assert_eq!(found(|_| (), &stalled).map(|(word, _)| word), Some("sink"));
}

#[test]
fn a_lane_is_stuck_that_takes_nothing_of_what_waits_and_not_one_that_goes_on() {
    let mut finder = FaultFinder::default();
    let mut look = |received| {
        let mut snapshot = example();
        snapshot.listeners[0].lanes[0].counts.received = received;
        snapshot.listeners[0].lanes[1].receive_buffer_used_bytes = 0;
        finder.look(&snapshot, &OtherFacts::default()).map(|fault| fault.text)
    };
    assert_eq!([look(1), look(2)], [None, None]);
    let text = "lane 0 of listener syslog takes nothing of what waits in its socket".to_owned();
    assert_eq!([look(2), look(3)], [Some(text), None]);
}

#[test]
fn a_listener_that_was_removed_and_a_sink_that_was_removed_are_no_fault() {
    let change = |snapshot: &mut Snapshot| {
        snapshot.listeners[0].sinks[0].removed = true;
        snapshot.listeners[0].sinks[0].counts.dropped.sink_error += 5;
    };
    assert_eq!(found(change, &OtherFacts::default()), None);
}
