//! The cable of the bench: an interface that receives, another one that sends to it, and the addresses of both.
//!
//! Loopback takes no frames and no XDP program. To measure what lies past the sockets, or the sockets on the same way,
//! the bench needs two Ethernet interfaces with a wire between them. The operator names them, or gets a virtual pair in
//! a network namespace of the bench's own, where nothing of this host can be disturbed, and which goes when the process
//! goes. Both ends are in one namespace, because frames are laid upon the one end and come out of the other, and no
//! route has a say in it. What this process starts from then on is in there too, and reaches no other host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fmt, io};

use framegen::Mix;
use ipnet::IpNet;
use netlink::{NetlinkProtocol, NetlinkRequest, NetlinkSocket, attribute};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use steer::ethtool::{Ethtool, Ioctl};

use crate::output::usage;
use crate::send::{self, FrameLoad, LinkInfo, Mac, SendEngine, SendLoad, SendSecond, parse_mix};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::advice::ValueAdvice;

/// The value of `--interface` without a name.
const OWN: &str = "";

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct CableOptions {
    /// Measure on a cable instead of loopback: receive at this interface what --from sends; without a name on a virtual
    /// pair in a network namespace of its own. Needs root
    #[arg(long, value_name = "IF", num_args = 0..=1, default_missing_value = OWN)]
    interface: Option<String>,
    /// The other end of the cable: frames for --interface leave by this one
    #[arg(long, value_name = "IF", requires = "interface")]
    from: Option<String>,
    /// Send frames by --from although a default route leaves by it
    #[arg(long, requires = "from")]
    despite_default_route: bool,
    /// Which flow a frame on the cable is of: uniform, round-robin, hot:20%, zipf:1.1 [default: uniform]
    #[arg(long, value_name = "MIX", requires = "interface")]
    mix: Option<String>,
}

impl CableOptions {
    /// The same options with a cable, for a command that needs one.
    pub(crate) fn with_cable(&self) -> Self {
        Self { interface: self.interface.clone().or_else(|| Some(OWN.to_owned())), ..self.clone() }
    }

    /// Whether the cable is to be made in a namespace of its own.
    pub(crate) fn is_own(&self) -> bool {
        self.interface.as_deref() == Some(OWN)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.interface.is_some()
    }

    /// The cable, laid if need be; none where loopback is wanted. Whatever this process starts afterwards is where the
    /// cable is.
    pub(crate) fn cable(&self) -> Result<Option<Cable>, Failure> {
        let Some(receiver) = self.interface.as_deref() else { return Ok(None) };
        let mix = parse_mix(self.mix.as_deref().unwrap_or("uniform")).map_err(|advice| usage("--mix", &advice))?;
        let cable = match (receiver, self.from.as_deref()) {
            (OWN, None) => own_cable(mix)?,
            (OWN, Some(_)) => {
                let advice =
                    ValueAdvice::new("it is one end of a cable", "write --interface IF, which is the other end");
                return Err(usage("--from", &advice));
            }
            (receiver, None) => {
                let what = format!("nothing sends to {receiver}");
                let cure = "write --from IF, an interface that is wired to it; without a name there is a virtual pair";
                return Err(usage("--interface", &ValueAdvice::new(what, cure)));
            }
            (receiver, Some(sender)) => Cable::between(receiver, sender, mix, self.despite_default_route)?,
        };
        Ok(Some(cable))
    }

    /// As they were written, for a report.
    pub(crate) fn as_json(&self) -> serde_json::Value {
        serde_json::json!({ "interface": self.interface, "from": self.from, "mix": self.mix })
    }
}

/// Two interfaces with a wire between them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cable {
    pub receiver: String,
    pub address: IpAddr,
    /// The source networks of what is sent.
    pub senders: Vec<IpNet>,
    /// Made here, and removed with this process.
    is_own: bool,
    sender: String,
    mac: Mac,
    /// The source network of frames; none: as many addresses as the flows take.
    sources: Option<IpNet>,
    mix: Mix,
    despite_default_route: bool,
}

impl fmt::Display for Cable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_own {
            true => formatter.write_str("one end of a virtual cable in a network namespace of the bench's own"),
            false => write!(formatter, "to which {} sends", self.sender),
        }
    }
}

impl Cable {
    fn between(receiver: &str, sender: &str, mix: Mix, despite_default_route: bool) -> Result<Self, Failure> {
        let refuse = |text: String| Failure::new(ExitCode::Unavailable, format!("--interface: {receiver} {text}"));
        let index = nix::net::if_::if_nametoindex(receiver)
            .map_err(|_| refuse("is no interface of this host; `ip link` lists them".to_owned()))?;
        let LinkInfo { mac, addresses, is_up, is_loopback, .. } =
            LinkInfo::read(index).map_err(|error| refuse(format!("is not known: {error}")))?;
        if is_loopback {
            return Err(refuse("is loopback, which is wired to nothing; leave it out, or name another one".to_owned()));
        }
        if !is_up {
            return Err(refuse(format!("is down; `ip link set {receiver} up`")));
        }
        let mac = mac.ok_or_else(|| refuse("has no Ethernet address, so no frame can be for it".to_owned()))?;
        let is_global = |address: &&IpAddr| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(own) => !own.is_unicast_link_local(),
        };
        let address = addresses.iter().find(is_global).copied().ok_or_else(|| {
            refuse(format!("has no address to send to; give it one: `ip address add 198.18.0.1/24 dev {receiver}`"))
        })?;
        let own = nix::net::if_::if_nametoindex(sender).ok().and_then(|index| LinkInfo::read(index).ok());
        let own = own.into_iter().flat_map(|link| link.addresses).map(IpNet::from);
        Ok(Self {
            receiver: receiver.to_owned(),
            address,
            senders: own.chain(send::benchmark_networks()).collect(),
            is_own: false,
            sender: sender.to_owned(),
            mac,
            sources: None,
            mix,
            despite_default_route,
        })
    }

    /// A free address at the receiving end.
    pub(crate) fn free_address(&self) -> Result<SocketAddr, Failure> {
        let free = std::net::UdpSocket::bind((self.address, 0)).and_then(|socket| socket.local_addr());
        free.map_err(|error| {
            let text = format!("cannot find a free port on {} of {}: {error}", self.address, self.receiver);
            Failure::new(ExitCode::Unavailable, text)
        })
    }

    /// Sends a load as frames that the kernel makes itself or, where it cannot, by a packet socket.
    pub(crate) fn send(
        &self,
        load: &SendLoad,
        stop: &Arc<AtomicBool>,
        each_second: &mut dyn FnMut(&SendSecond),
    ) -> Result<send::SenderReport, Failure> {
        let frames = self.frames(load, SendEngine::Xdp);
        match send::run_frames(&frames, stop, each_second) {
            // Before Linux 5.18. Why the other way fails as well is of no interest then.
            Err(failure) if failure.code == ExitCode::Unavailable => {
                let packets = FrameLoad { engine: SendEngine::Packet, ..frames };
                send::run_frames(&packets, stop, each_second).map_err(|_| failure)
            }
            outcome => outcome,
        }
    }

    fn frames(&self, load: &SendLoad, engine: SendEngine) -> FrameLoad {
        FrameLoad {
            mac: Some(self.mac),
            mix: self.mix,
            sources: self.sources,
            despite_default_route: self.despite_default_route,
            ..FrameLoad::new(load.clone(), engine, &self.sender)
        }
    }
}

/// Refuses a load that no cable can send.
pub(crate) fn check(load: &SendLoad) -> Result<(), Failure> {
    FrameLoad::new(load.clone(), SendEngine::Xdp, "").check()
}

const RECEIVER: &str = "udpd0";
const SENDER: &str = "udpd1";

/// Of the network for benchmarks (RFC 2544) the upper half is the receiver's, and senders have the lower one. It lies
/// in one network with them, so that whatever asks for the way back to a sender finds it here.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
const PREFIX: u8 = 15;
const SOURCES: &str = "198.18.0.0/16";

/// What gives an end of a virtual pair a poll routine. Without one it takes no frames of XDP, and each of the others is
/// an interrupt of its own.
const GRO: &str = "rx-gro";

/// Enters a new namespace and makes a cable there.
fn own_cable(mix: Mix) -> Result<Cable, Failure> {
    let fail = |what: &str, error: &io::Error| {
        let is_right = error.kind() == io::ErrorKind::PermissionDenied;
        let code = if is_right { ExitCode::Permission } else { ExitCode::Unavailable };
        let cure = match is_right {
            true => "it needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run it as root",
            false => "name two interfaces that are wired to each other: --interface IF --from IF",
        };
        Failure::new(code, format!("--interface: cannot {what}: {error}; {cure}"))
    };
    enter_a_namespace().map_err(|(what, errno)| fail(what, &errno.into()))?;
    let sources = SOURCES.parse().expect("a network");
    let mac = lay().map_err(|(what, error)| fail(what, &error))?;
    Ok(Cable {
        receiver: RECEIVER.to_owned(),
        address: ADDRESS.into(),
        senders: vec![sources],
        is_own: true,
        sender: SENDER.to_owned(),
        mac,
        sources: Some(sources),
        mix,
        despite_default_route: false,
    })
}

fn enter_a_namespace() -> Result<(), (&'static str, Errno)> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).map_err(|errno| ("make a network namespace", errno))?;
    let none: Option<&str> = None;
    // The mount shows the devices of the namespace, so it must not reach other namespaces.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(|errno| ("keep its mounts", errno))?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).map_err(|errno| ("mount sysfs anew", errno))
}

/// Makes the pair, and returns the hardware address of the receiving end.
fn lay() -> Result<[u8; 6], (&'static str, io::Error)> {
    let mut kernel = NetlinkSocket::open(NetlinkProtocol::Route)
        .map_err(|error| ("ask the kernel for interfaces", io::Error::from(error)))?;
    let index = |name: &str| nix::net::if_::if_nametoindex(name).map_err(io::Error::from);
    let mut make = || -> io::Result<()> {
        kernel.ask(new_pair(RECEIVER, SENDER), |_| {})?;
        kernel.ask(new_address(index(RECEIVER)?, ADDRESS, PREFIX), |_| {})?;
        for name in ["lo", RECEIVER, SENDER] {
            kernel.ask(link_up(index(name)?), |_| {})?;
        }
        Ok(())
    };
    make().map_err(|error| ("lay a virtual cable (veth)", error))?;
    // A kernel whose virtual cables have no such switch polls by itself where there is a program.
    let _ = Ioctl::new().map(|ioctl| ioctl.set_feature(RECEIVER, GRO, true));
    let link =
        index(RECEIVER).and_then(|index| Ok(LinkInfo::read(index)?)).map_err(|error| ("read its address", error))?;
    link.mac.ok_or_else(|| ("read its address", io::Error::other("it has none")))
}

const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const VETH_INFO_PEER: u16 = 1; // linux/veth.h

/// Two virtual interfaces, each of which gets what the other sends.
fn new_pair(one: &str, other: &str) -> NetlinkRequest {
    let name = |name: &str| attribute(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    let peer = attribute(VETH_INFO_PEER, &[link(0, 0), name(other)].concat());
    let info = [attribute(libc::IFLA_INFO_KIND, b"veth"), attribute(libc::IFLA_INFO_DATA, &peer)].concat();
    let request = NetlinkRequest::new(libc::RTM_NEWLINK).flags(CREATE).bytes(&link(0, 0)).bytes(&name(one));
    request.attribute(libc::IFLA_LINKINFO, &info)
}

fn new_address(index: u32, address: Ipv4Addr, prefix: u8) -> NetlinkRequest {
    // struct ifaddrmsg: family, prefix, flags, scope, interface
    let request = NetlinkRequest::new(libc::RTM_NEWADDR).flags(CREATE).bytes(&[libc::AF_INET as u8, prefix, 0, 0]);
    let address = address.octets();
    request.bytes(&index.to_ne_bytes()).attribute(libc::IFA_LOCAL, &address).attribute(libc::IFA_ADDRESS, &address)
}

fn link_up(index: u32) -> NetlinkRequest {
    NetlinkRequest::new(libc::RTM_NEWLINK).bytes(&link(index, libc::IFF_UP as u32))
}

/// `struct ifinfomsg`, which asks for the flags that are set in it to be set.
fn link(index: u32, flags: u32) -> Vec<u8> {
    [0, index, flags, flags].map(u32::to_ne_bytes).concat()
}
