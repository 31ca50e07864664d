//! What a thread of the daemon is for. The sandbox derives from it what the thread may still do.

use std::fmt;

/// Declares the roles, one line each: what it is, its name, and what it is called in texts.
macro_rules! roles {
    (
        outside { $($(#[doc = $outside_help:literal])+ $outside:ident = $outside_name:literal;)+ }
        confined { $($(#[doc = $help:literal])+ $role:ident = $name:literal;)+ }
    ) => {
        /// What a thread does; a thread may have several roles. `udpd-sandbox/src/system_calls.rs` says what each may
        /// call, and `run/sandbox_setup.rs` of the daemon what it may open.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ThreadRole {
            $($(#[doc = $outside_help])+ $outside,)+
            $($(#[doc = $help])+ $role,)+
        }

        impl ThreadRole {
            /// Those that a sandbox knows.
            pub const CONFINED: [Self; [$(Self::$role),+].len()] = [$(Self::$role),+];
        }

        impl fmt::Display for ThreadRole {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(match self {
                    $(Self::$outside => $outside_name,)+
                    $(Self::$role => $name,)+
                })
            }
        }
    };
}

roles! {
    outside {
        /// Keeps everything: a thread of a command, or one that ends before the daemon is ready.
        Unconfined = "unconfined";
        /// Something short, started by a thread in the sandbox: it has what that thread has.
        ShortLived = "short-lived";
    }
    confined {
        /// The main thread.
        Main = "main";
        /// Receives from one socket.
        Receiver = "receiver";
        /// Receives by io_uring, and makes its ring again for a new socket.
        RingReceiver = "receiver (io_uring)";
        /// Receives from a queue of the card by AF_XDP, past the kernel's stack.
        XdpReceiver = "receiver (af_xdp)";
        /// Follows the sequence numbers of a listener.
        SequenceFollower = "follower";
        /// A consumer that writes to what is open already, or to nothing.
        Writer = "consumer (file, stdout, null)";
        /// A consumer that connects to a Unix socket.
        UnixClient = "consumer (unix)";
        /// A consumer that writes streams to other hosts.
        TcpClient = "consumer (tcp)";
        /// A consumer that sends requests to other hosts, and each of its connections: it reads tokens again.
        HttpClient = "consumer (http)";
        /// A consumer that sends datagrams.
        Relay = "consumer (udp)";
        /// A relay that sends with the addresses of the senders, from raw sockets.
        SourceKeeper = "consumer (udp, keep_source), besides";
        /// A consumer with a client library of its own, which looks up names, connects and has threads.
        BrokerClient = "consumer (kafka)";
        /// A consumer that writes to disk what its destination does not take yet.
        Spill = "consumer with a spill, besides";
        /// Looks up names of hosts.
        Resolver = "lookup of names";
        /// Creates, finishes and removes files.
        FileKeeper = "keeper of files";
        /// Compresses finished files.
        Compressor = "compression of files";
        /// Brings finished files to a server.
        Uploader = "upload of files";
        /// Answers on the control socket, or for metrics.
        Endpoint = "control socket and metrics";
        /// Tells balancers whether to send here.
        Health = "health";
        /// Writes the days of the page to the file that is open.
        HistoryWriter = "days of the page";
        /// Writes the log.
        Log = "log";
        /// Waits for signals.
        Signals = "signals";
        /// Tells the service manager that all is well.
        Watchdog = "watchdog";
        /// Makes what a changed configuration needs. It may do what any of its threads may, and has no capability.
        Reloader = "reload";
        /// The same where a sink has a client library of its own, or looks up names.
        BrokerReloader = "reload (names, kafka)";
        /// Makes io_uring rings for a changed configuration, where there is such a listener at the start.
        RingReloader = "reload (io_uring)";
        /// The process beside the daemon that keeps capabilities for it.
        PrivilegeHelper = "warden";
        /// The same where the kernel refuses sources: it also loads filters.
        FilterHelper = "warden (filters)";
        /// The same where it also puts service addresses on an interface, by a socket that is open.
        Announcer = "warden (announce), besides";
    }
}

/// Most threads have one role.
impl From<ThreadRole> for Vec<ThreadRole> {
    fn from(role: ThreadRole) -> Self {
        vec![role]
    }
}
