//! The rig's broker: where it is, and the script that stops and starts it.

use std::process::{Command, Stdio};

/// A broker that can be stopped and started.
pub(crate) struct Broker {
    address: String,
    control: String,
}

impl Broker {
    /// The broker that the rig has brought; without one it says that a test did not run.
    #[allow(clippy::print_stderr)]
    pub(crate) fn of_the_rig() -> Option<Self> {
        match (std::env::var("UDPD_KAFKA_BROKER"), std::env::var("UDPD_KAFKA_CONTROL")) {
            (Ok(address), Ok(control)) => Some(Self { address, control }),
            _ => {
                eprintln!("NOT CHECKED: needs a broker; tests/rigs/kafka_broker.sh brings one");
                None
            }
        }
    }

    /// Its `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Starts it, if it does not run, and returns when it answers.
    pub(crate) fn start(&self) {
        self.control("start");
    }

    /// Ends it in order, and returns when it has ended.
    pub(crate) fn stop(&self) {
        self.control("stop");
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&self) {
        self.control("kill");
    }

    fn control(&self, action: &str) {
        let status =
            Command::new(&self.control).arg(action).stdin(Stdio::null()).status().expect("the rig's script runs");
        assert!(status.success(), "{} {action}: {status}", self.control);
    }
}
