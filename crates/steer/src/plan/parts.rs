//! What is asked of a plan and what it consists of, as plain data: an [`InterfacePlan`] for each interface, with a seat
//! for each queue and a list of settings.
//!
//! A plan also says what cannot be. Such a sentence names the [`RequestField`] that would change it, and the program
//! adds the name of its own option or key: nothing here knows how a program lets its users ask.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::corelist::format_core_list;
use crate::ethtool::{Channels, Coalescing, Family, FlowHash, Rings, Rule};
use crate::model::Known;

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
    /// The queues that datagrams of [`Request::dedicated`] have for themselves.
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
    /// a program tells of its receivers, for [`Request::seated`].
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
    /// Whose it is: the place in [`Request::dedicated`].
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
    /// The cores that its receiver may run on: its core alone, or all of the node ([`Placement::Node`]).
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
    /// RPS on the receiver's own core. `None` when that is unknown, or when RPS cannot bring any to that core.
    pub fn arrival_core(&self) -> Option<usize> {
        match self.rps_cores.as_slice() {
            [] => self.interrupt_core,
            fed => fed.contains(&self.receiver_core).then_some(self.receiver_core),
        }
    }

    /// Where the datagrams of the queue are processed once the plan is applied; empty when that is unknown.
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
    /// The cores that it may run on: its core alone, or all of the node ([`Placement::Node`]).
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
    /// True for RPS that shall be off, as it is on most hosts already.
    pub(crate) fn is_rps_off(&self) -> bool {
        matches!(self, Self::Rps { cores, .. } if cores.is_empty())
    }
}

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
    /// behind them those of receivers beyond the queues ([`InterfacePlan::all_seats`]). The plan takes them as they are
    /// and puts interrupts to suit; the number of receivers is theirs.
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

impl Dedication {
    pub(crate) fn is_for(&self, interface: &str) -> bool {
        self.interface.as_ref().is_none_or(|name| name == interface)
    }
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

/// A part of what is asked, for the sentences that are about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestField {
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
    pub fields: Vec<RequestField>,
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
    pub fields: Vec<RequestField>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.cure)
    }
}

impl std::error::Error for PlanError {}

/// Why nothing was planned for `what`.
pub(super) fn why_not<T>(known: &Known<T>, what: &str) -> String {
    match known {
        Known::Is(_) | Known::NotSupported => format!("the driver does not support {what}"),
        Known::Unknown(reason) => format!("whether the driver supports {what} is unknown: {reason}"),
    }
}

/// The error that these parts of the request cannot be.
pub(super) fn refuse(fields: &[RequestField], what: String, cure: impl Into<String>) -> PlanError {
    PlanError { what, cure: cure.into(), fields: fields.to_vec() }
}

// A plan as a table that a person reads before anything is done.

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, interface) in self.interfaces.iter().enumerate() {
            if number > 0 {
                writeln!(formatter)?;
            }
            interface.fmt(formatter)?;
        }
        Ok(())
    }
}

impl fmt::Display for InterfacePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node.map_or("unknown".to_owned(), |node| node.to_string());
        writeln!(formatter, "{}: driver {}, node {node}, queues {}", self.name, self.driver, self.seats.len())?;
        writeln!(formatter, "  queue  interrupt core  receiver core  node  why")?;
        for seat in &self.seats {
            let core = |core: Option<usize>| core.map_or("-".to_owned(), |core| core.to_string());
            writeln!(
                formatter,
                "  {:>5}  {:>14}  {:>13}  {:>4}  {}",
                seat.queue,
                core(seat.interrupt_core),
                format_core_list(&seat.receiver_cores),
                core(seat.node),
                seat.why
            )?;
        }
        for spare in &self.spare_seats {
            let node = spare.node.map_or("-".to_owned(), |node| node.to_string());
            let cores = format_core_list(&spare.cores);
            writeln!(formatter, "  {:>5}  {:>14}  {cores:>13}  {node:>4}  {}", "-", "-", spare.why)?;
        }
        for wanted in self.wanted.iter().filter(|wanted| !wanted.target.is_rps_off()) {
            let cost = wanted.disruption.as_deref().map_or(String::new(), |cost| format!(" [{cost}]"));
            writeln!(formatter, "  wanted: {}, because {}{cost}", wanted.target, wanted.why)?;
        }
        // One line for all of them: on most hosts it is off already.
        if self.wanted.iter().any(|wanted| wanted.target.is_rps_off()) {
            writeln!(
                formatter,
                "  wanted: RPS off, because the interrupts alone decide where datagrams are processed"
            )?;
        }
        for note in &self.notes {
            writeln!(formatter, "  note: {note}")?;
        }
        let share = f64::from(self.busiest_share_thousandths) / 10.0;
        writeln!(
            formatter,
            "  balance: of {BALANCE_FLOWS} equal flows the busiest receiver gets {share:.1} % on average"
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channels(channels) if channels.combined_max > 0 => {
                write!(formatter, "combined channels {}", channels.combined)
            }
            Self::Channels(channels) => write!(formatter, "rx channels {}", channels.rx),
            Self::Ring(rings) => write!(formatter, "rx ring {}", rings.rx),
            Self::Indirection(table) => {
                let queues = table.iter().max().map_or(0, |highest| highest + 1);
                write!(formatter, "indirection table of {} entries over {queues} queues", table.len())
            }
            Self::Coalescing(coalescing) => write!(formatter, "an interrupt after {} us", coalescing.rx_usecs),
            Self::Ntuple(on) => write!(formatter, "sorting by rules (ntuple) {}", if *on { "on" } else { "off" }),
            Self::Rule(Rule { family, destination, port, queue }) => {
                let address = destination.map_or(String::new(), |address| format!(" at {address}"));
                write!(formatter, "a rule that sends UDP over {family} to port {port}{address} to queue {queue}")
            }
            Self::FlowHash(family, hash) => write!(formatter, "hash of UDP over {family} {:?}", hash.letters()),
            Self::Interrupt { queue, cores } => {
                write!(formatter, "interrupt of queue {queue} on core {}", format_core_list(cores))
            }
            Self::Rps { queue, cores } if cores.is_empty() => write!(formatter, "RPS of queue {queue} off"),
            Self::Rps { queue, cores } => {
                write!(formatter, "RPS of queue {queue} to cores {}", format_core_list(cores))
            }
            Self::Xps { queue, cores } if cores.is_empty() => {
                write!(formatter, "XPS of send queue {queue} for no core")
            }
            Self::Xps { queue, cores } => {
                let noun = if cores.len() == 1 { "core" } else { "cores" };
                write!(formatter, "XPS of send queue {queue} for {noun} {}", format_core_list(cores))
            }
        }
    }
}
