//! The search as it is printed: each trial as it ends, the table of all of them, the answer, and what it says of
//! `--expect`.

use super::measure::Report;
use super::search::Limit;
use super::trial::Trial;
use udpd_base::text::tables::{TextTable, grouped, or_dash};

fn outcome(trial: &Trial) -> &'static str {
    match (trial.kept, trial.offered) {
        (true, true) => "kept",
        (true, false) => "sender short",
        (false, true) => "lost",
        (false, false) => "lost, sender short",
    }
}

pub(super) fn progress(number: usize, trial: &Trial) -> String {
    format!(
        "trial {number:>2}: {} a second: {}, {} of {} lost",
        grouped(trial.rate),
        outcome(trial),
        grouped(trial.lost.total()),
        grouped(trial.sent)
    )
}

pub(super) fn table(report: &Report) -> TextTable {
    let mut table = TextTable::new([
        "trial",
        "asked/s",
        "sent/s",
        "sent",
        "delivered",
        "before",
        "kernel",
        "listener",
        "queue full",
        "sink error",
        "pipeline ns",
        "outcome",
    ]);
    for (place, trial) in report.trials.iter().enumerate() {
        let lost = trial.lost;
        table.row([
            (place + 1).to_string(),
            grouped(trial.rate),
            grouped(trial.sent_per_second.round() as u64),
            grouped(trial.sent),
            grouped(trial.delivered),
            grouped(lost.before_the_socket),
            grouped(lost.kernel),
            grouped(lost.listener),
            grouped(lost.queue_full),
            grouped(lost.sink_error),
            or_dash(trial.pipeline_ns.map(|ns| ns.round() as u64)),
            outcome(trial).to_owned(),
        ]);
    }
    table
}

pub(super) fn text(report: &Report, warnings: &[String], expect: Option<u64>, headroom: Option<f64>) -> String {
    let mut text: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    text += &report.changed.iter().map(|change| format!("note: {change}\n")).collect::<String>();
    text += &format!("\n{}\n", table(report).text());
    text += &answer(report);
    if let (Some(expected), Some(headroom)) = (expect, headroom) {
        let word = if headroom < 0.0 { "short" } else { "headroom" };
        text += &format!("{:.1} % {word} against {}\n", headroom.abs(), grouped(expected));
    }
    text
}

fn answer(report: &Report) -> String {
    let (rate, times) = (grouped(report.rate), report.repetitions);
    match report.limit {
        Limit::Pipeline => {
            format!("{rate} datagrams a second without loss, {times} times in a row; above that the pipeline loses\n")
        }
        Limit::Sender if report.rate == 0 => {
            format!("no rate: the sender could not reach even the lowest; begin lower with --rate, or {GIVE_MORE}\n")
        }
        Limit::Sender => format!(
            "at least {rate} datagrams a second: the sender sent that many, and nothing was lost {times} times in a \
             row. The sender could not send more, so this is not the pipeline's limit; {GIVE_MORE}\n"
        ),
        Limit::Asked => {
            format!("at least {rate} datagrams a second, the end of --rate, without loss {times} times in a row\n")
        }
        Limit::Nothing => "no rate: even the lowest loses; the table says where; begin lower with --rate\n".to_owned(),
        Limit::Interrupted if report.rate == 0 => "interrupted: no rate was without loss until then\n".to_owned(),
        Limit::Interrupted => format!("interrupted: {rate} datagrams a second were without loss until then\n"),
    }
}

/// What helps a sender.
const GIVE_MORE: &str = "give the sender more: --threads, a longer --gso train, cores of its own with --cpu";

/// Why the answer does not meet what was expected, which nobody knows when it was never offered.
pub(super) fn shortfall(report: &Report, expected: u64) -> String {
    let rate = grouped(report.rate);
    let short = (1.0 - report.rate as f64 / expected as f64) * 100.0;
    let expected = grouped(expected);
    match report.limit {
        Limit::Sender => format!(
            "--expect {expected}: not proved. The sender was short: it reached at most {} datagrams a second, and \
             {rate} were sent without loss often enough; {GIVE_MORE}",
            grouped(report.highest_sent)
        ),
        Limit::Asked => {
            format!("--expect {expected}: not proved. The end of --rate was {rate} datagrams a second; raise it")
        }
        Limit::Interrupted => format!("--expect {expected}: not proved, because the search was interrupted"),
        Limit::Pipeline | Limit::Nothing => format!(
            "{rate} datagrams a second, {short:.1} % short of --expect {expected}; the trials above say what was \
             lost where"
        ),
    }
}
