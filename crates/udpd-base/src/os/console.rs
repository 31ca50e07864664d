//! The terminal of the commands that print something and end: their output, and Ctrl-C.

use std::fs;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

use super::signals;
use super::threads::ThreadRegistry;
use crate::exit::{ExitCode, Failure};

/// Writes a whole text. A reader that closes the pipe early, as `head` does, has what it wanted and is not an error.
pub fn print(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {error}; check where it is redirected to");
            Err(Failure::new(ExitCode::Disk, message))
        }
        _ => Ok(()),
    }
}

/// What a shell shows for a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// A flag that the first signal that would end the process raises, so that the command stops and reports; with the
/// second the process ends at once, after `clean_up`. `signals` says which signals these are. One that was ignored when
/// the process was started, as by nohup, is still ignored. To be called before there is another thread, because
/// threads inherit what is blocked.
pub fn stop_on_signal(clean_up: impl Fn() + Send + 'static) -> Result<Arc<AtomicBool>, Failure> {
    let ignored = ignored();
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    signals::listen(&ThreadRegistry::new().0, move |number| {
        let is_asked_for = number == Signal::SIGINT as i32 || number == Signal::SIGTERM as i32;
        let is_ignored = ignored >> (number - 1) & 1 == 1 && !is_asked_for;
        if !is_ignored && raised.swap(true, Ordering::Relaxed) {
            clean_up();
            std::process::exit(INTERRUPTED);
        }
    })?;
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

    #[test]
    fn what_a_process_ignores_is_known() {
        // Every Rust program ignores it, and this one nothing else.
        assert_eq!(ignored() >> (Signal::SIGPIPE as i32 - 1) & 1, 1);
        assert_eq!(ignored() >> (Signal::SIGTERM as i32 - 1) & 1, 0);
    }
}
