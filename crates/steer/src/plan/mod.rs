//! What a host should look like, decided from what it looks like, without any I/O. The same host and the same wish
//! always give the same plan, also after the plan has been applied: so applying twice changes nothing.
//!
//! The terms: a plan has a part for each interface; that has a **seat** for each queue (the core of its interrupt, the
//! core of its receiver, and one sentence that says why), and a list of **wanted** settings in the order in which they
//! must be applied, because most drivers forget the later ones when the earlier ones change.

mod balance;
mod cores;
mod decide;
mod note;
mod parts;
mod party;
mod reasons;
mod request;
mod seated;
mod seats;
mod sending;
mod sharing;
mod show;
#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

pub use note::{Note, PlanError, Wish};
pub use parts::{BALANCE_FLOWS, DedicatedQueue, InterfacePlan, Plan, QueueSeat, SpareSeat, Target, Wanted};
pub use request::{Amount, Dedication, Placement, Request, Shares};
