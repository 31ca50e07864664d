//! `udpd run --listen ADDR --to URI...` as an operator types it: several destinations, a format, a length, and a
//! capture into the program behind a pipe, which shows datagrams as they come and may go at any time.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::util::*;

/// Sends a text with each of these numbers.
fn send_texts(to: SocketAddr, numbers: std::ops::Range<u32>) {
    let sender = socket();
    numbers.for_each(|number| send_by(&sender, to, format!("number {number}").as_bytes(), 1));
}

#[test]
fn each_of_several_destinations_gets_everything_as_its_scheme_and_the_format_say() {
    let relay = socket();
    let to_relay = format!("udp:{}", address_of(&relay));
    let all = ["--to", "file:@DIR@/a", "--to", "pcapng:@DIR@/b", "--to", &to_relay, "--to", "-", "--format", "jsonl"];
    let daemon = Daemon::listening(&[&all[..], &["--max-length", "9"]].concat());
    send_texts(daemon.address(), 10..30);
    // Longer than nine bytes, so that no relay sends it on.
    send_texts(daemon.address(), 100..101);
    let mut buffer = [0; 64];
    for number in 10..30 {
        let length = relay.recv(&mut buffer).expect("relayed");
        assert_eq!(buffer[..length], *format!("number {number}").as_bytes());
    }
    let ended = daemon.end(21);
    let sinks = sinks(&ended.ledger);
    let told: Vec<_> = sinks.iter().map(|sink| (sink["name"].as_str(), count(sink, "delivered"))).collect();
    assert_eq!(told, [(Some("file"), 21), (Some("pcapng"), 21), (Some("udp"), 20), (Some("stdout"), 21)]);
    for text in [ended.read("a"), ended.stdout.clone()] {
        let records: Vec<Value> =
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(records.len(), 21);
        assert_eq!(records.iter().filter(|record| record["truncated"] == true).count(), 1, "{records:?}");
    }
    let capture = ended.read("b");
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
        udpd(&[&["run", "--listen", "127.0.0.1:5140"], arguments].concat()).ends(2, &[words]);
    }
    let forms = ["file:PATH", "jsonl:PATH (or jsonl:-)", "pcapng:-", "udp:HOST:PORT", "lines, jsonl, pcapng", "9KiB"];
    udpd(&["run", "--help"]).succeeds(&forms);
}

#[test]
fn tshark_shows_datagrams_while_they_come() {
    let capture = ["-l", "-r", "-", "-T", "fields", "-e", "udp.payload"];
    let tshark = Command::new("tshark").args(capture).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut tshark) = tshark else { return not_checked("no tshark to read a capture from a pipe") };
    let stdin = tshark.stdin.take().expect("piped");
    let daemon = Daemon::listening_with_stdout(&["--to", "pcapng:-"], stdin);
    let mut shown = BufReader::new(tshark.stdout.take().expect("piped")).lines();
    // Before udpd ends: each is shown before the next is sent.
    for number in 0..5 {
        send_texts(daemon.address(), number..number + 1);
        let line = shown.next().expect("shown").expect("text");
        let expected: String = format!("number {number}").bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(line, expected);
    }
    send_texts(daemon.address(), 5..100);
    daemon.end(100);
    assert_eq!(shown.count(), 95);
    assert!(tshark.wait().expect("tshark").success());
}

#[test]
fn a_reader_that_goes_away_ends_a_daemon_that_was_called_by_arguments_with_a_closed_ledger() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let arguments = ["--to", "jsonl:-", "--to", "file:@DIR@/all"];
    let daemon = Daemon::listening_with_stdout(&arguments, writer);
    send_texts(daemon.address(), 0..1);
    let mut first = [0; 1];
    reader.read_exact(&mut first).expect("the first record");
    drop(reader);
    send_texts(daemon.address(), 1..50);
    let ended = daemon.wait_for_end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    ended.logged(&["cannot write to standard output", "its reader has ended"]);
    let listener = ended.listener();
    let received = count(listener, "received");
    assert!((2..=50).contains(&received), "{received}");
    assert_eq!(listener["residual"], Value::from(0));
    for sink in list(listener, "sinks") {
        assert_eq!(count(sink, "offered"), count(sink, "delivered") + sum(&sink["dropped"]), "{sink}");
    }
    let stream = &list(listener, "sinks")[0];
    assert!(count(stream, "delivered") >= 1 && dropped(stream, "sink_error") >= 1, "{stream}");
    let all = ended.text("all");
    assert_eq!(all.lines().count() as u64, count(&list(listener, "sinks")[1], "delivered"));
}
