//! A udpd that is a child of the test: what it logs, how it is signalled and how it ends. It is never left behind, and
//! only this child is signalled, by its own id.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ended::{Ended, last_ledger};
use super::wait::PATIENCE;

/// The program that was built with the tests.
pub(crate) const UDPD: &str = env!("CARGO_BIN_EXE_udpd");

/// A child that runs.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    /// The lines of its log that were read so far.
    said: Vec<String>,
}

impl Process {
    /// Starts this command. Its log is read all along: a full pipe would make the daemon lose lines of it.
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let pipe = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let (tell, lines) = unbounded();
        std::thread::spawn(move || {
            let lines = pipe.lines().map(|line| line.expect("the log is UTF-8"));
            lines.map(|line| tell.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Self { child, lines, said: Vec::new() }
    }

    /// The process id, for /proc.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).expect("cannot signal udpd: it has already ended");
    }

    /// Its exit, if it has ended.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// The lines of its log that were read so far.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    /// Waits until it logs these words, and returns the whole line.
    #[track_caller]
    pub(crate) fn await_line(&mut self, words: &str) -> String {
        let begun = Instant::now();
        while self.next_line(begun, words) {
            if let Some(line) = self.said.last().filter(|line| line.contains(words)) {
                return line.clone();
            }
        }
        panic!("udpd ended without saying {words:?}:\n{}", self.said.join("\n"))
    }

    /// Reads one line of the log; false at its end.
    #[track_caller]
    fn next_line(&mut self, begun: Instant, awaited: &str) -> bool {
        match self.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
            Ok(line) => self.said.push(line),
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => panic!("waited for {awaited:?} in vain:\n{}", self.said.join("\n")),
        }
        true
    }

    /// Waits until it ends by itself. Its ledger is this file of the directory, and its output the file `stdout`.
    #[track_caller]
    pub(crate) fn wait(mut self, directory: &Path, ledger: &str) -> Ended {
        let begun = Instant::now();
        // Its end closes the pipe, for which there is a limit on waiting.
        while self.next_line(begun, "its end") {}
        let status = self.child.wait().expect("a child");
        Ended {
            status,
            elapsed: begun.elapsed(),
            stderr: self.said.iter().flat_map(|line| [line, "\n"]).collect(),
            stdout: std::fs::read(directory.join("stdout")).unwrap_or_default(),
            ledger: last_ledger(&directory.join(ledger)),
            directory: directory.to_owned(),
            owner: None,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing to a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread of a process, as /proc shows it.
#[derive(Debug)]
pub(crate) struct Thread(PathBuf);

/// All threads of this process.
pub(crate) fn threads(pid: u32) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    tasks.map(|task| Thread(task.path())).collect()
}

impl Thread {
    /// A file about it; empty when it has ended meanwhile.
    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    pub(crate) fn name(&self) -> String {
        self.read("comm").trim_end().to_owned()
    }

    pub(crate) fn id(&self) -> i32 {
        self.0.file_name().and_then(|id| id.to_str()).and_then(|id| id.parse().ok()).expect("a number")
    }
}
