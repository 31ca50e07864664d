//! The pipeline: wires lanes to consumers and takes them apart again.
//!
//! Starting goes from the outside in: lanes are made on their cores, sinks are opened, sockets are bound in order, and
//! only then does anything run; whatever fails leaves nothing behind. Stopping goes the way of a datagram: arrivals are
//! refused, receivers drain their sockets and end, channels run empty, consumers flush and end, the books are closed.
//!
//! # Stopping
//!
//! `SO_ATTACH_FILTER` with a program that refuses everything goes onto each socket first: what arrives from then on is
//! dropped by the kernel *and counted by it*, while what is queued stays readable. `shutdown` then wakes the receiver,
//! which drains until two looks find nothing. Without the filter a datagram that arrives between the last look and the
//! close would vanish without any counter.
//!
//! A filter and a `shutdown` stay with a socket for ever, so a socket that the next process goes on with gets neither,
//! and the filter that it has (`kernel_filter`) is taken away first. Its receiver is woken by a signal with an empty
//! handler, which costs nothing until it is sent (a poll beside each receive call would cost two calls for each time a
//! datagram wakes it), and is sent again until the receiver has ended. The receiver delivers what its ring has taken,
//! and reads no more. The descriptor store passes the sockets by name; what they are, the kernel is asked
//! (`inherited_sockets`).
//!
//! A process that takes over from one that runs gets the sockets over the control socket
//! (`udpd_endpoint::control::take_over` has the words). Both ends of a pipeline's life are in two steps for that:
//! `Prepared` makes memory, lanes and engines while another process still receives from the sockets, and
//! `Pipeline::leave` ends all threads while the sockets stay open. In between either of the two processes can go on,
//! the old one by a replacement of its own pipeline. One line, which one of them sends and the other reads, decides, so
//! never do both receive.
//!
//! # Denied in the kernel
//!
//! With `kernel_filter` an eBPF program at the socket refuses by source. The table is the one of
//! `udpd_inspect::policy`, the addresses at which the answer turns over, in an array of the kernel, and the program
//! halves its way through it as the receiver does, which looks again all the same. So a filter decides nothing alone,
//! and may be missing at any time.
//!
//! Only the books depend on it. The kernel counts what a filter refuses among the drops of the socket, so the program
//! counts as well, and before the kernel. Drops are read first and refusals second; the difference is then never more
//! than what else was dropped, and the highest difference is shown (`udpd_base::ledger`). The count belongs to the
//! socket, so a filter that takes the place of another counts on. Another process cannot see it: before it goes on with
//! the socket the filter is taken away, and every core that was inside it is waited for.
//!
//! Arrays and programs take a right, and what is done with them does not: tables are written and counts read as memory.
//! So in the sandbox the warden makes them empty, and never sees a network.

mod beside;
mod bind;
mod books;
mod bypass;
mod chronicle;
mod closing;
pub mod consumer;
mod end;
mod ending;
mod entry;
mod files;
mod filters;
mod follower;
mod following;
mod going_on;
mod handing_over;
mod heir;
pub mod kept;
mod lane;
mod left;
mod multicast;
pub mod outlet;
mod queues;
pub mod receiver;
mod refusals;
mod relief;
mod replace;
mod running;
mod sampling;
mod setup;
mod socket;
mod start;
pub mod stay;
mod stocks;
pub mod successor;
mod sweep;
mod wiring;
mod writes;

pub use books::{Drops, Look, Progress};
pub use chronicle::Chronicle;
pub use files::Files;
pub use heir::{Forerunner, Heir, Turn};
pub use kept::{Claims, FromRunning, Kept, KeptSocket};
pub use left::{Known, Left};
pub use queues::Queues;
pub use running::{Lane, Pinned, Pipeline};
pub use setup::LaneSetup;
pub use start::Prepared;
