//! Daemons that take over from each other in one directory, as somebody starts them by hand: no service manager, and
//! whether one is ready stands in its log.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::daemon::{complete, udpd};

/// Longer than any machine needs; only a daemon that hangs ever sees it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a daemon says when it receives.
const READY: &str = "ready: ";

/// Where they run.
pub(crate) struct Succession {
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
    ledger: PathBuf,
}

/// How it ended.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
    /// Null when it wrote none.
    pub(crate) ledger: Value,
}

impl Succession {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("cannot make a directory"), started: 0 }
    }

    /// The directory, which `@DIR@` stands for.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.directory().join("control.sock")
    }

    /// Starts the first, and waits until it receives.
    pub(crate) fn start(&mut self, text: &str) -> Running {
        let mut first = self.launch(text, &[], &[]);
        first.await_line(READY);
        first
    }

    /// Starts one that takes over, and does not wait for anything.
    pub(crate) fn challenge(&mut self, text: &str) -> Running {
        self.launch(text, &[], &["--take-over"])
    }

    /// Starts one that takes over, waits until it does and until the one before has ended, and returns both.
    pub(crate) fn succeed(&mut self, before: Running, text: &str) -> (Running, Finished) {
        let mut next = self.challenge(text);
        next.await_line(READY);
        (next, before.wait())
    }

    /// The same by a command that starts udpd with what is behind it.
    pub(crate) fn launch(&mut self, text: &str, by: &[&str], arguments: &[&str]) -> Running {
        self.started += 1;
        let ledger = self.directory().join(format!("ledger-{}.json", self.started));
        let head = format!("[daemon]\nstats_on_exit = \"{}\"\n", ledger.display());
        let text = if text.contains("[daemon]\n") { text.replace("[daemon]\n", &head) } else { head + text };
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
        Running { child, lines, said: Vec::new(), ledger }
    }

    /// Asks for the ledger until `enough` of it holds, and panics when that never comes.
    pub(crate) fn stats_when(&self, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
        let (started, socket) = (Instant::now(), self.control_socket());
        loop {
            let output = udpd(&["stats", "--json", "--socket", socket.to_str().expect("temporary paths are UTF-8")]);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "udpd stats ended with {}: {stderr}", output.status);
            let ledger = serde_json::from_slice(&output.stdout).expect("udpd stats --json prints JSON");
            if enough(&ledger) {
                return ledger;
            }
            assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}; the ledger is {ledger:#}");
        }
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
        kill(Pid::from_raw(i32::try_from(self.pid()).expect("a process id fits i32")), signal).expect("it runs");
    }

    pub(crate) fn end_by(self, signal: Signal) -> Finished {
        self.signal(signal);
        self.wait()
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(mut self) -> Finished {
        // Its end closes the pipe, so that is waited for with a limit.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("udpd does not end:\n{}", self.said.join("\n")),
            }
        }
        let status = self.child.wait().expect("a child");
        let ledger = std::fs::read(&self.ledger);
        let ledger = ledger.map_or(Value::Null, |json| serde_json::from_slice(&json).expect("the ledger is JSON"));
        Finished { status, stderr: std::mem::take(&mut self.said).join("\n"), ledger }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing to a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
