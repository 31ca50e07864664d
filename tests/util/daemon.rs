//! The built binary as a child of the test: started, known to be ready, asked and ended.
//!
//! Readiness is the daemon's own word (`READY=1` on the notify socket), so no test sleeps or polls a port.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::ask::Ask;
use super::ended::Ended;
use super::load::{Amount, Load};
use super::process::{Process, UDPD};
use super::setup::{complete, in_directory};
use super::wait::PATIENCE;

/// A debug build receives at a tenth of the speed and is asked for a tenth of it.
pub(crate) const SCALE: u64 = if cfg!(debug_assertions) { 10 } else { 1 };

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Process,
    directory: tempfile::TempDir,
    /// Where tests send to.
    address: Option<SocketAddr>,
}

impl Ask for Daemon {
    fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Daemon {
    /// Starts `udpd run -c FILE` and waits until it is ready. `@DIR@` stands for a directory of its own, and the keys
    /// of `[daemon]` that a test needs are added unless the text has them.
    #[track_caller]
    pub(crate) fn with_config(text: &str) -> Self {
        Self::with_config_of(UDPD, text)
    }

    /// The same with another udpd than the one just built.
    #[track_caller]
    pub(crate) fn with_config_of(program: &str, text: &str) -> Self {
        Self::start(&[program, "run", "-c", "@DIR@/udpd.toml"], text, |command| command).0
    }

    /// The same with its standard output in the hands of the test, which decides when, and whether, it is read.
    #[track_caller]
    pub(crate) fn with_config_and_stdout(text: &str, stdout: Stdio) -> Self {
        Self::start(&[UDPD, "run", "-c", "@DIR@/udpd.toml"], text, |command| command.stdout(stdout)).0
    }

    /// Starts `udpd run --listen ADDRESS` at a free address with these arguments behind, and waits until it is ready.
    #[track_caller]
    pub(crate) fn listening(arguments: &[&str]) -> Self {
        Self::listening_by(arguments, |command| command)
    }

    /// The same with its standard output in the hands of the test.
    #[track_caller]
    pub(crate) fn listening_with_stdout(arguments: &[&str], stdout: impl Into<Stdio>) -> Self {
        Self::listening_by(arguments, |command| command.stdout(stdout))
    }

    #[track_caller]
    fn listening_by(arguments: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let address = free_address();
        let all = [UDPD, "run", "--listen", &address.to_string(), "--stats-on-exit", "@DIR@/ledger.json"];
        Self::start(&[&all, arguments].concat(), "", change).0.at(address)
    }

    /// Starts another command of udpd that says when it is ready, and waits until it does. `text` is in the file
    /// `@DIR@/udpd.toml`.
    #[track_caller]
    pub(crate) fn of_command(arguments: &[&str], text: &str) -> Self {
        Self::start(&[&[UDPD], arguments].concat(), text, |command| command).0
    }

    /// Starts this command with what the test changes of it, and waits until the daemon is ready; the socket on which
    /// that says how far it is.
    #[track_caller]
    pub(crate) fn start(
        whole: &[&str],
        text: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> (Self, UnixDatagram) {
        let directory = tempfile::tempdir().expect("cannot make a directory for the daemon");
        let path = directory.path();
        std::fs::write(path.join("udpd.toml"), complete(text, path)).expect("cannot write the configuration");
        let notify = UnixDatagram::bind(path.join("notify.sock")).expect("cannot bind the notify socket");
        let mut command = Command::new(whole[0]);
        command.args(whole[1..].iter().map(|argument| in_directory(argument, path)));
        command.current_dir(path).env("NOTIFY_SOCKET", path.join("notify.sock")).env("XDG_RUNTIME_DIR", path);
        command.stdout(File::create(path.join("stdout")).expect("cannot create a file for stdout"));
        change(&mut command);
        let mut daemon = Self { process: Process::start(&mut command), directory, address: None };
        // Gone before the wait, so that the other end of a pipe that the command has is the daemon's alone.
        drop(command);
        daemon.wait_until_ready(&notify);
        (daemon, notify)
    }

    /// Blocks on the notify socket; the time limit of each read is there only to notice a child that has died.
    #[track_caller]
    fn wait_until_ready(&mut self, notify: &UnixDatagram) {
        notify.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit above zero");
        let started = Instant::now();
        let mut message = [0_u8; 4096];
        loop {
            if let Ok(length) = notify.recv(&mut message)
                && message[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
            {
                return;
            }
            let is_late = started.elapsed() > PATIENCE;
            if is_late {
                self.process.signal(Signal::SIGKILL);
            }
            if is_late || self.process.status().is_some() {
                // Panics with all that it has logged.
                self.process.await_line("READY=1");
            }
        }
    }

    /// The same daemon, where tests send to this address.
    pub(crate) fn at(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Where tests send to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address.expect("a daemon whose address the test has not chosen")
    }

    /// A load of so many datagrams for it.
    pub(crate) fn load(&self, datagrams: u64) -> Load {
        Load::new(self.address(), Amount::Count(datagrams))
    }

    /// Sends so many numbered datagrams, and returns how many.
    pub(crate) fn send(&self, datagrams: u64) -> u64 {
        self.load(datagrams).send().sent
    }

    /// The process id, for /proc.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has open, by the names that those have now.
    pub(crate) fn open_files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").flatten();
        entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
    }

    /// What it has in memory. The sum that `status` shows would be off by up to 64 pages for each core, because the
    /// kernel adds those up later; this walks the pages.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).expect("a running process");
        let line = maps.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("Anonymous");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub(crate) fn terminate(self) -> Ended {
        self.end_by(Signal::SIGTERM)
    }

    /// SIGTERM, which it must obey with success and with a ledger that closes over `sent`.
    #[track_caller]
    pub(crate) fn end(self, sent: u64) -> Ended {
        self.terminate().closed(sent)
    }

    /// The same when all has arrived and nothing is under way.
    #[track_caller]
    pub(crate) fn end_after(self, sent: u64) -> Ended {
        self.until_settled(sent);
        self.end(sent)
    }

    /// Any signal that ends it, and how it ended.
    #[track_caller]
    pub(crate) fn end_by(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.wait_for_end()
    }

    /// Waits until it ends by itself, and how it ended. Its directory goes on to the caller.
    #[track_caller]
    pub(crate) fn wait_for_end(self) -> Ended {
        let ended = self.process.wait(self.directory.path(), "ledger.json");
        Ended { owner: Some(self.directory), ..ended }
    }
}

/// A free loopback address: below the range that the kernel hands out by itself, so that no sender takes it between
/// here and the daemon's start, and never the same twice.
pub(crate) fn free_address() -> SocketAddr {
    static PORTS: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    loop {
        let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        if ports.is_empty() {
            *ports = claim_ports();
        }
        let port = ports.pop().expect("just claimed");
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() && UdpSocket::bind(("::", port)).is_ok() {
            return ([127, 0, 0, 1], port).into();
        }
    }
}

/// Ports that no other test process takes while this one runs: two that found the same port free would both use it.
fn claim_ports() -> Vec<u16> {
    const BLOCK: u16 = 500;
    for first in (20_000..32_000).step_by(BLOCK.into()) {
        let name = net::SocketAddr::from_abstract_name(format!("udpd-tests-{first}")).expect("a short name");
        if let Ok(claim) = UnixDatagram::bind_addr(&name) {
            // The end of the process closes it.
            std::mem::forget(claim);
            return (first..first + BLOCK).collect();
        }
    }
    panic!("other test processes have all ports from 20,000 to 32,000")
}
