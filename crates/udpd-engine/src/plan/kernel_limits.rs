//! What the kernel lets this process take of memory: the limits of its control groups, and what it may map and lock.
//!
//! A mapping counts as address space from the call on, touched or not. So do the stacks of threads, and what glibc's
//! malloc reserves for threads. The latter is optional: where there is no room, malloc does without. But it takes what
//! there is, and then a lane finds too little.
//!
//! As locked memory the kernel charges of udpd only the batches of AF_XDP and rings. The memory of other engines is
//! neither locked nor registered, and huge pages count as locked only in shared memory of System V. Rings have been
//! free of it since Linux 5.12 and are charged again from 6.14 on (measured on 6.18), to all processes of the user
//! together, unless they have CAP_IPC_LOCK.
//!
//! Everything is read below a root, which is `/` on a live machine. What cannot be read limits nothing.

use std::fs;
use std::path::{Path, PathBuf};

use udpd_base::os::threads::STACK_OF_MANY_BYTES;

/// The least memory limit from the control group of this process up to the root of its hierarchy, in either version of
/// control groups, and the file that holds it.
pub(super) fn group_limit(root: &Path) -> Option<(u64, PathBuf)> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let limits = own.lines().filter_map(|line| {
        // NUMBER:CONTROLLERS:PATH, with neither number nor controllers in the second version.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (version_2, file) = match controllers {
            "" => (true, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (false, "memory.limit_in_bytes"),
            _ => return None,
        };
        let (mounted_root, mount_point) = mounts.lines().find_map(|line| mount_of(line, version_2))?;
        // In a container the group may be mounted where the root of all groups is elsewhere.
        let relative =
            Path::new(path).strip_prefix(mounted_root).or_else(|_| Path::new(path).strip_prefix("/")).ok()?;
        let shown = relative.ancestors().map(|group| Path::new(mount_point).join(group).join(file));
        let limit = |shown: PathBuf| Some((read_limit(&root.join(shown.strip_prefix("/").ok()?))?, shown));
        shown.filter_map(limit).min_by_key(|(bytes, _)| *bytes)
    });
    limits.min_by_key(|(bytes, _)| *bytes)
}

/// The root and the mount point, when a line of mountinfo is the mount of the memory controller.
fn mount_of(line: &str, version_2: bool) -> Option<(&str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (mounted_root, mount_point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let is_it = match version_2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    is_it.then_some((mounted_root, mount_point))
}

/// `None` for "max", and for the huge number of the first version that means the same.
fn read_limit(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < 1 << 60).then_some(bytes)
}

/// The first kernel that charges rings again.
const CHARGED_FROM: (u32, u32) = (6, 14);

const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_RESOURCE: u32 = 24;

/// How much memory AF_XDP may lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockableMemory {
    /// The limit, raised as far as this process may raise it.
    pub bytes: Option<u64>,
    /// Whether the limit does not count while the process has the capabilities of its start.
    pub is_exempt: bool,
}

impl LockableMemory {
    pub(super) fn read(root: &Path) -> Self {
        let has = |capability: u32| capabilities(root).is_some_and(|sets| sets >> capability & 1 == 1);
        let bytes = limit(root, "Max locked memory", 1).filter(|_| !has(CAP_SYS_RESOURCE));
        Self { bytes, is_exempt: has(CAP_IPC_LOCK) }
    }
}

/// What glibc's malloc reserves for a thread (an arena), and how many arenas there are: so many for each core, unless
/// the environment says how many in all. The first one belongs to the main thread.
const ARENA_BYTES: u64 = 64 << 20;
const ARENAS_PER_CORE: usize = 8;
const ARENAS_WRITTEN: &str = "MALLOC_ARENA_MAX=";

/// The stack that `std` gives to threads other than receivers and consumers.
const STACK_BYTES: u64 = 2 << 20;

/// How many other threads there are: signals, the log, the endpoints, the keepers of files.
const OTHER_THREADS: usize = 5;

/// The address space of this process, where it is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressSpace {
    pub limit_bytes: u64,
    /// What the process has mapped so far, with the stacks of the threads that run.
    pub mapped_bytes: u64,
    pub threads_running: usize,
    /// How many arenas the environment allows.
    pub arenas_max: Option<usize>,
}

impl AddressSpace {
    pub(super) fn read(root: &Path) -> Option<Self> {
        let limit_bytes = soft_limit(root, "Max address space")?;
        let mapped = field(root, "VmSize")?;
        let mapped_bytes = mapped.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
        let environment = fs::read(root.join("proc/self/environ")).unwrap_or_default();
        let arenas_max = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| std::str::from_utf8(variable).ok()?.strip_prefix(ARENAS_WRITTEN)?.parse().ok());
        let threads_running = field(root, "Threads").and_then(|count| count.parse().ok()).unwrap_or(1);
        Some(Self { limit_bytes, mapped_bytes, threads_running, arenas_max })
    }

    /// The stacks of so many receivers and consumers, and of the other threads that do not run yet. The daemon runs two
    /// of them at this point and `udpd check` none: both get the same sum.
    pub(super) fn stacks_bytes(&self, threads: usize) -> u64 {
        let other = (OTHER_THREADS + 1).saturating_sub(self.threads_running);
        (threads * STACK_OF_MANY_BYTES) as u64 + other as u64 * STACK_BYTES
    }

    /// What malloc may reserve for their arenas.
    pub(super) fn arenas_bytes(&self, threads: usize, cores: usize) -> u64 {
        if cfg!(not(target_env = "gnu")) {
            return 0;
        }
        let arenas = self.arenas_max.unwrap_or(usize::MAX).min(ARENAS_PER_CORE * cores.max(1));
        arenas.saturating_sub(1).min(threads + OTHER_THREADS) as u64 * ARENA_BYTES
    }
}

/// What this process may lock, where the kernel charges rings.
pub(super) fn locked_limit(root: &Path) -> Option<u64> {
    let release = fs::read_to_string(root.join("proc/sys/kernel/osrelease")).ok()?;
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
    let (Ok(major), Ok(minor)) = (numbers.next()?, numbers.next()?) else { return None };
    let is_charged = (major, minor) >= CHARGED_FROM && capabilities(root)? >> CAP_IPC_LOCK & 1 == 0;
    soft_limit(root, "Max locked memory").filter(|_| is_charged)
}

fn capabilities(root: &Path) -> Option<u64> {
    u64::from_str_radix(&field(root, "CapEff")?, 16).ok()
}

fn soft_limit(root: &Path, name: &str) -> Option<u64> {
    limit(root, name, 0)
}

/// The soft limit is the first of its columns and the hard one the second; `None` for "unlimited".
fn limit(root: &Path, name: &str, column: usize) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

fn field(root: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                          Max stack size            8388608              unlimited            bytes     \n\
                          Max locked memory         65536                8388608              bytes     \n\
                          Max address space         268435456            unlimited            bytes     \n";
    const STATUS: &str = "Name:\tudpd\nVmPeak:\t   30000 kB\nVmSize:\t   20480 kB\nThreads:\t3\n\
                          CapEff:\t0000000000003fff\n";

    #[test]
    fn the_limit_on_address_space_is_read_with_what_is_mapped_and_what_malloc_may_take() {
        let files = [("proc/self/limits", LIMITS), ("proc/self/status", STATUS)];
        let space = AddressSpace::read(root(&files).path()).expect("a limit");
        let expected = (256 << 20, 20 << 20, 3, None);
        assert_eq!((space.limit_bytes, space.mapped_bytes, space.threads_running, space.arenas_max), expected);
        assert_eq!(space.stacks_bytes(4), 4 * STACK_BYTES, "four of 512 KiB, and two of the five others run already");
        let environment = "HOME=/\0MALLOC_ARENA_MAX=1\0PATH=/bin\0";
        let files = [files.as_slice(), &[("proc/self/environ", environment)]].concat();
        assert_eq!(AddressSpace::read(root(&files).path()).expect("a limit").arenas_max, Some(1));
        let unlimited = LIMITS.replace("268435456", "unlimited");
        let files = [("proc/self/limits", unlimited.as_str()), ("proc/self/status", STATUS)];
        assert_eq!(AddressSpace::read(root(&files).path()), None);
    }

    #[test]
    #[cfg_attr(not(target_env = "gnu"), ignore = "this malloc reserves nothing")]
    fn malloc_reserves_for_as_many_threads_as_there_are_and_as_it_may() {
        let space = |arenas_max| AddressSpace { limit_bytes: 0, mapped_bytes: 0, threads_running: 1, arenas_max };
        assert_eq!(space(None).arenas_bytes(2, 8), 7 * ARENA_BYTES, "two, and the other threads");
        assert_eq!(space(None).arenas_bytes(1000, 2), 15 * ARENA_BYTES, "one belongs to the main thread");
        assert_eq!(space(Some(3)).arenas_bytes(1000, 2), 2 * ARENA_BYTES);
        assert_eq!(space(Some(1)).arenas_bytes(1000, 2), 0);
    }

    #[test]
    fn queues_may_lock_what_the_hard_limit_says_unless_the_process_may_raise_it() {
        let read = |capabilities: &str| {
            let status = STATUS.replace("3fff", capabilities);
            LockableMemory::read(root(&[("proc/self/limits", LIMITS), ("proc/self/status", &status)]).path())
        };
        assert_eq!(read("3fff"), LockableMemory { bytes: Some(8 << 20), is_exempt: false });
        assert_eq!(read("7fff"), LockableMemory { bytes: Some(8 << 20), is_exempt: true });
        assert_eq!(read("1003fff"), LockableMemory { bytes: None, is_exempt: false });
        assert_eq!(
            LockableMemory::read(root(&[]).path()),
            LockableMemory::default(),
            "what cannot be read limits nothing"
        );
    }

    #[test]
    fn rings_are_charged_by_newer_kernels_and_to_processes_without_the_capability() {
        let limit = |release: &str, status: &str| {
            let files =
                [("proc/self/limits", LIMITS), ("proc/self/status", status), ("proc/sys/kernel/osrelease", release)];
            locked_limit(root(&files).path())
        };
        for charging in ["6.14.0\n", "6.18.44-fc-v657\n", "7.0-rc1\n"] {
            assert_eq!(limit(charging, STATUS), Some(65_536), "{charging}");
            assert_eq!(limit(charging, &STATUS.replace("3fff", "7fff")), None, "{charging}");
        }
        for free in ["6.1.0-13-amd64\n", "6.12.50\n", "5.15.0\n", "odd\n", ""] {
            assert_eq!(limit(free, STATUS), None, "{free}");
        }
    }

    const V2: &str = "26 20 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let files = [
            ("proc/self/cgroup", "0::/system.slice/udpd.service\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/system.slice/udpd.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "1048576\n"),
        ];
        let expected = (1 << 20, PathBuf::from("/sys/fs/cgroup/system.slice/memory.max"));
        assert_eq!(group_limit(root(&files).path()), Some(expected));
    }

    #[test]
    fn the_first_version_says_it_in_its_own_words() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/a\n4:memory:/a/b\n0::/a\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "16777216\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let (bytes, file) = group_limit(root(&files).path()).expect("a limit");
        assert_eq!((bytes, file.to_str()), (16 << 20, Some("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes")));
    }

    #[test]
    fn in_a_container_its_own_group_is_the_root() {
        let mounted = "30 20 0:23 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for own in ["0::/docker/abc\n", "0::/\n"] {
            let files = [
                ("proc/self/cgroup", own),
                ("proc/self/mountinfo", mounted),
                ("sys/fs/cgroup/memory.max", "33554432\n"),
            ];
            assert_eq!(group_limit(root(&files).path()).map(|(bytes, _)| bytes), Some(32 << 20), "{own}");
        }
    }

    #[test]
    fn damaged_files_limit_nothing() {
        let damaged = [("proc/self/cgroup", "x\n::\n0::relative\n"), ("proc/self/mountinfo", "a b\n1 2 3 - -\n - \n")];
        assert_eq!(group_limit(root(&damaged).path()), None);
    }
}
