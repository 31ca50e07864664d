//! What others ask of the running daemon: its control socket and its metrics, served by one frame.

pub mod control;
mod exchange;
pub mod metrics;
