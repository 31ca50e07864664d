//! Daemons that take over from each other in one directory, as an operator starts them by hand: without a service
//! manager, and whether one is ready stands in its log.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::ask::Ask;
use super::ended::Ended;
use super::ledger::received;
use super::process::{Process, UDPD};
use super::setup::complete;

/// What a daemon says when it receives.
const READY: &str = "ready: ";

/// Where they run.
pub(crate) struct Site {
    directory: tempfile::TempDir,
    /// How many were started.
    started: u32,
}

/// One of them.
pub(crate) struct Running {
    process: Process,
    directory: PathBuf,
    /// The name of its last ledger.
    ledger: String,
}

impl Ask for Site {
    fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// That of the first daemon.
    fn configuration(&self) -> PathBuf {
        self.directory().join("udpd-1.toml")
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("cannot make a directory"), started: 0 }
    }

    /// Starts the first, and waits until it receives.
    #[track_caller]
    pub(crate) fn start(&mut self, text: impl Into<String>) -> Running {
        let mut first = self.launch(text, &[], &[]);
        first.await_line(READY);
        first
    }

    /// Starts one that is to take over, and does not wait for anything.
    pub(crate) fn challenge(&mut self, text: impl Into<String>) -> Running {
        self.launch(text, &[], &["--take-over"])
    }

    /// Starts one that takes over, waits until it does and until the one before has ended, and returns both.
    #[track_caller]
    pub(crate) fn succeed(&mut self, before: Running, text: impl Into<String>) -> (Running, Ended) {
        let mut next = self.challenge(text);
        next.await_line(READY);
        let ended = before.wait();
        assert!(ended.status.success(), "{}", ended.stderr);
        (next, ended)
    }

    /// Starts one by a command that starts udpd with what is behind it.
    pub(crate) fn launch(&mut self, text: impl Into<String>, by: &[&str], arguments: &[&str]) -> Running {
        self.started += 1;
        let ledger = format!("ledger-{}.json", self.started);
        let head = format!("[daemon]\nstats_on_exit = \"@DIR@/{ledger}\"\n");
        let text = text.into();
        let text = if text.contains("[daemon]\n") { text.replace("[daemon]\n", &head) } else { head + &text };
        let file = self.directory().join(format!("udpd-{}.toml", self.started));
        std::fs::write(&file, complete(&text, self.directory())).expect("cannot write the configuration");
        let whole = [by, &[UDPD, "run", "-c", file.to_str().expect("UTF-8")], arguments].concat();
        let mut command = Command::new(whole[0]);
        command.args(&whole[1..]).env_remove("NOTIFY_SOCKET").env("XDG_RUNTIME_DIR", self.directory());
        let process = Process::start(command.stdout(Stdio::null()));
        Running { process, directory: self.directory().to_owned(), ledger }
    }

    /// Ends the last one when it has received so many, which are all that there are; returns how many it received.
    #[track_caller]
    pub(crate) fn end_with(&self, last: Running, datagrams: u64) -> u64 {
        self.stats_when("all is received", |ledger| received(ledger) >= datagrams);
        last.terminate().received()
    }
}

impl Running {
    #[track_caller]
    pub(crate) fn end_by(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.wait()
    }

    #[track_caller]
    pub(crate) fn terminate(self) -> Ended {
        self.end_by(Signal::SIGTERM)
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub(crate) fn wait(self) -> Ended {
        self.process.wait(&self.directory, &self.ledger)
    }
}

impl Deref for Running {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
