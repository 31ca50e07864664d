//! A capture that udpd wrote, sent once more, is what was sent first.

use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

use udpd_base::capture::Capture;

use crate::util::*;

/// Payloads of many lengths.
fn payloads() -> Vec<Vec<u8>> {
    [0_usize, 1, 5, 5, 5, 300, 1_472, 9_000, 60_000, 2]
        .into_iter()
        .enumerate()
        .map(|(number, length)| (0..length).map(|at| (at + number) as u8).collect())
        .collect()
}

/// Sends the payloads to a daemon that writes them to a capture.
fn captured(payloads: &[Vec<u8>], directory: &Path) -> String {
    let path = directory.join("sent.pcapng").display().to_string();
    let setup = Setup::new().keys("max_length = 65535\nbatch_size = 8");
    let daemon = setup.file("capture", "sent.pcapng").keys("format = 'pcapng'").in_directory(directory).start();
    let socket = socket();
    payloads.iter().for_each(|payload| send_by(&socket, daemon.address(), payload, 1));
    daemon.until_delivered(payloads.len() as u64);
    daemon.end(payloads.len() as u64);
    path
}

/// Checks that exactly these payloads arrived, in order.
#[track_caller]
fn assert_received(socket: &UdpSocket, payloads: &[Vec<u8>]) {
    let received = socket.take_all();
    assert!(received == payloads, "{} of {} datagrams, or others", received.len(), payloads.len());
}

#[test]
fn a_capture_that_udpd_wrote_is_sent_as_it_came() {
    let directory = tempfile::tempdir().expect("a directory");
    let payloads = payloads();
    let path = captured(&payloads, directory.path());
    for options in [&["--fast"][..], &["--speed", "100"], &[]] {
        let socket = socket();
        let to = address_of(&socket).to_string();
        let report = udpd(&[&["replay", &path, "--to", &to, "--json"], options].concat()).json();
        assert_eq!((count(&report, "sent"), count(&report, "failed")), (payloads.len() as u64, 0), "{report}");
        assert_eq!(count(&report, "skipped"), 0);
        assert_received(&socket, &payloads);
    }
}

#[test]
fn standard_input_counts_and_ports_are_as_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let payloads = payloads();
    let bytes = std::fs::read(captured(&payloads, directory.path())).expect("the capture");
    let socket = socket();
    let to = address_of(&socket).to_string();
    let mut child = Command::new(UDPD)
        .args(["replay", "-", "--to", &to, "--fast", "--count", "4"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    // It may end before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(&bytes);
    let output = child.wait_with_output().expect("ended");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with(&format!("sent 4 datagrams to {to} in ")), "{text}");
    assert_received(&socket, &payloads[..4]);
    let path = directory.path().join("sent.pcapng").display().to_string();
    let report = udpd(&["replay", &path, "--to", &to, "--fast", "--port", "1", "--json"]).json();
    assert_eq!((count(&report, "sent"), count(&report, "skipped")), (0, payloads.len() as u64));
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("note.txt").display().to_string();
    std::fs::write(&path, "not a capture").expect("written");
    for (arguments, code, words) in [
        (vec!["replay", &path, "--to", "127.0.0.1:9"], 1, "neither pcapng nor pcap begins so"),
        (vec!["replay", "/nonexistent", "--to", "127.0.0.1:9"], 74, "cannot read the capture /nonexistent"),
        (vec!["replay", &path, "--to", "localhost"], 2, "is not an address and a port"),
        (vec!["replay", &path, "--to", "127.0.0.1:9", "--speed", "0"], 2, "is not a number above 0"),
        (vec!["replay", "-", "--to", "127.0.0.1:9", "--loop", "2"], 2, "standard input can be read once"),
    ] {
        udpd(&arguments).ends(code, &[words]);
    }
}

#[test]
fn each_datagram_goes_where_it_was_sent_to_and_with_its_own_source_where_that_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = captured(&payloads(), directory.path());
    // The collector of the capture is gone, so its port is free.
    let mut capture = Capture::open(std::fs::File::open(&path).expect("the capture")).expect("a capture");
    let first = capture.next_datagram().expect("readable").expect("one");
    let (source, destination) = (first.source, first.destination);
    let Ok(socket) = UdpSocket::bind(destination) else {
        return not_checked("a replay to the captured address: another program has taken the port meanwhile");
    };
    let replay = |options: &[&str]| {
        udpd(&[&["replay", &path, "--to", "captured", "--fast", "--json", "--ttl", "9"], options].concat()).json()
    };
    assert_eq!(count(&replay(&[]), "sent"), payloads().len() as u64);
    assert_received(&socket, &payloads());
    if !is_root() {
        return not_checked("a replay with the captured source: it takes CAP_NET_RAW");
    }
    assert_eq!(count(&replay(&["--keep-source", "--count", "1"]), "sent"), 1);
    let mut bytes = [0; 100];
    let (length, from) = socket.recv_from(&mut bytes).expect("it came");
    assert_eq!((&bytes[..length], from), (&payloads()[0][..], source));
}
