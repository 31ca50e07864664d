//! A spill: datagrams wait on a disk while their destination cannot take them. `spilling` is the sink around it.
//!
//! It is a directory of segments, which are files with numbers that grow. Frames of datagrams are appended to the last
//! one, and read from the first one on; what is decided is never read again. One thread does both, so there is no
//! signal to miss, and a writer without space never waits for a reader that waits for the writer.
//!
//! What other disk queues suffered from is ruled out by what is not here. There is no index beside the data that could
//! be lost, stale or contradict it: each segment says itself how far its datagrams are decided, and what it says is
//! only trusted to skip. Nothing is ever appended to a segment of a former process, so a torn end stays an end. A
//! reader that finds damage moves on to the next frame that is whole, and each of its steps goes forward. A missing
//! segment is a gap in numbers and nothing else. A segment is a small part of what the spill may take, so room comes
//! back before everything is sent, and what it may take is asked before each write.
#![forbid(unsafe_code)]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod find;
mod layout;
mod outgoing;
mod recover;
mod segment;
pub mod spilling;
mod store;

pub use layout::FRAME_BYTES_MAX;
pub use recover::Recovered;
pub use store::{BYTES_MIN, FILES_MAX, Frame, MEMORY_BYTES, SpillLane, SpillLanes, SpillReadError, Store};
