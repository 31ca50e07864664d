//! Who reads a port: how long its threads ran and waited for a core, on which cores they may run, and what a control
//! group kept from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::explain::evidence::{Reader, Throttled};
use crate::explain::finding::quote;

/// A process at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    pub pid: u32,
    pub command: String,
    /// By id.
    threads: BTreeMap<u32, Thread>,
    groups: Vec<Group>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Thread {
    name: String,
    cores: Vec<usize>,
    /// In nanoseconds; `None` where the kernel does not count.
    times: Option<(u64, u64)>,
}

/// A control group with a limit of CPU time.
#[derive(Debug, Clone, Default, PartialEq)]
struct Group {
    folder: PathBuf,
    /// The periods in which it was given time, and those in which that was used up. The throttled time itself adds up
    /// over cores.
    periods: u64,
    throttled: u64,
    command: String,
    cores: Option<f64>,
}

impl Process {
    pub fn read(root: &Path, pid: u32, command: &str) -> Self {
        let folder = root.join(format!("proc/{pid}"));
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(folder.join("task")).into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            threads.insert(id, Thread::read(&entry.path()));
        }
        Self { pid, command: command.to_owned(), threads, groups: groups(root, &folder) }
    }

    /// What became of it since `earlier`. Of its threads the one that counts is the busiest of those that `receives`
    /// says may receive.
    pub fn since(&self, earlier: &Self, seconds: f64, receives: impl Fn(&str) -> bool) -> Reader {
        let share = |nanoseconds: u64| (nanoseconds as f64 / 1e9 / seconds.max(0.001)).min(1.0);
        let mut busiest: Option<(&Thread, f64, f64)> = None;
        for (id, thread) in self.threads.iter().filter(|(_, thread)| receives(&thread.name)) {
            let before = earlier.threads.get(id).and_then(|before| before.times);
            let Some(((ran, waited), (ran_before, waited_before))) = thread.times.zip(before) else { continue };
            let ran = share(ran.saturating_sub(ran_before));
            let waited = share(waited.saturating_sub(waited_before));
            if busiest.is_none_or(|(_, most_ran, most_waited)| ran + waited > most_ran + most_waited) {
                busiest = Some((thread, ran, waited));
            }
        }
        Reader {
            pid: self.pid,
            command: self.command.clone(),
            cores: busiest.map_or_else(Vec::new, |(thread, ..)| thread.cores.clone()),
            ran: busiest.map(|(_, ran, _)| ran),
            waited: busiest.map(|(.., waited)| waited),
            is_stopped: false,
            throttled: self.throttled_since(earlier),
        }
    }

    fn throttled_since(&self, earlier: &Self) -> Option<Throttled> {
        let since = |group: &Group| {
            let before = earlier.groups.iter().find(|before| before.folder == group.folder)?;
            let periods = group.periods.saturating_sub(before.periods).max(1);
            let throttled = group.throttled.saturating_sub(before.throttled);
            Some((throttled as f64 / periods as f64).min(1.0))
        };
        let found = self.groups.iter().filter_map(|group| Some((group, since(group)?)));
        let (group, share) = found.max_by(|(_, share), (_, other)| share.total_cmp(other))?;
        (share > 0.0).then(|| Throttled { share, command: group.command.clone(), cores: group.cores })
    }
}

impl Thread {
    fn read(folder: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let status = read("status");
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let schedstat = read("schedstat");
        let mut numbers = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
        let times = numbers.next().and_then(Result::ok).zip(numbers.next().and_then(Result::ok));
        Self {
            name: read("comm").trim_end().to_owned(),
            cores: cores.and_then(|cores| steer::parse_core_list(cores.trim()).ok()).unwrap_or_default(),
            times,
        }
    }
}

/// The control groups of a process that count throttling, from its own up to the root.
fn groups(root: &Path, process: &Path) -> Vec<Group> {
    let text = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            some if some.split(',').any(|name| name == "cpu") => &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"],
            _ => continue,
        };
        let Some(mount) = mounts.iter().map(|mount| root.join(mount)).find(|mount| mount.join("cgroup.procs").exists())
        else {
            continue;
        };
        let mut folder = Path::new(path.trim_start_matches('/'));
        loop {
            found.extend(Group::read(&mount.join(folder), controllers.is_empty()));
            let Some(above) = folder.parent() else { break };
            folder = above;
        }
    }
    found
}

impl Group {
    /// `None` where the group has no limit to count.
    fn read(folder: &Path, is_unified: bool) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let stat = read("cpu.stat")?;
        let field = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let number = |name: &str| read(name)?.trim().parse::<f64>().ok();
        let counts = field("nr_periods ").zip(field("nr_throttled "));
        let shown = |file: &str| quote(&folder.join(file).display().to_string());
        if is_unified {
            let max = read("cpu.max").unwrap_or_default();
            let mut words = max.split_ascii_whitespace().map(str::parse::<f64>);
            let limit = words.next().and_then(Result::ok).zip(words.next().and_then(Result::ok));
            let cores = limit.map(|(quota, period)| quota / period.max(1.0));
            let command = format!("echo max > {}", shown("cpu.max"));
            let (periods, throttled) = counts?;
            Some(Self { folder: folder.to_owned(), periods, throttled, command, cores })
        } else {
            let quota = number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0);
            let cores = quota.zip(number("cpu.cfs_period_us")).map(|(quota, period)| quota / period.max(1.0));
            let command = format!("echo -1 > {}", shown("cpu.cfs_quota_us"));
            let (periods, throttled) = counts?;
            Some(Self { folder: folder.to_owned(), periods, throttled, command, cores })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    fn host(ran: u64, waited: u64, (periods, throttled): (u64, u64)) -> tempfile::TempDir {
        let (times, idle) = (format!("{ran} {waited} 7\n"), "5 5 7\n".to_owned());
        let stat = format!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 900000\n");
        root(&[
            ("proc/9/task/10/comm", "rx0-syslog\n"),
            ("proc/9/task/10/status", "Name:\tx\nCpus_allowed_list:\t1,3\n"),
            ("proc/9/task/10/schedstat", &times),
            ("proc/9/task/9/comm", "udpd\n"),
            ("proc/9/task/9/schedstat", &idle),
            ("proc/9/cgroup", "0::/box/inner\n"),
            ("sys/fs/cgroup/cgroup.procs", ""),
            ("sys/fs/cgroup/box/cpu.stat", &stat),
            ("sys/fs/cgroup/box/cpu.max", "20000 100000\n"),
        ])
    }

    #[test]
    fn the_busiest_thread_that_may_receive_counts_with_the_group_above_it() {
        let before = Process::read(host(0, 0, (5, 2)).path(), 9, "udpd");
        let late = host(500_000_000, 1_000_000_000, (25, 10));
        let mut reader = Process::read(late.path(), 9, "udpd");
        // Both stood below the same root on a live machine.
        let folder = late.path().join("sys/fs/cgroup/box");
        let mut before = before;
        before.groups[0].folder.clone_from(&folder);
        reader.groups[0].folder.clone_from(&folder);
        let reader = reader.since(&before, 2.0, |name| name.starts_with("rx"));
        assert_eq!((reader.ran, reader.waited, reader.cores), (Some(0.25), Some(0.5), vec![1, 3]));
        let throttled = reader.throttled.expect("throttled");
        assert_eq!((throttled.share, throttled.cores), (0.4, Some(0.2)));
        assert_eq!(throttled.command, format!("echo max > {}/cpu.max", folder.display()));
    }

    #[test]
    fn a_kernel_that_does_not_count_is_not_known_to_be_idle() {
        let bare = root(&[("proc/9/task/9/comm", "x\n")]);
        let process = Process::read(bare.path(), 9, "x");
        let reader = process.since(&process, 1.0, |_| true);
        assert_eq!((reader.ran, reader.waited, reader.throttled), (None, None, None));
    }
}
