//! The table of copies in every order of its threads: each datagram is new to one of those that bring it, and no other
//! datagram suffers for it.

use std::sync::Arc;

use interleavings::deduplicate::fingerprint;
use interleavings::deduplicate::table::{CopyTable, Meeting};
use interleavings::explore::in_every_order;
use loom::thread;

const WINDOW: u64 = 10;

/// When the model begins: what was never taken is out of the window.
const BEGIN: u64 = 100;

/// A datagram: its two words, and when it comes.
type Coming = (u64, u64, u64);

/// What each of these is that each of two sides brings at the same time as the other.
fn met<const N: usize>(table: CopyTable<N>, sides: [&'static [Coming]; 2]) -> [Vec<Meeting>; 2] {
    let table = Arc::new(table);
    let bring = move |side: usize, table: Arc<CopyTable<N>>| -> Vec<Meeting> {
        sides[side].iter().map(|&(part, rest, now)| table.meet(fingerprint(part, rest), side, now)).collect()
    };
    let other = Arc::clone(&table);
    let second = thread::spawn(move || bring(1, other));
    let first = bring(0, table);
    [first, second.join().expect("it ends")]
}

fn count(met: &[Vec<Meeting>; 2], what: Meeting) -> usize {
    met.iter().flatten().filter(|meeting| **meeting == what).count()
}

#[test]
fn what_two_sides_bring_at_the_same_time_is_new_to_one_of_them() {
    in_every_order(3, || {
        let met = met(CopyTable::<2>::new(1, WINDOW), [&[(1, 1, BEGIN)], &[(1, 1, BEGIN)]]);
        assert_eq!((count(&met, Meeting::New), count(&met, Meeting::Copy)), (1, 1), "{met:?}");
    });
}

#[test]
fn it_is_new_to_one_also_where_their_clocks_differ_and_places_leave_the_window_meanwhile() {
    in_every_order(3, || {
        let table = CopyTable::<2>::new(1, WINDOW);
        // Two places: one is out of the window for the second side only.
        assert_eq!(table.meet(fingerprint(7, 7), 0, BEGIN), Meeting::New);
        assert_eq!(table.meet(fingerprint(8, 8), 0, BEGIN - 1), Meeting::New);
        let met = met(table, [&[(1, 1, BEGIN + WINDOW)], &[(1, 1, BEGIN + WINDOW + 1)]]);
        assert_eq!((count(&met, Meeting::New), count(&met, Meeting::Copy)), (1, 1), "{met:?}");
    });
}

#[test]
fn what_comes_again_after_the_window_is_new_to_one() {
    in_every_order(3, || {
        let table = CopyTable::<2>::new(1, WINDOW);
        assert_eq!(table.meet(fingerprint(1, 1), 0, BEGIN), Meeting::New);
        let met = met(table, [&[(1, 1, BEGIN + 11)], &[(1, 1, BEGIN + 11)]]);
        assert_eq!((count(&met, Meeting::New), count(&met, Meeting::Copy)), (1, 1), "{met:?}");
    });
}

#[test]
fn two_datagrams_that_share_a_bucket_and_a_part_are_both_new() {
    in_every_order(3, || {
        let met = met(CopyTable::<2>::new(1, WINDOW), [&[(1, 1, BEGIN)], &[(1, 2, BEGIN)]]);
        assert_eq!(count(&met, Meeting::New), 2, "{met:?}");
    });
}

#[test]
fn two_datagrams_in_either_order_are_each_new_once() {
    in_every_order(2, || {
        let sides: [&[Coming]; 2] = [&[(1, 1, BEGIN), (2, 2, BEGIN)], &[(2, 2, BEGIN), (1, 1, BEGIN)]];
        let met = met(CopyTable::<3>::new(1, WINDOW), sides);
        assert_eq!((count(&met, Meeting::New), count(&met, Meeting::Copy)), (2, 2), "{met:?}");
    });
}

#[test]
fn a_place_that_is_given_away_while_another_side_looks_is_never_taken_for_its_datagram() {
    in_every_order(3, || {
        let table = CopyTable::<1>::new(1, WINDOW);
        assert_eq!(table.meet(fingerprint(1, 1), 0, BEGIN), Meeting::New);
        // One side's clock is behind: for it the place is within the window, for the other it is not.
        let met = met(table, [&[(1, 1, BEGIN + 10)], &[(1, 2, BEGIN + 11)]]);
        let [first, second] = &met;
        assert_eq!(second[0], Meeting::New, "{met:?}");
        assert!([Meeting::Repeated, Meeting::Overflow].contains(&first[0]), "{met:?}");
    });
}
