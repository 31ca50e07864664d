//! The gate that every system call of this crate, and of the crates above it, passes first. It is an empty inline
//! function unless they are built with `RUSTFLAGS="--cfg mmsg_faults"`: then a test makes the Nth call of a kind fail.

#[cfg(mmsg_faults)]
pub use fault::gate;

/// Lets every call through, with as many messages as it wanted.
///
/// # Errors
/// None, unless a test has ordered one.
#[cfg(not(mmsg_faults))]
#[inline]
pub fn gate(_call: Call, messages: usize) -> std::io::Result<usize> {
    Ok(messages)
}

/// The system calls that pass the gate, by name.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Socket,
    Bind,
    Connect,
    GetSockName,
    SetSockOpt,
    GetSockOpt,
    Fcntl,
    Shutdown,
    Sigaction,
    Sigmask,
    Tgkill,
    Poll,
    Recvmmsg,
    Recvmsg,
    Sendmmsg,
    Ioctl,
    Mmap,
    Mprotect,
    Munmap,
    Madvise,
    Membarrier,
    Unshare,
    /// Whatever the command.
    Bpf,
    IoUringSetup,
    /// Whatever the command.
    IoUringRegister,
    IoUringEnter,
}

#[cfg(mmsg_faults)]
pub mod fault {
    //! Faults for tests: the Nth system call of a kind fails, or sends less than it was asked to.
    //!
    //! This exists only in a build with `RUSTFLAGS="--cfg mmsg_faults"`: a feature could be switched on by any crate of
    //! a program and would put a lock before every system call. A fault reaches every thread of the process, so tests
    //! that use it take turns and live in a test binary of their own.

    use std::io;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    pub use super::Call;

    /// What happens to the chosen call.
    #[derive(Clone, Copy, Debug)]
    enum CallAction {
        Fail(i32),
        Partial(usize),
    }

    #[derive(Debug)]
    struct Fault {
        ticket: u64,
        call: Call,
        /// Calls of this kind up to and including the chosen one; 0 = it has happened.
        remaining: u64,
        action: CallAction,
    }

    #[derive(Debug)]
    struct Faults {
        next_ticket: u64,
        list: Vec<Fault>,
    }

    static FAULTS: Mutex<Faults> = Mutex::new(Faults { next_ticket: 0, list: Vec::new() });

    fn faults() -> MutexGuard<'static, Faults> {
        // A test that failed while it held the lock must not take the others with it: the list is valid at every step.
        FAULTS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An injected fault. Dropping it cancels a fault that has not happened yet.
    #[derive(Debug)]
    #[must_use = "the fault is cancelled as soon as the guard is dropped"]
    pub struct Guard {
        ticket: u64,
    }

    impl Guard {
        /// Whether the fault has happened. A test that walks N upwards ends at the first N for which it has not.
        pub fn has_fired(&self) -> bool {
            faults().list.iter().any(|fault| fault.ticket == self.ticket && fault.remaining == 0)
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            faults().list.retain(|fault| fault.ticket != self.ticket);
        }
    }

    /// Makes the `nth` call of this kind from now on (1 = the next one) fail with `errno`.
    pub fn inject(call: Call, nth: u64, errno: i32) -> Guard {
        add(call, nth, CallAction::Fail(errno))
    }

    /// Makes the `nth` `sendmmsg` from now on send no more than `messages` of what it was given.
    pub fn inject_partial_send(nth: u64, messages: usize) -> Guard {
        add(Call::Sendmmsg, nth, CallAction::Partial(messages))
    }

    fn add(call: Call, nth: u64, action: CallAction) -> Guard {
        let mut faults = faults();
        let ticket = faults.next_ticket;
        faults.next_ticket += 1;
        faults.list.push(Fault { ticket, call, remaining: nth.max(1), action });
        Guard { ticket }
    }

    /// Every system call passes here with the number of messages it is about to move, and learns how many it may.
    ///
    /// # Errors
    /// The one that a test has injected.
    pub fn gate(call: Call, messages: usize) -> io::Result<usize> {
        let mut allowed = Ok(messages);
        for fault in faults().list.iter_mut().filter(|fault| fault.call == call && fault.remaining > 0) {
            fault.remaining -= 1;
            if fault.remaining == 0 {
                allowed = match fault.action {
                    CallAction::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
                    CallAction::Partial(most) => Ok(messages.min(most)),
                };
            }
        }
        allowed
    }
}
