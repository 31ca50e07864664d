//! What a Linux host loses of its UDP datagrams, and why.
//!
//! A receiver counts what it gets and what its own sockets drop. What the kernel throws away before or beside them it
//! cannot see: this crate reads it from the kernel.
//!
//! - [`drops`]: the reasons of the kernel for each drop, by name, for some seconds.
//!
//! # The files
//!
//! From the top down; imports run downwards and never back. `unsafe` is in those marked `!`.
//!
//! - `drops/mod`, `drops/watch`: the names of drops, and the watch over all cores
//! - `drops/tally`, `drops/perf` `!`: bounded counts; events and their rings (`perf_event_open`,
//!   `PERF_TYPE_TRACEPOINT`)
//! - `drops/tracepoints`: the two tracepoints and their `format` files (`udp_fail_queue_rcv_skb`, `kfree_skb`)
//! - `drops/errors`: errors with cause and cure
//! - `drops/reasons`, `drops/records`: which reasons count; records, pure

#[cfg(not(target_os = "linux"))]
compile_error!("udpd-hostloss is written against the interfaces of Linux and builds for no other system");

pub mod drops;
