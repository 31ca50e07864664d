//! Each file of config/examples, run as it is but for its addresses and paths, with a client of its kind: a syslog
//! daemon and `logger`, an exporter of flows, a shell that counts, a feed of two groups. Where a client is missing the
//! test says so and does without it. The one that needs a broker is in `tests/kafka.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use udpd_base::codec::unpacked;

use crate::util::*;

/// Whether the program ran and succeeded.
fn runs(command: &mut Command) -> bool {
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.is_ok_and(|status| status.success())
}

fn received(stats: &Value) -> u64 {
    list(stats, "listeners").iter().map(|listener| count(listener, "received")).sum()
}

#[test]
fn every_example_has_its_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/examples");
    let names = fs::read_dir(folder).expect("config/examples").flatten().map(|entry| entry.file_name());
    let names: BTreeSet<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let tested = [
        "behind-relays.toml",
        "market-data.toml",
        "netflow.toml",
        "site-relay.toml",
        "statsd.toml",
        "syslog.toml",
        "telemetry.toml",
    ];
    assert!(names.iter().eq(tested.iter()), "{names:?}: give a new one a test here, and its name");
}

/// A syslog daemon that sends on to this address what is tagged so, and takes it from the socket `log` of the folder.
fn rsyslog(folder: &Path, to: SocketAddr, tag: &str) -> Option<Child> {
    let (shown, port) = (folder.display(), to.port());
    let text = format!(
        "module(load=\"imuxsock\" SysSock.Use=\"off\")\n\
         input(type=\"imuxsock\" Socket=\"{shown}/log\" RateLimit.Interval=\"0\")\n\
         if $programname == '{tag}' then action(type=\"omfwd\" target=\"127.0.0.1\" port=\"{port}\" protocol=\"udp\")\n"
    );
    fs::write(folder.join("rsyslog.conf"), text).expect("written");
    let mut command = Command::new("rsyslogd");
    command.args(["-n", "-i", "NONE", "-f"]).arg(folder.join("rsyslog.conf"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    // Only its socket tells when it is ready.
    let started = Instant::now();
    while UnixDatagram::unbound().expect("a socket").connect(folder.join("log")).is_err() {
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none() && started.elapsed() < Duration::from_secs(30), "rsyslogd: {ended:?}");
        std::thread::yield_now();
    }
    Some(child)
}

#[test]
fn syslog_of_logger_and_of_rsyslog_is_archived_by_host_and_compressed() {
    let address = free_address();
    let everywhere = format!("\"[::]:{}\"", address.port());
    // The day of this test has a second.
    let changes = [("\"[::]:514\"", everywhere.as_str()), ("%Y-%m-%d.log", "%Y-%m-%d-%H%M%S.log")];
    let daemon = Daemon::with_config(&example("syslog.toml", &changes));
    let lines = |from: &str| (0..100).map(|number| format!("{from} says {number}\n")).collect::<String>();
    let file = |name: &str| {
        let path = daemon.directory().join(name);
        fs::write(&path, lines(name)).expect("written");
        path
    };
    let mut expected = 0;
    let port = address.port().to_string();
    let mut logger = Command::new("logger");
    if runs(logger.args(["-d", "-n", "127.0.0.1", "-P", &port, "-t", "example", "-f"]).arg(file("logger"))) {
        expected += 100;
    } else {
        not_checked("no logger to send syslog with");
    }
    if let Some(mut server) = rsyslog(daemon.directory(), address, "example").filter(|_| expected > 0) {
        let mut logger = Command::new("logger");
        logger.arg("-u").arg(daemon.directory().join("log")).args(["-t", "example", "-f"]).arg(file("rsyslog"));
        assert!(runs(&mut logger), "logger writes to the socket of rsyslog");
        expected += 100;
        daemon.stats_when("all has come", |stats| received(stats) >= expected);
        server.kill().and_then(|()| server.wait()).expect("rsyslogd ends");
    } else {
        not_checked("no rsyslogd to send syslog on");
    }
    daemon.stats_when("all is in files that are compressed", |stats| {
        let files = &sink(stats)["files"];
        let are_all_written = delivered(stats) >= expected;
        are_all_written && count(files, "compressed_from_bytes") == count(files, "written_bytes")
    });
    let ended = daemon.end(expected);
    let of_host = fs::read_dir(ended.path("syslog/127.0.0.1")).expect("a folder for each host");
    let paths: Vec<_> = of_host.flatten().map(|entry| entry.path()).collect();
    let is_packed = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "gz");
    let mut archive = String::new();
    for path in paths.iter().filter(is_packed) {
        let file = fs::File::open(path).expect("an archive");
        unpacked(file).and_then(|mut file| file.read_to_string(&mut archive)).expect("a whole one");
    }
    assert_eq!(archive.lines().count() as u64, expected);
    for from in ["logger", "rsyslog"].iter().take(expected as usize / 100) {
        for number in 0..100 {
            let wanted = format!("{from} says {number}");
            assert_eq!(archive.lines().filter(|line| line.ends_with(&wanted)).count(), 1, "{wanted}");
        }
    }
}

#[test]
fn what_the_relay_of_a_site_sends_is_archived_behind_it_with_the_true_sender() {
    let [site, collector, other] =
        [free_address(), free_address(), free_address()].map(|address| format!("\"{address}\""));
    let trusted =
        [("\"[::]:5514\"", collector.as_str()), ("\"192.0.2.10/32\", \"2001:db8:10::/64\"", "\"127.0.0.1/32\"")];
    let behind = Daemon::with_config(&example("behind-relays.toml", &trusted));
    let collectors = format!("{collector}, {other}");
    let names = "\"collector-1.example:5514\", \"collector-2.example:5514\"";
    let relay = Daemon::with_config(&example("site-relay.toml", &[("\"[::]:514\"", &site), (names, &collectors)]));
    let sender = UdpSocket::bind("127.0.0.7:0").expect("an address of loopback");
    let to: SocketAddr = site.trim_matches('"').parse().expect("an address");
    for number in 0..100 {
        sender.send_to(format!("<13>host: message {number}").as_bytes(), to).expect("it is sent");
    }
    relay.until_received(100);
    relay.end(100);
    behind.until_received(100);
    let ended = behind.end(100);
    let archive = String::from_utf8(contents(&ended.directory, "syslog-")).expect("text");
    let from = address_of(&sender).to_string();
    for (number, line) in archive.lines().enumerate() {
        let record: Value = serde_json::from_str(line).expect("a record");
        assert_eq!(record["source"], from.as_str());
        assert_eq!(record["payload"], format!("<13>host: message {number}"));
    }
    assert_eq!(archive.lines().count(), 100);
}

/// A capture of so many flows, a packet each.
fn capture_of_flows(path: &Path, flows: u32) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for flow in 0..flows {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 48, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend((0x0a00_0001 + flow).to_be_bytes().into_iter().chain([10, 1, 0, 1]));
        frame.extend([4, 0, 0, 53, 0, 28, 0, 0]);
        frame.extend([b'x'; 20]);
        for word in [1_700_000_000, flow, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(frame);
    }
    fs::write(path, bytes).expect("the capture");
}

#[test]
fn flows_of_an_exporter_are_captured_and_reach_two_collectors_from_the_exporter() {
    let [netflow, ipfix, sflow] = [free_address(), free_address(), free_address()];
    let collectors = [socket(), socket()];
    let [one, other] = collectors.each_ref().map(|socket| format!("\"{}\"", address_of(socket)));
    let is_root = is_root();
    if !is_root {
        not_checked("keep_source, which takes CAP_NET_RAW");
    }
    let quoted = |address: SocketAddr| format!("\"{address}\"");
    let text = example(
        "netflow.toml",
        &[
            ("\"0.0.0.0:2055\"", &quoted(netflow)),
            ("\"0.0.0.0:4739\"", &quoted(ipfix)),
            ("\"0.0.0.0:6343\"", &quoted(sflow)),
            ("\"10.0.0.21:2055\"", &one),
            ("\"10.0.0.22:2055\"", &other),
            ("keep_source = true", if is_root { "keep_source = true" } else { "keep_source = false" }),
        ],
    );
    let daemon = Daemon::with_config(&text);
    let (capture, pid) = (daemon.directory().join("flows.pcap"), daemon.directory().join("pid"));
    capture_of_flows(&capture, 300);
    let mut exporter = Command::new("softflowd");
    exporter.arg("-r").arg(capture).args(["-d", "-v", "9", "-c", "none", "-n", &netflow.to_string(), "-p"]).arg(pid);
    if !runs(&mut exporter) {
        not_checked("no softflowd to export flows");
    }
    // An IPFIX message without a set and a datagram of sFlow without a sample, from a sender known by its port.
    let sender = socket();
    sender.send_to(&[0, 10, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], ipfix).expect("sent");
    let head = [5_u32, 1, 0x7f00_0001, 0, 1, 1, 0].iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    sender.send_to(&head, sflow).expect("sent");
    daemon.stats_when("they have come", |stats| {
        list(stats, "listeners")[1..].iter().all(|listener| count(listener, "received") == 1)
    });
    let ended = daemon.terminate();
    let exported = count(ended.listener(), "received");
    assert_closed(&ended.ledger, exported + 2);
    for collector in collectors {
        collector.set_nonblocking(true).expect("a socket");
        let (mut sizes, mut sources, mut buffer) = (Vec::new(), BTreeSet::new(), [0; 9216]);
        while let Ok((length, source)) = collector.recv_from(&mut buffer) {
            sizes.push(length);
            sources.insert(source);
        }
        assert_eq!(sizes.len() as u64, exported + 1, "NetFlow and IPFIX");
        if is_root {
            assert!(sources.contains(&address_of(&sender)), "{sources:?}");
        }
    }
    for (listener, datagrams) in [("netflow", exported), ("ipfix", 1), ("sflow", 1)] {
        assert_eq!(captured(&ended, listener), datagrams, "{listener}");
    }
}

/// How many datagrams are in the captures whose names begin so: as many as `udpd replay` finds.
fn captured(ended: &Ended, prefix: &str) -> u64 {
    let to = socket().local_addr().expect("bound").to_string();
    let found = |name: &String| {
        let path = ended.path(name);
        count(&udpd(&["replay", path.to_str().expect("UTF-8"), "--to", &to, "--fast", "--json"]).json(), "read")
    };
    files(&ended.directory, prefix).keys().map(found).sum()
}

#[test]
fn samples_of_a_shell_reach_the_socket_of_an_agent_as_they_are() {
    let address = free_address();
    // Before the daemon looks for it.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("statsd.sock");
    let agent = UnixDatagram::bind(&path).expect("a socket");
    let path = path.to_str().expect("UTF-8");
    let changes = [("127.0.0.1:8125", address.to_string()), ("/run/statsd/statsd.sock", path.to_owned())];
    let daemon =
        Daemon::with_config(&example("statsd.toml", &changes.each_ref().map(|(from, to)| (*from, to.as_str()))));
    // A kernel lets ten samples wait for an agent, so this one reads all along.
    let reader = std::thread::spawn(move || {
        let (mut buffer, mut samples) = ([0; 256], Vec::new());
        loop {
            let length = agent.recv(&mut buffer).expect("a sample");
            match buffer.get(..length).filter(|sample| !sample.is_empty()) {
                Some(sample) => samples.push(String::from_utf8(sample.to_vec()).expect("text")),
                None => return samples,
            }
        }
    });
    let port = address.port();
    let script = format!("for i in {{1..200}}; do printf 'page.views:%d|c' $i > /dev/udp/127.0.0.1/{port}; done");
    let sent = if runs(Command::new("bash").args(["-c", &script])) { 200 } else { 0 };
    if sent == 0 {
        not_checked("no bash with /dev/udp to send samples with");
    }
    daemon.until_received(sent);
    let ended = daemon.end(sent);
    assert_eq!(delivered(&ended.ledger), sent);
    UnixDatagram::unbound().expect("a socket").send_to(b"", path).expect("the end");
    let samples = reader.join().expect("the agent");
    assert_eq!(samples, (1..=sent).map(|number| format!("page.views:{number}|c")).collect::<Vec<_>>());
}

#[test]
fn both_sides_of_a_feed_are_recorded() {
    let port = free_address().port();
    let text = example(
        "market-data.toml",
        &[
            ("0.0.0.0:26400", &format!("0.0.0.0:{port}")),
            // The groups are joined on this host alone.
            ("\nmulticast_groups", "\nmulticast_interface = 'lo'\nmulticast_groups"),
        ],
    );
    let daemon = Daemon::with_config(&text);
    let sender = socket();
    for number in 0..500_u64 {
        for side in ["233.252.0.1", "233.252.0.2"] {
            sender.send_to(&number.to_be_bytes(), (side, port)).expect("sent");
        }
    }
    daemon.until_received(1000);
    let ended = daemon.end(1000);
    let lanes = lanes(&ended.ledger);
    assert_eq!(lanes.iter().map(|lane| count(lane, "received")).collect::<Vec<_>>(), [500, 500]);
    assert_eq!(captured(&ended, "feed-"), 1000);
}
