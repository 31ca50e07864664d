//! The machine that a figure comes from, and what a run costs it. A figure without its machine says nothing.
//!
//! What the machine does not tell is `None`, never a guess.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::clock;

/// /proc/stat counts in hundredths of a second on every machine that this runs on.
const TICK_NS: u64 = 10_000_000;

/// From this share of its cores' time on, a machine is busy with something else.
const BUSY_SHARE: f64 = 0.1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MachineFacts {
    pub kernel: Option<String>,
    pub cpu: Option<String>,
    pub cores: Option<String>,
    pub core_count: usize,
    /// Whether it runs on a hypervisor.
    pub virtualised: bool,
    /// The frequency governor of the first core.
    pub governor: Option<String>,
    /// `net.core.rmem_max`.
    pub receive_buffer_max: Option<u64>,
    /// What the kernel says of each hardware vulnerability of this CPU.
    pub mitigations: BTreeMap<String, String>,
    pub root: bool,
    pub release_build: bool,
}

impl MachineFacts {
    pub(crate) fn read() -> Self {
        Self::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Self {
        let text = |path: &str| read(&root.join(path));
        let cpuinfo = text("proc/cpuinfo").unwrap_or_default();
        let cores = text("sys/devices/system/cpu/online");
        let listed = cores.as_deref().and_then(|list| steer::parse_core_list(list).ok());
        Self {
            kernel: text("proc/sys/kernel/osrelease"),
            cpu: field(&cpuinfo, "model name"),
            core_count: listed.map_or(1, |cores| cores.len()),
            cores,
            virtualised: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            governor: text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            receive_buffer_max: text("proc/sys/net/core/rmem_max").and_then(|bytes| bytes.parse().ok()),
            mitigations: mitigations(&root.join("sys/devices/system/cpu/vulnerabilities")),
            root: nix::unistd::geteuid().is_root(),
            release_build: !cfg!(debug_assertions),
        }
    }

    /// Why figures from this machine, now, are not worth much. Looks at how busy it is for as long as `look`; with no
    /// time to look, the load of the last minute has to do.
    pub(crate) fn warnings(&self, look: Duration) -> Vec<String> {
        let before = Usage::read();
        if !look.is_zero() {
            std::thread::sleep(look);
        }
        let used = Usage::read().since(&before);
        let load = read(Path::new("/proc/loadavg")).and_then(|text| text.split(' ').next()?.parse().ok());
        self.warnings_of(if look.is_zero() { None } else { used.busy_share() }, load)
    }

    fn warnings_of(&self, busy_share: Option<f64>, load: Option<f64>) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.release_build {
            warnings.push("this is a debug build, several times slower; build with cargo build --release".to_owned());
        }
        let cores = self.core_count;
        match (busy_share, load) {
            (Some(share), _) if share > BUSY_SHARE => warnings.push(format!(
                "the machine is busy with something else: {:.0} % of its {cores} cores' time; see top",
                share * 100.0
            )),
            (None, Some(load)) if load > cores as f64 / 2.0 => warnings
                .push(format!("the machine was busy: a load of {load} on {cores} cores over the last minute; see top")),
            _ => {}
        }
        warnings
    }
}

/// CPU time used up until a moment, by this process and by the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    at: Instant,
    process_ns: u64,
    threads: BTreeMap<u32, (String, u64)>,
    machine: Option<Ticks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

/// CPU time used up between two moments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Used {
    pub wall_ns: u64,
    /// By this process, to the nanosecond, threads that have ended included.
    pub process_ns: u64,
    /// By each thread that was there at the end: name and time. Several of one name stand in the order of their ids.
    pub threads: Vec<(String, u64)>,
    /// By the whole machine, interrupts included, in steps of 10 ms; not idle, not stolen.
    pub machine_ns: Option<u64>,
    /// The time of all cores together, by the same count.
    pub machine_all_ns: Option<u64>,
}

impl Usage {
    /// Up to now. Read the second one before the measured threads end.
    pub(crate) fn read() -> Self {
        Self {
            at: Instant::now(),
            process_ns: clock::process_cpu_ns(),
            threads: threads(Path::new("/proc/self/task")),
            machine: read(Path::new("/proc/stat")).and_then(|text| ticks(&text)),
        }
    }

    pub(crate) fn since(&self, earlier: &Self) -> Used {
        let before = |id: &u32| earlier.threads.get(id).map_or(0, |(_, time)| *time);
        let threads = self.threads.iter().map(|(id, (name, time))| (name.clone(), time.saturating_sub(before(id))));
        let machine = |field: fn(&Ticks) -> u64| {
            let ticks = field(self.machine.as_ref()?).saturating_sub(field(earlier.machine.as_ref()?));
            Some(ticks * TICK_NS)
        };
        Used {
            wall_ns: u64::try_from((self.at - earlier.at).as_nanos()).unwrap_or(u64::MAX),
            process_ns: self.process_ns.saturating_sub(earlier.process_ns),
            threads: threads.collect(),
            machine_ns: machine(|ticks| ticks.busy),
            machine_all_ns: machine(|ticks| ticks.all),
        }
    }
}

impl Used {
    /// The time of all threads whose names begin so: `"rx"` for receivers, `"sink"` for consumers, `"send"` for
    /// senders.
    pub(crate) fn threads_ns(&self, name: &str) -> u64 {
        self.threads.iter().filter(|(own, _)| own.starts_with(name)).map(|(_, time)| time).sum()
    }

    /// The share of all cores' time that was not idle.
    pub(crate) fn busy_share(&self) -> Option<f64> {
        let (busy, all) = (self.machine_ns?, self.machine_all_ns?);
        (all > 0).then(|| busy as f64 / all as f64)
    }
}

/// Name and CPU time of every thread, to the nanosecond.
fn threads(folder: &Path) -> BTreeMap<u32, (String, u64)> {
    let thread = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        // The first number is the time on a core.
        let time = read(&entry.path().join("schedstat"))?.split(' ').next()?.parse().ok()?;
        Some((id, (read(&entry.path().join("comm"))?, time)))
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(thread).collect()
}

/// The first line: user nice system idle iowait irq softirq steal. What guests use is in user already.
fn ticks(stat: &str) -> Option<Ticks> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let all = fields.get(..7)?.iter().sum::<u64>() + fields.get(7).unwrap_or(&0);
    Some(Ticks { busy: fields[0] + fields[1] + fields[2] + fields[5] + fields[6], all })
}

fn mitigations(folder: &Path) -> BTreeMap<String, String> {
    let one = |entry: fs::DirEntry| Some((entry.file_name().to_str()?.to_owned(), read(&entry.path())?));
    let all = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(one);
    all.filter(|(_, state)| state != "Not affected").collect()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
    line.split_once(": ").map(|(_, value)| value.to_owned())
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
