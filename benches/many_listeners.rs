//! What a port for each customer costs: hundreds of listeners with defaults in one process, idle and busy.
//!
//! ```text
//! cargo bench --bench many_listeners [-- --pairs 5 --seconds 3 --quick --program PATH --record DIR]
//! ```
//!
//! The first table is of daemons without traffic: memory, the time until they are ready, CPU, and what one scrape and
//! one `udpd stats` take. The second is the CPU of the process for each datagram where all come to one of a thousand
//! listeners, beside a daemon that has only that one. The two take turns, and the lone one runs twice in each pair: its
//! ratio to itself is the error of the others. The same load spread over all thousand, and scrapes beside a load, are
//! shown below.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::contender::{Cost, RECEIVER_CPU, Run, SENDER_CPU, measure, process_ns};
use support::machine::facts;
use support::options::Options;
use support::report::median;
use util::ledger::{count, list};
use util::load::{Amount, Load};
use util::{Ask as _, Daemon, free_address};

/// How many listeners a daemon has that is looked at while nothing arrives.
const COUNTS: [usize; 3] = [1, 100, 1000];

/// How many it has beside which a lone one is measured.
const MANY: usize = 1000;

/// Of all listeners together.
const RATE_PER_SECOND: u64 = 300_000;

/// How long the CPU of an idle daemon is looked at.
const IDLE: Duration = Duration::from_secs(10);
const QUICK_IDLE: Duration = Duration::from_secs(1);

/// How often a scrape is timed.
const SCRAPES: usize = 5;

/// A daemon with so many listeners.
struct Subject {
    daemon: Daemon,
    program: &'static str,
    addresses: Vec<SocketAddr>,
    metrics: SocketAddr,
    ready_after: Duration,
}

impl Subject {
    fn start(program: &'static str, listeners: usize) -> Self {
        let addresses: Vec<SocketAddr> = (0..listeners).map(|_| free_address()).collect();
        let metrics = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).expect("a free TCP port");
        let listener = |(number, address): (usize, &SocketAddr)| {
            format!("[[listener]]\nname = \"customer{number}\"\naddress = \"{address}\"\nsinks = [\"nothing\"]\n")
        };
        let text: String = addresses.iter().enumerate().map(listener).collect();
        let text = format!("[daemon]\nmetrics_address = \"{metrics}\"\n{text}[sink.nothing]\ntype = \"null\"\n");
        let begun = Instant::now();
        let daemon = Daemon::with_config_of(program, &text);
        Self { daemon, program, addresses, metrics, ready_after: begun.elapsed() }
    }

    fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the memory of the process");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
    }

    /// How long one scrape takes, from the connection to the last byte.
    fn scrape(&self) -> Duration {
        let begun = Instant::now();
        let mut connection = TcpStream::connect(self.metrics).expect("the metrics are served");
        let question = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.metrics);
        connection.write_all(question.as_bytes()).expect("asked");
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).expect("answered");
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer[..answer.len().min(200)]));
        begun.elapsed()
    }

    /// How long `udpd stats --json` takes, and what it says.
    fn stats(&self) -> (Duration, Value) {
        let begun = Instant::now();
        let mut command = Command::new(self.program);
        command.args(["stats", "--json", "--socket"]).arg(self.daemon.control_socket()).stdin(Stdio::null());
        let output = command.output().expect("udpd can be run");
        let took = begun.elapsed();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (took, serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// The last listener whose receiver has the core that the lone one has.
    fn chosen(&self) -> SocketAddr {
        let (_, ledger) = self.stats();
        let is_there = |listener: &Value| list(listener, "lanes")[0]["cpu"].as_u64() == Some(RECEIVER_CPU as u64);
        let place = list(&ledger, "listeners").iter().rposition(is_there).unwrap_or(0);
        self.addresses[place]
    }

    /// Sends, ends the daemon, and adds up what all listeners have.
    fn run(self, load: Load) -> Run {
        let Cost { sent, seconds, process_ns, machine_ns } = measure(self.daemon.pid(), load);
        let ended = self.daemon.terminate();
        assert!(ended.status.success(), "udpd ended with {}: {}", ended.status, ended.stderr);
        let of_all = |key: &str| list(&ended.ledger, "listeners").iter().map(|listener| count(listener, key)).sum();
        let calls = |listener: &Value| list(listener, "lanes").iter().map(|lane| count(lane, "calls")).sum::<u64>();
        let calls = list(&ended.ledger, "listeners").iter().map(calls).sum();
        let (received, kernel_dropped) = (of_all("received"), of_all("kernel_dropped"));
        Run { sent, seconds, received, calls, kernel_dropped, process_ns, machine_ns }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A line of the first table.
fn idle(program: &'static str, listeners: usize, length: Duration) -> String {
    let subject = Subject::start(program, listeners);
    let (resident, ready) = (subject.resident_bytes(), subject.ready_after);
    let before = process_ns(subject.daemon.pid());
    std::thread::sleep(length);
    let idle_ns = process_ns(subject.daemon.pid()) - before;
    let percent = idle_ns as f64 / length.as_nanos() as f64 * 100.0;
    let scrapes = median((0..SCRAPES).map(|_| milliseconds(subject.scrape())).collect());
    let readings = median((0..SCRAPES).map(|_| milliseconds(subject.stats().0)).collect());
    let ended = subject.daemon.terminate();
    assert!(ended.status.success(), "udpd ended with {}: {}", ended.status, ended.stderr);
    format!(
        "| {listeners} | {:.0} | {:.2} | {percent:.2} | {scrapes:.1} | {readings:.1} | {:.2} |\n",
        resident as f64 / f64::from(1 << 20),
        ready.as_secs_f64(),
        ended.elapsed.as_secs_f64()
    )
}

fn load(to: SocketAddr, seconds: f64) -> Load {
    let mut load = Load::new(to, Amount::Seconds(seconds));
    load.overruns = true;
    load.rate_per_second = RATE_PER_SECOND;
    load.cpu = Some(SENDER_CPU);
    load
}

/// All datagrams come to one of so many listeners.
fn to_one(program: &'static str, listeners: usize, seconds: f64) -> Run {
    let subject = Subject::start(program, listeners);
    let to = if listeners == 1 { subject.addresses[0] } else { subject.chosen() };
    subject.run(load(to, seconds))
}

/// Each of so many listeners gets its part.
fn to_all(program: &'static str, listeners: usize, seconds: f64) -> Run {
    let subject = Subject::start(program, listeners);
    let mut load = load(subject.addresses[0], seconds);
    load.to.clone_from(&subject.addresses);
    (load.flows, load.burst) = (listeners, 1);
    subject.run(load)
}

/// All datagrams come to one listener, while a client scrapes and reads. Returns also how often, and the longest of
/// either.
fn beside_scrapes(program: &'static str, seconds: f64) -> (Run, usize, Duration) {
    let subject = Subject::start(program, MANY);
    let load = load(subject.chosen(), seconds);
    let is_over = AtomicBool::new(false);
    let (mut times, mut longest) = (0, Duration::ZERO);
    let cost = std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            let cost = measure(subject.daemon.pid(), load);
            is_over.store(true, Ordering::Relaxed);
            cost
        });
        while !is_over.load(Ordering::Relaxed) {
            longest = longest.max(subject.scrape()).max(subject.stats().0);
            times += 1;
        }
        measured.join().expect("the load was sent")
    });
    let Cost { sent, seconds, process_ns, machine_ns } = cost;
    let ledger = subject.daemon.terminate().ledger;
    let of_all = |key: &str| list(&ledger, "listeners").iter().map(|listener| count(listener, key)).sum();
    let (received, kernel_dropped) = (of_all("received"), of_all("kernel_dropped"));
    (Run { sent, seconds, received, calls: 0, kernel_dropped, process_ns, machine_ns }, times, longest)
}

/// The second table: a lone listener, one of many, the lone one again, and the load on all of them.
fn busy(program: &'static str, options: &Options, out: &mut impl Write) -> io::Result<String> {
    type Subjects<'a> = [(&'a str, &'a dyn Fn() -> Run); 4];
    let subjects: Subjects<'_> = [
        ("a lone listener", &|| to_one(program, 1, options.seconds)),
        ("one of 1,000", &|| to_one(program, MANY, options.seconds)),
        ("a lone listener again", &|| to_one(program, 1, options.seconds)),
        ("1,000 at 300/s each", &|| to_all(program, MANY, options.seconds)),
    ];
    let mut runs: Vec<Vec<Run>> = subjects.iter().map(|_| Vec::new()).collect();
    for pair in 0..options.pairs {
        writeln!(out, "pair {} of {}", pair + 1, options.pairs)?;
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for place in order {
            runs[place].push(subjects[place].1());
        }
    }
    let mut table = "| what | sent/s | lost | ns a datagram, process | ratio | datagrams a call |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    for ((name, _), of_one) in subjects.iter().zip(&runs) {
        let middle = |figure: &dyn Fn(&Run) -> f64| median(of_one.iter().map(figure).collect());
        let pairs = of_one.iter().zip(&runs[0]);
        let ratio = median(pairs.map(|(run, lone)| run.process_ns_each() / lone.process_ns_each()).collect());
        let lost: i64 = of_one.iter().map(Run::lost).sum();
        let (rate, each) = (middle(&Run::sent_per_second), middle(&Run::process_ns_each));
        let by_call = middle(&Run::datagrams_per_call);
        let _ = writeln!(table, "| {name} | {rate:.0} | {lost} | {each:.1} | {ratio:.3} | {by_call:.1} |");
    }
    Ok(table)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(3.0, 0.3)?;
    let program: &'static str = options.program.clone().map_or(env!("CARGO_BIN_EXE_udpd"), |path| path.leak());
    let mut out = io::stdout().lock();
    if core_affinity::get_core_ids().unwrap_or_default().len() < 2 {
        writeln!(out, "SKIPPED: needs a core for the sender and one for the receiver")?;
        return Ok(());
    }
    if cfg!(debug_assertions) && options.program.is_none() {
        writeln!(out, "WARNING: a debug build; these figures mean nothing. Use `cargo bench`.")?;
    }
    let mut summary = "# Many listeners with defaults\n\n\
        | listeners | resident, MiB | ready after, s | CPU when idle, % of a core | a scrape, ms | stats, ms | \
        the end, s |\n\
        |---|---|---|---|---|---|---|\n"
        .to_owned();
    for listeners in COUNTS {
        writeln!(out, "{listeners} listeners, idle")?;
        summary.push_str(&idle(program, listeners, if options.quick { QUICK_IDLE } else { IDLE }));
    }
    let Options { pairs, seconds, .. } = options;
    let busy = busy(program, &options, &mut out)?;
    writeln!(summary, "\n300,000/s, null sink, {pairs} pairs of {seconds} s, medians; lost: the sum.\n\n{busy}")?;
    let (run, times, longest) = beside_scrapes(program, seconds);
    writeln!(
        summary,
        "Beside {times} scrapes and as many `stats --json` of one daemon with 1,000 listeners, one of which got \
         {:.0}/s: {} of {} lost, the longest took {:.0} ms.\n\n{}",
        run.sent_per_second(),
        run.lost(),
        run.sent,
        milliseconds(longest),
        facts()
    )?;
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("many_listeners.md"), &summary)?;
    }
    Ok(())
}
