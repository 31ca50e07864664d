//! The control socket: how `udpd stats` asks a running daemon for its ledger, `udpd steer` asks for the seats of its
//! lanes, `udpd reopen` sends it to new files, `udpd drain` has it leave a fleet, and `udpd run --take-over` asks for
//! its sockets.
//!
//! A Unix socket in a directory of the daemon's own, mode 0660, so that the file system decides who may ask. A client
//! sends one line and gets one line of JSON: the ledger, the seats, `{"ok": "..."}` or `{"error": "..."}`.

mod client;
mod lock;
mod neighbours;
mod seats;
mod server;
mod socket;
pub(crate) mod take_over;

pub use client::{Connection, OF_THE_SYSTEM, default_paths};
pub use neighbours::{Neighbour, NeighbourSearch, Neighbours, Silent};
pub use seats::{LaneSeat, QueueCores, Seats, SteeredInterface};
pub use server::{ControlServer, DrainCommand, DrainRequest};
pub use socket::BoundControlSocket;
pub use take_over::{NewProcess, NewProcessState, OldProcess, OldProcessEnd, OldProcessSearch};
pub use take_over::{OfferedSockets, TakeOverOffer, TakeOverRequest};

#[cfg(test)]
mod tests;
