//! One lane from near: every stage of it in words, its history, its sinks and who sends most to it.

use super::super::frame::{Line, Mark, printable};
use super::super::model::{Flow, Model};
use super::cells::{bar, channel, fit, quantile, rate, short, total, trend};
use udpd_base::text::tables::grouped;
use udpd_engine::plan::memory::Bytes;

/// The columns of a bar.
const BAR: usize = 20;

/// Everything about the lane at this place of the model.
pub(super) fn lines(model: &Model, place: usize, width: usize) -> Vec<Line> {
    let lane = &model.lanes[place];
    let listener = &model.listeners[lane.listener];
    let (name, address, engine) =
        (printable(&listener.name), printable(&lane.found.address), printable(&lane.found.engine));
    let mut lines = vec![Line::of(Mark::Strong, format!("lane {} of {name}  {address}  {engine}", lane.lane))];
    lines.extend(stages(model, place));
    lines.push(Line::default());
    if let Some(past) = model.histories(place) {
        lines.push(trend("received", lane.received, &past.received, width, false));
        lines.push(trend("lost", lane.lost(), &past.lost, width, true));
        lines.push(Line::default());
    }
    let [lost, delivered, p50, p99, p999] = ["lost/s", "deliv/s", "p50", "p99", "p99.9"];
    let heading = format!("{:<11} {:<27} {lost:>6}{delivered:>8} {p50:>7} {p99:>7} {p999:>9}", "sink", "channel");
    lines.push(Line::of(Mark::Strong, heading));
    for sink in &listener.sinks {
        let residence = sink.residence.as_ref();
        let mark = if sink.lost.rate.is_some_and(|rate| rate > 0.0) { Mark::Bad } else { Mark::Plain };
        lines.push(Line::of(
            mark,
            format!(
                "{} {} {:>6}{:>8} {:>7} {:>7} {:>9}",
                fit(&printable(&sink.name), 11),
                channel(sink, Some(BAR)),
                short(sink.lost.rate),
                short(sink.delivered.rate),
                quantile(residence, |residence| residence.p50_seconds),
                quantile(residence, |residence| residence.p99_seconds),
                quantile(residence, |residence| residence.p999_seconds),
            ),
        ));
    }
    lines.push(Line::default());
    lines.extend(senders(model, place));
    lines
}

/// From the receive queue to the receiver.
fn stages(model: &Model, place: usize) -> Vec<Line> {
    let lane = &model.lanes[place];
    let found = &lane.found;
    let known = |number: Option<usize>| number.map_or_else(|| "not known".to_owned(), |number| number.to_string());
    let planned = match found.planned_cpus.as_slice() {
        [] => "nobody says where its datagrams should arrive".to_owned(),
        cores => format!("its datagrams should arrive on {}", steer::format_core_list(cores)),
    };
    let wrong = match found.wrong_cpu {
        None => String::new(),
        Some(wrong) => format!(", {} did not", grouped(wrong)),
    };
    let bytes = |count: u64| Bytes(usize::try_from(count).unwrap_or(usize::MAX)).to_string();
    let per_call = lane.received.rate.zip(lane.calls.rate).filter(|(_, calls)| *calls > 0.0);
    let per_call = per_call.map_or_else(|| "-".to_owned(), |(received, calls)| format!("{:.1}", received / calls));
    let lost = |flow: Flow| format!("{}/s lost, {} in all", rate(flow), total(flow));
    let stage = |name: &str, text: String, is_bad: bool| {
        let mut line = Line::of(Mark::Plain, format!("  {name:<15}"));
        line.push(if is_bad { Mark::Bad } else { Mark::Plain }, text);
        line
    };
    let is_losing = |flow: Flow| flow.rate.is_some_and(|rate| rate > 0.0);
    vec![
        stage("receive queue", known(found.queue), false),
        stage("core", format!("{}, memory node {}; {planned}{wrong}", known(found.cpu), known(found.node)), false),
        stage(
            "receive buffer",
            format!(
                "{} of {}; {}",
                bar(lane.buffer, BAR / 2),
                bytes(found.receive_buffer_bytes),
                lost(lane.socket_lost)
            ),
            is_losing(lane.socket_lost),
        ),
        stage("receiver", format!("{per_call} datagrams a call; {}", lost(lane.refused)), is_losing(lane.refused)),
    ]
}

fn senders(model: &Model, place: usize) -> Vec<Line> {
    let lane = &model.lanes[place];
    let mut lines = vec![Line::of(Mark::Strong, "busiest senders of late                  port     rate   share")];
    if lane.senders().is_empty() {
        lines.push(Line::of(Mark::Plain, "none"));
    }
    for sender in lane.senders() {
        let port = sender.port.map_or_else(|| "several".to_owned(), |port| port.to_string());
        // Of what the lane receives now.
        let rate = short(lane.received.rate.map(|rate| rate * sender.share));
        let share = bar(Some(sender.share), 10);
        let address = sender.address.to_string();
        lines.push(Line::of(Mark::Plain, format!("{address:<39}{port:>8}{rate:>7}/s {share}")));
    }
    lines
}
