//! Descriptors that a service manager passed to this process when it was started: those from number 3 on.
//!
//! A number becomes an owned descriptor here, so nothing else in the process may own it. Two things ensure that. They
//! are given out once. And none is taken that is closed on `exec`: a passed descriptor has come through an `exec`,
//! while what this process has opened itself, by the standard library or a well-behaved crate, is closed on the next
//! one. Such a number is left alone, however late the call comes and whatever the environment says.
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
/// Call it before this process opens anything. If fewer were passed than the environment says, nothing else is taken
/// for them: what Rust opens is closed on `exec` and refused here. The call cannot see a descriptor that a C library
/// has opened before it without `O_CLOEXEC`, or one that other code has taken by its number.
///
/// # Errors
/// One of them is not open, or this process has opened it itself; then none is taken.
pub fn take_passed(count: u16) -> io::Result<Vec<OwnedFd>> {
    if count == 0 || IS_TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let numbers = FIRST..FIRST + RawFd::from(count);
    if let Err(error) = numbers.clone().try_for_each(refuse_own) {
        // Nothing was taken, so the caller may try again.
        IS_TAKEN.store(false, Ordering::Release);
        return Err(error);
    }
    for number in numbers.clone() {
        sys::close_on_exec(number).map_err(|error| about(number, &error))?;
    }
    // SAFETY: they are open, as the calls before have shown, and came through `exec`: nothing in this process has
    // opened them. The flag lets one caller have them.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}

/// Refuses what this process has opened, and what is not open.
fn refuse_own(number: RawFd) -> io::Result<()> {
    if sys::is_closed_on_exec(number).map_err(|error| about(number, &error))? {
        let why = io::Error::new(io::ErrorKind::InvalidInput, "this process has opened it itself");
        return Err(about(number, &why));
    }
    Ok(())
}

fn about(number: RawFd, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("descriptor {number}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "an interpreter has no such descriptors")]
    fn what_this_process_has_opened_is_not_taken_and_what_came_through_exec_is() {
        let own = File::open("/dev/null").expect("every host has one");
        let refused = refuse_own(own.as_raw_fd()).expect_err("it has an owner");
        assert!(refused.to_string().contains("has opened it itself"), "{refused}");
        // As a service manager leaves it.
        let kept = own.as_fd().try_clone_to_owned().expect("a copy");
        sys::keep_on_exec(kept.as_raw_fd()).expect("a flag");
        refuse_own(kept.as_raw_fd()).expect("it could have been passed");
        let closed = kept.as_raw_fd();
        drop(kept);
        // Another test may have opened something under this number meanwhile, which is refused as well.
        refuse_own(closed).expect_err("it is not open");
    }
}
