//! What /proc/net/udp does not tell of a socket: the interface it is bound to, whether it leaves IPv4 alone, and how
//! full its receive buffer is. The kernel tells all three on request (`sock_diag` netlink), unless it is built without
//! that or a filter forbids it; then the answer is that nobody knows.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// The request and the kind of an answer about one socket.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// The attribute that says whether an IPv6 socket leaves IPv4 alone.
const INET_DIAG_SKV6ONLY: u16 = 11;

/// The attribute with the memory of a socket: a row of numbers, of which these three are told here.
const INET_DIAG_SKMEMINFO: u16 = 7;
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
const SK_MEMINFO_RCVBUF: usize = 1;
const SK_MEMINFO_DROPS: usize = 8;

const NETLINK_HEADER_BYTES: usize = 16;

/// An answer without its attributes, after the netlink header.
const ANSWER_BYTES: usize = 72;

/// What was found out about a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Details {
    pub inode: u64,
    /// What it is bound to.
    pub address: SocketAddr,
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
    pub used_bytes: u32,
    pub buffer_bytes: u32,
    /// What did not get into it. It wraps.
    pub drops: u32,
}

/// Asks the kernel for the UDP sockets of this network namespace, more than once.
#[derive(Debug)]
pub struct Asker {
    netlink: OwnedFd,
    answer: Vec<u8>,
}

impl Asker {
    pub fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let netlink = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)?;
        // As long as the kernel's own answers are.
        Ok(Self { netlink, answer: vec![0; 32 << 10] })
    }

    /// Calls `visit` for each socket of a family, on one port or on all.
    pub fn each(&mut self, is_ipv6: bool, port: Option<u16>, mut visit: impl FnMut(Details)) -> io::Result<()> {
        let request = request(is_ipv6, port);
        uninterrupted(|| send(self.netlink.as_raw_fd(), &request, MsgFlags::empty()))?;
        loop {
            let length = uninterrupted(|| recv(self.netlink.as_raw_fd(), &mut self.answer, MsgFlags::empty()))?;
            if length == 0 || !read_answers(&self.answer[..length], &mut visit)? {
                return Ok(());
            }
        }
    }
}

/// A signal is no reason to know less.
fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
}

/// What the kernel says of the UDP sockets of a family on a port.
pub fn on_port(address: SocketAddr) -> io::Result<Vec<Details>> {
    let mut details = Vec::new();
    Asker::new()?.each(address.is_ipv6(), Some(address.port()), |told| details.push(told))?;
    Ok(details)
}

/// A header, and a request for all sockets of a protocol and a family with a local port; 0 is any.
fn request(is_ipv6: bool, port: Option<u16>) -> Vec<u8> {
    const REQUEST_BYTES: usize = NETLINK_HEADER_BYTES + 56;
    let family = if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.extend_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    let memory = 1 << (INET_DIAG_SKMEMINFO - 1);
    request.extend_from_slice(&[family as u8, libc::IPPROTO_UDP as u8, memory, 0]);
    let every_state = u32::MAX;
    request.extend_from_slice(&every_state.to_ne_bytes());
    request.extend_from_slice(&port.unwrap_or(0).to_be_bytes());
    request.resize(REQUEST_BYTES, 0);
    request
}

/// Reads the messages of one receive call. Returns whether more are to come.
fn read_answers(mut messages: &[u8], visit: &mut impl FnMut(Details)) -> io::Result<bool> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer about sockets is malformed");
    while messages.len() >= NETLINK_HEADER_BYTES {
        let length = number::<4>(messages, 0).map_or(0, u32::from_ne_bytes) as usize;
        let kind = number::<2>(messages, 4).map_or(0, u16::from_ne_bytes);
        let message = messages.get(NETLINK_HEADER_BYTES..length).ok_or_else(malformed)?;
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR => {
                let errno = number::<4>(message, 0).map_or(0, i32::from_ne_bytes);
                return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
            }
            _ if kind == SOCK_DIAG_BY_FAMILY => visit(read_answer(message).ok_or_else(malformed)?),
            _ => {}
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// Family, state, timer and retransmissions in a byte each; ports, addresses, interface and cookie; times and queues;
/// user and inode; attributes.
fn read_answer(message: &[u8]) -> Option<Details> {
    let ip = match i32::from(*message.first()?) {
        libc::AF_INET6 => IpAddr::from(number::<16>(message, 8)?),
        _ => IpAddr::from(number::<4>(message, 8)?),
    };
    let address = SocketAddr::new(ip, u16::from_be_bytes(number(message, 4)?));
    let interface = u32::from_ne_bytes(number(message, 40)?);
    let uid = u32::from_ne_bytes(number(message, 64)?);
    let inode = u64::from(u32::from_ne_bytes(number(message, 68)?));
    let mut attributes = message.get(ANSWER_BYTES..)?;
    let (mut v6_only, mut memory) = (false, None);
    while let (Some(length), Some(kind)) = (number::<2>(attributes, 0), number::<2>(attributes, 2)) {
        let length = usize::from(u16::from_ne_bytes(length)).max(4);
        match u16::from_ne_bytes(kind) {
            INET_DIAG_SKV6ONLY => v6_only = attributes.get(4).is_some_and(|&flag| flag != 0),
            INET_DIAG_SKMEMINFO => memory = attributes.get(4..length).and_then(read_memory),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Details { inode, address, uid, interface, v6_only, memory })
}

fn read_memory(numbers: &[u8]) -> Option<SocketMemory> {
    let at = |place: usize| number(numbers, 4 * place).map(u32::from_ne_bytes);
    Some(SocketMemory {
        used_bytes: at(SK_MEMINFO_RMEM_ALLOC)?,
        buffer_bytes: at(SK_MEMINFO_RCVBUF)?,
        drops: at(SK_MEMINFO_DROPS)?,
    })
}

fn number<const BYTES: usize>(bytes: &[u8], place: usize) -> Option<[u8; BYTES]> {
    bytes.get(place..place + BYTES)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::holder::inode_of;
    use mmsg::{Family, Socket};

    /// What the kernel says of a socket, where it says anything.
    #[allow(clippy::print_stderr)]
    fn details_of(socket: &Socket) -> Option<Details> {
        let address = socket.local_addr().expect("an address");
        let all = on_port(address).inspect_err(|error| eprintln!("NOT CHECKED: sock_diag: {error}")).ok()?;
        let inode = inode_of(socket).expect("an inode");
        Some(*all.iter().find(|details| details.inode == inode).expect("a bound socket is told"))
    }

    #[test]
    fn the_kernel_tells_the_interface_of_a_socket_and_whether_it_leaves_ipv4_alone() {
        for (bound, interface, v6_only) in [
            ("127.0.0.1:0", None, false),
            ("127.0.0.1:0", Some("lo"), false),
            ("[::]:0", None, false),
            ("[::]:0", None, true),
        ] {
            let bound: SocketAddr = bound.parse().expect("an address");
            let socket = Socket::new(if bound.is_ipv4() { Family::V4 } else { Family::V6 }).expect("a socket");
            if bound.is_ipv6() {
                socket.set_v6_only(v6_only).expect("IPV6_V6ONLY");
            }
            if let Some(interface) = interface {
                socket.bind_to_device(interface).expect("lo");
            }
            socket.bind(bound).expect("bound");
            let Some(details) = details_of(&socket) else { return };
            let index = interface.map_or(0, |name| nix::net::if_::if_nametoindex(name).expect("an index"));
            assert_eq!((details.interface, details.v6_only), (index, v6_only), "{bound} on {interface:?}");
        }
    }

    #[test]
    fn no_answer_however_damaged_makes_the_reader_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..next() % 200).map(|_| (next() % 90) as u8).collect();
            if bytes.len() > 8 {
                bytes[..8].copy_from_slice(&[(next() % 200) as u8, 0, 0, 0, SOCK_DIAG_BY_FAMILY as u8, 0, 0, 0]);
            }
            let _ = read_answers(&bytes, &mut |_| {});
        }
        assert!(read_answers(&[200, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut |_| {}).is_err());
    }
}
