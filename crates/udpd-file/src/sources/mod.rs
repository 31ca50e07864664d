//! Files by source: each datagram goes to the file that its own addresses name, ten thousand of them if need be.
//!
//! Everything is bounded. So many files are open at once (`open_files`), and the one that was written longest ago is
//! closed for another. What is not written yet lies in one buffer for all files (`buffer_bytes`), so it outlives their
//! descriptors. So many sources get a file of their own (`sources_max`); one overflow file takes all others, and the
//! ledger counts what went there. Those that have files from before count among them, see `census`.
//!
//! Records gather for a second before they are written: with ten thousand files of which a thousand are open, every
//! write may cost an opening and a closing, and one that carries a second's records is worth them. This consumer opens,
//! writes, finishes and closes its files itself; the keeper forces them to the disk and removes old ones, see `annex`.
//!
//! A file that was closed is known by its number and its length. Found again as it was left, it is gone on with;
//! otherwise it is repaired like any file that a crash has left.

mod annex;
mod census;
mod disks;
mod gathered;
mod key;
mod piles;
mod sink;
mod source_file;
mod table;
mod voice;
mod walk;

pub(super) use annex::{Annex, AnnexPost};
pub(super) use disks::FILE_SYSTEMS_MAX;
pub(super) use piles::SourcePiles;
pub(super) use sink::{SourcesSink, memory_bytes_max};
