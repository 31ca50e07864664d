//! A receive queue past the kernel's stack had no room for a frame: its receiver emptied it too late or too slowly.

use super::reader::BUSY;
use crate::explain::evidence::Evidence;
use crate::explain::finding::{Cure, Finding, Layer};
use crate::explain::sums::{STALL_SECONDS, percent, time};
use udpd_base::text::tables::grouped;

/// What `absorb` asks for at most: longer stalls are no bursts.
const STALL_SECONDS_MAX: f64 = 60.0;

/// What the receive queues of an interface lost. The kernel counts it among the interface's dropped packets as well.
pub fn lost_at(evidence: &Evidence, interface: &str) -> u64 {
    let lanes = evidence.listeners.iter().flat_map(|listener| &listener.lanes);
    let own = lanes.filter(|lane| lane.queue.as_ref().is_some_and(|queue| queue.interface == interface));
    own.filter_map(|lane| lane.dropped).sum()
}

pub fn too_short(evidence: &Evidence) -> Vec<Finding> {
    let told = evidence.listeners.iter().filter_map(|listener| {
        let own = || listener.lanes.iter().filter_map(|lane| Some((lane, lane.queue.as_ref()?)));
        let lost: u64 = own().filter_map(|(lane, _)| lane.dropped).sum();
        let (lane, queue) = own().max_by_key(|(lane, _)| lane.dropped).filter(|_| lost > 0)?;
        let subject = format!("listener {} ({})", listener.name, queue.interface);
        let finding = Finding::new("queue_too_short", Layer::Socket, subject, (lost, "frames"));
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
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{first, losing_listener, told};
    use crate::explain::evidence::{Evidence, Lane, Queue};
    use hostloss::{HostReading, Losses};

    /// A listener whose two queues lost 1,000 frames of 11,000 within five seconds.
    fn losing() -> Evidence {
        let mut evidence = losing_listener();
        evidence.ports[0].sockets[0].dropped = 0;
        evidence.stack.rcvbuf_errors = Some(0);
        let queue = |number| Queue { interface: "eth1".into(), number, frames: 128 };
        let lane = |lane, arrived, dropped| Lane { lane, arrived, dropped, ..Lane::default() };
        evidence.listeners[0].lanes = vec![
            lane(0, Some(0), Some(0)),
            Lane { queue: Some(queue(0)), ..lane(1, Some(10_000), Some(1000)) },
            Lane { queue: Some(queue(1)), ..lane(2, Some(1000), Some(0)) },
        ];
        evidence
    }

    #[test]
    fn a_queue_that_was_full_for_a_moment_gets_room_for_what_was_lost() {
        let finding = first(&losing());
        assert!(finding.cause.contains("receive queue 0 of eth1 was full"), "{finding:?}");
        // (128 + 2,000) frames of two queues at 2,200 a second.
        let cure = "listener.syslog.absorb = { rate = 2200, stall = \"1935ms\" }".to_owned();
        assert_eq!(told(&losing()), ("queue_too_short", 1000, cure));
    }

    #[test]
    fn a_receiver_without_time_and_a_sink_that_blocks_are_told_instead() {
        let mut evidence = losing();
        evidence.ports[0].reader.as_mut().expect("a reader").ran = Some(0.97);
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
