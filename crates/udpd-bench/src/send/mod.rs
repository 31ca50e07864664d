//! `udpd bench send`: numbered, timed datagrams at a rate that is kept, and a report of what was really sent.

mod command;
mod frames;
mod link;
mod load;
mod report;
mod run;

pub use command::{SendArguments, execute};
pub use frames::run_frames;
pub use frames::{FrameLoad, SendEngine};
pub(super) use frames::{benchmark_networks, parse_mix};
pub(super) use link::{LinkInfo, Mac};
pub use load::{FLOWS_MAX, MESSAGES_PER_CALL, SendLoad};
pub use report::{InterfaceSent, Lateness, SendSecond, SenderReport};
pub use run::FlowSent;
pub use run::run;
