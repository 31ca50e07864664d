//! `udpd bench send`: numbered, timed datagrams at a rate that is kept, and a report of what was really sent.

mod command;
mod frames;
mod link;
mod load;
mod report;
mod run;

pub use command::{SendArguments, execute};
pub(super) use frames::{FrameLoad, SendEngine, benchmark_networks, parse_mix, run_frames};
pub(super) use link::{LinkInfo, Mac};
pub(super) use load::SendLoad;
pub(super) use report::{SendSecond, SenderReport};
pub(super) use run::run;
