//! A whole configuration that has passed every check: what the rest of the program may rely on without checking again.

use super::daemon::DaemonConfig;
use super::listener::ListenerConfig;
use super::sinks::SinkConfig;
use super::steer::SteerConfig;
use udpd_base::settings::Problem;

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    pub daemon: DaemonConfig,
    /// At least one; names and addresses are unique.
    pub listeners: Vec<ListenerConfig>,
    /// Every sink that is defined, in the order of the file.
    pub sinks: Vec<SinkConfig>,
    /// Which cores udpd may use, and what is wished of the interfaces.
    pub steer: SteerConfig,
    /// What is accepted today and should be written differently.
    pub warnings: Vec<Problem>,
}
