//! The hand-over of udpd-base and the table of copies of udpd-inspect, compiled once more on loom's model of threads
//! and memory: its atomics and fences, its parking, its counted references. A test in `tests/` then runs in every order
//! in which its threads can come, and each load sees every value that the memory order allows, also those that this
//! machine never shows. The crates know nothing of it, apart from a file `sync.rs`, in whose place one of this crate
//! stands.
//!
//! The same order comes at the same place in every run, so a test that fails fails again. What a model leaves out: time
//! (no deadline passes), wake-ups for no reason, and a plain store beside a swap of the same flag.
#![forbid(unsafe_code)]
// The files of the hand-over bring tests of their own, which are for real threads.
#![cfg(not(test))]
#![allow(missing_docs, dead_code, unreachable_pub, clippy::print_stdout)]

pub mod deduplicate;
pub mod explore;
pub mod handover;

/// Of `udpd_base::os`, what the hand-over calls: a heartbeat beats in no model.
mod os {
    pub(crate) mod threads {
        pub(crate) fn blocking<T>(wait: impl FnOnce() -> T) -> T {
            wait()
        }
    }
}

/// Of `udpd_base::seams`: a clock that stands still, and waits of the model.
mod seams {
    pub(crate) mod clock {
        use std::sync::OnceLock;
        use std::time::{Duration, Instant};

        pub(crate) fn now() -> Instant {
            static NOW: OnceLock<Instant> = OnceLock::new();
            *NOW.get_or_init(Instant::now)
        }

        pub(crate) fn sleep(_length: Duration) {
            loom::thread::yield_now();
        }
    }

    pub(crate) mod waits {
        use std::time::Instant;

        use loom::thread::{self, Thread};

        /// No deadline ends it: what it waits for has to come.
        pub(crate) fn park(_deadline: Option<Instant>) {
            thread::park();
        }

        pub(crate) fn unpark(thread: &Thread) {
            thread.unpark();
        }

        pub(crate) fn until<T>(
            _deadline: Option<Instant>,
            _ready: impl FnMut() -> Option<T>,
            wait: impl FnOnce() -> Option<T>,
        ) -> Option<T> {
            wait()
        }
    }
}
