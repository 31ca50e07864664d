//! The sockets of the watched ports and the processes that read them: from the host's counters, from looks and from the
//! times of threads. How long a reader's threads ran and waited for a core, on which cores they may run, and what a
//! control group kept from them. And which process listens on a port in another network namespace: a container whose
//! port is not published, or a daemon that was started in the wrong place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use hostloss::tables::Udp;
use hostloss::{HostReading, SocketReading};

use super::host::Looks;
use crate::explain::evidence::{
    DatagramDrops, Elsewhere, ListenerEvidence, Port, ReaderEvidence, SocketEvidence, Throttled,
};
use crate::explain::finding::quote;
use udpd_base::os::holder;

/// Prefix of udpd's receiver threads; any thread of another program may receive.
const RECEIVER: &str = "rx";

/// Which processes have which socket, and the times of their threads at this moment.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// A socket may have several: workers inherit it.
    by_inode: BTreeMap<u64, Vec<u32>>,
    by_descriptor: BTreeMap<(u32, u64), u64>,
    processes: BTreeMap<u32, Process>,
}

impl Owners {
    pub(super) fn find(ports: &BTreeSet<u16>, proc_root: &Path) -> Self {
        let sockets = holder::sockets(proc_root, |port| ports.contains(&port)).unwrap_or_default();
        let wanted: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
        let mut owners = Self::default();
        let root = proc_root.parent().unwrap_or(proc_root);
        let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
        let own = std::process::id();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != own) {
            let descriptors = fs::read_dir(proc_root.join(format!("{pid}/fd"))).into_iter().flatten().flatten();
            for descriptor in descriptors {
                let Ok(link) = fs::read_link(descriptor.path()) else { continue };
                let inode = holder::socket_inode(&link).filter(|inode| wanted.contains(inode));
                let number = descriptor.file_name().to_str().and_then(|name| name.parse().ok());
                let Some((inode, number)) = inode.zip(number) else { continue };
                owners.by_descriptor.insert((pid, number), inode);
                let pids = owners.by_inode.entry(inode).or_default();
                if !pids.contains(&pid) {
                    pids.push(pid);
                }
                owners.processes.entry(pid).or_insert_with(|| Process::read(root, pid));
            }
        }
        owners.by_inode.values_mut().for_each(|pids| pids.sort_unstable());
        owners
    }

    #[cfg(test)]
    pub(super) fn with(pid: u32) -> Self {
        Self { processes: BTreeMap::from([(pid, Process { pid, ..Process::default() })]), ..Self::default() }
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    pub(super) fn of_socket(&self, inode: u64) -> &[u32] {
        self.by_inode.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// The socket behind a descriptor of a process.
    pub(super) fn socket(&self, pid: u32, descriptor: u64) -> Option<u64> {
        self.by_descriptor.get(&(pid, descriptor)).copied()
    }

    /// Who reads a socket: of the processes that have it the one whose thread did the most.
    fn reader(&self, inode: u64, earlier: &Self, looks: &Looks, seconds: f64) -> Option<ReaderEvidence> {
        let readers = self.of_socket(inode).iter().filter_map(|pid| {
            let process = self.processes.get(pid)?;
            let before = earlier.processes.get(pid).unwrap_or(process);
            let mut reader = process.since(before, seconds, |name| process.may_receive(name));
            let stopped = looks.stopped.get(pid).copied().unwrap_or(0);
            reader.is_stopped = looks.count > 0 && stopped * 2 > looks.count;
            Some(reader)
        });
        let work = |reader: &ReaderEvidence| reader.ran.unwrap_or(0.0) + reader.waited.unwrap_or(0.0);
        readers.reduce(|most, reader| if work(&reader) > work(&most) { reader } else { most })
    }
}

/// By port and reader, those that have dropped the most first. What the kernel's own reasons say of a port's full
/// buffers is exact; elsewhere it is what the sockets dropped, less what had a wrong checksum.
pub(super) fn ports(
    counted: &HostReading,
    looks: &mut Looks,
    (before, after): (&Owners, &Owners),
    seconds: f64,
    datagrams: Option<&[DatagramDrops]>,
) -> Vec<Port> {
    let mut by_reader: BTreeMap<(u16, Option<u32>), Port> = BTreeMap::new();
    let mut damaged = damaged(counted);
    let sockets = || counted.sockets.iter().flatten().filter(|socket| !socket.own);
    let mut left = datagrams.map(|datagrams| refused_by_filter(sockets(), datagrams));
    for socket in sockets() {
        let port = socket.address.port();
        let drops = socket.counts.drops.unwrap_or(0);
        let other = match left.as_mut() {
            Some(left) => left.get_mut(&port),
            None => Some(&mut damaged),
        };
        let taken = other.map_or(0, |other| {
            let taken = drops.min(*other);
            *other -= taken;
            taken
        });
        let not_queued = drops - taken;
        let seen = SocketEvidence {
            address: socket.address.to_string(),
            dropped: not_queued,
            dropped_at_once: looks.sockets.get(&socket.inode).map_or(0, |seen| seen.dropped_at_once).min(not_queued),
            buffer_bytes: socket.counts.buffer_bytes,
            full: looks.full(socket.inode),
            peer: socket.peer,
            interface: interface_name(counted, socket.interface),
            v6_only: socket.v6_only,
            moments: looks.moments.of(socket.inode),
        };
        let reader = after.reader(socket.inode, before, looks, seconds);
        let pid = reader.as_ref().map(|reader| reader.pid);
        let of_reader = by_reader.entry((port, pid)).or_insert_with(|| Port { port, reader, ..Port::default() });
        of_reader.sockets.push(seen);
    }
    let mut ports: Vec<Port> = by_reader.into_values().collect();
    for place in 0..ports.len() {
        let others = ports.iter().enumerate().filter(|(other, it)| *other != place && it.port == ports[place].port);
        let others = others.flat_map(|(_, it)| &it.sockets).map(|socket| socket.address.clone()).collect();
        ports[place].of_others = others;
    }
    ports.sort_by_key(|port| std::cmp::Reverse(port.dropped()));
    ports
}

/// By port: of what its sockets dropped, what was no full buffer, as the kernel's reasons have it. A socket charges
/// itself for what its filter refuses and for wrong checksums as well.
fn refused_by_filter<'a>(
    sockets: impl Iterator<Item = &'a SocketReading>,
    datagrams: &[DatagramDrops],
) -> BTreeMap<u16, u64> {
    let mut left = BTreeMap::new();
    for socket in sockets {
        *left.entry(socket.address.port()).or_insert(0) += socket.counts.drops.unwrap_or(0);
    }
    for (port, drops) in &mut left {
        let full =
            |it: &&DatagramDrops| it.port == *port && matches!(it.reason.as_str(), "SOCKET_RCVBUFF" | "PROTO_MEM");
        *drops = drops.saturating_sub(datagrams.iter().filter(full).map(|it| it.count).sum());
    }
    left
}

/// The name of an interface by its index; its number where it is not known.
pub(super) fn interface_name(counted: &HostReading, index: u32) -> Option<String> {
    let named = || counted.nic.iter().find(|(_, interface)| interface.index == index).map(|(name, _)| name.clone());
    (index > 0).then(|| named().unwrap_or_else(|| if index == 1 { "lo".into() } else { format!("interface {index}") }))
}

/// Of what the sockets dropped, what had a wrong checksum: the kernel charges a socket for that as well. What it has
/// beyond the full buffers is that, as far as there were wrong checksums.
fn damaged(counted: &HostReading) -> u64 {
    let both = |field: fn(&Udp) -> Option<u64>| field(&counted.udp).unwrap_or(0) + field(&counted.udp6).unwrap_or(0);
    let drops: u64 = counted.sockets.iter().flatten().filter_map(|socket| socket.counts.drops).sum();
    let full = both(|udp| udp.rcvbuf_errors) + both(|udp| udp.mem_errors);
    drops.saturating_sub(full).min(both(|udp| udp.in_csum_errors))
}

/// Takes off what filters have denied for the listeners of a running daemon: the kernel counts it at their sockets as
/// if their buffers had been full. It does not say at which, so it is taken off those that dropped the most.
pub(super) fn take_off_denied(ports: &mut [Port], listeners: &[ListenerEvidence]) {
    for listener in listeners {
        let own = ports.iter_mut().filter(|port| listener.ports.contains(&port.port));
        let mut sockets: Vec<&mut SocketEvidence> = own.flat_map(|port| &mut port.sockets).collect();
        sockets.sort_by_key(|socket| std::cmp::Reverse(socket.dropped));
        let mut denied = listener.denied_in_kernel;
        for socket in sockets {
            let taken = denied.min(socket.dropped);
            socket.dropped -= taken;
            socket.dropped_at_once = socket.dropped_at_once.min(socket.dropped);
            denied -= taken;
        }
    }
    ports.sort_by_key(|port| std::cmp::Reverse(port.dropped()));
}

/// One line for each port that lost something and whose reader is not known.
pub(super) fn unnamed(ports: &[Port]) -> Vec<String> {
    let unnamed = ports.iter().filter(|port| port.dropped() > 0 && port.reader.is_none());
    unnamed
        .map(|port| {
            format!("who reads port {} and whether it gets enough of a core: only root may see that", port.port)
        })
        .collect()
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Process {
    pub pid: u32,
    pub command: String,
    threads: BTreeMap<u32, Thread>,
    groups: Vec<ControlGroup>,
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
struct ControlGroup {
    folder: PathBuf,
    /// The periods in which it was given time, and those in which that was used up. The throttled time itself adds up
    /// over cores.
    periods: u64,
    throttled: u64,
    command: String,
    cores: Option<f64>,
}

impl Process {
    pub(super) fn read(root: &Path, pid: u32) -> Self {
        let folder = root.join(format!("proc/{pid}"));
        // A process chooses its own name, and may choose one that commands a terminal.
        let command = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let command = command.trim_end().escape_debug().to_string();
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(folder.join("task")).into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            threads.insert(id, Thread::read(&entry.path()));
        }
        Self { pid, command, threads, groups: groups(root, &folder) }
    }

    /// Whether a thread of this name may be one that receives.
    pub(super) fn may_receive(&self, thread: &str) -> bool {
        self.command != "udpd" || thread.starts_with(RECEIVER)
    }

    /// What became of it since `earlier`. Of its threads the one that counts is the busiest of those that `receives`
    /// says may receive.
    pub(super) fn since(&self, earlier: &Self, seconds: f64, receives: impl Fn(&str) -> bool) -> ReaderEvidence {
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
        ReaderEvidence {
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
        let since = |group: &ControlGroup| {
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

/// In how many periods the control groups of a process have used up their time.
pub(super) fn throttled_periods(proc_root: &Path, pid: u32) -> u64 {
    let root = proc_root.parent().unwrap_or(proc_root);
    groups(root, &proc_root.join(pid.to_string())).iter().map(|group| group.throttled).sum()
}

/// The control groups of a process that count throttling, from its own up to the root.
fn groups(root: &Path, process: &Path) -> Vec<ControlGroup> {
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
            found.extend(ControlGroup::read(&mount.join(folder), controllers.is_empty()));
            let Some(above) = folder.parent() else { break };
            folder = above;
        }
    }
    found
}

impl ControlGroup {
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

/// One socket of each other namespace that has the port, as far as this process may look.
pub(super) fn listeners(port: u16, proc_root: &Path) -> Vec<Elsewhere> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let mut seen: BTreeSet<_> = namespace(&proc_root.join("self")).into_iter().collect();
    let mut pids: Vec<u32> = fs::read_dir(proc_root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        let process = proc_root.join(pid.to_string());
        let Some(other) = namespace(&process) else { continue };
        if !seen.insert(other) {
            continue;
        }
        let mut sockets = holder::sockets(&process, |bound| bound == port).unwrap_or_default();
        sockets.truncate(1);
        holder::name_processes(&mut sockets, proc_root);
        found.extend(sockets.into_iter().map(|socket| Elsewhere {
            pid: socket.pid.unwrap_or(pid),
            command: socket.command.unwrap_or_else(|| "a process".to_owned()),
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use hostloss::tables::SocketCounts;
    use hostloss::testing::root;

    use super::*;

    fn counted(drops: u64, rcvbuf_errors: u64, in_csum_errors: u64) -> HostReading {
        let socket = SocketReading {
            address: ([0, 0, 0, 0], 514).into(),
            inode: 4711,
            uid: 0,
            interface: 0,
            peer: None,
            v6_only: false,
            own: false,
            counts: SocketCounts { drops: Some(drops), used_bytes: Some(0), buffer_bytes: Some(212_992) },
        };
        let udp = Udp { rcvbuf_errors: Some(rcvbuf_errors), in_csum_errors: Some(in_csum_errors), ..Udp::default() };
        HostReading { udp, sockets: Some(vec![socket]), ..HostReading::default() }
    }

    fn dropped(counted: &HostReading) -> u64 {
        let none = Owners::default();
        ports(counted, &mut Looks::default(), (&none, &none), 1.0, None)[0].dropped()
    }

    #[test]
    fn what_was_denied_for_a_listener_is_no_loss_of_its_port() {
        let none = Owners::default();
        let mut ports = ports(&counted(130, 130, 0), &mut Looks::default(), (&none, &none), 1.0, None);
        let mut listener = ListenerEvidence { ports: vec![514], denied_in_kernel: 100, ..ListenerEvidence::default() };
        take_off_denied(&mut ports, std::slice::from_ref(&listener));
        assert_eq!(ports[0].dropped(), 30);
        // The ledger was read a moment after the counters of the host.
        listener.denied_in_kernel = 31;
        take_off_denied(&mut ports, &[listener]);
        assert_eq!(ports[0].dropped(), 0);
    }

    #[test]
    fn what_had_a_wrong_checksum_is_not_counted_as_a_full_buffer_as_well() {
        assert_eq!(dropped(&counted(100, 0, 100)), 0);
        assert_eq!(dropped(&counted(130, 30, 100)), 30);
        // A wrong checksum of another port, and drops for want of memory that no other counter has.
        assert_eq!(dropped(&counted(130, 130, 100)), 130);
        assert_eq!(dropped(&counted(130, 0, 0)), 130);
    }

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
        let before = Process::read(host(0, 0, (5, 2)).path(), 9);
        let late = host(500_000_000, 1_000_000_000, (25, 10));
        let mut reader = Process::read(late.path(), 9);
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
        let process = Process::read(bare.path(), 9);
        let reader = process.since(&process, 1.0, |_| true);
        assert_eq!((reader.ran, reader.waited, reader.throttled), (None, None, None));
    }

    #[test]
    fn a_socket_in_another_namespace_is_found_and_those_of_this_one_are_not() {
        let table =
            "heading\n 1: 00000000:0202 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 4711 2 0 0\n";
        let tree = root(&[("7/net/udp", table), ("8/net/udp", table), ("8/comm", "rsyslogd\n"), ("self/x", "")]);
        for (process, namespace) in [("self", "net:[1]"), ("7", "net:[1]"), ("8", "net:[2]")] {
            fs::create_dir_all(tree.path().join(process).join("ns")).expect("a folder");
            symlink(namespace, tree.path().join(process).join("ns/net")).expect("a link");
        }
        fs::create_dir_all(tree.path().join("8/fd")).expect("a folder");
        symlink("socket:[4711]", tree.path().join("8/fd/3")).expect("a link");
        assert_eq!(listeners(514, tree.path()), [Elsewhere { pid: 8, command: "rsyslogd".into() }]);
        assert_eq!(listeners(515, tree.path()), []);
    }
}
