//! What the running daemon looks at besides datagrams: losses, sinks that take nothing, arrivals on wrong cores, the
//! port's other owners, interfaces that come back or drift from their plan, threads that left their cores, and whether
//! every thread still works. It tells the service manager how it goes. Nothing here is on the way of a datagram.

pub mod arrivals;
pub mod causes;
pub mod cores;
pub mod drift;
pub mod loops;
pub mod losses;
pub mod offences;
pub mod queues;
pub mod sharing;
pub mod stalls;
pub mod status;
pub mod upkeep;
