//! Batches of UDP datagrams for Linux: many datagrams per system call, nothing allocated after construction.
//!
//! The two calls that move many datagrams at once, `recvmmsg` and `sendmmsg`, want arrays of headers that point at
//! arrays of buffers, control space that has to be reset between calls, and control messages decoded by hand. Every
//! program that uses them writes this again, and the same mistakes return: a control buffer that is one message too
//! short and silently glues ten datagrams into one, a length that is not reset, a header that moved. This crate does it
//! once.
//!
//! # What it does
//!
//! - [`Socket`]: a UDP socket with typed options. A receive buffer says what was granted, not only what was asked.
//! - [`RecvBatch`]: one arena with headers built once. It yields [`Datagram`]s, splitting the trains of `UDP_GRO`.
//! - [`PackedBatch`]: datagrams that have to wait, each in no more memory than it is long.
//! - [`Engine`]: what fills a batch, `recvmmsg`, io_uring or AF_XDP; the batch is the same, and so is what is in it.
//! - [`xdp`]: datagrams of a network interface past the kernel's stack, with an account of each.
//! - [`SendBatch`]: partial sends, segmentation offload with a fallback, and errors that belong to one datagram told
//!   apart from errors that end the call.
//! - [`Group`]: the sockets of a reuseport group, which grows and shrinks under load without losing a datagram.
//! - [`GroupSpread`]: which of them gets a datagram, by core, by device queue or at random.
//! - [`proxy`]: the header of the PROXY protocol, taken off by [`RecvBatch::unwrap_proxied`].
//! - [`shares`]: which of several destinations gets what a source sends, so that few move when one comes or goes.
//! - [`CoreCounter`]: on which core the datagrams of a socket arrive, and from which device queue.
//! - [`SourceFilter`]: sources refused in the kernel, by a table of millions of networks, and counted exactly.
//!
//! # What it does not do
//!
//! - It starts no threads, pins nothing and knows nothing of cores or memory nodes. The thread that builds a pool
//!   touches its pages, so build it where it will be used.
//! - It has no timers and no event loop. [`Socket::interrupt`] ends a blocked receive for good, a [`Waker`] one of a
//!   socket that lives on; [`Socket::wait_readable`] waits for a bounded time.
//! - It does not log. Every loss and every fallback is a return value or a counter.
//!
//! # Features
//!
//! `io_uring`, on by default, is the second engine and brings the crate `io-uring`. The same programs compile without
//! it, and [`Uring::supported`] then says that there is no such engine.
//!
//! # The files
//!
//! From the top down; imports run downwards and never back. `unsafe` is in those marked `!`. Numbers that the kernel
//! defines come from the crate `libc` under the kernel's names; the few that it lacks have theirs beside them.
//!
//! - `engine`: [`Engine`], one way to receive, behind which the rows down to `ring` are exchanged
//! - `xdp/mod`: AF_XDP, past the kernel's stack
//! - `xdp/engine` `!`: frames of one queue into batches
//! - `xdp/redirect`: [`xdp::Redirect`], the program at an interface, and what outlives the interface (`SIOCGIFHWADDR`,
//!   `BPF_PROG_LOAD`, `BPF_LINK_CREATE`)
//! - `xdp/hidden_state`: the program that notes what a frame does not show (`netif_receive_skb`)
//! - `xdp/program`: the program, pure
//! - `xdp/move_frame` `!`: one frame into one slot, copied or exchanged
//! - `xdp/control`: sender and control messages as the kernel writes them, pure
//! - `xdp/socket` `!`: the socket of a queue, and what the kernel counts for it (`AF_XDP`, `XDP_UMEM_REG`,
//!   `XDP_STATISTICS`)
//! - `xdp/umem`: where chunks lie in blocks and frames in chunks, pure
//! - `xdp/rings` `!`: the fill ring and the receive ring (`XDP_UMEM_FILL_RING`, `XDP_RX_RING`)
//! - `xdp/frame`: Ethernet, IP and UDP headers, pure
//! - `xdp/refusal`, `xdp/options`: why a step is refused; what is asked of AF_XDP, and what it counts
//! - `uring` `!`, `uring_absent`: io_uring, the exchange of blocks; what stands there in a build without it
//! - `ring` `!`: requests and buffer ring (`IORING_OP_RECVMSG` multishot, `IORING_REGISTER_PBUF_RING`)
//! - `packed`: [`PackedBatch`], datagrams that wait, each as long as it is
//! - `datagrams`: the datagrams of a batch as an iterator
//! - `batch` `!`: [`RecvBatch`], filled by one call, trains split (`recvmmsg`)
//! - `send` `!`: [`SendBatch`], and what an error number is about (`sendmmsg`, `UDP_SEGMENT`)
//! - `refusal`, `send_report`: why an engine cannot be used; what a flush did
//! - `wait`: how long a receive waits, and [`Waker`], which ends it without a trace in the socket (`tgkill`)
//! - `shape`: how large the memory of a batch is, and its room for control messages
//! - `region` `!`: how that memory is laid out (`mmsghdr`, `iovec`)
//! - `span` `!`: plain bytes of an arena
//! - `arena` `!`: where the memory comes from, and on which pages it lies (`MAP_HUGETLB`, `MAP_HUGE_2MB`,
//!   `MADV_HUGEPAGE`)
//! - `group`: [`Group`], a group of sockets that grows and shrinks (`membarrier`)
//! - `source_filter`: [`SourceFilter`], refusing datagrams by their source and counting that (`SO_ATTACH_BPF`)
//! - `source_program`: its program, pure
//! - `core_counter`: [`CoreCounter`], counting by core and queue (`SO_ATTACH_BPF`)
//! - `options`: the options of a socket, what comes with a datagram, multicast (`UDP_GRO`, `SO_RCVBUF`,
//!   `SO_RCVBUFFORCE`, `SO_MEMINFO`, `SO_REUSEPORT`, `IP_PKTINFO`, `SO_TIMESTAMPNS`, `SO_RXQ_OVFL`, `MCAST_JOIN_GROUP`,
//!   ...)
//! - `passed` `!`: descriptors that this process was started with
//! - `reuseport`: [`GroupSpread`] as a program (`SO_ATTACH_REUSEPORT_CBPF`)
//! - `socket`: [`Socket`], made or adopted, named, waited for and stopped
//! - `refused`: [`Refused`], how much its filters have refused
//! - `datagram`: what one message says, pure, from byte slices, with every bound checked
//! - `cmsg`: control messages, read and written
//! - `sys` `!`: every system call, behind one gate where a test makes it fail
//! - `addr`: addresses as the kernel writes them (`sockaddr_in`, `sockaddr_in6`)
//! - `proxy`: [`proxy`], headers that say who sent a datagram, read and written, pure
//! - `shares`: [`shares`], which destination a source has, pure
//!
//! # Errors
//!
//! An error of the kernel is returned unchanged, so that you can match its `raw_os_error`; you know which address or
//! interface it was about. An argument that this crate refuses is `InvalidInput`, with the value, the limit and the
//! cure in its text. The crate's own errors convert into [`std::io::Error`] for `?`.
//!
//! # Example
//!
//! ```
//! use mmsg::{BatchShape, Family, RecvBatch, SendBatch, Socket, Wait};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if cfg!(miri) { return Ok(()) } // an interpreter has no sockets
//! let receiver = Socket::new(Family::V4)?;
//! receiver.bind("127.0.0.1:0".parse()?)?;
//!
//! let sender = Socket::new(Family::V4)?;
//! let mut outgoing = SendBatch::new(8, 1500)?;
//! outgoing.push(b"first", Some(receiver.local_addr()?))?;
//! outgoing.push(b"second", Some(receiver.local_addr()?))?;
//! assert_eq!(outgoing.flush(&sender)?.sent, 2);
//!
//! let shape = BatchShape::new(64, 2048);
//! let mut batch = RecvBatch::new(&shape)?;
//! batch.receive(&receiver, Wait::Block)?;
//! let payloads: Vec<&[u8]> = batch.datagrams().map(|datagram| datagram.payload()).collect();
//! assert_eq!(payloads, [b"first".as_slice(), b"second".as_slice()]);
//! # Ok(())
//! # }
//! ```

/// The example of the README is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(not(target_os = "linux"))]
compile_error!("mmsg is written against the system calls of Linux and builds for no other system");

mod addr;
mod arena;
mod batch;
mod cmsg;
mod core_counter;
mod datagram;
mod datagrams;
mod engine;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
mod group;
mod options;
mod packed;
mod passed;
pub mod proxy;
mod refusal;
mod refused;
mod region;
mod reuseport;
#[cfg(feature = "io_uring")]
mod ring;
mod send;
mod send_report;
mod shape;
pub mod shares;
mod socket;
mod source_filter;
mod source_program;
mod span;
mod sys;
#[cfg(test)]
mod testing;
#[cfg_attr(not(feature = "io_uring"), path = "uring_absent.rs")]
mod uring;
mod wait;
pub mod xdp;

pub use addr::Family;
pub use arena::{Backing, give_back_freed_memory};
pub use batch::RecvBatch;
#[cfg(mmsg_faults)]
pub use bpf::fault;
pub use cmsg::{ControlMessage, ControlMessages};
pub use core_counter::{Arrivals, CoreCounter};
pub use datagram::{Datagram, MAX_SEGMENTS, Summary};
pub use datagrams::Datagrams;
pub use engine::Engine;
pub use group::{Group, wait_for_arrivals_under_way};
pub use options::{GrantedBuffer, MemoryInfo, unacknowledged_bytes};
pub use packed::{PackedBatch, PackedDatagrams, pack, pack_known};
pub use passed::take_passed;
pub use refusal::{Obstacle, Refusal};
pub use refused::Refused;
pub use reuseport::GroupSpread;
pub use send::SendBatch;
pub use send_report::{PushError, SendError, SendFailure, SendReport};
pub use shape::{BatchShape, Control};
pub use socket::Socket;
pub use source_filter::{
    Loader, OwnRights, SourceFilter, SourceRanges, SourceTable, TURNS_MAX, load_program, make_array,
};
pub use source_program::SourceShape;
pub use sys::page_bytes;
pub use uring::Uring;
pub use wait::{Wait, Waker};
