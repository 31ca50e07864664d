//! Every counter of the host ledger, one line each: its key, what the kernel calls it, and what it counts. The struct
//! of a table, its JSON, the difference of two readings and the page of counters are made from these lines. Unlike a
//! counter of our own, each may be unknown: a kernel is older, a file is not there, a driver says nothing.
//!
//! Containment is as the kernel's code has it. A loss that stands in two counters has `contained_in`, and the sum of
//! the layers takes only the outer one.

use serde::{Deserialize, Serialize};

/// Where in the kernel something is counted, in the order in which a datagram gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelLayer {
    /// The network card and its driver.
    Nic,
    /// The queue of each core between the driver and IP.
    Softnet,
    /// Connection tracking.
    Conntrack,
    /// IPv4 or IPv6, with reassembly.
    Ip,
    /// UDP, for all sockets together.
    Udp,
    /// One socket.
    Socket,
}

impl KernelLayer {
    /// As it stands in JSON and in labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Softnet => "softnet",
            Self::Conntrack => "conntrack",
            Self::Ip => "ip",
            Self::Udp => "udp",
            Self::Socket => "socket",
        }
    }
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterUnit {
    /// What came over the wire as one: a datagram, or a fragment of one.
    Packets,
    /// What the kernel handles as one: a datagram, or, with GRO, a train of them.
    Buffers,
    /// Datagrams.
    Datagrams,
    /// Pieces of a datagram that was too long for a packet.
    Fragments,
    /// Rounds in which a core takes packets from its queues.
    Polls,
    /// Bytes.
    Bytes,
    /// Of memory, as large as `getconf PAGESIZE` says.
    Pages,
    /// Sockets.
    Sockets,
    /// Tracked connections.
    Connections,
}

impl CounterUnit {
    /// As it stands in JSON and in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Buffers => "buffers",
            Self::Datagrams => "datagrams",
            Self::Fragments => "fragments",
            Self::Polls => "polls",
            Self::Bytes => "bytes",
            Self::Pages => "pages",
            Self::Sockets => "sockets",
            Self::Connections => "connections",
        }
    }
}

/// What is known of a counter beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelCounter {
    /// Its key, unique within its layer.
    pub name: &'static str,
    /// What the kernel calls it, where it stands.
    pub source: &'static str,
    /// Where in the kernel it is counted.
    pub layer: KernelLayer,
    /// What it counts.
    pub unit: CounterUnit,
    /// How many bits it has; beyond them it begins anew.
    pub bits: u32,
    /// It rises and falls: a difference of two readings is the later one.
    pub is_gauge: bool,
    /// What it counts is lost.
    pub is_loss: bool,
    /// Not only UDP: what it counts may have been anything.
    pub of_all_protocols: bool,
    /// Counters, as `layer.name`, one of which has already counted all that this one counts.
    pub contained_in: &'static [&'static str],
    /// What it means, in a sentence.
    pub help: &'static str,
}

impl KernelCounter {
    /// What the counters of a table have in common.
    pub const fn of(layer: KernelLayer, unit: CounterUnit) -> Self {
        Self {
            name: "",
            source: "",
            layer,
            unit,
            bits: 64,
            is_gauge: false,
            is_loss: false,
            of_all_protocols: false,
            contained_in: &[],
            help: "",
        }
    }

    /// The same for counters below UDP.
    pub const fn of_all(layer: KernelLayer, unit: CounterUnit) -> Self {
        Self { of_all_protocols: true, ..Self::of(layer, unit) }
    }

    /// The same for what rises and falls.
    pub const fn gauge(layer: KernelLayer, unit: CounterUnit) -> Self {
        Self { is_gauge: true, ..Self::of(layer, unit) }
    }

    /// What was counted between two readings of this counter.
    ///
    /// A counter that went back by much has wrapped, or began anew with its device; then what it shows is what it
    /// counted since then. One that went back by a little was read while its parts were added up, and has counted
    /// nothing. Some drivers count in 32 bits what they tell in 64: one that stood close to the end of 32 bits has
    /// wrapped there.
    pub fn difference(&self, earlier: u64, later: u64) -> u64 {
        const NARROW: u64 = 1 << 32;
        const CLOSE: u64 = 1 << 28;
        if self.is_gauge {
            return later;
        }
        if self.bits == 32 {
            return u64::from((later as u32).wrapping_sub(earlier as u32));
        }
        match later.checked_sub(earlier) {
            Some(difference) => difference,
            None if earlier < NARROW && NARROW - earlier + later < CLOSE => NARROW - earlier + later,
            None if later > earlier / 2 => 0,
            None => later,
        }
    }

    /// `layer.name`, by which others name it in `contained_in`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.layer.name(), self.name)
    }
}

/// Some counters of the kernel that are read together.
pub trait KernelTable: Default + Clone {
    /// The declarations.
    const COUNTERS: &'static [KernelCounter];

    /// In the order of `COUNTERS`.
    fn values(&self) -> impl Iterator<Item = (&'static KernelCounter, Option<u64>)>;

    /// The same, to be written.
    fn cells(&mut self) -> impl Iterator<Item = (&'static KernelCounter, &mut Option<u64>)>;

    /// Writes the value of the counter that the kernel calls so; no such counter is fine.
    fn set(&mut self, source: &str, value: u64) {
        if let Some((_, cell)) = self.cells().find(|(counter, _)| counter.source == source) {
            *cell = Some(value);
        }
    }

    /// Forgets all values.
    fn clear(&mut self) {
        self.cells().for_each(|(_, cell)| *cell = None);
    }

    /// Takes what it does not know itself from an earlier reading.
    fn fill_from(&mut self, earlier: &Self) {
        self.cells().zip(earlier.values()).for_each(|((_, cell), (_, earlier))| *cell = cell.or(earlier));
    }

    /// What was counted since `earlier`; not known where one of the two is not.
    #[must_use]
    fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for ((counter, cell), (_, earlier)) in difference.cells().zip(earlier.values()) {
            let later = *cell;
            *cell = match (later, earlier) {
                (Some(later), _) if counter.is_gauge => Some(later),
                (Some(later), Some(earlier)) => Some(counter.difference(earlier, later)),
                _ => None,
            };
        }
        difference
    }

    /// Adds what was counted meanwhile, as `since` returns it. What is not known any more keeps its last sum: it is
    /// true of the time for which it was known.
    fn count_on(&mut self, meanwhile: &Self) {
        for ((counter, cell), (_, more)) in self.cells().zip(meanwhile.values()) {
            if counter.is_gauge {
                *cell = more;
            } else if let Some(more) = more {
                *cell = Some(cell.unwrap_or(0) + more);
            }
        }
    }
}

/// Declares a table: one line a counter, with its name, what the kernel calls it, its help and the facts in which it
/// differs from the others.
macro_rules! tables {
    ($(
        $(#[$about:meta])*
        pub struct $table:ident = $common:expr => {
            $($name:ident = $source:literal: $help:literal $(, $fact:ident = $value:expr)*;)+
        }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $table {
            $(
                #[doc = $help]
                pub $name: Option<u64>,
            )+
        }

        impl $crate::KernelTable for $table {
            const COUNTERS: &'static [$crate::KernelCounter] = &[$($crate::KernelCounter {
                name: stringify!($name),
                source: $source,
                help: $help,
                $($fact: $value,)*
                ..$common
            }),+];

            fn values(&self) -> impl Iterator<Item = (&'static $crate::KernelCounter, Option<u64>)> {
                Self::COUNTERS.iter().zip([$(self.$name),+])
            }

            fn cells(&mut self) -> impl Iterator<Item = (&'static $crate::KernelCounter, &mut Option<u64>)> {
                Self::COUNTERS.iter().zip([$(&mut self.$name),+])
            }
        }
    )+};
}

tables! {
    /// What the kernel tells of a network interface (`ip -s -s link`). Before IP and before GRO.
    pub struct LinkCounters = KernelCounter::of_all(KernelLayer::Nic, CounterUnit::Packets) => {
        rx_packets = "rx_packets": "Packets received, also those that the host dropped later.";
        rx_bytes = "rx_bytes": "Bytes received.", unit = CounterUnit::Bytes;
        rx_missed_errors = "rx_missed_errors": "The receive ring had no room: the cores took too long.",
            is_loss = true;
        rx_dropped = "rx_dropped": "The driver or the stack dropped it: a backlog was full, memory was short, or \
            no program takes its protocol.", is_loss = true;
        rx_errors = "rx_errors": "It came damaged, or the card failed.", is_loss = true;
        rx_crc_errors = "rx_crc_errors": "Its checksum on the wire was wrong: cable, optics or the switch.",
            is_loss = true, contained_in = &["nic.rx_errors"];
        rx_length_errors = "rx_length_errors": "Its length was wrong, mostly longer than the MTU.",
            is_loss = true, contained_in = &["nic.rx_errors"];
        rx_frame_errors = "rx_frame_errors": "It did not end where a byte ends.",
            is_loss = true, contained_in = &["nic.rx_errors"];
        rx_over_errors = "rx_over_errors": "The card had no room; drivers differ.",
            is_loss = true, contained_in = &["nic.rx_errors"];
        rx_fifo_errors = "rx_fifo_errors": "The card's own memory was full; drivers differ.",
            is_loss = true, contained_in = &["nic.rx_errors", "nic.rx_missed_errors", "nic.rx_dropped"];
        rx_nohandler = "rx_nohandler": "The interface is not meant to receive, as the backup of a bond.";
        multicast = "multicast": "Multicast packets received.";
    }

    /// What one receive queue tells, where the driver tells the kernel (Linux 6.9 and later).
    pub struct QueueCounters = KernelCounter::of_all(KernelLayer::Nic, CounterUnit::Packets) => {
        packets = "rx-packets": "Packets received on the queue.";
        alloc_fail = "rx-alloc-fail": "There was no memory for a buffer.",
            is_loss = true, contained_in = &["nic.rx_dropped", "nic.rx_missed_errors"];
        hw_drops = "rx-hw-drops": "The card dropped it on this queue.",
            is_loss = true, contained_in = &["nic.rx_dropped", "nic.rx_missed_errors"];
        hw_drop_overruns = "rx-hw-drop-overruns": "The ring of the queue was full.",
            is_loss = true, contained_in = &["nic.hw_drops"];
    }

    /// What one core did with what came from the drivers (`/proc/net/softnet_stat`): of all network namespaces.
    pub struct Softnet =
        KernelCounter { bits: 32, ..KernelCounter::of_all(KernelLayer::Softnet, CounterUnit::Buffers) }
    => {
        processed = "processed": "Packets that the core took from its queues.";
        dropped = "dropped": "The core's backlog was full (net.core.netdev_max_backlog), or `flow_limit` refused it.",
            is_loss = true, contained_in = &["nic.rx_dropped"];
        time_squeeze = "time_squeeze": "The core stopped before its queues were empty: its budget was used up.",
            unit = CounterUnit::Polls;
        received_rps = "received_rps": "Interrupts from other cores that gave it packets (RPS).",
            unit = CounterUnit::Polls;
        flow_limit = "flow_limit": "One flow had too much of the backlog.",
            is_loss = true, contained_in = &["softnet.dropped"];
        backlog = "backlog": "Packets that wait in the core's backlog now.", is_gauge = true;
    }

    /// What connection tracking tells (`/proc/net/stat/nf_conntrack`), in both directions.
    pub struct Conntrack =
        KernelCounter { bits: 32, ..KernelCounter::of_all(KernelLayer::Conntrack, CounterUnit::Buffers) }
    => {
        drop = "drop": "The table was full (net.netfilter.nf_conntrack_max), or two raced for an entry.",
            is_loss = true;
        chain_too_long = "chainlength": "Too many connections have the same hash (net.netfilter.nf_conntrack_buckets).",
            is_loss = true;
        insert_failed = "insert_failed": "An entry could not be made.",
            is_loss = true, contained_in = &["conntrack.drop", "conntrack.chain_too_long"];
        early_drop = "early_drop": "Connections thrown out to make room.", unit = CounterUnit::Connections;
        invalid = "invalid": "Packets that fit no connection; only a rule drops them.";
        count = "count": "Connections in the table now.",
            unit = CounterUnit::Connections, is_gauge = true, bits = 64;
        max = "max": "The most that the table takes.", unit = CounterUnit::Connections, is_gauge = true, bits = 64;
    }

    /// What IPv4 or IPv6 tells (`nstat -az`). The sources are the names of IPv4; IPv6 has `Ip6` before them.
    pub struct Ip = KernelCounter::of_all(KernelLayer::Ip, CounterUnit::Buffers) => {
        in_receives = "InReceives": "What came up to IP.";
        in_delivers = "InDelivers": "What went on to UDP, TCP and the others.";
        in_hdr_errors = "InHdrErrors": "Its header was wrong.", is_loss = true;
        in_csum_errors = "InCsumErrors": "The checksum of its header was wrong.",
            is_loss = true, contained_in = &["ip.in_hdr_errors"];
        in_truncated_pkts = "InTruncatedPkts": "It was shorter than its header says.", is_loss = true;
        in_addr_errors = "InAddrErrors": "It is not for an address of this host, and the host does not forward.",
            is_loss = true;
        in_no_routes = "InNoRoutes": "There is no route for it.", is_loss = true;
        reverse_path_filter = "IPReversePathFilter": "Its source should come in elsewhere (`rp_filter`). IPv4 only.",
            is_loss = true;
        in_discards = "InDiscards": "It was whole, and memory was short or a policy refused it.", is_loss = true;
        in_unknown_protos = "InUnknownProtos": "No program takes its protocol; never a datagram of UDP.";
        reasm_reqds = "ReasmReqds": "Fragments that had to be put together.", unit = CounterUnit::Fragments;
        reasm_oks = "ReasmOKs": "Datagrams that were put together.", unit = CounterUnit::Datagrams;
        reasm_fails = "ReasmFails": "Could not be put together: a fragment was missing, or there was no room \
            (net.ipv4.ipfrag_high_thresh). Datagrams where a fragment was missing, fragments where there was no room.",
            is_loss = true;
        reasm_timeout = "ReasmTimeout": "The missing fragments did not come in time.", unit = CounterUnit::Datagrams,
            is_loss = true, contained_in = &["ip.reasm_fails"];
    }

    /// What UDP tells, over IPv4 or IPv6 (`nstat -az`), for all sockets of the network namespace.
    pub struct Udp = KernelCounter::of(KernelLayer::Udp, CounterUnit::Buffers) => {
        in_datagrams = "InDatagrams": "What programs have read.";
        in_errors = "InErrors": "Was for a socket and did not get into it, or could not be read from it.",
            is_loss = true;
        rcvbuf_errors = "RcvbufErrors": "The receive buffer of its socket was full.",
            is_loss = true, contained_in = &["udp.in_errors"];
        mem_errors = "MemErrors": "The memory of all UDP sockets was used up (net.ipv4.udp_mem).",
            is_loss = true, contained_in = &["udp.in_errors"];
        in_csum_errors = "InCsumErrors": "Its checksum was wrong.",
            is_loss = true, contained_in = &["udp.in_errors"];
        no_ports = "NoPorts": "No socket has its port.", is_loss = true;
        ignored_multi = "IgnoredMulti": "Was for many, and no socket here wanted it.";
    }

    /// The memory of all UDP sockets, and what may be taken. Of the whole host, but for `sockets`.
    pub struct UdpMemory = KernelCounter::gauge(KernelLayer::Udp, CounterUnit::Pages) => {
        udp_pages = "mem": "Pages that UDP sockets hold now.";
        udp_pages_low = "low": "Below this no socket is refused: the first number of net.ipv4.udp_mem.";
        udp_pages_pressure = "pressure": "The second number of net.ipv4.udp_mem.";
        udp_pages_max = "max": "The third: with more in use what arrives is dropped.";
        udp_sockets = "inuse": "UDP sockets over IPv4 in this network namespace.", unit = CounterUnit::Sockets;
        udp6_sockets = "inuse6": "UDP sockets over IPv6 in this network namespace.", unit = CounterUnit::Sockets;
        fragment_bytes = "frag": "Memory of fragments over IPv4 that wait for the others.", unit = CounterUnit::Bytes;
        rmem_max = "rmem_max": "The most that SO_RCVBUF takes (net.core.rmem_max).", unit = CounterUnit::Bytes;
        rmem_default = "rmem_default": "The receive buffer of who asks for none.", unit = CounterUnit::Bytes;
        netdev_max_backlog = "netdev_max_backlog": "The most that waits in the backlog of a core.",
            unit = CounterUnit::Buffers;
    }

    /// What one socket tells (`ss -uam`).
    pub struct SocketCounts = KernelCounter::of(KernelLayer::Socket, CounterUnit::Buffers) => {
        drops = "drops": "Did not get into the socket: its buffer or the memory of UDP was full, a checksum was \
            wrong, or its filter refused it.", bits = 32, is_loss = true, contained_in = &["udp.in_errors"];
        used_bytes = "rmem_alloc": "Of the receive buffer, what is in use.", unit = CounterUnit::Bytes, is_gauge = true;
        buffer_bytes = "rcvbuf": "The receive buffer, as the kernel accounts.",
            unit = CounterUnit::Bytes, is_gauge = true;
    }

    /// What all UDP sockets of the network namespace dropped, by whose they are. The sums keep what a socket that was
    /// closed had dropped when it was seen last; what it dropped after that only `udp.in_errors` has, on most kernels.
    pub struct SocketDrops = KernelCounter {
        is_loss: true, contained_in: &["udp.in_errors"], ..KernelCounter::of(KernelLayer::Socket, CounterUnit::Buffers)
    } => {
        own = "drops": "Dropped at the sockets of this daemon.";
        others_on_ports = "drops": "Dropped at sockets of other programs on the ports of this daemon.";
        elsewhere = "drops": "Dropped at UDP sockets on other ports of this network namespace. Not known where \
            more than 4,096 of them have dropped something.";
    }
}

impl SocketCounts {
    /// The declaration of `drops`.
    pub const DROPS: &'static KernelCounter = &<Self as KernelTable>::COUNTERS[0];
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
