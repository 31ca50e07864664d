//! Finished files are compressed, by one thread for the whole daemon, which no receiver and no consumer waits for.
//!
//! The keeper of a sink says which file, from its list of finished ones, one at a time for each path (`pile`). The
//! thread (`compressor`) writes the compressed form under a name of its own beside the file and forces it to the disk
//! (`packing`, `temporary`). The keeper then lists it, gives it its name, and only after that has reached the disk
//! removes the plain file (`exchange`). So at every moment there is one whole form at least. What a crash leaves is a
//! temporary file, which the next attempt replaces, or both forms, of which the next start removes the plain one.
//!
//! What waits is in nobody's queue: it is whatever the list names that has no compressed form. A disk that is full, a
//! start that comes too early, or a build without the method loses none of it.

mod compressor;
mod exchange;
mod job;
mod packing;
mod pile;
mod temporary;

pub use compressor::Compressor;
pub(super) use compressor::Jobs;
pub(super) use exchange::{Exchanged, exchange, list, remove_plain, take_place};
pub(super) use job::{Asker, Job, Refusal, Report, Whose};
pub(super) use pile::Pile;
pub(super) use temporary::{is_temporary_of, remove_left};
