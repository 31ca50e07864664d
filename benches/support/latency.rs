//! How long a datagram takes from the kernel to its handler: in a C loop that does nothing else, and in udpd.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use super::contender::{RECEIVER_CPU, SENDER_CPU};
use crate::util::daemon::free_address;

/// Latency is measured at this rate.
pub(crate) const CALM: u64 = 10_000;

const UDPD: &str = env!("CARGO_BIN_EXE_udpd");

/// Runs `udpd bench send` and returns its report.
pub(crate) fn send(port: u16, arguments: &[&str]) -> Value {
    let to = format!("127.0.0.1:{port}");
    let cpu = SENDER_CPU.to_string();
    let output = Command::new(UDPD)
        .args(["bench", "send", "--to", &to, "--cpu", &cpu, "--json"])
        .args(arguments)
        .output()
        .expect("udpd starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    whole["report"].clone()
}

pub(crate) fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {object:#}"))
}

/// A program that says when it is ready, and then is sent to.
pub(crate) fn stamp_loop(program: &Path, count: u64) -> [f64; 2] {
    let port = free_address().port();
    let mut child = Command::new(program)
        .args([port.to_string(), count.to_string(), RECEIVER_CPU.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the C loop starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("readable");
    assert_eq!(line, "ready\n", "the C loop did not start, see its message above");
    send(port, &["--rate", &CALM.to_string(), "--count", &count.to_string()]);
    line.clear();
    stdout.read_line(&mut line).expect("readable");
    assert!(child.wait().expect("it ends").success());
    let figures: Vec<f64> = line.split_whitespace().map(|figure| figure.parse().expect("a number")).collect();
    [figures[0], figures[2]]
}

/// What stands between the receiver and the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Inline,
    /// A channel to a consumer, which the plan gives a core that has no receiver.
    Channel,
    /// The same, with nothing but the receiver's core for the whole process.
    ChannelOnOneCore,
}

/// The pipeline, as `bench recv` drives it: one lane, and one consumer or none.
pub(crate) fn residence(count: u64, engine: &str, way: Way) -> [f64; 2] {
    let address = free_address();
    let mut command = Command::new(if way == Way::ChannelOnOneCore { "taskset" } else { UDPD });
    if way == Way::ChannelOnOneCore {
        command.args(["--cpu-list", &RECEIVER_CPU.to_string(), UDPD]);
    }
    let mut child = command
        .args(["bench", "recv", "--listen", &address.to_string(), "--lanes", "1", "--gather", "0ms"])
        .args(["--engine", engine, "--expect", &count.to_string(), "--json"])
        .args((way == Way::Inline).then_some("--inline"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("udpd starts");
    wait_until_ready(&mut child);
    send(address.port(), &["--rate", &CALM.to_string(), "--count", &count.to_string()]);
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("readable");
    assert!(child.wait().expect("it ends").success());
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let residence = &whole["report"]["residence"];
    [number(residence, "p50_us"), number(residence, "p99_9_us")]
}

fn wait_until_ready(child: &mut Child) {
    let mut stderr: BufReader<ChildStderr> = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("receiving on") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("readable") > 0, "udpd ended before it was ready");
    }
    // Later output is not used, but it has to be read.
    std::thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
}
