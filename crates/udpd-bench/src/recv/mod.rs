//! `udpd bench recv`: takes what `udpd bench send` sends through the real pipeline, and says what became of each
//! datagram.

mod command;
pub mod flows;
pub mod latency;
mod measure;
mod report;
mod show;
pub mod timeline;
mod tracker;

pub use command::{Arguments, execute};
pub use measure::{FLOWS_MAX, Task, run, run_with};
pub use report::{LaneLoss, Layers, Progress, Report, Second};
pub use tracker::{Counts, Interval, Shared, Tracker, TrackerSink};
