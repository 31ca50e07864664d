//! Ctrl-C for the commands that end by themselves: the first asks them to stop and report, the second ends the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{ExitCode, Failure};

/// What a shell shows for a process that Ctrl-C ended.
pub const INTERRUPTED: i32 = 130;

/// A flag that SIGINT and SIGTERM raise. The second of them ends the process at once.
pub fn stop_on_signal() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error: io::Error| {
                Failure::new(ExitCode::Failure, format!("cannot watch for signals: {error}"))
            })?;
    }
    Ok(stop)
}
