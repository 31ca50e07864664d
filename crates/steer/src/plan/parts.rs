//! What a plan consists of, as plain data: an [`InterfacePlan`] for each interface, with a seat for each queue and a
//! list of settings.

use super::request::Note;
use crate::ethtool::{Channels, Family, FlowHash, Rings};

/// For how many flows a plan tells the balance that is to be expected.
pub const BALANCE_FLOWS: usize = 64;

/// What a host should look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// One part for each interface, in the order of the host's.
    pub interfaces: Vec<InterfacePlan>,
}

/// What one interface should look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfacePlan {
    /// The name of the interface.
    pub name: String,
    /// The name of its driver; "?" when unknown.
    pub driver: String,
    /// The memory node of its device, when known.
    pub node: Option<usize>,
    /// One seat for each queue, in order.
    pub seats: Vec<QueueSeat>,
    /// The queues that datagrams of [`Request::dedicated`](super::Request::dedicated) have for themselves.
    pub dedicated: Vec<DedicatedQueue>,
    /// Every setting the plan depends on, in the order of application, whether it holds already or not.
    pub wanted: Vec<Wanted>,
    /// What the operator should know.
    pub notes: Vec<Note>,
    /// The share of the busiest receiver that is to be expected of [`BALANCE_FLOWS`] flows, in thousandths.
    pub busiest_share_thousandths: u32,
}

/// A queue that some datagrams have for themselves: the device sends them there, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedicatedQueue {
    /// The number of the queue, from 0.
    pub queue: usize,
    /// Whose it is: the place in [`Request::dedicated`](super::Request::dedicated).
    pub dedication: usize,
}

/// Where one queue's work goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSeat {
    /// The number of the queue, from 0.
    pub queue: usize,
    /// The core of its interrupt; `None` when that cannot be chosen.
    pub interrupt_core: Option<usize>,
    /// The core of its receiver.
    pub receiver_core: usize,
    /// The memory node of the receiver's core.
    pub node: Option<usize>,
    /// Why these cores, in one sentence.
    pub why: String,
}

impl QueueSeat {
    /// Where the queue's datagrams are processed once the plan is applied.
    pub fn arrival_core(&self) -> usize {
        self.interrupt_core.unwrap_or(self.receiver_core)
    }
}

/// One setting and the value it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The setting with the value that it should have.
    pub target: Target,
    /// Why, in one sentence.
    pub why: String,
    /// What changing it costs on this driver; `None` when nothing.
    pub disruption: Option<String>,
}

/// A setting with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// How many queues there are of each kind.
    Channels(Channels),
    /// How many descriptors the receive ring has.
    Ring(Rings),
    /// The queue for each value of the hash.
    Indirection(Vec<u32>),
    /// Which fields of a UDP datagram are hashed.
    FlowHash(Family, FlowHash),
    /// The cores of a queue's interrupt.
    Interrupt {
        /// The number of the queue.
        queue: usize,
        /// The cores that it may fire on.
        cores: Vec<usize>,
    },
    /// The cores to which RPS hands a queue's datagrams on.
    Rps {
        /// The number of the queue.
        queue: usize,
        /// The cores that process its datagrams.
        cores: Vec<usize>,
    },
}
