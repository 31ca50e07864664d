//! What the control groups of this process allow, in either version of the interface.

use std::fs;
use std::path::{Path, PathBuf};

/// The least of the limits from the control group of this process up to the root of its hierarchy, in either version.
pub(super) fn least(root: &Path) -> Option<(u64, PathBuf)> {
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

/// The root and the place of a mount, when a line of mountinfo is the mount of the memory controller.
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

/// `None` for "max", and for the number near the largest there is that means the same.
fn read_limit(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < 1 << 60).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

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
        assert_eq!(least(root(&files).path()), Some(expected));
    }

    #[test]
    fn the_first_version_says_it_in_its_own_words() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/a\n4:memory:/a/b\n0::/a\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "16777216\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let (bytes, file) = least(root(&files).path()).expect("a limit");
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
            assert_eq!(least(root(&files).path()).map(|(bytes, _)| bytes), Some(32 << 20), "{own}");
        }
    }

    #[test]
    fn damaged_files_limit_nothing() {
        let damaged = [("proc/self/cgroup", "x\n::\n0::relative\n"), ("proc/self/mountinfo", "a b\n1 2 3 - -\n - \n")];
        assert_eq!(least(root(&damaged).path()), None);
    }
}
