//! The machine a figure comes from: without it the figure says nothing.

use std::fmt::Write as _;
use std::fs;

/// /proc/stat counts in hundredths of a second on every machine this runs on.
const TICK_NS: u64 = 10_000_000;

/// CPU time that the whole machine has spent on anything, interrupts included; not idle, not stolen.
pub(crate) fn busy_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let line = stat.lines().next().expect("/proc/stat has a first line");
    let fields: Vec<u64> = line.split_whitespace().skip(1).map(|field| field.parse().expect("a count")).collect();
    // user nice system idle iowait irq softirq
    (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) * TICK_NS
}

/// The facts, as a Markdown list.
pub(crate) fn facts() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut text = String::new();
    let mut fact = |name: &str, value: &str| writeln!(text, "- {name}: {value}").expect("a String takes everything");
    fact("kernel", &read("/proc/sys/kernel/osrelease"));
    fact("CPU", &field(&cpuinfo, "model name"));
    fact("cores", &read("/sys/devices/system/cpu/online"));
    let virtualised = field(&cpuinfo, "flags").split(' ').any(|flag| flag == "hypervisor");
    fact("virtualised", if virtualised { "yes" } else { "no" });
    fact("governor", &read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    fact("net.core.rmem_max", &read("/proc/sys/net/core/rmem_max"));
    fact("ordinary user", if nix::unistd::geteuid().is_root() { "no (root)" } else { "yes" });
    for (name, state) in mitigations() {
        fact(&format!("mitigation {name}"), &state);
    }
    text
}

/// What the kernel says about each hardware vulnerability that it knows the CPU to have.
fn mitigations() -> Vec<(String, String)> {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let mut found: Vec<(String, String)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .map(|name| (name.clone(), read(&format!("{folder}/{name}"))))
        .filter(|(_, state)| state != "Not affected")
        .collect();
    found.sort();
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn field(cpuinfo: &str, name: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(": ")).map_or_else(|| "unknown".to_owned(), |(_, value)| value.to_owned())
}
