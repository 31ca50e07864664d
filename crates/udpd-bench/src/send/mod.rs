//! `udpd bench send`: numbered, timed datagrams at a rate that is kept, and a report of what was really sent.

mod command;
mod frame_run;
mod frames;
mod link;
mod load;
mod report;
mod run;
mod worker;

pub use command::{Arguments, execute};
pub use frame_run::run_frames;
pub use frames::{Engine, FrameLoad};
pub(super) use frames::{benchmark_networks, parse_mix};
pub(super) use link::{Link, Mac};
pub use load::{FLOWS_MAX, Load, MESSAGES_PER_CALL};
pub use report::{InterfaceSent, Lateness, Report, Second};
pub use run::run;
pub use worker::FlowSent;
