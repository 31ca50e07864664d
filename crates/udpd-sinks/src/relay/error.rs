//! Why a relay could not be opened, and what to do.

use std::io;

use nix::errno::Errno;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::peer::PeerAddress;

/// An operation that a [`RelayError`] is about: it needs a right.
pub(super) const MAKE_RAW_SOCKET: &str = "make a raw socket";

/// Another: the address is one that can be sent to.
pub(super) const FIND_ROUTE: &str = "find a way";

/// Another: a thread that looks up a name.
pub(super) const START_LOOKUP: &str = "start a thread that looks up its name";

/// Why a relay could not be opened.
#[derive(Debug)]
pub(super) struct RelayError {
    pub(super) destination: PeerAddress,
    pub(super) operation: &'static str,
    pub(super) error: io::Error,
}

impl RelayError {
    /// The same as the end of a command.
    pub(super) fn of_sink(self, sink: &str) -> Failure {
        let Self { destination, operation, error } = self;
        let (code, cure) = match (operation, error.raw_os_error().map(Errno::from_raw)) {
            (MAKE_RAW_SOCKET, Some(Errno::EPERM | Errno::EACCES)) => {
                let cure = "; keep_source needs CAP_NET_RAW; in the unit file: AmbientCapabilities=CAP_NET_RAW and \
                            CapabilityBoundingSet=CAP_NET_RAW";
                (ExitCode::Permission, cure)
            }
            (FIND_ROUTE, Some(Errno::EACCES)) => {
                let cure = "; that is a broadcast address: name the hosts, or a group";
                (ExitCode::Configuration, cure)
            }
            (START_LOOKUP, _) => (ExitCode::Failure, "; see ulimit -u and the limits of its control group"),
            _ => (ExitCode::Unavailable, "; see `ip route get` for that address"),
        };
        Failure::new(code, format!("sink {sink}: cannot {operation} for {destination}: {error}{cure}"))
    }
}
