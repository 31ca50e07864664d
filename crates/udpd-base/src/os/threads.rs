//! Why a thread cannot be started. The kernel has one error for every limit on threads and for a lack of memory as
//! well, "Resource temporarily unavailable", so the limits are looked at and the one that is reached is named.
//!
//! Everything is read below one root, which is `/` on a live machine. What cannot be read is reached by nobody.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};

use crate::exit::{ExitCode, Failure};

/// What each lane and each consumer takes of them, for the cure.
const CURE: &str = "or have fewer lanes and consumers, which take a thread each";

/// What is said when a thread cannot be started for `whom`.
pub fn refusal(whom: &str, error: &io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("{whom}: cannot start its thread: {error}; {}", cause(Path::new("/"))))
}

/// The limit that is reached, with its cure.
fn cause(root: &Path) -> String {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    if let Some((limit, file)) = full_group(root) {
        return format!(
            "the control group allows {limit} threads ({}) and has them; raise that (TasksMax= in the unit file, \
             --pids-limit of a container), {CURE}",
            file.display()
        );
    }
    let load = fs::read_to_string(root.join("proc/loadavg")).unwrap_or_default();
    // RUNNING/ALL is the fourth field.
    let all = load.split(' ').nth(3).and_then(|field| field.split_once('/')?.1.parse::<u64>().ok()).unwrap_or(0);
    for (key, use_) in [("threads-max", "threads"), ("pid_max", "numbers for threads")] {
        let limit = number(&root.join("proc/sys/kernel").join(key));
        if let Some(limit) = limit.filter(|limit| all >= limit.saturating_sub(limit / 100)) {
            return format!(
                "this machine has {all} threads, and kernel.{key} allows {limit} {use_}; raise that with sysctl, {CURE}"
            );
        }
    }
    let limit =
        |resource| getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != nix::libc::RLIM_INFINITY);
    let mut known = Vec::new();
    if let Some(count) = limit(Resource::RLIMIT_NPROC) {
        known.push(format!("its user may have {count} threads in all processes (ulimit -u, LimitNPROC=)"));
    }
    if let Some(bytes) = limit(Resource::RLIMIT_AS) {
        known.push(format!("its address space may have {bytes} bytes (ulimit -v, LimitAS=)"));
    }
    match known.is_empty() {
        true => format!("no limit on threads is reached, so memory is short; free some, {CURE}"),
        false => format!("{}; raise what is reached, {CURE}", known.join(", ")),
    }
}

/// The first control group up to the root that has as many threads as it may have: how many, and where that is written.
fn full_group(root: &Path) -> Option<(u64, PathBuf)> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let groups = own.lines().filter_map(|line| {
        // NUMBER:CONTROLLERS:PATH, with neither number nor controllers in the second version.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mounted = match controllers {
            "" => "/sys/fs/cgroup",
            "pids" => "/sys/fs/cgroup/pids",
            _ => return None,
        };
        Some(Path::new(mounted).join(path.trim_start_matches('/')))
    });
    // In a container a path may lead to where the group is mounted, and not below that.
    let ancestors = groups.flat_map(|group| group.ancestors().map(Path::to_owned).collect::<Vec<_>>());
    ancestors.take_while(|group| group.starts_with("/sys")).find_map(|group| {
        let number = |name: &str| {
            let path = root.join(group.strip_prefix("/").ok()?).join(name);
            fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        };
        let limit = number("pids.max")?;
        (number("pids.current")? >= limit).then(|| (limit, group.join("pids.max")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    #[test]
    fn the_control_group_that_is_full_is_named_however_far_up_it_is() {
        for (own, place) in [("0::/a.slice/b\n", ""), ("7:pids:/a.slice/b\n3:cpu:/\n", "pids/")] {
            let group = format!("sys/fs/cgroup/{place}a.slice");
            let root = root(&[
                ("proc/self/cgroup", own),
                (&format!("{group}/b/pids.max"), "max\n"),
                (&format!("{group}/b/pids.current"), "9\n"),
                (&format!("{group}/pids.max"), "512\n"),
                (&format!("{group}/pids.current"), "512\n"),
            ]);
            let said = cause(root.path());
            let expected = format!("the control group allows 512 threads (/{group}/pids.max) and has them");
            assert!(said.starts_with(&expected) && said.contains("TasksMax="), "{said}");
        }
    }

    #[test]
    fn a_machine_that_has_all_the_threads_it_may_have_is_named() {
        let loadavg = ("proc/loadavg", "0.2 0.1 0.0 1/1990 77\n");
        let of_threads = root(&[loadavg, ("proc/sys/kernel/threads-max", "2000\n")]);
        assert!(cause(of_threads.path()).contains("1990 threads, and kernel.threads-max allows 2000"));
        let of_numbers =
            root(&[loadavg, ("proc/sys/kernel/threads-max", "90000\n"), ("proc/sys/kernel/pid_max", "1990\n")]);
        assert!(cause(of_numbers.path()).contains("kernel.pid_max allows 1990"));
    }

    #[test]
    fn where_no_limit_is_seen_to_be_reached_those_that_are_known_are_told() {
        let said = cause(root(&[("proc/self/cgroup", "0::/\nx\n")]).path());
        assert!(said.contains("ulimit") || said.contains("memory is short"), "{said}");
        assert!(said.ends_with(CURE), "{said}");
    }
}
