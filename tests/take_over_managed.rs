//! `udpd run --take-over` where somebody else has a say: a service manager, a sink that takes nothing, a kill of the
//! process that is to end.

use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::take_over::{end_with, load, service};
use crate::util::daemon::free_address;
use crate::util::ledger::{assert_closed, count, sum};
use crate::util::succession::Succession;

/// What a service manager hears, message by message.
fn manager(succession: &Succession) -> (String, Receiver<String>) {
    let path = succession.directory().join("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("a name that is free");
    let (tell, heard) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // What comes with a message is closed here, which is what a barrier waits for.
        while let Ok(length) = socket.recv(&mut bytes) {
            if tell.send(String::from_utf8_lossy(&bytes[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    (format!("NOTIFY_SOCKET={}", path.display()), heard)
}

#[test]
fn a_service_is_taken_over_from_only_from_within_and_the_manager_is_told_which_process_it_is() {
    let (mut succession, address) = (Succession::new(), free_address());
    let (variable, heard) = manager(&succession);
    let text = service(address, 2, "");
    let own = ["env", &variable, "INVOCATION_ID=1"];
    let mut old = succession.launch(&text, &own, &[]);
    old.await_line("ready: ");
    let others = ["env", &variable, "INVOCATION_ID=2"];
    for by in [&[][..], &others] {
        let refused = succession.launch(&text, by, &["--take-over"]).wait();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("systemctl restart"), "{}", refused.stderr);
        old.await_line("wanted to take over and does not: cannot take over from process");
    }
    let mut new = succession.launch(&text, &own, &["--take-over"]);
    new.await_line("ready: ");
    let old = old.wait();
    assert!(old.status.success(), "{}", old.stderr);
    let main = format!("MAINPID={}", new.pid());
    let mut told: Vec<String> = Vec::new();
    // It comes by a thread of its own, and so maybe after the line in the log.
    let is_complete = |told: &[String]| {
        told.iter().position(|line| *line == main).is_some_and(|place| told[place..].contains(&"READY=1".to_owned()))
    };
    while !is_complete(&told) {
        let text = heard.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("not told: {told:?}"));
        told.extend(text.lines().map(str::to_owned));
    }
    let place = |line: &str| told.iter().position(|told| told == line);
    assert_eq!(place("STOPPING=1"), None, "the service goes on: {told:?}");
    let sent = load(address, 300).send().sent;
    assert_eq!(end_with(&succession, new, sent), sent);
}

/// A listener that hands on to a Unix socket from which nobody takes anything.
fn stuck(address: std::net::SocketAddr) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        sinks = ["out"]
        [sink.out]
        type = "unix"
        path = "@DIR@/out.sock"
        "#
    )
}

fn take_all(socket: &UnixDatagram) -> u64 {
    socket.set_nonblocking(true).expect("it can be set");
    let mut bytes = [0; 2048];
    std::iter::from_fn(|| socket.recv(&mut bytes).ok()).count() as u64
}

#[test]
fn a_process_that_is_killed_while_it_stops_leaves_its_sockets_to_the_new_one() {
    let (mut succession, address) = (Succession::new(), free_address());
    let out = UnixDatagram::bind(succession.directory().join("out.sock")).expect("a name that is free");
    let mut old = succession.start(&stuck(address));
    load(address, 3000).send();
    succession.stats_when("all is received", |ledger| count(&ledger["listeners"][0], "received") == 3000);
    let mut new = succession.challenge(&service(address, 1, ""));
    // It waits for its sink now, which takes nothing.
    old.await_line("is ready to take over: this process receives no more");
    let pid = old.pid();
    assert!(!old.end_by(Signal::SIGKILL).status.success());
    new.await_line("has died before it could be taken over from");
    new.await_line("was killed or has crashed");
    new.await_line("ready: ");
    let lost = 3000 - take_all(&out);
    let sent = load(address, 400).send().sent;
    let ledger = succession.stats_when("it receives", |ledger| count(&ledger["listeners"][0], "received") == sent);
    let before = &ledger["before"];
    assert_eq!((&before["pid"], &before["ended"]), (&json!(pid), &json!(false)), "{before:#}");
    assert!(lost > 0 && count(before, "lost_datagrams_at_most") >= lost, "{lost} are lost: {before:#}");
    assert_eq!(end_with(&succession, new, sent), sent);
}

#[test]
fn a_sink_that_takes_nothing_delays_a_take_over_and_is_in_the_books() {
    let (mut succession, address) = (Succession::new(), free_address());
    let out = UnixDatagram::bind(succession.directory().join("out.sock")).expect("a name that is free");
    let old = succession.start(&stuck(address));
    load(address, 3000).send();
    succession.stats_when("all is received", |ledger| count(&ledger["listeners"][0], "received") == 3000);
    let (new, ended) = succession.succeed(old, &service(address, 1, ""));
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, 3000);
    let sink = &ended.ledger["listeners"][0]["sinks"][0];
    let delivered = count(sink, "delivered");
    assert_eq!(delivered + sum(&sink["dropped"]), 3000, "{sink:#}");
    // One that was sent in the last moment may not have been counted as delivered any more.
    assert!(take_all(&out) >= delivered, "{sink:#}");
    let sent = load(address, 400).send().sent;
    assert_eq!(end_with(&succession, new, sent), sent);
}

#[test]
fn who_wants_the_old_process_to_end_meanwhile_is_heard() {
    let (mut succession, address) = (Succession::new(), free_address());
    let old = succession.start(&service(address, 1, ""));
    let sent = load(address, 300).send().sent;
    succession.stats_when("all is received", |ledger| count(&ledger["listeners"][0], "received") == sent);
    let mut challenger = crate::take_over_fails::Challenger::of(&succession);
    let names = challenger.take_sockets();
    challenger.stop(&names);
    // It waits for a word that never comes.
    let ended = old.end_by(Signal::SIGTERM);
    assert_eq!(crate::take_over::received_by(&ended), sent);
    drop(challenger);
    let mut next = succession.challenge(&service(address, 1, ""));
    next.await_line("nothing to take over");
    next.await_line("ready: ");
    assert!(next.end_by(Signal::SIGTERM).status.success());
}
