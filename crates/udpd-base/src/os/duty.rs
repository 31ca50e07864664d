//! What a thread of the daemon is there for. A sandbox reads from it what the thread may still do.

use std::fmt;

/// The duty of a thread. What each may call stands in `sandbox/calls.rs`, what it may open in `commands/run/inside.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Duty {
    /// Nothing is taken from it: a thread of a command, or one that ends before the daemon is ready.
    Free,
    /// Something short for a thread that is in the sandbox already: it has what that one has.
    Errand,
    /// Receives from one socket.
    Receiver,
    /// Receives by io_uring, and makes its ring again for a new socket.
    RingReceiver,
    /// Receives from a receive queue past the kernel's stack.
    QueueReceiver,
    /// Follows the sequence numbers of a listener.
    Follower,
    /// A consumer that writes to what is open already, or to nothing.
    Writer,
    /// A consumer that connects to a Unix socket.
    UnixClient,
    /// A consumer that sends datagrams.
    Relay,
    /// A consumer that sends datagrams with the addresses of others.
    SourceKeepingRelay,
    /// A consumer that connects to a Unix socket, and has a spill.
    SpillingUnixClient,
    /// A consumer that sends datagrams, and has a spill.
    SpillingRelay,
    /// A consumer that sends datagrams with the addresses of others, and has a spill.
    SpillingSourceKeepingRelay,
    /// A consumer with a client library of its own, which looks up names, connects and has threads.
    BrokerClient,
    /// The same with a spill.
    SpillingBrokerClient,
    /// Looks up names of hosts.
    Resolver,
    /// Begins, finishes and removes files.
    Keeper,
    /// Compresses finished files.
    Compressor,
    /// Answers on the control socket, or for metrics.
    Window,
    /// Writes the log.
    Log,
    /// Waits for signals.
    Signals,
    /// Tells the service manager that all is well.
    Watchdog,
    /// Makes what a changed configuration needs: it has what any of the others has, and no right besides.
    Maker,
    /// The same where there is a sink with a client library of its own, or one that looks up names.
    BrokerMaker,
    /// Makes rings for a changed configuration, besides: where there is one at the start.
    RingMaker,
    /// The process beside the daemon that keeps rights for it.
    Warden,
    /// The same where the kernel refuses sources: it loads filters as well.
    FilterWarden,
    /// The main thread.
    Main,
}

impl Duty {
    /// Those that a sandbox knows.
    pub const CONFINED: [Self; 26] = [
        Self::Main,
        Self::Receiver,
        Self::RingReceiver,
        Self::QueueReceiver,
        Self::Follower,
        Self::Writer,
        Self::UnixClient,
        Self::Relay,
        Self::SourceKeepingRelay,
        Self::BrokerClient,
        Self::SpillingUnixClient,
        Self::SpillingRelay,
        Self::SpillingSourceKeepingRelay,
        Self::SpillingBrokerClient,
        Self::Resolver,
        Self::Keeper,
        Self::Compressor,
        Self::Window,
        Self::Log,
        Self::Signals,
        Self::Watchdog,
        Self::Maker,
        Self::BrokerMaker,
        Self::RingMaker,
        Self::Warden,
        Self::FilterWarden,
    ];
}

impl fmt::Display for Duty {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Free => "free",
            Self::Errand => "errand",
            Self::Receiver => "receiver",
            Self::RingReceiver => "receiver (io_uring)",
            Self::QueueReceiver => "receiver (af_xdp)",
            Self::Follower => "follower",
            Self::Writer => "consumer (file, stdout, null)",
            Self::UnixClient => "consumer (unix)",
            Self::Relay => "consumer (udp)",
            Self::SourceKeepingRelay => "consumer (udp, keep_source)",
            Self::BrokerClient => "consumer (kafka)",
            Self::SpillingUnixClient => "consumer (unix, spill)",
            Self::SpillingRelay => "consumer (udp, spill)",
            Self::SpillingSourceKeepingRelay => "consumer (udp, keep_source, spill)",
            Self::SpillingBrokerClient => "consumer (kafka, spill)",
            Self::Resolver => "lookup of names",
            Self::Keeper => "keeper of files",
            Self::Compressor => "compression of files",
            Self::Window => "control socket and metrics",
            Self::Log => "log",
            Self::Signals => "signals",
            Self::Watchdog => "watchdog",
            Self::Maker => "reload",
            Self::BrokerMaker => "reload (names, kafka)",
            Self::RingMaker => "reload (io_uring)",
            Self::Warden => "warden",
            Self::FilterWarden => "warden (filters)",
            Self::Main => "main",
        })
    }
}
