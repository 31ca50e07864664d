//! What is in files after rotation, after a kill, and in the formats that keep more than the payload.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use udpd::sink::boundary::Boundary;

use crate::delivery::{SCALE, assert_each_once};
use crate::util::daemon::{Daemon, free_address};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load};

/// The files of a directory whose names begin so, with their contents.
fn files(directory: &Path, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).expect("readable").flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let mut files: Vec<(String, Vec<u8>)> = named
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, path)| (name, std::fs::read(path).expect("readable")))
        .collect();
    files.sort();
    files
}

#[test]
fn rotation_under_load_loses_nothing_and_every_record_is_in_exactly_one_file() {
    let address = free_address();
    let daemon = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        receive_buffer = "64MiB"
        sinks = ["by_time", "by_size"]
        [sink.by_time]
        type = "file"
        path = "@DIR@/time-%H%M%S.log"
        rotate = {{ bytes = 0, every = "1s" }}
        queue_batches = 4096
        [sink.by_size]
        type = "file"
        path = "@DIR@/size.log"
        rotate = {{ bytes = "256KiB", every = "0s" }}
        sync = "rotate"
        queue_batches = 4096
        "#
    ));
    let mut load = Load::new(address, Amount::Seconds(5.0));
    load.rate_per_second = 300_000 / SCALE;
    let report = load.send();
    let sent = report.sent;
    daemon.stats_when("all are delivered", |ledger| {
        list(&ledger["listeners"][0], "sinks").iter().all(|sink| count(sink, "delivered") == sent)
    });
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    for (index, (prefix, least)) in [("time", 5), ("size", 10)].into_iter().enumerate() {
        let files = files(ended.directory.path(), prefix);
        assert!(files.len() >= least, "{prefix}: {} files", files.len());
        let text: Vec<u8> = files.into_iter().flat_map(|(_, text)| text).collect();
        assert_each_once(&text, &report);
        let of_files = &ended.ledger["listeners"][0]["sinks"][index]["files"];
        assert_eq!(count(of_files, "written_bytes"), text.len() as u64, "{of_files:#}");
        assert_eq!(count(of_files, "unsynced_bytes"), 0, "the end is a sync: {of_files:#}");
        assert!(count(of_files, "finished") + 1 >= least as u64, "{of_files:#}");
    }
}

/// Starts a daemon, kills it at some moment under load, and returns what its file then held.
fn killed(format: &str, moment: u64) -> (tempfile::TempDir, Vec<u8>) {
    let address = free_address();
    let daemon = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        format = "{format}"
        path = "@DIR@/archive"
        rotate = {{ bytes = 0, every = "0s" }}
        sync = "never"
        "#
    ));
    let mut load = Load::new(address, Amount::Seconds(0.05));
    load.rate_per_second = 100_000 / SCALE;
    load.payload_bytes = 300;
    let load = load.spawn();
    daemon.stats_when("some have arrived", |ledger| count(&ledger["listeners"][0], "received") > moment * 13 / SCALE);
    let ended = daemon.end_by(Signal::SIGKILL);
    load.join().expect("the load ends");
    let bytes = std::fs::read(ended.directory.path().join("archive")).expect("the file");
    (ended.directory, bytes)
}

#[test]
fn a_file_is_whole_but_for_its_last_record_whenever_the_daemon_is_killed() {
    let kills = if cfg!(debug_assertions) { 5 } else { 67 };
    for (format, boundary) in [("lines", Boundary::Newline), ("jsonl", Boundary::Newline), ("pcapng", Boundary::Block)]
    {
        let mut written = 0;
        for moment in 0..kills {
            let (directory, bytes) = killed(format, moment);
            let whole = boundary.whole(&bytes);
            // The longest record that this load has.
            assert!(bytes.len() - whole.bytes < 1000, "{format}: more than one record is torn");
            written += whole.records;
            if format == "jsonl" {
                for line in bytes[..whole.bytes].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                    let value: Value = serde_json::from_slice(line).expect("a whole line is JSON");
                    assert_eq!(value["listener"], "in");
                }
            }
            let address = free_address();
            let path = directory.path().join("archive");
            let again = Daemon::with_arguments(&[
                "--listen",
                &address.to_string(),
                "--to",
                &format!("{}:{}", if format == "pcapng" { "pcapng" } else { "file" }, path.display()),
            ]);
            assert!(again.terminate().status.success());
            let repaired = std::fs::read(&path).expect("the file");
            assert_eq!(repaired[..whole.bytes], bytes[..whole.bytes], "{format}: whole records stay");
            assert_eq!(boundary.whole(&repaired).bytes, repaired.len(), "{format}: nothing torn is left");
            let aside = std::fs::read(directory.path().join("archive.torn")).unwrap_or_default();
            assert_eq!(aside, bytes[whole.bytes..], "{format}: what was torn is set aside");
        }
        assert!(written > 0, "{format}: no kill found anything written");
    }
}

#[test]
fn a_line_of_json_tells_who_sent_what_to_whom() {
    let address = free_address();
    let any = format!("[::]:{}", address.port());
    let daemon = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{any}"
        max_length = 100
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        format = "jsonl"
        path = "@DIR@/archive"
        "#
    ));
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let long = "x".repeat(150);
    let sent: Vec<(&str, &str, &[u8])> = vec![
        ("127.0.0.1:0", "127.0.0.7", b"<34>su: \"failed\"\n"),
        ("[::1]:0", "[::1]", "grüße".as_bytes()),
        ("127.0.0.1:0", "127.0.0.1", b"\xff\x00"),
        ("127.0.0.1:0", "127.0.0.1", b""),
        ("127.0.0.1:0", "127.0.0.1", long.as_bytes()),
    ];
    let mut sources = Vec::new();
    for (number, (from, to, payload)) in sent.iter().enumerate() {
        let socket = UdpSocket::bind(from).expect("a socket");
        socket.send_to(payload, format!("{to}:{}", address.port())).expect("sent");
        sources.push(socket.local_addr().expect("bound").to_string());
        daemon.stats_when("it is delivered", |ledger| {
            count(&ledger["listeners"][0]["sinks"][0], "delivered") == number as u64 + 1
        });
    }
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent.len() as u64);
    let text = std::fs::read_to_string(ended.directory.path().join("archive")).expect("the file");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), sent.len());
    for ((line, source), (_, to, _)) in lines.iter().zip(&sources).zip(&sent) {
        assert_eq!(line["source"], source.as_str(), "{line}");
        assert_eq!(line["destination"], format!("{to}:{}", address.port()), "{line}");
        assert_eq!((&line["listener"], &line["lane"]), (&"in".into(), &0.into()));
        let time = line["time"].as_str().expect("a time");
        let output = Command::new("date").args(["--date", time, "+%s"]).output().expect("date");
        let seconds: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number of seconds");
        assert!((began..began + 60).contains(&seconds), "{time} is no time of this test");
    }
    assert_eq!(lines[0]["payload"], "<34>su: \"failed\"\n");
    assert_eq!(lines[1]["payload"], "grüße");
    assert_eq!(lines[2]["payload_base64"], "/wA=");
    assert_eq!(lines[3]["payload"], "");
    let truncated = (&lines[4]["truncated"], &lines[4]["length"], &lines[4]["payload"]);
    assert_eq!(truncated, (&true.into(), &150.into(), &long[..100].into()));
}
