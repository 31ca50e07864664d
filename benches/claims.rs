//! The figures that the README states besides the comparison with the C loop, each measured on the built daemon.
//!
//! ```text
//! cargo bench --bench claims [-- --quick --record benches/runs/DATE-HOST]
//! ```
//!
//! Delivery at a steady rate, the end under load, memory over a minute, and a file sink that is offered more than it
//! can hold. Every run also checks that the ledger closes over what was sent; a run whose ledger does not close is a
//! panic.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::machine::facts;
use util::ledger::{assert_closed, count};
use util::load::{Amount, Load};
use util::{Ask as _, Daemon, Ended, free_address};

/// How much of everything.
struct Size {
    steady_seconds: f64,
    ends: usize,
    memory_seconds: f64,
    overload_seconds: f64,
}

const FULL: Size = Size { steady_seconds: 10.0, ends: 10, memory_seconds: 58.0, overload_seconds: 3.0 };
const QUICK: Size = Size { steady_seconds: 1.0, ends: 2, memory_seconds: 2.0, overload_seconds: 0.5 };

/// A daemon with these sinks, each of which is defined here.
fn daemon(address: std::net::SocketAddr, lanes: usize, sinks: &[&str]) -> Daemon {
    Daemon::with_config(&format!(
        r#"
[[listener]]
name = "in"
address = "{address}"
lanes = {lanes}
sinks = {sinks:?}
[sink.file]
type = "file"
rotate.every = "0s"
path = "@DIR@/in-{{consumer}}.log"
[sink.nothing]
type = "null"
"#
    ))
}

fn ended(daemon: Daemon) -> Ended {
    let ended = daemon.terminate();
    assert!(ended.status.success(), "udpd ended with {}: {}", ended.status, ended.stderr);
    ended
}

fn delivered(ended: &Ended, sink: usize) -> u64 {
    count(&ended.ledger["listeners"][0]["sinks"][sink], "delivered")
}

/// 200,000 a second of 32 bytes, two lanes, a file and a null sink.
fn steady(size: &Size) -> String {
    let address = free_address();
    let daemon = daemon(address, 2, &["file", "nothing"]);
    let mut load = Load::new(address, Amount::Seconds(size.steady_seconds));
    load.overruns = true;
    load.rate_per_second = 200_000;
    let sent = load.send().sent;
    let ended = ended(daemon);
    assert_closed(&ended.ledger, sent);
    format!(
        "200,000/s of 32 B for {} s, 2 lanes: sent {sent}, delivered to the file {}, to null {}, residual 0",
        size.steady_seconds,
        delivered(&ended, 0),
        delivered(&ended, 1)
    )
}

/// SIGTERM in the middle of 100,000 a second.
fn ends(size: &Size) -> String {
    let mut times = Vec::new();
    let mut unaccounted = 0;
    for _ in 0..size.ends {
        let address = free_address();
        let daemon = daemon(address, 1, &["file"]);
        let mut load = Load::new(address, Amount::Seconds(1.0));
        load.overruns = true;
        load.rate_per_second = 100_000;
        let sender = load.spawn();
        daemon.stats_when("the load is under way", |ledger| count(&ledger["listeners"][0], "received") > 30_000);
        let ended = ended(daemon);
        sender.join().expect("the sender ends");
        let listener = &ended.ledger["listeners"][0];
        assert_closed(&ended.ledger, count(listener, "arrived"));
        let file = &listener["sinks"][0];
        let dropped = count(&file["dropped"], "queue_full") + count(&file["dropped"], "sink_error");
        unaccounted +=
            count(listener, "arrived") - count(listener, "kernel_dropped") - count(file, "delivered") - dropped;
        times.push(ended.elapsed);
    }
    times.sort_unstable();
    let longest = times.last().copied().unwrap_or(Duration::ZERO);
    format!(
        "SIGTERM at 100,000/s, {} times: exit after {:.0} ms in the median, {:.0} ms at most; of what had arrived \
         {unaccounted} unaccounted",
        times.len(),
        times[times.len() / 2].as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3
    )
}

/// Resident memory at second 2 and at the end of 100,000 a second.
fn memory(size: &Size) -> String {
    let address = free_address();
    let daemon = daemon(address, 2, &["file", "nothing"]);
    let mut load = Load::new(address, Amount::Seconds(2.0));
    load.overruns = true;
    load.rate_per_second = 100_000;
    let mut sent = load.clone().send().sent;
    let before = resident_kib(daemon.pid());
    load.amount = Amount::Seconds(size.memory_seconds);
    sent += load.send().sent;
    let after = resident_kib(daemon.pid());
    assert_closed(&ended(daemon).ledger, sent);
    let last = 2.0 + size.memory_seconds;
    format!("resident memory at 100,000/s: {before} KiB at second 2, {after} KiB at second {last}")
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A file sink that shares one core with its receiver, offered rising rates of 1,400 bytes up to all that can be sent.
fn overload(size: &Size) -> String {
    let mut text = String::from("a file sink, 1,400 B, receiver and consumer on one core (datagrams a second):\n\n");
    text += "| offered | delivered | dropped at the channel | dropped by the kernel |\n|---|---|---|---|\n";
    let (mut best, mut last, mut lowest_full) = (0.0_f64, 0.0, f64::INFINITY);
    for rate in [100_000, 200_000, 300_000, 400_000, 600_000, 900_000, 0] {
        let address = free_address();
        let daemon = Daemon::with_config(&format!(
            "[[listener]]\n\
             name = \"in\"\n\
             address = \"{address}\"\n\
             lanes = 1\n\
             sinks = [\"file\"]\n\
             [steer]\n\
             cpus = \"1\"\n\
             [sink.file]\n\
             type = \"file\"\n\
             path = \"@DIR@/in.log\"\n\
             rotate.every = \"0s\"\n\
             sync = \"never\"\n"
        ));
        let mut load = Load::new(address, Amount::Seconds(size.overload_seconds));
        load.overruns = true;
        (load.rate_per_second, load.payload_bytes, load.segment, load.cpu) = (rate, 1400, Some(20), Some(0));
        let report = load.send();
        let ended = ended(daemon);
        assert_closed(&ended.ledger, report.sent);
        let listener = &ended.ledger["listeners"][0];
        let each_second = |datagrams: u64| datagrams as f64 / report.seconds;
        let (offered, taken) = (each_second(report.sent), each_second(delivered(&ended, 0)));
        let full = each_second(count(&listener["sinks"][0]["dropped"], "queue_full"));
        let kernel = each_second(count(listener, "kernel_dropped"));
        writeln!(text, "| {offered:.0} | {taken:.0} | {full:.0} | {kernel:.0} |").expect("a String takes everything");
        if full + kernel > 0.0 {
            lowest_full = lowest_full.min(offered);
        }
        (best, last) = (best.max(taken), taken);
    }
    let ratio = last / best;
    text + &format!("\nat the highest offer it delivers {ratio:.2} of its own best; first loss at {lowest_full:.0}/s")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let size = if arguments.iter().any(|argument| argument == "--quick") { QUICK } else { FULL };
    let folder =
        arguments.iter().position(|argument| argument == "--record").map(|at| PathBuf::from(&arguments[at + 1]));
    let mut out = io::stdout().lock();
    let mut summary = String::from("# What the README claims, measured\n\n");
    for measure in [steady, ends, memory, overload] {
        let line = measure(&size);
        writeln!(out, "{line}\n")?;
        summary += &format!("- {line}\n");
    }
    summary += &format!("\n{}", facts());
    if let Some(folder) = folder {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("claims.md"), summary)?;
    }
    Ok(())
}
