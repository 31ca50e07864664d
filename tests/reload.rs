//! `udpd reload` and SIGHUP, as an operator meets them: what is different is in force, what is wrong changes nothing
//! and is told, and the sandbox, which is on as it is by default, is in nobody's way.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;

use crate::util::daemon::{Daemon, complete, free_address, udpd};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::manager::Manager;

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

/// How many records of each kind there are in a text that may hold lines first and then jsonl, and nothing else.
fn lines_then_jsonl(text: &str) -> (usize, usize) {
    let is_jsonl: Vec<bool> = text.lines().map(|line| line.starts_with('{')).collect();
    assert!(is_jsonl.is_sorted(), "somebody else wrote in between");
    let jsonl = is_jsonl.iter().filter(|is_jsonl| **is_jsonl).count();
    (is_jsonl.len() - jsonl, jsonl)
}

#[test]
fn other_settings_of_a_file_are_in_force_from_the_next_datagram_on_in_the_sandbox_as_well() {
    let address = free_address();
    let lines = text(address, "lanes = 2", "\"stays\"", "");
    let daemon = Daemon::with_config(&lines);
    send(address, 0..100);
    daemon.stats_when("all are received", |stats| received(stats) == 100);
    let done = reload(&daemon, &lines.replace("type = \"file\"", "type = \"file\"\nformat = \"jsonl\""));
    assert!(done.status.success(), "{}", said(&done));
    send(address, 100..200);
    daemon.stats_when("all are received", |stats| received(stats) == 200);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 200);
    let text = fs::read_to_string(ended.directory.path().join("stays.log")).expect("the file");
    assert_eq!(lines_then_jsonl(&text), (100, 100));
}

#[test]
fn standard_output_changes_its_format_when_its_reader_has_taken_what_came_before_and_who_asks_is_told_so() {
    let address = free_address();
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let text = |format: &str| {
        format!(
            "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"out\"]\n\
             [sink.out]\ntype = \"stdout\"\nformat = \"{format}\"\n"
        )
    };
    let daemon = Daemon::with_config_and_stdout(&text("lines"), writer.into());
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    // More than the pipe holds: the writer waits in it.
    for sent in (200..=2_000).step_by(200) {
        (0..200).for_each(|_| assert_eq!(sender.send_to(&[b'x'; 100], address).expect("loopback takes it"), 100));
        daemon.stats_when("all are received", |stats| received(stats) == sent);
    }
    let done = reload(&daemon, &text("jsonl"));
    assert!(done.status.success() && said(&done).contains("yet to begin"), "{}", said(&done));
    assert!(said(&done).contains("sinks out"), "{}", said(&done));
    for sent in [2_200, 2_400] {
        (0..200).for_each(|_| assert_eq!(sender.send_to(b"y", address).expect("loopback takes it"), 1));
        daemon.stats_when("all are received", |stats| received(stats) == sent);
    }
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text).expect("text")
    });
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 2_400);
    assert_eq!(lines_then_jsonl(&reading.join().expect("the reader")), (2_000, 400));
}

/// A sink whose peer is there and never reads.
fn stuck(directory: &Path, keys: &str) -> (UnixListener, String) {
    let path = directory.join("peer.sock");
    let peer = UnixListener::bind(&path).expect("a socket");
    (peer, format!("[sink.stuck]\ntype = \"unix\"\nsocket = \"stream\"\npath = \"{}\"\n{keys}\n", path.display()))
}

/// Sends more than the socket of such a peer holds, and returns how much was sent by then. Its peer takes nothing more
/// for ever, so what waits now waits for good.
fn until_it_hangs(daemon: &Daemon, to: SocketAddr, before: u64) -> u64 {
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let after = before + 1_000;
    for sent in (before + 100..=after).step_by(100) {
        (0..100).for_each(|_| assert_eq!(sender.send_to(&[b'x'; 1_000], to).expect("loopback takes it"), 1_000));
        daemon.stats_when("all are received", |stats| received(stats) == sent);
    }
    after
}

#[test]
fn a_sink_that_hangs_stands_in_the_way_of_no_reload_and_each_answer_names_it() {
    let (address, directory) = (free_address(), tempfile::tempdir().expect("a directory"));
    let (_peer, stuck) = stuck(directory.path(), "");
    let daemon = Daemon::with_config(&text(address, "", "\"stays\", \"stuck\"", &stuck));
    let mut sent = 0;
    for round in 0..12 {
        // A connection that was given up leaves one with an empty socket.
        sent = until_it_hangs(&daemon, address, sent);
        // A sink comes, and the one of the round before goes.
        let comes = format!("[sink.own{round}]\ntype = \"file\"\npath = \"@DIR@/own{round}.log\"\n");
        let (lanes, sinks) = (1 + round % 2, format!("\"stays\", \"stuck\", \"own{round}\""));
        let done = reload(&daemon, &text(address, &format!("lanes = {lanes}"), &sinks, &format!("{stuck}{comes}")));
        assert!(done.status.success() && said(&done).contains("sinks stuck"), "{round}: {}", said(&done));
        send(address, sent..sent + 10);
        sent += 10;
        let file = daemon.directory().join(format!("own{round}.log"));
        daemon.stats_when("it is in force", |_| fs::read_to_string(&file).is_ok_and(|text| text.lines().count() == 10));
    }
    let done = reload(&daemon, &text(address, "", "\"stays\"", ""));
    assert!(done.status.success() && said(&done).contains("sinks stuck"), "{}", said(&done));
    let done = reload(&daemon, &text(address, "lanes = 2", "\"stays\"", ""));
    assert!(done.status.success(), "{}", said(&done));
    let ended = daemon.terminate();
    let own = &ended.ledger["listeners"][0];
    assert_eq!((count(own, "arrived"), own["residual"].as_i64()), (sent, Some(0)), "{own:#}");
    for sink in list(own, "sinks") {
        let dropped = count(&sink["dropped"], "sink_error") + count(&sink["dropped"], "queue_full");
        assert_eq!(count(sink, "offered"), count(sink, "delivered") + dropped, "{sink:#}");
        assert_eq!((sink["name"] == "stuck", count(sink, "in_flight")), (dropped > 0, 0), "{sink:#}");
    }
    let stays = fs::read_to_string(ended.directory.path().join("stays.log")).expect("the file");
    assert_eq!(stays.lines().count() as u64, sent);
}

#[test]
fn the_port_of_a_removed_listener_is_free_while_a_sink_of_it_hangs_and_a_reload_can_have_it_again() {
    let (address, guest) = (free_address(), free_address());
    let directory = tempfile::tempdir().expect("a directory");
    let (_peer, stuck) = stuck(directory.path(), "");
    let alone = text(address, "", "\"stays\", \"stuck\"", &stuck);
    let both =
        format!("{alone}[[listener]]\nname = \"guest\"\naddress = \"{guest}\"\nsinks = [\"stuck\", \"stays\"]\n");
    let daemon = Daemon::with_config(&both);
    let sent = until_it_hangs(&daemon, address, 0);
    send(guest, 0..5);
    daemon.stats_when("the guest has some", |stats| count(&stats["listeners"][1], "received") == 5);
    for _ in 0..3 {
        assert!(reload(&daemon, &alone).status.success());
        // Soon: a program that another test starts has what this one has open for the moment between fork and exec.
        daemon.stats_when("its port is free", |_| UdpSocket::bind(guest).is_ok());
        let done = reload(&daemon, &both);
        assert!(done.status.success(), "{}", said(&done));
    }
    send(guest, 0..5);
    daemon.stats_when("the guest has some", |stats| count(&stats["listeners"][1], "received") == 10);
    let ended = daemon.terminate();
    for (place, arrived) in [sent, 10].into_iter().enumerate() {
        let own = &ended.ledger["listeners"][place];
        assert_eq!((count(own, "arrived"), own["residual"].as_i64()), (arrived, Some(0)), "{own:#}");
    }
}

#[test]
fn a_reload_waits_for_no_receiver_that_waits_for_room_and_nothing_is_given_up() {
    let (address, directory) = (free_address(), tempfile::tempdir().expect("a directory"));
    let (peer, stuck) = stuck(directory.path(), "when_full = \"block\"\nqueue_bytes = \"256KiB\"");
    let daemon = Daemon::with_config(&text(address, "lanes = 1", "\"stays\", \"stuck\"", &stuck));
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let (mut sent, mut before, mut looks) = (0, 0, 0);
    // Until several looks in turn find it where it was, with more in its socket: the receiver waits for room.
    daemon.stats_when("the receiver waits", |stats| {
        let is_left = count(&stats["listeners"][0]["lanes"][0], "receive_buffer_used_bytes") > 0;
        looks = if is_left && received(stats) > 0 && received(stats) == before { looks + 1 } else { 0 };
        before = received(stats);
        (0..100).for_each(|_| assert_eq!(sender.send_to(&[b'x'; 500], address).expect("loopback takes it"), 500));
        sent += 100;
        looks >= 5
    });
    let done = reload(&daemon, &text(address, "lanes = 2", "\"stays\", \"stuck\"", &stuck));
    assert!(done.status.success() && said(&done).contains("sinks stuck"), "{}", said(&done));
    let (connection, _) = peer.accept().expect("a connection");
    let reading = std::thread::spawn(move || std::io::read_to_string(connection).expect("text").lines().count());
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    let stuck = list(&ended.ledger["listeners"][0], "sinks").iter().find(|sink| sink["name"] == "stuck").expect("it");
    assert_eq!(count(&stuck["dropped"], "sink_error"), 0, "{stuck:#}");
    assert_eq!(reading.join().expect("the reader") as u64, count(stuck, "delivered"));
    assert!(!ended.stderr.contains("gives up"), "{}", ended.stderr);
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
fn a_low_port_is_had_by_the_warden_and_without_one_a_restart_cures_it() {
    let limit = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if !crate::sandbox::is_whole() || limit.trim() != "1024" {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no whole sandbox, or no port is privileged");
        return;
    }
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let mut low: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let mut sent = 0;
    if let Some(warden) = crate::sandbox::warden_of(daemon.pid()) {
        let done = reload(&daemon, &text(low, "", "\"stays\"", ""));
        assert!(done.status.success(), "{}", said(&done));
        send(low, 0..10);
        sent += 10;
        daemon.stats_when("it receives there", |stats| received(stats) == 10);
        kill(Pid::from_raw(warden.cast_signed()), Signal::SIGKILL).expect("it lives");
        let back = reload(&daemon, &text(address, "", "\"stays\"", ""));
        assert!(back.status.success(), "{}", said(&back));
        low.set_port(2);
    }
    let refused = reload(&daemon, &text(low, "", "\"stays\"", ""));
    assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
    assert!(said(&refused).contains("restart udpd"), "{}", said(&refused));
    send(address, 0..10);
    sent += 10;
    daemon.stats_when("it receives on", |stats| received(stats) == sent);
    assert_closed(&daemon.terminate().ledger, sent);
}

#[test]
fn what_is_beyond_the_sandbox_is_refused_before_anything_is_touched() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let more = format!("[sink.far]\ntype = \"file\"\npath = \"{}/far.log\"\n", elsewhere.path().display());
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let ring = text(address, "engine = \"io_uring\"", "\"stays\"", "");
    let far = text(address, "", "\"stays\", \"far\"", &more);
    for (beyond, what) in [(far, "cannot open"), (ring, "cannot make a ring")] {
        let refused = reload(&daemon, &beyond);
        if crate::sandbox::is_whole() {
            assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
            assert!(said(&refused).contains("restart udpd"), "{}", said(&refused));
            assert!(said(&refused).contains(what), "{}", said(&refused));
        }
    }
    send(address, 0..10);
    daemon.stats_when("it receives on", |stats| received(stats) == 10);
    assert_closed(&daemon.terminate().ledger, 10);
}

/// A file, and files by source, in directories that are not there before the daemon makes them.
fn in_new_directories(address: SocketAddr, sync: &str) -> String {
    let sink = |name: &str, path: &str| {
        format!("[sink.{name}]\ntype = \"file\"\npath = \"@DIR@/new/{path}\"\nsync = \"{sync}\"\n")
    };
    format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"one\", \"many\"]\n{}{}",
        sink("one", "one/%Y.log"),
        sink("many", "many/{listener}/{source}.log")
    )
}

#[test]
fn files_in_directories_that_udpd_has_made_at_its_start_are_written_after_a_reload() {
    let address = free_address();
    let daemon = Daemon::with_config(&in_new_directories(address, "1s"));
    send(address, 0..10);
    daemon.stats_when("all are received", |stats| received(stats) == 10);
    let done = reload(&daemon, &in_new_directories(address, "2s"));
    assert!(done.status.success(), "{}", said(&done));
    send(address, 10..20);
    daemon.stats_when("all are received", |stats| received(stats) == 20);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 20);
    for sink in list(&ended.ledger["listeners"][0], "sinks") {
        assert_eq!(count(sink, "delivered"), 20, "{}", ended.stderr);
    }
}

#[test]
fn a_listener_that_a_reload_adds_has_directories_of_its_own_below_those_of_the_sink() {
    let (address, other) = (free_address(), free_address());
    let before = in_new_directories(address, "1s");
    let daemon = Daemon::with_config(&before);
    let more = format!("[[listener]]\nname = \"more\"\naddress = \"{other}\"\nsinks = [\"many\"]\n");
    let done = reload(&daemon, &(before + &more));
    assert!(done.status.success(), "{}", said(&done));
    send(other, 0..10);
    daemon.stats_when("all are received", |stats| count(&list(stats, "listeners")[1], "received") == 10);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 10);
    let text =
        fs::read_to_string(ended.directory.path().join("new/many/more/127.0.0.1.log")).expect("a file of its own");
    assert_eq!(text.lines().count(), 10);
}

#[test]
fn a_directory_that_somebody_has_made_anew_is_beyond_a_reload_and_who_asks_is_told_so() {
    if !crate::sandbox::is_whole() {
        return;
    }
    let address = free_address();
    let daemon = Daemon::with_config(&in_new_directories(address, "1s"));
    for directory in ["new/one", "new/many"] {
        let directory = daemon.directory().join(directory);
        fs::rename(&directory, directory.with_extension("before")).expect("it is there");
        fs::create_dir(&directory).expect("made anew");
        let refused = reload(&daemon, &in_new_directories(address, "2s"));
        assert!(!refused.status.success() && said(&refused).contains("restart udpd"), "{}", said(&refused));
        fs::remove_dir(&directory).expect("nothing is in it");
        fs::rename(directory.with_extension("before"), &directory).expect("back again");
    }
    let done = reload(&daemon, &in_new_directories(address, "2s"));
    assert!(done.status.success(), "{}", said(&done));
}

/// What systemd compares with the moment at which it has sent the signal.
fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every machine has it");
    now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000
}

#[test]
fn a_manager_that_reloads_by_signal_hears_when_it_begins_and_when_it_is_done() {
    let (mut manager, address) = (Manager::new(), free_address());
    manager.start(&text(address, "lanes = 1", "\"stays\"", ""));
    for (lanes, said) in [("lanes = 2", "2 lanes"), ("lanes = 0", "reload refused"), ("lanes = 1", "1 lanes")] {
        let before = monotonic_us();
        let told = manager.reload_by_signal(&text(address, lanes, "\"stays\"", ""));
        let reloading = told.iter().find(|message| message.contains("RELOADING=1\n")).expect("it says so");
        let at = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("with the time");
        let at: i64 = at.parse().expect("a number");
        assert!((before..=monotonic_us()).contains(&at), "{at}");
        let (began, done) = ("RELOADING=1", "READY=1\nSTATUS=");
        let place = |words: &str| told.iter().position(|message| message.contains(words)).expect(words);
        assert!(place(began) < place(done) && told[place(done)].contains(said), "{told:?}");
    }
    assert!(manager.end_by(Signal::SIGTERM).status.success());
}

#[test]
fn who_asks_for_a_reload_again_and_again_is_answered_each_time_and_the_log_hears_of_what_is_new() {
    let address = free_address();
    let daemon = Daemon::with_config(&text(address, "", "\"stays\"", ""));
    let unchanged = text(address, "", "\"stays\"", "");
    let wrong = |key: &str| text(address, &format!("{key} = 1"), "\"stays\"", "");
    for _ in 0..20 {
        assert!(reload(&daemon, &unchanged).status.success());
    }
    for key in ["one_wrong", "another_wrong"] {
        for _ in 0..20 {
            let refused = reload(&daemon, &wrong(key));
            assert!(refused.status.code() == Some(78) && said(&refused).contains(key), "{}", said(&refused));
        }
    }
    for lanes in [2, 1, 2] {
        let done = reload(&daemon, &text(address, &format!("lanes = {lanes}"), "\"stays\"", ""));
        assert!(done.status.success(), "{}", said(&done));
    }
    let ended = daemon.terminate();
    let times = |words: &str| ended.stderr.matches(words).count();
    assert_eq!((times("reload: nothing"), times("reload refused"), times("reload: in force")), (1, 2, 3));
}
