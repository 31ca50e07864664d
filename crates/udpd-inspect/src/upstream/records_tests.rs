//! What the records of streams say: who is among the worst, who loses and who is silent, whatever others make up.

use super::*;
use crate::upstream::note_ring::Session;

fn record(source: u128, port: u16, (first_s, heard_s): (u32, u32), missing: u64) -> StreamRecord {
    let key = StreamKey { source, stream: 7, session: Session { port, destination: 0 } };
    let counts = StreamCounts { missing, ..StreamCounts::default() };
    let is_established = heard_s - first_s >= ESTABLISHED_S;
    StreamRecord { heard_s, counts, is_established, ..StreamRecord::new(key, first_s) }
}

#[test]
fn who_was_heard_for_long_is_among_the_worst_whatever_others_claim_to_have_lost() {
    let forged = |number: u128| record(1000 + number, 9, (2000, 2300), 1_000_000);
    let young = |number: u128| record(100_000 + number, 9, (2299, 2300), 2_000_000);
    let mut all: Vec<StreamRecord> = (0..5000).map(forged).chain((0..5000).map(young)).collect();
    all.push(record(1, 2055, (0, 2300), 3));
    let named = worst(&all);
    assert_eq!(named.len(), WORST_MAX);
    assert!(named.iter().any(|one| one.key.source == 1), "the exporter that lost 3 is pushed out");
    assert!(named.iter().all(|one| one.key.source < 100_000), "what was heard for a second stands before others");
    assert!(worst(&[record(1, 1, (0, 100), 0)]).is_empty(), "it lost nothing");
}

#[test]
fn a_stream_begins_to_lose_once_and_ceases_after_a_minute_without_a_loss() {
    let mut one = record(1, 1, (0, 100), 0);
    let mut changes = Vec::new();
    for now_s in 100..400 {
        one.counts.missing += u64::from(now_s == 150 || now_s == 170 || now_s == 300);
        // What this host drops is no loss on the way.
        if now_s == 120 {
            (one.counts.missing, one.dropped) = (40, [40, 40]);
        }
        changes.extend(one.look(now_s).map(|change| (now_s, change)));
    }
    let expected = [
        (150, StreamChange::BeginsToLose),
        (230, StreamChange::LosesNoMore),
        (300, StreamChange::BeginsToLose),
        (360, StreamChange::LosesNoMore),
    ];
    assert_eq!(changes, expected);
}

/// The changes at this time.
fn silences(all: &mut [StreamRecord], now_s: u32) -> Vec<(u16, StreamChange)> {
    let mut changes = Vec::new();
    look_for_silence(all.iter_mut(), (now_s, 60), |change, one| changes.push((one.key.session.port, change)));
    changes
}

#[test]
fn an_exporter_falls_silent_and_is_back_and_one_that_took_another_port_never_was_silent() {
    // Two exporters behind one address; and one of another address that starts anew from another port.
    let mut all = [record(1, 10, (0, 100), 0), record(1, 11, (0, 100), 0), record(2, 20, (0, 100), 0)];
    assert_eq!(silences(&mut all, 120), []);
    all[1].heard_s = 200;
    assert_eq!(silences(&mut all, 200), [(10, StreamChange::IsSilent), (20, StreamChange::IsSilent)]);
    assert_eq!(silences(&mut all, 201), [], "once");
    assert!(all[0].is_silent() && !all[1].is_silent());
    all[0].heard_s = 205;
    assert_eq!(silences(&mut all, 206), [(10, StreamChange::IsHeardAgain)]);
    let mut all: Vec<_> = all.into_iter().chain([record(2, 21, (190, 215), 0)]).collect();
    assert_eq!(silences(&mut all, 216), [(20, StreamChange::IsHeardAgain)], "it goes on from another port");
    assert_eq!(silences(&mut all, 262), [(11, StreamChange::IsSilent)]);
    all[3].heard_s = 300;
    all.push(record(3, 30, (0, 250), 0));
    all.push(record(3, 31, (255, 305), 0));
    assert_eq!(silences(&mut all, 311), [(10, StreamChange::IsSilent)], "nor does 30 fall silent");
    all.truncate(3);
    assert_eq!(silences(&mut all, 400), [], "a port that was left stays quiet");
}

#[test]
fn a_silent_exporter_that_lost_its_place_is_heard_again_all_the_same() {
    let mut all = [record(1, 10, (0, 100), 0)];
    assert_eq!(silences(&mut all, 200), [(10, StreamChange::IsSilent)]);
    all[0].is_established = false;
    assert_eq!(silences(&mut all, 4000), [], "it is still silent");
    all[0].heard_s = 4001;
    assert_eq!(silences(&mut all, 4002), [(10, StreamChange::IsHeardAgain)]);
    assert!(!all[0].is_silent());
}
