//! The host as evidence: what its counters added between two readings, per layer, how each core spent its time, what
//! the cards are set to, and the settings that the cures are computed from. And what changes too fast for two readings,
//! looked at ten times a second: how full receive buffers are, what they drop at once, how much memory UDP and
//! fragments have, and whether a process is stopped.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ::steer::ethtool::FlowHash;
use ::steer::model::{self, Kind};
use ::steer::{Setting, format_core_list};
use hostloss::HostReading;

use super::moments::Moments;
use super::sockets::Owners;
use crate::explain::evidence::{CoreEvidence, InterfaceEvidence, KernelSettings, PlanDrift, Stack};
use crate::steer;
use udpd_engine::config::Config;
use udpd_engine::plan::interfaces::Kernel;

/// The sum of those that are known; not known when none is.
fn sum(parts: [Option<u64>; 2]) -> Option<u64> {
    parts.iter().any(Option::is_some).then(|| parts.iter().flatten().sum())
}

pub(super) fn stack(counted: &HostReading, looks: &Looks) -> Stack {
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
        header_errors: sum([ip.in_hdr_errors, ip6.in_hdr_errors]),
        send_buffer_errors: looks.unsent.map(|(first, last)| last.wrapping_sub(first)),
        conntrack_dropped: sum([counted.conntrack.drop, counted.conntrack.chain_too_long]),
    }
}

/// The interfaces with counters of their own, with their settings.
pub(super) fn interfaces(
    counted: &HostReading,
    mut set: BTreeMap<String, InterfaceEvidence>,
    proc_root: &Path,
) -> Vec<InterfaceEvidence> {
    let own = counted.nic.iter().filter(|(_, interface)| !interface.repeats_others);
    own.map(|(name, interface)| {
        let link = &interface.link;
        InterfaceEvidence {
            name: name.clone(),
            packets: link.rx_packets,
            bytes: link.rx_bytes,
            missed: link.rx_missed_errors,
            dropped: link.rx_dropped,
            busiest_queue: busiest_queue(interface.queues.values().map(|queue| queue.packets)),
            rp_filter: number(&proc_root.join(format!("sys/net/ipv4/conf/{name}/rp_filter"))),
            mtu: number(&proc_root.join(format!("../sys/class/net/{name}/mtu"))),
            ..set.remove(name).unwrap_or_default()
        }
    })
    .collect()
}

pub(super) fn cores(counted: &HostReading, shares: &BTreeMap<usize, CoreShares>) -> BTreeMap<usize, CoreEvidence> {
    let mut cores: BTreeMap<usize, CoreEvidence> = BTreeMap::new();
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

pub(super) fn settings(counted: &HostReading, looks: &Looks, proc_root: &Path) -> KernelSettings {
    let memory = &counted.memory;
    let pages = match (memory.udp_pages_low, memory.udp_pages_pressure, memory.udp_pages_max) {
        (Some(low), Some(pressure), Some(max)) => Some([low, pressure, max]),
        _ => None,
    };
    let meminfo = fs::read_to_string(proc_root.join("meminfo")).unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB")?.trim().parse().ok());
    let routes = fs::read_to_string(proc_root.join("net/route")).unwrap_or_default();
    KernelSettings {
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

/// Whether a route is a default route; a reject route leads nowhere.
fn is_default_route(line: &str) -> bool {
    const REJECT: u32 = 0x200;
    let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
    let flags = fields.get(3).and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
    let is_for_all = fields.get(1) == Some(&"00000000") && fields.get(7).is_none_or(|mask| *mask == "00000000");
    is_for_all && flags & REJECT == 0
}

/// Cores of which the kernel does not tell what their backlog dropped, where it does of others.
pub(super) fn unseen(cores: &BTreeMap<usize, CoreEvidence>) -> Option<String> {
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

/// Of the time of a core between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CoreShares {
    pub busy: f64,
    pub softirq: f64,
    pub steal: f64,
}

/// Ticks by core, in the kernel's order: user, nice, system, idle, iowait, irq, softirq, steal.
pub(super) type Ticks = BTreeMap<usize, [u64; 8]>;

pub(super) fn parse_ticks(stat: &str) -> Ticks {
    let core = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let mut ticks = [0; 8];
        for tick in &mut ticks {
            *tick = words.next()?.parse().ok()?;
        }
        Some((number, ticks))
    };
    stat.lines().filter_map(core).collect()
}

/// Cores that were there at both readings, and for which time has passed.
pub(super) fn core_shares(before: &Ticks, after: &Ticks) -> BTreeMap<usize, CoreShares> {
    let share = |(core, after): (&usize, &[u64; 8])| {
        let before = before.get(core)?;
        let mut ticks = [0; 8];
        for (place, tick) in ticks.iter_mut().enumerate() {
            *tick = after[place].saturating_sub(before[place]);
        }
        let all = ticks.iter().sum::<u64>();
        let [.., idle, wait, _, softirq, steal] = ticks;
        let part = |ticks: u64| ticks as f64 / all as f64;
        (all > 0)
            .then(|| (*core, CoreShares { busy: part(all - idle - wait), softirq: part(softirq), steal: part(steal) }))
    };
    after.iter().filter_map(share).collect()
}

/// The settings of each of these interfaces that has a device, and what could not be read.
pub(super) fn read_cards(
    names: &[String],
    config: Option<&Config>,
) -> (BTreeMap<String, InterfaceEvidence>, Vec<String>) {
    let mut unseen = Vec::new();
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(failure) => return (BTreeMap::new(), vec![format!("rings, queues and interrupts: {failure}")]),
    };
    let mut found = BTreeMap::new();
    // One by one: a card that is taken out meanwhile costs the others nothing.
    for name in names {
        match kernel.reader().read(std::slice::from_ref(name)) {
            Ok(host) => found.extend(host.interfaces.iter().filter_map(card_settings)),
            Err(error) => unseen.push(format!("rings, queues and interrupts of {name}: {error}")),
        }
    }
    if let Some(config) = config.filter(|config| !config.steer.interfaces.is_empty()) {
        match steer::drifts(config) {
            Ok(drifts) => {
                for drift in drifts {
                    if let Some(interface) = found.get_mut(&drift.change.interface) {
                        let is_of_the_ring = matches!(drift.change.setting, Setting::Rings | Setting::Coalescing);
                        interface.drifts.push(PlanDrift { what: drift.to_string(), is_of_the_ring });
                    }
                }
            }
            Err(failure) => unseen.push(format!("whether the cards are as the steering plan has them: {failure}")),
        }
    }
    (found, unseen)
}

/// Virtual interfaces have no rings, and their queues no interrupts.
fn card_settings(interface: &model::Interface) -> Option<(String, InterfaceEvidence)> {
    if interface.kind != Kind::Physical {
        return None;
    }
    let core = |queue: &model::Queue| match queue.work.get()?.cores.as_slice() {
        [core] => Some(*core),
        _ => None,
    };
    let settings = InterfaceEvidence {
        name: interface.name.clone(),
        driver: interface.driver.get().cloned().unwrap_or_default(),
        ring: interface.rings.get().map(|rings| (rings.rx, rings.rx_max)),
        queues_max: interface.channels.get().map(|it| match it.combined_max {
            0 => (it.rx_max, "rx"),
            max => (max, "combined"),
        }),
        coalescing: interface.coalescing.get().map(|now| (now.rx_usecs, now.adaptive_rx)),
        queue_cores: interface.queues.iter().map(core).collect(),
        hashes_addresses_only: interface.flow_hash_v4.get().map(|hash| *hash == FlowHash::ADDRESSES),
        ..InterfaceEvidence::default()
    };
    Some((interface.name.clone(), settings))
}

/// A buffer that is this full counts as full: the kernel keeps a part of it for itself while a reader works.
const FULL: f64 = 0.7;

#[derive(Debug, Default)]
pub(super) struct Looks {
    pub count: u32,
    /// By inode.
    pub sockets: BTreeMap<u64, SocketLook>,
    pub udp_pages_max: Option<u64>,
    pub fragments_max_bytes: Option<u64>,
    pub fragments6_max_bytes: Option<u64>,
    pub moments: Moments,
    /// What UDP counts as refused for want of room at the last look, and as not sent at the first and the last.
    refused: Option<u64>,
    unsent: Option<(u64, u64)>,
    /// By process: at how many looks it was stopped.
    pub stopped: BTreeMap<u32, u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SocketLook {
    /// As the kernel counts, from the socket's beginning, at the last look.
    drops: u32,
    pub dropped_at_once: u64,
    /// At how many looks it was full.
    pub full: u32,
}

impl Looks {
    /// Looks once more. `buffers` are the sizes of receive buffers by inode, `readers` the processes that are watched.
    pub(super) fn look(&mut self, proc_root: &Path, buffers: &BTreeMap<u64, u64>, owners: &Owners, seconds: f64) {
        self.count += 1;
        let (refused, unsent) = udp_errors(proc_root);
        // What a filter refuses or is damaged a socket counts as well; it says nothing of the reader.
        let room = refused.zip(self.refused).map_or(u64::MAX, |(now, before)| now.wrapping_sub(before));
        self.refused = refused;
        self.unsent = unsent.map(|now| (self.unsent.map_or(now, |(first, _)| first), now));
        let mut states = Vec::new();
        for table in ["net/udp", "net/udp6"] {
            let text = fs::read_to_string(proc_root.join(table)).unwrap_or_default();
            for (inode, queued, drops) in text.lines().skip(1).filter_map(parse_socket) {
                let Some(buffer) = buffers.get(&inode) else { continue };
                let is_first = !self.sockets.contains_key(&inode);
                let seen = self.sockets.entry(inode).or_default();
                let dropped = if is_first { 0 } else { u64::from(drops.wrapping_sub(seen.drops)) };
                seen.drops = drops;
                seen.dropped_at_once = seen.dropped_at_once.max(dropped);
                let is_full = queued as f64 >= *buffer as f64 * FULL;
                seen.full += u32::from(is_full);
                states.push((inode, dropped.min(room), is_full));
            }
        }
        self.moments.look(&states, owners, seconds, proc_root);
        let sockstat = fs::read_to_string(proc_root.join("net/sockstat")).unwrap_or_default();
        self.udp_pages_max = self.udp_pages_max.max(word(&sockstat, "UDP:", "mem"));
        self.fragments_max_bytes = self.fragments_max_bytes.max(word(&sockstat, "FRAG:", "memory"));
        let sockstat6 = fs::read_to_string(proc_root.join("net/sockstat6")).unwrap_or_default();
        self.fragments6_max_bytes = self.fragments6_max_bytes.max(word(&sockstat6, "FRAG6:", "memory"));
        for process in owners.processes() {
            let stat = fs::read_to_string(proc_root.join(format!("{}/stat", process.pid))).unwrap_or_default();
            *self.stopped.entry(process.pid).or_default() += u32::from(is_stopped(&stat));
        }
    }

    /// Of the looks, those at which the socket was full.
    pub(super) fn full(&self, inode: u64) -> f64 {
        let full = self.sockets.get(&inode).map_or(0, |seen| seen.full);
        f64::from(full) / f64::from(self.count.max(1))
    }
}

/// What UDP of both families refused because a buffer or its memory was full, and could not send.
fn udp_errors(proc_root: &Path) -> (Option<u64>, Option<u64>) {
    let snmp = fs::read_to_string(proc_root.join("net/snmp")).unwrap_or_default();
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let four: BTreeMap<&str, u64> = names
        .split_ascii_whitespace()
        .zip(values.split_ascii_whitespace())
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let snmp6 = fs::read_to_string(proc_root.join("net/snmp6")).unwrap_or_default();
    let six =
        |name: &str| snmp6.lines().find_map(|line| line.strip_prefix("Udp6")?.strip_prefix(name)?.trim().parse().ok());
    let both = |name: &str| sum([four.get(name).copied(), six(name)]);
    (sum([both("RcvbufErrors"), both("MemErrors")]), both("SndbufErrors"))
}

/// Inode, bytes in the queue and drops of a line of the table of sockets.
fn parse_socket(line: &str) -> Option<(u64, u64, u32)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, queued) = fields.get(4)?.split_once(':')?;
    let queued = u64::from_str_radix(queued, 16).ok()?;
    Some((fields.get(9)?.parse().ok()?, queued, fields.last()?.parse().ok()?))
}

/// The number behind a word in the line that begins so.
fn word(text: &str, line: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|found| found.strip_prefix(line))?;
    let mut words = line.split_ascii_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

/// The state stands after the name, which may contain anything.
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use hostloss::testing::root;

    use super::*;

    #[test]
    fn both_families_are_added_and_what_neither_tells_is_not_known() {
        let mut counted = HostReading::default();
        counted.udp.no_ports = Some(3);
        counted.udp6.no_ports = Some(4);
        counted.udp6.rcvbuf_errors = Some(5);
        let stack = stack(&counted, &Looks::default());
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
        let told = CoreEvidence { backlog_dropped: Some(5), ..CoreEvidence::default() };
        let cores = BTreeMap::from([(0, told), (3, CoreEvidence::default())]);
        assert!(unseen(&cores).is_some_and(|words| words.contains("core 3")));
        let evidence = crate::explain::evidence::Evidence { cores, ..Default::default() };
        assert_eq!(evidence.backlog_dropped(), Some(5));
    }

    #[test]
    fn shares_are_those_of_the_time_between() {
        let before =
            parse_ticks("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu7 1 1 1 1 1 1 1 1 0 0\nintr 5\n");
        let after = parse_ticks("cpu0 10 0 20 40 10 0 15 5 0 0\ncpu8 1 1 1 1 1 1 1 1 0 0\n");
        let shares = core_shares(&before, &after);
        assert_eq!(shares, BTreeMap::from([(0, CoreShares { busy: 0.5, softirq: 0.15, steal: 0.05 })]));
    }

    #[test]
    fn a_core_for_which_no_time_has_passed_has_no_shares() {
        let ticks = parse_ticks("cpu0 1 1 1 1 1 1 1 1 0 0\n");
        assert_eq!(core_shares(&ticks, &ticks), BTreeMap::new());
    }

    const HEADING: &str =
        "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n";

    fn table(queued: &str, drops: u32) -> String {
        format!(
            "{HEADING}  1: 00000000:0202 00000000:0000 07 00000000:{queued} 00:00000000 00000000 0 0 4711 2 0 {drops}\n"
        )
    }

    #[test]
    fn the_most_that_was_dropped_between_two_looks_and_how_often_it_was_full_is_kept() {
        let buffers = BTreeMap::from([(4711, 1000)]);
        let mut looks = Looks::default();
        let owners = Owners::with(12);
        for (queued, drops) in [("00000000", 5), ("000003E8", 105), ("000003E8", 110), ("00000000", 110)] {
            let sockstat = "UDP: inuse 3 mem 17\nFRAG: inuse 1 memory 4096\n";
            let sockstat6 = "FRAG6: inuse 0 memory 512\n";
            let stat = "12 (a) b) T 1 2\n";
            let table = table(queued, drops);
            let files =
                [("net/udp", &*table), ("net/sockstat", sockstat), ("net/sockstat6", sockstat6), ("12/stat", stat)];
            let found = root(&files);
            looks.look(found.path(), &buffers, &owners, 0.1);
        }
        let seen = looks.sockets[&4711];
        assert_eq!((seen.dropped_at_once, looks.full(4711)), (100, 0.5));
        assert_eq!((looks.udp_pages_max, looks.fragments_max_bytes), (Some(17), Some(4096)));
        assert_eq!(looks.fragments6_max_bytes, Some(512));
        assert_eq!(looks.stopped, BTreeMap::from([(12, 4)]));
    }

    #[test]
    fn what_is_not_there_is_not_known() {
        let mut looks = Looks::default();
        looks.look(root(&[]).path(), &BTreeMap::new(), &Owners::default(), 0.1);
        assert_eq!((looks.udp_pages_max, looks.fragments_max_bytes, looks.full(1)), (None, None, 0.0));
    }
}
