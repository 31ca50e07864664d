//! The built binary as a child of the test: started, known to be ready, asked, ended, and never left behind.
//!
//! Readiness is the daemon's own word (`READY=1` on the notify socket), so no test sleeps or polls a port. Whatever
//! happens, only this child is signalled, by its own id.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than any machine needs; only a daemon that hangs ever sees it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    stderr: Option<JoinHandle<String>>,
}

/// How a daemon ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit status.
    pub(crate) status: ExitStatus,
    /// All it wrote to stderr.
    pub(crate) stderr: String,
    /// All it wrote to stdout.
    pub(crate) stdout: Vec<u8>,
    /// From the signal to the exit.
    pub(crate) elapsed: Duration,
    /// What it left in `stats_on_exit`; null when it wrote none.
    pub(crate) ledger: Value,
    /// Its directory, with the files it wrote.
    pub(crate) directory: tempfile::TempDir,
}

impl Daemon {
    /// Starts `udpd run -c FILE` and waits until it is ready.
    ///
    /// `@DIR@` in the text stands for a directory of its own. The keys of `[daemon]` that a test needs (control socket,
    /// no metrics, `stats_on_exit`) are added unless the text has them.
    pub(crate) fn with_config(text: &str) -> Self {
        let (directory, arguments) = written(text);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        Self::start(directory, &arguments, stdout.into())
    }

    /// The same by a program that is given the daemon's command line behind its own.
    pub(crate) fn with_config_by(program: &str, arguments: &[&str], text: &str) -> Self {
        let (directory, own) = written(text);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        let mut command = Command::new(program);
        command.args(arguments).arg(env!("CARGO_BIN_EXE_udpd"));
        Self::start_by(command, directory, &own, stdout.into())
    }

    /// The same with another udpd than the one just built.
    pub(crate) fn with_config_of(program: &str, text: &str) -> Self {
        let (directory, arguments) = written(text);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        Self::start_by(Command::new(program), directory, &arguments, stdout.into())
    }

    /// The same without the rights to load a BPF program. Who does not have them anyway starts it as ever.
    pub(crate) fn with_config_and_without_bpf(text: &str) -> Self {
        if !nix::unistd::geteuid().is_root() {
            return Self::with_config(text);
        }
        // setpriv is in util-linux, as taskset is.
        Self::with_config_by("setpriv", &["--bounding-set=-bpf,-sys_admin"], text)
    }

    /// The same as the last arguments of another command, which takes the place of itself with it: `prlimit
    /// --fsize=1000`.
    pub(crate) fn with_config_under(command: &[&str], text: &str) -> Self {
        let (directory, arguments) = written(text);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        let mut under = Command::new(command[0]);
        under.args(&command[1..]).arg(env!("CARGO_BIN_EXE_udpd"));
        Self::start_by(under, directory, &arguments, stdout.into())
    }

    /// The same with its standard output in the hands of the test, which decides when, and whether, anybody reads it.
    pub(crate) fn with_config_and_stdout(text: &str, stdout: Stdio) -> Self {
        let (directory, arguments) = written(text);
        Self::start(directory, &arguments, stdout)
    }

    /// The same with a service manager that wants a sign of life within `limit`, and where that manager hears
    /// everything.
    pub(crate) fn with_config_and_watchdog(text: &str, limit: Duration) -> (Self, UnixDatagram) {
        let (directory, arguments) = written(text);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        let mut command = Command::new(env!("CARGO_BIN_EXE_udpd"));
        command.env("WATCHDOG_USEC", limit.as_micros().to_string());
        Self::start_under_manager(command, directory, &arguments, stdout.into())
    }

    /// Starts `udpd run` with these arguments, and `--stats-on-exit`, and waits until it is ready; `@DIR@` as above.
    pub(crate) fn with_arguments(arguments: &[&str]) -> Self {
        let (directory, all) = called(arguments);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        Self::start(directory, &all, stdout.into())
    }

    /// The same with its standard output in the hands of the test.
    pub(crate) fn with_arguments_and_stdout(arguments: &[&str], stdout: Stdio) -> Self {
        let (directory, all) = called(arguments);
        Self::start(directory, &all, stdout)
    }

    /// Starts another command that says when it is ready, and waits until it does; `@DIR@` as above.
    pub(crate) fn of_command(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("cannot make a directory for the command");
        let all: Vec<String> = arguments.iter().map(|argument| in_directory(argument, directory.path())).collect();
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        Self::start(directory, &all, stdout.into())
    }

    /// The same with a configuration of its own.
    pub(crate) fn of_command_with(arguments: &[&str], text: &str) -> Self {
        let (directory, run) = written(text);
        let mut all: Vec<String> = arguments.iter().map(|argument| in_directory(argument, directory.path())).collect();
        all.extend_from_slice(&run[1..]);
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("cannot create a file for stdout");
        Self::start(directory, &all, stdout.into())
    }

    fn start(directory: tempfile::TempDir, arguments: &[String], stdout: Stdio) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_udpd")), directory, arguments, stdout)
    }

    /// Starts `command` with the arguments of udpd behind its own.
    fn start_by(command: Command, directory: tempfile::TempDir, arguments: &[String], stdout: Stdio) -> Self {
        Self::start_under_manager(command, directory, arguments, stdout).0
    }

    /// The same, and the socket on which it says how far it is.
    fn start_under_manager(
        mut command: Command,
        directory: tempfile::TempDir,
        arguments: &[String],
        stdout: Stdio,
    ) -> (Self, UnixDatagram) {
        let notify_path = directory.path().join("notify.sock");
        let notify = UnixDatagram::bind(&notify_path).expect("cannot bind the notify socket");
        let mut child = command
            .args(arguments)
            .current_dir(directory.path())
            .env("NOTIFY_SOCKET", &notify_path)
            .env("XDG_RUNTIME_DIR", directory.path())
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .expect("cannot start udpd");
        let pipe = child.stderr.take().expect("stderr is piped");
        // Read all along: a full pipe would make the daemon lose log lines.
        let stderr = std::thread::spawn(move || std::io::read_to_string(pipe).expect("udpd's stderr is UTF-8"));
        let mut daemon = Self { child, directory, stderr: Some(stderr) };
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

    /// The process id, for /proc.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its directory, which `@DIR@` stands for.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where `udpd stats` finds it when it was started with a file.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    /// What it has in memory. The sum that `status` shows would be off by up to 64 pages for each core, because the
    /// kernel adds those up later; this walks the pages.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).expect("a running process");
        let line = maps.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("Anonymous");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// The ledger now, as a user would get it.
    pub(crate) fn stats(&self) -> Value {
        let socket = self.control_socket();
        let output = udpd(&["stats", "--json", "--socket", socket.to_str().expect("temporary paths are UTF-8")]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "udpd stats ended with {}: {stderr}", output.status);
        serde_json::from_slice(&output.stdout).expect("udpd stats --json prints JSON")
    }

    /// Asks for the ledger until `enough` of it holds, and returns that one. Each question is answered by the daemon,
    /// so this waits for an event and not for a time; it panics when the event never comes.
    pub(crate) fn stats_when(&self, what: &str, mut enough: impl FnMut(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let ledger = self.stats();
            if enough(&ledger) {
                return ledger;
            }
            assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}; the ledger is {ledger:#}");
        }
    }

    /// Sends a signal to this child only.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits i32"));
        kill(pid, signal).expect("cannot signal udpd: it has already ended");
    }

    /// SIGTERM, and how it ended.
    pub(crate) fn terminate(self) -> Ended {
        self.end_by(Signal::SIGTERM)
    }

    /// Any signal that ends it, and how it ended.
    pub(crate) fn end_by(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.wait_for_end()
    }

    /// Waits until it ends by itself, and how it ended.
    pub(crate) fn wait_for_end(mut self) -> Ended {
        let started = Instant::now();
        let status = self.wait();
        let elapsed = started.elapsed();
        let stderr = self.collected_stderr();
        // What Drop would clean up is done: the child has ended. The directory goes on to the caller.
        let placeholder = tempfile::tempdir().expect("cannot make a directory");
        let directory = std::mem::replace(&mut self.directory, placeholder);
        let ledger = match std::fs::read(directory.path().join("ledger.json")) {
            Ok(json) => serde_json::from_slice(&json).expect("stats_on_exit is JSON"),
            Err(_) => Value::Null,
        };
        let stdout = std::fs::read(directory.path().join("stdout")).unwrap_or_default();
        Ended { status, stderr, stdout, elapsed, ledger, directory }
    }

    /// Waits for the exit; a daemon that does not end is killed, and its status then says so.
    fn wait(&mut self) -> ExitStatus {
        let (ended, watch) = channel::<()>();
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits i32"));
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

/// A directory, and the arguments of `udpd run` with these and `--stats-on-exit`.
fn called(arguments: &[&str]) -> (tempfile::TempDir, Vec<String>) {
    let directory = tempfile::tempdir().expect("cannot make a directory for the daemon");
    let all = ["run"].iter().chain(arguments).chain(&["--stats-on-exit", "@DIR@/ledger.json"]);
    let all = all.map(|argument| in_directory(argument, directory.path())).collect();
    (directory, all)
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

/// Runs udpd to its end with these arguments, without a daemon around it.
pub(crate) fn udpd(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_udpd"))
        .args(arguments)
        .stdin(Stdio::null())
        .env_remove("NOTIFY_SOCKET")
        .output()
        .expect("cannot start udpd")
}

/// A loopback address nobody is bound to: below the range that the kernel hands out by itself, so that no sender takes
/// it between here and the daemon's start, and never the same twice in one test process.
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

fn in_directory(text: &str, directory: &Path) -> String {
    text.replace("@DIR@", directory.to_str().expect("temporary paths are UTF-8"))
}

/// The text with the keys that a test needs in its `[daemon]`.
pub(crate) fn complete(text: &str, directory: &Path) -> String {
    let wanted = [
        ("control_socket", "\"@DIR@/control.sock\""),
        ("metrics_address", "\"\""),
        ("stats_on_exit", "\"@DIR@/ledger.json\""),
    ];
    let mut head = "[daemon]\n".to_owned();
    for (key, value) in wanted.iter().filter(|(key, _)| !text.contains(key)) {
        head.push_str(&format!("{key} = {value}\n"));
    }
    let whole = if text.contains("[daemon]\n") { text.replace("[daemon]\n", &head) } else { head + text };
    in_directory(&whole, directory)
}
