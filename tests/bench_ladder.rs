//! The ladder as its users run it: every step adds up, and what was not taken says why.

use serde_json::Value;

use crate::util::*;

/// Runs a short ladder: enough to check what is counted, not to learn anything.
fn ladder(arguments: &str) -> Outcome {
    let short = ["bench", "ladder", "--seconds", "0.1", "--rounds", "1", "--rate", "20k"];
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    udpd(&[&short[..], &arguments].concat())
}

fn report(arguments: &str) -> Value {
    let whole = ladder(&format!("--json {arguments}")).json();
    assert!(!whole["machine"]["kernel"].is_null() && whole["warnings"].is_array(), "{whole:#}");
    whole["report"].clone()
}

/// A line adds up, or says why it has no figures. A sender that other work keeps from its core for its tenth of a
/// second offers less than it was asked for, never more.
#[track_caller]
fn assert_adds_up(row: &Value, asked: u64) {
    let offered = count(row, "offered");
    if row["obstacle"].is_string() {
        assert_eq!(offered, 0, "{row:#}");
        return;
    }
    assert!((1..=asked).contains(&offered), "{row:#}");
    assert_eq!(count(row, "received") + sum(&row["lost"]), offered, "{row:#}");
    let lanes: u64 = list(row, "lanes").iter().map(|lane| lane.as_u64().expect("a count")).sum();
    assert_eq!(lanes, count(row, "received"), "{row:#}");
}

#[test]
fn every_step_receives_or_loses_what_it_is_offered() {
    let report = report("");
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
    let report = report("--steps pinned --sizes --placements");
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
    let done = ladder(&format!("--steps recvmmsg,pinned,again --csv {csv} --svg {svg}"));
    // One round tells no noise, and a clamped buffer is advised whatever the noise is.
    let text = done.succeeds(&["noise: unknown"]).stdout;
    assert!(text.contains("net.core.rmem_max") || text.contains("no advice"), "{text}");
    let csv = std::fs::read_to_string(csv).expect("written");
    assert_eq!(csv.lines().filter(|line| line.starts_with("step,")).count(), 3, "{csv}");
    let svg = std::fs::read_to_string(svg).expect("written");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("pinned"), "{svg}");
}

#[test]
fn a_wrong_option_is_exit_2_and_says_what_would_be_right() {
    for (arguments, code, words) in [
        ("--steps upwards", 2, "recvmmsg"),
        ("--size 8", 2, "32 to 65507"),
        ("--rounds 0", 2, "--rounds"),
        ("--gso 129", 2, "write 1 to 128"),
        ("--size 40000 --gso 2", 2, "write 1 to 1"),
        ("--steps pinned --csv /nonexistent/a.csv", 74, ""),
    ] {
        ladder(arguments).ends(code, &[words]);
    }
}
