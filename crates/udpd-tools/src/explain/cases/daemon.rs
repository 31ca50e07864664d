//! What the running daemon counts itself: what never reached this host, what a listener dropped, and sinks.

use super::ports::of_ports;
use crate::explain::evidence::{Evidence, Listener, Port, Sink};
use crate::explain::finding::{Cure, Finding, Layer};
use crate::explain::sums::{megabytes, percent};
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_size;

/// A sink that took less of what it was offered is slower than what comes; a longer queue only delays the loss.
const KEEPS_UP: f64 = 0.7;

pub fn lost_upstream(evidence: &Evidence) -> Vec<Finding> {
    let missing = |listener: &Listener| {
        let upstream = listener.upstream.clone()?;
        Some((listener.name.clone(), upstream.missing.filter(|missing| *missing > 0)?, upstream.unit))
    };
    let told = evidence.listeners.iter().filter_map(missing).map(|(name, missing, unit)| {
        let cause = "the sequence numbers of the senders have gaps that no counter of this host explains: it was lost \
                     before the card";
        let note = "look at the sender's own drops, at the switches and at policers on the way; nothing here helps";
        let finding = Finding::new("lost_upstream", Layer::Upstream, format!("listener {name}"), (missing, &unit));
        finding.because(cause).cured_by([Cure::elsewhere(note)])
    });
    told.collect()
}

pub fn dropped_by_rule(evidence: &Evidence) -> Vec<Finding> {
    let each = evidence.listeners.iter().flat_map(|listener| listener.dropped.iter().map(move |it| (listener, it)));
    let told = each.filter(|(_, dropped)| dropped.count > 0).map(|(listener, dropped)| {
        let subject = format!("listener {} ({})", listener.name, dropped.reason);
        let finding = Finding::new("listener_dropped", Layer::Listener, subject, (dropped.count, "datagrams"));
        let cure = Cure::elsewhere(dropped.cure.replace('`', ""));
        finding.because(dropped.help.replace('`', "")).cured_by([cure])
    });
    told.collect()
}

fn sinks(evidence: &Evidence) -> impl Iterator<Item = (&Listener, &Sink)> {
    evidence.listeners.iter().flat_map(|listener| listener.sinks.iter().map(move |sink| (listener, sink)))
}

/// A sink loses what a listener gives it: two listeners of one sink are two losses.
fn subject(listener: &Listener, sink: &Sink) -> String {
    format!("sink {}, listener {}", sink.name, listener.name)
}

pub fn sink_too_slow(evidence: &Evidence) -> Vec<Finding> {
    let told = sinks(evidence).filter(|(_, sink)| sink.queue_full > 0).map(|(listener, sink)| {
        let finding =
            Finding::new("sink_too_slow", Layer::Sink, subject(listener, sink), (sink.queue_full, "datagrams"));
        let taken = sink.delivered as f64 / sink.offered.max(1) as f64;
        let second = evidence.seconds.max(0.001);
        let cause = format!(
            "sink {} took {} of what listener {} offered it, its queue was full, and when_full dropped the rest",
            sink.name,
            percent(taken),
            listener.name
        );
        let bytes = listener.bytes / listener.received.max(1) + 64;
        let arithmetic = format!(
            "{}/s were offered and {}/s taken; {} hold about {} datagrams of this size",
            grouped((sink.offered as f64 / second) as u64),
            grouped((sink.delivered as f64 / second) as u64),
            megabytes(sink.queue_bytes),
            grouped(sink.queue_bytes / bytes)
        );
        // What came and was not taken, twice, beside what there is.
        let behind = sink.offered.saturating_sub(sink.delivered).max(sink.queue_full);
        let queue = (sink.queue_bytes + 2 * behind * bytes).next_multiple_of(1 << 20);
        let longer = Cure::key(
            "sink",
            &sink.name,
            "queue_bytes",
            format!("\"{}\"", print_size(queue)),
            "for bursts; restart udpd",
        );
        let note = "one for each lane; restart udpd; or make the destination faster";
        let more = Cure::key("sink", &sink.name, "consumers", "\"per_lane\"", note);
        let cures = if taken >= KEEPS_UP || listener.lanes.len() < 2 { [longer, more] } else { [more, longer] };
        finding.because(cause).with(arithmetic).cured_by(cures)
    });
    told.collect()
}

pub fn sink_refuses(evidence: &Evidence) -> Vec<Finding> {
    let told = sinks(evidence).filter(|(_, sink)| sink.sink_error > 0).map(|(listener, sink)| {
        let subject = format!("{} (errors)", subject(listener, sink));
        let finding = Finding::new("sink_refuses", Layer::Sink, subject, (sink.sink_error, "datagrams"));
        let cause = format!("the destination of sink {} refused them", sink.name);
        let cure = Cure::command("journalctl -u udpd -n 50", "the log has the error");
        finding.because(cause).cured_by([cure])
    });
    told.collect()
}

/// With `when_full = "block"` a slow sink holds up the receiver, and the kernel drops.
pub fn sink_blocks(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let listener = evidence.listener_on(port.port)?;
        let sink = listener.sinks.iter().find(|sink| sink.blocks == Some(true))?;
        let worst = port.worst().filter(|worst| worst.full >= 0.3)?;
        let cause = format!(
            "sink {} did not keep up, and its when_full = \"block\" lets the receivers wait for it: the receive buffer \
             was full at {} of the looks",
            sink.name,
            percent(worst.full)
        );
        let arithmetic =
            format!("{}/s reached the sink", grouped((sink.delivered as f64 / evidence.seconds.max(0.001)) as u64));
        let note = "the sink then loses what it cannot take, and the other sinks nothing; or make the destination \
                    faster; restart udpd";
        let cure = Cure::key("sink", &sink.name, "when_full", "\"drop_newest\"", note);
        Some(finding.because(cause).with(arithmetic).cured_by([cure]))
    };
    of_ports(evidence, case, "sink_blocks")
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{first, losing_listener, told};
    use crate::explain::evidence::{Dropped, Evidence, Upstream};

    fn listening() -> Evidence {
        let mut evidence = losing_listener();
        evidence.ports[0].sockets[0].dropped = 0;
        evidence.stack.rcvbuf_errors = Some(0);
        evidence
    }

    #[test]
    fn a_gap_that_this_host_does_not_explain_was_lost_before_it_in_the_protocols_unit() {
        let mut evidence = listening();
        evidence.listeners[0].upstream = Some(Upstream { missing: Some(12), unit: "flows".into() });
        let finding = first(&evidence);
        assert_eq!((finding.case, finding.lost, finding.unit.as_str()), ("lost_upstream", 12, "flows"));
    }

    #[test]
    fn a_sink_that_missed_a_burst_gets_a_longer_queue_and_one_that_never_keeps_up_more_consumers() {
        let mut evidence = listening();
        let listener = &mut evidence.listeners[0];
        (listener.sinks[0].delivered, listener.sinks[0].queue_full) = (9000, 1000);
        listener.sinks[0].queue_bytes = 1 << 20;
        assert_eq!(told(&evidence), ("sink_too_slow", 1000, "sink.archive.queue_bytes = \"2MiB\"".to_owned()));
        let listener = &mut evidence.listeners[0];
        (listener.sinks[0].delivered, listener.sinks[0].queue_full) = (2000, 8000);
        listener.lanes.push(listener.lanes[0].clone());
        assert_eq!(told(&evidence), ("sink_too_slow", 8000, "sink.archive.consumers = \"per_lane\"".to_owned()));
    }

    #[test]
    fn two_listeners_of_one_sink_are_two_losses() {
        let mut evidence = listening();
        evidence.listeners[0].sinks[0].queue_full = 1000;
        let mut other = evidence.listeners[0].clone();
        other.name = "netflow".into();
        evidence.listeners.push(other);
        assert_eq!(diagnose(&evidence).iter().map(|finding| finding.lost).sum::<u64>(), 2000);
    }

    #[test]
    fn a_sink_that_blocks_is_the_cause_before_the_buffer() {
        let mut evidence = losing_listener();
        evidence.ports[0].sockets[0].full = 0.8;
        evidence.listeners[0].sinks[0].blocks = Some(true);
        assert_eq!(told(&evidence), ("sink_blocks", 1000, "sink.archive.when_full = \"drop_newest\"".to_owned()));
    }

    #[test]
    fn what_a_listener_and_a_sink_drop_is_said_in_the_words_of_the_ledger() {
        let mut evidence = listening();
        let dropped = Dropped { reason: "truncated", help: "Longer.", cure: "Raise `max_length`.", count: 3 };
        evidence.listeners[0].dropped.push(dropped);
        assert_eq!(told(&evidence), ("listener_dropped", 3, "Raise max_length.".to_owned()));
        evidence.listeners[0].sinks[0].sink_error = 5;
        assert_eq!(told(&evidence), ("sink_refuses", 5, "journalctl -u udpd -n 50".to_owned()));
    }
}
