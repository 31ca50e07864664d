//! What is taken where the configuration leaves it to the machine.

use super::limits::MemoryLimits;

/// The pool of a machine that has enough.
const POOL_BYTES: usize = 48 << 20;

/// The least, and the part of the memory of a small machine.
const POOL_BYTES_MIN: usize = 4 << 20;
const POOL_PART: u64 = 16;

/// The memory for datagrams: a sixteenth of what this process may have, and not more than any site needs that has not
/// asked.
pub(super) fn pool_bytes(limits: &MemoryLimits) -> usize {
    let group = limits.group.as_ref().map(|(bytes, _)| *bytes);
    let address_space = limits.address_space.as_ref().map(|space| space.limit_bytes);
    let least = [group, address_space, limits.memory_bytes].into_iter().flatten().min();
    let part = least.map_or(POOL_BYTES, |bytes| usize::try_from(bytes / POOL_PART).unwrap_or(usize::MAX));
    part.clamp(POOL_BYTES_MIN, POOL_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::limits::AddressSpace;

    const MEBIBYTE: u64 = 1 << 20;

    fn on(memory: u64, group: Option<u64>, address_space: Option<u64>) -> usize {
        let space = |limit_bytes| AddressSpace { limit_bytes, mapped_bytes: 0, threads_running: 1, arenas_max: None };
        let limits = MemoryLimits {
            memory_bytes: Some(memory * MEBIBYTE),
            group: group.map(|bytes| (bytes * MEBIBYTE, "memory.max".into())),
            address_space: address_space.map(|bytes| space(bytes * MEBIBYTE)),
            ..MemoryLimits::default()
        };
        pool_bytes(&limits) >> 20
    }

    #[test]
    fn a_small_machine_gets_a_sixteenth_and_a_large_one_what_suffices() {
        let given = [16, 64, 128, 512, 767, 768, 4096, 1 << 20].map(|memory| on(memory, None, None));
        assert_eq!(given, [4, 4, 8, 32, 47, 48, 48, 48]);
    }

    #[test]
    fn the_least_of_machine_group_and_address_space_counts() {
        assert_eq!(on(65_536, Some(256), None), 16);
        assert_eq!(on(256, Some(65_536), None), 16);
        assert_eq!(on(65_536, Some(512), Some(256)), 16);
        assert_eq!(on(65_536, Some(16), None), 4, "whether that fits is for the limits to say");
    }

    #[test]
    fn a_machine_that_tells_nothing_is_taken_for_a_large_one() {
        assert_eq!(pool_bytes(&MemoryLimits::default()), 48 << 20);
    }
}
