//! Two interfaces and what is between them: where to send, and how a load of the bench becomes frames.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use framegen::Mix;
use ipnet::IpNet;

use crate::send;
use crate::send::{Engine, FrameLoad, Link, Load, Mac, Second};
use udpd_base::exit::{ExitCode, Failure};

/// Two interfaces with a wire between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Cable {
    /// Where it is received.
    pub receiver: String,
    /// An address of the receiver.
    pub address: IpAddr,
    /// Where what is sent may seem to come from.
    pub senders: Vec<IpNet>,
    /// Made here, and gone with this process.
    pub(super) is_own: bool,
    pub(super) sender: String,
    /// The hardware address of the receiver.
    pub(super) mac: Mac,
    /// Where frames seem to come from; none: as many addresses as the flows take.
    pub(super) sources: Option<IpNet>,
    pub(super) mix: Mix,
    pub(super) despite_default_route: bool,
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
    pub(super) fn between(
        receiver: &str,
        sender: &str,
        mix: Mix,
        despite_default_route: bool,
    ) -> Result<Self, Failure> {
        let refuse = |text: String| Failure::new(ExitCode::Unavailable, format!("--interface: {receiver} {text}"));
        let index = nix::net::if_::if_nametoindex(receiver)
            .map_err(|_| refuse("is no interface of this host; `ip link` lists them".to_owned()))?;
        let Link { mac, addresses, is_up, is_loopback, .. } =
            Link::read(index).map_err(|error| refuse(format!("is not known: {error}")))?;
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
        let own = nix::net::if_::if_nametoindex(sender).ok().and_then(|index| Link::read(index).ok());
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

    /// An address at its end that nobody listens on now.
    pub fn free_address(&self) -> Result<SocketAddr, Failure> {
        let free = std::net::UdpSocket::bind((self.address, 0)).and_then(|socket| socket.local_addr());
        free.map_err(|error| {
            let text = format!("cannot find a free port on {} of {}: {error}", self.address, self.receiver);
            Failure::new(ExitCode::Unavailable, text)
        })
    }

    /// Sends a load over it, as frames that the kernel makes itself, or where it cannot by a packet socket.
    pub fn send(
        &self,
        load: &Load,
        stop: &Arc<AtomicBool>,
        each_second: &mut dyn FnMut(&Second),
    ) -> Result<send::Report, Failure> {
        let frames = self.frames(load, Engine::Xdp);
        match send::run_frames(&frames, stop, each_second) {
            // Before Linux 5.18. Why the other way fails as well is of no interest then.
            Err(failure) if failure.code == ExitCode::Unavailable => {
                let packets = FrameLoad { engine: Engine::Packet, ..frames };
                send::run_frames(&packets, stop, each_second).map_err(|_| failure)
            }
            outcome => outcome,
        }
    }

    fn frames(&self, load: &Load, engine: Engine) -> FrameLoad {
        FrameLoad {
            load: load.clone(),
            engine,
            interface: self.sender.clone(),
            mac: Some(self.mac),
            mix: self.mix,
            sources: self.sources,
            checksum: true,
            despite_default_route: self.despite_default_route,
        }
    }
}

/// Whether a load can be sent over a cable at all, as far as that can be said without one.
pub(crate) fn check(load: &Load) -> Result<(), Failure> {
    let frames = FrameLoad {
        load: load.clone(),
        engine: Engine::Xdp,
        interface: String::new(),
        mac: None,
        mix: Mix::Uniform,
        sources: None,
        checksum: true,
        despite_default_route: false,
    };
    frames.check()
}
