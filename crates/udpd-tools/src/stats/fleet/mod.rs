//! `udpd stats --fleet`: the ledgers of all members of a fleet, and their sum.
//!
//! A member is asked over HTTP at its `metrics_address`, or its ledger is in a file. What a member does not say is
//! unknown in the sum (`?` in the table, null in JSON), and the exit code tells.

mod member;
mod streams;
mod sum;

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use self::member::Member;
use self::streams::StreamSums;
use self::sum::{ListenerSum, Sum};
use super::{cell, duration, push_table};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_base::text::tables::grouped;

/// How a fleet is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetForm {
    Text,
    Json,
    /// A page that needs nothing else.
    Html,
}

/// Asks all members, and writes what they say and their sum. Fails behind that where a member has no ledger.
pub fn execute(members: &[String], form: FleetForm, out: &mut dyn Write) -> Result<(), Failure> {
    let members = member::ask_all(members, member::LIMIT);
    let text = match form {
        FleetForm::Text => render(&members),
        FleetForm::Json => format!("{}\n", to_json(&members)),
        FleetForm::Html => to_html(&render(&members)),
    };
    console::print(out, &text)?;
    let absent: Vec<&str> =
        members.iter().filter(|member| member.ledger.is_err()).map(|member| member.name.as_str()).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let message = format!("the sum is unknown, because these members have no ledger: {}", absent.join(", "));
    Err(Failure::new(ExitCode::Unavailable, message))
}

fn to_json(members: &[Member]) -> Value {
    let member = |member: &Member| match &member.ledger {
        Ok(ledger) => json!({
            "name": member.name, "version": ledger["version"], "uptime_seconds": ledger["uptime_seconds"],
            "error": null,
        }),
        Err(why) => json!({ "name": member.name, "version": null, "uptime_seconds": null, "error": why }),
    };
    let sums: Vec<ListenerSum> = sum::listeners(members).into_iter().map(|(sum, _)| sum).collect();
    json!({
        "members": members.iter().map(member).collect::<Vec<_>>(),
        "complete": members.iter().all(|member| member.ledger.is_ok()),
        "listeners": sums,
    })
}

fn render(members: &[Member]) -> String {
    let mut text = format!("fleet of {} members\n", members.len());
    let member = |member: &Member| {
        let known = |ledger: &Value| {
            let up = ledger["uptime_seconds"].as_f64().map_or_else(|| "?".to_owned(), duration);
            (ledger["version"].as_str().unwrap_or("?").to_owned(), up, "-".to_owned())
        };
        let (version, up, why) = match &member.ledger {
            Ok(ledger) => known(ledger),
            Err(why) => ("?".to_owned(), "?".to_owned(), why.clone()),
        };
        vec![cell("member", &member.name), cell("version", version), cell("up", up), cell("no ledger", why)]
    };
    push_table(&mut text, members.iter().map(member).collect());
    for (sum, of_members) in sum::listeners(members) {
        let _ = writeln!(text, "\nlistener {}", sum.name);
        let rows = of_members.iter().map(|(member, own)| (*member, own)).chain([("all", &sum)]);
        push_table(&mut text, rows.map(|(member, own)| listener(member, own)).collect());
        push_table(&mut text, sum.sinks.iter().map(|(name, counts)| sink(name, counts)).collect());
        push_table(&mut text, sum.streams.iter().map(stream).collect());
        for why in sum.streams.iter().flat_map(|streams| streams.unknown.iter().take(8)) {
            let _ = writeln!(text, "  not known: {why}");
        }
    }
    text
}

fn or_unknown(number: Option<i64>) -> String {
    let sign = |number: i64| if number < 0 { "-" } else { "" };
    number.map_or_else(|| "?".to_owned(), |number| format!("{}{}", sign(number), grouped(number.unsigned_abs())))
}

fn cells(counts: &Sum, keys: &[&str]) -> impl Iterator<Item = (String, String)> {
    keys.iter().map(|key| cell(&key.replace('_', " "), or_unknown(counts.number(key)))).collect::<Vec<_>>().into_iter()
}

fn listener(member: &str, own: &ListenerSum) -> Vec<(String, String)> {
    let counts = cells(&own.counts, &["arrived", "kernel_dropped", "received", "dropped"]);
    let residual = cell("residual", or_unknown(own.residual));
    std::iter::once(cell("member", member)).chain(counts).chain([residual]).collect()
}

fn sink(name: &str, counts: &Sum) -> Vec<(String, String)> {
    let counts = cells(counts, &["offered", "delivered", "dropped", "spilled", "in_flight"]);
    std::iter::once(cell("sink of all", name)).chain(counts).collect()
}

fn stream(sums: &StreamSums) -> Vec<(String, String)> {
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), grouped);
    vec![
        cell("streams", grouped(sums.streams)),
        cell("moved", grouped(sums.moved)),
        cell("sent", number(sums.sent)),
        cell("received", number(sums.received)),
        cell("missing", number(sums.missing)),
        cell("unit", &sums.unit),
    ]
}

fn to_html(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>udpd fleet</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font:14px monospace;margin:2em}}</style>\n<pre>{escaped}</pre>\n"
    )
}

#[cfg(test)]
mod tests;
