//! The sockets of the watched ports and the processes that read them, from the host's counters, from looks and from the
//! times of threads.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;

use super::looks::Looks;
use super::threads::Process;
use crate::explain::evidence::{Listener, Port, Reader, Socket};
use hostloss::HostReading;
use hostloss::tables::Udp;
use udpd_base::os::holder;

/// How the receivers of udpd are called; the threads of others may all receive.
const RECEIVER: &str = "rx";

/// Which process has which socket, and how its threads are at this moment.
#[derive(Debug, Default)]
pub struct Owners {
    by_inode: BTreeMap<u64, u32>,
    processes: BTreeMap<u32, Process>,
}

impl Owners {
    pub fn find(ports: &BTreeSet<u16>, proc_root: &Path) -> Self {
        let mut sockets = holder::sockets(proc_root, |port| ports.contains(&port)).unwrap_or_default();
        holder::name_processes(&mut sockets, proc_root);
        let mut owners = Self::default();
        let root = proc_root.parent().unwrap_or(proc_root);
        for socket in sockets {
            let Some(pid) = socket.pid else { continue };
            owners.by_inode.insert(socket.inode, pid);
            let command = socket.command.unwrap_or_default();
            owners.processes.entry(pid).or_insert_with(|| Process::read(root, pid, &command));
        }
        owners
    }

    pub fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    /// Who reads these sockets: the process that has the one that lost the most.
    fn reader(&self, sockets: &[(u64, Socket)], earlier: &Self, looks: &Looks, seconds: f64) -> Option<Reader> {
        let (inode, _) = sockets.iter().max_by_key(|(_, socket)| socket.dropped)?;
        let process = self.processes.get(self.by_inode.get(inode)?)?;
        let receives = |name: &str| process.command != "udpd" || name.starts_with(RECEIVER);
        let before = earlier.processes.get(&process.pid).unwrap_or(process);
        let mut reader = process.since(before, seconds, receives);
        let stopped = looks.stopped.get(&process.pid).copied().unwrap_or(0);
        reader.is_stopped = looks.count > 0 && stopped * 2 > looks.count;
        Some(reader)
    }
}

/// By port, those that have dropped the most first.
pub fn ports(counted: &HostReading, looks: &Looks, (before, after): (&Owners, &Owners), seconds: f64) -> Vec<Port> {
    let mut by_port: BTreeMap<u16, Vec<(u64, Socket)>> = BTreeMap::new();
    let mut damaged = damaged(counted);
    for socket in counted.sockets.iter().flatten().filter(|socket| !socket.own) {
        let drops = socket.counts.drops.unwrap_or(0);
        let not_queued = drops.saturating_sub(damaged);
        damaged -= drops - not_queued;
        let seen = Socket {
            address: socket.address.to_string(),
            dropped: not_queued,
            dropped_at_once: looks.sockets.get(&socket.inode).map_or(0, |seen| seen.dropped_at_once),
            buffer_bytes: socket.counts.buffer_bytes,
            full: looks.full(socket.inode),
        };
        by_port.entry(socket.address.port()).or_default().push((socket.inode, seen));
    }
    let port = |(port, sockets): (u16, Vec<(u64, Socket)>)| {
        let reader = after.reader(&sockets, before, looks, seconds);
        Port { port, reader, sockets: sockets.into_iter().map(|(_, socket)| socket).collect() }
    };
    let mut ports: Vec<Port> = by_port.into_iter().map(port).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(port.dropped()));
    ports
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
pub fn take_off_denied(ports: &mut [Port], listeners: &[Listener]) {
    for listener in listeners {
        let own = ports.iter_mut().filter(|port| listener.ports.contains(&port.port));
        let mut sockets: Vec<&mut Socket> = own.flat_map(|port| &mut port.sockets).collect();
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

/// What cannot be said of ports that lost something because nobody tells who reads them.
pub fn unnamed(ports: &[Port]) -> Vec<String> {
    let unnamed = ports.iter().filter(|port| port.dropped() > 0 && port.reader.is_none());
    unnamed
        .map(|port| {
            format!("who reads port {} and whether it gets enough of a core: only root may see that", port.port)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::SocketReading;
    use hostloss::tables::SocketCounts;

    fn counted(drops: u64, rcvbuf_errors: u64, in_csum_errors: u64) -> HostReading {
        let socket = SocketReading {
            address: ([0, 0, 0, 0], 514).into(),
            inode: 4711,
            uid: 0,
            interface: 0,
            own: false,
            counts: SocketCounts { drops: Some(drops), used_bytes: Some(0), buffer_bytes: Some(212_992) },
        };
        let udp = Udp { rcvbuf_errors: Some(rcvbuf_errors), in_csum_errors: Some(in_csum_errors), ..Udp::default() };
        HostReading { udp, sockets: Some(vec![socket]), ..HostReading::default() }
    }

    fn dropped(counted: &HostReading) -> u64 {
        let nobody = Owners::default();
        ports(counted, &Looks::default(), (&nobody, &nobody), 1.0)[0].dropped()
    }

    #[test]
    fn what_was_denied_for_a_listener_is_no_loss_of_its_port() {
        let nobody = Owners::default();
        let mut ports = ports(&counted(130, 130, 0), &Looks::default(), (&nobody, &nobody), 1.0);
        let mut listener = Listener { ports: vec![514], denied_in_kernel: 100, ..Listener::default() };
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
}
