//! Whether there is as much memory as the plan takes. All of it is touched at the start, so too much is not an error of
//! some call later on but the kernel's SIGKILL, of this process or of another, without a word. So it is compared first
//! with what the control groups allow, up to the root, and with what the machine has.
//!
//! Everything is read below one root, which is `/` on a live machine. What cannot be read limits nothing.

use std::fs;
use std::path::{Path, PathBuf};

use super::memory::Bytes;
use super::whole::Plan;
use crate::config::Config;
use crate::exit::{ExitCode, Failure};

/// Of a limit, what is left to the kernel before a warning: it counts receive buffers and files under way as well.
const NEAR_PERCENT: u64 = 90;

/// What a process may take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// The least that a control group allows, and where that is written.
    pub group: Option<(u64, PathBuf)>,
    pub total_bytes: Option<u64>,
    /// What is left of it, swap included.
    pub available_bytes: Option<u64>,
}

impl Limits {
    pub fn read(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let swap = |name: &str| field(name).unwrap_or(0);
        Self {
            group: group_limit(root),
            total_bytes: field("MemTotal").map(|bytes| bytes.saturating_add(swap("SwapTotal"))),
            available_bytes: field("MemAvailable").map(|bytes| bytes.saturating_add(swap("SwapFree"))),
        }
    }

    /// Refuses a plan that can never fit. Returns what has to be said of one that just does, or does not at this
    /// moment.
    pub fn judge(&self, config: &Config, plan: &Plan) -> Result<Vec<String>, Failure> {
        let needed = needed(plan);
        let mut remarks = Vec::new();
        if let Some((limit, file)) = &self.group {
            let from = format!("the control group allows {} ({})", text(*limit), file.display());
            if needed > *limit {
                let cure = ", or raise the limit (MemoryMax= in the unit file, --memory of a container)";
                return Err(refusal(config, plan, &from, cure));
            }
            if needed > limit / 100 * NEAR_PERCENT {
                remarks.push(format!(
                    "{}, and {from}: that leaves little for receive buffers and file pages; {}",
                    sum(plan),
                    cure(config, plan)
                ));
            }
        }
        if let Some(total) = self.total_bytes.filter(|total| needed > *total) {
            return Err(refusal(config, plan, &format!("this machine has {}", text(total)), ""));
        }
        if let Some(available) = self.available_bytes.filter(|available| needed > *available) {
            remarks.push(format!(
                "{}, and only {} are available now; a start would fail unless another process frees some; {}",
                sum(plan),
                text(available),
                cure(config, plan)
            ));
        }
        Ok(remarks)
    }

    /// Refuses a start for which there is clearly not enough memory at this moment. Trying again later may help.
    pub fn refuse_start(&self, config: &Config, plan: &Plan) -> Result<(), Failure> {
        let clearly = |available: &u64| needed(plan) > available.saturating_add(available / 10);
        match self.available_bytes.filter(clearly) {
            None => Ok(()),
            Some(available) => {
                let what = format!("only {} are available now (MemAvailable)", text(available));
                Err(Failure { code: ExitCode::Failure, ..refusal(config, plan, &what, ", or stop something else") })
            }
        }
    }
}

fn needed(plan: &Plan) -> u64 {
    plan.memory().total_bytes() as u64
}

fn sum(plan: &Plan) -> String {
    let memory = plan.memory();
    let (total, own) = (Bytes(memory.total_bytes()), Bytes(memory.own_bytes()));
    format!("the plan takes {total} of memory ({memory}, {own} for udpd itself)")
}

fn refusal(config: &Config, plan: &Plan, limit: &str, other_cure: &str) -> Failure {
    let message = format!("{}, and {limit}; {}{other_cure}", sum(plan), cure(config, plan));
    Failure::new(ExitCode::Configuration, message)
}

/// The keys that the largest part of the memory follows from, with their values.
fn cure(config: &Config, plan: &Plan) -> String {
    let memory = plan.memory();
    if memory.sink_bytes > memory.pool_bytes() {
        return "lower consumers of the sinks".to_owned();
    }
    let bytes_of = |listener: usize| -> usize {
        plan.lanes.iter().filter(|lane| lane.listener == listener).map(|lane| lane.batches_bytes()).sum()
    };
    let Some(largest) = (0..config.listeners.len()).max_by_key(|&listener| bytes_of(listener)) else {
        return "name fewer listeners".to_owned();
    };
    let listener = &config.listeners[largest];
    let lanes = plan.lanes.iter().filter(|lane| lane.listener == largest).count();
    let queues: Vec<String> = listener
        .sinks
        .iter()
        .map(|&sink| {
            let queue = config.sinks[sink].queue_bytes.map_or("auto".to_owned(), |bytes| Bytes(bytes).to_string());
            format!("{queue} of sink {}", config.sinks[sink].name)
        })
        .collect();
    let slots = match listener.gro {
        true => "write gro = \"off\", whose batches take 64 KiB for each message".to_owned(),
        false => format!("lower max_length ({} bytes)", listener.max_length_bytes),
    };
    format!(
        "of that {} are for listener {}: {slots}, lower batch_size ({}), lanes ({lanes}) or queue_bytes ({})",
        Bytes(bytes_of(largest)),
        listener.name,
        listener.batch_size,
        queues.join(", ")
    )
}

fn text(bytes: u64) -> Bytes {
    Bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The least of the limits from the control group of this process up to the root of its hierarchy, in either version.
fn group_limit(root: &Path) -> Option<(u64, PathBuf)> {
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
    use crate::config::EngineKind;
    use crate::config::Host;
    use crate::plan::engine::Choice;
    use steer::Topology;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }
        root
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
        assert_eq!(Limits::read(root(&files).path()).group, Some(expected));
    }

    #[test]
    fn the_first_version_says_it_in_its_own_words() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/a\n4:memory:/a/b\n0::/a\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "16777216\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let (bytes, file) = Limits::read(root(&files).path()).group.expect("a limit");
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
            assert_eq!(Limits::read(root(&files).path()).group.map(|(bytes, _)| bytes), Some(32 << 20), "{own}");
        }
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        assert_eq!(Limits::read(root(&[]).path()), Limits::default());
        let damaged = [("proc/self/cgroup", "x\n::\n0::relative\n"), ("proc/self/mountinfo", "a b\n1 2 3 - -\n - \n")];
        assert_eq!(Limits::read(root(&damaged).path()), Limits::default());
    }

    #[test]
    fn the_memory_of_the_machine_is_read_with_its_swap() {
        let text = "MemTotal:        1000 kB\nMemAvailable:     400 kB\nSwapTotal: 24 kB\nSwapFree: 20 kB\n";
        let limits = Limits::read(root(&[("proc/meminfo", text)]).path());
        assert_eq!((limits.total_bytes, limits.available_bytes), (Some(1024 << 10), Some(420 << 10)));
    }

    fn planned() -> (Config, Plan) {
        let text =
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"x\"]\n[sink.x]\ntype = \"null\"\n";
        let config = Config::parse(text, "test", &Host::default()).expect("a valid configuration");
        let engines = [Choice { kind: EngineKind::Recvmmsg, why: String::new() }];
        let plan =
            Plan::new(&config, &Topology::flat(&[0]), &[0], |_| None, |_| None, &engines, 48 << 20).expect("a plan");
        (config, plan)
    }

    #[test]
    fn a_plan_that_does_not_fit_its_group_is_refused_with_the_sum_and_the_keys() {
        let (config, plan) = planned();
        let limits = Limits { group: Some((16 << 20, "/sys/fs/cgroup/x/memory.max".into())), ..Limits::default() };
        let failure = limits.judge(&config, &plan).expect_err("too much");
        assert_eq!(failure.code, ExitCode::Configuration);
        for words in
            ["in batches", "4.1 MiB for udpd itself", "allows 16.0 MiB (/sys/fs/cgroup/x/memory.max)", "MemoryMax="]
        {
            assert!(failure.message.contains(words), "{words}: {failure}");
        }
        for key in ["max_length (2048 bytes)", "batch_size (64)", "lanes (1)", "queue_bytes (auto of sink x)"] {
            assert!(failure.message.contains(key), "{key}: {failure}");
        }
    }

    #[test]
    fn a_limit_is_a_limit_to_the_byte_and_near_it_there_is_one_warning() {
        let (config, plan) = planned();
        let needed = needed(&plan);
        let judge = |bytes: u64| {
            Limits { group: Some((bytes, PathBuf::new())), ..Limits::default() }
                .judge(&config, &plan)
                .map(|said| said.len())
        };
        assert!(judge(needed - 1).is_err());
        assert_eq!((judge(needed).expect("fits"), judge(2 * needed).expect("fits")), (1, 0));
    }

    #[test]
    fn a_machine_that_is_too_small_is_refused_and_one_that_is_full_now_only_at_the_start() {
        let (config, plan) = planned();
        let needed = needed(&plan);
        let small = Limits { total_bytes: Some(needed - 1), ..Limits::default() };
        assert!(small.judge(&config, &plan).expect_err("too small").message.contains("this machine has"));
        let full = Limits { total_bytes: Some(2 * needed), available_bytes: Some(needed - 1), group: None };
        assert_eq!(full.judge(&config, &plan).expect("valid").len(), 1);
        assert!(full.refuse_start(&config, &plan).is_ok(), "an estimate is not taken for more than that");
        let fuller = Limits { available_bytes: Some(needed / 2), ..full };
        let failure = fuller.refuse_start(&config, &plan).expect_err("no room");
        assert_eq!(failure.code, ExitCode::Failure, "trying again may help, which 78 would say it does not");
        assert!(Limits::default().refuse_start(&config, &plan).is_ok());
    }
}
