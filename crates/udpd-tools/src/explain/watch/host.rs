//! The counters of the host ledger as evidence: what was added between two readings, per layer, and the settings that
//! the cures are computed from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ::steer::format_core_list;

use super::cores::Shares;
use super::looks::Looks;
use crate::explain::evidence::{Core, Interface, Settings, Stack};
use hostloss::HostReading;

/// The sum of those that are known; not known when none is.
fn sum(parts: [Option<u64>; 2]) -> Option<u64> {
    parts.iter().any(Option::is_some).then(|| parts.iter().flatten().sum())
}

pub fn stack(counted: &HostReading) -> Stack {
    let (ip, ip6, udp, udp6) = (&counted.ip, &counted.ip6, &counted.udp, &counted.udp6);
    Stack {
        received: sum([udp.in_datagrams, udp6.in_datagrams]),
        no_ports: sum([udp.no_ports, udp6.no_ports]),
        rcvbuf_errors: sum([udp.rcvbuf_errors, udp6.rcvbuf_errors]),
        mem_errors: sum([udp.mem_errors, udp6.mem_errors]),
        checksum_errors: sum([udp.in_csum_errors, udp6.in_csum_errors]),
        reassembly_failed: ip.reasm_fails,
        reassembly6_failed: ip6.reasm_fails,
        reverse_path: ip.reverse_path_filter,
        conntrack_dropped: sum([counted.conntrack.drop, counted.conntrack.chain_too_long]),
    }
}

/// The interfaces that count something of their own, with what they are set to.
pub fn interfaces(counted: &HostReading, mut set: BTreeMap<String, Interface>, proc_root: &Path) -> Vec<Interface> {
    let own = counted.nic.iter().filter(|(_, interface)| !interface.repeats_others);
    own.map(|(name, interface)| {
        let link = &interface.link;
        Interface {
            name: name.clone(),
            packets: link.rx_packets,
            bytes: link.rx_bytes,
            missed: link.rx_missed_errors,
            dropped: link.rx_dropped,
            busiest_queue: busiest_queue(interface.queues.values().map(|queue| queue.packets)),
            rp_filter: number(&proc_root.join(format!("sys/net/ipv4/conf/{name}/rp_filter"))),
            ..set.remove(name).unwrap_or_default()
        }
    })
    .collect()
}

pub fn cores(counted: &HostReading, shares: &BTreeMap<usize, Shares>) -> BTreeMap<usize, Core> {
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

pub fn settings(counted: &HostReading, looks: &Looks, proc_root: &Path) -> Settings {
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
        page_bytes: mmsg::page_bytes() as u64,
        udp_mem_pages: pages,
        udp_pages_max: looks.udp_pages_max.max(memory.udp_pages),
        backlog_max: memory.netdev_max_backlog,
        conntrack_max: counted.conntrack.max,
        conntrack_count: counted.conntrack.count,
        fragments_max_bytes: number(&proc_root.join("sys/net/ipv4/ipfrag_high_thresh")),
        fragments_used_max_bytes: looks.fragments_max_bytes.max(memory.fragment_bytes),
        fragments6_max_bytes: number(&proc_root.join("sys/net/ipv6/ip6frag_high_thresh")),
        fragments6_used_max_bytes: looks.fragments6_max_bytes,
        rp_filter_all: number(&proc_root.join("sys/net/ipv4/conf/all/rp_filter")),
        has_default_route: routes.lines().skip(1).any(is_default_route),
        memory_bytes: total.map(|kilobytes: u64| kilobytes * 1024),
    }
}

/// One that leads anywhere: a reject route refuses everything that no other takes.
fn is_default_route(line: &str) -> bool {
    const REJECT: u32 = 0x200;
    let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
    let flags = fields.get(3).and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
    let is_for_all = fields.get(1) == Some(&"00000000") && fields.get(7).is_none_or(|mask| *mask == "00000000");
    is_for_all && flags & REJECT == 0
}

/// Cores of which the kernel does not tell what their backlog dropped, where it does of others.
pub fn unseen(cores: &BTreeMap<usize, Core>) -> Option<String> {
    let (told, others): (Vec<_>, Vec<_>) = cores.iter().partition(|(_, core)| core.backlog_dropped.is_some());
    let others: Vec<usize> = others.into_iter().map(|(core, _)| *core).collect();
    let is_told = !told.is_empty() && !others.is_empty();
    is_told.then(|| format!("what the backlog of core {} dropped: it was not read twice", format_core_list(&others)))
}

/// Of what the queues of an interface got, the part of the busiest one; not known where one does not tell.
fn busiest_queue(queues: impl Iterator<Item = Option<u64>>) -> Option<f64> {
    let packets = queues.collect::<Option<Vec<u64>>>()?;
    let all: u64 = packets.iter().sum();
    let most = *packets.iter().max()?;
    (all > 0).then(|| most as f64 / all as f64)
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    #[test]
    fn both_families_are_added_and_what_neither_tells_is_not_known() {
        let mut counted = HostReading::default();
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
        let read = settings(&HostReading::default(), &Looks::default(), root(&files).path());
        assert_eq!((read.rp_filter_all, read.memory_bytes, read.has_default_route), (Some(2), Some(1_024_000), true));
        assert_eq!((read.udp_mem_pages, read.fragments_max_bytes), (None, None));
        assert!(!is_default_route("*\t00000000\t00000000\t0200\t0\t0\t-1\t00000000"), "it refuses everything");
    }

    #[test]
    fn a_core_that_came_meanwhile_does_not_hide_what_the_others_dropped() {
        let told = Core { backlog_dropped: Some(5), ..Core::default() };
        let cores = BTreeMap::from([(0, told), (3, Core::default())]);
        assert!(unseen(&cores).is_some_and(|words| words.contains("core 3")));
        let evidence = crate::explain::evidence::Evidence { cores, ..Default::default() };
        assert_eq!(evidence.backlog_dropped(), Some(5));
    }
}
