//! What is taken where the configuration leaves it to the machine.

use super::limits::Limits;

/// The pool of a machine that has enough.
const POOL_BYTES: usize = 48 << 20;

/// The least, and the part of the memory of a small machine.
const POOL_BYTES_MIN: usize = 4 << 20;
const POOL_PART: u64 = 16;

/// The memory for datagrams: a sixteenth of what there is, and not more than any site needs that has not asked.
pub(super) fn pool_bytes(limits: &Limits) -> usize {
    let group = limits.group.as_ref().map(|(bytes, _)| *bytes);
    let least = group.into_iter().chain(limits.total_bytes).min();
    let part = least.map_or(POOL_BYTES, |bytes| usize::try_from(bytes / POOL_PART).unwrap_or(usize::MAX));
    part.clamp(POOL_BYTES_MIN, POOL_BYTES)
}
