//! What a plan consists of, as plain data: an [`InterfacePlan`] for each interface, with a seat for each queue and a
//! list of settings.

use super::note::Note;
use crate::ethtool::{Channels, Coalescing, Family, FlowHash, Rings, Rule};

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
    /// The seats of receivers beyond the number of queues, in order.
    pub spare_seats: Vec<SpareSeat>,
    /// The queues that datagrams of [`Request::dedicated`](super::Request::dedicated) have for themselves.
    pub dedicated: Vec<DedicatedQueue>,
    /// Every setting the plan depends on, in the order of application, whether it holds already or not.
    pub wanted: Vec<Wanted>,
    /// What the operator should know.
    pub notes: Vec<Note>,
    /// The share of the busiest receiver that is to be expected of [`BALANCE_FLOWS`] flows, in thousandths.
    pub busiest_share_thousandths: u32,
}

impl InterfacePlan {
    /// The seats of its queues, and behind them the spare ones as if each belonged to a queue of the next number: what
    /// a program tells of its receivers, for [`Request::seated`](super::Request).
    pub fn all_seats(&self) -> Vec<QueueSeat> {
        let spare = self.spare_seats.iter().zip(self.seats.len()..).map(|(spare, queue)| QueueSeat {
            queue,
            receiver: spare.receiver,
            interrupt_core: None,
            receiver_core: spare.core,
            receiver_cores: spare.cores.clone(),
            rps_cores: spare.is_fed_by_rps.then_some(spare.core).into_iter().collect(),
            node: spare.node,
            why: spare.why.clone(),
        });
        self.seats.iter().cloned().chain(spare).collect()
    }
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
    /// The number of the receiver that it belongs to, from 0: with fewer receivers than queues they take turns.
    pub receiver: usize,
    /// The core of its interrupt; `None` when that cannot be chosen.
    pub interrupt_core: Option<usize>,
    /// The core of its receiver; where that may run on several, the one on whose node its memory belongs.
    pub receiver_core: usize,
    /// The cores that its receiver may run on: its core alone, or all of the node
    /// ([`Placement::Node`](super::Placement)).
    pub receiver_cores: Vec<usize>,
    /// The cores to which RPS hands its datagrams on after the interrupt: its own receiver's among them, unless that
    /// core is isolated. Empty without RPS.
    pub rps_cores: Vec<usize>,
    /// The memory node of the receiver's core.
    pub node: Option<usize>,
    /// Why these cores, in one sentence.
    pub why: String,
}

impl QueueSeat {
    /// Where the datagrams of its receiver are processed once the plan is applied: where the interrupt fires, or with
    /// RPS on the receiver's own core. `None` when nobody can say, or when RPS cannot bring any to that core.
    pub fn arrival_core(&self) -> Option<usize> {
        match self.rps_cores.as_slice() {
            [] => self.interrupt_core,
            fed => fed.contains(&self.receiver_core).then_some(self.receiver_core),
        }
    }

    /// Where the datagrams of the queue are processed once the plan is applied; empty when nobody can say.
    pub fn cores_of_queue(&self) -> &[usize] {
        if self.rps_cores.is_empty() { self.interrupt_core.as_slice() } else { &self.rps_cores }
    }
}

/// Where a receiver sits that no queue is left for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpareSeat {
    /// The number of the receiver, from 0: behind those of the queues.
    pub receiver: usize,
    /// Its core; where it may run on several, the one on whose node its memory belongs.
    pub core: usize,
    /// The cores that it may run on: its core alone, or all of the node ([`Placement::Node`](super::Placement)).
    pub cores: Vec<usize>,
    /// True when RPS hands datagrams on to its core; nothing else brings any there.
    pub is_fed_by_rps: bool,
    /// The memory node of its core.
    pub node: Option<usize>,
    /// Why this core, in one sentence.
    pub why: String,
}

impl SpareSeat {
    /// Where its datagrams are processed once the plan is applied; `None` when nothing brings any to it in particular.
    pub fn arrival_core(&self) -> Option<usize> {
        self.is_fed_by_rps.then_some(self.core)
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
    /// How long the device waits before it announces what it received.
    Coalescing(Coalescing),
    /// Whether the device sorts datagrams by rules.
    Ntuple(bool),
    /// A rule by which it does.
    Rule(Rule),
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
    /// The cores that send through a send queue.
    Xps {
        /// The number of the send queue.
        queue: usize,
        /// The cores; none leaves it to the kernel's hash.
        cores: Vec<usize>,
    },
}

impl Target {
    /// True for RPS that shall be off, as it is unless somebody has turned it on.
    pub(crate) fn is_rps_off(&self) -> bool {
        matches!(self, Self::Rps { cores, .. } if cores.is_empty())
    }
}
