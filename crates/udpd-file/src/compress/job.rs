//! What a keeper asks of the thread that compresses, and the answer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;
use std::{fmt, io};

use super::super::shelf::Candidate;
use super::temporary::Temporary;
use udpd_base::codec::Recipe;
use udpd_base::format::boundary::Boundary;

/// A file to be compressed.
#[derive(Debug)]
pub struct Job {
    pub(crate) file: Candidate,
    pub recipe: Recipe,
    pub boundary: Boundary,
    pub whose: Whose,
    /// Held by whoever begins to write the file again, where that is not the keeper.
    pub latch: Option<Arc<Mutex<()>>>,
    /// Whoever asks. When that is gone nobody is left who could give the result its name.
    pub asker: Weak<dyn Asker>,
}

/// Hears what became of a job.
pub trait Asker: Send + Sync {
    fn report(&self, report: Report);
}

/// Which of the keeper's files it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// That of a room.
    Room(usize),
    /// One of the files by source of a consumer.
    Annex(usize),
}

/// What became of a job.
#[derive(Debug)]
pub struct Report {
    pub(crate) file: Candidate,
    pub whose: Whose,
    pub outcome: Result<Made, Refusal>,
}

/// A compressed form, whole and on the disk, that has no name yet.
#[derive(Debug)]
pub struct Made {
    pub(super) temporary: Temporary,
    pub(super) plain: Seen,
    pub(super) bytes: u64,
    pub(super) target: PathBuf,
    pub(super) recipe: Recipe,
}

/// By what it is known that a file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    pub(super) changed: SystemTime,
}

/// Why there is none.
#[derive(Debug)]
pub enum Refusal {
    /// The file was removed, replaced or changed meanwhile.
    Changed,
    /// Somebody uses it.
    InUse,
    /// Nobody waits for it any more.
    Unwanted,
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Changed,
            io::ErrorKind::ResourceBusy => Self::InUse,
            _ => Self::Failed(error),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => formatter.write_str("it was changed or removed meanwhile"),
            Self::InUse => formatter.write_str("somebody has locked it"),
            Self::Unwanted => formatter.write_str("its sink has ended"),
            Self::Failed(error) => write!(formatter, "{error}"),
        }
    }
}
