//! How a relay sends: to which of its destinations, and how those learn who sent a datagram.

use std::time::Duration;

use ipnet::IpNet;

use udpd_base::text::peer::PeerAddress;

/// Which destination gets a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribute {
    #[default]
    All,
    /// One, always the same for a source address.
    BySource,
    /// The first that works.
    Failover,
}

/// As they are written.
pub(super) const DISTRIBUTIONS: &[(&str, Distribute)] =
    &[("all", Distribute::All), ("by_source", Distribute::BySource), ("failover", Distribute::Failover)];

/// How the destination learns who sent a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepSource {
    /// Not at all.
    #[default]
    No,
    /// It is sent with that address.
    Address,
    /// It begins with a header of the PROXY protocol.
    Header,
}

impl KeepSource {
    pub(super) fn flag(keeps: bool) -> Self {
        if keeps { KeepSource::Address } else { KeepSource::No }
    }
}

/// Where the datagrams of one network go instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub source: IpNet,
    /// At least one.
    pub to: Vec<PeerAddress>,
}

/// What one sink does.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelayMode {
    /// What the kernel does not take at once fails.
    pub(super) never_waits: bool,
    pub(super) distribute: Distribute,
    /// With [`Distribute::Failover`], after how long one that has failed is tried.
    pub(super) probe_every: Duration,
    pub(super) keep_source: KeepSource,
}
