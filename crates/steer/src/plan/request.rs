//! What is asked of a plan, and how a plan says which part of it cannot be.
//!
//! Nothing here knows how a program lets its users ask: a sentence that is about a part of the request carries that
//! part as a [`Wish`], and the program adds the name of its own option or key.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::ethtool::FlowHash;

/// What is asked of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// How many receive queues there shall be.
    pub rx_queues: Amount,
    /// How many descriptors each receive ring shall have.
    pub ring: Amount,
    /// What of a UDP datagram is hashed; `None` keeps it.
    pub flow_hash_udp: Option<FlowHash>,
    /// Which share of the flows each queue gets.
    pub indirection: Shares,
    /// How long a device may wait before it announces what it received; `None` keeps that as it is.
    pub coalesce: Option<Duration>,
    /// Datagrams that the device itself sends to queues of their own.
    pub dedicated: Vec<Dedication>,
    /// Where a receiver sits, seen from its queue's interrupt.
    pub placement: Placement,
    /// The cores to use, of those that are allowed; `None` is all of them.
    pub cores: Option<Vec<usize>>,
    /// How many receivers there are to feed, when that is not the number of queues.
    pub receivers: Option<usize>,
}

/// How many queues or descriptors to ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Amount {
    /// As many as there are.
    #[default]
    Keep,
    /// As many as the device can have.
    Max,
    /// So many.
    Number(u32),
}

/// Which share of the flows each queue gets by the indirection table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shares {
    /// All the same.
    #[default]
    Even,
    /// What the table gives them now, as long as the number of queues stays.
    Keep,
}

/// UDP datagrams that get queues of their own, which nothing else uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dedication {
    /// On this interface only; `None` is each that is planned for.
    pub interface: Option<String>,
    /// The port that they are sent to.
    pub port: u16,
    /// The addresses that they are sent to. An unspecified one (`0.0.0.0`, `::`) is every address of its family.
    pub addresses: Vec<IpAddr>,
    /// How many queues they get on each interface.
    pub queues: usize,
}

/// Where a receiver sits, seen from its queue's interrupt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placement {
    /// On another physical core of the same node.
    #[default]
    Adjacent,
    /// On the same core.
    SameCore,
}

/// A part of what is asked, for the sentences that are about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wish {
    /// Which interfaces to plan for.
    Interfaces,
    /// [`Request::rx_queues`].
    RxQueues,
    /// [`Request::ring`].
    Ring,
    /// [`Request::flow_hash_udp`].
    FlowHash,
    /// [`Request::indirection`].
    Indirection,
    /// [`Request::coalesce`].
    Coalesce,
    /// [`Request::dedicated`].
    Dedicated,
    /// [`Request::placement`].
    Placement,
    /// [`Request::cores`].
    Cores,
}

/// What the operator should know of a plan: what the host or the driver does not let happen, and what that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// One sentence for a person.
    pub text: String,
    /// The parts of the request that would change it; empty when nothing that can be asked does.
    pub wishes: Vec<Wish>,
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Why there is no plan: the host cannot be what the request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// What is in the way.
    pub what: String,
    /// What to do about it.
    pub cure: String,
    /// The parts of the request that would have to change.
    pub wishes: Vec<Wish>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.cure)
    }
}

impl std::error::Error for PlanError {}

/// The error that these parts of the request cannot be.
pub(super) fn refuse(wishes: &[Wish], what: String, cure: impl Into<String>) -> PlanError {
    PlanError { what, cure: cure.into(), wishes: wishes.to_vec() }
}
