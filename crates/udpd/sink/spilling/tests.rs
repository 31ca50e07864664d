//! A sink with a spill, before one that takes what a test says.

use std::collections::VecDeque;
use std::path::Path;

use tempfile::TempDir;

use super::home::Home;
use super::*;
use crate::handover::batch::LaneBatch;
use crate::handover::route::FullPolicy;
use crate::ledger::{Table as _, Tallies, Tally};
use crate::sink::testing::Received;
use crate::sink::{Feeders, Sink, deliver};
use crate::spill::{BYTES_MIN, Lane, Places};

/// Takes what it is allowed to, and remembers it.
#[derive(Debug, Default)]
struct Narrow {
    /// How many it takes in each attempt; when nothing is said any more, all.
    takes: VecDeque<usize>,
    taken: Vec<String>,
}

impl Attempt for Narrow {
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

    fn go_on_for(&mut self, _: &Feeders) {}
}

fn spilling(directory: &Path, when_full: FullPolicy) -> Spilling<Narrow> {
    let lane = Lane { lane: 0, listener: 0, name: "in".to_owned(), bound: "127.0.0.1:514".to_owned() };
    let places = Places::of(vec![lane]).expect("a lane");
    let home = Home { directory: directory.to_owned(), bytes_max: BYTES_MIN, places, others: Vec::new() };
    let mut sink = Spilling::new(Narrow::default(), "s", Some(home), when_full).expect("memory");
    sink.open_store().expect("it opens");
    sink
}

/// Gives it datagrams with these numbers, and checks that the books close.
fn accept(sink: &mut Spilling<Narrow>, tallies: &mut Tallies, numbers: std::ops::Range<u32>) {
    let payloads: Vec<String> = numbers.map(|number| number.to_string()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    let batch = Received::over_loopback(&payloads).batch;
    tallies[0].taken += payloads.len() as u64;
    tallies[0].pending += payloads.len() as u64;
    sink.accept(&batch, tallies);
    assert_closed(tallies[0]);
}

fn assert_closed(tally: Tally) {
    let decided = tally.delivered + tally.dropped.total() + tally.pending + tally.spilled;
    assert_eq!(tally.taken + tally.spilled_before + tally.spilled_again, decided, "{tally:?}");
}

/// Turns until the spill is empty.
fn drain(sink: &mut Spilling<Narrow>, tallies: &mut Tallies) {
    while sink.way != super::way::Way::Well {
        sink.way = super::way::Way::Draining;
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
fn the_next_process_begins_with_what_waits_as_its_opening_balance_and_the_next_sink_with_the_same_books() {
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
            sink.way = super::way::Way::Down { retry: std::time::Instant::now() + std::time::Duration::from_secs(60) };
            sink.flush(&mut tallies);
            assert_closed(tallies[0]);
        }
        let Tally { spilled, dropped, delivered, .. } = tallies[0];
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
        sink.way = super::way::Way::Draining;
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
