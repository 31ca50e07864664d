//! What the host as a whole lost since the daemon started, for people: each loss once, with its cause in the kernel's
//! own words, and what nobody can see.

use std::fmt::Write as _;

use hostloss::{HostReading, KernelCounter, KernelTable, Loss, Losses, tables};
use udpd_base::text::tables::grouped;

/// The section of the host. Empty when nobody has looked, as in a ledger of an older udpd.
pub(super) fn render(host: &HostReading) -> String {
    if host == &HostReading::default() {
        return String::new();
    }
    let Losses { lost, total, unseen, .. } = &host.lost;
    let mut text =
        "\nhost, since udpd started; packets that were not UDP are among those of layers below udp\n".to_owned();
    if lost.is_empty() {
        text.push_str("  lost  0, as far as this host can see\n");
    } else {
        let counts: Vec<String> = lost.iter().map(|loss| grouped(loss.count)).collect();
        let sum = grouped(*total);
        let width = counts.iter().map(String::len).max().unwrap_or(0).max(sum.len());
        let _ = writeln!(text, "  lost  {sum:>width$}");
        for (loss, count) in lost.iter().zip(counts) {
            let Loss { layer, counter, place, unit, .. } = loss;
            let why = declared(layer.name(), counter).map_or("", |counter| counter.help).replace('`', "");
            let _ = writeln!(
                text,
                "        {count:>width$}  {} {counter} of {place} ({}). {why}",
                layer.name(),
                unit.name()
            );
        }
    }
    for unseen in unseen {
        let _ = writeln!(text, "  not known: {}", unseen.what);
    }
    text
}

/// The declaration of a counter that can be in the sum.
fn declared(layer: &str, name: &str) -> Option<&'static KernelCounter> {
    let tables = [
        tables::LinkCounters::COUNTERS,
        tables::Conntrack::COUNTERS,
        tables::Ip::COUNTERS,
        tables::Udp::COUNTERS,
        tables::SocketCounts::COUNTERS,
    ];
    tables.into_iter().flatten().find(|counter| counter.layer.name() == layer && counter.name == name)
}
