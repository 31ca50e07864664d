//! What a host should look like, decided from what it looks like, without any I/O. The same host and the same request
//! always give the same plan, also after the plan has been applied: so applying twice changes nothing.
//!
//! The terms: a plan has a part for each interface; that has a **seat** for each queue (the core of its interrupt, the
//! core of its receiver, and one sentence that says why), and a list of **wanted** settings in the order in which they
//! must be applied, because most drivers forget the later ones when the earlier ones change.

mod cores;
mod decide;
mod flows;
mod parts;
mod reasons;
mod seats;
#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

pub use parts::{
    Amount, BALANCE_FLOWS, DedicatedQueue, Dedication, InterfacePlan, Note, Placement, Plan, PlanError, QueueSeat,
    Request, RequestField, Shares, SpareSeat, Target, Wanted,
};
