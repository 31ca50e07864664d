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

/// The changes of a stream of which `lose` adds what is missing, second after second; `dropped` is what this host had
/// lost by then.
fn changes(mut lose: impl FnMut(u32, &mut StreamRecord) -> u64) -> Vec<(u32, StreamChange)> {
    let mut one = record(1, 1, (0, 100), 0);
    let (mut before, mut changes) = (0, Vec::new());
    for now_s in 100..400 {
        let dropped = lose(now_s, &mut one);
        let here = HostLossChange { more: dropped - before, fewer: 0 };
        before = dropped;
        changes.extend(one.judge(now_s, here).map(|change| (now_s, change)));
        changes.extend(one.look(now_s).map(|change| (now_s, change)));
        // It is complete now and then.
        if here.more == 0 && now_s % 10 == 0 {
            one.excuse_no_more();
        }
    }
    changes
}

#[test]
fn a_stream_begins_to_lose_once_and_ceases_after_a_minute_without_a_loss() {
    let changes = changes(|now_s, one| {
        one.counts.missing += u64::from(now_s == 150 || now_s == 170 || now_s == 300);
        // What this host drops is no loss on the way.
        if now_s == 120 {
            (one.counts.missing, one.dropped) = (40, [40, 40]);
        }
        0
    });
    let expected = [
        (151, StreamChange::BeginsToLose),
        (231, StreamChange::LosesNoMore),
        (301, StreamChange::BeginsToLose),
        (361, StreamChange::LosesNoMore),
    ];
    assert_eq!(changes, expected);
}

#[test]
fn what_this_host_may_have_dropped_is_a_gap_and_only_what_is_missing_beyond_it_is_a_loss_on_the_way() {
    // 40 are dropped here, of which some may have been of this stream, and only later it shows of which.
    let changes = changes(|now_s, one| {
        one.counts.missing += match now_s {
            125 => 40,
            200 | 260 => 1,
            _ => 0,
        };
        if now_s < 120 { 0 } else { 40 }
    });
    let expected = [
        (126, StreamChange::HasGaps),
        (186, StreamChange::LosesNoMore),
        (201, StreamChange::BeginsToLose),
        (321, StreamChange::LosesNoMore),
    ];
    assert_eq!(changes, expected, "what was dropped long ago excuses nothing");
}

#[test]
fn while_this_host_goes_on_to_drop_a_stream_with_fewer_gaps_is_not_said_to_lose() {
    let here = |now_s: u32| u64::from(now_s.saturating_sub(110)) * 5;
    let gaps = changes(|now_s, one| {
        one.counts.missing += u64::from(now_s > 111) * 4;
        here(now_s)
    });
    assert_eq!(gaps, [(113, StreamChange::HasGaps)]);
    let loses = changes(|now_s, one| {
        one.counts.missing += u64::from(now_s > 111) * 6;
        here(now_s)
    });
    assert_eq!(loses.iter().map(|(_, change)| *change).collect::<Vec<_>>().last(), Some(&StreamChange::BeginsToLose));
}

#[test]
fn drops_that_count_as_a_streams_own_for_a_moment_are_neither_lost_twice_nor_an_excuse_for_long() {
    let mut one = record(1, 1, (0, 100), 40);
    one.dropped = [40, 40];
    let nothing = HostLossChange::default();
    assert_eq!(one.judge(101, nothing), None);
    // While a jump waits to be confirmed the drops are not matched; a reading may come before or after it.
    one.dropped = [0, 0];
    assert_eq!(one.judge(102, HostLossChange { more: 40, fewer: 0 }), None);
    one.dropped = [40, 40];
    assert_eq!(one.judge(103, HostLossChange { more: 0, fewer: 40 }), None);
    one.dropped = [0, 0];
    assert_eq!(one.judge(104, nothing), None);
    one.dropped = [40, 40];
    assert_eq!(one.judge(105, nothing), None);
    one.counts.missing += 1;
    assert_eq!((one.judge(106, nothing), one.judge(107, nothing)), (None, Some(StreamChange::BeginsToLose)));
}

/// The changes at this time.
fn silences(all: &mut [StreamRecord], now_s: u32) -> Vec<(u16, StreamChange)> {
    let (mut changes, mut heard) = (Vec::new(), Vec::with_capacity(all.len()));
    let change = |change, one: &StreamRecord| changes.push((one.key.session.port, change));
    look_for_silence(all, &mut heard, (now_s, 60), change);
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

#[test]
fn looking_for_silence_needs_no_more_room_than_a_place_for_each_stream() {
    let mut all: Vec<StreamRecord> =
        (0..2000).map(|port| record(u128::from(port % 7), port, (0, 100 + u32::from(port % 2) * 100), 0)).collect();
    let mut heard = Vec::with_capacity(all.len());
    let (room, at) = (heard.capacity(), heard.as_ptr());
    let mut changes = 0;
    (200..300).for_each(|now_s| look_for_silence(&mut all, &mut heard, (now_s, 60), |_, _| changes += 1));
    assert_eq!((changes, heard.capacity(), heard.as_ptr()), (2000, room, at));
}
