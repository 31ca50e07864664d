//! A sink with a spill, before one that takes what a test says.

use std::collections::VecDeque;
use std::path::Path;

use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::settings::SpillLocation;
use super::*;
use crate::{BYTES_MIN, SpillLane, SpillLanes};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::{CounterTable as _, SinkTally, Tallies};
use udpd_base::sink::testing::Received;
use udpd_base::sink::{ConsumerFeeders, Sink, deliver};
use udpd_base::testing::simulated::{self, SmallDisk};

/// Takes what it is allowed to, and remembers it.
#[derive(Debug, Default)]
struct Narrow {
    /// How many it takes in each attempt; when nothing is said any more, all.
    takes: VecDeque<usize>,
    taken: Vec<String>,
    /// How long it may still refuse what it took, and whether it has.
    answer_time: Duration,
    has_refused: bool,
}

impl SpillableSink for Narrow {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let takes = self.takes.pop_front().unwrap_or(usize::MAX);
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if place < takes {
                self.taken.push(String::from_utf8_lossy(datagram.payload()).into_owned());
                deliver(&mut tallies[batch.listener], 1);
            } else {
                left.push(place);
            }
        }
    }

    fn answer_time(&self) -> Duration {
        self.answer_time
    }

    fn has_refused(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}

fn spilling(directory: &Path, when_full: FullPolicy) -> Spilling<Narrow> {
    let lane = SpillLane { lane: 0, listener: 0, name: "in".to_owned(), bound: "127.0.0.1:514".to_owned() };
    let lanes = SpillLanes::of(vec![lane]).expect("a lane");
    let location = SpillLocation { directory: directory.to_owned(), bytes_max: BYTES_MIN, lanes, others: Vec::new() };
    let mut sink = Spilling::new(Narrow::default(), "s", Some(location), when_full).expect("memory");
    sink.open_store().expect("it opens");
    sink
}

fn batch(numbers: std::ops::Range<u32>) -> LaneBatch {
    let payloads: Vec<String> = numbers.map(|number| number.to_string()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    Received::into_slots(&payloads, 2048).batch
}

/// Gives it datagrams with these numbers, and checks that the ledger closes.
fn accept(sink: &mut Spilling<Narrow>, tallies: &mut Tallies, numbers: std::ops::Range<u32>) {
    accept_batch(sink, tallies, &batch(numbers));
}

fn accept_batch(sink: &mut Spilling<Narrow>, tallies: &mut Tallies, batch: &LaneBatch) {
    let datagrams = batch.datagrams.summary().datagrams;
    tallies[0].taken += datagrams;
    tallies[0].pending += datagrams;
    sink.accept(batch, tallies);
    assert_closed(tallies[0]);
}

fn assert_closed(tally: SinkTally) {
    let decided = tally.delivered + tally.dropped.total() + tally.pending + tally.spilled;
    assert_eq!(tally.taken + tally.spilled_before + tally.spilled_again, decided, "{tally:?}");
}

/// Turns until the spill is empty.
fn drain(sink: &mut Spilling<Narrow>, tallies: &mut Tallies) {
    while sink.link != super::sink::LinkState::Up {
        sink.link = super::sink::LinkState::Draining;
        sink.flush(tallies);
        assert_closed(tallies[0]);
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn while_all_is_well_nothing_touches_the_disk_and_what_is_not_taken_is_sent_before_what_comes_later() {
    let directory = TempDir::new().expect("a directory");
    let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::DropNewest), Tallies::new(0..1));
    accept(&mut sink, &mut tallies, 0..5);
    sink.flush(&mut tallies);
    assert_eq!((tallies[0].delivered, tallies[0].spilled, sink.due()), (5, 0, None));
    sink.inner.takes = [2].into();
    accept(&mut sink, &mut tallies, 5..10);
    accept(&mut sink, &mut tallies, 10..15);
    assert_eq!((tallies[0].delivered, tallies[0].pending), (7, 8));
    sink.flush(&mut tallies);
    assert_eq!((tallies[0].delivered, tallies[0].pending, tallies[0].spilled), (7, 0, 8));
    sink.inner.takes = [1, 0, 2].into();
    drain(&mut sink, &mut tallies);
    accept(&mut sink, &mut tallies, 15..20);
    assert_eq!((tallies[0].delivered, tallies[0].spilled), (20, 0));
    assert_eq!(sink.inner.taken, numbers(0..20));
}

#[test]
fn the_next_process_begins_with_what_waits_as_its_opening_balance_and_the_next_sink_with_the_same_ledger() {
    let directory = TempDir::new().expect("a directory");
    let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::DropNewest), Tallies::new(0..1));
    sink.inner.takes = [0].into();
    accept(&mut sink, &mut tallies, 0..30);
    sink.finish(&mut tallies, &mut |_| {});
    assert_eq!((tallies[0].pending, tallies[0].spilled), (0, 30));
    let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::DropNewest), Tallies::new(0..1));
    assert!(sink.due().is_some());
    sink.when_due(&mut tallies);
    // This process has had the spill before.
    assert_eq!((tallies[0].spilled_before, tallies[0].spilled_again), (0, 30));
    accept(&mut sink, &mut tallies, 30..40);
    drain(&mut sink, &mut tallies);
    assert_eq!((tallies[0].delivered, tallies[0].spilled), (40, 0));
    assert_eq!(sink.inner.taken, numbers(0..40));
}

#[test]
fn a_full_spill_does_what_when_full_says_and_each_datagram_that_costs_is_counted() {
    for policy in [FullPolicy::DropNewest, FullPolicy::DropOldest] {
        let directory = TempDir::new().expect("a directory");
        let (mut sink, mut tallies) = (spilling(directory.path(), policy), Tallies::new(0..1));
        sink.inner.takes = vec![0; 1].into();
        let long: Vec<Vec<u8>> = (0..40_u32).map(|number| format!("{number:040000}").into_bytes()).collect();
        let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        let batch = Received::over_loopback(&long).batch;
        for _ in 0..5 {
            tallies[0].taken += 40;
            tallies[0].pending += 40;
            sink.accept(&batch, &mut tallies);
            sink.link =
                super::sink::LinkState::Down { retry: std::time::Instant::now() + std::time::Duration::from_secs(60) };
            sink.flush(&mut tallies);
            assert_closed(tallies[0]);
        }
        let SinkTally { spilled, dropped, delivered, .. } = tallies[0];
        assert!(spilled > 80 && dropped.spill_full > 60 && delivered == 0, "{:?}", tallies[0]);
        sink.finish(&mut tallies, &mut |_| {});
        assert_closed(tallies[0]);
    }
}

#[test]
fn what_a_destination_took_of_a_frame_is_not_sent_again_after_an_end_in_good_order_and_may_be_after_a_kill() {
    for is_killed in [false, true] {
        let directory = TempDir::new().expect("a directory");
        let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::DropNewest), Tallies::new(0..1));
        sink.inner.takes = [0, 10].into();
        accept(&mut sink, &mut tallies, 0..30);
        sink.flush(&mut tallies);
        sink.link = super::sink::LinkState::Draining;
        sink.flush(&mut tallies);
        assert_eq!((tallies[0].delivered, tallies[0].spilled), (10, 20));
        assert_eq!(sink.inner.taken, numbers(0..10));
        if !is_killed {
            sink.finish(&mut tallies, &mut |_| {});
        }
        drop(sink);
        let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::DropNewest), Tallies::new(0..1));
        drain(&mut sink, &mut tallies);
        let (begin, repeats) = if is_killed { (0, 30) } else { (10, 0) };
        assert_eq!(tallies[0].spill_repeats_at_most, repeats);
        assert_eq!(sink.inner.taken, numbers(begin..30));
    }
}

#[test]
fn a_full_spill_that_blocks_holds_its_sink_up_until_there_is_room_and_loses_nothing() {
    let directory = TempDir::new().expect("a directory");
    let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::Block), Tallies::new(0..1));
    sink.inner.takes = [0, 0, 3, 0, 0].into();
    let mut next = 0;
    for _ in 0..5 {
        let long: Vec<Vec<u8>> = (next..next + 40).map(|number| format!("{number:040000}").into_bytes()).collect();
        let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        next += 40;
        tallies[0].taken += 40;
        tallies[0].pending += 40;
        sink.accept(&Received::over_loopback(&long).batch, &mut tallies);
        assert_closed(tallies[0]);
    }
    assert!(tallies[0].delivered > 0, "it has made room: {:?}", tallies[0]);
    drain(&mut sink, &mut tallies);
    assert_eq!((tallies[0].delivered, tallies[0].dropped.total()), (200, 0));
    assert_eq!(sink.inner.taken, (0..200_u32).map(|number| format!("{number:040000}")).collect::<Vec<_>>());
}

/// A disk that takes so many bytes, six datagrams that come while the destination takes nothing, and either it comes
/// back or the daemon ends without it. Then the next daemon, on a disk with room. Returns whether anything was lost.
fn fill_disk(batches: &[LaneBatch], room: u64, when_full: FullPolicy, answer_time: Duration, comes_back: bool) -> bool {
    let what = format!("{room} bytes, {when_full:?}, {answer_time:?}, {comes_back}");
    // In memory, where there is one: nothing is asked of a disk.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).expect("a directory");
    let (mut sink, mut tallies) = (spilling(directory.path(), when_full), Tallies::new(0..1));
    sink.inner.answer_time = answer_time;
    // It takes nothing for a few attempts, or never.
    sink.inner.takes = vec![0; if comes_back { 1 + room as usize % 6 } else { 1_000 }].into();
    sink.retry = Duration::ZERO;
    if !comes_back {
        sink.disk.is_unawaited = || true;
    }
    let small = simulated::enter(SmallDisk::of(room));
    for batch in batches {
        accept_batch(&mut sink, &mut tallies, batch);
        sink.disk.refused_since = sink.disk.refused_since.map(|_| Instant::now() - Duration::from_secs(2));
        sink.flush(&mut tallies);
        assert_closed(tallies[0]);
    }
    while comes_back && sink.link != super::sink::LinkState::Up {
        sink.flush(&mut tallies);
        assert_closed(tallies[0]);
    }
    sink.finish(&mut tallies, &mut |_| {});
    drop(small);
    assert_closed(tallies[0]);
    let first = tallies[0];
    assert_eq!(first.pending, 0, "{what}: {first:?}");
    let mut taken = std::mem::take(&mut sink.inner.taken);
    let (mut next, mut tallies) = (spilling(directory.path(), when_full), Tallies::new(0..1));
    next.when_due(&mut tallies);
    let found = tallies[0];
    assert_eq!(found.spilled_before + found.spilled_again, first.spilled, "{what}: {first:?}, {found:?}");
    assert_eq!((found.spill_repeats_at_most, found.dropped.total()), (0, 0), "{what}");
    drain(&mut next, &mut tallies);
    taken.append(&mut next.inner.taken);
    let delivered = first.delivered + tallies[0].delivered;
    assert_eq!(taken.len() as u64, delivered, "{what}: {taken:?}");
    assert_eq!(delivered + first.dropped.total(), 6, "{what}: {first:?}");
    assert!(taken.is_sorted() && taken.windows(2).all(|two| two[0] != two[1]), "{what}: {taken:?}");
    let reason = if when_full == FullPolicy::Block { first.dropped.sink_error } else { first.dropped.spill_full };
    assert_eq!(first.dropped.total(), reason, "{what}: {first:?}");
    assert!(!comes_back || when_full != FullPolicy::Block || delivered == 6, "{what}: {first:?}");
    delivered < 6
}

#[test]
fn at_whichever_byte_a_disk_is_full_nothing_hangs_and_a_start_after_it_finds_what_the_ledger_had() {
    const BYTES: u64 = 640;
    let policies = [FullPolicy::DropNewest, FullPolicy::DropOldest, FullPolicy::Block];
    let campaign = |when_full: FullPolicy, answer_time: Duration, comes_back| {
        let batches = [batch(0..2), batch(2..4), batch(4..6)];
        let is_every_byte =
            when_full == FullPolicy::Block && answer_time.is_zero() || std::env::var_os("LONG").is_some();
        let losses = (0..BYTES)
            .step_by(if is_every_byte { 1 } else { 7 })
            .map(|room| fill_disk(&batches, room, when_full, answer_time, comes_back));
        losses.filter(|is_lost| *is_lost).count()
    };
    std::thread::scope(|scope| {
        for when_full in policies {
            for answer_time in [Duration::ZERO, Duration::from_micros(200)] {
                scope.spawn(move || {
                    assert!(campaign(when_full, answer_time, false) > 20, "{when_full:?}");
                });
                scope.spawn(move || {
                    assert_eq!(campaign(when_full, answer_time, true) > 0, when_full != FullPolicy::Block);
                });
            }
        }
    });
}

#[test]
fn a_datagram_on_trial_whose_place_is_given_up_for_room_is_counted_as_what_becomes_of_it() {
    for is_refused in [false, true] {
        let directory = TempDir::new().expect("a directory");
        let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::DropOldest), Tallies::new(0..1));
        sink.inner.answer_time = Duration::from_secs(3_600);
        // No retry comes by itself, however slow the machine is.
        sink.retry = Duration::from_secs(3_600);
        sink.inner.takes = [0].into();
        // A slow machine must not try again by itself.
        sink.retry = Duration::from_secs(3_600);
        let long: Vec<Vec<u8>> = (0..40_u32).map(|number| format!("{number:040000}").into_bytes()).collect();
        let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        let batch = Received::over_loopback(&long).batch;
        let mut fill = |sink: &mut Spilling<Narrow>| {
            tallies[0].taken += 40;
            tallies[0].pending += 40;
            sink.accept(&batch, &mut tallies);
            sink.flush(&mut tallies);
            assert_closed(tallies[0]);
            tallies[0]
        };
        fill(&mut sink);
        sink.link = super::sink::LinkState::Down { retry: Instant::now() };
        assert_eq!(fill(&mut sink).pending, 0);
        assert_eq!(sink.inner.taken.len(), 1, "it is on trial");
        while fill(&mut sink).pending == 0 {}
        sink.inner.has_refused = is_refused;
        let before = tallies[0];
        sink.finish(&mut tallies, &mut |_| {});
        assert_closed(tallies[0]);
        let SinkTally { pending, delivered, dropped, .. } = tallies[0];
        let lost = dropped.spill_full - before.dropped.spill_full;
        assert_eq!((pending, delivered, lost), (0, u64::from(!is_refused), u64::from(is_refused)));
    }
}

#[test]
fn what_is_left_of_a_batch_within_which_the_spill_becomes_empty_is_neither_stuck_nor_overtaken() {
    let long: Vec<Vec<u8>> = (0..40_u32).map(|number| format!("{number:040000}").into_bytes()).collect();
    let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
    let batch = Received::over_loopback(&long).batch;
    for room in [Some(0), Some(300_000), None] {
        let directory = TempDir::new().expect("a directory");
        let (mut sink, mut tallies) = (spilling(directory.path(), FullPolicy::Block), Tallies::new(0..1));
        sink.retry = Duration::ZERO;
        sink.inner.takes = [0].into();
        let small = room.map(|room| simulated::enter(SmallDisk::of(room)));
        accept_batch(&mut sink, &mut tallies, &batch);
        accept_batch(&mut sink, &mut tallies, &batch);
        drain(&mut sink, &mut tallies);
        sink.finish(&mut tallies, &mut |_| {});
        drop(small);
        assert_eq!((tallies[0].delivered, tallies[0].dropped.total(), tallies[0].spilled), (80, 0, 0), "{room:?}");
        let both: Vec<String> = long.iter().chain(&long).map(|one| String::from_utf8_lossy(one).into_owned()).collect();
        assert_eq!(sink.inner.taken, both, "{room:?}");
    }
}
