//! Signals: what each of them does to the daemon. None that can be sent by mistake ends it without its ledger.
//!
//! One table says it for all 64. Some are requests, which the main thread receives. Some mean nothing here and would
//! kill a process that did not think of them: they are heard and said. Some tell of something that a system call
//! reports as well: they are blocked in every thread, so that the call returns its error. The rest does by default what
//! it should.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::role::ThreadRole;
use super::threads::{self, DaemonEvent, ThreadRegistry};
use crate::exit::{ExitCode, Failure};
use crate::seams::clock;

/// What a signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Deliver what is there, close the ledger, end with 0. A second one does not wait for sinks.
    End,
    /// The same, and the exit code is that of a failure: a limit has been reached that will kill the process.
    EndForced,
    Reopen,
    /// Write the ledger to the log.
    Report,
    /// It means nothing here, and the log says so.
    Say,
    /// Blocked: the system call that it belongs to reports the same as an error.
    Block,
    /// As the kernel has it: stop and go on, a fault of the program, or nothing.
    Default,
}

/// The table. What it does not name, the kernel handles as ever.
pub const EFFECTS: &[(i32, Effect)] = &[
    (number_of(Signal::SIGTERM), Effect::End),
    (number_of(Signal::SIGINT), Effect::End),
    (number_of(Signal::SIGQUIT), Effect::End),
    // The power is about to fail.
    (number_of(Signal::SIGPWR), Effect::End),
    // The soft limit on CPU time (ulimit -t, LimitCPU=): at the hard one the kernel kills.
    (number_of(Signal::SIGXCPU), Effect::EndForced),
    (number_of(Signal::SIGHUP), Effect::Reopen),
    (number_of(Signal::SIGUSR1), Effect::Report),
    (number_of(Signal::SIGUSR2), Effect::Say),
    (number_of(Signal::SIGALRM), Effect::Say),
    (number_of(Signal::SIGVTALRM), Effect::Say),
    (number_of(Signal::SIGPROF), Effect::Say),
    (number_of(Signal::SIGIO), Effect::Say),
    (number_of(Signal::SIGSTKFLT), Effect::Say),
    // A write beyond the limit on file sizes fails with EFBIG.
    (number_of(Signal::SIGXFSZ), Effect::Block),
    // A write to a closed pipe fails with EPIPE.
    (number_of(Signal::SIGPIPE), Effect::Block),
    // A daemon in the background writes its log to the terminal whatever `stty tostop` says, and never reads from it.
    (number_of(Signal::SIGTTOU), Effect::Block),
    (number_of(Signal::SIGTTIN), Effect::Block),
    // It wakes a receiver, which lets it through; it means nothing to any other thread.
    (number_of(Signal::SIGURG), Effect::Block),
    // Ctrl-Z stops the process and `fg` lets it go on; the ledger stays whole.
    (number_of(Signal::SIGTSTP), Effect::Default),
    (number_of(Signal::SIGCONT), Effect::Default),
    (number_of(Signal::SIGCHLD), Effect::Default),
    (number_of(Signal::SIGWINCH), Effect::Default),
    // Faults of the program: the memory image is worth more than a ledger that may be wrong.
    (number_of(Signal::SIGSEGV), Effect::Default),
    (number_of(Signal::SIGBUS), Effect::Default),
    (number_of(Signal::SIGFPE), Effect::Default),
    (number_of(Signal::SIGILL), Effect::Default),
    (number_of(Signal::SIGABRT), Effect::Default),
    (number_of(Signal::SIGTRAP), Effect::Default),
    (number_of(Signal::SIGSYS), Effect::Default),
    // No process can do anything about these.
    (number_of(Signal::SIGKILL), Effect::Default),
    (number_of(Signal::SIGSTOP), Effect::Default),
];

pub const SIGTERM: i32 = number_of(Signal::SIGTERM);

/// How long the thread sleeps when it can read no signal at all.
const PAUSE: Duration = Duration::from_secs(1);

/// The signals that programs may give a meaning of their own. udpd gives them none.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

const fn number_of(signal: Signal) -> i32 {
    signal as i32
}

pub fn effect_of(number: i32) -> Effect {
    let named = EFFECTS.iter().find(|(own, _)| *own == number).map(|(_, effect)| *effect);
    named.unwrap_or(if REAL_TIME.contains(&number) { Effect::Say } else { Effect::Default })
}

/// The name that people know it by.
pub fn name_of(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// Puts the table in force for the daemon: what is to be heard becomes an event of its registry.
pub fn watch(registry: &ThreadRegistry) -> Result<(), Failure> {
    let reporter = registry.clone();
    listen(registry, move |number| reporter.report(DaemonEvent::Signal(number)))
}

/// Puts the table in force and tells of each signal that is to be heard. To be called before there is another thread,
/// because threads inherit what is blocked.
///
/// What is heard is blocked as well, and a thread reads it from a descriptor. A handler would have to wake a thread by
/// a system call, and where that is denied SIGTERM would end nothing.
pub(super) fn listen(registry: &ThreadRegistry, mut tell: impl FnMut(i32) + Send + 'static) -> Result<(), Failure> {
    let fail = |error: io::Error| {
        Failure::new(
            ExitCode::Failure,
            format!("cannot watch for signals: {error}; raise the limits on threads and files"),
        )
    };
    all_but(|effect| effect == Effect::Default).thread_block().map_err(|error| fail(error.into()))?;
    let heard = all_but(|effect| matches!(effect, Effect::Default | Effect::Block));
    let descriptor = SignalFd::with_flags(&heard, SfdFlags::SFD_CLOEXEC).map_err(|error| fail(error.into()))?;
    let body = move || {
        loop {
            tell(threads::blocking(|| next(&descriptor)));
        }
    };
    registry.spawn("udpd-signal", ThreadRole::Signals, body).map(drop).map_err(fail)
}

/// Every signal, the real-time ones included, without those of which `is_out` holds.
fn all_but(is_out: impl Fn(Effect) -> bool) -> SigSet {
    let mut set = SigSet::all();
    EFFECTS.iter().filter(|(_, effect)| is_out(*effect)).for_each(|(number, _)| {
        if let Ok(signal) = Signal::try_from(*number) {
            set.remove(signal);
        }
    });
    set
}

/// Waits for a signal that is to be heard. Where the descriptor cannot be read, another call takes those that have a
/// name.
fn next(descriptor: &SignalFd) -> i32 {
    loop {
        match descriptor.read_signal() {
            Ok(Some(signal)) => return signal.ssi_signo.cast_signed(),
            Ok(None) | Err(Errno::EINTR) => {}
            Err(error) => {
                log::warn!("cannot read which signals have come: {error}; udpd waits for them by sigwait instead");
                if let Ok(signal) = named().wait() {
                    return signal as i32;
                }
                clock::sleep(PAUSE);
            }
        }
    }
}

/// What is heard and has a name.
fn named() -> SigSet {
    let heard = |effect: &Effect| !matches!(effect, Effect::Default | Effect::Block);
    EFFECTS
        .iter()
        .filter(|(_, effect)| heard(effect))
        .filter_map(|(number, _)| Signal::try_from(*number).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_signal_of_the_kernel_once() {
        for number in 1..=31 {
            let count = EFFECTS.iter().filter(|(own, _)| *own == number).count();
            assert_eq!(count, 1, "{}", name_of(number));
        }
        assert_eq!(EFFECTS.len(), 31);
        // 32 and 33 belong to the C library.
        assert!((34..=64).all(|number| effect_of(number) == Effect::Say));
        assert_eq!(effect_of(32), Effect::Default);
    }

    #[test]
    fn nothing_that_kills_by_default_is_left_to_the_kernel_but_faults_and_what_cannot_be_caught() {
        let deadly = [1, 2, 3, 10, 12, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30];
        let left: Vec<String> =
            deadly.into_iter().filter(|&number| effect_of(number) == Effect::Default).map(name_of).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
