//! What `udpd explain` has seen, as plain data: the cases decide from this alone, without any I/O, so a test can
//! describe any host.
//!
//! Counts are what was added between the first and the last reading. What could not be read is `None`, never 0.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use hostloss::Loss;

use super::finding::quote;

/// What was seen of a host between two readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Evidence {
    pub seconds: f64,
    pub asked_port: Option<u16>,
    /// The configuration that was named, so that commands name it as well.
    pub config_path: Option<String>,
    pub interfaces: Vec<InterfaceEvidence>,
    pub cores: BTreeMap<usize, CoreEvidence>,
    pub stack: Stack,
    pub settings: KernelSettings,
    /// What every layer lost, each packet once, as the host ledger adds it up.
    pub losses: Vec<Loss>,
    /// Every port with a UDP socket of the network namespace was watched.
    pub has_all_ports: bool,
    /// UDP sockets by port; all of the network namespace, or those on the port that was asked for.
    pub ports: Vec<Port>,
    /// Who listens on the port that was asked for in another network namespace.
    pub elsewhere: Vec<Elsewhere>,
    pub listeners: Vec<ListenerEvidence>,
    /// Datagrams of the watched ports that the kernel threw away, by reason; `None` where that could not be counted.
    pub datagrams: Option<Vec<DatagramDrops>>,
    /// Rules of nftables that may drop, where `nft` lists them.
    pub rules: Vec<FirewallRule>,
    /// Drops with the name that the kernel gives their reason, where the tracepoints could be read.
    pub reasons: Vec<NamedDrops>,
    /// What could not be read, and why: one sentence each.
    pub unseen: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct InterfaceEvidence {
    pub name: String,
    pub driver: String,
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
    /// The card had no free buffer in its ring.
    pub missed: Option<u64>,
    /// Dropped behind the card: by its driver, at a full backlog, or because no protocol takes such packets.
    pub dropped: Option<u64>,
    /// The receive ring: how long it is, and how long it can be.
    pub ring: Option<(u32, u32)>,
    /// How many receive queues it could have, with the word of ethtool for them: `combined`, or `rx` where its driver
    /// counts them apart.
    pub queues_max: Option<(u32, &'static str)>,
    /// How long it waits before it interrupts: microseconds, and whether its driver adapts that.
    pub coalescing: Option<(u32, bool)>,
    /// The core where each receive queue is worked on, where that is one and known.
    pub queue_cores: Vec<Option<usize>>,
    /// Its hash for UDP leaves out the ports; `None` where the driver does not tell or does not hash.
    pub hashes_addresses_only: Option<bool>,
    /// Of what its receive queues got, the part of the busiest one, where the driver tells.
    pub busiest_queue: Option<f64>,
    /// What is not as the steering plan wants it.
    pub drifts: Vec<PlanDrift>,
    pub rp_filter: Option<u8>,
    pub mtu: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PlanDrift {
    pub what: String,
    /// It decides how much the ring holds, or how long packets wait in it.
    pub is_of_the_ring: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CoreEvidence {
    /// Packets it took from interfaces or from another core.
    pub processed: Option<u64>,
    pub backlog_dropped: Option<u64>,
    /// Rounds that ended with work left.
    pub squeezed: Option<u64>,
    /// Of its time: working at all, in the softirq, and stolen by the hypervisor.
    pub busy: Option<f64>,
    pub softirq: Option<f64>,
    pub steal: Option<f64>,
}

/// The counters of the network stack of this network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Stack {
    /// UDP over IPv4 and IPv6 together.
    pub received: Option<u64>,
    pub no_ports: Option<u64>,
    pub rcvbuf_errors: Option<u64>,
    pub mem_errors: Option<u64>,
    pub checksum_errors: Option<u64>,
    /// Answers that were not sent, because the send buffer of their socket was full.
    pub send_buffer_errors: Option<u64>,
    /// Over both.
    pub header_errors: Option<u64>,
    /// Over IPv4, and over IPv6.
    pub reassembly_failed: Option<u64>,
    pub reassembly6_failed: Option<u64>,
    pub reverse_path: Option<u64>,
    /// The table was full and no entry could be evicted.
    pub conntrack_dropped: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct KernelSettings {
    pub rmem_max: Option<u64>,
    pub rmem_default: Option<u64>,
    pub page_bytes: u64,
    /// In pages: below the first nothing is done, above the third nothing is given.
    pub udp_mem_pages: Option<[u64; 3]>,
    /// The most that all UDP sockets had at any look.
    pub udp_pages_max: Option<u64>,
    pub backlog_max: Option<u64>,
    pub conntrack_max: Option<u64>,
    pub conntrack_count: Option<u64>,
    pub fragments_max_bytes: Option<u64>,
    pub fragments_used_max_bytes: Option<u64>,
    pub fragments6_max_bytes: Option<u64>,
    pub fragments6_used_max_bytes: Option<u64>,
    pub rp_filter_all: Option<u8>,
    pub has_default_route: bool,
    pub memory_bytes: Option<u64>,
}

/// The sockets on one port, and who reads them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Port {
    pub port: u16,
    /// Those of one reader.
    pub sockets: Vec<SocketEvidence>,
    pub reader: Option<ReaderEvidence>,
    /// The addresses of sockets that other processes have on it.
    pub of_others: Vec<String>,
}

impl Port {
    pub(super) fn dropped(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.dropped).sum()
    }

    pub(super) fn worst(&self) -> Option<&SocketEvidence> {
        self.sockets.iter().max_by_key(|socket| socket.dropped)
    }

    /// The sockets among which the kernel spreads what comes to this one's address: those of other addresses with the
    /// same port are no help to it.
    pub(super) fn beside<'a>(&'a self, socket: &'a SocketEvidence) -> impl Iterator<Item = &'a SocketEvidence> {
        self.sockets.iter().filter(|other| other.address == socket.address)
    }

    /// How many sockets share what the worst one gets.
    pub(super) fn sharing(&self) -> usize {
        let Some(worst) = self.worst() else { return 1 };
        self.beside(worst).count() + self.of_others.iter().filter(|other| **other == worst.address).count()
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SocketEvidence {
    pub address: String,
    pub dropped: u64,
    /// The most that it dropped between two looks.
    pub dropped_at_once: u64,
    /// What the kernel allows it, as it accounts.
    pub buffer_bytes: Option<u64>,
    /// Of the looks, those that found it full.
    pub full: f64,
    /// What it is connected to, and the interface that it is bound to.
    pub peer: Option<SocketAddr>,
    pub interface: Option<String>,
    pub v6_only: bool,
    pub moments: Vec<Moment>,
}

/// A tenth of a second in which a socket lost something.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Moment {
    pub lost: u64,
    /// The number of the look at its end.
    pub look: u32,
    /// It was full at two looks in turn: its reader did not come to the end of it.
    pub is_behind: bool,
    /// Of the time: its reader's thread ran, or could have run and had no core.
    pub ran: Option<f64>,
    pub waited: Option<f64>,
    pub is_stopped: bool,
    pub is_throttled: bool,
    /// The thread was in a call that waits for datagrams.
    pub receives: bool,
    /// The call in which it was; `None` where it ran.
    pub call: Option<&'static str>,
}

/// The process that reads the sockets of a port.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ReaderEvidence {
    pub pid: u32,
    pub command: String,
    /// The cores that its busiest receiving thread may run on.
    pub cores: Vec<usize>,
    /// Of the time: that thread ran, or could have run and had no core.
    pub ran: Option<f64>,
    pub waited: Option<f64>,
    /// More than half of the looks found it stopped by a signal.
    pub is_stopped: bool,
    pub throttled: Option<Throttled>,
}

/// What a control group kept from a process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Throttled {
    /// The share of its periods in which its time was used up.
    pub share: f64,
    /// What lifts the limit.
    pub command: String,
    pub cores: Option<f64>,
}

/// A socket that is bound to the port in another network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Elsewhere {
    pub pid: u32,
    pub command: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ListenerEvidence {
    pub name: String,
    pub ports: Vec<u16>,
    pub arrived: Option<u64>,
    pub received: u64,
    pub bytes: u64,
    pub kernel_dropped_unit: String,
    /// What a filter in the kernel has denied for it, which the kernel counts as drops of its sockets.
    pub denied_in_kernel: u64,
    /// What it dropped itself without being configured to, with the ledger's words for it.
    pub dropped: Vec<Dropped>,
    pub lanes: Vec<LaneEvidence>,
    pub sinks: Vec<SinkEvidence>,
    pub upstream: Option<UpstreamEvidence>,
    /// What `spread` and `when_full` are, where the configuration was read.
    pub spread: Option<String>,
    /// The SO_RCVBUF that it asked for, where the configuration was read.
    pub asked_buffer_bytes: Option<u64>,
    /// The stall that it is meant to survive, where the configuration was read.
    pub stall_seconds: Option<f64>,
}

/// A drop that the daemon counts itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dropped {
    pub reason: &'static str,
    pub help: &'static str,
    pub cure: &'static str,
    pub count: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LaneEvidence {
    pub lane: usize,
    pub arrived: Option<u64>,
    pub dropped: Option<u64>,
    /// How many senders it heard of late, where they are few enough to be counted.
    pub senders: Option<usize>,
    /// The busiest of them, and its part of what the lane received.
    pub busiest: Option<(IpAddr, f64)>,
    /// Instead of a socket, with `engine = "af_xdp"`.
    pub queue: Option<QueueEvidence>,
}

/// A receive queue past the kernel's stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QueueEvidence {
    pub interface: String,
    pub number: usize,
    pub frames: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SinkEvidence {
    pub name: String,
    pub offered: u64,
    pub delivered: u64,
    pub queue_full: u64,
    pub sink_error: u64,
    /// The bytes that may wait for it.
    pub queue_bytes: u64,
    /// What waits for it takes all that may.
    pub is_full: bool,
    /// It blocks the receivers instead of dropping; `None` where the configuration was not read.
    pub blocks: Option<bool>,
}

/// What the sequence numbers of senders say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UpstreamEvidence {
    pub missing: Option<u64>,
    pub unit: String,
}

/// Datagrams that the kernel threw away for one reason, on one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DatagramDrops {
    pub reason: String,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub aimed_at: Destination,
    pub port: u16,
    /// Where they came in; empty for what this host sent itself.
    pub interface: String,
    pub is_for_other_host: bool,
    pub is_elsewhere: bool,
    pub longest_bytes: u64,
    pub count: u64,
}

/// Whose a destination is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    Local,
    /// A group, and whether a program here has joined it on that interface.
    Group(bool),
    Foreign,
    /// Too many kinds of drops were seen, so the kernel's table left the addresses out.
    Unknown,
}

/// A rule of nftables that may drop, or the policy of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FirewallRule {
    /// Family and name of the table, and the chain.
    pub table: String,
    pub chain: String,
    /// `input`, `prerouting`, `ingress`; empty for a chain that others jump to.
    pub hook: String,
    pub text: String,
    /// What its counter has counted meanwhile, where it has one.
    pub counted: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedDrops {
    pub name: String,
    pub port: Option<u16>,
    pub count: u64,
}

impl Evidence {
    pub(super) fn listener_on(&self, port: u16) -> Option<&ListenerEvidence> {
        self.listeners.iter().find(|listener| listener.ports.contains(&port))
    }

    /// A program has the port, or it was asked for. What comes for others is what any network carries.
    pub(super) fn is_meant(&self, port: u16) -> bool {
        port == 0 || self.asked_port == Some(port) || self.ports.iter().any(|it| it.port == port)
    }

    /// The command that applies the steering plan, to all cards or one.
    pub(super) fn steer_apply(&self, interface: Option<&str>) -> String {
        let config = self.config_path.iter().map(|path| format!(" -c {}", quote(path)));
        let interface = interface.map(|name| format!(" {}", quote(name)));
        "udpd steer apply".to_owned() + &config.chain(interface).collect::<String>()
    }

    /// The mean payload of what came to a port: of its listener where the daemon counts bytes, and otherwise that of
    /// all packets of the interfaces, less their headers.
    pub(super) fn payload_bytes(&self, port: u16) -> Option<u64> {
        const HEADERS_BYTES: u64 = 14 + 20 + 8;
        let counted = self.listener_on(port).filter(|listener| listener.received > 0);
        if let Some(listener) = counted {
            return Some(listener.bytes / listener.received);
        }
        let sum = |field: fn(&InterfaceEvidence) -> Option<u64>| self.interfaces.iter().filter_map(field).sum::<u64>();
        let (packets, bytes) = (sum(|interface| interface.packets), sum(|interface| interface.bytes));
        (packets > 0).then(|| (bytes / packets).saturating_sub(HEADERS_BYTES))
    }

    /// Datagrams a second to a port. Of a port that is no listener's it is what all UDP sockets together got, which is
    /// more than this one did.
    pub(super) fn rate(&self, port: &Port) -> f64 {
        let counted = self.listener_on(port.port).and_then(|listener| listener.arrived);
        let dropped = port.dropped();
        let arrived = counted.unwrap_or_else(|| self.stack.received.unwrap_or(0) + dropped).max(dropped);
        arrived as f64 / self.seconds.max(0.001)
    }

    /// Of the cores that tell; not known when none does.
    pub(super) fn backlog_dropped(&self) -> Option<u64> {
        self.cores.values().filter_map(|core| core.backlog_dropped).reduce(u64::saturating_add)
    }
}
