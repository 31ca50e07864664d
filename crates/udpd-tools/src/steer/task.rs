//! What `udpd steer` is asked to do, and its failures: each with its exit code, and with the key or the command that
//! cures it.

use std::io::ErrorKind;
use std::path::PathBuf;

use steer::plan::Request;
use steer::{ApplyError, ApplyFailure, Export, JournalError, ReadError, SettingError, Steering};

use super::seats::request_for;
use udpd_base::exit::{ExitCode, Failure};
use udpd_engine::config::{Config, SteerConfig};
use udpd_engine::plan::advice;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SteerAction {
    /// Compare the host with the plan.
    Status,
    /// Show the plan and what it would change.
    Plan,
    /// Print the plan as a file for others to set it.
    Export(Export),
    Apply,
    /// Apply the plan and keep it so.
    Watch,
    Restore,
}

#[derive(Debug)]
pub struct SteerTask<'a> {
    pub action: SteerAction,
    /// The interfaces; those of the configuration when none is named.
    pub interfaces: Vec<String>,
    pub wish: &'a SteerConfig,
    /// The configuration of the daemon, where there is one.
    pub config: Option<&'a Config>,
    /// It comes from a file that was named, so a list without an interface means that there is nothing to do.
    pub from_file: bool,
    pub state_folder: PathBuf,
    /// What cannot be restored of the named interfaces is forgotten.
    pub forget: bool,
    pub json: bool,
}

impl SteerTask<'_> {
    /// What is asked of the plan for these interfaces alone.
    pub(super) fn part_for(&self, steering: &Steering<'_>, interfaces: &[String]) -> Result<Request, Failure> {
        request_for(steering, interfaces, self.wish).map_err(|error| self.failure(&error))
    }

    /// For `status`, what cannot be read is unknown.
    pub(super) fn unread(&self, failure: Failure) -> Failure {
        let code = if self.action == SteerAction::Status { ExitCode::Unknown } else { failure.code };
        Failure { code, ..failure }
    }

    pub(super) fn failure(&self, error: &ApplyError) -> Failure {
        Failure::new(self.code_of(error), advice::of_error(error, !self.interfaces.is_empty()))
    }

    /// The same where something was changed. That there is something to restore matters more to the operator than why
    /// not everything was set.
    pub(super) fn apply_failure(&self, failure: &ApplyFailure) -> Failure {
        let is_set = !failure.done.is_empty() || matches!(failure.cause, ApplyError::Refused(_));
        let code = if is_set { ExitCode::Partial } else { self.code_of(&failure.cause) };
        Failure::new(code, advice::of_failure(failure, !self.interfaces.is_empty()))
    }

    fn code_of(&self, error: &ApplyError) -> ExitCode {
        match error {
            ApplyError::Read(ReadError::NoInterface { .. }) => ExitCode::Unavailable,
            ApplyError::Read(_) if self.action == SteerAction::Status => ExitCode::Unknown,
            ApplyError::Plan(_) => ExitCode::Configuration,
            ApplyError::Permission(_) => ExitCode::Permission,
            ApplyError::Setting { cause: SettingError::Permission(_), .. } => ExitCode::Permission,
            ApplyError::Journal(cause) => code_of(cause),
            _ => ExitCode::Failure,
        }
    }
}

pub(super) fn code_of(error: &JournalError) -> ExitCode {
    match error {
        JournalError::Io { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => ExitCode::Permission,
        JournalError::Io { .. } => ExitCode::Disk,
        _ => ExitCode::Failure,
    }
}

#[cfg(test)]
mod tests {
    use steer::{Change, Setting};

    use super::*;

    #[test]
    fn whoever_changed_something_ends_with_the_code_that_says_so_and_others_with_that_of_their_cause() {
        let wish = SteerConfig::default();
        let task = SteerTask {
            action: SteerAction::Apply,
            interfaces: Vec::new(),
            wish: &wish,
            config: None,
            from_file: true,
            state_folder: PathBuf::new(),
            forget: false,
            json: false,
        };
        let [interface, from, to, why, command] = ["eth0", "0", "1", "", ""].map(str::to_owned);
        let change =
            Change { interface, setting: Setting::Rps(0), from, to, now: None, why, disruption: None, command };
        let code = |cause: fn() -> ApplyError, done: Vec<Change>| {
            task.apply_failure(&ApplyFailure { cause: cause(), done }).code
        };
        let permission = || ApplyError::Permission("no".to_owned());
        assert_eq!(code(permission, Vec::new()), ExitCode::Permission);
        assert_eq!(code(permission, vec![change]), ExitCode::Partial);
        assert_eq!(code(|| ApplyError::Refused(Vec::new()), Vec::new()), ExitCode::Partial, "the rest is set already");
    }
}
