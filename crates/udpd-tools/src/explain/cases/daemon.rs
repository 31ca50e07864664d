//! What the running daemon counts itself: what never reached this host, what a listener, a receive queue past the
//! kernel's stack and a sink dropped.

use super::of_ports;
use super::shares::{BUSY, Part, blocking_sink};
use crate::explain::evidence::{Evidence, ListenerEvidence, Port, SinkEvidence};
use crate::explain::finding::{Cure, Finding, LossLayer};
use crate::explain::sysctl_dropin::{STALL_SECONDS, megabytes, percent, time};
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_size;

/// A sink that took a smaller share is too slow for the rate; a longer queue only delays the loss.
const KEEPS_UP: f64 = 0.7;

/// One that took a smaller share takes nothing.
const STANDS: f64 = 0.01;

pub(super) fn lost_upstream(evidence: &Evidence) -> Vec<Finding> {
    let missing = |listener: &ListenerEvidence| {
        let upstream = listener.upstream.clone()?;
        Some((listener.name.clone(), upstream.missing.filter(|missing| *missing > 0)?, upstream.unit))
    };
    let told = evidence.listeners.iter().filter_map(missing).map(|(name, missing, unit)| {
        let cause = "the sequence numbers of the senders have gaps that no counter of this host explains: it was lost \
                     before the card";
        let note = "look at the sender's own drops, at the switches and at policers on the way; nothing here helps";
        let finding = Finding::new("lost_upstream", LossLayer::Upstream, format!("listener {name}"), (missing, &unit));
        finding.because(cause).cured_by([Cure::elsewhere(note)])
    });
    told.collect()
}

pub(super) fn dropped_by_rule(evidence: &Evidence) -> Vec<Finding> {
    let each = evidence.listeners.iter().flat_map(|listener| listener.dropped.iter().map(move |it| (listener, it)));
    let told = each.filter(|(_, dropped)| dropped.count > 0).map(|(listener, dropped)| {
        let subject = format!("listener {} ({})", listener.name, dropped.reason);
        let finding = Finding::new("listener_dropped", LossLayer::Listener, subject, (dropped.count, "datagrams"));
        let cure = Cure::elsewhere(dropped.cure.replace('`', ""));
        finding.because(dropped.help.replace('`', "")).cured_by([cure])
    });
    told.collect()
}

fn sinks(evidence: &Evidence) -> impl Iterator<Item = (&ListenerEvidence, &SinkEvidence)> {
    evidence.listeners.iter().flat_map(|listener| listener.sinks.iter().map(move |sink| (listener, sink)))
}

/// Two listeners of one sink are two losses.
fn subject(listener: &ListenerEvidence, sink: &SinkEvidence) -> String {
    format!("sink {}, listener {}", sink.name, listener.name)
}

pub(super) fn sink_too_slow(evidence: &Evidence) -> Vec<Finding> {
    let told = sinks(evidence).filter(|(_, sink)| sink.queue_full > 0).map(|(listener, sink)| {
        let finding =
            Finding::new("sink_too_slow", LossLayer::Sink, subject(listener, sink), (sink.queue_full, "datagrams"));
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
        if taken < STANDS && sink.is_full {
            let note = "its destination stands still: no queue and no thread more cures that; the log says since when";
            let look = Cure::look("journalctl -u udpd -n 50", note);
            return finding.because(cause).with(arithmetic).cured_by([look]);
        }
        if taken >= KEEPS_UP || !sink.is_full {
            // What came and was not taken, twice, beside what there is.
            let behind = sink.offered.saturating_sub(sink.delivered).max(sink.queue_full);
            let queue =
                format!("\"{}\"", print_size((sink.queue_bytes + 2 * behind * bytes).next_multiple_of(1 << 20)));
            let longer = Cure::key("sink", &sink.name, "queue_bytes", queue, "for bursts; restart udpd");
            return finding.because(cause).with(arithmetic).cured_by([longer]);
        }
        let faster = Cure::elsewhere("make the destination faster: a longer queue only delays the loss");
        let note = "one for each lane, if the destination takes more from several; restart udpd";
        let more = Cure::key("sink", &sink.name, "consumers", "\"per_lane\"", note);
        let cures = if listener.lanes.len() < 2 { vec![faster] } else { vec![more, faster] };
        finding.because(cause).with(arithmetic).cured_by(cures)
    });
    told.collect()
}

pub(super) fn sink_refuses(evidence: &Evidence) -> Vec<Finding> {
    let told = sinks(evidence).filter(|(_, sink)| sink.sink_error > 0).map(|(listener, sink)| {
        let subject = format!("{} (errors)", subject(listener, sink));
        let finding = Finding::new("sink_refuses", LossLayer::Sink, subject, (sink.sink_error, "datagrams"));
        let cause = format!("the destination of sink {} refused them", sink.name);
        let cure = Cure::look("journalctl -u udpd -n 50", "the log has the error");
        finding.because(cause).cured_by([cure])
    });
    told.collect()
}

/// With `when_full = "block"` a slow sink holds up the receiver, and the kernel drops.
pub(super) fn sink_blocks(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let listener = evidence.listener_on(port.port)?;
        let sink = blocking_sink(listener)?;
        let worst = port.worst()?;
        let stands = if sink.delivered == 0 { "took nothing" } else { "did not keep up" };
        let cause = format!(
            "sink {} {stands}, and its when_full = \"block\" lets the receivers wait for it: the receive buffer \
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
    of_ports(evidence, Part::SinkBlocks, case, "sink_blocks")
}

/// What `absorb` asks for at most: longer stalls are no bursts.
const STALL_SECONDS_MAX: f64 = 60.0;

/// What the receive queues of an interface lost. The kernel counts it among the interface's dropped packets as well.
pub(super) fn lost_at(evidence: &Evidence, interface: &str) -> u64 {
    let lanes = evidence.listeners.iter().flat_map(|listener| &listener.lanes);
    let own = lanes.filter(|lane| lane.queue.as_ref().is_some_and(|queue| queue.interface == interface));
    own.filter_map(|lane| lane.dropped).sum()
}

pub(super) fn too_short(evidence: &Evidence) -> Vec<Finding> {
    let told = evidence.listeners.iter().filter_map(|listener| {
        let own = || listener.lanes.iter().filter_map(|lane| Some((lane, lane.queue.as_ref()?)));
        let lost: u64 = own().filter_map(|(lane, _)| lane.dropped).sum();
        let (lane, queue) = own().max_by_key(|(lane, _)| lane.dropped).filter(|_| lost > 0)?;
        let subject = format!("listener {} ({})", listener.name, queue.interface);
        let finding = Finding::new("queue_too_short", LossLayer::Socket, subject, (lost, "frames"));
        let rate = (lane.arrived.unwrap_or(0) as f64 / evidence.seconds.max(0.001)).max(1.0);
        let cause = format!(
            "with engine = \"af_xdp\" frames wait in the memory of their lane, and that of receive queue {} of {} was \
             full",
            queue.number, queue.interface
        );
        let holds = format!(
            "{} frames fit; at {}/s that is {}",
            grouped(queue.frames),
            grouped(rate as u64),
            time(queue.frames as f64 / rate)
        );
        let blocking = listener.sinks.iter().find(|sink| sink.blocks == Some(true) && sink.delivered < sink.offered);
        if let Some(sink) = blocking {
            let cause =
                format!("{cause}: sink {} did not keep up, and its when_full = \"block\" holds it up", sink.name);
            let note = "the sink then loses what it cannot take; or make the destination faster; restart udpd";
            let cure = Cure::key("sink", &sink.name, "when_full", "\"drop_newest\"", note);
            return Some(finding.because(cause).with(holds).cured_by([cure]));
        }
        let reader = evidence.ports.iter().find(|port| listener.ports.contains(&port.port));
        let ran = reader.and_then(|port| port.reader.as_ref()?.ran).filter(|ran| *ran >= BUSY);
        if let Some(ran) = ran {
            let cause =
                format!("{cause}: its receiver used {} of a core, and more arrived than that takes", percent(ran));
            let note = format!(
                "udpd gives each receive queue of {} a lane of its own: give it more of them (ethtool -L), and each a \
                 core; or let frames gather (gather = \"1ms\"), or take larger batches (batch_size = 256)",
                queue.interface
            );
            return Some(finding.because(cause).with(holds).cured_by([Cure::elsewhere(note)]));
        }
        // Room for what was lost as well, twice, in `absorb` of the whole listener.
        let all: u64 = own().filter_map(|(lane, _)| lane.arrived).sum();
        let queues = own().count() as u64;
        let rate = (all as f64 / evidence.seconds.max(0.001)).ceil().max(1.0);
        let frames = (queue.frames + 2 * lane.dropped.unwrap_or(0)) * queues;
        let stall = listener.stall_seconds.unwrap_or(STALL_SECONDS).max(frames as f64 / rate).min(STALL_SECONDS_MAX);
        let wanted = (rate * stall).ceil() as u64;
        let arithmetic = format!("{holds}; a stall of {} takes {}", time(stall), grouped(wanted));
        let value = format!("{{ rate = {}, stall = \"{}ms\" }}", rate as u64, (stall * 1000.0).ceil() as u64);
        let note = "all of it counts as locked memory, which udpd check adds up; reload udpd";
        let cure = Cure::listener(&listener.name, "absorb", value, note);
        Some(finding.because(cause).with(arithmetic).cured_by([cure]))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use hostloss::{HostReading, Losses};

    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{assert_told, first, listening, losing_listener, reader, told};
    use crate::explain::evidence::{Dropped, Evidence, LaneEvidence, QueueEvidence, UpstreamEvidence};

    #[test]
    fn a_gap_that_this_host_does_not_explain_was_lost_before_it_in_the_protocols_unit() {
        let mut evidence = listening();
        evidence.listeners[0].upstream = Some(UpstreamEvidence { missing: Some(12), unit: "flows".into() });
        let finding = first(&evidence);
        assert_eq!((finding.case, finding.lost, finding.unit.as_str()), ("lost_upstream", 12, "flows"));
    }

    #[test]
    fn a_sink_that_missed_a_burst_gets_a_longer_queue_and_one_that_never_keeps_up_more_consumers() {
        let mut evidence = listening();
        let listener = &mut evidence.listeners[0];
        (listener.sinks[0].delivered, listener.sinks[0].queue_full) = (9000, 1000);
        listener.sinks[0].queue_bytes = 1 << 20;
        assert_told(&evidence, "sink_too_slow", 1000, "sink.archive.queue_bytes = \"2MiB\"");
        let listener = &mut evidence.listeners[0];
        (listener.sinks[0].delivered, listener.sinks[0].queue_full) = (2000, 8000);
        listener.sinks[0].is_full = true;
        assert!(told(&evidence).2.starts_with("make the destination faster"), "one lane: {:?}", told(&evidence));
        let listener = &mut evidence.listeners[0];
        listener.lanes.push(listener.lanes[0].clone());
        assert_told(&evidence, "sink_too_slow", 8000, "sink.archive.consumers = \"per_lane\"");
        evidence.listeners[0].sinks[0].delivered = 0;
        assert!(first(&evidence).cause.contains("took 0 %") && told(&evidence).2.starts_with("journalctl"));
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
        assert_told(&evidence, "sink_blocks", 1000, "sink.archive.when_full = \"drop_newest\"");
    }

    #[test]
    fn a_queue_that_is_full_and_drops_nothing_blocks_also_where_the_configuration_is_not_known() {
        let mut evidence = losing_listener();
        evidence.ports[0].sockets[0].full = 0.8;
        reader(&mut evidence).waited = Some(0.41);
        assert_eq!(told(&evidence).0, "reader_starved");
        let sink = &mut evidence.listeners[0].sinks[0];
        (sink.blocks, sink.is_full, sink.delivered) = (None, true, 0);
        assert_told(&evidence, "sink_blocks", 1000, "sink.archive.when_full = \"drop_newest\"");
    }

    #[test]
    fn what_a_listener_and_a_sink_drop_is_said_in_the_words_of_the_ledger() {
        let mut evidence = listening();
        let dropped = Dropped { reason: "truncated", help: "Longer.", cure: "Raise `max_length`.", count: 3 };
        evidence.listeners[0].dropped.push(dropped);
        assert_told(&evidence, "listener_dropped", 3, "Raise max_length.");
        evidence.listeners[0].sinks[0].sink_error = 5;
        assert_told(&evidence, "sink_refuses", 5, "journalctl -u udpd -n 50");
    }

    /// A listener whose two queues lost 1,000 frames of 11,000 within five seconds.
    fn losing() -> Evidence {
        let mut evidence = listening();
        let queue = |number| QueueEvidence { interface: "eth1".into(), number, frames: 128 };
        let lane = |lane, arrived, dropped| LaneEvidence { lane, arrived, dropped, ..LaneEvidence::default() };
        evidence.listeners[0].lanes = vec![
            lane(0, Some(0), Some(0)),
            LaneEvidence { queue: Some(queue(0)), ..lane(1, Some(10_000), Some(1000)) },
            LaneEvidence { queue: Some(queue(1)), ..lane(2, Some(1000), Some(0)) },
        ];
        evidence
    }

    #[test]
    fn a_queue_that_was_full_for_a_moment_gets_room_for_what_was_lost() {
        let finding = first(&losing());
        assert!(finding.cause.contains("receive queue 0 of eth1 was full"), "{finding:?}");
        // (128 + 2,000) frames of two queues at 2,200 a second.
        assert_told(&losing(), "queue_too_short", 1000, "listener.syslog.absorb = { rate = 2200, stall = \"1935ms\" }");
    }

    #[test]
    fn a_receiver_without_time_and_a_sink_that_blocks_are_told_instead() {
        let mut evidence = losing();
        reader(&mut evidence).ran = Some(0.97);
        assert!(first(&evidence).cause.contains("used 97 % of a core"), "{:?}", first(&evidence));
        let sink = &mut evidence.listeners[0].sinks[0];
        (sink.blocks, sink.delivered) = (Some(true), 5000);
        assert_eq!(told(&evidence).2, "sink.archive.when_full = \"drop_newest\"");
    }

    #[test]
    fn what_a_queue_lost_is_not_told_once_more_as_dropped_by_its_interface() {
        let mut reading = HostReading::default();
        reading.nic.entry("eth1".into()).or_default().link.rx_dropped = Some(1000);
        let evidence = |reading: &HostReading| Evidence { losses: Losses::of(reading).lost, ..losing() };
        let told: Vec<_> = diagnose(&evidence(&reading)).iter().map(|it| (it.case, it.lost)).collect();
        assert_eq!(told, [("queue_too_short", 1000)]);
        reading.nic.entry("eth1".into()).or_default().link.rx_dropped = Some(1005);
        let told: Vec<_> = diagnose(&evidence(&reading)).iter().map(|it| (it.case, it.lost)).collect();
        assert_eq!(told, [("queue_too_short", 1000), ("unexplained", 5)]);
    }
}
