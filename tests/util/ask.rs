//! A running daemon as it is asked on its control socket: for its ledger until something has happened, and to reload.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ledger::{arrived, count, lanes, received, sinks};
use super::outcome::{Outcome, udpd};
use super::setup::complete;
use super::wait::PATIENCE;

/// Sends one question to a control socket and returns the answer.
#[track_caller]
pub(crate) fn ask(socket: &Path, question: &str) -> Value {
    let mut stream = UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit above zero");
    let mut answer = String::new();
    let asked = stream.write_all(format!("{question}\n").as_bytes()).and_then(|()| stream.shutdown(Shutdown::Write));
    asked.and_then(|()| stream.read_to_string(&mut answer)).unwrap_or_else(|error| panic!("no answer: {error}"));
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("no JSON ({error}): {answer:?}"))
}

/// Whatever has a daemon with a control socket in a directory.
pub(crate) trait Ask {
    /// The directory, which `@DIR@` stands for.
    fn directory(&self) -> &Path;

    fn control_socket(&self) -> PathBuf {
        self.directory().join("control.sock")
    }

    /// The file that the daemon was started with.
    fn configuration(&self) -> PathBuf {
        self.directory().join("udpd.toml")
    }

    /// The ledger now.
    #[track_caller]
    fn stats(&self) -> Value {
        ask(&self.control_socket(), "stats")
    }

    /// Asks for the ledger until `enough` of it holds, and returns that one. Panics when it never does.
    #[track_caller]
    fn stats_when(&self, what: &str, mut enough: impl FnMut(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let ledger = self.stats();
            if enough(&ledger) {
                return ledger;
            }
            assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}; the ledger is {ledger:#}");
            // Each question costs the daemon a look at everything, and the tests share few cores.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the first listener has received exactly so many.
    #[track_caller]
    fn until_received(&self, datagrams: u64) -> Value {
        self.stats_when(&format!("{datagrams} are received"), |ledger| received(ledger) == datagrams)
    }

    /// Waits until every sink of the first listener has delivered exactly so many.
    #[track_caller]
    fn until_delivered(&self, datagrams: u64) -> Value {
        self.stats_when(&format!("{datagrams} are delivered by each sink"), |ledger| {
            sinks(ledger).iter().all(|sink| count(sink, "delivered") == datagrams)
        })
    }

    /// Waits until exactly so many have arrived at the first listener and nothing is under way.
    #[track_caller]
    fn until_settled(&self, sent: u64) -> Value {
        self.stats_when(&format!("{sent} have arrived and are settled"), |ledger| {
            arrived(ledger) == sent
                && lanes(ledger).iter().all(|lane| lane["receive_buffer_used_bytes"].as_u64().unwrap_or(0) == 0)
                && sinks(ledger).iter().all(|sink| count(sink, "in_flight") == 0)
        })
    }

    /// Runs `udpd NAME --socket` against it.
    fn command(&self, name: &str) -> Outcome {
        udpd(&[name, "--socket", self.control_socket().to_str().expect("temporary paths are UTF-8")])
    }

    /// Runs `udpd NAME -c FILE` with its file and these arguments.
    fn by_file(&self, name: &str, arguments: &[&str]) -> Outcome {
        udpd(&[&[name, "-c", self.configuration().to_str().expect("temporary paths are UTF-8")], arguments].concat())
    }

    /// Writes another configuration in the place of the file.
    fn write(&self, text: &str) {
        std::fs::write(self.configuration(), complete(text, self.directory())).expect("cannot write the configuration");
    }

    /// Writes another configuration and runs `udpd reload`.
    fn reload(&self, text: impl Into<String>) -> Outcome {
        self.write(&text.into());
        self.command("reload")
    }
}
