//! `udpd run --listen ADDR --to URI...` as somebody types it: several destinations, a format, a length, and a capture
//! into the program behind a pipe, which shows datagrams as they come and may go at any time.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::{assert_closed, count, list, sum};

fn send(to: SocketAddr, numbers: std::ops::Range<u32>) {
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for number in numbers {
        sender.send_to(format!("number {number}").as_bytes(), to).expect("loopback takes it");
    }
}

#[test]
fn each_of_several_destinations_gets_everything_as_its_scheme_and_the_format_say() {
    let (address, relay) = (free_address(), UdpSocket::bind("127.0.0.1:0").expect("a port"));
    relay.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit for a relay that says nothing");
    let to_relay = format!("udp:{}", relay.local_addr().expect("bound"));
    let all = ["--to", "file:@DIR@/a", "--to", "pcapng:@DIR@/b", "--to", &to_relay, "--to", "-", "--format", "jsonl"];
    let listen = address.to_string();
    let daemon = Daemon::with_arguments(&[&["--listen", &listen, "--max-length", "9"][..], &all].concat());
    send(address, 10..30);
    // Longer than nine bytes, so that no relay sends it on.
    send(address, 100..101);
    let mut buffer = [0; 64];
    for number in 10..30 {
        let length = relay.recv(&mut buffer).expect("relayed");
        assert_eq!(buffer[..length], *format!("number {number}").as_bytes());
    }
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, 21);
    let sinks = list(&ended.ledger["listeners"][0], "sinks");
    let told: Vec<_> = sinks.iter().map(|sink| (sink["name"].as_str(), count(sink, "delivered"))).collect();
    assert_eq!(told, [(Some("file"), 21), (Some("pcapng"), 21), (Some("udp"), 20), (Some("stdout"), 21)]);
    let file = std::fs::read(ended.directory.path().join("a")).expect("the file");
    for text in [file, ended.stdout] {
        let records: Vec<Value> =
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(records.len(), 21);
        assert_eq!(records.iter().filter(|record| record["truncated"] == true).count(), 1, "{records:?}");
    }
    let capture = std::fs::read(ended.directory.path().join("b")).expect("the capture");
    assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
}

#[test]
fn what_cannot_be_meant_is_a_usage_error_and_help_lists_what_can() {
    for (arguments, words) in [
        (&["--to", "-", "--to", "jsonl:-"][..], "goes where stdout goes already"),
        (&["--to", "null:", "--format", "jsonl"], "--format: what --to names has a format of its own, or none"),
        (&["--to", "-", "--format", "xml"], "[possible values: lines, jsonl, pcapng]"),
        (&["--to", "-", "--max-length", "1MiB"], "--max-length: \"1MiB\" is outside 1 to 65535 bytes"),
        (&[], "--to <URI>"),
    ] {
        let output = udpd(&[&["run", "--listen", "127.0.0.1:5140"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
    let help = udpd(&["run", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout);
    for form in ["file:PATH", "jsonl:PATH (or jsonl:-)", "pcapng:-", "udp:HOST:PORT", "lines, jsonl, pcapng", "9KiB"] {
        assert!(help.contains(form), "{form}: {help}");
    }
}

#[test]
fn tshark_shows_datagrams_while_they_come() {
    let capture = ["-l", "-r", "-", "-T", "fields", "-e", "udp.payload"];
    let tshark = Command::new("tshark").args(capture).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut tshark) = tshark else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no tshark to read a capture from a pipe");
        return;
    };
    let address = free_address();
    let stdin = tshark.stdin.take().expect("piped");
    let daemon =
        Daemon::with_arguments_and_stdout(&["--listen", &address.to_string(), "--to", "pcapng:-"], stdin.into());
    let mut shown = BufReader::new(tshark.stdout.take().expect("piped")).lines();
    // Before udpd ends: each is shown before the next is sent.
    for number in 0..5 {
        send(address, number..number + 1);
        let line = shown.next().expect("shown").expect("text");
        let expected: String = format!("number {number}").bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(line, expected);
    }
    send(address, 5..100);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 100);
    assert_eq!(shown.count(), 95);
    assert!(tshark.wait().expect("tshark").success());
}

#[test]
fn a_reader_that_goes_ends_the_daemon_with_closed_books() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let address = free_address();
    let arguments = ["--listen", &address.to_string(), "--to", "jsonl:-", "--to", "file:@DIR@/all"];
    let daemon = Daemon::with_arguments_and_stdout(&arguments, writer.into());
    send(address, 0..1);
    let mut first = [0; 1];
    reader.read_exact(&mut first).expect("the first record");
    drop(reader);
    send(address, 1..50);
    let ended = daemon.wait_for_end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("cannot write to standard output"), "{}", ended.stderr);
    let listener = &ended.ledger["listeners"][0];
    let received = count(listener, "received");
    assert!((2..=50).contains(&received), "{received}");
    assert_eq!(listener["residual"], Value::from(0));
    for sink in list(listener, "sinks") {
        assert_eq!(count(sink, "offered"), count(sink, "delivered") + sum(&sink["dropped"]), "{sink}");
    }
    let stream = &list(listener, "sinks")[0];
    assert!(count(stream, "delivered") >= 1 && count(&stream["dropped"], "sink_error") >= 1, "{stream}");
    let all = std::fs::read_to_string(ended.directory.path().join("all")).expect("the file");
    assert_eq!(all.lines().count() as u64, count(&list(listener, "sinks")[1], "delivered"));
}
