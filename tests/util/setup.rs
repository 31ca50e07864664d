//! Configurations of tests: a listener `in` at an address of its own and the sinks that it feeds, with what a test
//! needs besides.
//!
//! TOML takes single quotes, so a fragment is written as `keys("lanes = 2\nspread = 'cpu'")`. `@DIR@` stands for the
//! directory of the daemon.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::daemon::{Daemon, free_address};
use super::outcome::Outcome;
use super::process::UDPD;

/// A configuration in the making.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Where tests send to.
    pub(crate) address: SocketAddr,
    name: String,
    /// The address as the file says it.
    listens: String,
    daemon: String,
    listener: String,
    /// Names and keys.
    sinks: Vec<(String, String)>,
    more: String,
    /// What `@DIR@` becomes before a daemon is started.
    directory: String,
}

impl Setup {
    /// A listener at a free address.
    pub(crate) fn new() -> Self {
        Self::at(free_address())
    }

    /// A listener at this address.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let empty = String::new;
        Self {
            address,
            name: "in".into(),
            listens: format!("'{address}'"),
            daemon: empty(),
            listener: empty(),
            sinks: Vec::new(),
            more: empty(),
            directory: "@DIR@".into(),
        }
    }

    /// The same listener at another address, such as every address of the host with the same port.
    pub(crate) fn listens_at(mut self, address: impl std::fmt::Display) -> Self {
        self.listens = format!("'{address}'");
        self
    }

    /// The same listener at all of these addresses.
    pub(crate) fn listens_at_each(mut self, addresses: &[SocketAddr]) -> Self {
        self.listens = format!("{:?}", addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
        self
    }

    /// The same with another name of the listener.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// The same, whose files are in this directory.
    pub(crate) fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = directory.display().to_string();
        self
    }

    /// Keys of `[daemon]`.
    pub(crate) fn daemon(mut self, keys: &str) -> Self {
        let _ = writeln!(self.daemon, "{keys}");
        self
    }

    /// Keys of the last sink so far, or of the listener when there is none yet.
    pub(crate) fn keys(mut self, keys: impl AsRef<str>) -> Self {
        let table = self.sinks.last_mut().map_or(&mut self.listener, |(_, table)| table);
        let _ = writeln!(table, "{}", keys.as_ref());
        self
    }

    /// A sink with these keys.
    pub(crate) fn sink(mut self, name: &str, kind: &str, keys: impl AsRef<str>) -> Self {
        self.sinks.push((name.into(), format!("type = '{kind}'\n{}\n", keys.as_ref())));
        self
    }

    /// A sink that only counts.
    pub(crate) fn null(self, name: &str) -> Self {
        self.sink(name, "null", "")
    }

    /// A sink that writes this file of the directory, which is never rotated unless keys say so.
    pub(crate) fn file(self, name: &str, file: &str) -> Self {
        self.sink(name, "file", format!("path = '@DIR@/{file}'"))
    }

    /// A sink that sends on to these destinations.
    pub(crate) fn relay(self, name: &str, to: &[SocketAddr]) -> Self {
        let to: Vec<String> = to.iter().map(ToString::to_string).collect();
        self.sink(name, "udp", format!("destinations = {to:?}"))
    }

    /// The same with other words in the keys of the listener and its sinks, where they must be.
    #[track_caller]
    pub(crate) fn replace(mut self, from: &str, to: &str) -> Self {
        let tables = std::iter::once(&mut self.listener).chain(self.sinks.iter_mut().map(|(_, table)| table));
        let mut found = false;
        for table in tables {
            found |= table.contains(from);
            *table = table.replace(from, to);
        }
        assert!(found, "{from} is in no table");
        self
    }

    /// Another listener that feeds these sinks.
    pub(crate) fn also(self, name: &str, address: impl std::fmt::Display, sinks: &[&str]) -> Self {
        self.more(format!("[[listener]]\nname = '{name}'\naddress = '{address}'\nsinks = {sinks:?}"))
    }

    /// Tables behind all others.
    pub(crate) fn more(mut self, tables: impl AsRef<str>) -> Self {
        let _ = writeln!(self.more, "{}", tables.as_ref());
        self
    }

    /// The file.
    pub(crate) fn text(&self) -> String {
        let Self { name, listens, daemon, listener, sinks, more, .. } = self;
        let names: Vec<&str> = sinks.iter().map(|(name, _)| name.as_str()).collect();
        let mut text = format!(
            "[daemon]\n{daemon}[[listener]]\nname = '{name}'\naddress = {listens}\nsinks = {names:?}\n{listener}"
        );
        for (name, keys) in sinks {
            // The tests may run at midnight.
            let rotates = !keys.contains("'file'") || keys.contains("rotate") || keys.contains('%');
            let never = if rotates { "" } else { "rotate.every = '0s'\n" };
            let _ = write!(text, "[sink.{name}]\n{keys}{never}");
        }
        (text + more).replace("@DIR@", &self.directory)
    }

    /// Starts a daemon with it and waits until that is ready.
    #[track_caller]
    pub(crate) fn start(&self) -> Daemon {
        Daemon::with_config(&self.text()).at(self.address)
    }

    /// The same by a program that is given the daemon's command line behind these arguments.
    #[track_caller]
    pub(crate) fn start_by(&self, command: &[&str]) -> Daemon {
        let whole = [command, &[UDPD, "run", "-c", "@DIR@/udpd.toml"]].concat();
        Daemon::start(&whole, &self.text(), |command| command).0.at(self.address)
    }

    /// The same without the rights to load a BPF program. A user that does not have them anyway starts it as ever.
    #[track_caller]
    pub(crate) fn start_without_bpf(&self) -> Daemon {
        match nix::unistd::geteuid().is_root() {
            // setpriv is in util-linux, as taskset is.
            true => self.start_by(&WITHOUT_BPF),
            false => self.start(),
        }
    }

    /// The same with its standard output in the hands of the test, which decides when, and whether, it is read.
    #[track_caller]
    pub(crate) fn start_with_stdout(&self, stdout: impl Into<Stdio>) -> Daemon {
        Daemon::with_config_and_stdout(&self.text(), stdout.into()).at(self.address)
    }

    /// The same below a service manager that wants a sign of life within `limit`; its end of the notify socket.
    #[track_caller]
    pub(crate) fn start_watched(&self, limit: Duration) -> (Daemon, std::os::unix::net::UnixDatagram) {
        let (whole, limit) = ([UDPD, "run", "-c", "@DIR@/udpd.toml"], limit.as_micros().to_string());
        let (daemon, notify) = Daemon::start(&whole, &self.text(), |command| command.env("WATCHDOG_USEC", limit));
        (daemon.at(self.address), notify)
    }

    /// Runs `udpd check` or `udpd run` with it, and with these arguments, to its end.
    #[track_caller]
    pub(crate) fn udpd(&self, command: &str, arguments: &[&str]) -> Outcome {
        self.udpd_by(&[UDPD], command, arguments)
    }

    /// The same by another program, whose last argument is the path of udpd.
    #[track_caller]
    pub(crate) fn udpd_by(&self, by: &[&str], command: &str, arguments: &[&str]) -> Outcome {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("udpd.toml");
        std::fs::write(&file, complete(&self.text(), directory.path())).expect("written");
        Outcome::of(Command::new(by[0]).args(&by[1..]).arg(command).arg("-c").arg(file).args(arguments))
    }

    /// `udpd check` of it.
    #[track_caller]
    pub(crate) fn check(&self) -> Outcome {
        self.udpd("check", &[])
    }
}

impl From<&Setup> for String {
    fn from(setup: &Setup) -> Self {
        setup.text()
    }
}

/// Takes the rights to load a BPF program from what follows.
pub(crate) const WITHOUT_BPF: [&str; 2] = ["setpriv", "--bounding-set=-bpf,-sys_admin"];

/// The text with the keys that a test needs in its `[daemon]`, unless it has them.
pub(crate) fn complete(text: &str, directory: &Path) -> String {
    let wanted = [
        ("control_socket", "\"@DIR@/control.sock\""),
        ("metrics_address", "\"\""),
        ("stats_on_exit", "\"@DIR@/ledger.json\""),
    ];
    let mut head = "[daemon]\n".to_owned();
    for (key, value) in wanted.iter().filter(|(key, _)| !text.contains(key)) {
        let _ = writeln!(head, "{key} = {value}");
    }
    let whole = if text.contains("[daemon]\n") { text.replace("[daemon]\n", &head) } else { head + text };
    in_directory(&whole, directory)
}

pub(crate) fn in_directory(text: &str, directory: &Path) -> String {
    text.replace("@DIR@", directory.to_str().expect("temporary paths are UTF-8"))
}

/// The text of a file of config/examples with these changes, each of which is found once. What it writes below
/// /var/log/udpd goes to the daemon's own directory.
pub(crate) fn example(name: &str, changes: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/examples").join(name);
    let mut text = std::fs::read_to_string(&path).expect("an example");
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from} in {name}");
        text = text.replace(from, to);
    }
    text.replace("/var/log/udpd", "@DIR@")
}
