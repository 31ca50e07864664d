//! `[[listener]]`: one port, or one port on several addresses, and how its lanes receive.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use mmsg::proxy::PREFIX_BYTES_MAX;
use mmsg::xdp::{Checksums, Mode};

use super::check_name;
use udpd_base::settings::kinds::{
    ByteSize, Flag, Flat, List, NameList, OneOf, OneOrMore, Optional, Or, QuotedText, SubTable, TimeSpan, WholeNumber,
};
use udpd_base::settings::{Field, Findings, KeyDeclaration, ValueKind, settings};
use udpd_base::text::address;
use udpd_base::text::advice::ValueAdvice;
use udpd_inspect::deduplicate::{Copies, Deduplicate};
use udpd_inspect::policy::{Access, Proxies, RateLimit, SourceLimit};
use udpd_inspect::upstream::{AnySequence, Sequence};

settings! {
    /// `[[listener]]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ListenerConfig {
        /// Its name in metrics, in the ledger and in paths: 1 to 64 letters, digits, dots, dashes, underscores.
        name: String = required like "syslog", QuotedText(check_name);
        /// An address and a port, or a list of them. A lane is made for each address and each lane number.
        addresses as address: Vec<SocketAddr> = required like "0.0.0.0:514", OneOrMore(address::parse_listener),
            elsewhere "listen bind port host addresses";
        /// Bind to this interface. "" = every interface.
        interface: Option<String> = "" like "eth0", Optional(|name| Ok(name.to_owned())), elsewhere "device";
        /// How many lanes each address gets.
        lanes: Lanes = "auto", Or(&[("auto", Lanes::Auto)], WholeNumber(1..=LANES_MAX), Lanes::count),
            elsewhere "threads workers sockets";
        /// How the kernel chooses the lane of a datagram.
        spread: Spread = "flow" like "cpu", OneOf(SPREADS);
        /// How datagrams are fetched.
        engine: Option<EngineKind> = "auto", OneOf(ENGINES);
        /// How the program of `engine = "af_xdp"` sits at the interface: in its driver, or above it.
        xdp_mode: Mode = "native", OneOf(&[("native", Mode::Native), ("generic", Mode::Generic)]);
        /// What `engine = "af_xdp"` makes of UDP checksums, which no kernel code has looked at.
        xdp_checksums: Checksums = "verify", OneOf(CHECKSUMS);
        /// Other processes may bind sockets to its addresses too.
        share_port: bool = false, Flag, elsewhere "reuse_port reuseport";
        // GRO merges only runs of equal length from one sender, and needs slots of 64 KiB: most hosts would pay the
        // memory and gain nothing. "auto" finds out, and stamps datagrams meanwhile, so it is to be asked for.
        /// Take trains of datagrams in one piece (UDP_GRO).
        gro: Gro = "off", OneOf(&[("auto", Gro::Auto), ("on", Gro::On), ("off", Gro::Off)]);
        /// Datagrams in one receive call.
        batch_size: usize = 64, WholeNumber(1..=1024);
        /// The longest payload that is kept whole.
        max_length_bytes as max_length: usize = "2KiB", ByteSize(MAX_LENGTH), elsewhere "mtu max_size";
        /// What happens to a longer one.
        on_truncate: OnTruncate = "keep", OneOf(&[("keep", OnTruncate::Keep), ("drop", OnTruncate::Drop)]);
        /// Let datagrams gather this long after a short batch.
        gather: Duration = "0ms", TimeSpan(Duration::ZERO..=Duration::from_millis(10));
        /// The receive buffer to request for each socket.
        receive_buffer: ReceiveBuffer = "auto",
            Or(&[("auto", ReceiveBuffer::Auto)], ByteSize(RECEIVE_BUFFER), ReceiveBuffer::Bytes),
            elsewhere "rcvbuf recv_buffer buffer";
        /// The burst to survive while udpd does not read.
        absorb: Absorb = {}, WrittenAbsorb;
        /// How long a receive call spins for datagrams before it sleeps. Longer would be a receiver that never sleeps.
        busy_poll: Duration = "0us", TimeSpan(Duration::ZERO..=Duration::from_millis(10));
        /// The kernel's arrival time of each datagram.
        timestamps: Timestamps = "auto",
            OneOf(&[("auto", Timestamps::Auto), ("on", Timestamps::On), ("off", Timestamps::Off)]);
        /// The groups it joins.
        multicast: Multicast = {}, Flat;
        /// Whose datagrams it takes.
        access: Access = {}, Flat;
        /// The proxies before it.
        proxies: Proxies = {}, Flat;
        /// What one source address may send to one lane.
        rate_limit: Option<SourceLimit> = {}, RateLimit;
        /// The sequence number that its datagrams carry. "" = none: what never reached this host is then unknown.
        sequence: Option<Sequence> = "" like "netflow9", AnySequence, elsewhere "protocol";
        /// With `sequence`: after so long without a datagram an exporter is silent, which the log says. "0s" = never.
        silence: Duration = "0s" like "5m", TimeSpan(Duration::ZERO..=Duration::from_secs(7 * 86_400));
        /// Hand on each datagram once that both sides of a redundant pair bring: the first to come.
        deduplicate: Option<Copies> = {} like { window = "2s" }, Deduplicate, elsewhere "dedup arbitrate";
        // Indexes into `Config::sinks`, each once.
        /// The sinks that get every datagram of this listener.
        sinks: Vec<usize> = required like ["archive"], NameList, elsewhere "sink outputs";
    }
}

settings! {
    /// The multicast groups of a listener.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Multicast {
        /// The groups to join. Every one needs an address of the listener that receives it.
        groups as multicast_groups: Vec<IpAddr> = [] like ["239.1.1.1"], List(parse_group);
        /// Where they are joined. "" = `interface`, or else the one that the kernel's routes name.
        interface as multicast_interface: Option<String> = "", Optional(|name| Ok(name.to_owned()));
        /// Take them from these senders only. Empty = from any sender; otherwise every group has one of its family.
        sources: Vec<IpAddr> = [], List(parse_source);
    }
}

fn parse_group(text: &str) -> Result<IpAddr, ValueAdvice> {
    let right = "write a group from 224.0.0.0 to 239.255.255.255, or one that begins with ff, such as \"239.1.1.1\"";
    match text.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(group) if group.is_multicast() => Ok(group),
        Ok(_) => Err(ValueAdvice::new(format!("{text:?} is not a multicast group"), right)),
        Err(_) => Err(ValueAdvice::new(format!("{text:?} is not an IP address"), format!("{right}, without a port"))),
    }
}

fn parse_source(text: &str) -> Result<IpAddr, ValueAdvice> {
    let right = "write the unicast address of a sender, such as \"10.0.0.9\"";
    match text.parse::<IpAddr>() {
        Ok(source) if source.is_multicast() || source.is_unspecified() => {
            Err(ValueAdvice::new(format!("{text:?} cannot be the address of a sender"), right))
        }
        Ok(source) => Ok(source),
        Err(_) => Err(ValueAdvice::new(format!("{text:?} is not an IP address"), right)),
    }
}

/// Whether a socket on `address` can be given what is sent to `group`.
pub(super) fn receives(address: &SocketAddr, group: IpAddr) -> bool {
    match address.ip() {
        own if own == group => true,
        IpAddr::V4(own) => own.is_unspecified() && group.is_ipv4(),
        // A socket on [::] takes IPv4 as well.
        IpAddr::V6(own) => own.is_unspecified(),
    }
}

/// The burst that a listener must survive while udpd does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absorb {
    /// Datagrams per second, over all lanes of the listener.
    pub rate: u64,
    pub stall: Duration,
    /// The payload that each of these datagrams has.
    pub size_bytes: usize,
    /// The operator wrote it. Then queues reserve memory for it; the default sizes receive buffers only.
    pub is_written: bool,
}

settings! {
    for Absorb {
        /// Datagrams per second, over all lanes of the listener.
        rate: u64 = 200000, WholeNumber(1..=1_000_000_000);
        /// How long udpd does not read.
        stall: Duration = "250ms", TimeSpan(Duration::from_millis(1)..=Duration::from_secs(60));
        /// The payload of each datagram.
        size_bytes as size: usize = 512, ByteSize(1..=65_535);
        .. is_written = false;
    }
}

/// Reads `absorb`, and notes whether it was written.
struct WrittenAbsorb;

impl ValueKind<Absorb> for WrittenAbsorb {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Absorb> {
        let absorb: Absorb = SubTable.read(field, findings)?;
        Some(Absorb { is_written: field.written, ..absorb })
    }

    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        ValueKind::<Absorb>::keys(&SubTable, own)
    }
}

impl ListenerConfig {
    /// A listener with defaults for all but its name and its addresses. It feeds no sink yet.
    pub fn new(name: impl Into<String>, addresses: Vec<SocketAddr>) -> Self {
        Self { name: name.into(), addresses, ..Self::default() }
    }

    /// Whether it takes datagrams past the kernel's network stack, with AF_XDP.
    pub fn is_past_the_stack(&self) -> bool {
        self.engine == Some(EngineKind::AfXdp)
    }

    /// Whether the kernel is asked for its count of drops with each datagram, to compare it with sequence numbers. With
    /// AF_XDP there is no such count.
    pub fn reads_drops(&self) -> bool {
        !self.is_past_the_stack() && self.sequence.is_some_and(|sequence| sequence.reads_drops(self.gro.is_on()))
    }

    /// How many bytes udpd keeps of a datagram of `absorb`, with the header that a proxy puts before it.
    pub fn absorbed_bytes(&self) -> usize {
        (self.absorb.size_bytes + self.proxy_header_bytes()).min(self.max_length_bytes)
    }

    /// The most bytes that a proxy's header takes of a datagram, without the optional fields, which udpd does not read.
    pub fn proxy_header_bytes(&self) -> usize {
        if self.proxies.protocol.is_on() { PREFIX_BYTES_MAX } else { 0 }
    }
}

/// The most lanes of an address: each lane is a thread, a socket and a pool.
pub(super) const LANES_MAX: u64 = 1024;

/// From a byte to what a UDP header can say.
pub(super) const MAX_LENGTH: std::ops::RangeInclusive<u64> = 1..=65_535;

/// The kernel accounts twice what it is given, and beyond 1 GiB of that kernels have had their sums wrong.
const RECEIVE_BUFFER: std::ops::RangeInclusive<u64> = 4 << 10..=512 << 20;

/// How many lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// One per receive queue of the interface; without one, as many as `absorb.rate` needs at 500,000/s each.
    Auto,
    /// This many.
    Count(NonZeroUsize),
}

impl Lanes {
    fn count(count: usize) -> Self {
        NonZeroUsize::new(count).map_or(Lanes::Auto, Lanes::Count)
    }
}

/// Whether the kernel hands over trains of datagrams in one piece (UDP_GRO).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gro {
    Off,
    On,
    /// Decided by the datagrams that come first.
    Auto,
    /// `Auto`, once that is decided.
    Decided(bool),
}

impl Gro {
    pub fn is_on(self) -> bool {
        matches!(self, Gro::On | Gro::Decided(true))
    }

    /// As the ledger shows it.
    pub fn state(self) -> &'static str {
        match self {
            Gro::Off => "off",
            Gro::On => "on",
            Gro::Auto => "auto",
            Gro::Decided(false) => "auto: off",
            Gro::Decided(true) => "auto: on",
        }
    }
}

/// How the kernel chooses the lane of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// By its hash of addresses and ports.
    Flow,
    /// By the core on which it handles the datagram.
    Cpu,
    /// By the receive queue of the interface.
    Queue,
    /// At random.
    Random,
}

impl Spread {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        SPREADS.iter().find(|(_, spread)| *spread == self).map_or("", |(name, _)| name)
    }
}

const SPREADS: &[(&str, Spread)] =
    &[("flow", Spread::Flow), ("cpu", Spread::Cpu), ("queue", Spread::Queue), ("random", Spread::Random)];

/// How a lane receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// One system call for each batch.
    Recvmmsg,
    /// A ring that the kernel fills.
    IoUring,
    /// The receive queues of an interface, past the kernel's stack.
    AfXdp,
}

/// The engines by their names in the configuration; with `None` udpd chooses.
pub const ENGINES: &[(&str, Option<EngineKind>)] = &[
    ("auto", None),
    ("recvmmsg", Some(EngineKind::Recvmmsg)),
    ("io_uring", Some(EngineKind::IoUring)),
    ("af_xdp", Some(EngineKind::AfXdp)),
];

/// `verify` accepts datagrams whose checksum a sender on this host left to the network card: a virtual link never
/// computes it.
const CHECKSUMS: &[(&str, Checksums)] =
    &[("verify", Checksums::VerifiedOrLeftToDevice), ("strict", Checksums::Verified), ("off", Checksums::Unverified)];

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ENGINES.iter().find(|(_, engine)| *engine == Some(*self)).map_or("", |(name, _)| name);
        formatter.write_str(name)
    }
}

/// What happens to a datagram longer than `max_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTruncate {
    /// Its head is delivered, marked and counted.
    Keep,
    /// It is dropped and counted.
    Drop,
}

/// The receive buffer of each socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveBuffer {
    /// Computed from `absorb`.
    Auto,
    /// This many bytes, as given to SO_RCVBUF.
    Bytes(usize),
}

/// Whether the kernel stamps each datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamps {
    /// When a sink records it.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}
