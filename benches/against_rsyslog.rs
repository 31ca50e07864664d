//! Lines in a file: the daemon against rsyslog's imudp, set up as its own documents say for high rates.
//!
//! ```text
//! cargo bench --bench against_rsyslog [-- --pairs 5 --seconds 4 --quick --record benches/runs/DATE-HOST]
//! ```
//!
//! Both write 200-byte datagrams to a file of their own as they come, without parsing them: rsyslog by a template that
//! is the raw message. First the CPU time for each datagram at 400,000/s, sent one by one and in trains of 20, in
//! turns, with rsyslog twice in each round; then the highest of a row of rates that each takes without losing one. What
//! is counted is the bytes in the file.
//!
//! udpd runs as it is, and set up for throughput as rsyslog is: datagrams may gather, and trains stay whole. The loop
//! in C only receives and throws away: what it costs is the kernel's part of receiving one by one.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::c_program::{Compiled, compile};
use support::contender::{self, Contender, Offer, SENDER_CPU, process_ns};
use support::machine::{busy_ns, facts};
use support::options::Options;
use util::ledger::assert_closed;
use util::load::{Amount, Load, LoadReport};
use util::{Ask as _, Daemon, free_address};

const PAYLOAD_BYTES: usize = 200;
const LINE_BYTES: u64 = PAYLOAD_BYTES as u64 + 1;
const RATE: u64 = 400_000;

/// The first rate of the search, and the step to the next.
const RATE_STEP: u64 = 100_000;
const RATE_MAX: u64 = 2_000_000;

/// A file that has not grown for so long holds all that will come.
const QUIET: Duration = Duration::from_millis(400);

/// Trains are of so many datagrams.
const TRAIN: u16 = 20;

/// Who takes the datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Rsyslog,
    /// udpd with these keys of the listener besides.
    Udpd(&'static str),
    /// Receives and writes nothing.
    Loop,
}

const PLAIN: Who = Who::Udpd("");
const FOR_THROUGHPUT: Who = Who::Udpd("gather = \"1ms\"\nbatch_size = 256\ngro = \"on\"\n");

/// In the order of a round. The first is the base, and runs again at the end.
const ROUND: [(Who, &str); 5] = [
    (Who::Rsyslog, "rsyslog"),
    (PLAIN, "udpd"),
    (FOR_THROUGHPUT, "udpd set up for throughput"),
    (Who::Loop, "a C loop that writes nothing"),
    (Who::Rsyslog, "rsyslog again"),
];

/// What one run came to.
#[derive(Debug, Clone, Copy)]
struct Run {
    sent: u64,
    written: u64,
    sent_per_second: f64,
    process_ns_each: f64,
    machine_ns_each: f64,
}

fn load(address: SocketAddr, offer: Offer, seconds: f64) -> Load {
    let mut load = Load::new(address, Amount::Seconds(seconds));
    load.overruns = true;
    (load.rate_per_second, load.segment) = (offer.rate_per_second, offer.segment);
    (load.flows, load.payload_bytes) = (offer.flows, offer.payload_bytes);
    load.cpu = Some(SENDER_CPU);
    load
}

fn offer(name: &'static str, rate_per_second: u64, segment: Option<u16>) -> Offer {
    Offer { payload_bytes: PAYLOAD_BYTES, ..Offer::new(name, rate_per_second, segment) }
}

/// Sends, waits until the file holds all that will come, and works out what that cost.
fn measure(process_id: u32, file: &Path, load: Load) -> Run {
    let (process_before, machine_before) = (process_ns(process_id), busy_ns());
    let LoadReport { sent, seconds, .. } = load.send();
    let written = wait_for(file, sent);
    let each = |ns: u64| ns as f64 / written.max(1) as f64;
    Run {
        sent,
        written,
        sent_per_second: sent as f64 / seconds,
        process_ns_each: each(process_ns(process_id) - process_before),
        machine_ns_each: each(busy_ns() - machine_before),
    }
}

/// Waits until the file holds so many lines, or does not grow any more. Returns how many it holds.
fn wait_for(file: &Path, lines: u64) -> u64 {
    let length = || fs::metadata(file).map_or(0, |metadata| metadata.len());
    let (mut last, mut since) = (length(), Instant::now());
    while last < lines * LINE_BYTES && since.elapsed() < QUIET {
        sleep(Duration::from_millis(10));
        if length() != last {
            (last, since) = (length(), Instant::now());
        }
    }
    last / LINE_BYTES
}

fn run(who: Who, c_loop: &Path, offer: Offer, seconds: f64) -> Run {
    let address = free_address();
    let load = load(address, offer, seconds);
    match who {
        Who::Udpd(keys) => {
            let daemon = Daemon::with_config(&format!(
                "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nlanes = 1\nreceive_buffer = \"32MiB\"\n{keys}\
                 sinks = [\"file\"]\n[sink.file]\ntype = \"file\"\npath = \"@DIR@/out.log\"\nsync = \"never\"\n\
                 rotate = {{ bytes = 0, every = \"0s\" }}\nqueue_bytes = \"64MiB\"\n"
            ));
            let file = daemon.directory().join("out.log");
            let run = measure(daemon.pid(), &file, load);
            let ended = daemon.terminate();
            assert!(ended.status.success(), "{}", ended.stderr);
            // With gro = "on" the kernel counts a train that it drops as one.
            if who == PLAIN || run.sent == run.written {
                assert_closed(&ended.ledger, run.sent);
            }
            run
        }
        Who::Rsyslog => {
            let mut rsyslog = Rsyslog::start(address);
            let file = rsyslog.directory.path().join("out.log");
            let mut run = measure(rsyslog.child.id(), &file, load);
            // What it still has in a buffer it writes at its end.
            rsyslog.end();
            run.written = fs::metadata(file).map_or(0, |metadata| metadata.len()) / LINE_BYTES;
            run
        }
        Who::Loop => {
            let run = contender::run(Contender::CLoop, c_loop, offer, seconds);
            Run {
                sent: run.sent,
                written: run.received,
                sent_per_second: run.sent_per_second(),
                process_ns_each: run.process_ns_each(),
                machine_ns_each: run.machine_ns_each(),
            }
        }
    }
}

/// rsyslogd as a child, with a configuration and a directory of its own.
struct Rsyslog {
    child: Child,
    directory: tempfile::TempDir,
}

impl Rsyslog {
    /// Starts it and waits until it has bound its port.
    fn start(address: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().display();
        let (host, port) = (address.ip(), address.port());
        let configuration = format!(
            r#"global(workDirectory="{path}")
module(load="imudp" threads="1" batchSize="256" timeRequery="1000")
template(name="raw" type="string" string="%rawmsg%\n")
ruleset(name="out" queue.type="fixedArray" queue.size="250000" queue.dequeueBatchSize="4096" queue.workerThreads="1") {{
  action(type="omfile" file="{path}/out.log" template="raw" asyncWriting="on"
    flushOnTXEnd="off" ioBufferSize="256k" flushInterval="1")
}}
input(type="imudp" address="{host}" port="{port}" rcvbufSize="32m" ruleset="out")
"#
        );
        let file = directory.path().join("rsyslog.conf");
        fs::write(&file, configuration).expect("the configuration of rsyslog");
        let child = Command::new("rsyslogd")
            .args(["-n", "-f"])
            .arg(&file)
            .arg("-i")
            .arg(directory.path().join("pid"))
            .stdout(Stdio::null())
            .spawn()
            .expect("rsyslogd starts");
        let bound = format!(":{port:04X} ");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !fs::read_to_string("/proc/net/udp").expect("/proc/net/udp").contains(&bound) {
            assert!(Instant::now() < deadline, "rsyslogd does not listen on {address}");
            sleep(Duration::from_millis(10));
        }
        Self { child, directory }
    }
}

impl Rsyslog {
    fn end(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits i32"));
        let _ = kill(pid, Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Drop for Rsyslog {
    fn drop(&mut self) {
        // Both do nothing to a child that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The CPU time at one rate, in turns.
fn cost(c_loop: &Path, offer: Offer, options: &Options) -> String {
    let mut rounds: Vec<[Run; ROUND.len()]> = Vec::new();
    for number in 0..options.pairs {
        let mut order = ROUND;
        if number % 2 == 1 {
            order.reverse();
        }
        let mut runs = order.map(|(who, _)| run(who, c_loop, offer, options.seconds));
        if number % 2 == 1 {
            runs.reverse();
        }
        rounds.push(runs);
    }
    let of = |index: usize, field: fn(&Run) -> f64| median(rounds.iter().map(|runs| field(&runs[index])).collect());
    let ratio = |index: usize, field: fn(&Run) -> f64| {
        median(rounds.iter().map(|runs| field(&runs[index]) / field(&runs[0])).collect())
    };
    let mut text = format!(
        "## CPU at {RATE}/s, {}\n\n\
         | who | sent a second | lost | CPU ns a datagram | of the machine | ratio | ratio of the machine |\n\
         |---|---|---|---|---|---|---|\n",
        offer.name
    );
    for (index, (_, name)) in ROUND.into_iter().enumerate() {
        let lost: u64 = rounds.iter().map(|runs| runs[index].sent - runs[index].written).sum();
        let process = |run: &Run| run.process_ns_each;
        let machine = |run: &Run| run.machine_ns_each;
        writeln!(
            text,
            "| {name} | {:.0} | {lost} | {:.0} | {:.0} | {:.2} | {:.2} |",
            of(index, |run| run.sent_per_second),
            of(index, process),
            of(index, machine),
            ratio(index, process),
            ratio(index, machine)
        )
        .expect("a String takes everything");
    }
    text
}

/// The highest rate at which nothing is lost, in trains so that one core can send that much.
fn highest(who: Who, c_loop: &Path, options: &Options) -> f64 {
    let mut best = 0.0;
    let mut rate = if options.quick { RATE } else { RATE_STEP * 3 };
    while rate <= RATE_MAX {
        // One bad moment of the machine is not the writer's limit.
        let offer = offer("", rate, Some(TRAIN));
        let clean = (0..2).map(|_| run(who, c_loop, offer, options.seconds)).find(|run| run.sent == run.written);
        let Some(run) = clean else { break };
        if run.sent_per_second < rate as f64 * 0.95 {
            break;
        }
        best = run.sent_per_second;
        if options.quick {
            break;
        }
        rate += RATE_STEP;
    }
    best
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(4.0, 0.5)?;
    let mut out = io::stdout().lock();
    if Command::new("rsyslogd").arg("-v").stdout(Stdio::null()).status().is_err() {
        writeln!(out, "SKIPPED against_rsyslog: no rsyslogd to compare with")?;
        return Ok(());
    }
    let Compiled::Program(c_loop) = compile("recvmmsg_loop")? else {
        writeln!(out, "SKIPPED against_rsyslog: no C compiler (cc) to build the loop that shows the kernel's part")?;
        return Ok(());
    };
    let mut text = format!("# Lines in a file, {PAYLOAD_BYTES} B, against rsyslog\n\n");
    for offer in [offer("one by one", RATE, None), offer("in trains of 20", RATE, Some(TRAIN))] {
        let table = cost(&c_loop, offer, &options);
        writeln!(out, "{table}")?;
        writeln!(text, "{table}")?;
    }
    let best = [Who::Rsyslog, PLAIN, FOR_THROUGHPUT].map(|who| highest(who, &c_loop, &options));
    let [rsyslog, plain, for_throughput] = best;
    let line = format!(
        "Highest rate without loss, in trains, in steps of {RATE_STEP}: rsyslog {rsyslog:.0}/s, udpd {plain:.0}/s \
         (ratio {:.2}), set up for throughput {for_throughput:.0}/s (ratio {:.2}).\n",
        plain / rsyslog,
        for_throughput / rsyslog
    );
    writeln!(out, "{line}")?;
    write!(text, "{line}\n{}", facts())?;
    if let Some(folder) = &options.record {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("against_rsyslog.md"), text)?;
    }
    Ok(())
}
