//! How many instructions a datagram takes in user space, from the receiver to the sink: callgrind counts them, so the
//! figure is the same on a loud machine as on a quiet one. The kernel's share is not in it.
//!
//! ```text
//! cargo bench --bench instructions [-- --quick --only PART --program PATH --before PATH --record DIR]
//! ```
//!
//! Two runs that differ only in how many datagrams they get: starting and ending are in both and drop out of the
//! difference. Valgrind knows no io_uring, so this is the recvmmsg engine. With `--before` another program gets the
//! same, and the ratio is shown.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::machine::facts;
use util::daemon::free_address;
use util::ledger::{assert_closed, count};
use util::load::{Amount, Load};

/// Slow enough for a program under valgrind, so that nothing waits longer than it would without.
const RATE_PER_SECOND: u64 = 40_000;

/// The same where every byte is looked at: a part of the rate, and of the datagrams.
const FILE_SHARE: u64 = 10;
const LONG_FILE_SHARE: u64 = 40;

/// What is received, and where it goes.
#[derive(Debug, Clone, Copy)]
struct Cell {
    sink: &'static str,
    payload_bytes: usize,
    /// In trains, which GRO keeps together.
    trains: bool,
    /// The number of each datagram is followed, by stream.
    sequence: bool,
    /// At every address of the host: streams differ in where they are sent to as well.
    any_address: bool,
}

const fn cell(sink: &'static str, payload_bytes: usize) -> Cell {
    Cell { sink, payload_bytes, trains: false, sequence: false, any_address: false }
}

const CELLS: &[Cell] = &[
    cell("null", 32),
    cell("null", 200),
    cell("null", 1400),
    cell("null", 9000),
    Cell { trains: true, ..cell("null", 1400) },
    Cell { sequence: true, ..cell("null", 64) },
    Cell { sequence: true, any_address: true, ..cell("null", 64) },
    cell("file", 32),
    cell("file", 200),
    cell("file", 1400),
    cell("file", 9000),
];

struct Options {
    cells: Vec<Cell>,
    few: u64,
    many: u64,
    /// The udpd that is counted.
    program: String,
    /// The one that it is compared with.
    before: Option<String>,
    record: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let program = env!("CARGO_BIN_EXE_udpd").to_owned();
    let cells = CELLS.to_vec();
    let mut options = Options { cells, few: 20_000, many: 120_000, program, before: None, record: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--quick" => (options.cells, options.few, options.many) = (CELLS[..1].to_vec(), 10_000, 40_000),
            "--only" => {
                let part = arguments.next().ok_or("--only needs a part of a name, such as sequence")?;
                options.cells.retain(|cell| cell.name().contains(&part));
            }
            "--program" => options.program = arguments.next().ok_or("--program needs a path")?,
            "--before" => options.before = Some(arguments.next().ok_or("--before needs a path")?),
            "--record" => options.record = Some(arguments.next().ok_or("--record needs a folder")?.into()),
            _ => {
                return Err(format!(
                    "unknown argument {argument}: --quick, --only PART, --program PATH, --before PATH, --record DIR"
                ));
            }
        }
    }
    Ok(options)
}

impl Cell {
    /// Sends so many datagrams; returns how many the kernel took.
    fn send(&self, address: SocketAddr, datagrams: u64) -> u64 {
        if !self.sequence {
            return self.load(address, datagrams).send().sent;
        }
        // The numbers of the other load are text, which counts in no byte order.
        let (to, count, rate) = (address.to_string(), datagrams.to_string(), RATE_PER_SECOND.to_string());
        let size = self.payload_bytes.to_string();
        let words = ["bench", "send", "--to", &to, "--count", &count, "--rate", &rate, "--size", &size, "--json"];
        let output = Command::new(env!("CARGO_BIN_EXE_udpd")).args(words).output().expect("udpd starts");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["report"]["sent"].as_u64().expect("a count")
    }

    fn load(&self, address: SocketAddr, datagrams: u64) -> Load {
        let mut load = Load::new(address, Amount::Count(datagrams));
        load.overruns = true;
        load.rate_per_second = RATE_PER_SECOND / self.share();
        load.payload_bytes = self.payload_bytes;
        if self.trains {
            load.segment = Some(40);
        }
        load
    }

    fn share(&self) -> u64 {
        match (self.sink, self.payload_bytes) {
            ("file", 2048..) => LONG_FILE_SHARE,
            ("file", _) => FILE_SHARE,
            _ => 1,
        }
    }

    fn name(&self) -> String {
        let Self { sink, payload_bytes, .. } = self;
        let trains = if self.trains { ", GRO trains" } else { "" };
        let sequence = if self.sequence { ", with sequence" } else { "" };
        let any = if self.any_address { " at any address" } else { "" };
        format!("{payload_bytes} B to {sink}{trains}{sequence}{any}")
    }

    /// Instructions of the whole process, and the datagrams it received.
    fn run(&self, program: &str, datagrams: u64, folder: &Path) -> (u64, u64) {
        let address = free_address();
        let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        let bound = if self.any_address { SocketAddr::from(([0; 4], address.port())) } else { address };
        let gro = if self.trains { "on" } else { "off" };
        let path = if self.sink == "file" {
            format!("path = {:?}\nrotate.every = \"0s\"", at("out.log"))
        } else {
            String::new()
        };
        let sequence = if self.sequence { r#"sequence = { offset = 8, bytes = 4, order = "little" }"# } else { "" };
        let text = format!(
            "[daemon]\n\
             control_socket = {:?}\n\
             metrics_address = \"\"\n\
             stats_on_exit = {:?}\n\
             [[listener]]\n\
             name = \"in\"\n\
             address = \"{bound}\"\n\
             lanes = 1\n\
             engine = \"recvmmsg\"\n\
             max_length = \"{}\"\n\
             gro = \"{gro}\"\n\
             gather = \"1ms\"\n\
             {sequence}\n\
             sinks = [\"out\"]\n\
             [sink.out]\n\
             type = \"{}\"\n\
             {path}\n",
            at("control.sock"),
            at("ledger.json"),
            if self.payload_bytes > 2048 { "9KiB" } else { "2KiB" },
            self.sink,
        );
        fs::write(at("udpd.toml"), text).expect("written");
        let mut child = Command::new("valgrind")
            .args(["--tool=callgrind", &format!("--callgrind-out-file={}", at("callgrind.out"))])
            .args([program, "run", "-c", &at("udpd.toml")])
            .stderr(Stdio::piped())
            .spawn()
            .expect("valgrind starts");
        wait_until_ready(&mut child);
        let sent = self.send(address, datagrams);
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id fits i32"));
        kill(pid, Signal::SIGTERM).expect("it runs");
        assert!(child.wait().expect("it ends").success());
        let ledger = fs::read_to_string(at("ledger.json")).expect("a ledger");
        let ledger: Value = serde_json::from_str(&ledger).expect("JSON");
        assert_closed(&ledger, sent);
        let listener = &ledger["listeners"][0];
        let (received, delivered) = (count(listener, "received"), count(&listener["sinks"][0], "delivered"));
        assert_eq!((received, delivered), (sent, sent), "what is dropped costs nothing, and would be no comparison");
        let counted = fs::read_to_string(at("callgrind.out")).expect("callgrind has counted");
        let totals = counted.lines().find_map(|line| line.strip_prefix("totals: ")).expect("a sum");
        (totals.parse().expect("a number"), received)
    }

    /// Instructions for each datagram.
    fn each(&self, program: &str, options: &Options, folder: &Path) -> f64 {
        let counts = [options.few, options.many].map(|datagrams| datagrams / self.share());
        let [few, many] = counts.map(|datagrams| self.run(program, datagrams, folder));
        (many.0 as f64 - few.0 as f64) / (many.1 as f64 - few.1 as f64)
    }
}

fn wait_until_ready(child: &mut Child) {
    let mut stderr: BufReader<ChildStderr> = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("ready:") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("readable") > 0, "udpd ended before it was ready");
    }
    // Later output is not used, but it has to be read.
    std::thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let mut out = io::stdout().lock();
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        writeln!(out, "SKIPPED: there is no valgrind to count instructions with")?;
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut lines = String::new();
    let mut csv = String::from("cell,instructions_each,before,ratio\n");
    for cell in &options.cells {
        let now = cell.each(&options.program, &options, folder.path());
        let before = options.before.as_ref().map(|before| cell.each(before, &options, folder.path()));
        let (before, ratio) = before.map_or(("-".to_owned(), "-".to_owned()), |before| {
            (format!("{before:.1}"), format!("{:.3}", now / before))
        });
        let name = cell.name();
        let line = format!("| {name} | {now:.1} | {before} | {ratio} |\n");
        write!(io::stderr(), "{line}")?;
        lines += &line;
        csv += &format!("\"{name}\",{now:.2},{before},{ratio}\n");
    }
    let summary = format!(
        "# Instructions in user space\n\
         \n\
         For each datagram, receiver and consumer together (recvmmsg, gather = \"1ms\"): {} datagrams less {}.\n\
         \n\
         | datagrams | instructions | before | ratio |\n\
         |---|---|---|---|\n\
         {lines}\n\
         {}",
        options.many,
        options.few,
        facts()
    );
    writeln!(out, "{summary}")?;
    if let Some(folder) = &options.record {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("instructions.md"), &summary)?;
        fs::write(folder.join("instructions.csv"), csv)?;
    }
    Ok(())
}
