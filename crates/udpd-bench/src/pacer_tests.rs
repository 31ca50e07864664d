//! The pacer against a clock that does what the test says: exact counts, whenever it is read.

use std::cell::Cell;

use super::*;
use crate::clock::PacingClock;

/// A clock that only moves while a test waits on it, and then overshoots as sleeping threads do.
struct Late {
    now_ns: Cell<u64>,
    late_ns: u64,
}

impl PacingClock for Late {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn approach(&self, due_ns: u64) {
        assert!(due_ns > self.now_ns.get(), "what is due is not waited for");
        self.now_ns.set(due_ns + self.late_ns);
    }
}

/// Sends everything, at most `most` a call, and returns each call's moment and number.
fn run(pacer: &mut Pacer, clock: &Late, most: u64) -> Vec<(u64, u64)> {
    let mut calls = Vec::new();
    loop {
        let now = clock.now_ns();
        let owed = pacer.owed(now).min(most);
        if owed > 0 {
            pacer.advance(owed);
            calls.push((now, owed));
        } else if let Some(due) = pacer.next_due_ns() {
            clock.approach(due);
        } else {
            return calls;
        }
    }
}

fn sum(calls: &[(u64, u64)]) -> u64 {
    calls.iter().map(|(_, count)| count).sum()
}

const SECOND: u64 = 1_000_000_000;

fn seconds(count: u64) -> SendAmount {
    SendAmount::Seconds(Duration::from_secs(count))
}

#[test]
fn ten_seconds_at_any_rate_are_exactly_ten_times_the_rate_however_late_the_sleeper_wakes() {
    for rate in [1, 7, 1_000, 33_333, 300_000] {
        for late_ns in [0, 1, 53_000, 7_000_001] {
            let clock = Late { now_ns: Cell::new(0), late_ns };
            let mut pacer = Pacer::new(Schedule::new(Rate::Steady(rate), seconds(10), 1), 0, 1);
            let calls = run(&mut pacer, &clock, 64);
            assert_eq!(sum(&calls), 10 * rate, "{rate}/s, {late_ns} ns late");
            let (last, _) = calls[calls.len() - 1];
            assert!(last <= 10 * SECOND + late_ns, "{rate}/s: the lateness is never added up, but the end is {last}");
        }
    }
}

#[test]
fn nothing_is_sent_before_it_is_due_and_everything_at_its_very_nanosecond() {
    let schedule = Schedule::new(Rate::Steady(300_007), seconds(1), 1);
    for number in (0..300_007).step_by(997) {
        let due = schedule.due_at_ns(number);
        assert_eq!(schedule.due(due), number + 1);
        assert_eq!(schedule.due(due.saturating_sub(1)), number.max(u64::from(due == 0)), "one nanosecond earlier");
    }
}

#[test]
fn a_stall_is_caught_up_and_not_forgotten() {
    let mut pacer = Pacer::new(Schedule::new(Rate::Steady(1_000), seconds(2), 1), 0, 1);
    assert_eq!(pacer.owed(0), 1);
    pacer.advance(1);
    assert_eq!(pacer.owed(1_500_000_000), 1_500, "everything that was due meanwhile");
}

#[test]
fn a_burst_is_due_as_a_whole_with_its_first_datagram() {
    let schedule = Schedule::new(Rate::Steady(1_000), SendAmount::Count(100), 32);
    assert_eq!([0, 31_999_999, 32_000_000, 95_999_999, 96_000_000].map(|now| schedule.due(now)), [32, 32, 64, 96, 100]);
    let clock = Late { now_ns: Cell::new(0), late_ns: 0 };
    let calls = run(&mut Pacer::new(schedule, 0, 1), &clock, 64);
    assert_eq!(calls, [(0, 32), (32_000_000, 32), (64_000_000, 32), (96_000_000, 4)]);
}

#[test]
fn the_shares_of_the_threads_add_up_at_every_moment() {
    for (unit, threads, total) in [(1, 1, 10), (1, 3, 100), (32, 3, 1_000), (64, 4, 1), (5, 7, 71)] {
        let schedule = Schedule::new(Rate::Steady(1_000), SendAmount::Count(total), unit);
        for now in (0..2 * SECOND).step_by(977_777) {
            let shares: u64 = (0..threads).map(|index| Pacer::new(schedule, index, threads).owed(now)).sum();
            assert_eq!(shares, schedule.due(now), "unit {unit}, {threads} threads, {now} ns");
        }
        let all = |index| {
            sum(&run(&mut Pacer::new(schedule, index, threads), &Late { now_ns: Cell::new(0), late_ns: 9 }, 64))
        };
        assert_eq!((0..threads).map(all).sum::<u64>(), total);
    }
}

#[test]
fn a_ramp_passes_through_the_mean_rate_and_keeps_its_count() {
    for (from, to) in [(1_000, 9_000), (9_000, 1_000)] {
        let schedule = Schedule::new(Rate::Ramp(from, to), seconds(10), 1);
        assert_eq!(schedule.total(), Some(50_000));
        // In the first half it is (3 from + to) / 8 of the mean of the two, by the area under the line.
        let half = (3 * from + to) / 4 * 5;
        assert!(schedule.due(5 * SECOND).abs_diff(half) <= 1, "{from}..{to}: {}", schedule.due(5 * SECOND));
        let clock = Late { now_ns: Cell::new(0), late_ns: 20_000 };
        let calls = run(&mut Pacer::new(schedule, 0, 1), &clock, 64);
        assert_eq!(sum(&calls), 50_000);
        for number in (0..50_000).step_by(4_999) {
            assert!(
                schedule.due(schedule.due_at_ns(number) + 1_000) >= number,
                "{number} is due when it is said to be"
            );
        }
    }
}

#[test]
fn a_ramp_over_a_count_takes_as_long_as_its_mean_rate_does() {
    let schedule = Schedule::new(Rate::Ramp(1_000, 3_000), SendAmount::Count(4_000), 1);
    assert!(schedule.due_at_ns(3_999).abs_diff(2 * SECOND) < 1_000_000);
}

#[test]
fn the_highest_rate_owes_everything_at_once_and_without_an_end_for_ever() {
    assert_eq!(Pacer::new(Schedule::new(Rate::Max, SendAmount::Count(1_001), 1), 0, 2).owed(0), 501);
    let mut pacer = Pacer::new(Schedule::new(Rate::Max, SendAmount::UntilStopped, 64), 1, 2);
    assert!(pacer.owed(0) > 1 << 60);
    pacer.advance(1 << 40);
    assert!(pacer.owed(0) > 1 << 60);
    assert_eq!(pacer.next_due_ns(), Some(0));
    assert_eq!(Schedule::new(Rate::Max, seconds(5), 1).asked(5), None);
}

#[test]
fn rates_are_read_with_their_suffix_and_exactly() {
    for (text, rate) in [
        ("5000", Rate::Steady(5000)),
        ("10k", Rate::Steady(10_000)),
        ("1.5M", Rate::Steady(1_500_000)),
        ("0.001k", Rate::Steady(1)),
        ("max", Rate::Max),
        ("10k..1M", Rate::Ramp(10_000, 1_000_000)),
        ("1M..10k", Rate::Ramp(1_000_000, 10_000)),
        ("5..5", Rate::Steady(5)),
    ] {
        assert_eq!(Rate::parse(text), Ok(rate), "{text}");
        assert_eq!(Rate::parse(&rate.to_string()), Ok(rate), "{text}");
    }
}

#[test]
fn a_wrong_rate_says_what_would_be_right() {
    for text in ["", "0", "fast", "1.2345k", "-1", "10 k", "10G", "k", "1..", "2000M", "1.5"] {
        let advice = Rate::parse(text).expect_err(text).to_string();
        assert!(advice.contains("10k..1M"), "{text}: {advice}");
    }
}
