//! What a key means when it is not written: what a careful operator would choose.
//!
//! `config/udpd.toml` shows the same values, and a test compares the two.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::{
    Absorb, Access, Chosen, Consumers, Daemon, Engine, Lanes, Listener, Multicast, OnTruncate, ReceiveBuffer, Rotate,
    Sink, SinkKind, Spread, SyncPolicy, Timestamps, WhenFull,
};
use crate::logging::LogFormat;

/// Where the daemon of a packaged installation answers, and where `udpd stats` asks first.
pub const CONTROL_SOCKET: &str = "/run/udpd/control.sock";

/// The Prometheus endpoint: on loopback, because the numbers are nobody else's business until the operator says so.
pub const METRICS_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9817);

/// The control socket of this process, when the file does not name one.
///
/// Under systemd that is the directory the unit was given; for root the directory under /run; for an ordinary user the
/// runtime directory of the login. Without any of them there is no place that nobody else can write to, hence no
/// socket.
pub fn control_socket() -> Option<PathBuf> {
    let directory = |variable: &str| {
        let value = std::env::var_os(variable)?;
        // systemd separates several directories with colons; the first is the one of the unit's own name.
        let first = value.to_str()?.split(':').next()?.to_owned();
        first.starts_with('/').then(|| PathBuf::from(first))
    };
    if let Some(own) = directory("RUNTIME_DIRECTORY") {
        return Some(own.join("control.sock"));
    }
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from(CONTROL_SOCKET));
    }
    directory("XDG_RUNTIME_DIR").map(|directory| directory.join("udpd/control.sock"))
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            control_socket: Chosen { value: control_socket(), written: false },
            metrics_address: Chosen { value: Some(METRICS_ADDRESS), written: false },
            log_level: log::LevelFilter::Info,
            log_format: LogFormat::Text,
            stats_on_exit: None,
        }
    }
}

impl Listener {
    /// A listener of which only the name and the addresses are written. It feeds no sink yet.
    pub fn new(name: impl Into<String>, addresses: Vec<SocketAddr>) -> Self {
        Self {
            name: name.into(),
            addresses,
            interface: None,
            lanes: Lanes::Auto,
            spread: Spread::Flow,
            engine: Engine::Auto,
            share_port: false,
            gro: false,
            batch_size: 64,
            max_length_bytes: 2048,
            on_truncate: OnTruncate::Keep,
            gather: Duration::ZERO,
            receive_buffer: ReceiveBuffer::Auto,
            absorb: Absorb::default(),
            busy_poll: Duration::ZERO,
            timestamps: Timestamps::Auto,
            multicast: Multicast::default(),
            access: Access::default(),
            rate_limit: None,
            sinks: Vec::new(),
        }
    }
}

impl Default for Absorb {
    fn default() -> Self {
        Self { rate: 200_000, stall: Duration::from_millis(250) }
    }
}

impl Default for SyncPolicy {
    fn default() -> Self {
        Self::Every(Duration::from_secs(1))
    }
}

impl Default for Rotate {
    fn default() -> Self {
        Self { bytes: 1 << 30, every: Duration::from_secs(3600) }
    }
}

impl Rotate {
    /// One file for ever.
    pub const NEVER: Self = Self { bytes: 0, every: Duration::ZERO };
}

impl Sink {
    /// A sink of which only the name and the type are written.
    pub fn new(name: impl Into<String>, kind: SinkKind) -> Self {
        Self {
            name: name.into(),
            kind,
            consumers: Consumers::Count(NonZeroUsize::MIN),
            queue_batches: 256,
            when_full: WhenFull::DropNewest,
        }
    }
}
