//! `udpd reload` and SIGHUP, as an operator meets them: what is different is in force, what is wrong changes nothing
//! and is told, and the sandbox, which is on as it is by default, is in nobody's way.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::util::daemon::{Daemon, complete, free_address, udpd};
use crate::util::ledger::{assert_closed, count, list};

/// One listener that feeds these sinks; `stays` is among them.
fn text(address: SocketAddr, keys: &str, sinks: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\n{keys}\nsinks = [{sinks}]\n\
         [sink.stays]\ntype = \"file\"\npath = \"@DIR@/stays.log\"\n{more}"
    )
}

fn write(daemon: &Daemon, text: &str) {
    let path = daemon.directory().join("udpd.toml");
    assert!(path.exists(), "the file that the daemon was started with");
    fs::write(path, complete(text, daemon.directory())).expect("the file");
}

fn reload(daemon: &Daemon, text: &str) -> Output {
    write(daemon, text);
    udpd(&["reload", "--socket", daemon.control_socket().to_str().expect("UTF-8")])
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn send(to: SocketAddr, numbers: std::ops::Range<u64>) {
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for number in numbers {
        sender.send_to(format!("{number}").as_bytes(), to).expect("loopback takes it");
    }
}

fn received(stats: &Value) -> u64 {
    count(&stats["listeners"][0], "received")
}

#[test]
fn what_is_different_is_in_force_and_what_is_not_goes_on() {
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "lanes = 2", "\"stays\"", ""));
    let inode = fs::metadata(daemon.directory().join("stays.log")).expect("the file").ino();
    send(address, 0..100);
    let second = "[sink.second]\ntype = \"file\"\nformat = \"jsonl\"\npath = \"@DIR@/second.log\"\n";
    let done = reload(&daemon, &text(address, "lanes = 3", "\"second\", \"stays\"", second));
    assert!(done.status.success() && said(&done).contains("3 lanes, 2 sinks"), "{}", said(&done));
    send(address, 100..200);
    let stats = daemon.stats_when("all are received", |stats| received(stats) == 200);
    assert_eq!(stats["last_reload"]["done"], true, "{stats}");
    let done = reload(&daemon, &text(address, "lanes = 1", "\"stays\"", ""));
    assert!(done.status.success(), "{}", said(&done));
    send(address, 200..300);
    daemon.stats_when("all are received", |stats| received(stats) == 300);
    let ended = daemon.terminate();
    // A sink that came later was not offered what came before, which the usual sums do not know.
    let own = &ended.ledger["listeners"][0];
    assert_eq!((count(own, "arrived"), own["residual"].as_i64()), (300, Some(0)), "{own:#}");
    let sinks: Vec<(u64, u64, bool)> = list(own, "sinks")
        .iter()
        .map(|sink| (count(sink, "offered"), count(sink, "delivered"), sink["removed"] == true))
        .collect();
    assert_eq!(sinks, [(300, 300, false), (100, 100, true)]);
    let path = ended.directory.path().join("stays.log");
    let mut numbers: Vec<u64> =
        fs::read_to_string(&path).expect("the file").lines().map(|line| line.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    assert_eq!(fs::metadata(&path).expect("the file").ino(), inode);
    let second = fs::read_to_string(ended.directory.path().join("second.log")).expect("the file");
    assert_eq!(second.lines().count(), 100);
}

#[test]
fn a_bad_file_changes_nothing_and_whoever_asks_is_told_where_it_is_wrong() {
    let address = free_address();
    let good = text(address, "lanes = 2", "\"stays\"", "");
    let daemon = Daemon::with_config(&good);
    let refused = reload(&daemon, &good.replace("lanes = 2", "lanes = 0"));
    assert_eq!(refused.status.code(), Some(78), "{}", said(&refused));
    assert!(said(&refused).contains("udpd.toml:") && said(&refused).contains("listener.lanes"), "{}", said(&refused));
    let stats = daemon.stats();
    assert_eq!(
        (&stats["last_reload"]["done"], stats["listeners"][0]["lanes"].as_array().map(Vec::len)),
        (&Value::Bool(false), Some(2))
    );
    assert!(stats["last_reload"]["text"].as_str().expect("a text").contains("listener.lanes"), "{stats}");
    send(address, 0..50);
    daemon.stats_when("it receives on", |stats| received(stats) == 50);
    let done = reload(&daemon, &good);
    assert!(done.status.success() && said(&done).contains("nothing"), "{}", said(&done));
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 50);
    assert!(ended.stderr.contains("error: reload refused"), "{}", ended.stderr);
}

#[test]
fn what_a_reload_cannot_change_is_named_and_the_rest_is_done() {
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let done = reload(
        &daemon,
        &format!(
            "[daemon]\nlog_format = \"json\"\nlog_level = \"warn\"\n{}",
            text(address, "lanes = 2", "\"stays\"", "")
        ),
    );
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("2 lanes") && said(&done).contains("log_format takes a restart"), "{}", said(&done));
    let ended = daemon.terminate();
    assert!(!ended.stderr.contains("stopping"), "the log level is in force: {}", ended.stderr);
}

#[test]
fn sighup_reads_the_file_and_then_goes_over_to_new_files() {
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "lanes = 1", "\"stays\"", ""));
    let (path, moved) = (daemon.directory().join("stays.log"), daemon.directory().join("moved.log"));
    fs::rename(&path, &moved).expect("it is there");
    write(&daemon, &text(address, "lanes = 2", "\"stays\"", ""));
    daemon.signal(Signal::SIGHUP);
    daemon.stats_when("it has two lanes", |stats| stats["listeners"][0]["lanes"].as_array().map(Vec::len) == Some(2));
    daemon.stats_when("a new file is begun", |_| path.exists());
    daemon.terminate();
}

/// Holds a lease on a file, says so, says when somebody opens it, and does not give way: for 45 s whoever opens it
/// waits, as for a disk that does not answer.
const LEASE: &str = "
import fcntl, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
signal.sigwait([signal.SIGIO])
print('opened', flush=True)
signal.pause()
";

#[test]
fn the_end_is_heard_while_a_reload_waits_for_a_disk() {
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    send(address, 0..10);
    daemon.stats_when("all are received", |stats| received(stats) == 10);
    let mut holder = Command::new("python3")
        .args(["-c", LEASE])
        .arg(daemon.directory().join("udpd.toml"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert_eq!(lines.next().as_deref(), Some("held"), "a file system without leases?");
    daemon.signal(Signal::SIGHUP);
    assert_eq!(lines.next().as_deref(), Some("opened"));
    let ended = daemon.terminate();
    holder.kill().and_then(|()| holder.wait()).expect("it was there");
    assert!(ended.status.success() && ended.stderr.contains("reload refused"), "{}", ended.stderr);
    assert!(ended.stderr.contains("udpd ends"), "the reload was not waited for: {}", ended.stderr);
    assert_closed(&ended.ledger, 10);
}

#[test]
fn a_file_behind_a_link_is_read_again_in_the_sandbox() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let (file, link) = (elsewhere.path().join("udpd.toml"), elsewhere.path().join("link/udpd.toml"));
    fs::create_dir(elsewhere.path().join("link")).expect("a directory");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let write = |lanes: &str| {
        let daemon = "[daemon]\ncontrol_socket = \"@DIR@/link/control.sock\"\nmetrics_address = \"\"\n";
        let all =
            format!("{daemon}{}", text(address, lanes, "\"stays\"", "")).replace("@DIR@/stays", "@DIR@/link/stays");
        fs::write(&file, all.replace("@DIR@", &elsewhere.path().display().to_string())).expect("the file");
    };
    write("lanes = 1");
    let daemon = Daemon::with_arguments(&["-c", link.to_str().expect("UTF-8")]);
    write("lanes = 2");
    let socket = elsewhere.path().join("link/control.sock");
    let done = udpd(&["reload", "--socket", socket.to_str().expect("UTF-8")]);
    assert!(done.status.success() && said(&done).contains("2 lanes"), "{}", said(&done));
    daemon.terminate();
}

#[test]
fn a_token_elsewhere_is_named_and_the_rest_is_done() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let token = elsewhere.path().join("token");
    fs::write(&token, "a-secret-that-is-long-enough-for-anybody").expect("the file");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("its mode");
    let keys = format!("[daemon]\nmetrics_token_file = \"{}\"\n", token.display());
    let done = reload(&daemon, &format!("{keys}{}", text(address, "lanes = 2", "\"stays\"", "")));
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("2 lanes") && said(&done).contains("metrics_token_file"), "{}", said(&done));
    daemon.terminate();
}

#[test]
fn a_port_that_the_sandbox_has_given_up_is_cured_by_a_restart() {
    let limit = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if !crate::sandbox::is_whole() || limit.trim() != "1024" {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no whole sandbox, or no port is privileged");
        return;
    }
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let low = "127.0.0.1:1".parse().expect("an address");
    let refused = reload(&daemon, &text(low, "", "\"stays\"", ""));
    assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
    assert!(said(&refused).contains("restart udpd"), "{}", said(&refused));
    send(address, 0..10);
    daemon.stats_when("it receives on", |stats| received(stats) == 10);
    assert_closed(&daemon.terminate().ledger, 10);
}

#[test]
fn what_is_beyond_the_sandbox_is_refused_before_anything_is_touched() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let more = format!("[sink.far]\ntype = \"file\"\npath = \"{}/far.log\"\n", elsewhere.path().display());
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let refused = reload(&daemon, &text(address, "", "\"stays\", \"far\"", &more));
    if crate::sandbox::is_whole() {
        assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
        assert!(said(&refused).contains("restart udpd"), "{}", said(&refused));
    }
    send(address, 0..10);
    daemon.stats_when("it receives on", |stats| received(stats) == 10);
    assert_closed(&daemon.terminate().ledger, 10);
}
