//! A watch over all cores: opened, read every now and then, asked for its tally.

use std::collections::HashMap;
use std::{fmt, fs, io};

use super::perf::{PerfEvent, PerfRing, page_bytes};
use super::records::{PerfRecord, PerfRecords};
use super::tracepoints::{Freed, NotQueued, Tracepoints};
use super::{errors, records};

/// The ring of a core: four thousand records, within what the kernel lets a user lock without a right
/// (`kernel.perf_event_mlock_kb`).
const RING_BYTES_MAX: usize = 256 << 10;
/// The kernel is never built for more cores (`CONFIG_NR_CPUS`).
const CORES_MAX: usize = 8192;
/// The cores that the machine may ever have.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// All rings together, on machines with very many cores.
const RINGS_BYTES_MAX: usize = 16 << 20;

/// Counts the drops of this host by name, from when it is opened until it is dropped.
///
/// Opening it needs `CAP_PERFMON` and nothing else. While it is open a drop costs the kernel a record of a hundred
/// bytes; everything else that is thrown away costs a comparison. Each core has a ring of at most 256 KiB, which holds
/// about four thousand records: call [`read`](Watch::read) some fifty times a second. What does not fit is counted
/// without its name.
#[derive(Debug)]
pub struct Watch {
    tracepoints: Tracepoints,
    cores: Vec<CoreEvents>,
    tables: TallyTables,
    fired: Fired,
    /// A copy of what is new in a ring.
    bytes: Vec<u8>,
}

/// The events of one core, and their ring. The first event of the ring is its owner and lives as long as it does.
#[derive(Debug)]
struct CoreEvents {
    number: usize,
    ring: PerfRing,
    not_queued: Option<PerfEvent>,
    freed: Option<PerfEvent>,
    unnamed: Option<PerfEvent>,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// Which right is missing, or which call failed on which core.
    pub fn open(tracepoints: &Tracepoints) -> io::Result<Watch> {
        let possible = fs::read_to_string(POSSIBLE).map_err(|error| errors::of_file(POSSIBLE, &error))?;
        let possible = parse_cores(&possible).unwrap_or_else(|| vec![0]);
        let mut ring_bytes = ring_bytes(possible.len(), page_bytes());
        let mut cores = Vec::new();
        for core in possible {
            cores.extend(CoreEvents::open(core, tracepoints, &mut ring_bytes)?);
        }
        // All of them at the end, so that an error leaves nothing half begun.
        for core in &cores {
            core.enable().map_err(|error| errors::of_call("ioctl(PERF_EVENT_IOC_ENABLE)", core.number, &error))?;
        }
        let (tables, fired, bytes) = (TallyTables::default(), Fired::default(), Vec::with_capacity(ring_bytes));
        Ok(Watch { tracepoints: tracepoints.clone(), cores, tables, fired, bytes })
    }

    /// Takes what the rings have, and gives their place back to the kernel.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn read(&mut self) -> io::Result<()> {
        let mut fired = Fired::default();
        for core in &mut self.cores {
            // The counts first: what fires between the two is then taken already, and not called lost.
            let count = |event: &Option<PerfEvent>| event.as_ref().map_or(Ok(0), PerfEvent::count);
            fired.not_queued += count(&core.not_queued)?;
            fired.freed += count(&core.freed)?;
            fired.unnamed += count(&core.unnamed)?;
            self.bytes.clear();
            core.ring.take(&mut self.bytes);
            for record in PerfRecords::of(&self.bytes) {
                if let PerfRecord::Sample(record) = record {
                    self.tables.count(record, &self.tracepoints);
                }
            }
        }
        self.fired = fired;
        Ok(())
    }

    /// What was dropped from the beginning to the last [`read`](Watch::read).
    pub fn tally(&self) -> DropTally {
        self.tables.tally(self.fired, &self.tracepoints)
    }
}

impl CoreEvents {
    /// `None`: the core is not there, or is switched off.
    fn open(core: usize, tracepoints: &Tracepoints, ring_bytes: &mut usize) -> io::Result<Option<CoreEvents>> {
        let failed = |operation: &'static str| move |error: io::Error| errors::of_call(operation, core, &error);
        let open = |id, has_records| match PerfEvent::open(id, core, has_records) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            opened => opened.map(Some).map_err(failed("perf_event_open")),
        };
        let mut not_queued = None;
        if let Some(it) = tracepoints.not_queued {
            let Some(event) = open(it.id, true)? else { return Ok(None) };
            not_queued = Some(event);
        }
        let (mut freed, mut unnamed) = (None, None);
        if let Some(it) = &tracepoints.freed {
            let set_filter = |event: &PerfEvent, filter: &str| {
                event.set_filter(filter).map_err(failed("ioctl(PERF_EVENT_IOC_SET_FILTER)"))
            };
            let Some(event) = open(it.id, true)? else { return Ok(None) };
            set_filter(&event, &records::filter_of_named(&it.names))?;
            freed = Some(event);
            if let Some(filter) = records::filter_of_unnamed(&it.names) {
                let Some(event) = open(it.id, false)? else { return Ok(None) };
                set_filter(&event, &filter)?;
                unnamed = Some(event);
            }
        }
        let owner = not_queued.as_ref().or(freed.as_ref());
        let Some(owner) = owner else {
            return Err(errors::of_call("perf_event_open", core, &io::ErrorKind::Unsupported.into()));
        };
        let ring = map(owner, core, ring_bytes)?;
        if let (Some(owner), Some(other)) = (&not_queued, &freed) {
            other.write_into_ring_of(owner).map_err(failed("ioctl(PERF_EVENT_IOC_SET_OUTPUT)"))?;
        }
        Ok(Some(CoreEvents { number: core, ring, not_queued, freed, unnamed }))
    }

    fn enable(&self) -> io::Result<()> {
        [&self.not_queued, &self.freed, &self.unnamed].into_iter().flatten().try_for_each(PerfEvent::enable)
    }
}

/// Maps the ring of a core, with less memory where the kernel does not let us lock as much.
fn map(owner: &PerfEvent, core: usize, ring_bytes: &mut usize) -> io::Result<PerfRing> {
    loop {
        match PerfRing::map(owner, *ring_bytes) {
            Ok(ring) => return Ok(ring),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && *ring_bytes > page_bytes() => {
                *ring_bytes /= 2;
            }
            Err(error) => return Err(errors::of_ring(core, &error)),
        }
    }
}

/// How large the ring of each of `cores` is: a power of two of pages.
fn ring_bytes(cores: usize, page_bytes: usize) -> usize {
    let each = (RINGS_BYTES_MAX / cores.max(1)).min(RING_BYTES_MAX).max(page_bytes);
    1 << each.ilog2()
}

/// Reads a list such as `0-3,8`.
fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok().filter(|last| *last < CORES_MAX)?);
    }
    Some(cores)
}

// Drops counted by reason and by port, in tables that do not grow beyond a bound.

/// So many reasons by protocol are told apart; kernels have less than 150.
const REASONS_MAX: usize = 512;
/// So many ports by reason are told apart.
const PORTS_MAX: usize = 4096;

/// What has been dropped on this host since the watch began.
///
/// The two lists show the same drops from two sides and are not to be added: a datagram that a socket did not take is
/// in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropTally {
    /// By the kernel's reason and the protocol, the most first. From `skb:kfree_skb`.
    pub by_reason: Vec<ReasonCount>,
    /// UDP datagrams that a socket did not take, by reason and port, the most first. From
    /// `udp:udp_fail_queue_rcv_skb`.
    pub by_port: Vec<PortCount>,
    /// IP packets that were thrown away without a reason, of any protocol, in either direction, harmless or not. `None`
    /// where that cannot be told.
    pub unnamed: Option<u64>,
    /// How many drops are missing in `by_reason`, exactly: a ring was full, or there were too many reasons.
    pub lost_reasons: u64,
    /// The same for `by_port`.
    pub lost_ports: u64,
    /// What this watch cannot see or tell apart.
    pub unseen: Vec<BlindSpot>,
}

/// How many packets were dropped for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonCount {
    /// As the kernel calls it: `SOCKET_RCVBUFF`, `NO_SOCKET`. Where it has no name, its number.
    pub reason: String,
    /// Whether they were of IPv6.
    pub is_ipv6: bool,
    /// Whether only UDP has this reason. Otherwise TCP and others may be among them.
    pub is_udp_only: bool,
    /// How many buffers; a GRO train that is dropped as a whole is one.
    pub count: u64,
}

/// How many datagrams the sockets of a port did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCount {
    /// `SOCKET_RCVBUFF`: the receive buffer was full. `PROTO_MEM`: the memory of UDP as a whole (`net.ipv4.udp_mem`).
    pub reason: String,
    /// The port that they were sent to.
    pub port: u16,
    /// How many datagrams.
    pub count: u64,
}

/// What a watch cannot see or tell apart. It displays as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BlindSpot {
    /// This kernel gives no reasons.
    Reasons,
    /// This kernel does not say what its reasons are called.
    Names,
    /// This kernel gives no ports.
    Ports,
    /// Reasons that UDP shares with others.
    OtherProtocols,
    /// The ports of datagrams of IPv6.
    PortsOfIpv6,
    /// The ports of everything but full sockets.
    PortsOfOthers,
    /// In which network namespace it was.
    Namespaces,
    /// What the card dropped.
    Card,
    /// What the packets without a reason were.
    WithoutReason,
}

impl fmt::Display for BlindSpot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            BlindSpot::Reasons => {
                "this kernel names no reasons: skb:kfree_skb has them from Linux 5.17 on, or could not be read"
            }
            BlindSpot::Names => "this kernel does not say what its reasons are called: they are shown as numbers",
            BlindSpot::Ports => "no ports: udp:udp_fail_queue_rcv_skb is not there, or could not be read",
            BlindSpot::OtherProtocols => {
                "most reasons are shared: TCP, ICMP and forwarded packets are counted under them as well; only full \
                 sockets by port, and reasons that begin with UDP_, are UDP alone"
            }
            BlindSpot::PortsOfIpv6 => {
                "datagrams of IPv6 may come without a port: this kernel is older than Linux 6.10, and before 6.6 it \
                 told the ports of IPv4 alone"
            }
            BlindSpot::PortsOfOthers => "only SOCKET_RCVBUFF and PROTO_MEM come with a port",
            BlindSpot::Namespaces => "the drops of all network namespaces of this host are counted together",
            BlindSpot::Card => "what the card dropped never was a packet of the kernel: its own counters have it",
            BlindSpot::WithoutReason => {
                "packets without a reason may be anything, lost or not; among them are datagrams that were still in a \
                 socket when it was closed, and on older kernels long ones whose checksum is found bad when a program \
                 reads them (InCsumErrors)"
            }
        })
    }
}

/// The tables behind a [`DropTally`].
#[derive(Debug, Default)]
pub(super) struct TallyTables {
    reasons: HashMap<(u32, bool), u64>,
    ports: HashMap<(i64, u16), u64>,
    /// How many were placed in the tables, to compare with the events.
    placed_reasons: u64,
    placed_ports: u64,
}

impl TallyTables {
    /// Counts one record. An unreadable one counts nowhere, and so is among the lost.
    pub(super) fn count(&mut self, record: &[u8], tracepoints: &Tracepoints) {
        // The first field of every record is the number of its tracepoint.
        let Some(id) = record.get(..2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes) else { return };
        if let Some(freed) = tracepoints.freed.as_ref().filter(|freed| freed.id == u64::from(id)) {
            self.count_freed(record, freed);
        } else if let Some(not_queued) = tracepoints.not_queued.filter(|not_queued| not_queued.id == u64::from(id)) {
            self.count_not_queued(record, &not_queued);
        }
    }

    fn count_freed(&mut self, record: &[u8], freed: &Freed) {
        let is_ipv6 = match freed.protocol.read(record).and_then(|protocol| i32::try_from(protocol).ok()) {
            Some(libc::ETH_P_IP) => false,
            Some(libc::ETH_P_IPV6) => true,
            _ => return,
        };
        let Some(reason) = freed.reason.read(record) else { return };
        // The bits of a negative number are those that the filter of the kernel compares.
        let key = ((reason & i64::from(u32::MAX)) as u32, is_ipv6);
        self.placed_reasons += u64::from(add(&mut self.reasons, key, REASONS_MAX));
    }

    fn count_not_queued(&mut self, record: &[u8], not_queued: &NotQueued) {
        let (error, port) = (not_queued.error.read(record), not_queued.port.read(record));
        if let (Some(error), Some(Ok(port))) = (error, port.map(u16::try_from)) {
            self.placed_ports += u64::from(add(&mut self.ports, (error, port), PORTS_MAX));
        }
    }

    /// The tally, where the events fired so many times.
    pub(super) fn tally(&self, fired: Fired, tracepoints: &Tracepoints) -> DropTally {
        let name = |value: u32| tracepoints.name(value).map_or_else(|| format!("reason {value}"), str::to_owned);
        let mut by_reason: Vec<ReasonCount> = self
            .reasons
            .iter()
            .map(|(&(value, is_ipv6), &count)| (name(value), is_ipv6, count))
            .map(|(reason, is_ipv6, count)| {
                let is_udp_only = records::is_of_udp_alone(&reason);
                ReasonCount { reason, is_ipv6, is_udp_only, count }
            })
            .collect();
        by_reason
            .sort_by(|a, b| b.count.cmp(&a.count).then_with(|| (&a.reason, a.is_ipv6).cmp(&(&b.reason, b.is_ipv6))));
        let name = |error: i64| records::name_of_error(error).map_or_else(|| format!("error {error}"), str::to_owned);
        let mut by_port: Vec<PortCount> =
            self.ports.iter().map(|(&(error, port), &count)| PortCount { reason: name(error), port, count }).collect();
        by_port.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| (a.port, &a.reason).cmp(&(b.port, &b.reason))));
        DropTally {
            by_reason,
            by_port,
            unnamed: tracepoints.has_unnamed().then_some(fired.unnamed),
            lost_reasons: fired.freed.saturating_sub(self.placed_reasons),
            lost_ports: fired.not_queued.saturating_sub(self.placed_ports),
            unseen: unseen(tracepoints),
        }
    }
}

/// How many times the events fired, as the kernel counts them, whether or not a record got into the ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fired {
    pub(super) not_queued: u64,
    pub(super) freed: u64,
    pub(super) unnamed: u64,
}

/// Adds one to the count of `key`; `false` when there is no place for another key.
fn add<Key: Eq + std::hash::Hash>(table: &mut HashMap<Key, u64>, key: Key, keys_max: usize) -> bool {
    if table.len() >= keys_max && !table.contains_key(&key) {
        return false;
    }
    *table.entry(key).or_default() += 1;
    true
}

fn unseen(tracepoints: &Tracepoints) -> Vec<BlindSpot> {
    let mut unseen = Vec::new();
    match &tracepoints.freed {
        None => unseen.push(BlindSpot::Reasons),
        Some(freed) if freed.names.is_empty() => unseen.push(BlindSpot::Names),
        Some(_) => {}
    }
    if tracepoints.freed.is_some() {
        unseen.extend([BlindSpot::OtherProtocols, BlindSpot::WithoutReason]);
    }
    unseen.push(if tracepoints.not_queued.is_some() { BlindSpot::PortsOfOthers } else { BlindSpot::Ports });
    if tracepoints.not_queued.is_some_and(|not_queued| not_queued.is_of_old_kernel) {
        unseen.push(BlindSpot::PortsOfIpv6);
    }
    unseen.extend([BlindSpot::Namespaces, BlindSpot::Card]);
    unseen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cores_is_read_and_nonsense_is_not() {
        assert_eq!(parse_cores("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        for nonsense in ["", "a", "0-8192", "0,,1"] {
            assert_eq!(parse_cores(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_ring_is_a_power_of_two_of_pages_on_every_machine() {
        assert_eq!(ring_bytes(1, 4096), 256 << 10);
        assert_eq!(ring_bytes(64, 4096), 256 << 10);
        assert_eq!(ring_bytes(100, 4096), 128 << 10);
        assert_eq!(ring_bytes(8192, 4096), 4096);
        assert_eq!(ring_bytes(8192, 65536), 65536);
    }
}
