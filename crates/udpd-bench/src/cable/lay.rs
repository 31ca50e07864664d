//! A cable of the bench's own: a network namespace that this process enters, and a virtual pair in it.
//!
//! Both ends are in one namespace, because frames are laid upon the one end and come out of the other, and no route has
//! a say in it. What this process starts from then on is in there too, and reaches no other host.

use std::io;
use std::net::Ipv4Addr;

use framegen::Mix;
use netlink::{NetlinkProtocol, NetlinkRequest, NetlinkSocket, attribute};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use steer::ethtool::{Ethtool, Ioctl};

use super::wire::Cable;
use crate::send::Link;
use udpd_base::exit::{ExitCode, Failure};

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

/// Enters a namespace and lays a cable there.
pub(super) fn own(mix: Mix) -> Result<Cable, Failure> {
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
    // Nobody outside is to see the mount, which shows the devices of the namespace instead of those of the host.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(|errno| ("keep its mounts", errno))?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).map_err(|errno| ("mount sysfs anew", errno))
}

/// Lays it, and returns the hardware address of its end.
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
    let link = index(RECEIVER).and_then(|index| Ok(Link::read(index)?)).map_err(|error| ("read its address", error))?;
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
