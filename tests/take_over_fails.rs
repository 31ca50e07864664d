//! `udpd run --take-over` that comes to nothing, at each step on the way: the daemon that runs goes on, loses nothing
//! and says why. Where a step has to be met exactly, the test itself is the process that takes over.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use crate::take_over::service;
use crate::util::*;

/// A process that takes over, as far as the test wants.
struct Challenger {
    stream: UnixStream,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Challenger {
    fn of(site: &Site) -> Self {
        let stream = UnixStream::connect(site.control_socket()).expect("a daemon listens");
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
            let mut receive = || recvmsg(&self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
            let read = rustix::io::retry_on_intr(&mut receive).expect("an answer").bytes;
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
    fn take_sockets(&mut self) -> Vec<String> {
        let offer = self.hear();
        assert!(offer["offer"].is_object(), "{offer:#}");
        self.say(&json!("send"));
        let names: Vec<String> = serde_json::from_value(self.hear()["sockets"].clone()).expect("names");
        assert_eq!(json!(names.len()), offer["offer"]["sockets"], "{offer:#}");
        assert_eq!(names.len(), self.descriptors.len());
        names
    }

    /// Has the daemon stop; what it says then.
    fn stop(&mut self, names: &[String]) -> Value {
        self.be_ready(names);
        self.hear()["stopped"].clone()
    }

    /// One for which the daemon has stopped.
    fn of_stopped(site: &Site) -> Self {
        let mut own = Self::of(site);
        let names = own.take_sockets();
        own.stop(&names);
        own
    }

    /// Has the daemon stop, and does not wait for that.
    fn be_ready(&mut self, names: &[String]) {
        self.say(&json!({ "ready": names }));
    }
}

/// A daemon with so many lanes and these keys, and where it listens.
fn running(lanes: usize, keys: &str) -> (Site, SocketAddr, Running) {
    let (mut site, address) = (Site::new(), free_address());
    let daemon = site.start(&service(address, lanes, keys));
    (site, address, daemon)
}

/// Lets every user ask the daemon.
fn open_to_all(site: &Site) {
    for path in [site.directory().to_owned(), site.control_socket()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
}

/// Sends a little, which the daemon that runs receives.
fn assert_receives(site: &Site, address: SocketAddr, before: u64) -> u64 {
    let sent = before + Load::steady(address, 500).send().sent;
    site.until_received(sent);
    sent
}

/// Ends a daemon that has received so much over its whole life.
#[track_caller]
fn end(site: &Site, running: Running, sent: u64) {
    assert_eq!(site.end_with(running, sent), sent);
}

#[test]
fn a_configuration_that_does_not_work_ends_the_new_process_and_leaves_the_old_one_as_it_is() {
    let (mut site, address, mut old) = running(2, "");
    let more = |other: String| service(address, 2, "").also("more", other, &["archive"]);
    let holder = socket();
    let held = more(address_of(&holder).to_string());
    std::os::unix::fs::symlink("/nonexistent", site.directory().join("link")).expect("a link");
    let elsewhere = more("192.0.2.1:5140".into());
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
        let new = site.challenge(&text).wait();
        assert_eq!(new.status.code(), Some(code), "{}", new.stderr);
        if let Some(said) = said {
            let line = old.await_line(said);
            assert!(line.contains("does not"), "{line}");
        }
        sent = assert_receives(&site, address, sent);
    }
    end(&site, old, sent);
}

#[test]
fn a_process_that_goes_before_it_is_ready_is_named_and_nothing_else_happens() {
    for engine in two_engines() {
        let (site, address, mut old) = running(2, engine);
        let sender = Load::steady(address, 20_000).spawn();
        let mut challenger = Challenger::of(&site);
        drop(challenger.take_sockets());
        drop(challenger);
        let line = old.await_line("wanted to take over and does not");
        assert!(line.contains("it has ended without a word"), "{line}");
        let mut challenger = Challenger::of(&site);
        challenger.take_sockets();
        challenger.say(&json!({ "error": "no memory" }));
        old.await_line("does not: no memory; nothing has changed here");
        let report = sender.join().expect("it has sent");
        end(&site, old, report.sent);
        report.assert_each_once(&contents(site.directory(), "in.log"));
    }
}

#[test]
fn a_new_process_that_is_killed_while_it_waits_for_the_sockets_leaves_the_old_one_as_it_is() {
    let (mut site, address, mut old) = running(2, "");
    let sent = assert_receives(&site, address, 0);
    // A daemon that does not answer keeps the other one at this point.
    old.signal(Signal::SIGSTOP);
    let mut new = site.challenge(&service(address, 4, ""));
    new.await_line(&format!("asking process {}", old.pid()));
    assert!(!new.end_by(Signal::SIGKILL).status.success());
    old.signal(Signal::SIGCONT);
    old.await_line("wanted to take over and does not");
    let sent = assert_receives(&site, address, sent);
    end(&site, old, sent);
}

#[test]
fn a_daemon_that_is_told_to_end_meanwhile_leaves_the_new_one_to_start_as_ever() {
    let (mut site, address) = (Site::new(), free_address());
    for lanes in [1, 2] {
        let old = site.start(&service(address, lanes, ""));
        let sent = assert_receives(&site, address, 0);
        let mut new = site.challenge(&service(address, lanes, ""));
        new.await_line("this process makes all else first");
        new.signal(Signal::SIGSTOP);
        assert_eq!(old.terminate().received(), sent);
        new.signal(Signal::SIGCONT);
        new.await_line("has ended by itself and has given up its sockets");
        new.await_line("ready: ");
        let sent = Load::steady(address, 300).send().sent;
        end(&site, new, sent);
    }
}

/// Waits until every thread of a process is stopped: it is told at once and a running one needs a moment.
fn await_stop(process: u32) {
    let is_stopped =
        |thread: &Thread| thread.read("stat").rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
    until("all threads are stopped", || threads(process).iter().all(is_stopped));
}

#[test]
fn a_daemon_that_is_killed_as_soon_as_it_has_passed_its_sockets_loses_nothing_that_waits_there() {
    for lanes in [1, 2] {
        let (mut site, address, old) = running(lanes, "");
        let sent = assert_receives(&site, address, 0);
        let mut new = site.challenge(&service(address, lanes, ""));
        new.await_line("this process makes all else first");
        new.signal(Signal::SIGSTOP);
        old.signal(Signal::SIGSTOP);
        await_stop(old.pid());
        let waits = Load::steady(address, 300).send().sent;
        let pid = old.pid();
        assert!(!old.end_by(Signal::SIGKILL).status.success());
        new.signal(Signal::SIGCONT);
        new.await_line("has died before it could be taken over from; its sockets are here and go on");
        new.await_line("ready: ");
        let ledger = site.stats();
        let before = &ledger["before"];
        assert_eq!(
            (&before["pid"], &before["ended"], &before["kernel_dropped"]),
            (&json!(pid), &json!(false), &json!(0))
        );
        assert_eq!(ledger["listeners"][0]["kernel_dropped_between"], json!(0), "{ledger:#}");
        assert!(sent > 0 && waits > 0);
        end(&site, new, waits);
    }
}

#[test]
fn a_daemon_that_is_killed_before_it_has_passed_its_sockets_leaves_what_is_unknown_as_null_and_that_is_said() {
    let (mut site, address, old) = running(1, "");
    let pid = old.pid();
    // It is asked, and answers no more.
    old.signal(Signal::SIGSTOP);
    let mut new = site.challenge(&service(address, 1, ""));
    new.await_line("for its sockets");
    assert!(!old.end_by(Signal::SIGKILL).status.success());
    new.await_line(&format!("process {pid} has ended before it had passed its sockets"));
    new.await_line("ready: ");
    let ledger = site.stats();
    let before = &ledger["before"];
    assert_eq!((&before["pid"], &before["ended"]), (&json!(pid), &json!(false)), "{before:#}");
    for key in ["lost_datagrams_at_most", "lost_bytes_at_most", "in_flight", "kernel_dropped", "dropped"] {
        assert_eq!(before[key], json!(null), "{key}: {before:#}");
    }
    let sent = Load::steady(address, 300).send().sent;
    end(&site, new, sent);
}

#[test]
fn a_new_process_that_glues_trains_and_fails_leaves_datagrams_as_they_were() {
    let (mut site, address, mut old) = running(1, "gro = 'off'");
    std::os::unix::fs::symlink("/nonexistent", site.directory().join("link")).expect("a link");
    let text = service(address, 1, "gro = 'on'").replace("in.log", "link");
    assert_eq!(site.challenge(&text).wait().status.code(), Some(74));
    old.await_line("receives again, in force");
    let sender = socket();
    setsockopt(&sender, UdpGsoSegment, &100).expect("Linux 4.18");
    sender.send_to(&[b'x'; 1000], address).expect("it is sent");
    end(&site, old, 10);
}

#[test]
fn a_process_that_is_ready_and_dies_gives_the_place_back_and_what_came_meanwhile_is_received() {
    for engine in two_engines() {
        let (site, address, mut old) = running(2, engine);
        let sender = Load::steady(address, 40_000).spawn();
        for _ in 0..3 {
            let mut challenger = Challenger::of(&site);
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
        end(&site, old, report.sent);
        report.assert_each_once(&contents(site.directory(), "in.log"));
    }
}

#[test]
fn after_a_place_was_given_back_another_process_takes_over_as_ever() {
    let (mut site, address, mut old) = running(2, "");
    let sent = assert_receives(&site, address, 0);
    let challenger = Challenger::of_stopped(&site);
    // What comes now waits.
    let more = Load::steady(address, 300).send().sent;
    drop(challenger);
    old.await_line("receives again, in force");
    let (new, ended) = site.succeed(old, &service(address, 3, ""));
    assert_eq!(ended.received(), sent + more);
    let last = Load::steady(address, 300).send().sent;
    end(&site, new, last);
}

#[test]
fn what_the_kernel_drops_before_a_place_is_given_back_is_in_the_books_once() {
    let (mut site, address) = (Site::new(), free_address());
    let mut old = site.start(&service(address, 2, "").replace("64MiB", "32KiB"));
    let challenger = Challenger::of_stopped(&site);
    let sent = Load::steady(address, 5000).overrunning().send().sent;
    drop(challenger);
    old.await_line("receives again, in force");
    let ended = old.terminate().closed(sent);
    assert!(count(ended.listener(), "kernel_dropped") > 1000, "{:#}", ended.ledger);
}

#[test]
fn one_at_a_time() {
    let (mut site, address, mut old) = running(1, "");
    let mut challenger = Challenger::of(&site);
    challenger.take_sockets();
    let second = site.challenge(&service(address, 1, "")).wait();
    assert_eq!(second.status.code(), Some(1), "{}", second.stderr);
    assert!(second.stderr.contains("another process is about to take over"), "{}", second.stderr);
    drop(challenger);
    old.await_line("wanted to take over and does not");
    let (new, _) = site.succeed(old, &service(address, 1, ""));
    new.terminate().closed(0);
}

#[test]
fn sockets_that_are_others_than_those_that_were_sent_are_left_to_no_process() {
    let (site, address, mut old) = running(1, "");
    let mut challenger = Challenger::of(&site);
    let names = challenger.take_sockets();
    let file = site.configuration();
    let text = std::fs::read_to_string(&file).expect("its configuration");
    std::fs::write(&file, text.replace("lanes = 1", "lanes = 3")).expect("written");
    site.command("reload").succeeds(&[]);
    challenger.say(&json!({ "ready": names }));
    let refused = challenger.hear();
    assert!(refused["error"].as_str().is_some_and(|why| why.contains("have changed meanwhile")), "{refused}");
    old.await_line("have changed meanwhile");
    let sent = assert_receives(&site, address, 0);
    end(&site, old, sent);
}

#[test]
fn another_user_is_refused_by_either_side() {
    if !is_root() {
        return not_checked("another user: it takes root to be another user");
    }
    let (mut site, address, mut old) = running(1, "");
    open_to_all(&site);
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let program = UDPD;
    let runs = Command::new(other[0]).args(&other[1..]).args([program, "--version"]).output();
    if !runs.is_ok_and(|output| output.status.success()) {
        return not_checked("another user: it cannot run this program, or there is no setpriv");
    }
    let new = site.launch(&service(address, 1, ""), &other, &["--take-over"]).wait();
    assert_eq!(new.status.code(), Some(77), "{}", new.stderr);
    assert!(new.stderr.contains("of user 0, and this process of user 65534"), "{}", new.stderr);
    // The new one looks first. One that does not is refused all the same.
    old.await_line("wanted to take over and does not: it is of user 65534, and this process of user 0");
    let sent = assert_receives(&site, address, 0);
    end(&site, old, sent);
}

/// A member of the daemon's group may open its control socket, and may ask as often as it likes.
#[test]
fn another_user_that_asks_a_thousand_times_is_refused_each_time_and_costs_the_log_one_line() {
    if !is_root() {
        return not_checked("another user: it takes root to become one");
    }
    let (site, _, old) = running(1, "");
    open_to_all(&site);
    let refused = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let other = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(other, other, other).expect("root may become any user");
            let ask = |_| {
                let mut stream = UnixStream::connect(site.control_socket()).expect("all users may");
                stream.write_all(b"take-over\n").expect("it is heard");
                let answer = std::io::read_to_string(stream).expect("an answer");
                assert!(answer.contains("it is of user 65534") || answer.contains("is about to"), "{answer}");
                answer.contains("it is of user 65534")
            };
            (0..1000).map(ask).filter(|is_refused| *is_refused).count()
        });
        asking.join().expect("no panic")
    });
    let finished = old.terminate();
    assert!(finished.status.success() && refused > 1, "{refused}: {}", finished.stderr);
    finished.assert_logged("wanted to take over and does not: it is of user 65534", 1);
}

/// It has ended by itself with a failure that says this, and its ledger closes over so many datagrams.
fn assert_stranded(ended: &Ended, why: &str, sent: u64) {
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.lines(why).iter().any(|line| line.contains("stopping: ")), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
}

#[test]
fn a_daemon_that_has_stopped_and_cannot_open_its_file_again_ends_and_counts_what_came_meanwhile() {
    let (site, address, old) = running(2, "");
    let first = Load::steady(address, 500).send().sent;
    site.until_received(first);
    let challenger = Challenger::of_stopped(&site);
    // What comes now waits in the sockets.
    let waiting = Load::steady(address, 300).send().sent;
    let file = site.directory().join("in.log");
    std::fs::rename(&file, file.with_extension("moved")).expect("it is there");
    std::os::unix::fs::symlink("/nonexistent", &file).expect("a link");
    drop(challenger);
    let ended = old.wait();
    assert_stranded(&ended, "this process cannot receive again: ", first + waiting);
    ended.logged(&["it is a symbolic link"]);
    let listener = ended.listener();
    let delivered = count(&listener["sinks"][0], "delivered");
    assert_eq!((delivered, dropped(listener, "unread")), (first, waiting), "{listener:#}");
}

#[test]
fn a_daemon_that_was_to_give_up_a_socket_ends_when_the_other_process_dies_while_it_delivers_the_rest() {
    let (mut site, address) = (Site::new(), free_address());
    let peer = UnixListener::bind(site.directory().join("peer")).expect("bound");
    let keys = "socket = 'stream'\npath = '@DIR@/peer'";
    let setup = Setup::at(address).keys("lanes = 2\nreceive_buffer = '64MiB'").sink("archive", "unix", keys);
    let mut old = site.start(&setup);
    let (mut reader, _) = peer.accept().expect("it connects");
    // More than a socket takes from a peer that does not read.
    let first = Load::steady(address, 2_000).bytes(1000).send().sent;
    site.until_received(first);
    let mut challenger = Challenger::of(&site);
    let names = challenger.take_sockets();
    challenger.be_ready(&names[..1]);
    old.await_line("this process receives no more");
    drop(challenger);
    // Of two sockets one waits for the other process, and one refuses.
    let waiting = Load::steady(address, 300).send().sent;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).map(|_| text.iter().filter(|byte| **byte == b'\n').count() as u64)
    });
    let ended = old.wait();
    assert_stranded(&ended, "its configuration left no way back", first + waiting);
    let listener = ended.listener();
    // A receiver may have had some of it before it heard that it is to end.
    let (offered, unread) = (count(&listener["sinks"][0], "offered"), dropped(listener, "unread"));
    assert_eq!(offered + unread + count(listener, "kernel_dropped"), first + waiting, "{listener:#}");
    let read = reader.join().expect("it ends").expect("readable");
    assert_eq!((count(&listener["sinks"][0], "delivered"), read), (offered, offered), "{listener:#}");
}

#[test]
fn a_signal_to_the_old_process_to_end_meanwhile_is_heard() {
    let (mut site, address, old) = running(1, "");
    let sent = Load::steady(address, 300).send().sent;
    site.until_received(sent);
    let challenger = Challenger::of_stopped(&site);
    // It waits for a word that never comes.
    let ended = old.terminate();
    assert_eq!(ended.received(), sent);
    drop(challenger);
    let mut next = site.challenge(&service(address, 1, ""));
    next.await_line("nothing to take over");
    next.await_line("ready: ");
    assert!(next.terminate().status.success());
}
