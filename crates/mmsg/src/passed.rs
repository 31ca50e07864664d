//! Descriptors that were passed to this process when it was started: those from number 3 on, as a service manager does
//! it.
//!
//! They were open before the first instruction of this process, so whatever it has opened itself has other numbers.
//! Their owner is whoever asks first.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// The first of them.
const FIRST: RawFd = 3;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the descriptors 3 to `2 + count`, which the environment says were passed to this process (`LISTEN_FDS`, where
/// `LISTEN_PID` is this process). From now on they are closed on `exec`. They can be taken once; after that there are
/// none.
///
/// Call it before this process opens anything. What was passed is then all that can be open under these numbers, and
/// where less was passed than the environment says nothing else is taken for it.
///
/// # Errors
/// One of them is not open; then none is taken.
pub fn take_passed(count: u16) -> io::Result<Vec<OwnedFd>> {
    let numbers = FIRST..FIRST + RawFd::from(count);
    if numbers.is_empty() || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    for number in numbers.clone() {
        sys::close_on_exec(number)
            .map_err(|error| io::Error::new(error.kind(), format!("descriptor {number}: {error}")))?;
    }
    // SAFETY: they are open, as the call before has shown. A caller who asks before anything is opened here gets what
    // was open when this process began, which has no owner in it; the flag lets one caller have them.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}
