//! Netlink: how a program asks the Linux kernel about interfaces, routes and sockets, and hears of changes.
//!
//! [`NetlinkSocket`] is the one transport. It sends a [`NetlinkRequest`], matches the answer by its sequence number,
//! follows a dump to its end, and says of an error which operation failed on which protocol with which errno.
//! [`NetlinkMessage`] and [`Attributes`] read what the kernel wrote; whatever the lengths in a datagram claim, nothing
//! outside of it is read. [`generic`] finds the families of generic netlink, and [`sock_diag`] lists UDP sockets.
//!
//! Written by hand, because this is a handful of messages, and the crates that know every family have ten thousand
//! lines. The numbers of a family stay with the code that uses them.
//!
//! ```
//! use netlink::{NetlinkProtocol, NetlinkRequest, NetlinkSocket, field};
//!
//! const RTM_GETLINK: u16 = 18;
//!
//! let mut socket = NetlinkSocket::open(NetlinkProtocol::Route)?;
//! let every_link = NetlinkRequest::new(RTM_GETLINK).bytes(&[0; 16]); // struct ifinfomsg
//! let mut loopback = None;
//! socket.dump(every_link, |link| {
//!     if field(link.payload, 4).map(u32::from_ne_bytes) == Some(1) {
//!         loopback = link.attributes(16).text(3); // IFLA_IFNAME
//!     }
//! })?;
//! assert_eq!(loopback.as_deref(), Some("lo"));
//! # Ok::<(), netlink::Error>(())
//! ```
//!
//! # The files
//!
//! Imports run down this list.
//!
//! - `sock_diag`, `generic`: UDP sockets (`SOCK_DIAG_BY_FAMILY`); families and their groups (`CTRL_CMD_GETFAMILY`)
//! - `socket`: the transport
//! - `groups`: the option that joins a multicast group (`NETLINK_ADD_MEMBERSHIP`), unsafe code inside of a macro of nix
//! - `message`: requests, messages and attributes as bytes

#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
pub mod generic;
mod groups;
mod message;
pub mod sock_diag;
mod socket;
#[cfg(test)]
mod testing;

pub use message::{Attributes, Messages, NetlinkMessage, NetlinkRequest, attribute, field, messages};
pub use socket::{Error, NetlinkProtocol, NetlinkSocket, Result};
