//! Records in files.
//!
//! A file is a prefix of whole records at any moment that a reader can see: a write that took a part of a record is cut
//! back to the record before. While the file cannot be written, each datagram is counted as failed, other sinks do not
//! notice, and the file is tried again four times a second; when it is written again the log says what that cost.
//!
//! The consumer only ever writes. Whatever else is done to files, beginning and finishing them, syncing and removing
//! them, is for a thread of its own, see `keeper`: a disk that takes its time costs no datagram. Where each sender has
//! a file of its own the consumer begins and finishes them itself, see `sources`.
#![forbid(unsafe_code)]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod clock;
mod compress;
mod desk;
mod handle;
mod index;
mod keeper;
mod lock;
mod log_file;
mod lookout;
mod name;
mod office;
mod regular;
mod repair;
mod room;
mod settings;
mod setup;
mod shelf;
mod sink;
mod sources;
pub mod stdout;
pub mod template;

pub use compress::Compressor;
pub use handle::make_directory;
pub use keeper::FileKeeper;
pub use office::{Reopened, Reopener};
pub use settings::{FileSettings, Keep, Rotate, Sync};
