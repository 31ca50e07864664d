//! The clocks of the bench: one reading per batch, never one per datagram.
//!
//! Schedules and send times are on CLOCK_MONOTONIC, which is never set. The kernel stamps arrivals on CLOCK_REALTIME,
//! so a sender tells the distance between the two as well. The trait is there for tests, which need a clock that is
//! late on purpose.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

/// A sleeping thread wakes up late by about this much, so the rest is spent spinning.
const SPIN_NS: u64 = 60_000;

/// The longest sleep in one piece, so that a waiting thread checks its stop flag this often.
const NAP_NS: u64 = 50_000_000;

/// How often the two clocks are read to find the tightest pair.
const PAIRS: usize = 5;

/// A clock that a thread can sleep on.
pub(crate) trait PacingClock {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// Returns at `due_ns` or earlier; call it until that moment has come.
    fn approach(&self, due_ns: u64);
}

/// CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Monotonic;

impl PacingClock for Monotonic {
    fn now_ns(&self) -> u64 {
        read_ns(ClockId::CLOCK_MONOTONIC)
    }

    /// Sleeps until shortly before, then returns at once, so that the caller spins.
    fn approach(&self, due_ns: u64) {
        let now = self.now_ns();
        let Some(left) = due_ns.checked_sub(now + SPIN_NS).filter(|left| *left > 0) else {
            std::hint::spin_loop();
            return;
        };
        // An absolute time: a thread that is preempted between here and the call does not sleep longer.
        let until = TimeSpec::from_duration(Duration::from_nanos(now + left.min(NAP_NS)));
        match clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &until) {
            Ok(_) | Err(Errno::EINTR) => {}
            // A kernel that cannot sleep on this clock lets us spin all the way.
            Err(_) => std::hint::spin_loop(),
        }
    }
}

/// CLOCK_REALTIME, since the Unix epoch.
pub(crate) fn realtime_ns() -> u64 {
    read_ns(ClockId::CLOCK_REALTIME)
}

pub(crate) fn thread_cpu_ns() -> u64 {
    read_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the whole process, also of its threads that have ended.
pub(crate) fn process_cpu_ns() -> u64 {
    read_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC: the tightest of a few pairs of readings.
pub(crate) fn realtime_offset_ns() -> i64 {
    let pair = |_| {
        let before = Monotonic.now_ns();
        let realtime = realtime_ns();
        let width = Monotonic.now_ns() - before;
        (width, realtime.wrapping_sub(before + width / 2).cast_signed())
    };
    (0..PAIRS).map(pair).min().map_or(0, |(_, offset)| offset)
}

/// These clocks exist on every Linux, so a failure would be a mistake here; 0 then shows in every figure.
fn read_ns(clock: ClockId) -> u64 {
    let time = clock.now().map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_moment_and_not_before() {
        let due = Monotonic.now_ns() + 3_000_000;
        while Monotonic.now_ns() < due {
            Monotonic.approach(due);
        }
        // Only the clock itself could make this false: what is checked is that the loop above ends.
        assert!(Monotonic.now_ns() >= due);
    }

    #[test]
    fn the_offset_takes_one_clock_to_the_other() {
        let converted = Monotonic.now_ns().wrapping_add_signed(realtime_offset_ns());
        assert!(realtime_ns().abs_diff(converted) < 1_000_000_000, "the two differ by a second");
    }
}
