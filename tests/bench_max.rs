//! The search for the highest rate as its users run it: every trial adds up, and scripts can act on the answer.

use serde_json::Value;

use crate::util::*;

fn max(arguments: &str) -> Outcome {
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    udpd(&[&["bench", "max", "--seconds", "0.1"][..], &arguments].concat())
}

#[test]
fn every_trial_adds_up_and_the_answer_is_what_the_last_ones_sent_and_kept() {
    let whole = max("--to null: --rate 1k..4k --json").json();
    let report = &whole["report"];
    let trials = list(report, "trials");
    for trial in trials {
        assert_eq!(count(trial, "delivered") + sum(&trial["lost"]), count(trial, "sent"), "{trial:#}");
        if trial["offered"] == true {
            assert_eq!(count(trial, "sent"), count(trial, "rate") / 10, "{trial:#}");
        }
    }
    // Where the machine is busy a sender is held up; then the trial is made again, and the answer is what was sent.
    let rate = count(report, "rate");
    let sent = |trial: &&Value| match trial["offered"] == true {
        true => count(trial, "rate") >= rate,
        false => trial["sent_per_second"].as_f64().expect("a rate") as u64 >= rate,
    };
    let kept = trials.iter().rev().take_while(|trial| trial["kept"] == true).filter(sent).count();
    assert!(kept >= 3 && count(report, "repetitions") == 3 && (1..=4_000).contains(&rate), "{report:#}");
    match report["limit"].as_str() {
        Some("asked") => assert_eq!(rate, 4_000, "{report:#}"),
        limit => assert!(limit == Some("sender") && trials.iter().any(|trial| trial["offered"] == false), "{report:#}"),
    }
}

#[test]
fn a_rate_below_what_was_expected_is_exit_3_and_one_above_is_headroom() {
    let short = max("--to null: --rate 1k..2k --expect 1M --json").ends(3, &[]);
    let report: Value = serde_json::from_str(&short.stdout).expect("JSON");
    assert!(report["headroom_percent"].as_f64().expect("a share") < -99.0);
    max("--to null: --rate 1k..2k --expect 10").succeeds(&[" % headroom against 10\n"]);
}

#[test]
fn a_rate_that_was_never_sent_is_neither_the_answer_nor_a_proof() {
    // No sender reaches that, one datagram at a time; and nothing counts as lost.
    let short = max("--to null: --rate 500M..1000M --gso 1 --loss 100% --expect 500M --json");
    let short = short.ends(3, &["not proved. The sender was short"]);
    let whole: Value = serde_json::from_str(&short.stdout).expect("JSON");
    let report = &whole["report"];
    let mut sent: Vec<u64> =
        list(report, "trials").iter().map(|trial| trial["sent_per_second"].as_f64().expect("a rate") as u64).collect();
    assert_eq!(
        (report["limit"].as_str(), count(report, "repetitions"), sent.len()),
        (Some("sender"), 3, 3),
        "{report:#}"
    );
    sent.sort_unstable();
    assert_eq!((count(report, "rate"), count(report, "highest_sent")), (sent[0], sent[2]), "{report:#}");
}

#[test]
fn a_listener_of_a_file_is_measured_while_a_daemon_has_its_port_and_the_trials_can_be_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let taken = socket();
    std::fs::write(at("udpd.toml"), Setup::at(address_of(&taken)).null("one").text()).expect("written");
    let (file, csv) = (at("udpd.toml"), at("trials.csv"));
    let whole = max(&format!("-c {file} --rate 1k..2k --json --csv {csv}")).json();
    let trials = list(&whole["report"], "trials");
    assert!(trials.iter().all(|trial| trial["sink"] == "one"), "{whole:#}");
    assert_eq!(std::fs::read_to_string(csv).expect("written").lines().count(), trials.len() + 1);
}

#[test]
fn a_wrong_option_is_exit_2_and_says_what_would_be_right() {
    for (arguments, words) in [
        ("--to stdout: --real-sinks", "without --real-sinks"),
        ("--to null: --rate 10k", "such as 10k..1M"),
        ("--to null: --precision 0%", "0.1%"),
        ("--to null: --loss much", "0.5%"),
        ("--to null: --gso 500", "128 or less"),
        ("", "--to"),
    ] {
        max(arguments).ends(2, &[words]);
    }
}
