//! Frames instead of datagrams: `--engine xdp` and `--engine packet`. Which frames these are is worked out here, from
//! what the operator has written and what the kernel says of the interface, and whether they may be sent.
//!
//! A socket sends by a route, from an address of this host, and nothing it does can cut the host off. Frames go past
//! all of that at millions a second, so their interface has to be named, and one that leads to the rest of the world
//! has to be named twice.

use std::net::IpAddr;

use framegen::{FLOWS_MAX, FRAME_BYTES_MAX, FrameSpec, Mix, SizeOrder, TIMED_BYTES};
use ipnet::IpNet;

use super::link::{Link, Mac};
use super::load::Load;
use crate::options::usage;
use crate::pacer::Amount;
use crate::payload;
use crate::rate::Rate;
use crate::sizes::Sizes;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::advice::ValueAdvice;

/// Flows that one address has ports for.
const FLOWS_PER_ADDRESS: usize = 32_768;

/// The networks that are set apart for benchmarks (RFC 2544, RFC 5180).
const BENCHMARK_V4: &str = "198.18.0.0/15";
const BENCHMARK_V6: &str = "2001:2::/48";

/// Where many flows seem to come from.
pub(crate) fn benchmark_networks() -> impl Iterator<Item = IpNet> {
    [BENCHMARK_V4, BENCHMARK_V6].into_iter().filter_map(|network| network.parse().ok())
}

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// A socket for each flow
    Socket,
    /// Frames that the kernel makes and sends itself, by an XDP program (Linux 5.18 and later)
    Xdp,
    /// The same frames by a packet socket, for every kernel
    Packet,
}

/// What is to be sent as frames.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameLoad {
    /// Destination, rate, end, sizes and flows.
    pub load: Load,
    pub engine: Engine,
    pub interface: String,
    /// The hardware address of the next hop; `None`: the neighbour table knows it.
    pub mac: Option<[u8; 6]>,
    pub mix: Mix,
    /// Where they seem to come from; `None`: this host, or a network for benchmarks when it has too few addresses.
    pub sources: Option<IpNet>,
    pub checksum: bool,
    /// Whether the interface may be one with a default route.
    pub despite_default_route: bool,
}

impl FrameLoad {
    /// Whether this can be done at all, as far as that can be said without looking.
    pub fn check(&self) -> Result<(), Failure> {
        let Load { to, rate, amount, flows, threads, gso, .. } = &self.load;
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
        if matches!(rate, Rate::Ramp(..)) && *amount == Amount::UntilStopped {
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
    pub(super) fn spec(&self, run: u16, link: &Link) -> Result<FrameSpec, Failure> {
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

    fn check_link(&self, link: &Link) -> Result<(), Failure> {
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

    fn destination_mac(&self, link: &Link) -> Result<Mac, Failure> {
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

    fn sources_of(&self, link: &Link) -> Result<IpNet, Failure> {
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

#[cfg(test)]
mod tests {
    use super::super::link::Route;
    use super::*;

    fn frame_load(to: &str, flows: usize) -> FrameLoad {
        let to = to.parse().expect("an address");
        FrameLoad {
            load: Load { flows, ..Load::new(to, Rate::Max, Amount::Count(1)) },
            engine: Engine::Xdp,
            interface: "card0".to_owned(),
            mac: None,
            mix: Mix::Uniform,
            sources: None,
            checksum: true,
            despite_default_route: false,
        }
    }

    fn link() -> Link {
        let network = |text: &str, is_ipv4| Route { to: text.parse().ok(), is_ipv4, gateway: None };
        Link {
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
        let default = Route { to: None, is_ipv4: true, gateway: None };
        let open = Link { routes: [link().routes, vec![default]].concat(), ..link() };
        let large = FrameLoad { load: Load { sizes: Sizes::Fixed(1473), ..load().load }, ..load() };
        let few = FrameLoad { sources: parse_network("10.0.0.0/31").ok(), ..frame_load("10.8.0.1:514", 65_537) };
        for (load, link, code, words) in [
            (load(), Link { is_loopback: true, ..link() }, ExitCode::Usage, "loopback"),
            (load(), Link { is_up: false, ..link() }, ExitCode::Unavailable, "ip link set card0 up"),
            (load(), Link { mac: None, ..link() }, ExitCode::Unavailable, "Ethernet"),
            (load(), open.clone(), ExitCode::Usage, "--despite-default-route"),
            (load(), Link { neighbours: vec![], ..link() }, ExitCode::Unavailable, "ping -c 1 -I card0 10.8.0.1"),
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
