//! Waiting for what no process announces: a file that another process closes, a thread that ends. What can be awaited
//! is awaited where it happens; this is for the rest.

use std::time::{Duration, Instant};

/// Longer than any machine needs; only a test of something that hangs ever sees it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again; each time something has had a chance to change. Panics when it never holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
