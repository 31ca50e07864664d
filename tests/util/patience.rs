//! Waiting for what nothing announces: a file that another process closes, a thread that ends. What can be awaited is
//! awaited where it happens; this is for the rest.

use std::time::{Duration, Instant};

/// How long to wait at most; never as long unless something is broken.
const LIMIT: Duration = Duration::from_secs(60);

/// Asks again and again; each time something has had a chance to change. Panics when it never holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
