//! What a Linux host loses of its UDP datagrams, and why.
//!
//! A receiver counts what it gets and what its own sockets drop. What the kernel throws away before or beside them it
//! cannot see: this crate reads it from the kernel.
//!
//! - [`HostReader`], [`Losses`]: what this host has lost before a datagram reaches a socket, and at every socket on a
//!   port,
//!   those of other processes too.
//! - [`drops`]: the reasons of the kernel for each drop, by name, for some seconds.
//!
//! The kernel counts losses in six places, in different units, and some of them twice. [`tables`] says of each counter
//! what it counts, in which unit, and what it is contained in. A [`HostReader`] reads all of them in one pass, a
//! [`HostReading`] is what it read, [`HostReading::since`] is what happened between two, and [`Losses`] adds the layers
//! up without counting anything twice. What a kernel or a driver does not tell is `None`, and never 0.
//!
//! # The files
//!
//! From the top down; imports run downwards and never back. `unsafe` is in those marked `!`.
//!
//! - `ledger`, `reader`: sums over a daemon's life; one pass over the kernel's files and sockets
//! - `losses`, `reading`, `nic`: the sum of the layers; what one pass has read; interfaces and their drivers' counters
//! - `tables`: every counter, one line each
//! - `drops/mod`, `drops/watch`: the names of drops; the watch over all cores, and its bounded counts
//! - `drops/perf` `!`: events and their rings (`perf_event_open`, `PERF_TYPE_TRACEPOINT`)
//! - `drops/tracepoints`: the two tracepoints and their `format` files (`udp_fail_queue_rcv_skb`, `kfree_skb`)
//! - `drops/packets`: the program that counts dropped datagrams by reason, addresses and port (`kfree_skb`)
//! - `drops/errors`: errors with cause and cure
//! - `drops/records`: records, and which reasons count; pure

#[cfg(not(target_os = "linux"))]
compile_error!("udpd-hostloss is written against the interfaces of Linux and builds for no other system");

pub mod drops;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
mod ledger;
mod losses;
mod nic;
mod reader;
mod reading;
pub mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use ledger::HostLedger;
pub use losses::{Loss, Losses, UncountedLoss};
pub use nic::DriverCounter;
pub use reader::HostReader;
pub use reading::{HostReading, InterfaceReading, SocketReading};
pub use tables::{CounterUnit, KernelCounter, KernelLayer, KernelTable};
