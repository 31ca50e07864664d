//! The table of copies, with the atomics of loom.

#[path = "../../udpd-inspect/src/deduplicate/table.rs"]
pub mod table;

mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

use table::Fingerprint;

/// The fingerprint of a datagram, all of one bucket. Two with the same `part` differ in the second word alone.
pub fn fingerprint(part: u64, rest: u64) -> Fingerprint {
    Fingerprint { bucket_and_part: part, rest: rest << 32 }
}
