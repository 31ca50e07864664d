//! Whether the bench itself can be believed: how fast it sends beside a bare sendmmsg loop in C, how exactly it keeps a
//! rate, and what the pipeline adds to the latency of a recvmsg loop that does nothing but look at the clock.
//!
//! ```text
//! cargo bench --bench bench_tool [-- --pairs 5 --seconds 2 --quick --record DIR]
//! ```
//!
//! The programs take turns; the C loop runs twice in each pair, and its ratio to itself is the error of the others.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::c_program::{Compiled, compile};
use support::contender::SENDER_CPU;
use support::latency::{CALM, Way, number, residence, send, stamp_loop};
use support::machine::facts;
use support::options::Options;
use support::report::median;

/// Rates that are to be kept.
const RATES: [u64; 6] = [1_000, 10_000, 30_000, 100_000, 200_000, 300_000];

/// Datagrams a second of the C loop.
fn c_send(program: &Path, port: u16, seconds: f64, bytes: usize) -> f64 {
    let arguments = [port.to_string(), seconds.to_string(), bytes.to_string(), SENDER_CPU.to_string()];
    let output = Command::new(program).args(arguments).output().expect("the C loop starts");
    assert!(output.status.success(), "the C loop: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("the C loop prints one number")
}

/// Speed of the sender, to a socket without a reader: both pay the same for what is dropped there.
fn speed(options: &Options, program: &Path, summary: &mut String) -> std::fmt::Result {
    let unread = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let port = unread.local_addr().expect("bound").port();
    let seconds = options.seconds.to_string();
    writeln!(summary, "## Sending as fast as it goes\n\n| size | program | datagrams/s | ratio |\n|---|---|---|---|")?;
    for (bytes, gso) in [("64", None), ("1200", Some("50"))] {
        let (mut floor, mut plain, mut trains, mut again) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.pairs {
            let length = bytes.parse().expect("a number");
            floor.push(c_send(program, port, options.seconds, length));
            let fast = ["--rate", "max", "--seconds", &seconds, "--size", bytes];
            plain.push(number(&send(port, &fast), "rate"));
            if let Some(train) = gso {
                trains.push(number(&send(port, &[&fast[..], &["--gso", train]].concat()), "rate"));
            }
            again.push(c_send(program, port, options.seconds, length));
        }
        let named =
            [("C loop", &floor), ("bench send", &plain), ("bench send --gso 50", &trains), ("C loop again", &again)];
        for (name, runs) in named.into_iter().filter(|(_, runs)| !runs.is_empty()) {
            let ratio = median(runs.iter().zip(&floor).map(|(run, floor)| run / floor).collect());
            writeln!(summary, "| {bytes} B | {name} | {:.0} | {ratio:.3} |", median(runs.clone()))?;
        }
    }
    Ok(())
}

/// How exactly a rate is kept.
fn pacing(options: &Options, summary: &mut String) -> std::fmt::Result {
    let unread = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let port = unread.local_addr().expect("bound").port();
    let seconds = if options.quick { "1" } else { "10" };
    writeln!(
        summary,
        "\n\
         ## Keeping a rate for {seconds} s\n\
         \n\
         | asked/s | sent/s | error | late p50 | late p99 |\n\
         |---|---|---|---|---|"
    )?;
    for rate in RATES {
        let report = send(port, &["--rate", &rate.to_string(), "--seconds", seconds]);
        let late = &report["lateness"];
        writeln!(
            summary,
            "| {rate} | {:.0} | {:.4} % | {:.1} us | {:.1} us |",
            number(&report, "rate"),
            number(&report, "pacing_error_percent"),
            number(late, "p50_us"),
            number(late, "p99_us"),
        )?;
    }
    Ok(())
}

/// From the kernel's arrival time to the handler of the datagram.
fn latency(options: &Options, program: &Path, summary: &mut String) -> std::fmt::Result {
    let count = (options.seconds * CALM as f64) as u64;
    let mut runs: [(&str, Vec<[f64; 2]>); 4] =
        ["C loop", "udpd recvmmsg", "udpd io_uring", "C loop again"].map(|name| (name, Vec::new()));
    for _ in 0..options.pairs {
        for (name, figures) in &mut runs {
            match *name {
                "udpd recvmmsg" => figures.push(residence(count, "recvmmsg", Way::Channel)),
                "udpd io_uring" if mmsg::Uring::supported().is_ok() => {
                    figures.push(residence(count, "io_uring", Way::Channel))
                }
                "udpd io_uring" => {}
                _ => figures.push(stamp_loop(program, count)),
            }
        }
    }
    writeln!(
        summary,
        "\n\
         ## From the kernel's arrival time to the consumer, at {CALM}/s\n\
         \n\
         | program | p50 | ratio | p99.9 | ratio |\n\
         |---|---|---|---|---|"
    )?;
    let floor = runs[0].1.clone();
    for (name, figures) in runs.iter().filter(|(_, figures)| !figures.is_empty()) {
        let at = |place: usize| median(figures.iter().map(|figure| figure[place]).collect());
        let ratio = |place: usize| {
            median(figures.iter().zip(&floor).map(|(figure, floor)| figure[place] / floor[place]).collect())
        };
        writeln!(summary, "| {name} | {:.1} us | {:.2} | {:.1} us | {:.2} |", at(0), ratio(0), at(1), ratio(1))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(2.0, 0.3)?;
    let mut out = io::stdout().lock();
    if core_affinity::get_core_ids().unwrap_or_default().len() < 2 {
        writeln!(out, "SKIPPED: needs a core for the sender and one for the receiver")?;
        return Ok(());
    }
    let (Compiled::Program(send_loop), Compiled::Program(stamp)) = (compile("sendmmsg_loop")?, compile("stamp_loop")?)
    else {
        writeln!(out, "SKIPPED: there is no C compiler (cc) to build the loops that the bench is compared with")?;
        return Ok(());
    };
    let mut summary = format!("# The bench itself\n\n{} pairs of {} s; medians.\n\n", options.pairs, options.seconds);
    speed(&options, &send_loop, &mut summary)?;
    latency(&options, &stamp, &mut summary)?;
    pacing(&options, &mut summary)?;
    write!(summary, "\n{}", facts())?;
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("bench_tool.md"), &summary)?;
    }
    Ok(())
}
