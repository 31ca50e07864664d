//! The host ledger: what this host has lost before a datagram reaches a socket, and at every socket on a port, also
//! those of other processes.
//!
//! The kernel counts losses in six places, in different units, and some of them twice. [`tables`] says of each counter
//! what it counts, in which unit, and what it is contained in. A [`Reader`] reads all of them in one pass, a
//! [`Reading`] is what it read, [`Reading::since`] is what happened between two, and [`Losses`] adds the layers up
//! without counting anything twice. What a kernel or a driver does not tell is `None`, and never 0.

mod counter;
mod driver;
mod files;
mod ledger;
mod losses;
mod lost;
mod nic;
mod parse;
mod reader;
mod reading;
pub mod tables;

pub use counter::{Counter, Layer, Table, Unit};
pub use driver::DriverCounter;
pub use ledger::HostLedger;
pub use lost::{Loss, Losses, Unseen};
pub use reader::Reader;
pub use reading::{Interface, Reading, SocketReading};
