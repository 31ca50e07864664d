//! A whole configuration that has passed every check: what the rest of the program may rely on without checking again.

use super::daemon::Daemon;
use super::listener::Listener;
use super::sinks::Sink;
use super::steer::Steer;
use udpd_base::settings::Problem;

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    pub daemon: Daemon,
    /// At least one; names and addresses are unique.
    pub listeners: Vec<Listener>,
    /// Every sink that is defined, in the order of the file.
    pub sinks: Vec<Sink>,
    /// Which cores udpd may use, and what is wished of the interfaces.
    pub steer: Steer,
    /// What is accepted today and should be written differently.
    pub warnings: Vec<Problem>,
}
