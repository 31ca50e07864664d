//! The rig's broker: where it is, and the script that stops and starts it.

#[cfg(feature = "kafka-tls")]
use std::path::PathBuf;
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

    /// Where it wants a certificate (`MUTUAL`), a password or a token (`SECRET`), or shows a certificate that has
    /// expired until it is renewed (`RENEWABLE`).
    #[cfg(feature = "kafka-tls")]
    pub(crate) fn address_of(&self, listener: &str) -> String {
        std::env::var(format!("UDPD_KAFKA_{listener}")).expect("the rig says where its listeners are")
    }

    /// Certificates, keys and the password of the user `udpd`.
    #[cfg(feature = "kafka-tls")]
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(std::env::var("UDPD_KAFKA_FILES").expect("the rig says where its files are")).join(name)
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
