//! The built binary as a child of the test: started, known to be ready, asked, ended, and never left behind.
//!
//! Readiness is the daemon's own word (`READY=1` on the notify socket), so no test sleeps or polls a port. Whatever
//! happens, only this child is signalled, by its own id.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ask::Ask;
use super::ended::{Ended, last_ledger};
use super::load::{Amount, Load};
use super::setup::{complete, in_directory};
use super::wait::PATIENCE;

/// A debug build receives at a tenth of the speed and is asked for a tenth of it.
pub(crate) const SCALE: u64 = if cfg!(debug_assertions) { 10 } else { 1 };

const UDPD: &str = env!("CARGO_BIN_EXE_udpd");

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    stderr: Option<JoinHandle<String>>,
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
        Self::with_config_by(&[], text)
    }

    /// The same with another udpd than the one just built.
    #[track_caller]
    pub(crate) fn with_config_of(program: &str, text: &str) -> Self {
        let (directory, arguments) = written(text);
        Self::start(Command::new(program), directory, &arguments, None).0
    }

    /// The same by a program that is given the daemon's command line behind these arguments.
    #[track_caller]
    pub(crate) fn with_config_by(command: &[&str], text: &str) -> Self {
        let (directory, arguments) = written(text);
        let mut whole = command.iter().chain(&[UDPD]);
        let mut command = Command::new(whole.next().expect("udpd at least"));
        command.args(whole);
        Self::start(command, directory, &arguments, None).0
    }

    /// The same with its standard output in the hands of the test, which decides when, and whether, it is read.
    #[track_caller]
    pub(crate) fn with_config_and_stdout(text: &str, stdout: Stdio) -> Self {
        let (directory, arguments) = written(text);
        Self::start(Command::new(UDPD), directory, &arguments, Some(stdout)).0
    }

    /// The same below a service manager that wants a sign of life within `limit`; its end of the notify socket.
    #[track_caller]
    pub(crate) fn with_config_and_watchdog(text: &str, limit: Duration) -> (Self, UnixDatagram) {
        let (directory, arguments) = written(text);
        let mut command = Command::new(UDPD);
        command.env("WATCHDOG_USEC", limit.as_micros().to_string());
        Self::start(command, directory, &arguments, None)
    }

    /// Starts `udpd run --listen ADDRESS` at a free address with these arguments behind, and waits until it is ready.
    #[track_caller]
    pub(crate) fn listening(arguments: &[&str]) -> Self {
        Self::listening_with_stdout(arguments, None)
    }

    /// The same with its standard output in the hands of the test.
    #[track_caller]
    pub(crate) fn listening_with_stdout(arguments: &[&str], stdout: Option<Stdio>) -> Self {
        let address = free_address();
        let all = ["run", "--listen", &address.to_string(), "--stats-on-exit", "@DIR@/ledger.json"];
        Self::of_command_with_stdout(&[&all, arguments].concat(), stdout).at(address)
    }

    /// Starts another command of udpd that says when it is ready, and waits until it does.
    #[track_caller]
    pub(crate) fn of_command(arguments: &[&str]) -> Self {
        Self::of_command_with_stdout(arguments, None)
    }

    fn of_command_with_stdout(arguments: &[&str], stdout: Option<Stdio>) -> Self {
        let directory = tempfile::tempdir().expect("cannot make a directory for the daemon");
        let all: Vec<String> = arguments.iter().map(|argument| in_directory(argument, directory.path())).collect();
        Self::start(Command::new(UDPD), directory, &all, stdout).0
    }

    /// The same with a configuration of its own.
    #[track_caller]
    pub(crate) fn of_command_with(arguments: &[&str], text: &str) -> Self {
        let (directory, run) = written(text);
        let mut all: Vec<String> = arguments.iter().map(|argument| in_directory(argument, directory.path())).collect();
        all.extend_from_slice(&run[1..]);
        Self::start(Command::new(UDPD), directory, &all, None).0
    }

    /// Starts `command` with the arguments of udpd behind its own; the socket on which the daemon says how far it is.
    fn start(
        mut command: Command,
        directory: tempfile::TempDir,
        arguments: &[String],
        stdout: Option<Stdio>,
    ) -> (Self, UnixDatagram) {
        let to_file = || File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        let notify_path = directory.path().join("notify.sock");
        let notify = UnixDatagram::bind(&notify_path).expect("cannot bind the notify socket");
        let mut child = command
            .args(arguments)
            .current_dir(directory.path())
            .env("NOTIFY_SOCKET", &notify_path)
            .env("XDG_RUNTIME_DIR", directory.path())
            .stdin(Stdio::null())
            .stdout(stdout.unwrap_or_else(|| to_file().into()))
            .stderr(Stdio::piped())
            .spawn()
            .expect("cannot start udpd");
        let pipe = child.stderr.take().expect("stderr is piped");
        // Read all along: a full pipe would make the daemon lose log lines.
        let stderr = std::thread::spawn(move || std::io::read_to_string(pipe).expect("udpd's stderr is UTF-8"));
        let mut daemon = Self { child, directory, stderr: Some(stderr), address: None };
        daemon.wait_until_ready(&notify);
        (daemon, notify)
    }

    /// Blocks on the notify socket; the time limit of each read is there only to notice a child that has died.
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
            if let Some(status) = self.child.try_wait().expect("cannot ask for the state of udpd") {
                panic!("udpd ended ({status}) before it was ready; stderr:\n{}", self.collected_stderr());
            }
            if started.elapsed() > PATIENCE {
                self.child.kill().expect("cannot kill udpd");
                panic!("udpd was not ready after {PATIENCE:?}; stderr:\n{}", self.collected_stderr());
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
        self.child.id()
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

    /// Sends a signal to this child only.
    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).expect("cannot signal udpd: it has already ended");
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

    /// Waits until it ends by itself, and how it ended.
    #[track_caller]
    pub(crate) fn wait_for_end(mut self) -> Ended {
        let started = Instant::now();
        let status = self.wait();
        let elapsed = started.elapsed();
        let stderr = self.collected_stderr();
        // What Drop would clean up is done: the child has ended. The directory goes on to the caller.
        let placeholder = tempfile::tempdir().expect("cannot make a directory");
        let owner = std::mem::replace(&mut self.directory, placeholder);
        let directory = owner.path().to_owned();
        let stdout = std::fs::read(directory.join("stdout")).unwrap_or_default();
        let ledger = last_ledger(&directory.join("ledger.json"));
        Ended { status, stderr, stdout, elapsed, ledger, directory, owner: Some(owner) }
    }

    /// Waits for the exit; a daemon that does not end is killed, and its status then says so.
    fn wait(&mut self) -> ExitStatus {
        let (ended, watch) = channel::<()>();
        let pid = Pid::from_raw(self.pid().cast_signed());
        let watchdog = std::thread::spawn(move || {
            if watch.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let status = self.child.wait().expect("cannot wait for udpd");
        drop(ended);
        watchdog.join().expect("the watchdog does not panic");
        status
    }

    /// Everything on stderr; waits for its end, so only for a child that has ended.
    fn collected_stderr(&mut self) -> String {
        self.stderr.take().map_or_else(String::new, |reader| reader.join().expect("the stderr reader panicked"))
    }
}

/// A directory with the configuration in it, and the arguments that name it.
fn written(text: &str) -> (tempfile::TempDir, Vec<String>) {
    let directory = tempfile::tempdir().expect("cannot make a directory for the daemon");
    let file = directory.path().join("udpd.toml");
    std::fs::write(&file, complete(text, directory.path())).expect("cannot write the configuration");
    let file = file.to_str().expect("temporary paths are UTF-8").to_owned();
    (directory, vec!["run".into(), "-c".into(), file])
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both do nothing to a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free loopback address: below the range that the kernel hands out by itself, so that no sender takes it between
/// here and the daemon's start, and never the same twice in one test process.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const RANGE: u16 = 12_000;
    let spread = u16::try_from(std::process::id() % u32::from(RANGE)).expect("below the range");
    for _ in 0..RANGE {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % RANGE;
        let port = FIRST + (spread + step) % RANGE;
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() && UdpSocket::bind(("::", port)).is_ok() {
            return ([127, 0, 0, 1], port).into();
        }
    }
    panic!("no UDP port is free from {FIRST} on")
}
