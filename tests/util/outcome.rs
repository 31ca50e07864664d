//! A command that has run to its end, and what it must have said.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::process::UDPD;

/// How a command ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs udpd to its end with these arguments, without a daemon around it.
pub(crate) fn udpd(arguments: &[&str]) -> Outcome {
    Outcome::of(Command::new(UDPD).args(arguments))
}

/// Says what this machine cannot check, past the test harness, which would keep it for itself.
pub(crate) fn not_checked(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOT CHECKED: {what}");
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

impl Outcome {
    /// Runs any command to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).env_remove("NOTIFY_SOCKET");
        command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")).into()
    }

    /// Whether the exit code is 0.
    pub(crate) fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// All that it printed.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Checks the exit code, and that each of these words was printed.
    #[track_caller]
    pub(crate) fn ends(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for words in words {
            assert!(self.stdout.contains(words) || self.stderr.contains(words), "{words:?} is missing: {self:#?}");
        }
        self
    }

    /// The same of a command that succeeds.
    #[track_caller]
    pub(crate) fn succeeds(self, words: &[&str]) -> Self {
        self.ends(0, words)
    }

    /// What a command that succeeds printed as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let own = self.succeeds(&[]);
        serde_json::from_str(&own.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {own:#?}"))
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}
