//! How a plan says what cannot be, and which part of the request would change it: a sentence that is about a part of
//! the request carries that part as a [`Wish`], and the program adds the name of its own option or key.

use std::fmt;

/// A part of what is asked, for the sentences that are about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wish {
    /// Which interfaces to plan for.
    Interfaces,
    /// [`Request::rx_queues`](super::Request::rx_queues).
    RxQueues,
    /// [`Request::ring`](super::Request::ring).
    Ring,
    /// [`Request::flow_hash_udp`](super::Request::flow_hash_udp).
    FlowHash,
    /// [`Request::indirection`](super::Request::indirection).
    Indirection,
    /// [`Request::coalesce`](super::Request::coalesce).
    Coalesce,
    /// [`Request::dedicated`](super::Request::dedicated).
    Dedicated,
    /// [`Request::placement`](super::Request::placement).
    Placement,
    /// [`Request::cores`](super::Request::cores).
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
