//! Daemons that take over from each other in one directory, as an operator starts them by hand: without a service
//! manager, and whether one is ready stands in its log.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ask::Ask;
use super::ended::{Ended, last_ledger};
use super::ledger::received;
use super::setup::complete;
use super::wait::PATIENCE;

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
    child: Child,
    lines: Receiver<String>,
    /// Those that were read so far.
    said: Vec<String>,
    directory: PathBuf,
    ledger: PathBuf,
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
        (next, before.wait())
    }

    /// Starts one by a command that starts udpd with what is behind it.
    pub(crate) fn launch(&mut self, text: impl Into<String>, by: &[&str], arguments: &[&str]) -> Running {
        self.started += 1;
        let ledger = self.directory().join(format!("ledger-{}.json", self.started));
        let head = format!("[daemon]\nstats_on_exit = \"{}\"\n", ledger.display());
        let text = text.into();
        let text = if text.contains("[daemon]\n") { text.replace("[daemon]\n", &head) } else { head + &text };
        let file = self.directory().join(format!("udpd-{}.toml", self.started));
        std::fs::write(&file, complete(&text, self.directory())).expect("cannot write the configuration");
        let mut whole: Vec<&str> = by.to_vec();
        whole.extend([env!("CARGO_BIN_EXE_udpd"), "run", "-c", file.to_str().expect("UTF-8")]);
        let mut command = Command::new(whole[0]);
        command.args(&whole[1..]).args(arguments).env_remove("NOTIFY_SOCKET").env("XDG_RUNTIME_DIR", self.directory());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("cannot start udpd");
        let pipe = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            pipe.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)).unwrap_or_default();
        });
        Running { child, lines, said: Vec::new(), directory: self.directory().to_owned(), ledger }
    }

    /// Ends the last one when it has received so many, which are all that there are; returns how many it received.
    #[track_caller]
    pub(crate) fn end_with(&self, last: Running, datagrams: u64) -> u64 {
        self.stats_when("all is received", |ledger| received(ledger) >= datagrams);
        last.terminate().received()
    }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says this, and returns the whole line.
    #[track_caller]
    pub(crate) fn await_line(&mut self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.said.push(line);
                    let line = self.said.last().expect("just pushed");
                    if line.contains(words) {
                        return line.clone();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("udpd ended without saying {words:?}:\n{}", self.said.join("\n"))
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("udpd has not said {words:?} within {PATIENCE:?}:\n{}", self.said.join("\n"))
                }
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).expect("it runs");
    }

    pub(crate) fn end_by(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.wait()
    }

    pub(crate) fn terminate(self) -> Ended {
        self.end_by(Signal::SIGTERM)
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(mut self) -> Ended {
        // Its end closes the pipe, so that is waited for with a limit.
        let begun = Instant::now();
        let deadline = begun + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("udpd does not end:\n{}", self.said.join("\n")),
            }
        }
        Ended {
            status: self.child.wait().expect("a child"),
            stderr: std::mem::take(&mut self.said).join("\n"),
            stdout: Vec::new(),
            elapsed: begun.elapsed(),
            ledger: last_ledger(&self.ledger),
            directory: self.directory.clone(),
            owner: None,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing to a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
