//! Compression of finished files, by one thread for the whole daemon, which no receiver and no consumer waits for.
//!
//! The keeper of a sink says which file, from its list of finished ones, one at a time for each path (`queue`). The
//! thread (`compressor`) writes the compressed form under a name of its own beside the file and forces it to the disk
//! (`packing`, `temporary`). The keeper then lists it, gives it its name, and only after that has reached the disk
//! removes the plain file (`exchange`). So at every moment there is one whole form at least. What a crash leaves is a
//! temporary file, which the next attempt replaces, or both forms, of which the next start removes the plain one.
//!
//! No queue holds what waits: it is every file of the index without a compressed form. So a full disk, a restart, or a
//! build without the method loses none of it.

mod compressor;
mod form;
mod queue;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;
use std::{fmt, io};

pub(super) use compressor::CompressJobs;
pub use compressor::Compressor;
pub(super) use form::{CompressedSizes, exchange, is_temporary_of, list, remove_left, remove_plain, take_place};
pub(super) use queue::CompressQueue;

use super::retention::CompressCandidate;
use form::TemporaryFile;
use udpd_base::codec::Recipe;
use udpd_base::format::boundary::Boundary;

/// A file to be compressed.
#[derive(Debug)]
pub struct CompressJob {
    pub(crate) file: CompressCandidate,
    pub recipe: Recipe,
    pub boundary: Boundary,
    pub owner: JobOwner,
    /// Held by a consumer that begins to write the file again (files by source).
    pub files_lock: Option<Arc<Mutex<()>>>,
    /// Receives the report. When it is gone, the result would get no name.
    pub receiver: Weak<dyn ReportReceiver>,
}

/// Receives the outcome of a job.
pub trait ReportReceiver: Send + Sync {
    fn report(&self, report: CompressReport);
}

/// Which of the keeper's files it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOwner {
    /// The file of this index.
    File(usize),
    /// A file by source of this consumer.
    Sources(usize),
}

/// The outcome of a job.
#[derive(Debug)]
pub struct CompressReport {
    pub(crate) file: CompressCandidate,
    pub owner: JobOwner,
    pub outcome: Result<CompressedFile, CompressError>,
}

/// A complete compressed form, synced, that has no name yet.
#[derive(Debug)]
pub struct CompressedFile {
    pub(super) temporary: TemporaryFile,
    pub(super) plain: FileStamp,
    pub(super) bytes: u64,
    pub(super) target: PathBuf,
    pub(super) recipe: Recipe,
}

/// What shows that a file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    pub(super) changed: SystemTime,
}

/// Why a file was not compressed.
#[derive(Debug)]
pub enum CompressError {
    /// The file was removed, replaced or changed meanwhile.
    Changed,
    /// Another process has locked it.
    InUse,
    /// Its sink has ended.
    Unwanted,
    Failed(io::Error),
}

impl From<io::Error> for CompressError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Changed,
            io::ErrorKind::ResourceBusy => Self::InUse,
            _ => Self::Failed(error),
        }
    }
}

impl fmt::Display for CompressError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => formatter.write_str("it was changed or removed meanwhile"),
            Self::InUse => formatter.write_str("another process has locked it"),
            Self::Unwanted => formatter.write_str("its sink has ended"),
            Self::Failed(error) => write!(formatter, "{error}"),
        }
    }
}
