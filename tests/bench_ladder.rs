//! The ladder as its users run it: every step adds up, and what was not taken says why.

use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::util::ledger::{count, list, sum};

/// Enough to check the books, not to learn anything.
const SHORT: [&str; 6] = ["--seconds", "0.1", "--rounds", "1", "--rate", "20k"];

/// Longer than any machine needs to give a sender its tenth of a second at every step.
const PATIENCE: Duration = Duration::from_secs(60);

fn ladder(arguments: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_udpd"))
        .args(["bench", "ladder"])
        .args(SHORT)
        .args(arguments)
        .output()
        .expect("udpd starts")
}

fn report(arguments: &[&str]) -> Value {
    let output = ladder(&[&["--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(!whole["machine"]["kernel"].is_null() && whole["warnings"].is_array(), "{whole:#}");
    whole["report"].clone()
}

/// The same, once every line of each table was offered so much. A sender that other work keeps from its core for the
/// tenth of a second that it has offers less, which is no fault: it is asked again.
fn report_of_all(arguments: &[&str], tables: &[(&str, u64)]) -> Value {
    let started = Instant::now();
    loop {
        let report = report(arguments);
        let is_whole = |row: &Value, sent| row["obstacle"].is_string() || count(row, "offered") == sent;
        let is_offered = tables.iter().all(|&(table, sent)| list(&report, table).iter().all(|row| is_whole(row, sent)));
        if is_offered || started.elapsed() > PATIENCE {
            return report;
        }
    }
}

/// A line adds up, or says why it has no figures.
#[track_caller]
fn assert_adds_up(row: &Value, sent: u64) {
    if row["obstacle"].is_string() {
        assert_eq!(count(row, "offered"), 0, "{row:#}");
        return;
    }
    assert_eq!(count(row, "offered"), sent, "{row:#}");
    assert_eq!(count(row, "received") + sum(&row["lost"]), sent, "{row:#}");
    let lanes: u64 = list(row, "lanes").iter().map(|lane| lane.as_u64().expect("a count")).sum();
    assert_eq!(lanes, count(row, "received"), "{row:#}");
}

#[test]
fn every_step_receives_or_loses_what_it_is_offered() {
    let report = report_of_all(&[], &[("steps", 2_000)]);
    let steps = list(&report, "steps");
    assert_eq!(steps.len(), 11);
    for row in steps {
        assert_adds_up(row, 2_000);
    }
    for taken in ["recv", "recvmmsg", "pinned", "again", "threads", "reuseport", "by_cpu", "gro", "gather"] {
        let row = steps.iter().find(|row| row["step"] == taken).expect("the step");
        assert!(row["obstacle"].is_null() && count(row, "received") > 0, "{row:#}");
    }
}

#[test]
fn sizes_and_placements_repeat_the_last_step_and_name_what_the_machine_lacks() {
    let tables = [("sizes", 1_000), ("placements", 2_000)];
    let report = report_of_all(&["--steps", "pinned", "--sizes", "--placements"], &tables);
    assert_eq!(list(&report, "steps").len(), 1);
    let sizes = list(&report, "sizes");
    assert_eq!(sizes.iter().map(|row| count(row, "bytes")).max(), Some(65_507));
    for row in sizes {
        assert_adds_up(row, 1_000);
    }
    assert!(report["line"]["ns_per_datagram"].is_f64(), "{report:#}");
    let placements = list(&report, "placements");
    assert_eq!(placements.len(), 4);
    for row in placements {
        assert_adds_up(row, 2_000);
        assert_eq!(row["obstacle"].is_string(), row["cores"].is_null(), "{row:#}");
    }
}

#[test]
fn the_table_ends_with_what_to_set_and_the_files_hold_the_same_steps() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let (csv, svg) = (path("a.csv"), path("a.svg"));
    let output = ladder(&["--steps", "recvmmsg,pinned,again", "--csv", &csv, "--svg", &svg]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    // One round tells no noise, and a clamped buffer is advised whatever the noise is.
    assert!(text.contains("noise: unknown"), "{text}");
    assert!(text.contains("net.core.rmem_max") || text.contains("no advice"), "{text}");
    let csv = std::fs::read_to_string(csv).expect("written");
    assert_eq!(csv.lines().filter(|line| line.starts_with("step,")).count(), 3, "{csv}");
    let svg = std::fs::read_to_string(svg).expect("written");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("pinned"), "{svg}");
}

#[test]
fn a_wrong_option_is_exit_2_and_says_what_would_be_right() {
    for (arguments, words) in [
        (&["--steps", "upwards"][..], "recvmmsg"),
        (&["--size", "8"], "32 to 65507"),
        (&["--rounds", "0"], "--rounds"),
        (&["--gso", "129"], "write 1 to 128"),
        (&["--size", "40000", "--gso", "2"], "write 1 to 1"),
    ] {
        let output = ladder(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let output = ladder(&["--steps", "pinned", "--csv", "/nonexistent/a.csv"]);
    assert_eq!(output.status.code(), Some(74), "{}", String::from_utf8_lossy(&output.stderr));
}
