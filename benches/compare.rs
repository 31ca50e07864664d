//! Two recorded runs side by side: ends with 1 when the newer one is worse by more than noise.
//!
//! ```text
//! cargo bench --bench compare -- benches/runs/OLD benches/runs/NEW
//! cargo bench --bench compare -- --self-test
//! ```
//!
//! From `raw.csv` (against_c_loop) each program's cost is taken as a ratio to the C loop of the same pair, so that runs
//! of different days, and within limits of different machines, can be compared. Noise is what the C loop differs from
//! itself in both runs, and never less than 3 %. Instructions (instructions.csv) do not depend on the day: 2 % more is
//! worse.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

mod support;
#[path = "../tests/util/mod.rs"]
mod util;

use support::report::median;

const FLOOR: &str = "C loop";
const FLOOR_AGAIN: &str = "C loop again";
const OLD_NAME: &str = "udpd recvmmsg 0ms";
const NOISE_MIN: f64 = 0.03;
const INSTRUCTIONS_MARGIN: f64 = 0.02;

/// The cost of each program under each offer, by pair.
type Costs = BTreeMap<(String, String), Vec<(String, f64)>>;

/// A figure of both runs, and by how much the newer may be higher.
#[derive(Debug, PartialEq)]
struct Change {
    name: String,
    old: f64,
    new: f64,
    margin: f64,
}

impl Change {
    fn is_worse(&self) -> bool {
        self.new > self.old * (1.0 + self.margin)
    }
}

/// Rows of a CSV file by the names of their columns; the files are ours and quote nothing but the offers with commas.
fn rows(text: &str) -> Vec<BTreeMap<&str, String>> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let fields = |line: &str| {
        // "300,000/s" stands unquoted in the first column of runs: what is too many belongs to it.
        let parts: Vec<String> = line.split(',').map(str::to_owned).collect();
        let extra = parts.len().saturating_sub(names.len());
        let first = parts[..=extra].join(",");
        std::iter::once(first).chain(parts.into_iter().skip(extra + 1)).collect::<Vec<_>>()
    };
    lines.map(|line| names.iter().copied().zip(fields(line)).collect()).collect()
}

fn costs(text: &str) -> Costs {
    let mut costs = Costs::new();
    for row in rows(text) {
        let number = |key: &str| row.get(key).and_then(|value| value.parse::<f64>().ok());
        let (Some(process_ns), Some(received)) = (number("process_ns"), number("received")) else { continue };
        let text = |key: &str| row.get(key).cloned().unwrap_or_default();
        // Before there was a choice of engines there was one udpd.
        let program = Some(text("program")).filter(|name| name != "udpd").unwrap_or_else(|| OLD_NAME.to_owned());
        costs.entry((text("offered"), program)).or_default().push((text("pair"), process_ns / received.max(1.0)));
    }
    costs
}

/// The median ratio of a program to the C loop, pair by pair.
fn ratio(costs: &Costs, offer: &str, program: &str) -> Option<f64> {
    let of = |program: &str| costs.get(&(offer.to_owned(), program.to_owned()));
    let floor: BTreeMap<&str, f64> = of(FLOOR)?.iter().map(|(pair, cost)| (pair.as_str(), *cost)).collect();
    let ratios = of(program)?.iter().filter_map(|(pair, cost)| Some(cost / floor.get(pair.as_str())?));
    let ratios: Vec<f64> = ratios.collect();
    (!ratios.is_empty()).then(|| median(ratios))
}

fn compare_costs(old: &Costs, new: &Costs) -> Vec<Change> {
    let noise = |costs: &Costs, offer: &str| ratio(costs, offer, FLOOR_AGAIN).map_or(0.0, |ratio| (ratio - 1.0).abs());
    let programs = new.keys().filter(|(_, program)| program != FLOOR && program != FLOOR_AGAIN);
    programs
        .filter_map(|(offer, program)| {
            let (before, after) = (ratio(old, offer, program)?, ratio(new, offer, program)?);
            let margin = (noise(old, offer) + noise(new, offer)).max(NOISE_MIN);
            Some(Change { name: format!("{program} at {offer}"), old: before, new: after, margin })
        })
        .collect()
}

fn compare_instructions(old: &str, new: &str) -> Vec<Change> {
    let of = |text: &str| -> BTreeMap<String, f64> {
        let one = |row: BTreeMap<&str, String>| {
            Some((row.get("program")?.clone(), row.get("instructions_each")?.parse().ok()?))
        };
        rows(text).into_iter().filter_map(one).collect()
    };
    let before = of(old);
    of(new)
        .into_iter()
        .filter_map(|(name, new)| {
            let old = *before.get(&name)?;
            Some(Change { name: format!("instructions, {name}"), old, new, margin: INSTRUCTIONS_MARGIN })
        })
        .collect()
}

fn compare(old: &Path, new: &Path) -> Vec<Change> {
    let read = |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let mut changes = compare_costs(&costs(&read(old, "raw.csv")), &costs(&read(new, "raw.csv")));
    changes.extend(compare_instructions(&read(old, "instructions.csv"), &read(new, "instructions.csv")));
    changes
}

/// That a regression is found and noise is not.
fn self_test() {
    let run = |udpd: f64, again: f64| {
        let mut text = "offered,pair,program,sent,received,calls,kernel_dropped,process_ns,machine_ns\n".to_owned();
        for pair in 0..5 {
            let pace = 1.0 + f64::from(pair) / 10.0;
            for (program, cost) in [("C loop", 1000.0), ("udpd recvmmsg 1ms", udpd), ("C loop again", again)] {
                text += &format!("300,000/s,{pair},{program},100,100,2,0,{:.0},0\n", cost * pace * 100.0);
            }
        }
        costs(&text)
    };
    let changes = compare_costs(&run(600.0, 1010.0), &run(700.0, 1010.0));
    assert!(changes.len() == 1 && changes[0].is_worse(), "17 % more is worse: {changes:?}");
    let changes = compare_costs(&run(600.0, 1010.0), &run(612.0, 1010.0));
    assert!(!changes[0].is_worse(), "2 % more is noise: {changes:?}");
    let changes = compare_costs(&run(600.0, 1150.0), &run(650.0, 1010.0));
    assert!(!changes[0].is_worse(), "8 % more is noise where the C loop differs from itself by 15 %: {changes:?}");
    let counted = |each: f64| format!("program,instructions_each\nx,{each}\n");
    assert!(compare_instructions(&counted(100.0), &counted(103.0))[0].is_worse());
    assert!(!compare_instructions(&counted(100.0), &counted(101.0))[0].is_worse());
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let mut out = io::stdout().lock();
    match arguments.as_slice() {
        [] => {
            let _ =
                writeln!(out, "cargo bench --bench compare -- benches/runs/OLD benches/runs/NEW, or -- --self-test");
            ExitCode::SUCCESS
        }
        [flag] if flag == "--self-test" => {
            self_test();
            let _ = writeln!(out, "a regression is found, and noise is not");
            ExitCode::SUCCESS
        }
        [old, new] => {
            let changes = compare(Path::new(old), Path::new(new));
            if changes.is_empty() {
                let _ = writeln!(out, "{old} and {new} have no figure in common");
                return ExitCode::from(2);
            }
            for change in &changes {
                let Change { name, old, new, margin } = change;
                let word = if change.is_worse() { "WORSE" } else { "ok" };
                let _ = writeln!(out, "{word:5}  {name}: {old:.3} -> {new:.3} (margin {:.0} %)", margin * 100.0);
            }
            ExitCode::from(u8::from(changes.iter().any(Change::is_worse)))
        }
        _ => {
            let _ = writeln!(out, "two folders, or --self-test");
            ExitCode::from(2)
        }
    }
}
