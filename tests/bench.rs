//! `udpd bench send` and `udpd bench recv`, as their users run them: what is sent is what is received plus what is
//! lost, to the datagram, and what is done to the traffic on purpose is found again in the report.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, ExitStatus};

use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait};
use nix::sys::signal::Signal;
use serde_json::Value;
use udpd_bench::payload;
use udpd_bench::payload::{HeaderStamp, PayloadReading, SendTime};

use crate::util::*;

/// A running `udpd bench` that ends by itself or by a signal.
struct Bench {
    process: Process,
    directory: tempfile::TempDir,
}

impl Bench {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let stdout = std::fs::File::create(directory.path().join("stdout")).expect("a file");
        let process = Process::start(Command::new(UDPD).arg("bench").args(arguments).stdout(stdout));
        Self { process, directory }
    }

    /// Starts `bench recv --json` and waits until it says that it receives.
    fn recv(address: SocketAddr, arguments: &[&str]) -> Self {
        let mut bench = Self::start(&[&["recv", "--json", "--listen", &address.to_string()], arguments].concat());
        bench.process.await_line("receiving on");
        bench
    }

    /// Waits for its end, which is a success; its report.
    #[track_caller]
    fn report(self) -> Value {
        let (status, json, stderr) = self.end();
        assert!(status.success(), "{status}: {stderr}");
        json["report"].clone()
    }

    /// Waits for its end: status, the JSON on stdout, what it wrote to stderr.
    fn end(self) -> (ExitStatus, Value, String) {
        let ended = self.process.wait(self.directory.path(), "no ledger");
        (ended.status, serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null), ended.stderr)
    }
}

/// Runs `udpd bench send --json` to its end and returns its report.
#[track_caller]
fn send(to: SocketAddr, arguments: &str) -> Value {
    let to = to.to_string();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    udpd(&[&["bench", "send", "--json", "--to", &to][..], &arguments].concat()).json()["report"].clone()
}

/// A socket that holds all that a test sends, to be read afterwards.
fn roomy_socket() -> (Socket, SocketAddr) {
    let socket = Socket::new(Family::V4).expect("a socket");
    socket.set_receive_buffer(8 << 20).expect("a buffer");
    socket.bind("127.0.0.1:0".parse().expect("valid")).expect("bound");
    let address = socket.local_addr().expect("bound");
    (socket, address)
}

/// Everything that waits in a socket: who sent it, and its payload.
fn read_all(socket: &Socket) -> Vec<(SocketAddr, Vec<u8>)> {
    let shape = BatchShape::new(64, 2048);
    let mut batch = RecvBatch::new(&shape).expect("memory");
    let mut all = Vec::new();
    while batch.receive(socket, Wait::No).expect("received") > 0 {
        all.extend(
            batch.datagrams().map(|datagram| (datagram.source().expect("a sender"), datagram.payload().to_vec())),
        );
    }
    all
}

/// A payload as `bench send` makes it.
fn made(flow: u16, sequence: u64, length: usize) -> Vec<u8> {
    let mut datagram = vec![0; length];
    payload::fill(&mut datagram);
    HeaderStamp::new(77, SendTime { monotonic_ns: 1, realtime_offset_ns: 1 }).write(&mut datagram, flow, sequence);
    datagram
}

fn sum_of(objects: &[Value], key: &str) -> u64 {
    objects.iter().map(|object| count(object, key)).sum()
}

#[test]
fn all_that_is_sent_is_received_in_its_flow_and_both_reports_agree() {
    let address = free_address();
    let recv = Bench::recv(address, &["--lanes", "2", "--expect", "6000", "--loss", "0%"]);
    let sent = send(address, "--rate 20k --count 6k --flows 5 --threads 2 --burst 7 --size 32:200");
    let report = &recv.report();
    assert_eq!((count(&sent, "sent"), count(report, "received"), count(report, "lost")), (6000, 6000, 0));
    assert_closed(&report["ledger"], 6000);
    let by_flow = |flows: &Value, key: &str| -> BTreeMap<u64, u64> {
        list(flows, "flows").iter().map(|flow| (count(flow, "flow"), count(flow, key))).collect()
    };
    assert_eq!(by_flow(&sent, "sent"), by_flow(report, "received"));
    assert_eq!(count(report, "bytes"), count(&sent, "bytes"));
    for latency in ["network", "residence", "one_way"] {
        assert_eq!(count(&report[latency], "count") + count(&report[latency], "behind"), 6000, "{latency}");
    }
    assert_eq!(sum_of(list(report, "each_second"), "received"), 6000);
    assert_eq!(sum_of(list(&sent, "each_second"), "sent"), 6000);
    let bars = list(&report["arrivals"], "histogram");
    assert_eq!(sum_of(bars, "milliseconds"), count(&report["arrivals"], "milliseconds"));
}

#[test]
fn what_a_stopped_receiver_loses_is_lost_in_its_receive_buffer_and_nowhere_else() {
    const SENT: u64 = 150_000;
    let address = free_address();
    let recv = Bench::recv(address, &["--lanes", "1", "--expect", "150k"]);
    recv.process.signal(Signal::SIGSTOP);
    let sent = send(address, "--rate max --count 150k --size 600");
    recv.process.signal(Signal::SIGCONT);
    let report = &recv.report();
    let layers = &report["layers"];
    let lost = count(report, "lost");
    assert_eq!((count(&sent, "sent"), count(report, "received") + lost), (SENT, SENT));
    assert!(lost > 0, "the buffer has taken everything, so this tests nothing: {layers:#}");
    assert_eq!(
        sum_of(list(layers, "kernel"), "dropped") + count(layers, "queue_full") + count(layers, "no_batch"),
        lost
    );
    assert_eq!(layers["elsewhere"].as_i64(), Some(0), "{layers:#}");
    assert_closed(&report["ledger"], SENT);
}

#[test]
fn what_is_repeated_mixed_up_damaged_foreign_or_missing_is_counted_exactly() {
    let address = free_address();
    let recv = Bench::recv(address, &["--lanes", "1", "--seconds", "60"]);
    let socket = socket();
    let mut damaged = made(1, 5, 100);
    damaged[77] ^= 0x10;
    // Flow 1: 0 to 4 with 3 after 4, 2 three times, 5 damaged, 6 missing, 7. Flow 2: 1 and no 0.
    let mut datagrams: Vec<Vec<u8>> = [0, 1, 2, 4, 3, 2, 2].map(|sequence| made(1, sequence, 100)).to_vec();
    datagrams.extend([damaged, made(1, 7, 20), made(2, 1, 32), made(2, 0, 9), b"<13>hello".to_vec()]);
    for datagram in &datagrams {
        socket.send_to(datagram, address).expect("sent");
    }
    // An interrupt drains what has arrived, so nothing needs to be waited for.
    recv.process.signal(Signal::SIGINT);
    let report = &recv.report();
    let found = ["arrived", "received", "short", "reordered", "duplicated", "corrupted", "foreign", "late", "lost"];
    let found = found.map(|key| (key, count(report, key)));
    let expected = [12, 8, 1, 1, 2, 1, 1, 0, 3];
    assert_eq!(found.map(|(_, count)| count), expected, "{found:?}");
    let flows = list(report, "flows");
    let by_flow = |key: &str| flows.iter().map(|flow| count(flow, key)).collect::<Vec<_>>();
    assert_eq!((by_flow("flow"), by_flow("received"), by_flow("highest")), (vec![1, 2], vec![6, 1], vec![7, 1]));
    assert_eq!(count(report, "other_clock"), 8, "these were never sent by a clock of this host");
}

#[test]
fn more_loss_than_allowed_is_exit_3_and_as_much_as_allowed_is_not() {
    for (limit, code) in [("9.9%", 3), ("10%", 0)] {
        let address = free_address();
        let recv = Bench::recv(address, &["--expect", "9", "--loss", limit]);
        let socket = socket();
        // Nine of ten: one is missing in the middle. Ten would be expected if the end were known to be missing as well.
        let send_nine = || {
            for sequence in (0..10).filter(|sequence| *sequence != 4) {
                socket.send_to(&made(0, sequence, 64), address).expect("sent");
            }
        };
        send_nine();
        let (status, json, stderr) = recv.end();
        // With a number expected that number counts: nine came, none is lost.
        assert_eq!((status.code(), count(&json["report"], "lost")), (Some(0), 0), "{limit}: {stderr}");
        let recv = Bench::recv(address, &["--seconds", "60", "--loss", limit]);
        send_nine();
        recv.process.signal(Signal::SIGINT);
        let (status, json, stderr) = recv.end();
        assert_eq!((status.code(), count(&json["report"], "lost")), (Some(code), 1), "{limit}: {stderr}");
        assert_eq!(stderr.contains("lost 10.0000 % (1 of 10 datagrams), more than --loss 9.9%"), code == 3, "{stderr}");
    }
    let nothing = Bench::recv(free_address(), &["--seconds", "0.05", "--loss", "50%"]);
    let (status, _, stderr) = nothing.end();
    assert_eq!(status.code(), Some(3), "a run in which nothing came has passed nothing");
    assert!(stderr.contains("received nothing"), "{stderr}");
}

#[test]
fn sizes_and_sources_are_as_asked_for_and_every_payload_reads() {
    let (socket, address) = roomy_socket();
    send(address, "--rate max --count 1200 --size imix --flows 4 --sources 127.0.0.2,127.0.0.3");
    let imix = read_all(&socket);
    let mut sizes = BTreeMap::new();
    let mut sources: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    for (source, payload) in &imix {
        *sizes.entry(payload.len()).or_insert(0) += 1;
        *sources.entry(*source).or_default() += 1;
        assert!(matches!(payload::read(payload, payload.len()), PayloadReading::Datagram(_)), "{payload:?}");
    }
    assert_eq!(sizes, BTreeMap::from([(18, 700), (548, 400), (1472, 100)]));
    let of_address =
        |last: u8| sources.keys().filter(|source| source.ip() == std::net::IpAddr::from([127, 0, 0, last])).count();
    assert_eq!((sources.len(), of_address(2), of_address(3)), (4, 2, 2), "{sources:?}");

    send(address, "--rate max --count 2000 --size 60:69");
    let range: BTreeMap<usize, u64> = read_all(&socket).iter().fold(BTreeMap::new(), |mut counts, (_, payload)| {
        *counts.entry(payload.len()).or_default() += 1;
        counts
    });
    assert_eq!(range.keys().copied().collect::<Vec<_>>(), (60..70).collect::<Vec<_>>());
    assert_eq!(range.values().sum::<u64>(), 2000);
}

#[test]
fn trains_are_cut_into_numbered_datagrams_and_a_ramp_keeps_its_count() {
    let (socket, address) = roomy_socket();
    let report = send(address, "--rate max --count 1001 --size 40 --gso 20 --flows 1");
    let sequences: Vec<u64> = read_all(&socket)
        .iter()
        .map(|(_, payload)| match payload::read(payload, payload.len()) {
            PayloadReading::Datagram(header) => header.sequence,
            other => panic!("{other:?} in a train"),
        })
        .collect();
    assert_eq!(sequences, (0..1001).collect::<Vec<u64>>());
    assert_eq!((count(&report, "sent"), count(&report, "bytes")), (1001, 40_040));
    assert!(report["pacing_error_percent"].is_null() && report["asked"].is_null(), "max asks for nothing");

    let ramp = send(address, "--rate 1k..19k --count 1000");
    assert_eq!((count(&ramp, "sent"), read_all(&socket).len()), (1000, 1000));
    assert!(ramp["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.099), "never early: {ramp:#}");
}

#[test]
fn a_port_without_a_listener_ends_nothing_and_is_told() {
    let report = send(free_address(), "--rate 5k --count 300 --flows 3");
    assert_eq!((count(&report, "sent"), report["refused"].as_object().map(serde_json::Map::len)), (300, Some(0)));
    assert!(count(&report["answers"], "ECONNREFUSED") > 0, "{report:#}");
}

#[test]
fn an_interrupted_sender_reports_what_it_sent() {
    let (socket, address) = roomy_socket();
    let bench = Bench::start(&["send", "--json", "--to", &address.to_string(), "--rate", "2k"]);
    assert!(socket.wait_readable(std::time::Duration::from_secs(60)).expect("polled"), "nothing was sent");
    bench.process.signal(Signal::SIGINT);
    assert_eq!(count(&bench.report(), "sent"), read_all(&socket).len() as u64);
}

#[test]
fn the_files_of_a_run_hold_its_figures() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let address = free_address();
    let recv = Bench::recv(address, &["--expect", "500", "--csv", &path("a.csv"), "--svg", &path("a.svg")]);
    send(address, "--rate 10k --count 500");
    recv.report();
    let csv = std::fs::read_to_string(path("a.csv")).expect("written");
    let rows: Vec<&str> = csv.lines().collect();
    assert!(rows[0].starts_with("second,received,lost,"), "{csv}");
    let received = rows[1..].iter().map(|row| row.split(',').nth(1).and_then(|cell| cell.parse::<u64>().ok()));
    assert_eq!(received.sum::<Option<u64>>(), Some(500));
    let svg = std::fs::read_to_string(path("a.svg")).expect("written");
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("500 datagrams received, 0 lost"),
        "{svg}"
    );
}

#[test]
fn a_wrong_call_names_the_option_and_what_would_be_right() {
    let taken = socket();
    let listen_there = format!("recv --listen {}", address_of(&taken));
    for (arguments, code, words) in [
        ("send --to localhost", 2, "--to: \"localhost\" is not an address and a port"),
        ("send --to 127.0.0.1:9 --rate fast", 2, "--rate: \"fast\" is not a rate"),
        ("send --to 127.0.0.1:9 --size 70000", 2, "--size: \"70000\""),
        ("send --to 127.0.0.1:9 --threads 4 --flows 2", 2, "--flows 4"),
        ("send --to 127.0.0.1:9 --gso 4 --size imix", 2, "--gso"),
        ("send --to 127.0.0.1:9 --rate 1k..2k", 2, "--seconds or --count"),
        ("send --to 127.0.0.1:9 --burst many", 2, "or smooth"),
        ("recv --listen 514", 2, "--listen"),
        ("recv --listen 127.0.0.1:9 --loss much", 2, "0.5%"),
        ("recv --listen 127.0.0.1:9 --flows 0", 2, "1 to 16777216"),
        ("send --to 127.0.0.1:9 --flows many", 2, "16 or 1M"),
        ("send --to 127.0.0.1:9 --interface lo", 2, "add --engine xdp or packet"),
        ("send --to 127.0.0.1:9 --engine xdp", 2, "--interface"),
        ("send --to 127.0.0.1:9 --engine packet --interface lo", 2, "is loopback"),
        ("send --to 127.0.0.1:9 --engine xdp --interface lo --mix even", 2, "zipf:1.1"),
        (&listen_there, 69, ""),
        ("send --to 127.0.0.1:9 --cpu 4000 --count 1", 2, "--cpu"),
        ("send --to 127.0.0.1:9 --sources 192.0.2.1 --count 1", 69, ""),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        udpd(&[&["bench"], &arguments[..]].concat()).ends(code, &[words]);
    }
}

#[test]
fn every_help_has_an_example() {
    for command in [&["bench"][..], &["bench", "send"], &["bench", "recv"]] {
        udpd(&[command, &["--help"]].concat()).succeeds(&["Example", "udpd bench"]);
    }
}
