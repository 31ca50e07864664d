//! `udpd bench recv`: takes what `udpd bench send` sends through the real pipeline, and says what became of each
//! datagram.

mod command;
pub mod flows;
mod run;
mod tracker;

pub use command::{RecvArguments, execute};
pub use run::{FLOWS_MAX, RecvTask, run, run_with};
pub use run::{LaneLoss, LossByLayer, RecvProgress, RecvReport, RecvSecond};
pub use tracker::{DatagramTracker, Interval, SharedTracker, TrackerCounts, TrackerSink};
