//! Why what was cannot be saved, read or removed. What is of no use and what cannot be reached are different things: at
//! the first somebody has to look, and the second may pass.

use std::fmt;
use std::io;
use std::path::Path;

use nix::errno::Errno;

/// Why what was cannot be saved, read or removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum JournalError {
    /// A file or the folder cannot be read or written.
    Io {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        cause: io::Error,
    },
    /// There is something that is not used: it is damaged, or somebody else may have put it there.
    Unusable(String),
    /// Another process holds the lock.
    Busy(String),
}

impl JournalError {
    pub(super) fn io(doing: String, error: Errno) -> Self {
        Self::Io { doing, cause: error.into() }
    }

    pub(super) fn damaged(path: &Path) -> Self {
        Self::Unusable(format!("{} is damaged: nothing is restored from it", path.display()))
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, cause } => write!(formatter, "cannot {doing}: {cause}"),
            Self::Unusable(what) | Self::Busy(what) => formatter.write_str(what),
        }
    }
}

impl std::error::Error for JournalError {}
