//! Joining and leaving multicast groups, with or without a chosen source.
//!
//! The family-independent requests are used (`MCAST_JOIN_GROUP` and its like): they name the interface by its index,
//! which is right for IPv4 and IPv6 alike and does not depend on the interface having an address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use crate::addr::{self, Family};
use crate::socket::Socket;
use crate::sys;

const GROUP_AT: usize = std::mem::offset_of!(libc::group_source_req, gsr_group);
const SOURCE_AT: usize = std::mem::offset_of!(libc::group_source_req, gsr_source);
const GROUP_REQUEST_BYTES: usize = size_of::<libc::group_req>();
const SOURCE_REQUEST_BYTES: usize = size_of::<libc::group_source_req>();

impl Socket {
    /// Joins `group` on an interface (0 = let the kernel choose), from any source or from one (`MCAST_JOIN_GROUP`,
    /// `MCAST_JOIN_SOURCE_GROUP`). Call it once per source.
    ///
    /// A socket bound to the unspecified address also sees groups that other programs of the host joined on the same
    /// port; bind to the group's address to see that group only.
    pub fn join_multicast(&self, group: IpAddr, interface_index: u32, source: Option<IpAddr>) -> io::Result<()> {
        let option = if source.is_some() { libc::MCAST_JOIN_SOURCE_GROUP } else { libc::MCAST_JOIN_GROUP };
        self.request(option, group, interface_index, source)
    }

    /// Leaves what [`join_multicast`](Self::join_multicast) joined; the arguments must be the same.
    pub fn leave_multicast(&self, group: IpAddr, interface_index: u32, source: Option<IpAddr>) -> io::Result<()> {
        let option = if source.is_some() { libc::MCAST_LEAVE_SOURCE_GROUP } else { libc::MCAST_LEAVE_GROUP };
        self.request(option, group, interface_index, source)
    }

    /// Whether a socket on the unspecified address gets what is sent to groups that only other sockets of the host have
    /// joined (`IP_MULTICAST_ALL`). The kernel's default is yes; `false` leaves it with what it has joined itself.
    pub fn set_multicast_all(&self, on: bool) -> io::Result<()> {
        // From linux/in6.h; the crate libc has it for one C library only.
        const IPV6_MULTICAST_ALL: libc::c_int = 29;
        // A dual-stack socket keeps both: the groups of IPv4 are asked of the family of the datagram.
        sys::set_option_int(self.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, on.into())?;
        match self.family() {
            Family::V4 => Ok(()),
            Family::V6 => sys::set_option_int(self.as_fd(), libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, on.into()),
        }
    }

    fn request(&self, option: libc::c_int, group: IpAddr, interface: u32, source: Option<IpAddr>) -> io::Result<()> {
        let (bytes, length) = encode(group, interface, source)?;
        let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
        sys::set_option(self.as_fd(), level, option, &bytes[..length])
    }
}

/// A `group_req`, or with a source a `group_source_req`, whose beginning is the same.
fn encode(group: IpAddr, interface: u32, source: Option<IpAddr>) -> io::Result<([u8; SOURCE_REQUEST_BYTES], usize)> {
    if !group.is_multicast() {
        let text = format!("{group} is not a multicast group: those are 224.0.0.0/4 and ff00::/8");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = [0; SOURCE_REQUEST_BYTES];
    bytes[..4].copy_from_slice(&interface.to_ne_bytes());
    place(&mut bytes, GROUP_AT, group);
    let Some(source) = source else {
        return Ok((bytes, GROUP_REQUEST_BYTES));
    };
    if source.is_ipv4() != group.is_ipv4() || source.is_multicast() {
        let text = format!("{source} cannot be a source of {group}: give a unicast address of the same family");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    place(&mut bytes, SOURCE_AT, source);
    Ok((bytes, SOURCE_REQUEST_BYTES))
}

fn place(bytes: &mut [u8], offset: usize, address: IpAddr) {
    let name = addr::encode(SocketAddr::from((address, 0)));
    let name = name.as_bytes();
    bytes[offset..offset + name.len()].copy_from_slice(name);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("the test wrote a valid address")
    }

    #[test]
    fn the_parts_of_a_request_are_where_the_kernel_looks_for_them() {
        let (bytes, length) = encode(ip("232.1.2.3"), 7, Some(ip("10.0.0.1"))).expect("valid");
        assert_eq!(length, SOURCE_REQUEST_BYTES);
        assert_eq!(bytes[..4], 7_u32.to_ne_bytes());
        assert_eq!(bytes[GROUP_AT + 4..GROUP_AT + 8], [232, 1, 2, 3]);
        assert_eq!(bytes[SOURCE_AT + 4..SOURCE_AT + 8], [10, 0, 0, 1]);
        let (_, length) = encode(ip("ff02::1:2"), 7, None).expect("valid");
        assert_eq!(length, GROUP_REQUEST_BYTES);
    }

    #[test]
    fn what_is_no_group_or_no_source_of_it_is_refused() {
        assert!(encode(ip("10.0.0.1"), 0, None).is_err());
        assert!(encode(ip("fe80::1"), 0, None).is_err());
        assert!(encode(ip("232.1.2.3"), 0, Some(ip("fe80::1"))).is_err());
        assert!(encode(ip("232.1.2.3"), 0, Some(ip("232.1.2.4"))).is_err());
    }
}
