//! What the time is, and waiting for it.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[cfg(any(test, feature = "testing"))]
use crate::testing::simulated::current;

/// The time of the monotonic clock.
#[inline]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    #[cfg(any(test, feature = "testing"))]
    if let Some(simulated) = current() {
        return simulated.now();
    }
    Instant::now()
}

/// How long that moment is past; zero when it is not.
#[inline]
pub fn since(moment: Instant) -> Duration {
    now().saturating_duration_since(moment)
}

/// The date.
#[inline]
#[allow(clippy::disallowed_methods)]
pub fn wall() -> SystemTime {
    #[cfg(any(test, feature = "testing"))]
    if let Some(simulated) = current() {
        return simulated.wall();
    }
    SystemTime::now()
}

/// The date as what the ledger has: seconds since 1970.
pub fn seconds_since_1970() -> f64 {
    wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Waits this long.
#[inline]
#[allow(clippy::disallowed_methods)]
pub fn sleep(length: Duration) {
    #[cfg(any(test, feature = "testing"))]
    if let Some(simulated) = current() {
        return simulated.sleep(length);
    }
    thread::sleep(length);
}
