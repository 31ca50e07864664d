//! What the running daemon looks at besides datagrams: losses, sinks that take nothing and how each sink fares,
//! arrivals on wrong cores, other processes on its ports, interfaces that come back or drift from their plan, threads
//! that left their cores, and whether every thread still works. It tells the service manager how it goes. Nothing here
//! is on the way of a datagram.

pub mod listeners;
pub mod losses;
pub mod plan_drift;
pub mod port_sharing;
pub mod rate_limits;
pub mod readiness;
pub mod relay_loops;
pub mod sink_stalls;
pub mod sink_states;
pub mod status_line;
pub mod streams;
pub mod thread_cores;
pub mod wrong_cpu;
pub mod wrong_cpu_causes;
pub mod xdp_queues;
