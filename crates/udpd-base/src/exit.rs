//! How a command ends: one error type for the whole command line, and the exit code that scripts and systemd act on.
//!
//! A message says what failed, on what, with which value, why, and what to do. The code says which kind of cure helps:
//! restarting (1), fixing the call (2), taking less or giving more (3), reading what could not be read (4), asking for
//! less or restoring (5), waiting for an address (69), making room (74), granting a right (77) or editing the file
//! (78).

use std::fmt;

/// What the process tells its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Something failed while running.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A bench lost more than it was allowed to.
    Loss = 3,
    /// `steer status`: nothing that was read differs, but something could not be read or cannot be had.
    Unknown = 4,
    /// `steer apply`: a part of the plan is set, and what that changed is saved; another part is not.
    Partial = 5,
    /// An address or an interface cannot be had.
    Unavailable = 69,
    /// A file cannot be written.
    Disk = 74,
    /// A right is missing.
    Permission = 77,
    /// The configuration is wrong.
    Configuration = 78,
}

impl ExitCode {
    /// Every code but 0, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Failure,
        Self::Usage,
        Self::Loss,
        Self::Unknown,
        Self::Partial,
        Self::Unavailable,
        Self::Disk,
        Self::Permission,
        Self::Configuration,
    ];

    /// As the manual and docs/running.md say it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Failure => {
                "something failed while running, or the reader of `stdout` has gone; `steer status`: something differs"
            }
            Self::Usage => "the command line is wrong",
            Self::Loss => "a bench found less than expected; `explain` found a loss",
            Self::Unknown => {
                "`steer status`: nothing differs, but something could not be read, or the card does not offer it"
            }
            Self::Partial => {
                "`steer apply`: a part of the plan is set and another is not; stderr says which. `udpd steer restore` \
                 takes back what is set"
            }
            Self::Unavailable => "an address or interface is unavailable, or no daemon answers",
            Self::Disk => "a file cannot be written, or what a command was given to read cannot be read",
            Self::Permission => "a permission is missing",
            Self::Configuration => "the configuration is wrong: file, line, column, key and cure are on stderr",
        }
    }
}

/// Why a command ended without doing what it was asked to.
#[derive(Debug)]
pub struct Failure {
    pub code: ExitCode,
    /// The whole message, ready for stderr, without a trailing newline.
    pub message: String,
}

impl Failure {
    /// A failure with its code and message.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_operators_has_every_code_with_its_meaning() {
        let page = include_str!("../../../docs/running.md");
        for code in ExitCode::ALL {
            let row = format!("\n| {} | {} |\n", code as u8, code.meaning());
            assert!(page.contains(&row), "docs/running.md lacks the row:{row}");
        }
    }
}
