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
//! - [`Engine`]: what fills a batch, `recvmmsg` or io_uring; the batch is the same, and so is what is in it.
//! - [`SendBatch`]: partial sends, segmentation offload with a fallback, and errors that belong to one datagram told
//!   apart from errors that end the call.
//! - [`Spread`]: which socket of a reuseport group gets a datagram, by core, by device queue or at random.
//! - [`Group`]: the sockets of such a group, which grows and shrinks under load without losing a datagram.
//! - [`CoreCounter`]: on which core the datagrams of a socket arrive.
//!
//! # What it does not do
//!
//! - It starts no threads, pins nothing and knows nothing of cores or memory nodes. The thread that builds a pool
//!   touches its pages, so build it where it will be used.
//! - It has no timers and no event loop. [`Socket::interrupt`] ends a blocked receive; [`Socket::wait_readable`] waits
//!   for a bounded time.
//! - It does not log. What is lost or degraded is a return value or a counter.
//!
//! # Features
//!
//! `io_uring`, on by default, is the second engine and brings the crate `io-uring`. Features add and never change: the same
//! programs compile without it, and [`Uring::supported`] then says that there is no such engine.
//!
//! # The files
//!
//! From the top to the bottom; imports run downwards and never back. `unsafe` is in those marked `!`.
//!
//! | file | holds |
//! |---|---|
//! | `engine` | [`Engine`]: one way to receive, behind which the next two rows are exchanged |
//! | `uring` `!`, `ring` `!`, `refusal` | io_uring: the exchange of blocks; requests and buffer ring; why there is none (`uring_absent` in a build without) |
//! | `datagrams`, `batch` `!`, `wait` | [`RecvBatch`]: filled by one call, read as an iterator, trains split |
//! | `send` `!`, `verdict`, `report` | [`SendBatch`]; what an error number is about; what is said of a flush |
//! | `shape`, `arena` `!`, `backing` | how large, how laid out and on which pages the memory of batches is |
//! | `group`, `bpf` `!` | groups of sockets that grow and shrink; counting by core (`bpf(2)`) |
//! | `options`, `extras`, `multicast`, `adopt`, `reuseport` | options; what comes with a datagram; groups to join; sockets from elsewhere; programs of a group |
//! | `datagram`, `cmsg` | what one message says: pure, from byte slices, with every bound checked |
//! | `socket`, `addr` | [`Socket`]: makes, names, waits for and stops one; addresses as the kernel writes them |
//! | `sys` `!`, `call`, `fault` | every system call, behind one gate where a test makes it fail |
//!
//! # Errors
//!
//! An error that comes from the kernel is handed on as it is, so that `raw_os_error` can be matched; the caller knows
//! which address or interface it was about. An argument that this crate refuses is `InvalidInput`, with the value, the
//! limit and the cure in its text.
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
mod adopt;
mod arena;
mod backing;
mod batch;
mod bpf;
mod call;
mod cmsg;
mod datagram;
mod datagrams;
mod engine;
mod extras;
#[cfg(mmsg_faults)]
pub mod fault;
mod group;
mod multicast;
#[cfg(test)]
mod noise;
mod options;
mod refusal;
mod report;
mod reuseport;
#[cfg(feature = "io_uring")]
mod ring;
mod send;
mod shape;
mod socket;
mod sys;
#[cfg_attr(not(feature = "io_uring"), path = "uring_absent.rs")]
mod uring;
mod verdict;
mod wait;

pub use addr::Family;
pub use backing::Backing;
pub use batch::{RecvBatch, Summary};
pub use bpf::CoreCounter;
pub use cmsg::{ControlMessage, ControlMessages};
pub use datagram::{Datagram, MAX_SEGMENTS};
pub use datagrams::Datagrams;
pub use engine::Engine;
pub use group::{Group, GroupSpread, wait_for_arrivals_under_way};
pub use options::{GrantedBuffer, MemoryInfo};
pub use refusal::Refusal;
pub use report::{PushError, SendError, SendFailure, SendReport};
pub use reuseport::Spread;
pub use send::SendBatch;
pub use shape::{BatchShape, Control};
pub use socket::Socket;
pub use uring::Uring;
pub use wait::Wait;
