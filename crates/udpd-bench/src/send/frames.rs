//! Frames instead of datagrams, `--engine xdp` and `--engine packet`: which frames, whether they may be sent, and the
//! thread that sends them.
//!
//! A socket sends by a route, from an address of this host, and nothing it does can cut the host off. Frames go past
//! all of that at millions a second, so the operator has to name their interface, and one that leads to the rest of the
//! world has to be named twice.
//!
//! The thread asks for as many frames as are due in one call, and the kernel makes and sends them; what it took and
//! what it refused is known when the call returns. At the highest rate a call takes some milliseconds, so that an
//! interruption is noticed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use framegen::{
    FLOWS_MAX, FRAME_BYTES_MAX, FrameSpec, LiveError, LiveFrames, LiveSent, LiveStep, Mix, PacketFrames, SizeOrder,
    TIMED_BYTES,
};
use ipnet::IpNet;
use nix::errno::Errno;

use super::link::{self, LinkInfo, Mac};
use super::load::SendLoad;
use super::report::{InterfaceSent, SendSecond, SenderReport};
use super::run::{Done, PacedThread, SenderCounters, SenderThreads};
use crate::output::usage;
use crate::pacer::{Rate, SendAmount};
use crate::payload::{self, SendTime};
use crate::sizes::Sizes;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::advice::ValueAdvice;

/// Flows that one address has ports for.
const FLOWS_PER_ADDRESS: usize = 32_768;

/// The networks that are set apart for benchmarks (RFC 2544, RFC 5180).
const BENCHMARK_V4: &str = "198.18.0.0/15";
const BENCHMARK_V6: &str = "2001:2::/48";

/// The source networks of many flows.
pub(crate) fn benchmark_networks() -> impl Iterator<Item = IpNet> {
    [BENCHMARK_V4, BENCHMARK_V6].into_iter().filter_map(|network| network.parse().ok())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SendEngine {
    /// A socket for each flow
    Socket,
    /// Frames that the kernel makes and sends itself, by an XDP program (Linux 5.18 and later)
    Xdp,
    /// The same frames by a packet socket, for every kernel
    Packet,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FrameLoad {
    pub load: SendLoad,
    pub engine: SendEngine,
    pub interface: String,
    /// The hardware address of the next hop; `None`: the neighbour table knows it.
    pub mac: Option<[u8; 6]>,
    pub mix: Mix,
    /// The source network; `None`: this host, or a network for benchmarks when it has too few addresses.
    pub sources: Option<IpNet>,
    pub checksum: bool,
    pub despite_default_route: bool,
}

impl FrameLoad {
    /// Frames with checksums of flows in even shares, from this host to the next hop.
    pub(crate) fn new(load: SendLoad, engine: SendEngine, interface: impl Into<String>) -> Self {
        let (interface, mix) = (interface.into(), Mix::Uniform);
        Self { load, engine, interface, mac: None, mix, sources: None, checksum: true, despite_default_route: false }
    }

    /// Refuses what is impossible on any interface.
    pub fn check(&self) -> Result<(), Failure> {
        let SendLoad { to, rate, amount, flows, threads, gso, .. } = &self.load;
        let refuse = |option: &str, what: String, cure: &str| Err(usage(option, &ValueAdvice::new(what, cure)));
        if to.port() == 0 {
            return refuse("--to", format!("{to} has port 0"), "write the receiver's port");
        }
        if !(1..=FLOWS_MAX as usize).contains(flows) {
            let what = format!("{flows} is outside 1 to {FLOWS_MAX}");
            return refuse("--flows", what, "write one such as 1M");
        }
        if *threads != 1 {
            let what = format!("{threads} threads; frames are sent by one");
            return refuse("--threads", what, "leave it out");
        }
        if gso.is_some() {
            return refuse("--gso", "frames have no trains".to_owned(), "leave it out");
        }
        if matches!(rate, Rate::Ramp(..)) && *amount == SendAmount::UntilStopped {
            return refuse("--rate", format!("the ramp {rate} needs an end"), "add --seconds or --count");
        }
        if !self.checksum && to.is_ipv6() {
            return refuse("--no-checksum", "IPv6 has no UDP without checksum".to_owned(), "leave it out");
        }
        if self.sources.is_some_and(|sources| sources.addr().is_ipv4() != to.is_ipv4()) {
            return refuse("--sources", format!("not of the family of --to {to}"), "use one family");
        }
        Ok(())
    }

    /// The frames, if the interface may be used for them.
    pub(super) fn spec(&self, run: u16, link: &LinkInfo) -> Result<FrameSpec, Failure> {
        self.check_link(link)?;
        let sizes = self.load.sizes;
        let to = self.load.to;
        let header_bytes = if to.is_ipv4() { 28 } else { 48 };
        let most = (link.mtu as usize).min(FRAME_BYTES_MAX - 14) - header_bytes;
        if sizes.max() > most {
            let what = format!("payloads of {} bytes do not fit into frames of {}", sizes.max(), self.interface);
            return Err(usage("--size", &ValueAdvice::new(what, format!("write {most} or less"))));
        }
        let network = self.sources_of(link)?;
        let flows = self.load.flows as u32;
        let mut body = vec![0; sizes.max().max(TIMED_BYTES)];
        payload::fill(&mut body);
        Ok(FrameSpec {
            destination_mac: self.destination_mac(link)?,
            source_mac: link.mac.unwrap_or_default(),
            destination: to,
            first_source: network.network(),
            sources: addresses_of(network),
            flows,
            mix: self.mix,
            sizes: sizes.all().into_iter().map(|size| size as u16).collect(),
            size_order: if matches!(sizes, Sizes::Range(..)) { SizeOrder::AtRandom } else { SizeOrder::InTurn },
            checksum: self.checksum,
            marks: payload::marks(run, flows),
            body,
            seed: u64::from(run),
        })
    }

    fn check_link(&self, link: &LinkInfo) -> Result<(), Failure> {
        let name = &self.interface;
        let refuse = |code, text: String| Err(Failure::new(code, format!("--interface: {text}")));
        if link.is_loopback {
            return refuse(
                ExitCode::Usage,
                format!("{name} is loopback, which takes no frames; leave out --engine, or use a veth pair"),
            );
        }
        if !link.is_up {
            return refuse(ExitCode::Unavailable, format!("{name} is down; `ip link set {name} up`"));
        }
        if link.mac.is_none() {
            return refuse(ExitCode::Unavailable, format!("{name} has no Ethernet address; use one that has"));
        }
        if link.has_default_route() && !self.despite_default_route {
            return refuse(
                ExitCode::Usage,
                format!(
                    "a default route leaves by {name}, so this host and others may depend on it, and frames go past \
                     its queues; use another interface, or add --despite-default-route"
                ),
            );
        }
        Ok(())
    }

    fn destination_mac(&self, link: &LinkInfo) -> Result<Mac, Failure> {
        if let Some(mac) = self.mac {
            return Ok(mac);
        }
        let (name, to) = (&self.interface, self.load.to.ip());
        let unknown = |text: String| Failure::new(ExitCode::Unavailable, text);
        let hop = link.next_hop(to).ok_or_else(|| {
            unknown(format!("--to: no route leads to {to} by {name}; add one, or write --destination-mac"))
        })?;
        link.mac_of(hop).ok_or_else(|| {
            unknown(format!(
                "--to: the hardware address of {hop} is not known on {name}; `ping -c 1 -I {name} {hop}` first, or \
                 write --destination-mac"
            ))
        })
    }

    fn sources_of(&self, link: &LinkInfo) -> Result<IpNet, Failure> {
        let flows = self.load.flows;
        if let Some(network) = self.sources {
            let needed = flows.div_ceil(FLOWS_PER_ADDRESS);
            if (addresses_of(network) as usize) < needed {
                let what = format!("{network} has too few addresses for {flows} flows");
                let cure = format!("write a network with {needed} or more: {FLOWS_PER_ADDRESS} flows share one");
                return Err(usage("--sources", &ValueAdvice::new(what, cure)));
            }
            return Ok(network);
        }
        let is_ipv4 = self.load.to.is_ipv4();
        let is_right = |address: &&IpAddr| match address {
            IpAddr::V4(_) => is_ipv4,
            IpAddr::V6(own) => !is_ipv4 && !own.is_unicast_link_local(),
        };
        match link.addresses.iter().find(is_right) {
            Some(own) if flows <= FLOWS_PER_ADDRESS => Ok(IpNet::from(*own)),
            _ => Ok((if is_ipv4 { BENCHMARK_V4 } else { BENCHMARK_V6 }).parse().expect("a network")),
        }
    }
}

/// How many addresses of a network are used: as many as there could be flows.
fn addresses_of(network: IpNet) -> u32 {
    let bits = u32::from(network.max_prefix_len() - network.prefix_len());
    1 << bits.min(FLOWS_MAX.ilog2())
}

/// Reads `uniform`, `round-robin`, `hot:20%` or `zipf:1.1`.
pub(crate) fn parse_mix(text: &str) -> Result<Mix, ValueAdvice> {
    let wrong = || {
        let what = format!("{text:?} is no mix of flows");
        ValueAdvice::new(what, "write uniform, round-robin, hot:20% for a flow with that share, or zipf:1.1")
    };
    match text.split_once(':') {
        None if text == "uniform" => Ok(Mix::Uniform),
        None if text == "round-robin" => Ok(Mix::RoundRobin),
        Some(("hot", share)) => {
            let percent = share.strip_suffix('%').and_then(|share| share.parse::<f64>().ok());
            let share = percent.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(wrong)?;
            Ok(Mix::Hot { share: share / 100.0 })
        }
        Some(("zipf", exponent)) => {
            let exponent =
                exponent.parse().ok().filter(|exponent| (0.0..=10.0).contains(exponent)).ok_or_else(wrong)?;
            Ok(Mix::Zipf { exponent })
        }
        _ => Err(wrong()),
    }
}

/// Reads `02:00:00:00:00:01`.
pub(super) fn parse_mac(text: &str) -> Result<Mac, ValueAdvice> {
    let byte = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        ValueAdvice::new(format!("{text:?} is no hardware address"), "write one such as 02:00:00:00:00:01")
    })
}

/// Reads `198.18.0.0/15` or one address.
pub(super) fn parse_network(text: &str) -> Result<IpNet, ValueAdvice> {
    let read = text.parse::<IpAddr>().map(IpNet::from).ok().or_else(|| text.parse::<IpNet>().ok());
    read.map(|network| network.trunc()).ok_or_else(|| {
        ValueAdvice::new(format!("{text:?} is no network"), "write one such as 198.18.0.0/15, or one address")
    })
}

/// Frames of the first call, after which it is known whether the interface takes any.
const FIRST_CALL: u64 = 16;

/// Frames of one call at most: a few milliseconds, or where each call has to wait ten times as long, some more.
const LIVE_FRAMES_PER_CALL: u64 = 8_192;
const LIVE_FRAMES_PER_LONG_CALL: u64 = 262_144;
const PACKET_FRAMES_PER_CALL: u64 = 512;

/// How long to wait before another try when the kernel has no memory for pages.
const MEMORY_REST: Duration = Duration::from_millis(1);

/// How long the interface's own counters may take to agree.
const SETTLE_TRIES: u32 = 50;
const SETTLE_REST: Duration = Duration::from_millis(4);

/// Sends the load until it is done or `stop` is raised, and tells `each_second` what was sent in each.
pub(crate) fn run_frames(
    task: &FrameLoad,
    stop: &Arc<AtomicBool>,
    each_second: &mut dyn FnMut(&SendSecond),
) -> Result<SenderReport, Failure> {
    task.check()?;
    let load = &task.load;
    let threads = SenderThreads::new(load, stop);
    let (index, link) = find(&task.interface)?;
    let spec = task.spec(threads.run, &link)?;
    let frames = Frames::new(task, index, &spec)?;
    let has_long_calls = matches!(&frames, Frames::Live(frames) if !frames.has_short_calls());
    let interface = task.interface.clone();
    let repeated = BTreeMap::new();
    let sender = FrameSender { frames, interface, repeated, offset_ns: None, offered: 0, taken: 0, bytes: 0 };
    let before = link::sent_by(&task.interface);
    let thread = threads.thread(0);
    let mut report = threads.run(vec![Box::new(move |start_ns| sender.run(thread, start_ns))], each_second)?;
    report.long_calls = has_long_calls;
    report.interface = before.and_then(|before| settled(&task.interface, before, report.sent));
    Ok(report)
}

fn find(interface: &str) -> Result<(u32, LinkInfo), Failure> {
    let unavailable = |why: String| Failure::new(ExitCode::Unavailable, format!("--interface: {why}"));
    let index = nix::net::if_::if_nametoindex(interface)
        .map_err(|_| unavailable(format!("there is no {interface}; `ip link` lists them")))?;
    let link = LinkInfo::read(index)
        .map_err(|error| unavailable(format!("cannot ask the kernel about {interface}: {error}")))?;
    Ok((index, link))
}

/// The interface's own counters. A virtual cable counts what its other end has received, a moment later.
fn settled(interface: &str, before: link::InterfaceCounters, sent: u64) -> Option<InterfaceSent> {
    let mut tries = 0;
    loop {
        let now = link::sent_by(interface)?;
        let packets = now.packets.wrapping_sub(before.packets);
        if packets >= sent || tries == SETTLE_TRIES {
            return Some(InterfaceSent {
                name: interface.to_owned(),
                packets,
                errors: now.errors.wrapping_sub(before.errors),
                dropped: now.dropped.wrapping_sub(before.dropped),
            });
        }
        tries += 1;
        std::thread::sleep(SETTLE_REST);
    }
}

enum Frames {
    Live(Box<LiveFrames>),
    Packet(Box<PacketFrames>),
}

impl Frames {
    fn new(task: &FrameLoad, index: u32, spec: &FrameSpec) -> Result<Self, Failure> {
        match task.engine {
            SendEngine::Packet => match PacketFrames::new(index, spec) {
                Ok(frames) => Ok(Self::Packet(Box::new(frames))),
                Err(error) => Err(no_packets(&error)),
            },
            SendEngine::Xdp | SendEngine::Socket => match LiveFrames::new(index, spec) {
                Ok(frames) => Ok(Self::Live(Box::new(frames))),
                Err(error) => Err(no_live_frames(&error)),
            },
        }
    }

    fn per_call(&self) -> u64 {
        match self {
            Self::Live(frames) if frames.has_short_calls() => LIVE_FRAMES_PER_CALL,
            Self::Live(_) => LIVE_FRAMES_PER_LONG_CALL,
            Self::Packet(_) => PACKET_FRAMES_PER_CALL,
        }
    }

    fn set_clock_offset(&mut self, offset_ns: i64) -> std::io::Result<()> {
        match self {
            Self::Live(frames) => frames.set_clock_offset(offset_ns),
            Self::Packet(frames) => {
                frames.set_clock_offset(offset_ns);
                Ok(())
            }
        }
    }

    fn send(&mut self, count: u32, now_ns: u64) -> std::io::Result<LiveSent> {
        match self {
            Self::Live(frames) => frames.send(count),
            Self::Packet(frames) => Ok(frames.send(count, now_ns)),
        }
    }

    /// By error number; a driver that had no room gives none.
    fn refusals(&self) -> std::io::Result<Vec<(i32, u64)>> {
        let refusals = match self {
            Self::Live(frames) => frames.refusals()?,
            Self::Packet(frames) => frames.refusals(),
        };
        let named = |(errno, count)| (if errno == 0 { Errno::ENOBUFS as i32 } else { errno }, count);
        Ok(refusals.into_iter().map(named).collect())
    }
}

/// Why there are no live frames, and what helps.
fn no_live_frames(failed: &LiveError) -> Failure {
    let is_right = matches!(failed.error.kind(), std::io::ErrorKind::PermissionDenied);
    let (code, cure) = match failed.step {
        LiveStep::Spec => (ExitCode::Usage, "correct --flows, --sources or --size"),
        LiveStep::Count if is_right => {
            (ExitCode::Permission, "it needs CAP_PERFMON besides, or CAP_SYS_ADMIN: run it as root")
        }
        _ if is_right => (
            ExitCode::Permission,
            "it needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN: run it as root; --engine packet needs CAP_NET_RAW only",
        ),
        LiveStep::Run => {
            (ExitCode::Unavailable, "it needs Linux 5.18 or later; --engine packet works with every kernel")
        }
        LiveStep::Count => (
            ExitCode::Unavailable,
            "without that it is unknown what was sent, and this kernel may lack CONFIG_BPF_EVENTS; use --engine packet",
        ),
        LiveStep::Map | LiveStep::Program => (ExitCode::Unavailable, "use --engine packet"),
    };
    Failure::new(code, format!("--engine xdp: {failed}; {cure}"))
}

fn no_packets(error: &std::io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        std::io::ErrorKind::PermissionDenied => (ExitCode::Permission, "it needs CAP_NET_RAW: run it as root"),
        std::io::ErrorKind::InvalidInput => (ExitCode::Usage, "correct --flows, --sources or --size"),
        _ => (ExitCode::Unavailable, "leave out --engine to send from sockets"),
    };
    Failure::new(code, format!("--engine packet: cannot make a packet socket: {error}; {cure}"))
}

struct FrameSender {
    frames: Frames,
    interface: String,
    /// The distance of the clocks that frames say.
    offset_ns: Option<i64>,
    repeated: BTreeMap<i32, u64>,
    offered: u64,
    taken: u64,
    bytes: u64,
}

impl FrameSender {
    fn run(mut self, thread: PacedThread, start_ns: u64) -> Result<Done, Failure> {
        let done = thread.run(start_ns, |thread, due| {
            let most = if self.taken == 0 { FIRST_CALL } else { self.frames.per_call() };
            self.send(thread.counters(), due.datagrams.min(most) as u32, due.time)
        })?;
        Ok(Done { refused: self.refused()?, repeated: self.repeated, ..done })
    }

    fn send(&mut self, counters: &SenderCounters, count: u32, time: SendTime) -> Result<u64, Failure> {
        let lost = |error| lost_the_program(&error);
        if self.offset_ns != Some(time.realtime_offset_ns) {
            self.frames.set_clock_offset(time.realtime_offset_ns).map_err(lost)?;
            self.offset_ns = Some(time.realtime_offset_ns);
        }
        let sent = self.frames.send(count, time.monotonic_ns).map_err(lost)?;
        self.offered += sent.offered;
        self.taken += sent.taken;
        self.bytes += sent.bytes;
        counters.sent.store(self.taken, Ordering::Relaxed);
        counters.refused.store(self.offered - self.taken, Ordering::Relaxed);
        counters.calls.fetch_add(1, Ordering::Relaxed);
        counters.bytes.store(self.bytes, Ordering::Relaxed);
        if let Some(error) = sent.error {
            let errno = error.raw_os_error().unwrap_or(0);
            match Errno::from_raw(errno) {
                Errno::ENOMEM => std::thread::sleep(MEMORY_REST),
                // A page came back from the other end in a shape that no frame fits. The kernel throws that page away.
                Errno::ENOSPC => {}
                _ => return Err(lost_the_program(&error)),
            }
            *self.repeated.entry(errno).or_default() += 1;
        }
        if self.taken == 0 && sent.offered > 0 {
            self.say_why_nothing_leaves()?;
        }
        Ok(sent.offered)
    }

    /// An interface that takes nothing at all has a reason that does not go away.
    fn say_why_nothing_leaves(&self) -> Result<(), Failure> {
        let name = &self.interface;
        let refusals = self.frames.refusals().map_err(|error| lost_the_program(&error))?;
        let Some(errno) = refusals.iter().map(|(errno, _)| Errno::from_raw(*errno)).find(|own| *own != Errno::ENOBUFS)
        else {
            return Ok(());
        };
        let why = match errno {
            // A veth answers with one of these, depending on the kernel, when its other end has no poll routine.
            Errno::EOPNOTSUPP | Errno::ENXIO => {
                "it sends no XDP frames; on a veth pair switch GRO on at the other end, `ethtool -K PEER gro on`, on a \
                 network card attach an XDP program to it, or use --engine packet"
                    .to_owned()
            }
            Errno::ENETDOWN => format!("it is down; `ip link set {name} up`, at both ends of a pair"),
            Errno::EMSGSIZE => "frames are longer than its MTU; write a smaller --size".to_owned(),
            other => format!("{}; use --engine packet", other.desc()),
        };
        Err(Failure::new(ExitCode::Unavailable, format!("--interface: {name} takes no frames ({errno:?}): {why}")))
    }

    /// Every frame that was made and not taken, by the name of the error; 0 for frames without an answer.
    fn refused(&self) -> Result<BTreeMap<i32, u64>, Failure> {
        let mut refused = BTreeMap::new();
        for (errno, count) in self.frames.refusals().map_err(|error| lost_the_program(&error))? {
            *refused.entry(errno).or_default() += count;
        }
        let named: u64 = refused.values().sum();
        let unnamed = (self.offered - self.taken).saturating_sub(named);
        if unnamed > 0 {
            refused.insert(0, unnamed);
        }
        Ok(refused)
    }
}

/// The kernel no longer answers about its own program.
fn lost_the_program(error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("cannot go on sending frames: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::link::LinkRoute;
    use super::*;

    fn frame_load(to: &str, flows: usize) -> FrameLoad {
        let to = to.parse().expect("an address");
        let load = SendLoad { flows, ..SendLoad::new(to, Rate::Max, SendAmount::Count(1)) };
        FrameLoad::new(load, SendEngine::Xdp, "card0")
    }

    fn link() -> LinkInfo {
        let network = |text: &str, is_ipv4| LinkRoute { to: text.parse().ok(), is_ipv4, gateway: None };
        LinkInfo {
            index: 3,
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            is_up: true,
            is_loopback: false,
            addresses: ["fe80::1", "10.8.0.2", "2001:db8::2"].map(|text| text.parse().expect("valid")).to_vec(),
            routes: vec![network("10.8.0.0/24", true), network("2001:db8::/64", false)],
            neighbours: ["10.8.0.1", "2001:db8::1"].map(|text| (text.parse().expect("valid"), [2; 6])).to_vec(),
        }
    }

    #[test]
    fn few_flows_come_from_this_host_and_many_from_the_networks_for_benchmarks() {
        let sources = |to: &str, flows: usize| {
            let spec = frame_load(to, flows).spec(1, &link()).expect("a spec");
            (spec.first_source.to_string(), spec.sources, spec.source(flows as u32 - 1).to_string())
        };
        let own = |address: &str, last: &str| (address.to_owned(), 1, last.to_owned());
        assert_eq!(sources("10.8.0.1:514", 16), own("10.8.0.2", "10.8.0.2:32783"));
        assert_eq!(sources("[2001:db8::1]:514", 32_768), own("2001:db8::2", "[2001:db8::2]:65535"));
        let (first, addresses, last) = sources("10.8.0.1:514", 1_000_000);
        assert_eq!((first.as_str(), addresses, last.as_str()), ("198.18.0.0", 1 << 17, "198.19.232.71:32775"));
        let (first, addresses, _) = sources("[2001:db8::1]:514", 1 << 24);
        assert_eq!((first.as_str(), addresses), ("2001:2::", 1 << 24));
        let named = FrameLoad { sources: parse_network("10.1.2.3/16").ok(), ..frame_load("10.8.0.1:514", 1 << 16) };
        let spec = named.spec(1, &link()).expect("a spec");
        assert_eq!((spec.first_source.to_string().as_str(), spec.sources), ("10.1.0.0", 1 << 16));
        assert_eq!(spec.source(65_535).to_string(), "10.1.255.255:32768");
    }

    #[test]
    fn an_interface_that_may_not_be_used_is_refused_with_the_cure() {
        let load = || frame_load("10.8.0.1:514", 16);
        let default = LinkRoute { to: None, is_ipv4: true, gateway: None };
        let open = LinkInfo { routes: [link().routes, vec![default]].concat(), ..link() };
        let large = FrameLoad { load: SendLoad { sizes: Sizes::Fixed(1473), ..load().load }, ..load() };
        let few = FrameLoad { sources: parse_network("10.0.0.0/31").ok(), ..frame_load("10.8.0.1:514", 65_537) };
        for (load, link, code, words) in [
            (load(), LinkInfo { is_loopback: true, ..link() }, ExitCode::Usage, "loopback"),
            (load(), LinkInfo { is_up: false, ..link() }, ExitCode::Unavailable, "ip link set card0 up"),
            (load(), LinkInfo { mac: None, ..link() }, ExitCode::Unavailable, "Ethernet"),
            (load(), open.clone(), ExitCode::Usage, "--despite-default-route"),
            (load(), LinkInfo { neighbours: vec![], ..link() }, ExitCode::Unavailable, "ping -c 1 -I card0 10.8.0.1"),
            (frame_load("192.0.2.1:514", 1), link(), ExitCode::Unavailable, "no route leads to 192.0.2.1"),
            (large, link(), ExitCode::Usage, "write 1472 or less"),
            (few, link(), ExitCode::Usage, "a network with 3 or more"),
        ] {
            let failure = load.spec(1, &link).expect_err(words);
            assert_eq!(failure.code, code, "{failure}");
            assert!(failure.message.contains(words), "{failure}");
        }
        assert!(FrameLoad { despite_default_route: true, ..load() }.spec(1, &open).is_ok());
        let told = FrameLoad { mac: Some([9; 6]), ..frame_load("192.0.2.1:514", 1) };
        assert_eq!(told.spec(1, &link()).expect("told").destination_mac, [9; 6]);
    }

    #[test]
    fn what_frames_cannot_have_is_refused_before_anything_is_looked_at() {
        let load = || frame_load("10.8.0.1:514", 16);
        let with = |change: fn(&mut FrameLoad)| {
            let mut load = load();
            change(&mut load);
            load.check().expect_err("refused").to_string()
        };
        assert!(with(|load| load.load.flows = (1 << 24) + 1).contains("1 to 16777216"));
        assert!(with(|load| load.load.threads = 2).contains("--threads"));
        assert!(with(|load| load.load.gso = std::num::NonZeroUsize::new(2)).contains("--gso"));
        assert!(with(|load| load.sources = parse_network("2001:db8::/32").ok()).contains("--sources"));
        let no_sum = FrameLoad { checksum: false, ..frame_load("[2001:db8::1]:514", 1) };
        assert!(no_sum.check().expect_err("refused").message.contains("--no-checksum"));
        assert!(load().check().is_ok());
    }

    #[test]
    fn mixes_and_addresses_are_read_and_what_is_none_says_what_would_be() {
        assert_eq!(parse_mix("hot:20%"), Ok(Mix::Hot { share: 0.2 }));
        assert_eq!(parse_mix("zipf:1.1"), Ok(Mix::Zipf { exponent: 1.1 }));
        assert_eq!((parse_mix("uniform"), parse_mix("round-robin")), (Ok(Mix::Uniform), Ok(Mix::RoundRobin)));
        for wrong in ["", "hot", "hot:120%", "hot:20", "zipf:-1", "zipf:x", "even"] {
            assert!(parse_mix(wrong).expect_err(wrong).to_string().contains("hot:20%"), "{wrong}");
        }
        assert_eq!(parse_mac("02:00:0a:00:00:ff"), Ok([2, 0, 10, 0, 0, 255]));
        for wrong in ["", "02:00:00:00:00", "2:0:0:0:0:1", "02:00:00:00:00:0g", "02:00:00:00:00:01:02"] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
        assert!(parse_network("10.0.0.0/33").is_err() && parse_network("10.0.0.7").is_ok());
    }
}
