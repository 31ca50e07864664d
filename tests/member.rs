//! A member of a fleet: it says whether it is ready, and leaves without losing what is still sent to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::util::*;

/// A daemon with these keys of `[daemon]` that answers checks of health on the number of its own port.
fn member(keys: &str) -> (Daemon, SocketAddr) {
    let address = free_address();
    let health = format!("{keys}\nhealth_address = \"{address}\"");
    (Setup::at(address).daemon(&health).file("archive", "in.log").start(), address)
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut client = TcpStream::connect(address).expect("it accepts");
    client.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("it answers");
    answer
}

fn is_ready(address: SocketAddr) -> bool {
    get(address, "/ready").starts_with("HTTP/1.1 200 OK")
}

#[test]
fn after_sigterm_a_member_with_a_drain_is_not_ready_receives_on_and_ends_when_nothing_comes_any_more() {
    let (daemon, health) = member("drain = \"60s\"\ndrain_quiet = \"500ms\"");
    until("it is ready", || is_ready(health));
    daemon.command("ready").succeeds(&["ready"]);
    let mut sent = daemon.send(100);
    daemon.until_received(sent);
    daemon.signal(Signal::SIGTERM);
    until("it is not ready", || !is_ready(health));
    assert!(get(health, "/ready").contains("\r\n\r\ndraining\n") && get(health, "/live").contains("200 OK"));
    daemon.command("ready").ends(1, &["not ready: draining"]);
    daemon.command("undrain").ends(1, &["SIGTERM"]);
    sent += daemon.send(250);
    let ended = daemon.wait_for_end().closed(sent);
    ended.logged(&["SIGTERM: draining", "drained: 250 datagrams came"]);
    assert_eq!(count(&ended.ledger["drain"], "arrived"), 250);
    assert!(ended.ledger["drain"]["last_arrived"].as_f64() >= ended.ledger["drain"]["since"].as_f64());
    assert_eq!(ended.ledger["readiness"]["reason"], "draining");
}

#[test]
fn a_second_sigterm_ends_at_once_and_so_do_other_signals() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (daemon, health) = member("drain = \"1h\"\ndrain_quiet = \"1h\"");
        daemon.signal(Signal::SIGTERM);
        until("it is not ready", || !is_ready(health));
        let sent = daemon.send(10);
        daemon.until_received(sent);
        daemon.end_by(signal).closed(sent).assert_logged("drained", 0);
    }
}

#[test]
fn a_member_drains_until_it_is_told_to_stay_or_ends_after_the_time_that_it_is_given() {
    let (daemon, health) = member("drain_quiet = \"1h\"");
    daemon.command("drain").succeeds(&["not ready", "undrain"]);
    assert!(!is_ready(health));
    let mut sent = daemon.send(20);
    let drained = daemon.stats_when("it has counted them", |ledger| ledger["drain"]["arrived"] == 20);
    assert!(drained["drain"]["until"].is_null(), "{drained:#}");
    daemon.command("undrain").succeeds(&["ready again"]);
    assert!(is_ready(health) && daemon.stats()["drain"].is_null());
    daemon.by_file("drain", &["--for", "300ms"]).succeeds(&["ends"]);
    sent += daemon.send(5);
    daemon.wait_for_end().closed(sent).logged(&["drained: its time is over", "5 datagrams came"]);
}

/// systemd waits for the end as long as it is asked to, whatever TimeoutStopSec says.
#[test]
fn the_service_manager_is_asked_for_as_long_as_the_drain_takes() {
    let text = Setup::new().daemon("drain = \"20s\"\ndrain_quiet = \"100ms\"").null("nothing").text();
    let (daemon, notify) = Daemon::start(&[UDPD, "run", "-c", "@DIR@/udpd.toml"], &text, |command| command);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(heard(&notify, "EXTEND_TIMEOUT_USEC="), "30000000");
    daemon.wait_for_end().closed(0);
}

fn heard(notify: &UnixDatagram, key: &str) -> String {
    notify.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut message = [0; 4096];
    loop {
        let length = notify.recv(&mut message).expect("it is told");
        let text = String::from_utf8_lossy(&message[..length]);
        if let Some(value) = text.lines().find_map(|line| line.strip_prefix(key)) {
            return value.to_owned();
        }
    }
}

#[test]
fn a_reload_with_a_bad_file_leaves_a_member_ready() {
    let (daemon, health) = member("");
    until("it is ready", || is_ready(health));
    daemon.reload("[daemon]\nno_such_key = 1\n").ends(78, &["no_such_key"]);
    assert!(is_ready(health), "what runs goes on");
    daemon.end(0);
}

/// The disk is full by a limit on the length of files.
#[test]
fn a_sink_that_loses_everything_makes_a_member_unready_and_the_word_says_so() {
    let (daemon, health) = member("");
    until("it is ready", || is_ready(health));
    let pid = daemon.pid().to_string();
    Outcome::of(Command::new("prlimit").args(["--fsize=0:unlimited", "--pid", &pid])).succeeds(&[]);
    let mut sent = 0;
    until("it is not ready", || {
        sent += daemon.send(10);
        !is_ready(health)
    });
    assert!(get(health, "/ready").contains("\r\n\r\nsink\nsink archive "), "{}", get(health, "/ready"));
    daemon.terminate().logged(&["not ready: sink: sink archive "]);
}
