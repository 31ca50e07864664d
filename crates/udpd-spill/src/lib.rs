//! A spill: datagrams wait on a disk while their destination cannot take them. `spilling` is the sink around it.
//!
//! It is a directory of segments, which are files with growing numbers. Frames of datagrams are appended to the last
//! segment, and read from the first one on; what is decided is never read again. One thread does both, so there is no
//! signal to miss, and a writer without space never waits for a reader that waits for the writer.
//!
//! The design avoids the usual failures of disk queues. There is no index beside the data that could be lost, stale or
//! contradict it: each segment tells how far its datagrams are decided, and that is only used to skip. Nothing is ever
//! appended to a segment of an earlier process, so a torn end stays the end. A reader that finds damage moves on to the
//! next whole frame, and each of its steps goes forward. A missing segment is only a gap in the numbers. A segment is a
//! small part of the limit, so space is free again before everything is sent, and the limit is checked before each
//! write.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
mod layout;
mod recover;
mod segment;
mod segment_reader;
pub mod spilling;
mod store;
mod write_buffer;

pub use layout::{BATCHES_MAX, FRAME_BYTES_MAX};
pub use recover::Recovered;
pub use store::{BYTES_MIN, FILES_MAX, Frame, MEMORY_BYTES, SpillLane, SpillLanes, SpillReadError, SpillStore};
