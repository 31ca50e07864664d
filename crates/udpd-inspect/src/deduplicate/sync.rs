//! What the table shares between threads. `crates/interleavings` has a file of its own in this place.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
