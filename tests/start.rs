//! The beginning: what cannot be had is said with its cause, its cure and the right exit code, and nothing is left
//! behind.

use std::net::UdpSocket;
use std::process::Command;

use crate::util::*;

#[test]
fn an_address_in_use_is_exit_69_and_names_its_holder() {
    let taken = socket();
    let address = address_of(&taken).to_string();
    let me = format!("(pid {})", std::process::id());
    // /proc is no snapshot: while other tests open and close files in this process a look may miss the one.
    let is_named = (0..5).any(|_| {
        let refused = udpd(&["run", "--listen", &address, "--to", "null:"]).ends(69, &[&address]);
        refused.stderr.contains(&me)
    });
    assert!(is_named, "its holder is {me}");
}

#[test]
fn an_address_of_no_interface_is_exit_69() {
    udpd(&["run", "--listen", "192.0.2.1:5140", "--to", "null:"]).ends(69, &["192.0.2.1:5140", "ip address"]);
}

#[test]
fn a_file_that_cannot_be_opened_is_exit_74_and_the_port_is_free_again() {
    let address = free_address();
    let file = "/proc/udpd/in.log";
    udpd(&["run", "--listen", &address.to_string(), "--to", &format!("file:{file}")]).ends(74, &[file]);
    UdpSocket::bind(address).expect("the port is free");
}

#[test]
fn sockets_that_are_said_to_be_passed_and_are_not_there_are_exit_78() {
    let script = "LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\" run --listen \"$1\" --to null:";
    let arguments = ["-c", script, UDPD, &free_address().to_string()];
    let refused = Outcome::of(Command::new("sh").args(arguments));
    refused.ends(78, &["passed 2 sockets (LISTEN_FDS)", "not there"]);
}

#[test]
fn usage_errors_are_exit_2() {
    for arguments in
        [&["run", "--listen", "127.0.0.1:5140"][..], &["run", "--listen", "nonsense", "--to", "null:"], &["fly"]]
    {
        udpd(arguments).ends(2, &[]);
    }
}

#[test]
fn the_start_up_lines_say_socket_core_buffer_and_what_it_covers() {
    let daemon = Daemon::listening(&["--to", "null:", "--lanes", "2"]);
    let address = daemon.address();
    let ended = daemon.end(0);
    for lane in 0..2 {
        let line = ended.lines(&format!("listener cli, lane {lane}: {address}, core "))[0];
        for word in ["receive buffer", "requested", "granted", "covers", "ms at"] {
            assert!(line.contains(word), "{word:?} is missing in {line:?}");
        }
    }
}

#[test]
fn check_prints_the_plan_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let archive = directory.path().join("archive");
    let setup = Setup::new().keys("lanes = 2").sink("a", "file", format!("path = '{}/x.log'", archive.display()));
    let report = setup.udpd("check", &["--json"]).json();
    assert_eq!(list(&report, "lanes").len(), 2);
    assert!(count(&report, "pool_bytes") > 0);
    assert!(!archive.exists(), "nothing is created");
    UdpSocket::bind(setup.address).expect("nothing is bound");
}

#[test]
fn a_dash_is_standard_output_and_never_a_file_of_that_name() {
    for (to, words) in [("file:-", "write stdout: for standard output"), ("unix:-", "unix:./-")] {
        udpd(&["run", "--listen", "127.0.0.1:5140", "--to", to]).ends(2, &[words]);
    }
    let daemon = Daemon::listening(&["--to", "-"]);
    send(daemon.address(), b"hello", 1);
    let ended = daemon.end(1);
    assert_eq!(ended.stdout, b"hello\n");
    assert!(!ended.path("-").exists());
}

#[test]
fn a_name_behind_to_is_looked_up_once_and_said_and_an_unknown_one_is_exit_69() {
    let port = free_address().port();
    let ended = Daemon::listening(&["--to", &format!("udp:localhost:{port}")]).end(0);
    ended.assert_logged(&format!("info: sink udp: localhost:{port} is "), 1);
    // A label may have 63 letters, so this is refused before any server is asked.
    let unknown = format!("{}.invalid:514", "x".repeat(64));
    for arguments in [
        &["run", "--listen", "127.0.0.1:5140", "--to", &format!("udp:{unknown}")][..],
        &["bench", "send", "--to", &unknown, "--count", "1"],
        &["replay", "/dev/null", "--to", &unknown],
    ] {
        udpd(arguments).ends(69, &["cannot look up the address of", "/etc/hosts"]);
    }
}
