//! `udpd reload` and SIGHUP, as an operator meets them: what is different is in force, what is wrong changes nothing
//! and is told, and the sandbox, which is on as it is by default, is in the way of neither.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;

use crate::util::setup::in_directory;
use crate::util::*;

/// A listener with these keys, and the sink that stays.
fn with(address: SocketAddr, keys: &str) -> Setup {
    Setup::at(address).keys(keys).file("stays", "stays.log")
}

/// Whether the first listener has so many lanes.
fn has_lanes(ledger: &Value, number: usize) -> bool {
    lanes(ledger).len() == number
}

/// Checks that nothing is missing in a listener to which so many were sent. A sink that came later was not offered what
/// came before, which the usual sums do not know.
#[track_caller]
fn assert_none_missing(listener: &Value, sent: u64) {
    assert_eq!((count(listener, "arrived"), listener["residual"].as_i64()), (sent, Some(0)), "{listener:#}");
}

#[test]
fn what_is_different_is_in_force_and_what_is_not_goes_on() {
    let address = free_address();
    let daemon = with(address, "lanes = 2").start();
    let inode = fs::metadata(daemon.directory().join("stays.log")).expect("the file").ino();
    send_numbers(address, 0..100);
    let second = Setup::at(address).keys("lanes = 3").file("second", "second.log").keys("format = 'jsonl'");
    daemon.reload(&second.file("stays", "stays.log")).succeeds(&["3 lanes, 2 sinks"]);
    send_numbers(address, 100..200);
    assert_eq!(daemon.until_received(200)["last_reload"]["done"], true);
    daemon.reload(&with(address, "lanes = 1")).succeeds(&[]);
    send_numbers(address, 200..300);
    daemon.until_received(300);
    let ended = daemon.terminate();
    assert_none_missing(ended.listener(), 300);
    let counts = |sink: &Value| (count(sink, "offered"), count(sink, "delivered"), sink["removed"] == true);
    let counts: Vec<_> = sinks(&ended.ledger).iter().map(counts).collect();
    assert_eq!(counts, [(300, 300, false), (100, 100, true)]);
    pipeline::assert_numbers(&ended.path("stays.log"), 300);
    assert_eq!(fs::metadata(ended.path("stays.log")).expect("the file").ino(), inode);
    assert_eq!(ended.text("second.log").lines().count(), 100);
}

#[test]
fn a_bad_file_changes_nothing_and_the_answer_says_where_it_is_wrong() {
    let address = free_address();
    let daemon = with(address, "lanes = 2").start();
    daemon.reload(&with(address, "lanes = 0")).ends(78, &["udpd.toml:", "listener.lanes"]);
    let stats = daemon.stats();
    assert!(stats["last_reload"]["done"] == false && has_lanes(&stats, 2), "{stats:#}");
    assert!(stats["last_reload"]["text"].as_str().expect("a text").contains("listener.lanes"), "{stats}");
    send_numbers(address, 0..50);
    daemon.until_received(50);
    daemon.reload(&with(address, "lanes = 2")).succeeds(&["nothing"]);
    daemon.end(50).assert_logged("error: reload refused", 1);
}

#[test]
fn what_a_reload_cannot_change_is_named_and_the_rest_is_done() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let daemon = with(address, "").start();
    let token = elsewhere.path().join("token");
    fs::write(&token, "a-secret-that-is-long-enough-to-be-taken").expect("the file");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("its mode");
    let beyond = format!("metrics_token_file = '{}'", token.display());
    for (lanes, keys, named) in
        [(2, beyond.as_str(), "metrics_token_file"), (3, "log_format = 'json'", "log_format takes a restart")]
    {
        let changed = with(address, &format!("lanes = {lanes}")).daemon(&format!("{keys}\nlog_level = 'warn'"));
        daemon.reload(&changed).succeeds(&[&format!("{lanes} lanes"), named]);
    }
    // The log level is in force.
    daemon.end(0).assert_logged("stopping", 0);
}

#[test]
fn sighup_reads_the_file_and_then_goes_over_to_new_files() {
    let address = free_address();
    let daemon = with(address, "lanes = 1").start();
    let (path, moved) = (daemon.directory().join("stays.log"), daemon.directory().join("moved.log"));
    fs::rename(&path, &moved).expect("it is there");
    daemon.write(&with(address, "lanes = 2").text());
    daemon.signal(Signal::SIGHUP);
    daemon.stats_when("it has two lanes", |stats| has_lanes(stats, 2));
    until("a new file is begun", || path.exists());
    daemon.end(0);
}

/// How many records of each kind there are in a text that may hold lines first and then jsonl, and nothing else.
#[track_caller]
fn lines_then_jsonl(text: &str) -> (usize, usize) {
    let is_jsonl: Vec<bool> = text.lines().map(|line| line.starts_with('{')).collect();
    assert!(is_jsonl.is_sorted(), "another writer wrote in between");
    let jsonl = is_jsonl.iter().filter(|is_jsonl| **is_jsonl).count();
    (is_jsonl.len() - jsonl, jsonl)
}

#[test]
fn standard_output_changes_its_format_when_its_reader_has_taken_what_came_before_and_the_answer_says_so() {
    let address = free_address();
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let setup = |format: &str| Setup::at(address).sink("out", "stdout", format!("format = '{format}'"));
    let daemon = setup("lines").start_with_stdout(writer);
    let mut sent = 0;
    let mut send_more = |payload: &[u8], times: u64| {
        for _ in 0..times {
            send(address, payload, 200);
            sent += 200;
            daemon.until_received(sent);
        }
    };
    // More than the pipe holds: the writer waits in it.
    send_more(&[b'x'; 100], 10);
    daemon.reload(&setup("jsonl")).succeeds(&["yet to begin", "sinks out"]);
    send_more(b"y", 2);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text).expect("text")
    });
    daemon.end(2_400);
    assert_eq!(lines_then_jsonl(&reading.join().expect("the reader")), (2_000, 400));
}

/// A peer that is there and never reads, and the keys of the sink `stuck` that sends to it.
fn stuck(directory: &tempfile::TempDir) -> (UnixListener, String) {
    let path = directory.path().join("peer.sock");
    (UnixListener::bind(&path).expect("a socket"), format!("socket = 'stream'\npath = '{}'", path.display()))
}

/// Sends more than the socket of such a peer holds, and returns how much was sent by then. Its peer takes nothing more,
/// so what waits now waits for good.
fn until_it_hangs(daemon: &Daemon, to: SocketAddr, before: u64) -> u64 {
    for round in 1..=10 {
        send(to, &[b'x'; 1_000], 100);
        daemon.until_received(before + 100 * round);
    }
    before + 1_000
}

#[test]
fn a_sink_that_hangs_stands_in_the_way_of_no_reload_and_each_answer_names_it() {
    let (address, directory) = (free_address(), tempfile::tempdir().expect("a directory"));
    let (_peer, stuck) = stuck(&directory);
    let hanging = |lanes: u64| with(address, &format!("lanes = {lanes}")).sink("stuck", "unix", &stuck);
    let daemon = hanging(1).start();
    let mut sent = 0;
    for round in 0..12 {
        // A connection that was given up leaves one with an empty socket.
        sent = until_it_hangs(&daemon, address, sent);
        // A sink comes, and the one of the round before goes.
        let name = format!("own{round}");
        daemon.reload(&hanging(1 + round % 2).file(&name, &format!("{name}.log"))).succeeds(&["sinks stuck"]);
        send_numbers(address, sent..sent + 10);
        sent += 10;
        let file = daemon.directory().join(format!("{name}.log"));
        until("it is in force", || fs::read_to_string(&file).is_ok_and(|text| text.lines().count() == 10));
    }
    daemon.reload(&with(address, "")).succeeds(&["sinks stuck"]);
    daemon.reload(&with(address, "lanes = 2")).succeeds(&[]);
    let ended = daemon.terminate();
    assert_none_missing(ended.listener(), sent);
    for sink in sinks(&ended.ledger) {
        let dropped = dropped(sink, "sink_error") + dropped(sink, "queue_full");
        assert_eq!(count(sink, "offered"), count(sink, "delivered") + dropped, "{sink:#}");
        assert_eq!((sink["name"] == "stuck", count(sink, "in_flight")), (dropped > 0, 0), "{sink:#}");
    }
    assert_eq!(ended.text("stays.log").lines().count() as u64, sent);
}

#[test]
fn the_port_of_a_removed_listener_is_free_while_a_sink_of_it_hangs_and_a_reload_can_have_it_again() {
    let (address, guest) = (free_address(), free_address());
    let directory = tempfile::tempdir().expect("a directory");
    let (_peer, stuck) = stuck(&directory);
    let alone = with(address, "").sink("stuck", "unix", &stuck);
    let both = alone.clone().also("guest", guest, &["stuck", "stays"]);
    let daemon = both.start();
    let sent = until_it_hangs(&daemon, address, 0);
    let send_to_guest = |received: u64| {
        send_numbers(guest, 0..5);
        let of_guest = |stats: &Value| count(listener_named(stats, "guest"), "received");
        daemon.stats_when("the guest has some", |stats| of_guest(stats) == received);
    };
    send_to_guest(5);
    for _ in 0..3 {
        daemon.reload(&alone).succeeds(&[]);
        // Soon: a program that another test starts has what this one has open for the moment between fork and exec.
        until("its port is free", || UdpSocket::bind(guest).is_ok());
        daemon.reload(&both).succeeds(&[]);
    }
    send_to_guest(10);
    let ended = daemon.terminate();
    assert_none_missing(listener_named(&ended.ledger, "in"), sent);
    assert_none_missing(listener_named(&ended.ledger, "guest"), 10);
}

#[test]
fn a_reload_waits_for_no_receiver_that_waits_for_room_and_nothing_is_given_up() {
    let (address, directory) = (free_address(), tempfile::tempdir().expect("a directory"));
    let (peer, stuck) = stuck(&directory);
    let setup = |lanes: &str| with(address, lanes).sink("stuck", "unix", &stuck);
    let setup = |lanes: &str| setup(lanes).keys("when_full = 'block'\nqueue_bytes = '256KiB'");
    let daemon = setup("lanes = 1").start();
    let (mut sent, mut before, mut looks) = (0, 0, 0);
    // Until several looks in turn find it where it was, with more in its socket: the receiver waits for room.
    daemon.stats_when("the receiver waits", |stats| {
        let is_left = count(&lanes(stats)[0], "receive_buffer_used_bytes") > 0;
        looks = if is_left && received(stats) > 0 && received(stats) == before { looks + 1 } else { 0 };
        before = received(stats);
        send(address, &[b'x'; 500], 100);
        sent += 100;
        looks >= 5
    });
    daemon.reload(&setup("lanes = 2")).succeeds(&["sinks stuck"]);
    let (connection, _) = peer.accept().expect("a connection");
    let reading = std::thread::spawn(move || std::io::read_to_string(connection).expect("text").lines().count());
    let ended = daemon.end(sent);
    let stuck = sink_named(&ended.ledger, "stuck");
    assert_eq!(dropped(stuck, "sink_error"), 0, "{stuck:#}");
    assert_eq!(reading.join().expect("the reader") as u64, count(stuck, "delivered"));
    ended.assert_logged("gives up", 0);
}

/// Holds a lease on a file, says so, says when it is opened, and does not give way: for 45 s a process that opens it
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
    let daemon = with(free_address(), "").start();
    send_numbers(daemon.address(), 0..10);
    daemon.until_received(10);
    let mut holder = Command::new("python3")
        .args(["-c", LEASE])
        .arg(daemon.configuration())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert_eq!(lines.next().as_deref(), Some("held"), "a file system without leases?");
    daemon.signal(Signal::SIGHUP);
    assert_eq!(lines.next().as_deref(), Some("opened"));
    let ended = daemon.terminate();
    holder.kill().and_then(|()| holder.wait()).expect("it was there");
    let ended = ended.closed(10);
    ended.logged(&["reload refused"]);
    assert!(ended.times("udpd ends") > 0, "the reload was not waited for: {}", ended.stderr);
}

#[test]
fn a_file_behind_a_link_is_read_again_in_the_sandbox() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let (file, link) = (elsewhere.path().join("udpd.toml"), elsewhere.path().join("link/udpd.toml"));
    fs::create_dir(elsewhere.path().join("link")).expect("a directory");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let write = |lanes: &str| {
        let setup = Setup::at(address).daemon("control_socket = '@DIR@/link/control.sock'\nmetrics_address = ''");
        let text = setup.keys(lanes).file("stays", "link/stays.log").text();
        fs::write(&file, in_directory(&text, elsewhere.path())).expect("the file");
    };
    write("lanes = 1");
    let daemon = Daemon::of_command(&["run", "-c", link.to_str().expect("UTF-8")], "");
    write("lanes = 2");
    let socket = elsewhere.path().join("link/control.sock");
    udpd(&["reload", "--socket", socket.to_str().expect("UTF-8")]).succeeds(&["2 lanes"]);
    assert!(daemon.terminate().status.success());
}

#[test]
fn a_low_port_is_had_by_the_warden_and_without_one_a_restart_cures_it() {
    let limit = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if !crate::sandbox::is_whole() || limit.trim() != "1024" {
        return not_checked("a low port at a reload: no whole sandbox, or no port is privileged");
    }
    let address = free_address();
    let daemon = with(address, "").start();
    let mut low: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let mut sent = 0;
    if let Some(warden) = crate::sandbox::warden_of(daemon.pid()) {
        daemon.reload(&with(low, "")).succeeds(&[]);
        send_numbers(low, 0..10);
        sent += 10;
        daemon.until_received(10);
        kill(Pid::from_raw(warden.cast_signed()), Signal::SIGKILL).expect("it lives");
        daemon.reload(&with(address, "")).succeeds(&[]);
        low.set_port(2);
    }
    daemon.reload(&with(low, "")).ends(77, &["restart udpd"]);
    send_numbers(address, 0..10);
    daemon.until_received(sent + 10);
    daemon.end(sent + 10);
}

#[test]
fn what_is_beyond_the_sandbox_is_refused_before_anything_is_touched() {
    let address = free_address();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let far = format!("path = '{}/far.log'", elsewhere.path().display());
    let daemon = with(address, "").start();
    for (beyond, what) in [
        (with(address, "").sink("far", "file", far), "cannot open"),
        (with(address, "engine = 'io_uring'"), "cannot make a ring"),
    ] {
        let refused = daemon.reload(&beyond);
        if crate::sandbox::is_whole() {
            refused.ends(77, &["restart udpd", what]);
        }
    }
    send_numbers(address, 0..10);
    daemon.until_received(10);
    daemon.end(10);
}

/// A file, and files by source, of this format in directories that are not there before the daemon makes them.
fn in_new_directories(address: SocketAddr, format: &str) -> Setup {
    let format = format!("format = '{format}'");
    let one = Setup::at(address).file("one", "new/one/log").keys(&format);
    one.file("many", "new/many/{listener}/{source}.log").keys(&format)
}

#[test]
fn other_settings_of_files_in_directories_that_udpd_has_made_are_in_force_from_the_next_datagram_on() {
    let address = free_address();
    let daemon = in_new_directories(address, "lines").start();
    send_numbers(address, 0..100);
    daemon.until_received(100);
    daemon.reload(&in_new_directories(address, "jsonl")).succeeds(&[]);
    send_numbers(address, 100..200);
    daemon.until_received(200);
    let ended = daemon.end(200);
    for file in ["new/one/log", "new/many/in/127.0.0.1.log"] {
        assert_eq!(lines_then_jsonl(&ended.text(file)), (100, 100), "{file}: {}", ended.stderr);
    }
}

#[test]
fn a_listener_that_a_reload_adds_has_directories_of_its_own_below_those_of_the_sink() {
    let (address, other) = (free_address(), free_address());
    let before = in_new_directories(address, "lines");
    let daemon = before.start();
    daemon.reload(&before.also("more", other, &["many"])).succeeds(&[]);
    send_numbers(other, 0..10);
    daemon.stats_when("all are received", |stats| count(listener_named(stats, "more"), "received") == 10);
    let ended = daemon.end(10);
    assert_eq!(ended.text("new/many/more/127.0.0.1.log").lines().count(), 10);
}

#[test]
fn a_directory_that_was_made_anew_is_beyond_a_reload_and_the_answer_says_so() {
    if !crate::sandbox::is_whole() {
        return;
    }
    let address = free_address();
    let daemon = in_new_directories(address, "lines").start();
    for directory in ["new/one", "new/many"] {
        let directory = daemon.directory().join(directory);
        fs::rename(&directory, directory.with_extension("before")).expect("it is there");
        fs::create_dir(&directory).expect("made anew");
        let refused = daemon.reload(&in_new_directories(address, "jsonl"));
        assert!(!refused.is_success() && refused.text().contains("restart udpd"), "{refused:?}");
        fs::remove_dir(&directory).expect("nothing is in it");
        fs::rename(directory.with_extension("before"), &directory).expect("back again");
    }
    daemon.reload(&in_new_directories(address, "jsonl")).succeeds(&[]);
}

/// What systemd compares with the moment at which it has sent the signal.
fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every machine has it");
    now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000
}

#[test]
fn a_manager_that_reloads_by_signal_hears_when_it_begins_and_when_it_is_done() {
    let (mut manager, address) = (Manager::new(), free_address());
    manager.start(&with(address, "lanes = 1"));
    for (lanes, said) in [("lanes = 2", "2 lanes"), ("lanes = 0", "reload refused"), ("lanes = 1", "1 lanes")] {
        let before = monotonic_us();
        let told = manager.reload_by_signal(&with(address, lanes));
        let reloading = told.iter().find(|message| message.contains("RELOADING=1\n")).expect("it says so");
        let at = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("with the time");
        let at: i64 = at.parse().expect("a number");
        assert!((before..=monotonic_us()).contains(&at), "{at}");
        let place = |words: &str| told.iter().position(|message| message.contains(words)).expect(words);
        let (began, done) = (place("RELOADING=1"), place("READY=1\nSTATUS="));
        assert!(began < done && told[done].contains(said), "{told:?}");
    }
    manager.end(0);
}

#[test]
fn each_of_many_requests_for_a_reload_is_answered_and_the_log_has_only_what_is_new() {
    let address = free_address();
    let daemon = with(address, "").start();
    for _ in 0..20 {
        daemon.reload(&with(address, "")).succeeds(&[]);
    }
    for key in ["one_wrong", "another_wrong"] {
        for _ in 0..20 {
            daemon.reload(&with(address, &format!("{key} = 1"))).ends(78, &[key]);
        }
    }
    for lanes in [2, 1, 2] {
        daemon.reload(&with(address, &format!("lanes = {lanes}"))).succeeds(&[]);
    }
    let ended = daemon.end(0);
    let times = ["reload: nothing", "reload refused", "reload: in force"].map(|words| ended.times(words));
    assert_eq!(times, [1, 2, 3], "{}", ended.stderr);
}
