//! The pipeline: wires lanes to consumers and takes them apart again.
//!
//! Starting goes from the outside in: lanes are made on their cores, sinks are opened, sockets are bound in order, and
//! only then does anything run; whatever fails leaves nothing behind. Stopping goes the way of a datagram: arrivals are
//! refused, receivers drain their sockets and end, channels run empty, consumers flush and end, the ledger is closed.
//!
//! # The life of a pipeline
//!
//! ```text
//!  SocketAssignment --> PreparedPipeline ----- commit -----> Pipeline --- stop ---> the last ledger
//!                                                            |    ^
//!                                             reload_context |    | hand_over_to
//!                                                            v    |
//!  cancelled <--- CommitFlag (open) ---> committed ---> ReplacementPipeline
//!                                                                 |
//!                     the pipeline that was replaced ---> DrainingPipeline ---> closed
//! ```
//!
//! Each state is a type, and each step takes the value of the state before, so no step can be made twice or out of
//! order. The one race, a reload that is committed or cancelled, is decided by [`CommitFlag`].
//!
//! A pipeline may begin on sockets that exist: those that the service manager kept, those of a process that it takes
//! over from, and those of the pipeline that a reload replaces (also where only an interface has come back). In each
//! case a [`SocketAssignment`] says which lane adopts which socket, and `build` makes the rest.
//!
//! # Stopping
//!
//! `SO_ATTACH_FILTER` with a program that refuses everything goes onto each socket first: what arrives from then on is
//! dropped by the kernel *and counted by it*, while what is queued stays readable. `shutdown` then wakes the receiver,
//! which drains until two looks find nothing. Without the filter a datagram that arrives between the last look and the
//! close would vanish without any counter.
//!
//! A filter and a `shutdown` stay with a socket for ever, so a socket that the next process adopts gets neither,
//! and the filter that it has (`kernel_filter`) is taken away first. Its receiver is woken by a signal with an empty
//! handler, which costs nothing until it is sent (a poll beside each receive call would cost two calls for each time a
//! datagram wakes it), and is sent again until the receiver has ended. The receiver delivers what its ring has taken,
//! and reads no more. The descriptor store passes the sockets by name; what they are, the kernel is asked
//! (`inherited_sockets`).
//!
//! A process that takes over from one that runs gets the sockets over the control socket
//! (`udpd_endpoint::control::take_over` has the protocol). Both ends of a pipeline's life are in two steps for that:
//! [`PreparedPipeline`] makes memory, lanes and engines while another process still receives from the sockets, and
//! [`Pipeline::suspend`] ends all threads while the sockets stay open. In between either of the two processes can go
//! on, the old one by a replacement of its own pipeline. One line, which one of them sends and the other reads,
//! decides, so never do both receive.
//!
//! # Denied in the kernel
//!
//! With `kernel_filter` an eBPF program at the socket refuses by source. It searches the table of
//! `udpd_inspect::policy` (the addresses at which the answer changes) in an array of the kernel, by bisection as the
//! receiver does, which checks again all the same. So a filter decides nothing alone, and may be missing at any time.
//!
//! Only the ledger depends on it. The kernel counts what a filter refuses among the drops of the socket, so the program
//! counts as well, and before the kernel. Drops are read first and refusals second; the difference is then never more
//! than what else was dropped, and the highest difference is shown (`udpd_base::ledger`). The count belongs to the
//! socket, so a filter that takes the place of another counts on. Another process cannot see it: before it adopts
//! the socket the filter is taken away, and every core that was inside it is waited for.
//!
//! Making arrays and programs takes a right, and using them does not: tables are written and counts read as memory. So
//! in the sandbox a helper process makes them empty, and never sees a network.

mod adopt_sockets;
mod bind;
mod block_pools;
mod build;
mod consumer;
mod consumer_handoff;
mod cumulative_ledger;
mod discarded_sockets;
mod draining;
mod inherited_sockets;
mod kernel_filters;
mod lane;
mod lane_setup;
mod latency_sampling;
mod multicast;
mod outlet;
mod pipeline_ledger;
mod previous_process;
mod receiver;
mod reload_context;
mod reload_handover;
mod running;
mod sequence_followers;
mod sink_files;
mod socket;
mod start_gate;
mod stop;
mod wiring;
mod xdp_programs;

#[cfg(test)]
mod simulation_tests;

pub use build::{PreparedPipeline, ReplacementPipeline};
pub use cumulative_ledger::CumulativeLedger;
pub use inherited_sockets::{InheritedSocket, InheritedSockets, SocketAssignment, TakeOverAssignment};
pub use lane_setup::LaneSetup;
pub use pipeline_ledger::{Drops, LedgerPosition, Progress};
pub use previous_process::{OrphanSockets, PreviousCounts};
pub use receiver::StopSignal;
pub use reload_context::{CommitFlag, ReloadContext};
pub use running::{Lane, Pinned, Pipeline, XdpQueues};
pub use sink_files::SinkFiles;
