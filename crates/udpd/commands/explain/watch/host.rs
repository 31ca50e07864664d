//! The counters of the host ledger as evidence: what was added between two readings, per layer, and the settings that
//! the cures are computed from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::cores::Shares;
use super::looks::Looks;
use crate::commands::explain::evidence::{Core, Interface, Settings, Stack};
use crate::host::Reading;

const PAGE_BYTES: u64 = 4096;

/// The sum of those that are known; not known when none is.
fn sum(parts: [Option<u64>; 2]) -> Option<u64> {
    parts.iter().any(Option::is_some).then(|| parts.iter().flatten().sum())
}

pub fn stack(counted: &Reading) -> Stack {
    let (ip, ip6, udp, udp6) = (&counted.ip, &counted.ip6, &counted.udp, &counted.udp6);
    Stack {
        received: sum([udp.in_datagrams, udp6.in_datagrams]),
        no_ports: sum([udp.no_ports, udp6.no_ports]),
        rcvbuf_errors: sum([udp.rcvbuf_errors, udp6.rcvbuf_errors]),
        mem_errors: sum([udp.mem_errors, udp6.mem_errors]),
        checksum_errors: sum([udp.in_csum_errors, udp6.in_csum_errors]),
        reassembly_failed: sum([ip.reasm_fails, ip6.reasm_fails]),
        reverse_path: ip.reverse_path_filter,
        conntrack_dropped: counted.conntrack.drop,
    }
}

/// The interfaces that count something of their own, with what they are set to.
pub fn interfaces(counted: &Reading, mut set: BTreeMap<String, Interface>, proc_root: &Path) -> Vec<Interface> {
    let own = counted.nic.iter().filter(|(_, interface)| !interface.repeats_others);
    own.map(|(name, interface)| {
        let link = &interface.link;
        Interface {
            name: name.clone(),
            packets: link.rx_packets,
            bytes: link.rx_bytes,
            missed: link.rx_missed_errors,
            dropped: link.rx_dropped,
            rp_filter: number(&proc_root.join(format!("sys/net/ipv4/conf/{name}/rp_filter"))),
            ..set.remove(name).unwrap_or_default()
        }
    })
    .collect()
}

pub fn cores(counted: &Reading, shares: &BTreeMap<usize, Shares>) -> BTreeMap<usize, Core> {
    let mut cores: BTreeMap<usize, Core> = BTreeMap::new();
    for (number, softnet) in &counted.softnet {
        let core = cores.entry(*number as usize).or_default();
        core.processed = softnet.processed;
        core.backlog_dropped = softnet.dropped;
        core.squeezed = softnet.time_squeeze;
    }
    for (number, shares) in shares {
        let core = cores.entry(*number).or_default();
        (core.busy, core.softirq, core.steal) = (Some(shares.busy), Some(shares.softirq), Some(shares.steal));
    }
    cores
}

pub fn settings(counted: &Reading, looks: &Looks, proc_root: &Path) -> Settings {
    let memory = &counted.memory;
    let pages = match (memory.udp_pages_low, memory.udp_pages_pressure, memory.udp_pages_max) {
        (Some(low), Some(pressure), Some(max)) => Some([low, pressure, max]),
        _ => None,
    };
    let meminfo = fs::read_to_string(proc_root.join("meminfo")).unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB")?.trim().parse().ok());
    let routes = fs::read_to_string(proc_root.join("net/route")).unwrap_or_default();
    Settings {
        rmem_max: memory.rmem_max,
        rmem_default: memory.rmem_default,
        page_bytes: PAGE_BYTES,
        udp_mem_pages: pages,
        udp_pages_max: looks.udp_pages_max.max(memory.udp_pages),
        backlog_max: memory.netdev_max_backlog,
        conntrack_max: counted.conntrack.max,
        conntrack_count: counted.conntrack.count,
        fragments_max_bytes: number(&proc_root.join("sys/net/ipv4/ipfrag_high_thresh")),
        fragments_used_max_bytes: looks.fragments_max_bytes.max(memory.fragment_bytes),
        rp_filter_all: number(&proc_root.join("sys/net/ipv4/conf/all/rp_filter")),
        has_default_route: routes.lines().skip(1).any(|line| line.split('\t').nth(1) == Some("00000000")),
        memory_bytes: total.map(|kilobytes: u64| kilobytes * 1024),
    }
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::root;

    #[test]
    fn both_families_are_added_and_what_neither_tells_is_not_known() {
        let mut counted = Reading::default();
        counted.udp.no_ports = Some(3);
        counted.udp6.no_ports = Some(4);
        counted.udp6.rcvbuf_errors = Some(5);
        let stack = stack(&counted);
        assert_eq!((stack.no_ports, stack.rcvbuf_errors, stack.mem_errors), (Some(7), Some(5), None));
    }

    #[test]
    fn settings_are_read_where_they_are_and_a_default_route_is_seen() {
        let route = "Iface\tDestination\tGateway\neth0\t00000000\t0101A8C0\n";
        let files =
            [("sys/net/ipv4/conf/all/rp_filter", "2\n"), ("meminfo", "MemTotal:  1000 kB\n"), ("net/route", route)];
        let read = settings(&Reading::default(), &Looks::default(), root(&files).path());
        assert_eq!((read.rp_filter_all, read.memory_bytes, read.has_default_route), (Some(2), Some(1_024_000), true));
        assert_eq!((read.udp_mem_pages, read.fragments_max_bytes), (None, None));
    }
}
