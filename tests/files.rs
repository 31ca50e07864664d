//! What is in files after rotation, after a kill, and in the formats that keep more than the payload.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use udpd_base::format::Boundary;

use crate::util::*;

#[test]
fn rotation_under_load_loses_nothing_and_every_record_is_in_exactly_one_file() {
    let daemon = Setup::new()
        .keys("receive_buffer = '64MiB'")
        .file("by_time", "time-%H%M%S.log")
        .keys("rotate = { bytes = 0, every = '1s' }\nwhen_full = 'block'")
        .file("by_size", "size.log")
        .keys("rotate = { bytes = '256KiB', every = '0s' }\nsync = 'rotate'\nwhen_full = 'block'")
        .start();
    let report = Load::new(daemon.address(), Amount::Seconds(5.0)).rate(300_000 / SCALE).send();
    let sent = report.sent;
    daemon.until_delivered(sent);
    let ended = daemon.end(sent);
    // A disk that others keep busy delays a rotation by as long as a sync takes, so how many there are is its affair.
    let least = 2;
    for (index, prefix) in ["time", "size"].into_iter().enumerate() {
        let files = files(&ended.directory, prefix);
        assert!(files.len() >= least, "{prefix}: {} files", files.len());
        let text = contents(&ended.directory, prefix);
        report.assert_each_once(&text);
        let of_files = &sinks(&ended.ledger)[index]["files"];
        assert_eq!(count(of_files, "written_bytes"), text.len() as u64, "{of_files:#}");
        assert_eq!(count(of_files, "unsynced_bytes"), 0, "the end is a sync: {of_files:#}");
        assert!(count(of_files, "finished") + 1 >= least as u64, "{of_files:#}");
    }
}

/// Starts a daemon, kills it at some moment under load, and returns how it ended.
fn killed(format: &str, moment: u64) -> Ended {
    let daemon = Setup::new()
        .file("archive", "archive")
        .keys(format!("format = '{format}'\nrotate = {{ bytes = 0, every = '0s' }}\nsync = 'never'"))
        .start();
    let load = Load::new(daemon.address(), Amount::Seconds(0.05)).rate(100_000 / SCALE).bytes(300).spawn();
    daemon.stats_when("some have arrived", |ledger| received(ledger) > moment * 13 / SCALE);
    let ended = daemon.end_by(Signal::SIGKILL);
    load.join().expect("the load ends");
    ended
}

#[test]
fn a_file_is_whole_but_for_its_last_record_whenever_the_daemon_is_killed() {
    let kills = std::env::var("UDPD_KILLS").map_or(5, |kills| kills.parse().expect("UDPD_KILLS is a number"));
    for (format, boundary) in [("lines", Boundary::Newline), ("jsonl", Boundary::Newline), ("pcapng", Boundary::Block)]
    {
        let mut written = 0;
        for moment in 0..kills {
            let killed = killed(format, moment);
            let bytes = killed.read("archive");
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
            let scheme = if format == "pcapng" { "pcapng" } else { "file" };
            let path = killed.path("archive");
            Daemon::listening(&["--to", &format!("{scheme}:{}", path.display())]).end(0);
            let repaired = std::fs::read(&path).expect("the file");
            assert_eq!(repaired[..whole.bytes], bytes[..whole.bytes], "{format}: whole records stay");
            assert_eq!(boundary.whole(&repaired).bytes, repaired.len(), "{format}: nothing torn is left");
            let aside = std::fs::read(killed.path("archive.torn")).unwrap_or_default();
            assert_eq!(aside, bytes[whole.bytes..], "{format}: what was torn is set aside");
        }
        assert!(written > 0, "{format}: no kill found anything written");
    }
}

#[test]
fn a_line_of_json_tells_sender_destination_and_payload() {
    let address = free_address();
    let setup = Setup::at(address).listens_at(format!("[::]:{}", address.port())).keys("max_length = 100");
    let daemon = setup.file("archive", "archive").keys("format = 'jsonl'").start();
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
        sources.push(address_of(&socket).to_string());
        daemon.until_delivered(number as u64 + 1);
    }
    let ended = daemon.end(sent.len() as u64);
    let text = ended.text("archive");
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

/// One packet as tshark sees it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    source: String,
    destination: String,
    payload: String,
}

/// Reads a capture with tshark; every packet must be sound.
fn seen_by_tshark(path: &Path, port: u16) -> Vec<Seen> {
    let fields =
        "ip.src ip.dst ipv6.src ipv6.dst udp.srcport udp.dstport udp.checksum.status _ws.malformed udp.payload";
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=|", "-o", "udp.check_checksum:TRUE"]);
    // Whatever the payload looks like, it is not to be taken for a protocol.
    command.args(["-d", &format!("udp.port=={port},data")]);
    command.args(fields.split(' ').flat_map(|field| ["-e", field]));
    let text = Outcome::of(&mut command).succeeds(&[]).stdout;
    let packet = |line: &str| {
        let [v4_from, v4_to, v6_from, v6_to, from_port, to_port, checksum, malformed, payload] =
            line.split('|').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line:?}"));
        assert_eq!((checksum, malformed), ("1", ""), "a wrong checksum or a malformed packet: {line:?}");
        Seen {
            source: format!("{v4_from}{v6_from} {from_port}"),
            destination: format!("{v4_to}{v6_to} {to_port}"),
            payload: payload.to_owned(),
        }
    };
    text.lines().map(packet).collect()
}

#[test]
fn a_capture_of_every_size_and_both_families_is_sound_to_tshark() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return not_checked("no tshark to read captures with");
    }
    let address = free_address();
    let port = address.port();
    let daemon = Setup::new()
        .listens_at(format!("[::]:{port}"))
        .keys("max_length = 65535\nreceive_buffer = '64MiB'\nbatch_size = 16")
        .file("capture", "capture.pcapng")
        .keys("format = 'pcapng'\nrotate = { bytes = 0, every = '0s' }")
        .start();
    let v4 = socket();
    let v6 = UdpSocket::bind("[::1]:0").expect("a socket");
    let datagrams: u64 = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    let mut expected = Vec::new();
    for number in 0..datagrams {
        let length = if number % 1_000 == 999 { 65_507 } else { (number % 1_473) as usize };
        let payload: Vec<u8> = (0..length).map(|at| (at as u64 * 5 + number) as u8).collect();
        let (socket, host) = if number % 2 == 0 { (&v4, "127.0.0.1") } else { (&v6, "::1") };
        socket.send_to(&payload, (host, port)).expect("sent");
        let from = address_of(socket).port();
        expected.push(Seen {
            source: format!("{host} {from}"),
            destination: format!("{host} {port}"),
            payload: payload.iter().map(|byte| format!("{byte:02x}")).collect(),
        });
        if number % 1_000 == 999 || number + 1 == datagrams {
            daemon.until_delivered(number + 1);
        }
    }
    let ended = daemon.end(datagrams);
    let seen = seen_by_tshark(&ended.path("capture.pcapng"), port);
    assert_eq!(seen.len() as u64, datagrams);
    for (number, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
        assert!(seen == expected, "packet {number}: {} {} to {}", seen.source, seen.payload.len(), seen.destination);
    }
}
