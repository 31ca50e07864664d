//! What the kernel is asked to make by rtnetlink: a virtual pair, an address, an interface that is up. Each is one
//! message and one answer.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

const HEADER_BYTES: usize = 16; // struct nlmsghdr
const VETH_INFO_PEER: u16 = 1; // linux/veth.h
/// Longer than the answer to any request of these: an error number and the request.
const ANSWER_BYTES: usize = 4096;

/// A message that grows.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: i32) -> Self {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self(bytes)
    }

    /// `struct ifinfomsg`, which asks for the flags that are set in it to be set.
    fn link(mut self, index: u32, flags: u32) -> Self {
        self.0.extend([0; 4]);
        [index, flags, flags].into_iter().for_each(|word| self.0.extend(word.to_ne_bytes()));
        self
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Self {
        self.nest(kind, |mut own| {
            own.0.extend(value);
            own
        })
    }

    fn name(self, name: &str) -> Self {
        self.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat())
    }

    /// An attribute of what `fill` adds. Its length is known only then.
    fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        let mut filled = fill(self);
        let length = (filled.0.len() - at) as u16;
        filled.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        filled.0.resize(filled.0.len().next_multiple_of(4), 0);
        filled
    }

    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() as u32).to_ne_bytes();
        self.0[..4].copy_from_slice(&length);
        self.0
    }
}

/// A socket by which interfaces are made, in the network namespace of whoever opens it.
pub(super) struct Route(OwnedFd);

impl Route {
    pub(super) fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        Ok(Self(socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?))
    }

    /// Two virtual interfaces, each of which gets what the other sends.
    pub(super) fn add_pair(&self, one: &str, other: &str) -> io::Result<()> {
        let peer = |request: Request| request.nest(VETH_INFO_PEER, |peer| peer.link(0, 0).name(other));
        let of_kind = |info: Request| info.attribute(libc::IFLA_INFO_KIND, b"veth").nest(libc::IFLA_INFO_DATA, peer);
        let request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        self.ask(request.link(0, 0).name(one).nest(libc::IFLA_LINKINFO, of_kind))
    }

    pub(super) fn add_address(&self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        // struct ifaddrmsg: family, prefix, flags, scope, interface
        request.0.extend([libc::AF_INET as u8, prefix, 0, 0]);
        request.0.extend(index.to_ne_bytes());
        self.ask(request.attribute(libc::IFA_LOCAL, &address.octets()).attribute(libc::IFA_ADDRESS, &address.octets()))
    }

    pub(super) fn set_up(&self, index: u32) -> io::Result<()> {
        self.ask(Request::new(libc::RTM_NEWLINK, 0).link(index, libc::IFF_UP as u32))
    }

    fn ask(&self, request: Request) -> io::Result<()> {
        send(self.0.as_raw_fd(), &request.finish(), MsgFlags::empty())?;
        let mut answer = vec![0; ANSWER_BYTES];
        let length = loop {
            match recv(self.0.as_raw_fd(), &mut answer, MsgFlags::empty()) {
                Err(nix::errno::Errno::EINTR) => {}
                received => break received?,
            }
        };
        // The answer is always an error message; that of success has number 0.
        let errno = answer[..length].get(HEADER_BYTES..).and_then(|body| body.first_chunk());
        match errno.map(|bytes| i32::from_ne_bytes(*bytes)) {
            Some(0) => Ok(()),
            Some(errno) => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
            None => Err(io::Error::other("the kernel's answer is too short")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_cover_what_is_nested_and_what_follows_is_aligned() {
        let message = Request::new(16, 0).nest(18, |info| info.attribute(1, b"veth").attribute(3, b"x")).finish();
        let word = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
        assert_eq!((message.len(), word(0)), (36, 36));
        assert_eq!((word(4), word(16), word(18)), (16, 20, 18), "the kind, the outer length and its kind");
        assert_eq!((word(20), word(22), word(28), word(30)), (8, 1, 5, 3), "the inner ones");
        assert_eq!(&message[24..28], b"veth");
        assert_eq!(&message[32..], b"x\0\0\0", "filled up to four");
    }

    #[test]
    fn what_the_kernel_refuses_is_told_with_its_reason() {
        let route = Route::new().expect("rtnetlink");
        let error = route.set_up(u32::MAX >> 1).expect_err("no such interface");
        assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{error}");
    }
}
