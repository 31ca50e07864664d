//! The clients of a running daemon: those who ask it on its control socket and its metrics endpoint, and those who only
//! sit there.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::util::*;

/// How many connections the daemon holds at most: on the metrics endpoint and on the control socket.
const HELD_MAX: usize = 8 + 32;

const IDLE: usize = 1_000;

fn with_endpoint(metrics: SocketAddr) -> Setup {
    Setup::new().daemon(&format!("metrics_address = '{metrics}'")).keys("lanes = 1").null("nothing")
}

/// An address that is free on UDP and TCP.
fn free_tcp_address() -> SocketAddr {
    loop {
        let address = free_address();
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// What the endpoint answers to the newest client.
fn scrape(address: SocketAddr) -> String {
    http(address, "/metrics", "")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

#[test]
fn beside_a_thousand_idle_connections_on_each_of_both_a_scrape_and_stats_are_answered() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit on descriptors");
    assert!(hard >= 3_000, "this test takes 3,000 descriptors; the hard limit is {hard}: raise it (ulimit -Hn 4096)");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard).expect("the soft limit is raised to the hard one");
    let metrics = free_tcp_address();
    let daemon = with_endpoint(metrics).start();
    let before = daemon.open_files().len();
    let scrapers: Vec<TcpStream> =
        (0..IDLE).map(|_| TcpStream::connect(metrics).expect("the endpoint takes every client")).collect();
    let askers: Vec<UnixStream> = (0..IDLE)
        .map(|_| UnixStream::connect(daemon.control_socket()).expect("the socket takes every client"))
        .collect();
    let sent = daemon.send(1_000);
    let scrape = scrape(metrics);
    assert!(scrape.starts_with("HTTP/1.1 200 OK\r\n"), "{scrape}");
    assert!(scrape.ends_with('\n') && scrape.contains("udpd_received_datagrams_total"), "{scrape}");
    daemon.command("stats").succeeds(&[]);
    // None of the idle ones has hung up.
    assert_eq!((scrapers.len(), askers.len()), (IDLE, IDLE));
    let held = daemon.open_files().len().saturating_sub(before);
    assert!(held <= HELD_MAX, "{held} connections are held");
    daemon.end(sent);
}

/// One of ten thousand: what it sends, and how it goes. None of them ever reads.
fn nuisance(metrics: SocketAddr, number: usize) -> TcpStream {
    let mut client = TcpStream::connect(metrics).expect("the endpoint takes every client");
    let long = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(20_000));
    let sent: &[u8] = match number % 9 {
        0 => b"",
        1 => b"GET /metrics HT",
        2 => b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        3 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        4 => b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
        5 => b"GET /history?step=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        6 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        7 => long.as_bytes(),
        _ => b"\0\xff\r\n\r\nPOST ../../etc HTTP/9",
    };
    // The daemon may have hung up already, which is what some of these ask for.
    let _ = client.write_all(sent);
    match number % 5 {
        0 => drop(client.shutdown(Shutdown::Write)),
        1 => drop(client.shutdown(Shutdown::Both)),
        2 => drop(socket::setsockopt(&client, socket::sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })),
        _ => {}
    }
    client
}

#[test]
fn ten_thousand_slow_and_broken_clients_of_the_page_cost_neither_scrapes_nor_datagrams_anything() {
    let metrics = free_tcp_address();
    let daemon = with_endpoint(metrics).start();
    let before = daemon.open_files().len();
    let mut sent = 0;
    // As many stay connected at a time as any limit on descriptors allows.
    let mut connected = VecDeque::new();
    for number in 0..10_000 {
        connected.push_back(nuisance(metrics, number));
        if connected.len() > 500 {
            connected.pop_front();
        }
        if number % 1_000 == 999 {
            sent += daemon.send(100);
            let scrape = scrape(metrics);
            assert!(scrape.starts_with("HTTP/1.1 200 OK\r\n") && scrape.ends_with('\n'), "{number}: {scrape}");
            let held = daemon.open_files().len().saturating_sub(before);
            assert!(held <= 8, "{held} connections are held after {number}");
        }
    }
    daemon.end(sent);
}

#[test]
fn a_token_covers_metrics_and_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    fs::write(&path, "0123456789abcdef0123456789abcdef").expect("the token");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    let metrics = free_tcp_address();
    let daemon = with_endpoint(metrics).daemon(&format!("metrics_token_file = '{}'", text(&path))).start();
    assert!(scrape(metrics).starts_with("HTTP/1.1 401 "));
    let header = "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n";
    let with_token = |path: &str| http(metrics, path, header);
    assert!(with_token("/metrics").contains("udpd_received_datagrams_total"));
    assert!(with_token("/").contains("<!doctype html>"));
    daemon.end(0);
}

#[test]
fn check_refuses_the_token_file_that_run_refuses_in_the_same_words() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    let setup = with_endpoint(free_tcp_address()).daemon(&format!("metrics_token_file = '{}'", text(&path)));
    let said_by = |command: &str| {
        let stderr = setup.udpd(command, &[]).ends(78, &[]).stderr;
        let sentence = stderr.lines().find(|line| line.contains("metrics_token_file")).expect(&stderr);
        sentence[sentence.find("cannot take the token").expect(&stderr)..].to_owned()
    };
    let good = "0123456789abcdef0123456789abcdef";
    // Root may read everything.
    let is_root = is_root();
    let of_all = [
        (None, 0o600, "No such file"),
        (Some(""), 0o600, "0 characters"),
        (Some("\n"), 0o600, "0 characters"),
        (Some(good), 0o644, "chmod o="),
        (Some(good), 0o000, "Permission denied"),
    ];
    for (token, mode, words) in of_all.into_iter().filter(|(.., words)| !is_root || *words != "Permission denied") {
        let _ = fs::remove_file(&path);
        if let Some(token) = token {
            fs::write(&path, token).expect("the token");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        }
        let said = said_by("check");
        assert!(said.contains(words), "{said}");
        assert_eq!(said, said_by("run"));
    }
    // As editors on either system leave it.
    fs::write(&path, format!("{good}\r\n")).expect("the token");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    setup.check().succeeds(&[]);
}

#[test]
fn a_daemon_is_found_by_its_configuration_and_one_that_is_not_there_is_exit_69() {
    let daemon = Setup::new().null("nothing").start();
    daemon.by_file("stats", &["--json"]).succeeds(&[]);
    let ended = daemon.terminate();
    let file = ended.path("udpd.toml");
    for command in ["stats", "reopen"] {
        udpd(&[command, "-c", text(&file)]).ends(69, &["control.sock"]);
        // The socket that is named counts, whatever the file says.
        udpd(&[command, "-c", text(&file), "--socket", "/nonexistent/other.sock"]).ends(69, &["other.sock"]);
    }
    let without = Setup::new().daemon("control_socket = \"\"").null("nothing");
    without.udpd("stats", &[]).ends(69, &["control_socket = \"\""]);
}

#[test]
fn a_reader_that_locks_the_directory_of_the_control_socket_does_not_stop_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("control.sock");
    let reader = File::open(directory.path()).expect("a directory can be read");
    reader.lock().expect("a file that can be read can be locked");
    Setup::new().daemon(&format!("control_socket = '{}'", text(&socket))).null("nothing").start().end(0);
    assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 0, "socket and lock are gone");
}

#[test]
fn what_others_have_put_beside_stats_on_exit_is_neither_waited_for_nor_followed() {
    let daemon = Setup::new().null("nothing").start();
    let path = |name: &str| daemon.directory().join(name);
    fs::write(path("precious"), "precious").expect("a file");
    mkfifo(&path("ledger.json.new"), Mode::S_IRWXU).expect("a pipe");
    symlink(path("precious"), path("ledger.json.tmp")).expect("a link");
    let sent = daemon.send(100);
    let ended = daemon.end(sent);
    let path = |name: &str| ended.path(name);
    assert!(fs::symlink_metadata(path("ledger.json.new")).expect("the pipe").file_type().is_fifo());
    assert_eq!(fs::read_to_string(path("ledger.json.tmp")).expect("the link"), "precious");
    let hidden = fs::read_dir(&ended.directory).expect("the directory").flatten();
    assert!(
        hidden.into_iter().all(|entry| !text(entry.file_name().as_ref()).starts_with('.')),
        "a file stays beside it"
    );
}

#[test]
fn reopen_returns_when_the_moved_file_is_closed_with_every_record_in_it() {
    let daemon = Setup::new().keys("lanes = 1").file("archive", "in.log").start();
    let (current, moved) = (daemon.directory().join("in.log"), daemon.directory().join("in.log.1"));
    let lines = |path: &Path| fs::read_to_string(path).expect("the file").lines().count() as u64;
    let before = daemon.send(1_000);
    daemon.until_delivered(before);
    fs::rename(&current, &moved).expect("moved");
    let done = daemon.by_file("reopen", &[]).succeeds(&[]);
    assert_eq!(done.stdout, "new files begun: 1\n");
    let open = daemon.open_files();
    assert!(open.contains(&current) && !open.contains(&moved), "{open:?}");
    assert_eq!(lines(&moved), before);
    let after = daemon.send(1_000);
    daemon.until_delivered(before + after);
    assert_eq!(lines(&daemon.end(before + after).path("in.log")), after);
}
