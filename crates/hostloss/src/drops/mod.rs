//! Why the kernel of this host drops datagrams, by name: `SOCKET_RCVBUFF`, `PROTO_MEM`, `UDP_CSUM`, `NO_SOCKET`,
//! `IP_RPFILTER`, with the port where the kernel tells it.
//!
//! Two tracepoints tell. `skb:kfree_skb` fires for everything that the kernel throws away and has the reason (Linux
//! 5.17 and later). `udp:udp_fail_queue_rcv_skb` fires for each datagram that a socket did not take and has the port.
//! Both are read with `perf_event_open(2)`: the right `CAP_PERFMON` is enough, and no program runs in the kernel. Only
//! the numbers of the tracepoints need root once, because only root may read tracefs; root can read the two files and
//! hand on their text ([`Tracepoints::parse`]).
//!
//! ```no_run
//! use std::{thread, time::Duration};
//! use udpd_hostloss::drops::{Tracepoints, Watch};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut watch = Watch::open(&Tracepoints::read()?)?;
//! for _ in 0..250 {
//!     thread::sleep(Duration::from_millis(20));
//!     watch.read()?;
//! }
//! for drop in watch.tally().by_port {
//!     println!("{} datagrams to port {}: {}", drop.count, drop.port, drop.reason);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! It is a watch for some seconds, not a ledger: it sees the drops of all network namespaces, most reasons are shared
//! with TCP and others, and a burst that overruns a ring is counted without its names. [`DropTally::unseen`] says which
//! of these apply.

#[cfg(test)]
mod drops_tests;
mod errors;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod packets;
mod perf;
mod records;
mod tracepoints;
mod watch;

pub use packets::{DropProgram, DroppedDatagrams};
pub use tracepoints::{KFREE_SKB_FORMAT, Tracepoints, UDP_FAIL_FORMAT};
pub use watch::{BlindSpot, DropTally, PortCount, ReasonCount, Watch};
