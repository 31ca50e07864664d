//! Records in files.
//!
//! A file is a prefix of whole records at any moment that a reader can see: a write that took a part of a record is cut
//! back to the record before. While the file cannot be written, each datagram counts as failed, other sinks do not
//! notice, and the file is retried four times a second; when it is written again the log tells what was lost.
//!
//! The consumer only writes. A thread of its own begins, finishes, syncs and removes files, see `keeper`, so a slow
//! disk costs no datagram. Where each sender has a file of its own the consumer begins and finishes them itself, see
//! `sources`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod clock;
mod compress;
mod finished_files;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
mod handle;
mod inotify_watch;
mod keeper;
mod lock;
mod mailbox;
mod name;
mod queue;
mod repair;
mod retention;
mod rotating_file;
mod settings;
mod sink;
mod sources;
pub mod stdout;
pub mod template;
pub mod upload;

pub use compress::{Compressor, go_into_background};
pub use handle::make_directory;
pub use keeper::{FileKeeper, FileReopener, Reopened};
pub use settings::{FileSettings, Keep, Rotate, Sync};
