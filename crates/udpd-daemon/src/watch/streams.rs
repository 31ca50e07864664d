//! The lines about streams with sequence numbers: one when a stream begins to lose on its way here and one when it does
//! no more, one when an exporter falls silent and one when it is heard again.
//!
//! Once in ten seconds. A stream that loses now and then has two lines in a minute at the most, and of one interval at
//! most 16 changes are named, however many there are.

use udpd_base::ledger::snapshot::StreamSnapshot;
use udpd_base::text::tables::grouped;
use udpd_inspect::upstream::StreamChange;

/// What is due for a listener: these changes, and a number of others that are not named.
pub fn lines(listener: &str, changes: &[(StreamChange, StreamSnapshot)], more: u64) -> Vec<String> {
    let mut lines: Vec<String> = changes.iter().map(|(change, stream)| line(listener, *change, stream)).collect();
    if more > 0 {
        lines.push(format!(
            "listener {listener}: {more} more streams began or ceased to lose, or to be silent; udpd stats --streams \
             lists all"
        ));
    }
    lines
}

fn line(listener: &str, change: StreamChange, stream: &StreamSnapshot) -> String {
    let StreamSnapshot { source, port, domain, protocol, unit, arrived, .. } = stream;
    let domain = if domain.is_empty() { String::new() } else { format!(", domain {domain}") };
    let who = format!("listener {listener}: the {protocol} stream from {source} port {port}{domain}");
    let (least, most) = (grouped(stream.missing_at_least), grouped(stream.missing_at_most));
    let missing = if stream.missing.is_some() { most } else { format!("{least} to {most}") };
    let sum = format!("{missing} {unit} are missing by now, and {} came", grouped(*arrived));
    match change {
        StreamChange::BeginsToLose => {
            format!("{who} loses on its way to this host: {sum}; look at the network and at the exporter")
        }
        StreamChange::HasGaps => format!(
            "{who} has gaps: {sum}; this host has lost datagrams of the listener and cannot tell of which stream: look \
             at udpd explain before the network"
        ),
        StreamChange::LosesNoMore => format!("{who} has lost nothing for a minute: {sum}"),
        StreamChange::IsSilent => format!("{who} is silent: look at the exporter and at the way from it"),
        StreamChange::IsHeardAgain => format!("{who} is heard again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::ledger::testing::stream;

    #[test]
    fn where_this_host_may_have_lost_all_that_is_missing_the_line_does_not_blame_the_network() {
        let line = |change, stream: StreamSnapshot| lines("netflow", &[(change, stream)], 0).remove(0);
        let upstream = line(StreamChange::BeginsToLose, stream());
        assert!(upstream.contains("loses on its way to this host: 30 datagrams are missing"), "{upstream}");
        let perhaps_here = StreamSnapshot { missing: None, missing_at_least: 0, ..stream() };
        let perhaps_here = line(StreamChange::HasGaps, perhaps_here);
        assert!(perhaps_here.contains("0 to 30 datagrams are missing"), "{perhaps_here}");
        assert!(perhaps_here.contains("udpd explain") && !perhaps_here.contains("on its way"), "{perhaps_here}");
    }
}
