//! The socket option that joins a multicast group, the only unsafe code of this crate: nix has no safe wrapper of it,
//! and the address of a netlink socket holds the first 32 groups only.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use nix::libc;
use nix::setsockopt_impl;
use nix::sys::socket::SetSockOpt;
use nix::sys::socket::sockopt::SetStruct;

#[derive(Debug, Clone, Copy)]
struct AddMembership;

// The kernel takes a number of four bytes for this option, and the macro passes its length with it.
setsockopt_impl!(AddMembership, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, u32, SetStruct<'_, u32>);

pub(crate) fn join(socket: &OwnedFd, group: u32) -> nix::Result<()> {
    AddMembership.set(socket, &group)
}
