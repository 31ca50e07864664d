//! Signals: what each of them does to the daemon. None that somebody can send by mistake ends it without its books.
//!
//! One table says it for all 64. Some are requests, which the main thread hears of. Some mean nothing here and would kill a
//! process that did not think of them: they are caught and said. Some tell of something that a system call reports as well:
//! they are blocked in every thread, so that the call returns its error. The rest does by default what it should.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::crew::{self, Crew, Event};
use crate::exit::{ExitCode, Failure};

/// What a signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Deliver what is there, close the books, end with 0. A second one does not wait for sinks.
    End,
    /// The same, and the exit code is that of a failure: a limit has been reached that will kill the process.
    EndForced,
    /// Go over to new files.
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
    (SIGTERM, Effect::End),
    (SIGINT, Effect::End),
    (SIGQUIT, Effect::End),
    // The power is about to fail.
    (libc_number(Signal::SIGPWR), Effect::End),
    // The soft limit on CPU time (ulimit -t, LimitCPU=): at the hard one the kernel kills.
    (libc_number(Signal::SIGXCPU), Effect::EndForced),
    (SIGHUP, Effect::Reopen),
    (SIGUSR1, Effect::Report),
    (libc_number(Signal::SIGUSR2), Effect::Say),
    (libc_number(Signal::SIGALRM), Effect::Say),
    (libc_number(Signal::SIGVTALRM), Effect::Say),
    (libc_number(Signal::SIGPROF), Effect::Say),
    (libc_number(Signal::SIGIO), Effect::Say),
    (libc_number(Signal::SIGSTKFLT), Effect::Say),
    // A write beyond the limit on file sizes fails with EFBIG.
    (libc_number(Signal::SIGXFSZ), Effect::Block),
    // A write to a closed pipe fails with EPIPE.
    (libc_number(Signal::SIGPIPE), Effect::Block),
    // A daemon in the background writes its log to the terminal whatever `stty tostop` says, and never reads from it.
    (libc_number(Signal::SIGTTOU), Effect::Block),
    (libc_number(Signal::SIGTTIN), Effect::Block),
    // Ctrl-Z stops the process and `fg` lets it go on; the books stay whole.
    (libc_number(Signal::SIGTSTP), Effect::Default),
    (libc_number(Signal::SIGCONT), Effect::Default),
    (libc_number(Signal::SIGCHLD), Effect::Default),
    (libc_number(Signal::SIGURG), Effect::Default),
    (libc_number(Signal::SIGWINCH), Effect::Default),
    // Faults of the program: the memory image is worth more than books that may be wrong.
    (libc_number(Signal::SIGSEGV), Effect::Default),
    (libc_number(Signal::SIGBUS), Effect::Default),
    (libc_number(Signal::SIGFPE), Effect::Default),
    (libc_number(Signal::SIGILL), Effect::Default),
    (libc_number(Signal::SIGABRT), Effect::Default),
    (libc_number(Signal::SIGTRAP), Effect::Default),
    (libc_number(Signal::SIGSYS), Effect::Default),
    // Nobody can do anything about these.
    (libc_number(Signal::SIGKILL), Effect::Default),
    (libc_number(Signal::SIGSTOP), Effect::Default),
];

/// The signals that programs may give a meaning of their own. udpd gives them none.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

const fn libc_number(signal: Signal) -> i32 {
    signal as i32
}

/// What this signal does.
pub fn effect_of(number: i32) -> Effect {
    let named = EFFECTS.iter().find(|(own, _)| *own == number).map(|(_, effect)| *effect);
    named.unwrap_or(if REAL_TIME.contains(&number) { Effect::Say } else { Effect::Default })
}

/// The name that people know it by.
pub fn name_of(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// Puts the table in force. To be called before there is another thread, because threads inherit what is blocked.
pub fn watch(crew: &Crew) -> Result<(), Failure> {
    let fail = |error: io::Error| {
        Failure::new(
            ExitCode::Failure,
            format!("cannot watch for signals: {error}; raise the limits on threads and files"),
        )
    };
    let caught = (1..=64).filter(|&number| !matches!(effect_of(number), Effect::Block | Effect::Default));
    // Whoever started us may have blocked what we are to hear.
    let heard: SigSet = caught.clone().filter_map(|number| Signal::try_from(number).ok()).collect();
    heard.thread_unblock().map_err(|error| fail(error.into()))?;
    let blocked = EFFECTS.iter().filter(|(_, effect)| *effect == Effect::Block);
    let blocked: SigSet = blocked.filter_map(|(number, _)| Signal::try_from(*number).ok()).collect();
    blocked.thread_block().map_err(|error| fail(error.into()))?;
    let mut signals = Signals::new(caught).map_err(fail)?;
    let reporter = crew.clone();
    let body = move || {
        loop {
            for number in crew::at_rest(|| signals.wait()) {
                reporter.report(Event::Signal(number));
            }
        }
    };
    crew.spawn("udpd-signal", body).map(drop).map_err(fail)
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
