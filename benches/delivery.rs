//! What sinks cost each other, and what rotation and syncing cost: nothing may be lost, and no sink's rate may fall.
//!
//! ```text
//! cargo bench --bench delivery [-- --pairs 5 --seconds 5 --quick --only PART --record DIRECTORY]
//! ```
//!
//! PART is rotation, disk, stalled or relay. Each figure stands beside its own baseline in the same run: the disk's own
//! rate by `dd`, a sink alone, three healthy destinations. Every run checks that the ledger closes over what was sent.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use nix::sys::signal::Signal;
use serde_json::Value;
use support::contender::SENDER_CPU;
use support::machine::facts;
use support::options::Options;
use util::ledger::{assert_closed, count, list};
use util::load::{Amount, Load};
use util::{Ask as _, Daemon, Ended, free_address};

/// The most that is offered to a disk, in datagrams a second: beyond it a sender and udpd on two cores stand in each
/// other's way.
const DISK_RATE_MAX: u64 = 600_000;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Offers a load to a daemon, ends it, and checks the books.
fn offered(daemon: Daemon, load: Load) -> (Ended, u64, f64) {
    let report = load.send();
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, report.sent);
    (ended, report.sent, report.seconds)
}

fn load(address: SocketAddr, seconds: f64, rate: u64, payload_bytes: usize) -> Load {
    let mut load = Load::new(address, Amount::Seconds(seconds));
    load.overruns = true;
    (load.rate_per_second, load.payload_bytes, load.cpu) = (rate, payload_bytes, Some(SENDER_CPU));
    load
}

fn sink<'l>(ledger: &'l Value, name: &str) -> &'l Value {
    let sinks = list(&ledger["listeners"][0], "sinks");
    sinks.iter().find(|sink| sink["name"] == name).expect("the sink")
}

/// A new file every second.
fn rotation(options: &Options) -> String {
    let seconds = if options.quick { 3.0 } else { 60.0 };
    let address = free_address();
    let daemon = Daemon::with_config(&format!(
        "[[listener]]\n\
         name = \"in\"\n\
         address = \"{address}\"\n\
         lanes = 1\n\
         receive_buffer = \"32MiB\"\n\
         sinks = [\"file\"]\n\
         [sink.file]\n\
         type = \"file\"\n\
         path = \"@DIR@/out.log\"\n\
         rotate = {{ bytes = 0, every = \"1s\" }}\n\
         queue_bytes = \"64MiB\"\n"
    ));
    let (ended, sent, _) = offered(daemon, load(address, seconds, 300_000, 32));
    let files = fs::read_dir(&ended.directory).expect("readable").flatten();
    let logs: Vec<_> = files.filter(|file| file.file_name().to_string_lossy().starts_with("out.log")).collect();
    let lines: u64 = logs.iter().map(|file| file.metadata().expect("a file").len() / 33).sum();
    let delivered = count(sink(&ended.ledger, "file"), "delivered");
    format!(
        "rotation every second under 300,000/s for {seconds} s: sent {sent}, delivered {delivered}, {lines} lines in \
         {} files, lost {}",
        logs.len(),
        sent - delivered
    )
}

/// What the disk takes and forces down in the longer run, by `dd`: bytes a second.
fn dd_bytes_per_second(directory: &std::path::Path, quick: bool) -> f64 {
    let file = directory.join("dd");
    let mebibytes = if quick { 256 } else { 8192 };
    let output = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "conv=fdatasync"])
        .arg(format!("of={}", file.display()))
        .arg(format!("count={mebibytes}"))
        .env("LC_ALL", "C")
        .output()
        .expect("dd runs");
    fs::remove_file(file).expect("dd's file");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let seconds = text.split(", ").find_map(|part| part.strip_suffix(" s")?.parse::<f64>().ok());
    f64::from(mebibytes) * 1_048_576.0 / seconds.unwrap_or_else(|| panic!("dd said {text}"))
}

/// 512 bytes to the disk, synced every second, at nine tenths of what the disk does.
fn to_disk(options: &Options) -> String {
    let seconds = if options.quick { 2.0 } else { 60.0 };
    let place = tempfile::tempdir().expect("a directory");
    let before = dd_bytes_per_second(place.path(), options.quick);
    // A line has one byte more than its payload.
    let wanted = (before * 0.9 / 513.0) as u64;
    let rate = wanted.min(DISK_RATE_MAX);
    let address = free_address();
    let daemon = Daemon::with_config(&format!(
        "[[listener]]\n\
         name = \"in\"\n\
         address = \"{address}\"\n\
         lanes = 1\n\
         receive_buffer = \"64MiB\"\n\
         gro = \"on\"\n\
         batch_size = 16\n\
         sinks = [\"file\"]\n\
         [sink.file]\n\
         type = \"file\"\n\
         path = \"@DIR@/out.log\"\n\
         sync = \"1s\"\n\
         queue_bytes = \"64MiB\"\n"
    ));
    let mut load = load(address, seconds, rate, 512);
    load.segment = Some(16);
    let (ended, sent, took) = offered(daemon, load);
    let sink = sink(&ended.ledger, "file");
    let delivered = count(sink, "delivered");
    let unsynced = count(&sink["files"], "unsynced_bytes");
    let dropped = sink["dropped"].to_string();
    // What is left of the run is not to stand in the way of the second `dd`.
    drop(ended);
    let after = dd_bytes_per_second(place.path(), options.quick);
    format!(
        "512 B to disk with sync = \"1s\" for {seconds} s: dd conv=fdatasync {:.0} MB/s before and {:.0} after, 0.9 \
         of the first is {wanted}/s, offered {:.0}/s ({:.0} MB/s), lost {} {dropped}, unsynced at the end {unsynced}",
        before / 1e6,
        after / 1e6,
        sent as f64 / took,
        sent as f64 / took * 513.0 / 1e6,
        sent - delivered,
    )
}

/// The rate that a sink delivers at the highest offer, alone and beside one that takes nothing.
fn beside_a_stalled_one(options: &Options) -> String {
    let run = |is_alone: bool| {
        let address = free_address();
        let (reader, writer) = io::pipe().expect("a pipe");
        let sinks = if is_alone { "[\"file\"]" } else { "[\"stalled\", \"file\"]" };
        let daemon = Daemon::with_config_and_stdout(
            &format!(
                "[[listener]]\n\
                 name = \"in\"\n\
                 address = \"{address}\"\n\
                 lanes = 1\n\
                 receive_buffer = \"16MiB\"\n\
                 sinks = {sinks}\n\
                 [sink.file]\n\
                 type = \"file\"\n\
                 path = \"@DIR@/out.log\"\n\
                 rotate.every = \"0s\"\n\
                 [sink.stalled]\n\
                 type = \"stdout\"\n"
            ),
            writer.into(),
        );
        // The pipe is not read until the daemon has ended; the ledger then counts what waited as failed.
        let (ended, _, seconds) = offered(daemon, load(address, options.seconds, 0, 200));
        drop(reader);
        count(sink(&ended.ledger, "file"), "delivered") as f64 / seconds
    };
    compared("a file sink beside one that is stalled", options, run)
}

/// Alone, beside, and alone again, in turns; ratios to the first of each pair.
fn compared(what: &str, options: &Options, run: impl Fn(bool) -> f64) -> String {
    let (mut alone, mut beside, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..options.pairs {
        let runs = match pair % 2 {
            0 => [run(true), run(false), run(true)],
            _ => {
                let (third, second) = (run(true), run(false));
                [run(true), second, third]
            }
        };
        alone.push(runs[0]);
        beside.push(runs[1] / runs[0]);
        again.push(runs[2] / runs[0]);
    }
    format!(
        "{what}, at the highest offer: {:.2} of its rate alone, {:.0}/s (alone again {:.2})",
        median(beside),
        median(alone),
        median(again)
    )
}

/// What the third of three destinations gets, with the other two healthy, and with one dead and one stopped.
fn relay(options: &Options) -> String {
    let run = |is_healthy: bool| {
        let [address, third, other] = [free_address(), free_address(), free_address()];
        let null = |address: SocketAddr| {
            Daemon::with_config(&format!(
                "[[listener]]\n\
                 name = \"in\"\n\
                 address = \"{address}\"\n\
                 lanes = 1\n\
                 receive_buffer = \"64MiB\"\n\
                 sinks = [\"nothing\"]\n\
                 [sink.nothing]\n\
                 type = \"null\"\n"
            ))
        };
        let (third_daemon, other_daemon) = (null(third), null(other));
        let dead = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
        let living = free_address();
        let living_daemon = is_healthy.then(|| null(living));
        if !is_healthy {
            other_daemon.signal(Signal::SIGSTOP);
        }
        let first = if is_healthy { living } else { dead };
        let relay = Daemon::with_config(&format!(
            "[[listener]]\n\
             name = \"in\"\n\
             address = \"{address}\"\n\
             lanes = 1\n\
             receive_buffer = \"32MiB\"\n\
             sinks = [\"relay\"]\n\
             [sink.relay]\n\
             type = \"udp\"\n\
             destinations = [\"{first}\", \"{other}\", \"{third}\"]\n\
             queue_bytes = \"64MiB\"\n"
        ));
        let (ended, _, seconds) = offered(relay, load(address, options.seconds, 0, 200));
        let sent_on = count(sink(&ended.ledger, &format!("relay@{third}")), "delivered");
        let received =
            third_daemon.stats_when("all have arrived", |ledger| count(&ledger["listeners"][0], "arrived") == sent_on);
        assert_eq!(count(&received["listeners"][0], "kernel_dropped"), 0, "{received:#}");
        third_daemon.terminate();
        if !is_healthy {
            other_daemon.signal(Signal::SIGCONT);
        }
        other_daemon.terminate();
        living_daemon.map(Daemon::terminate);
        sent_on as f64 / seconds
    };
    compared("the third relay destination with one dead and one stopped, against three healthy", options, run)
}

/// What is measured on its own; returns what was found, in a sentence.
type Part = fn(&Options) -> String;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(3.0, 0.5)?;
    let mut out = io::stdout().lock();
    let mut text = String::from("# Delivery\n\n");
    let parts: [(&str, Part); 4] =
        [("rotation", rotation), ("disk", to_disk), ("stalled", beside_a_stalled_one), ("relay", relay)];
    for (name, measure) in parts {
        if options.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let line = measure(&options);
        writeln!(out, "{line}\n")?;
        writeln!(text, "- {line}")?;
        // The disk writes behind; the next run is not to pay for this one.
        std::thread::sleep(Duration::from_secs(u64::from(!options.quick)));
    }
    write!(text, "\n{}", facts())?;
    if let Some(folder) = &options.record {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("delivery.md"), text)?;
    }
    Ok(())
}
