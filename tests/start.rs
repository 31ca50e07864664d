//! The beginning: what cannot be had is said with its cause, its cure and the right exit code, and nothing is left behind.

use std::net::UdpSocket;
use std::process::Command;

use crate::util::daemon::{Daemon, free_address, udpd};

#[test]
fn an_address_in_use_is_exit_69_and_names_its_holder() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("bound").to_string();
    let output = udpd(&["run", "--listen", &address, "--to", "null:"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    let me = format!("(pid {})", std::process::id());
    assert!(stderr.contains(&address) && stderr.contains(&me), "{stderr}");
}

#[test]
fn an_address_of_no_interface_is_exit_69() {
    let output = udpd(&["run", "--listen", "192.0.2.1:5140", "--to", "null:"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("192.0.2.1:5140") && stderr.contains("ip address"), "{stderr}");
}

#[test]
fn a_file_that_cannot_be_opened_is_exit_74_and_the_port_is_free_again() {
    let address = free_address();
    let output = udpd(&["run", "--listen", &address.to_string(), "--to", "file:/proc/udpd/in.log"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{stderr}");
    assert!(stderr.contains("/proc/udpd/in.log"), "{stderr}");
    UdpSocket::bind(address).expect("the port is free");
}

#[test]
fn sockets_that_systemd_passed_are_exit_78_and_nobody_is_called_their_holder() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("bound").to_string();
    let script = "LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\" run --listen \"$1\" --to null:";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_udpd"), &address]).env_remove("NOTIFY_SOCKET");
    let output = command.output().expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("systemd passed 2 sockets") && stderr.contains("systemctl disable"), "{stderr}");
    assert!(!stderr.contains("pid"), "{stderr}");
}

#[test]
fn usage_errors_are_exit_2() {
    for arguments in
        [&["run", "--listen", "127.0.0.1:5140"][..], &["run", "--listen", "nonsense", "--to", "null:"], &["fly"]]
    {
        let output = udpd(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_start_up_lines_say_socket_core_buffer_and_what_it_covers() {
    let address = free_address();
    let daemon = Daemon::with_arguments(&["--listen", &address.to_string(), "--to", "null:", "--lanes", "2"]);
    let ended = daemon.terminate();
    for lane in 0..2 {
        let start = format!("listener cli, lane {lane}: {address}, core ");
        let line =
            ended.stderr.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{}", ended.stderr));
        for word in ["receive buffer", "asked", "granted", "covers", "ms at"] {
            assert!(line.contains(word), "{word:?} is missing in {line:?}");
        }
    }
}

#[test]
fn check_prints_the_plan_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("udpd.toml");
    let archive = directory.path().join("archive");
    let address = free_address();
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nlanes = 2\nsinks = [\"a\"]\n[sink.a]\ntype = \"file\"\npath = \"{}/x.log\"\n",
        archive.display()
    );
    std::fs::write(&file, text).expect("written");
    let output = udpd(&["check", "--json", "-c", file.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["lanes"].as_array().map(Vec::len), Some(2));
    assert!(report["pool_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert!(!archive.exists(), "nothing is created");
    UdpSocket::bind(address).expect("nothing is bound");
}
