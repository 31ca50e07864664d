//! The table against a model without a bound: in one thread to the datagram, and with several threads by its sums.

use std::collections::HashMap;
use std::sync::Barrier;

use seeds::{Chance, Simulation};

use super::super::fingerprint::FingerprintKey;
use super::*;

const WINDOW: u64 = 50;

/// A fingerprint for each number, all in one bucket where that is asked for.
fn fingerprint(number: u64, in_one_bucket: bool) -> Fingerprint {
    let mut chance = Chance::new(number);
    let bucket = if in_one_bucket { 0 } else { chance.next() << 32 };
    Fingerprint { bucket_and_part: bucket | chance.next() >> 32, rest: chance.next() }
}

/// What is known of a datagram within the window.
struct Known {
    since: u64,
    sides: u64,
}

#[derive(Default)]
struct Model(HashMap<u64, Known>);

impl Model {
    fn meet(&mut self, number: u64, side: usize, now: u64) -> Meeting {
        match self.0.get_mut(&number).filter(|known| now <= known.since + WINDOW) {
            Some(known) if known.sides >> side & 1 == 1 => Meeting::Repeated,
            Some(known) => {
                known.sides |= 1 << side;
                Meeting::Copy
            }
            None => {
                self.0.insert(number, Known { since: now, sides: 1 << side });
                Meeting::New
            }
        }
    }
}

#[test]
fn each_datagram_is_new_once_within_the_window() {
    Simulation::new("each_datagram_is_new_once_within_the_window", 100, 2000).check(|run| {
        let sides = 1 + run.setup().index(SIDES_MAX);
        let numbers = 1 + run.setup().below(300);
        let table = CopyTable::<WAYS>::new(64, WINDOW);
        let (mut model, mut now) = (Model::default(), WINDOW + 1);
        let mut counts = [0_u64; 3];
        while let Some(mut chance) = run.step() {
            // Often to the edges of the window.
            now += chance.weighted(&[(30, 0), (10, 1), (1, WINDOW), (1, WINDOW + 1), (1, WINDOW - 1)]);
            let (number, side) = (chance.below(numbers), chance.index(sides));
            let expected = model.meet(number, side, now);
            let place = [Meeting::New, Meeting::Copy, Meeting::Repeated].iter().position(|one| *one == expected);
            counts[place.expect("a model has no overflow")] += 1;
            assert_eq!(table.meet(fingerprint(number, false), side, now), expected, "number {number} at {now}");
        }
        format!("{counts:?}")
    });
}

#[test]
fn a_feed_of_two_sides_with_loss_and_reordering_comes_out_whole_and_once() {
    for seed in 0..40 {
        let mut chance = Chance::new(seed);
        let key = FingerprintKey::random();
        // Numbers of 16 bits go round several times, each time beyond the window.
        let (rounds, round) = (4_u64, 1000_u64);
        let table = CopyTable::<WAYS>::new(CopyTable::<WAYS>::buckets(16_000), WINDOW);
        for turn in 1..=rounds {
            // When each copy comes: sent at its number, a tenth lost, up to 20 later.
            let mut coming: Vec<(u64, usize, u64)> = Vec::new();
            for number in 0..round {
                for side in 0..2 {
                    if !chance.happens(1, 10) {
                        coming.push((number / 10 + chance.below(20), side, number));
                    }
                }
            }
            coming.sort_unstable();
            let (mut seen, mut by_side) = (HashMap::new(), [[0_u64; 2]; 2]);
            for (at, side, number) in coming {
                let now = turn * 10 * WINDOW + at;
                let meeting = table.meet(key.of(&(number as u16).to_be_bytes(), 1), side, now);
                let is_new = seen.insert(number, side).is_none();
                assert_eq!(meeting, if is_new { Meeting::New } else { Meeting::Copy }, "{number} in turn {turn}");
                by_side[side][usize::from(!is_new)] += 1;
            }
            let [a, b] = by_side;
            assert_eq!(a[0] + b[0], seen.len() as u64, "what either side had, once");
            assert!(a[1] + b[1] > 700, "both had most of it");
        }
    }
}

#[test]
fn a_full_bucket_hands_on_what_it_cannot_remember_and_forgets_nothing_for_it() {
    let table = CopyTable::<WAYS>::new(1, WINDOW);
    let meet = |number, side, now| table.meet(fingerprint(number, true), side, now);
    let begin = WINDOW + 1;
    for number in 0..WAYS as u64 {
        assert_eq!(meet(number, 0, begin + number), Meeting::New);
    }
    for number in 100..200 {
        assert_eq!(meet(number, 0, begin + 20), Meeting::Overflow);
        assert_eq!(meet(number, 1, begin + 20), Meeting::Overflow, "its copy comes through, too");
    }
    for number in 0..WAYS as u64 {
        assert_eq!(meet(number, 1, begin + 20), Meeting::Copy);
        assert_eq!(meet(number, 1, begin + 20), Meeting::Repeated);
    }
    // The first is out of the window and leaves its place to one.
    let later = begin + WINDOW + 1;
    assert_eq!([meet(300, 0, later), meet(301, 0, later)], [Meeting::New, Meeting::Overflow]);
    assert_eq!([meet(1, 0, later), meet(0, 1, later)], [Meeting::Repeated, Meeting::Overflow]);
}

#[test]
fn several_receivers_that_bring_the_same_at_the_same_time_find_each_new_once() {
    const THREADS: usize = 4;
    for seed in 0..6 {
        let numbers = 20_000_u64;
        let table = CopyTable::<WAYS>::new(CopyTable::<WAYS>::buckets(8 * numbers as usize), u64::MAX >> 30);
        let barrier = Barrier::new(THREADS);
        let bring = |side: usize| {
            let mut chance = Chance::new(seed);
            barrier.wait();
            let mut counts = [0_u64; 2];
            for number in 0..numbers {
                // Each lacks its own tenth.
                let missing = chance.index(10 * THREADS);
                if missing == side {
                    continue;
                }
                match table.meet(fingerprint(number, false), side, u64::MAX >> 29) {
                    Meeting::New => counts[0] += 1,
                    Meeting::Copy => counts[1] += 1,
                    other => panic!("{other:?}"),
                }
            }
            counts
        };
        let counts: Vec<[u64; 2]> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|side| scope.spawn(move || bring(side))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        let mut chance = Chance::new(seed);
        let lacking = (0..numbers).filter(|_| chance.index(10 * THREADS) < THREADS).count() as u64;
        assert_eq!(counts.iter().map(|[new, _]| new).sum::<u64>(), numbers, "{counts:?}");
        assert_eq!(counts.iter().map(|[_, copies]| copies).sum::<u64>(), (THREADS as u64 - 1) * numbers - lacking);
    }
}
