//! What a thread of the daemon is for. The sandbox derives from it what the thread may still do.

use std::fmt;

/// What a thread does; a thread may have several roles. `udpd-sandbox/src/system_calls.rs` says what each may call, and
/// `run/sandbox_setup.rs` of the daemon what it may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadRole {
    /// Keeps everything: a thread of a command, or one that ends before the daemon is ready.
    Unconfined,
    /// Something short, started by a thread in the sandbox: it has what that thread has.
    ShortLived,
    /// Receives from one socket.
    Receiver,
    /// Receives by io_uring, and makes its ring again for a new socket.
    RingReceiver,
    /// Receives from a queue of the card by AF_XDP, past the kernel's stack.
    XdpReceiver,
    /// Follows the sequence numbers of a listener.
    SequenceFollower,
    /// A consumer that writes to what is open already, or to nothing.
    Writer,
    /// A consumer that connects to a Unix socket.
    UnixClient,
    /// A consumer that sends datagrams.
    Relay,
    /// A relay that sends with the addresses of the senders, from raw sockets.
    SourceKeeper,
    /// A consumer with a client library of its own, which looks up names, connects and has threads.
    BrokerClient,
    /// A consumer that writes to disk what its destination does not take yet.
    Spill,
    /// Looks up names of hosts.
    Resolver,
    /// Creates, finishes and removes files.
    FileKeeper,
    /// Compresses finished files.
    Compressor,
    /// Answers on the control socket, or for metrics.
    Endpoint,
    /// Writes the log.
    Log,
    /// Waits for signals.
    Signals,
    /// Tells the service manager that all is well.
    Watchdog,
    /// Makes what a changed configuration needs. It may do what any of its threads may, and has no capability.
    Reloader,
    /// The same where a sink has a client library of its own, or looks up names.
    BrokerReloader,
    /// Makes io_uring rings for a changed configuration, where there is such a listener at the start.
    RingReloader,
    /// The process beside the daemon that keeps capabilities for it.
    PrivilegeHelper,
    /// The same where the kernel refuses sources: it also loads filters.
    FilterHelper,
    /// The main thread.
    Main,
}

impl ThreadRole {
    /// Those that a sandbox knows.
    pub const CONFINED: [Self; 23] = [
        Self::Main,
        Self::Receiver,
        Self::RingReceiver,
        Self::XdpReceiver,
        Self::SequenceFollower,
        Self::Writer,
        Self::UnixClient,
        Self::Relay,
        Self::SourceKeeper,
        Self::BrokerClient,
        Self::Spill,
        Self::Resolver,
        Self::FileKeeper,
        Self::Compressor,
        Self::Endpoint,
        Self::Log,
        Self::Signals,
        Self::Watchdog,
        Self::Reloader,
        Self::BrokerReloader,
        Self::RingReloader,
        Self::PrivilegeHelper,
        Self::FilterHelper,
    ];
}

/// Most threads have one role.
impl From<ThreadRole> for Vec<ThreadRole> {
    fn from(role: ThreadRole) -> Self {
        vec![role]
    }
}

impl fmt::Display for ThreadRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Unconfined => "unconfined",
            Self::ShortLived => "short-lived",
            Self::Receiver => "receiver",
            Self::RingReceiver => "receiver (io_uring)",
            Self::XdpReceiver => "receiver (af_xdp)",
            Self::SequenceFollower => "follower",
            Self::Writer => "consumer (file, stdout, null)",
            Self::UnixClient => "consumer (unix)",
            Self::Relay => "consumer (udp)",
            Self::SourceKeeper => "consumer (udp, keep_source), besides",
            Self::BrokerClient => "consumer (kafka)",
            Self::Spill => "consumer with a spill, besides",
            Self::Resolver => "lookup of names",
            Self::FileKeeper => "keeper of files",
            Self::Compressor => "compression of files",
            Self::Endpoint => "control socket and metrics",
            Self::Log => "log",
            Self::Signals => "signals",
            Self::Watchdog => "watchdog",
            Self::Reloader => "reload",
            Self::BrokerReloader => "reload (names, kafka)",
            Self::RingReloader => "reload (io_uring)",
            Self::PrivilegeHelper => "warden",
            Self::FilterHelper => "warden (filters)",
            Self::Main => "main",
        })
    }
}
