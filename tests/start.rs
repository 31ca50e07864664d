//! The beginning: what cannot be had is said with its cause, its cure and the right exit code, and nothing is left
//! behind.

use std::net::UdpSocket;
use std::process::Command;

use crate::util::daemon::{Daemon, free_address, udpd};

#[test]
fn an_address_in_use_is_exit_69_and_names_its_holder() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("bound").to_string();
    let me = format!("(pid {})", std::process::id());
    // /proc is no snapshot: while other tests open and close files in this process a look may miss the one.
    let is_named = (0..5).any(|_| {
        let output = udpd(&["run", "--listen", &address, "--to", "null:"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{stderr}");
        assert!(stderr.contains(&address), "{stderr}");
        stderr.contains(&me)
    });
    assert!(is_named, "its holder is {me}");
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
fn sockets_that_are_said_to_be_passed_and_are_not_there_are_exit_78() {
    let address = free_address().to_string();
    let script = "LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\" run --listen \"$1\" --to null:";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_udpd"), &address]).env_remove("NOTIFY_SOCKET");
    let output = command.output().expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("passed 2 sockets (LISTEN_FDS)") && stderr.contains("not there"), "{stderr}");
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
        for word in ["receive buffer", "requested", "granted", "covers", "ms at"] {
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
        "[[listener]]\n\
         name = \"in\"\n\
         address = \"{address}\"\n\
         lanes = 2\n\
         sinks = [\"a\"]\n\
         [sink.a]\n\
         type = \"file\"\n\
         path = \"{}/x.log\"\n",
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

#[test]
fn a_dash_is_standard_output_and_never_a_file_of_that_name() {
    for (to, words) in [("file:-", "write stdout: for standard output"), ("unix:-", "unix:./-")] {
        let output = udpd(&["run", "--listen", "127.0.0.1:5140", "--to", to]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    }
    let address = free_address();
    let daemon = Daemon::with_arguments(&["--listen", &address.to_string(), "--to", "-"]);
    UdpSocket::bind("127.0.0.1:0").expect("a socket").send_to(b"hello", address).expect("sent");
    let ended = daemon.terminate();
    assert_eq!(ended.stdout, b"hello\n");
    assert!(!ended.directory.path().join("-").exists());
}

#[test]
fn a_name_behind_to_is_looked_up_once_and_said_and_one_that_nobody_knows_is_exit_69() {
    let (address, peer) = (free_address(), free_address());
    let to = format!("udp:localhost:{}", peer.port());
    let daemon = Daemon::with_arguments(&["--listen", &address.to_string(), "--to", &to]);
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    let line = format!("info: sink udp: localhost:{} is ", peer.port());
    assert_eq!(ended.stderr.matches(&line).count(), 1, "{}", ended.stderr);
    // A label may have 63 letters, so this is refused before any server is asked.
    let nobody = format!("{}.invalid", "x".repeat(64));
    for arguments in [
        vec!["run", "--listen", "127.0.0.1:5140", "--to", "udp:@:514"],
        vec!["bench", "send", "--to", "@:514", "--count", "1"],
        vec!["replay", "/dev/null", "--to", "@:514"],
    ] {
        let arguments: Vec<String> = arguments.iter().map(|one| one.replace('@', &nobody)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = udpd(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {stderr}");
        assert!(stderr.contains("cannot look up the address of") && stderr.contains("/etc/hosts"), "{stderr}");
    }
}
