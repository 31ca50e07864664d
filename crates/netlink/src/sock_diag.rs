//! What /proc/net/udp does not tell of a UDP socket: the interface it is bound to, whether it leaves IPv4 alone, and
//! how full its receive buffer is. The kernel tells all three on request, unless it is built without `sock_diag` or a
//! filter forbids it.

use std::net::{IpAddr, SocketAddr};

use nix::libc;

use crate::message::{Attributes, NetlinkRequest, field};
use crate::socket::{Error, NetlinkProtocol, NetlinkSocket, Result};

// Each number with its name in linux/sock_diag.h and linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20; // the request and the kind of an answer about one socket
const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_SKV6ONLY: u16 = 11;
// The places in a row of numbers of four bytes.
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
const SK_MEMINFO_RCVBUF: usize = 1;
const SK_MEMINFO_DROPS: usize = 8;

/// `sizeof(struct inet_diag_req_v2)`
const REQUEST_BYTES: usize = 56;
/// `sizeof(struct inet_diag_msg)`
const ANSWER_BYTES: usize = 72;

/// What the kernel tells of a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpSocket {
    /// Which socket it is, as in /proc/net/udp and in the links of /proc/PID/fd.
    pub inode: u64,
    /// What it is bound to.
    pub address: SocketAddr,
    /// What it is connected to: it takes datagrams from there alone.
    pub peer: Option<SocketAddr>,
    /// Its owner.
    pub uid: u32,
    /// The index of the interface that it is bound to; 0 for none.
    pub interface: u32,
    /// An IPv6 socket that leaves IPv4 alone.
    pub v6_only: bool,
    /// Where the kernel tells it.
    pub memory: Option<SocketMemory>,
}

/// The receive buffer of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketMemory {
    /// How much of it is in use.
    pub used_bytes: u32,
    /// Its size.
    pub buffer_bytes: u32,
    /// How many datagrams did not get into it. It wraps.
    pub drops: u32,
}

/// Lists the UDP sockets of this network namespace, as often as it is asked.
#[derive(Debug)]
pub struct UdpSockets {
    socket: NetlinkSocket,
}

impl UdpSockets {
    /// Opens the socket to ask with.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: NetlinkSocket::open(NetlinkProtocol::SockDiag)? })
    }

    /// Calls `visit` for each UDP socket of a family, on one port or on all.
    pub fn each(&mut self, is_ipv6: bool, port: Option<u16>, mut visit: impl FnMut(UdpSocket)) -> Result<()> {
        let mut is_malformed = false;
        self.socket.dump(request(is_ipv6, port), |message| {
            if message.kind == SOCK_DIAG_BY_FAMILY {
                read(message.payload).map_or_else(|| is_malformed = true, &mut visit);
            }
        })?;
        if is_malformed { Err(Error::malformed(NetlinkProtocol::SockDiag)) } else { Ok(()) }
    }
}

/// The UDP sockets on the port of this address, of its family.
pub fn on_port(address: SocketAddr) -> Result<Vec<UdpSocket>> {
    let mut found = Vec::new();
    UdpSockets::open()?.each(address.is_ipv6(), Some(address.port()), |socket| found.push(socket))?;
    Ok(found)
}

/// Asks for all UDP sockets of a family, in every state, with their memory, on a local port; 0 is any.
fn request(is_ipv6: bool, port: Option<u16>) -> NetlinkRequest {
    let family = if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let memory = 1 << (INET_DIAG_SKMEMINFO - 1);
    let mut structure = vec![family as u8, libc::IPPROTO_UDP as u8, memory, 0];
    let every_state = u32::MAX;
    structure.extend(every_state.to_ne_bytes());
    structure.extend(port.unwrap_or(0).to_be_bytes());
    structure.resize(REQUEST_BYTES, 0);
    NetlinkRequest::new(SOCK_DIAG_BY_FAMILY).bytes(&structure)
}

/// Reads `struct inet_diag_msg`: family, state, timer and retransmissions in a byte each; ports, addresses, interface
/// and cookie; times and queues; user and inode; attributes.
pub(crate) fn read(message: &[u8]) -> Option<UdpSocket> {
    let is_ipv6 = i32::from(*message.first()?) == libc::AF_INET6;
    let ip = |at| {
        let of_ipv4 = || field::<4>(message, at).map(IpAddr::from);
        if is_ipv6 { field::<16>(message, at).map(IpAddr::from) } else { of_ipv4() }
    };
    let port = |at| field(message, at).map(u16::from_be_bytes);
    let attributes = Attributes::new(message.get(ANSWER_BYTES..)?);
    let v6_only = attributes.bytes(INET_DIAG_SKV6ONLY).and_then(<[u8]>::first);
    Some(UdpSocket {
        inode: u64::from(u32::from_ne_bytes(field(message, 68)?)),
        address: SocketAddr::new(ip(8)?, port(4)?),
        peer: Some(SocketAddr::new(ip(24)?, port(6)?)).filter(|peer| peer.port() != 0),
        uid: u32::from_ne_bytes(field(message, 64)?),
        interface: u32::from_ne_bytes(field(message, 40)?),
        v6_only: v6_only.is_some_and(|&flag| flag != 0),
        memory: attributes.bytes(INET_DIAG_SKMEMINFO).and_then(read_memory),
    })
}

fn read_memory(numbers: &[u8]) -> Option<SocketMemory> {
    let at = |place: usize| field(numbers, 4 * place).map(u32::from_ne_bytes);
    Some(SocketMemory {
        used_bytes: at(SK_MEMINFO_RMEM_ALLOC)?,
        buffer_bytes: at(SK_MEMINFO_RCVBUF)?,
        drops: at(SK_MEMINFO_DROPS)?,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, getsockname, setsockopt, socket, sockopt,
    };

    use super::*;
    use crate::message::messages;
    use crate::testing::{mutate, recorded};

    fn bound(to: &str, interface: Option<&str>, v6_only: bool) -> OwnedFd {
        let to: SocketAddr = to.parse().expect("an address");
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let made = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        if to.is_ipv6() {
            setsockopt(&made, sockopt::Ipv6V6Only, &v6_only).expect("IPV6_V6ONLY");
        }
        if let Some(interface) = interface {
            setsockopt(&made, sockopt::BindToDevice, &OsString::from(interface)).expect("SO_BINDTODEVICE");
        }
        bind(made.as_raw_fd(), &SockaddrStorage::from(to)).expect("bound");
        made
    }

    /// What the kernel says of a socket, where it says anything.
    #[allow(clippy::print_stderr)]
    fn told_of(socket: &OwnedFd) -> Option<UdpSocket> {
        let name: SockaddrStorage = getsockname(socket.as_raw_fd()).expect("a name");
        let v4 = name.as_sockaddr_in().map(|name| SocketAddr::from((name.ip(), name.port())));
        let v6 = || name.as_sockaddr_in6().map(|name| SocketAddr::from((name.ip(), name.port())));
        let address = v4.or_else(v6).expect("an address");
        let all = on_port(address).inspect_err(|error| eprintln!("NOT CHECKED: {error}")).ok()?;
        let inode = nix::sys::stat::fstat(socket).expect("an inode").st_ino;
        let found = *all.iter().find(|told| told.inode == inode).expect("a bound socket is told");
        assert_eq!(found.address, address);
        Some(found)
    }

    #[test]
    fn the_kernel_tells_the_interface_of_a_socket_and_whether_it_leaves_ipv4_alone() {
        for (address, interface, v6_only) in [
            ("127.0.0.1:0", None, false),
            ("127.0.0.1:0", Some("lo"), false),
            ("[::]:0", None, false),
            ("[::]:0", None, true),
        ] {
            let Some(told) = told_of(&bound(address, interface, v6_only)) else { return };
            let index = interface.map_or(0, |name| nix::net::if_::if_nametoindex(name).expect("an index"));
            assert_eq!((told.interface, told.v6_only), (index, v6_only), "{address} on {interface:?}");
            assert!(told.memory.is_some_and(|memory| memory.buffer_bytes > 0), "{told:?}");
        }
    }

    /// What Linux 6.18 answers about a socket on port 5140 of `[::1]` with three datagrams in it.
    const ANSWER: &str = "ac000000140002000700000070610000
        0a070000141400000000000000000000000000000000000100000000000000000000000000000000
        00000000f11701000000000000000000c0090000000000000000000066a35e00
        050008000000000005000b00 0100000008000f00
        000000000c001500010000000000000006001600
        1000000028000700c00900000040030000000000004003004006000000000000000000000000000000000000";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_recorded_answer_is_read_field_by_field() {
        let bytes = recorded(ANSWER);
        let message = messages(&bytes).next().expect("one message");
        let expected = UdpSocket {
            inode: 6_202_214,
            address: "[::1]:5140".parse().expect("an address"),
            peer: None,
            uid: 0,
            interface: 0,
            v6_only: true,
            memory: Some(SocketMemory { used_bytes: 2496, buffer_bytes: 212_992, drops: 0 }),
        };
        assert_eq!(read(message.payload), Some(expected));
        assert_eq!(read(&message.payload[..71]), None, "shorter than its structure");
    }

    #[test]
    fn no_answer_makes_the_reader_panic() {
        mutate(&recorded(ANSWER)[16..], |bytes| {
            let _ = read(bytes);
        });
    }
}
