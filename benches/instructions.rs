//! How many instructions a datagram takes in user space, from the receiver to the null sink: callgrind counts them, so
//! the figure is the same on a loud machine as on a quiet one. The kernel's share is not in it.
//!
//! ```text
//! cargo bench --bench instructions [-- --quick --program PATH --record DIR]
//! ```
//!
//! Two runs that differ only in how many datagrams they get: starting and ending are in both and drop out of the
//! difference. Valgrind knows no io_uring, so this is the recvmmsg engine.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
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

/// Slow enough for a program under valgrind.
const RATE_PER_SECOND: u64 = 40_000;

struct Options {
    few: u64,
    many: u64,
    /// The udpd that is counted.
    program: String,
    record: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { few: 40_000, many: 240_000, program: env!("CARGO_BIN_EXE_udpd").to_owned(), record: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--quick" => (options.few, options.many) = (10_000, 40_000),
            "--program" => options.program = arguments.next().ok_or("--program needs a path")?,
            "--record" => options.record = Some(arguments.next().ok_or("--record needs a folder")?.into()),
            _ => return Err(format!("unknown argument {argument}: --quick, --program PATH, --record DIR")),
        }
    }
    Ok(options)
}

/// Instructions of the whole process, and the datagrams it received.
fn instructions(program: &str, datagrams: u64, folder: &Path) -> (u64, u64) {
    let address = free_address();
    let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let text = format!(
        "[daemon]\n\
         control_socket = {:?}\n\
         metrics_address = \"\"\n\
         stats_on_exit = {:?}\n\
         [[listener]]\n\
         name = \"in\"\n\
         address = \"{address}\"\n\
         lanes = 1\n\
         engine = \"recvmmsg\"\n\
         gather = \"1ms\"\n\
         sinks = [\"nothing\"]\n\
         [sink.nothing]\n\
         type = \"null\"\n",
        at("control.sock"),
        at("ledger.json"),
    );
    fs::write(at("udpd.toml"), text).expect("written");
    let mut child = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", at("callgrind.out"))])
        .args([program, "run", "-c", &at("udpd.toml")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind starts");
    wait_until_ready(&mut child);
    let mut load = Load::new(address, Amount::Count(datagrams));
    load.rate_per_second = RATE_PER_SECOND;
    let sent = load.send().sent;
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id fits i32"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    let ledger: Value = serde_json::from_str(&fs::read_to_string(at("ledger.json")).expect("a ledger")).expect("JSON");
    assert_closed(&ledger, sent);
    let counted = fs::read_to_string(at("callgrind.out")).expect("callgrind has counted");
    let totals = counted.lines().find_map(|line| line.strip_prefix("totals: ")).expect("a sum");
    (totals.parse().expect("a number"), count(&ledger["listeners"][0], "received"))
}

fn wait_until_ready(child: &mut Child) {
    let mut stderr: BufReader<ChildStderr> = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("ready:") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("readable") > 0, "udpd ended before it was ready");
    }
    // What is said later is nobody's business, but somebody has to take it.
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
    let (few, many) = (
        instructions(&options.program, options.few, folder.path()),
        instructions(&options.program, options.many, folder.path()),
    );
    let each = (many.0 as f64 - few.0 as f64) / (many.1 as f64 - few.1 as f64);
    let summary = format!(
        "# Instructions in user space\n\
         \n\
         {each:.1} for each datagram of 32 bytes, receiver and null consumer together (recvmmsg, gather = \"1ms\"): \
         {} of {} datagrams against {} of {}.\n\
         \n\
         {}",
        many.0,
        many.1,
        few.0,
        few.1,
        facts()
    );
    writeln!(out, "{summary}")?;
    if let Some(folder) = &options.record {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("instructions.md"), &summary)?;
        fs::write(
            folder.join("instructions.csv"),
            format!("program,instructions_each\nrecvmmsg 1ms null,{each:.2}\n"),
        )?;
    }
    Ok(())
}
