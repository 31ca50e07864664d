//! `udpd run --take-over` that comes to nothing, at each step on the way: the daemon that runs goes on, loses nothing
//! and says why. Where a step has to be met exactly, the test itself is the process that takes over.

use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use crate::take_over::{assert_all_once, end_with, load, service};
use crate::util::daemon::free_address;
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count};
use crate::util::succession::{Running, Succession};

/// A process that takes over, as far as the test wants.
pub(crate) struct Challenger {
    stream: UnixStream,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Challenger {
    pub(crate) fn of(succession: &Succession) -> Self {
        let stream = UnixStream::connect(succession.control_socket()).expect("somebody listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit above zero");
        let mut own = Self { stream, bytes: Vec::new(), descriptors: Vec::new() };
        own.stream.write_all(b"take-over\n").expect("it is heard");
        own
    }

    fn say(&mut self, word: &Value) {
        self.stream.write_all(format!("{word}\n").as_bytes()).expect("it is heard");
    }

    fn hear(&mut self) -> Value {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return serde_json::from_slice(&line).expect("a line of JSON");
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
            let mut piece = [0; 4096];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut piece)];
            let read = recvmsg(&self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("an answer").bytes;
            assert!(read > 0, "it has hung up after {:?}", String::from_utf8_lossy(&self.bytes));
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                    self.descriptors.extend(descriptors);
                }
            }
            self.bytes.extend_from_slice(&piece[..read]);
        }
    }

    /// Gets the offer and the sockets; the names.
    pub(crate) fn take_sockets(&mut self) -> Vec<String> {
        let offer = self.hear();
        assert!(offer["offer"].is_object(), "{offer:#}");
        self.say(&json!("send"));
        let names: Vec<String> = serde_json::from_value(self.hear()["sockets"].clone()).expect("names");
        assert_eq!(json!(names.len()), offer["offer"]["sockets"], "{offer:#}");
        assert_eq!(names.len(), self.descriptors.len());
        names
    }

    /// Has the daemon stop; what it says then.
    pub(crate) fn stop(&mut self, names: &[String]) -> Value {
        self.be_ready(names);
        self.hear()["stopped"].clone()
    }

    /// Has the daemon stop, and does not wait for that.
    pub(crate) fn be_ready(&mut self, names: &[String]) {
        self.say(&json!({ "ready": names }));
    }
}

/// Sends a little, which the daemon that runs receives.
fn assert_receives(succession: &Succession, address: SocketAddr, before: u64) -> u64 {
    let sent = before + load(address, 500).send().sent;
    let all = |ledger: &Value| count(&ledger["listeners"][0], "received") == sent;
    succession.stats_when("what was sent has come", all);
    sent
}

/// Ends a daemon that has received so much over its whole life.
#[track_caller]
fn end(succession: &Succession, running: Running, sent: u64) {
    assert_eq!(end_with(succession, running, sent), sent);
}

#[test]
fn a_configuration_that_does_not_work_ends_the_new_process_and_leaves_the_old_one_as_it_is() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 2, ""));
    let more =
        |address: &str| format!("[[listener]]\nname = \"more\"\naddress = \"{address}\"\nsinks = [\"archive\"]\n");
    let holder = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("bound");
    let held = format!("{}{}", more(&taken.to_string()), service(address, 2, ""));
    std::os::unix::fs::symlink("/nonexistent", succession.directory().join("link")).expect("a link");
    let elsewhere = format!("{}{}", more("192.0.2.1:5140"), service(address, 2, ""));
    let cases = [
        // It never comes to asking for the sockets.
        (service(address, 2, "nonsense = 1"), 78, None),
        (elsewhere, 69, Some("cannot bind 192.0.2.1:5140")),
        (held, 69, Some("holds it")),
        // Only when the old one has closed its files.
        (service(address, 2, "").replace("in.log", "link"), 74, Some("it is a symbolic link")),
    ];
    let mut sent = 0;
    for (text, code, said) in cases {
        let new = succession.challenge(&text).wait();
        assert_eq!(new.status.code(), Some(code), "{}", new.stderr);
        if let Some(said) = said {
            let line = old.await_line(said);
            assert!(line.contains("does not"), "{line}");
        }
        sent = assert_receives(&succession, address, sent);
    }
    end(&succession, old, sent);
}

#[test]
fn a_process_that_goes_before_it_is_ready_is_named_and_nothing_else_happens() {
    for engine in two_engines() {
        let (mut succession, address) = (Succession::new(), free_address());
        let mut old = succession.start(&service(address, 2, engine));
        let sender = load(address, 20_000).spawn();
        let mut challenger = Challenger::of(&succession);
        drop(challenger.take_sockets());
        drop(challenger);
        let line = old.await_line("wanted to take over and does not");
        assert!(line.contains("it has ended without a word"), "{line}");
        let mut challenger = Challenger::of(&succession);
        challenger.take_sockets();
        challenger.say(&json!({ "error": "no memory" }));
        old.await_line("does not: no memory; nothing has changed here");
        let report = sender.join().expect("it has sent");
        end(&succession, old, report.sent);
        assert_all_once(&succession, &report, engine);
    }
}

#[test]
fn a_new_process_that_is_killed_while_it_waits_for_the_sockets_leaves_the_old_one_as_it_is() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 2, ""));
    let sent = assert_receives(&succession, address, 0);
    // A daemon that does not answer keeps the other one at this point.
    old.signal(Signal::SIGSTOP);
    let mut new = succession.challenge(&service(address, 4, ""));
    new.await_line(&format!("asking process {}", old.pid()));
    assert!(!new.end_by(Signal::SIGKILL).status.success());
    old.signal(Signal::SIGCONT);
    old.await_line("wanted to take over and does not");
    let sent = assert_receives(&succession, address, sent);
    end(&succession, old, sent);
}

#[test]
fn a_daemon_that_is_told_to_end_meanwhile_leaves_the_new_one_to_start_as_ever() {
    let (mut succession, address) = (Succession::new(), free_address());
    for lanes in [1, 2] {
        let old = succession.start(&service(address, lanes, ""));
        let sent = assert_receives(&succession, address, 0);
        let mut new = succession.challenge(&service(address, lanes, ""));
        new.await_line("this process makes all else first");
        new.signal(Signal::SIGSTOP);
        assert_eq!(crate::take_over::received_by(&old.end_by(Signal::SIGTERM)), sent);
        new.signal(Signal::SIGCONT);
        new.await_line("has ended by itself and has given up its sockets");
        new.await_line("ready: ");
        let sent = load(address, 300).send().sent;
        end(&succession, new, sent);
    }
}

/// Waits until every thread of a process is stopped: it is told at once and a running one needs a moment.
fn await_stop(process: u32) {
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there").flatten();
    while !tasks().all(is_stopped) {
        std::thread::yield_now();
    }
}

#[test]
fn a_daemon_that_is_killed_as_soon_as_it_has_passed_its_sockets_loses_nothing_that_waits_there() {
    for lanes in [1, 2] {
        let (mut succession, address) = (Succession::new(), free_address());
        let old = succession.start(&service(address, lanes, ""));
        let sent = assert_receives(&succession, address, 0);
        let mut new = succession.challenge(&service(address, lanes, ""));
        new.await_line("this process makes all else first");
        new.signal(Signal::SIGSTOP);
        old.signal(Signal::SIGSTOP);
        await_stop(old.pid());
        let waits = load(address, 300).send().sent;
        let pid = old.pid();
        assert!(!old.end_by(Signal::SIGKILL).status.success());
        new.signal(Signal::SIGCONT);
        new.await_line("has died before it could be taken over from; its sockets are here and go on");
        new.await_line("ready: ");
        let ledger = succession.stats_when("it answers", |_| true);
        let before = &ledger["before"];
        assert_eq!(
            (&before["pid"], &before["ended"], &before["kernel_dropped"]),
            (&json!(pid), &json!(false), &json!(0))
        );
        assert_eq!(ledger["listeners"][0]["kernel_dropped_between"], json!(0), "{ledger:#}");
        assert!(sent > 0 && waits > 0);
        end(&succession, new, waits);
    }
}

#[test]
fn a_daemon_that_is_killed_before_it_has_passed_its_sockets_leaves_what_is_unknown_as_null_and_that_is_said() {
    let (mut succession, address) = (Succession::new(), free_address());
    let old = succession.start(&service(address, 1, ""));
    let pid = old.pid();
    // It is asked, and answers no more.
    old.signal(Signal::SIGSTOP);
    let mut new = succession.challenge(&service(address, 1, ""));
    new.await_line("for its sockets");
    assert!(!old.end_by(Signal::SIGKILL).status.success());
    new.await_line(&format!("process {pid} has ended before it had passed its sockets"));
    new.await_line("ready: ");
    let ledger = succession.stats_when("it answers", |_| true);
    let before = &ledger["before"];
    assert_eq!((&before["pid"], &before["ended"]), (&json!(pid), &json!(false)), "{before:#}");
    for key in ["lost_datagrams_at_most", "lost_bytes_at_most", "in_flight", "kernel_dropped", "dropped"] {
        assert_eq!(before[key], json!(null), "{key}: {before:#}");
    }
    let sent = load(address, 300).send().sent;
    end(&succession, new, sent);
}

#[test]
fn a_new_process_that_glues_trains_and_fails_leaves_datagrams_as_they_were() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 1, "gro = \"off\""));
    std::os::unix::fs::symlink("/nonexistent", succession.directory().join("link")).expect("a link");
    let text = service(address, 1, "gro = \"on\"").replace("in.log", "link");
    assert_eq!(succession.challenge(&text).wait().status.code(), Some(74));
    old.await_line("receives again, in force");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    setsockopt(&sender, UdpGsoSegment, &100).expect("Linux 4.18");
    sender.send_to(&[b'x'; 1000], address).expect("it is sent");
    end(&succession, old, 10);
}

#[test]
fn who_is_ready_and_dies_gives_the_place_back_and_what_came_meanwhile_is_received() {
    for engine in two_engines() {
        let (mut succession, address) = (Succession::new(), free_address());
        let mut old = succession.start(&service(address, 2, engine));
        let sender = load(address, 40_000).spawn();
        for _ in 0..3 {
            let mut challenger = Challenger::of(&succession);
            let names = challenger.take_sockets();
            let stopped = challenger.stop(&names);
            assert_eq!(stopped["ends"], json!(false), "{stopped:#}");
            assert_eq!(stopped["record"]["pid"], json!(old.pid()), "{stopped:#}");
            drop(challenger);
            let line = old.await_line("was to take over and does not");
            assert!(line.contains("this process receives again"), "{line}");
            old.await_line("receives again, in force");
        }
        let report = sender.join().expect("it has sent");
        end(&succession, old, report.sent);
        assert_all_once(&succession, &report, engine);
    }
}

#[test]
fn after_a_place_was_given_back_another_process_takes_over_as_ever() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 2, ""));
    let sent = assert_receives(&succession, address, 0);
    let mut challenger = Challenger::of(&succession);
    let names = challenger.take_sockets();
    challenger.stop(&names);
    // What comes now waits.
    let more = load(address, 300).send().sent;
    drop(challenger);
    old.await_line("receives again, in force");
    let (new, ended) = succession.succeed(old, &service(address, 3, ""));
    assert_eq!(crate::take_over::received_by(&ended), sent + more);
    let last = load(address, 300).send().sent;
    end(&succession, new, last);
}

#[test]
fn what_the_kernel_drops_before_a_place_is_given_back_is_in_the_books_once() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 2, "").replace("64MiB", "32KiB"));
    let mut challenger = Challenger::of(&succession);
    let names = challenger.take_sockets();
    challenger.stop(&names);
    let mut flood = load(address, 5000);
    flood.overruns = true;
    let sent = flood.send().sent;
    drop(challenger);
    old.await_line("receives again, in force");
    let ended = old.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, sent);
    assert!(count(&ended.ledger["listeners"][0], "kernel_dropped") > 1000, "{:#}", ended.ledger);
}

#[test]
fn one_at_a_time() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 1, ""));
    let mut challenger = Challenger::of(&succession);
    challenger.take_sockets();
    let second = succession.challenge(&service(address, 1, "")).wait();
    assert_eq!(second.status.code(), Some(1), "{}", second.stderr);
    assert!(second.stderr.contains("another process is about to take over"), "{}", second.stderr);
    drop(challenger);
    old.await_line("wanted to take over and does not");
    let (new, ended) = succession.succeed(old, &service(address, 1, ""));
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(new.end_by(Signal::SIGTERM).status.success());
}

#[test]
fn sockets_that_are_others_than_those_that_were_sent_are_not_left_to_anybody() {
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 1, ""));
    let mut challenger = Challenger::of(&succession);
    let names = challenger.take_sockets();
    let file = succession.directory().join("udpd-1.toml");
    let text = std::fs::read_to_string(&file).expect("its configuration");
    std::fs::write(&file, text.replace("lanes = 1", "lanes = 3")).expect("written");
    let socket = succession.control_socket();
    let reloaded = crate::util::daemon::udpd(&["reload", "--socket", socket.to_str().expect("UTF-8")]);
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    challenger.say(&json!({ "ready": names }));
    let refused = challenger.hear();
    assert!(refused["error"].as_str().is_some_and(|why| why.contains("have changed meanwhile")), "{refused}");
    old.await_line("have changed meanwhile");
    let sent = assert_receives(&succession, address, 0);
    end(&succession, old, sent);
}

#[test]
fn another_user_is_refused_by_either_side() {
    if !nix::unistd::geteuid().is_root() {
        return not_checked("another user: it takes root to be somebody else");
    }
    let (mut succession, address) = (Succession::new(), free_address());
    let mut old = succession.start(&service(address, 1, ""));
    for path in [succession.directory().to_owned(), succession.control_socket()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let program = env!("CARGO_BIN_EXE_udpd");
    let runs = Command::new(nobody[0]).args(&nobody[1..]).args([program, "--version"]).output();
    if !runs.is_ok_and(|output| output.status.success()) {
        return not_checked("another user: it cannot run this program, or there is no setpriv");
    }
    let new = succession.launch(&service(address, 1, ""), &nobody, &["--take-over"]).wait();
    assert_eq!(new.status.code(), Some(77), "{}", new.stderr);
    assert!(new.stderr.contains("of user 0, and this process of user 65534"), "{}", new.stderr);
    // The new one looks first. One that does not is refused all the same.
    old.await_line("wanted to take over and does not: it is of user 65534, and this process of user 0");
    let sent = assert_receives(&succession, address, 0);
    end(&succession, old, sent);
}

/// A member of the daemon's group may open its control socket, and may ask as often as it likes.
#[test]
fn another_user_that_asks_a_thousand_times_is_refused_each_time_and_costs_the_log_one_line() {
    if !nix::unistd::geteuid().is_root() {
        return not_checked("another user: it takes root to become one");
    }
    let (mut succession, address) = (Succession::new(), free_address());
    let old = succession.start(&service(address, 1, ""));
    for path in [succession.directory().to_owned(), succession.control_socket()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
    let refused = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let other = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(other, other, other).expect("root may become any user");
            let ask = |_| {
                let mut stream = UnixStream::connect(succession.control_socket()).expect("all users may");
                stream.write_all(b"take-over\n").expect("it is heard");
                let answer = std::io::read_to_string(stream).expect("an answer");
                assert!(answer.contains("it is of user 65534") || answer.contains("is about to"), "{answer}");
                answer.contains("it is of user 65534")
            };
            (0..1000).map(ask).filter(|is_refused| *is_refused).count()
        });
        asking.join().expect("no panic")
    });
    let finished = old.end_by(Signal::SIGTERM);
    assert!(finished.status.success() && refused > 1, "{refused}: {}", finished.stderr);
    let lines = finished.stderr.matches("wanted to take over and does not: it is of user 65534").count();
    assert_eq!(lines, 1, "of {refused} refusals: {}", finished.stderr);
}

#[allow(clippy::print_stderr)]
fn not_checked(what: &str) {
    eprintln!("NOT CHECKED: {what}");
}
