//! `udpd explain` as an operator runs it, without privileges and without a rig: what a foreign socket and the daemon
//! lose is told with its number, and a port that loses nothing is none.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::util::*;

/// Runs it with these arguments while `work` is done again and again. The exit code, and what it printed.
fn explain(arguments: &[&str], mut work: impl FnMut()) -> (Option<i32>, String) {
    let mut command = Command::new(UDPD);
    command.arg("explain").args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("udpd explain");
    while child.try_wait().expect("a child").is_none() {
        work();
    }
    let output = child.wait_with_output().expect("its output");
    (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The finding about the receive buffers of a port.
fn of_socket(said: &Value) -> Option<&Value> {
    said["findings"].as_array().expect("findings").iter().find(|finding| finding["layer"] == "socket")
}

#[test]
fn what_a_socket_of_another_program_loses_is_told_with_its_port_and_a_cure() {
    // It is never read.
    let silent = socket();
    let address = address_of(&silent);
    let sender = socket();
    let port = address.port().to_string();
    let (code, printed) = explain(&["--json", "--seconds", "1", "--port", &port], || {
        // Beyond what any buffer holds by default.
        (0..100).for_each(|_| drop(sender.send_to(&[0; 1000], address)));
    });
    let said: Value = serde_json::from_str(&printed).expect("JSON");
    let finding = of_socket(&said).unwrap_or_else(|| panic!("no finding in {printed}"));
    assert_eq!((code, &said["lost"]), (Some(3), &Value::from(true)));
    assert!(finding["lost"].as_u64() > Some(0), "{finding}");
    assert!(finding["subject"].as_str().expect("text").starts_with(&format!("port {port}")), "{finding}");
    assert!(!finding["cures"].as_array().expect("cures").is_empty(), "{finding}");
}

#[test]
fn a_port_on_which_nothing_is_lost_has_no_finding_at_its_socket() {
    let address = free_address();
    let daemon = Setup::at(address).null("out").start();
    let socket = daemon.control_socket();
    let port = address.port().to_string();
    let arguments = ["--json", "--seconds", "1", "--port", &port, "--socket", socket.to_str().expect("UTF-8")];
    let (_, printed) = explain(&arguments, std::thread::yield_now);
    let said: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(of_socket(&said), None, "{printed}");
    assert_eq!(said["subject"], format!("port {port}"));
}

#[test]
fn the_file_for_sysctl_has_only_comments_and_settings() {
    let text = udpd(&["explain", "--sysctl", "--seconds", "1"]).succeeds(&["# For /etc/sysctl.d"]).stdout;
    for line in text.lines() {
        let is_setting =
            line.split_once(" = ").is_some_and(|(name, value)| name.starts_with("net.") && !value.is_empty());
        assert!(line.is_empty() || line.starts_with("# ") || is_setting, "{line:?} in {text}");
    }
}

#[test]
fn what_fits_a_rate_is_printed_as_commands_and_as_a_listener_and_only_where_it_is_asked_for() {
    let wanted = ["--tune", "--rate", "400000", "--address", "0.0.0.0:2055"];
    let arguments: Vec<&str> = ["explain"].into_iter().chain(wanted).collect();
    udpd(&arguments).succeeds(&[
        "400,000 datagrams",
        "address = \"0.0.0.0:2055\"",
        "absorb = { rate = 400000",
        "Right as",
    ]);
    udpd(&["explain", "--rate", "5"]).ends(2, &["--tune"]);
}

#[test]
fn an_interface_that_is_not_there_is_named_and_so_is_a_socket_without_a_daemon() {
    let missing = udpd(&["explain", "--interface", "nosuch0", "--seconds", "1"]);
    missing.ends(69, &["there is no interface nosuch0"]);
    udpd(&["explain", "--socket", "/nonexistent/control.sock", "--seconds", "1"]).ends(69, &[]);
}
