//! Files by source: each datagram goes to the file that its own addresses name, ten thousand of them if need be.
//!
//! Everything is bounded. So many files are open at once (`open_files`), and the one that was written longest ago is
//! closed for another. What is not written yet lies in one buffer for all files (`buffer_bytes`), so it outlives their
//! descriptors. So many sources get a file of their own (`sources_max`); one overflow file takes all others, and the
//! ledger counts what went there. Those that have files from before count among them, see `scan`.
//!
//! Records gather for a second before they are written: with ten thousand files of which a thousand are open, every
//! write may cost an opening and a closing, and one that carries a second's records is worth them. This consumer opens,
//! writes, finishes and closes its files itself; the keeper forces them to the disk and removes old ones, see `worker`.
//!
//! A closed file is recognized by its inode and length. If they have not changed it is written again as it is;
//! otherwise it is repaired like a file after a crash.

mod compress_queue;
mod error_log;
mod existing;
mod file_systems;
mod gathered;
mod key;
mod sink;
mod source_file;
mod table;
mod worker;

pub(super) use compress_queue::SourceCompressQueue;
pub(super) use file_systems::FILE_SYSTEMS_MAX;
pub(super) use sink::{SourcesSink, memory_bytes_max};
pub(super) use worker::{SourceFilesHandle, SourceFilesWorker};
