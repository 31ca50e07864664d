//! The journal of what was before, for the commands that change settings: where it is, how long another may hold it,
//! and what to do when it cannot be kept.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use steer::JournalError;

use super::task::{Task, code_of};
use udpd_base::exit::Failure;
use udpd_base::os::console;

/// What was before the first apply, until it is restored; goes with a reboot, as the settings do.
/// It is root's and no service's: what the service user may write, root must not believe.
pub const STATE_FOLDER: &str = "/run/udpd-steer";

/// How long another `apply` or `restore` may take before it is named and waited for no longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn wait_for(holder: &str, task: &Task<'_>, out: &mut dyn Write) {
    if !task.json {
        // Whoever does not read this waits all the same.
        let _ = console::print(out, &format!("waiting for {holder}\n"));
    }
}

/// What was before cannot be saved or read.
pub(super) fn not_kept(error: &JournalError) -> Failure {
    let cure = match error {
        JournalError::Io { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => "; root is needed",
        JournalError::Io { .. } => "",
        JournalError::Busy(_) => "; run it again when that process has ended",
        _ => "; look who made it, remove it and run it again",
    };
    Failure::new(code_of(error), format!("{error}{cure}"))
}
