//! What the hand-over to a consumer costs in latency, and what an inline sink spares: from the kernel's arrival time to
//! the sink, beside a recvmsg loop in C that does nothing but look at the clock.
//!
//! ```text
//! cargo bench --bench latency [-- --pairs 5 --seconds 2 --quick --record DIR]
//! ```
//!
//! Sender and receiver have a core each. The programs take turns, and the order turns round from pair to pair. The C
//! loop runs twice in each pair: its ratio to itself is the error of the others. A ratio is against the mean of both.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::c_program::{Compiled, compile};
use support::latency::{CALM, Way, residence, stamp_loop};
use support::machine::facts;
use support::options::Options;
use support::report::median;

/// Its name, its bar, and the p50 and the p99.9 of each of its runs, in microseconds.
type Contender = (&'static str, Option<f64>, Vec<[f64; 2]>);

/// Who takes the datagrams, and the most that its p50 may be of the C loop's.
const CONTENDERS: [(&str, Option<f64>); 7] = [
    ("C loop", None),
    ("recvmmsg, inline", Some(1.2)),
    ("recvmmsg, channel", Some(1.8)),
    ("recvmmsg, channel on one core", Some(1.8)),
    ("io_uring, inline", Some(1.2)),
    ("io_uring, channel", Some(1.8)),
    ("C loop again", None),
];

/// The p50 and the p99.9 of one run, in microseconds.
fn run(name: &str, c_loop: &Path, count: u64) -> [f64; 2] {
    match name.split_once(", ") {
        Some((engine, "inline")) => residence(count, engine, Way::Inline),
        Some((engine, "channel")) => residence(count, engine, Way::Channel),
        Some((engine, _)) => residence(count, engine, Way::ChannelOnOneCore),
        None => stamp_loop(c_loop, count),
    }
}

/// What stands in the way of a meaningful comparison, if anything does.
fn obstacle() -> Option<&'static str> {
    let cores = core_affinity::get_core_ids().unwrap_or_default().len();
    (cores < 2).then_some("needs a core for the sender and one for the receiver")
}

fn table(runs: &[Contender]) -> String {
    let mut text = String::from("| program | p50 | ratio | bar | p99.9 | ratio |\n|---|---|---|---|---|---|\n");
    let (first, last) = (&runs[0].2, &runs[runs.len() - 1].2);
    for (name, bar, figures) in runs.iter().filter(|(_, _, figures)| !figures.is_empty()) {
        let at = |place: usize| median(figures.iter().map(|figure| figure[place]).collect());
        let floor = |pair: usize, place: usize| f64::midpoint(first[pair][place], last[pair][place]);
        let ratio = |place: usize| {
            let ratios = figures.iter().enumerate();
            median(ratios.map(|(pair, figure)| figure[place] / floor(pair, place)).collect())
        };
        let verdict =
            bar.map_or_else(String::new, |bar| format!("{bar:.1}: {}", if ratio(0) <= bar { "met" } else { "missed" }));
        let row = (at(0), ratio(0), verdict, at(1), ratio(1));
        let _ =
            writeln!(text, "| {name} | {:.1} us | {:.2} | {} | {:.1} us | {:.2} |", row.0, row.1, row.2, row.3, row.4);
    }
    text
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read(2.0, 0.3)?;
    let mut out = io::stdout().lock();
    if let Some(obstacle) = obstacle() {
        writeln!(out, "SKIPPED: {obstacle}")?;
        return Ok(());
    }
    let Compiled::Program(c_loop) = compile("stamp_loop")? else {
        writeln!(out, "SKIPPED: there is no C compiler (cc) to build the loop that udpd is compared with")?;
        return Ok(());
    };
    let has_ring = mmsg::Uring::supported();
    if let Err(refusal) = &has_ring {
        writeln!(out, "WITHOUT io_uring: {refusal}")?;
    }
    let count = (options.seconds * CALM as f64) as u64;
    let mut runs = CONTENDERS.map(|(name, bar)| (name, bar, Vec::new()));
    for pair in 0..options.pairs {
        let mut order: Vec<usize> = (0..runs.len()).collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let (name, _, figures) = &mut runs[place];
            if has_ring.is_ok() || !name.starts_with("io_uring") {
                figures.push(run(name, &c_loop, count));
            }
        }
    }
    let summary = format!(
        "# From the kernel's arrival time to the sink, at {CALM}/s\n\n{} pairs of {} s; medians.\n\n{}\n{}",
        options.pairs,
        options.seconds,
        table(&runs),
        facts()
    );
    writeln!(out, "\n{summary}")?;
    if let Some(folder) = &options.record {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("latency.md"), &summary)?;
    }
    Ok(())
}
