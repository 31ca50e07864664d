//! What is asked of a plan. Nothing here knows how a program lets its users ask.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::parts::QueueSeat;
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
    /// How many receivers each interface feeds, by its name, where that is not one for each queue.
    pub receivers: BTreeMap<String, usize>,
    /// The seats that running receivers have, by the name of the interface that feeds them: those of its queues, and
    /// behind them those of receivers beyond the queues ([`InterfacePlan::all_seats`](super::InterfacePlan)). The plan
    /// takes them as they are and puts interrupts to suit; the number of receivers is theirs.
    pub seated: BTreeMap<String, Vec<QueueSeat>>,
    /// Cores where receivers and interrupts of others sit: used only when nothing else is free.
    pub taken: Vec<usize>,
}

impl Request {
    /// The wait as a device is told it, rounded up: 0 would mean an interrupt for every datagram.
    pub(crate) fn coalesce_usecs(&self) -> Option<u32> {
        self.coalesce.map(|wait| u32::try_from(wait.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX))
    }
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
    /// Where they are sent to. An unspecified address (`0.0.0.0`, `::`) is every address of its family.
    pub destinations: Vec<SocketAddr>,
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
    /// On any core of the device's node: the scheduler picks, and interrupts spread over the node.
    Node,
}
