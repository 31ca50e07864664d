//! The bench touches nothing that it has not made: whatever a configuration names is after a search what it was before,
//! however the search ends, and nothing has come to a configured address.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::util::*;

/// What a file is known again by: kind and rights, size, contents, when it was changed, and which one it is.
type Seen = (u32, u64, Vec<u8>, i64, u64);

/// Everything below a directory. The directories that the bench makes one of its own in change their own time with
/// that, so of directories only the rights and the names count.
fn everything(directory: &Path) -> BTreeMap<String, Seen> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        let metadata = path.symlink_metadata().expect("it is still there");
        let contents = if metadata.is_file() { fs::read(&path).expect("readable") } else { Vec::new() };
        let seen = match metadata.is_dir() {
            true => (metadata.mode(), 0, contents, 0, metadata.ino()),
            false => {
                let changed_ns = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
                (metadata.mode(), metadata.len(), contents, changed_ns, metadata.ino())
            }
        };
        found.insert(path.to_str().expect("UTF-8").to_owned(), seen);
        if metadata.is_dir() {
            found.extend(everything(&path));
        }
    }
    found
}

/// A configuration with a sink of every kind, what it names, and the test at the other end of all of it.
struct Place {
    directory: tempfile::TempDir,
    relayed: [UdpSocket; 2],
    messages: UnixDatagram,
    stream: UnixListener,
    metrics: TcpListener,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["log", "run", "tmp", "log/2025"] {
            fs::create_dir(at(name)).expect("made");
        }
        // A log in use, fifty finished ones that `keep` would remove all but two of, and those of other days.
        fs::write(at("log/in.log"), "of the daemon\n").expect("written");
        for number in 10..60 {
            fs::write(at(&format!("log/in.log.20250101T0000{number}Z")), format!("{number}\n")).expect("written");
        }
        fs::write(at("log/2025/0.pcapng"), "of another year").expect("written");
        fs::write(at("run/ledger.json"), "{}").expect("written");
        symlink(at("log/in.log"), at("log/latest")).expect("linked");
        let udp = |address: &str| UdpSocket::bind(address).expect("bound");
        let site = Self {
            relayed: [udp("127.0.0.1:0"), udp("[::1]:0")],
            messages: UnixDatagram::bind(at("run/messages")).expect("bound"),
            stream: UnixListener::bind(at("run/stream")).expect("bound"),
            metrics: TcpListener::bind("127.0.0.1:0").expect("bound"),
            directory,
        };
        site.relayed.iter().for_each(|socket| socket.set_nonblocking(true).expect("set"));
        site.messages.set_nonblocking(true).expect("set");
        site.stream.set_nonblocking(true).expect("set");
        site.metrics.set_nonblocking(true).expect("set");
        fs::write(site.at("udpd.toml"), site.configuration()).expect("written");
        site
    }

    fn configuration(&self) -> String {
        let text = r#"
            [daemon]
            control_socket = "@/run/control.sock"
            metrics_address = "@METRICS"
            stats_on_exit = "@/run/ledger.json"
            [[listener]]
            name = "in"
            address = "0.0.0.0:25149"
            multicast_groups = ["239.255.77.1"]
            allow = ["192.0.2.0/24"]
            rate_limit = { per_source = 10 }
            sinks = ["archive", "dated", "relay", "local", "pushed", "out", "nothing"]
            [sink.archive]
            type = "file"
            path = "@/log/{listener}.log"
            rotate = { bytes = "64KiB", every = "1s" }
            keep = { files = 2 }
            [sink.dated]
            type = "file"
            format = "pcapng"
            path = "@/log/%Y/{lane}.pcapng"
            keep = { bytes = "1MiB" }
            [sink.relay]
            type = "udp"
            destinations = ["@V4", "@V6"]
            [sink.local]
            type = "unix"
            path = "@/run/messages"
            [sink.pushed]
            type = "unix"
            socket = "stream"
            format = "jsonl"
            path = "@/run/stream"
            [sink.out]
            type = "stdout"
            [sink.nothing]
            type = "null"
        "#;
        let address = |socket: &UdpSocket| address_of(socket).to_string();
        text.replace("@METRICS", &self.metrics.local_addr().expect("bound").to_string())
            .replace("@V4", &address(&self.relayed[0]))
            .replace("@V6", &address(&self.relayed[1]))
            .replace('@', self.path())
    }

    fn path(&self) -> &str {
        self.directory.path().to_str().expect("UTF-8")
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }

    /// A search over it, whose temporary directory is in it.
    fn search(&self, arguments: &[&str]) -> Command {
        // A search leaves a signal ignored that its parent ignores; these tests may run below nohup.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", UDPD]);
        command.args(["bench", "max"]).args(arguments).env("TMPDIR", self.at("tmp"));
        command.env("XDG_RUNTIME_DIR", self.at("run")).env_remove("UDPD_CONFIG");
        command
    }

    /// A short search with these arguments, run to its end.
    fn short_search(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(&mut self.search(&[arguments, &["--rate", "1k..2k", "--seconds", "0.1"]].concat()))
    }

    /// Everything below its directory.
    fn everything(&self) -> BTreeMap<String, Seen> {
        everything(self.directory.path())
    }

    /// Nothing has come to any address that the configuration names.
    #[track_caller]
    fn assert_nothing_came(&self) {
        let mut buffer = [0; 100];
        for socket in &self.relayed {
            let heard = socket.recv(&mut buffer).map_err(|error| error.kind());
            assert_eq!(heard, Err(ErrorKind::WouldBlock), "{:?} got a datagram", socket.local_addr());
        }
        assert_eq!(self.messages.recv(&mut buffer).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        assert_eq!(self.stream.accept().map(drop).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        assert_eq!(self.metrics.accept().map(drop).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    }
}

#[test]
fn a_search_over_every_kind_of_sink_touches_nothing_that_the_configuration_names() {
    let site = Place::new();
    let before = site.everything();
    let found = site.short_search(&["-c", &site.at("udpd.toml"), "--json"]).json();
    assert_eq!(site.everything(), before);
    site.assert_nothing_came();
    // It has measured those sinks all the same, each as what it is, and said where they went.
    let report = &found["report"];
    for trial in list(report, "trials") {
        assert_eq!(count(trial, "delivered") + sum(&trial["lost"]), count(trial, "sent"), "{trial:#}");
        assert!(count(trial, "delivered") > 0, "{trial:#}");
    }
    let notes: Vec<&str> = list(report, "changed").iter().filter_map(Value::as_str).collect();
    for words in [
        "sink archive: files in ",
        "sink dated: files in ",
        "sink relay@127.0.0.1:",
        "sink relay@[::1]:",
        "sink local: sends to ",
        "sink pushed: sends to ",
        "sink out: writes to a pipe",
        "it joins no multicast group",
    ] {
        assert!(notes.iter().any(|note| note.contains(words)), "{words}: {notes:#?}");
    }
}

/// Whether a file of the bench's own has grown below a directory.
fn is_written(directory: &Path) -> bool {
    let own = |path: &Path| path.to_string_lossy().contains("/.udpd-bench-");
    fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => is_written(&entry.path()),
        Ok(found) => found.is_file() && found.len() > 0 && own(&entry.path()),
        Err(_) => false,
    })
}

#[test]
fn a_search_that_is_ended_in_mid_trial_leaves_nothing_behind_either() {
    use Signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    for signals in [&[SIGINT][..], &[SIGTERM], &[SIGHUP], &[SIGUSR1], &[SIGINT, SIGTERM], &[SIGTERM, SIGINT]] {
        let site = Place::new();
        let before = site.everything();
        let arguments = ["-c", &site.at("udpd.toml"), "--rate", "1k..2k", "--seconds", "60"];
        let mut search = Process::start(site.search(&arguments).stdout(Stdio::null()));
        until("a trial has begun", || {
            assert!(search.status().is_none(), "the search has ended by itself");
            is_written(&site.directory.path().join("log"))
        });
        signals.iter().for_each(|signal| search.signal(*signal));
        let code = search.wait(site.directory.path(), "no ledger").status.code();
        // The second may come too late to be one.
        assert!(code == Some(0) || (signals.len() == 2 && code == Some(130)), "{signals:?}: {code:?}");
        assert_eq!(site.everything(), before, "{signals:?}");
        site.assert_nothing_came();
    }
}

#[test]
fn a_file_of_the_command_line_is_not_touched_and_nothing_stays_beside_it() {
    let site = Place::new();
    let before = site.everything();
    for to in ["log/in.log", "log/new.log", "nowhere/yet/new.log"] {
        let to = format!("file:{}", site.at(to));
        site.short_search(&["--to", &to]).succeeds(&["note: sink file: files in ", "removed afterwards"]);
        assert_eq!(site.everything(), before, "{to}");
    }
    let messages = format!("unix:{}", site.at("run/messages"));
    let relayed = format!("udp:{}", address_of(&site.relayed[0]));
    for to in [&messages, &relayed, "stdout:"] {
        site.short_search(&["--to", to]).succeeds(&["asked/s", " datagrams a second"]);
        assert_eq!(site.everything(), before, "{to}");
    }
    site.assert_nothing_came();
}

#[test]
fn where_no_file_can_be_written_files_go_to_the_temporary_directory_and_it_is_said() {
    let site = Place::new();
    let before = site.everything();
    let own = site.at("tmp/.udpd-bench-");
    site.short_search(&["--to", "file:/proc/max.log"]).succeeds(&[&own, "another file system"]);
    assert_eq!(site.everything(), before);
}

/// The same configuration with one sink, which is written there.
fn with_sink(site: &Place, (kind, keys): (&str, &str)) -> String {
    let path = site.at("one.toml");
    let setup = Setup::new().listens_at("127.0.0.1:25149").sink("one", kind, keys.replace('@', site.path()));
    fs::write(&path, setup.text()).expect("written");
    path
}

#[test]
fn real_sinks_are_refused_where_they_would_cost_data() {
    let site = Place::new();
    for (sink, words) in [
        (("file", "path = '@/log/new.log'\nkeep = { files = 2 }"), "its keep would remove files"),
        (("file", "path = '@/log/{listener}.log'"), "log/in.log exists already"),
        (("file", "path = '@/log/%Y/{lane}.pcapng'"), "log/2025/0.pcapng exists already"),
        (("file", "path = '@/log/latest'"), "log/latest exists already"),
        (("stdout", ""), "the report goes to standard output"),
    ] {
        let configuration = with_sink(&site, sink);
        let before = site.everything();
        site.short_search(&["-c", &configuration, "--real-sinks"]).ends(2, &[words, "sink one"]);
        assert_eq!(site.everything(), before, "{words}");
    }
}

#[test]
fn real_sinks_get_every_trial_and_are_named_before() {
    let site = Place::new();
    let there = address_of(&site.relayed[0]);
    for (sink, words) in [
        (("file", "path = '@/log/{sink}-{lane}.log'"), "writes @/log/one-0.log, and leaves there what it has written"),
        (("udp", &*format!("destinations = ['{there}']")), &*format!("sends all trials to {there}")),
    ] {
        let configuration = with_sink(&site, sink);
        let said = format!("note: sink one is real: it {}", words.replace('@', site.path()));
        let found = site.short_search(&["-c", &configuration, "--real-sinks", "--json"]).succeeds(&[&said]).json();
        let trials = list(&found["report"], "trials");
        let delivered: u64 = trials.iter().map(|trial| count(trial, "delivered")).sum();
        if sink.0 == "file" {
            let text = fs::read(site.at("log/one-0.log")).expect("the file");
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(lines as u64, delivered, "what is called delivered is in the file");
        }
    }
    assert!(site.relayed[0].recv(&mut [0; 100]).is_ok(), "the relay's destination has heard of it");
}

#[test]
fn a_file_that_is_there_already_is_no_place_for_a_report() {
    let site = Place::new();
    let before = site.everything();
    let ladder = ["ladder", "--steps", "pinned", "--rounds", "1", "--seconds", "0.1", "--rate", "1k"];
    let max = ["max", "--to", "null:", "--rate", "1k..2k", "--seconds", "0.1"];
    let recv = ["recv", "--listen", "127.0.0.1:25150", "--seconds", "0.1"];
    for form in [&ladder[..], &max, &recv] {
        for (name, force, words) in [
            ("log/in.log", false, "add --force"),
            ("log/latest", true, "is not a regular file"),
            ("log/latest", false, ""),
        ] {
            let mut command = Command::new(UDPD);
            command.arg("bench").args(form).args(["--csv", &site.at(name)]).args(force.then_some("--force"));
            Outcome::of(&mut command).ends(2, &[words]);
        }
    }
    assert_eq!(site.everything(), before);
}
