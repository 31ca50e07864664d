//! How a search is ended early: the first signal lets it end by itself and print what it has, the second ends it at
//! once. Either way nothing of the bench's own is left behind, so every signal that would end the process is waited for
//! here.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::scratch::Scratches;
use crate::exit::{ExitCode, Failure};
use crate::os::crew::{Crew, at_rest};
use crate::os::interrupt::INTERRUPTED;
use crate::os::signals::{Effect, effect_of};

/// A flag that every signal raises which would end the process, or which tells the daemon something. One that was
/// ignored when the process was started, as by nohup, goes on being ignored.
pub(super) fn stop_and_clean_up(crew: &Crew, scratches: &Scratches) -> Result<Arc<AtomicBool>, Failure> {
    let ignored = ignored();
    let is_ignored = |signal: i32| ignored >> (signal - 1) & 1 == 1 && !matches!(signal, SIGINT | SIGTERM);
    let ends = |signal: &i32| !matches!(effect_of(*signal), Effect::Block | Effect::Default) && !is_ignored(*signal);
    // A file that may not grow any more is an error of the write, as every other.
    let awaited: Vec<i32> = (1..=64).filter(ends).chain([SIGXFSZ]).collect();
    let fail = |error: io::Error| Failure::new(ExitCode::Failure, format!("cannot watch for signals: {error}"));
    // Whoever started us may have blocked them.
    let heard: SigSet = awaited.iter().filter_map(|signal| Signal::try_from(*signal).ok()).collect();
    heard.thread_unblock().map_err(|error| fail(error.into()))?;
    let mut signals = Signals::new(awaited).map_err(fail)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (raised, scratches) = (Arc::clone(&stop), scratches.clone());
    let body = move || {
        let mut coming = signals.forever();
        while let Some(signal) = at_rest(|| coming.next()) {
            if signal != SIGXFSZ && raised.swap(true, Ordering::Relaxed) {
                scratches.remove();
                std::process::exit(INTERRUPTED);
            }
        }
    };
    crew.spawn("bench-signal", body).map_err(fail)?;
    Ok(stop)
}

/// The signals that this process ignores, the first of them in the lowest bit.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGPIPE;

    #[test]
    fn what_a_process_ignores_is_known() {
        // Every Rust program ignores it, and this one nothing else.
        assert_eq!(ignored() >> (SIGPIPE - 1) & 1, 1);
        assert_eq!(ignored() >> (SIGTERM - 1) & 1, 0);
    }
}
