//! The running daemon's ledger as evidence: what was added between two readings of it, and what its configuration asks
//! for where that was read.

use crate::explain::evidence::{
    Dropped, LaneEvidence, ListenerEvidence, QueueEvidence, SinkEvidence, UpstreamEvidence,
};
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::snapshot::{LaneSnapshot, ListenerSnapshot, SinkSnapshot, Snapshot, UpstreamSnapshot};
use udpd_base::ledger::{CounterTable, SENDERS_SHOWN};
use udpd_engine::config::{Config, ReceiveBuffer};

/// The listeners that were there at both readings.
pub(super) fn listeners(before: &Snapshot, after: &Snapshot, config: Option<&Config>) -> Vec<ListenerEvidence> {
    let same = |now: &ListenerSnapshot| {
        let before =
            before.listeners.iter().find(|before| (&before.name, &before.address) == (&now.name, &now.address))?;
        Some(listener(before, now, config))
    };
    after.listeners.iter().filter_map(same).collect()
}

pub(super) fn ports(listener: &ListenerSnapshot) -> Vec<u16> {
    let port = |address: &str| Some(address.parse::<std::net::SocketAddr>().ok()?.port());
    listener.address.split(", ").filter_map(port).collect()
}

fn listener(before: &ListenerSnapshot, now: &ListenerSnapshot, config: Option<&Config>) -> ListenerEvidence {
    let dropped = now.counts.dropped.values().zip(before.counts.dropped.values());
    let dropped = dropped.filter(|((counter, _), _)| !counter.is_quiet).map(|((counter, now), (_, before))| Dropped {
        reason: counter.name,
        help: counter.help,
        cure: counter.cure,
        count: now.saturating_sub(before),
    });
    let denied = |listener: &ListenerSnapshot| listener.lanes.iter().filter_map(|lane| lane.denied_in_kernel).sum();
    let (denied_before, denied_now): (u64, u64) = (denied(before), denied(now));
    let lanes = now.lanes.iter().map(|lane| of_lane(lane, &before.lanes)).collect();
    let sinks = now.sinks.iter().map(|sink| of_sink(sink, &before.sinks, config)).collect();
    let written = config.and_then(|config| config.listeners.iter().find(|listener| listener.name == now.name));
    let asked = |written: &udpd_engine::config::ListenerConfig| match written.receive_buffer {
        ReceiveBuffer::Bytes(bytes) => Some(bytes as u64),
        ReceiveBuffer::Auto => None,
    };
    ListenerEvidence {
        name: now.name.clone(),
        ports: ports(now),
        arrived: difference(before.arrived, now.arrived),
        received: now.counts.received.saturating_sub(before.counts.received),
        bytes: now.counts.bytes.saturating_sub(before.counts.bytes),
        kernel_dropped_unit: now.kernel_dropped_unit.clone(),
        denied_in_kernel: denied_now.saturating_sub(denied_before),
        dropped: dropped.collect(),
        lanes,
        sinks,
        upstream: upstream(before.upstream.as_ref(), now.upstream.as_ref()),
        spread: written.map(|written| written.spread.name().to_owned()),
        asked_buffer_bytes: written.and_then(asked),
        stall_seconds: written.map(|written| written.absorb.stall.as_secs_f64()),
    }
}

fn difference(before: Option<u64>, now: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

/// What went missing meanwhile; where only bounds are known, the lower one. Listeners without `sequence` have none.
fn upstream(before: Option<&UpstreamSnapshot>, now: Option<&UpstreamSnapshot>) -> Option<UpstreamEvidence> {
    let (before, now) = (before?, now?);
    let unit = &now.unit;
    Some(match difference(before.missing, now.missing) {
        Some(missing) => UpstreamEvidence { missing: Some(missing), unit: unit.clone() },
        None => {
            let at_least = now.missing_at_least.saturating_sub(before.missing_at_least);
            UpstreamEvidence { missing: Some(at_least), unit: format!("{unit} at least") }
        }
    })
}

fn of_lane(now: &LaneSnapshot, before: &[LaneSnapshot]) -> LaneEvidence {
    let before = before.iter().find(|before| before.lane == now.lane);
    LaneEvidence {
        lane: now.lane,
        arrived: before.and_then(|before| difference(before.arrived, now.arrived)),
        dropped: before.and_then(|before| difference(before.kernel_dropped, now.kernel_dropped)),
        senders: (!now.senders.is_empty() && now.senders.len() < SENDERS_SHOWN).then_some(now.senders.len()),
        busiest: now.senders.first().map(|busiest| (busiest.address, busiest.share)),
        queue: now.xdp.as_ref().map(|xdp| QueueEvidence {
            interface: xdp.interface.clone(),
            number: now.queue.unwrap_or(0),
            frames: xdp.chunks,
        }),
    }
}

fn of_sink(now: &SinkSnapshot, before: &[SinkSnapshot], config: Option<&Config>) -> SinkEvidence {
    let before = before.iter().find(|before| before.name == now.name);
    let since = |field: fn(&SinkSnapshot) -> u64| field(now).saturating_sub(before.map_or(0, field));
    let written = config.and_then(|config| config.sinks.iter().find(|sink| sink.name == now.name));
    SinkEvidence {
        name: now.name.clone(),
        offered: since(|sink| sink.offered),
        delivered: since(|sink| sink.counts.delivered),
        queue_full: since(|sink| sink.counts.dropped.queue_full),
        sink_error: since(|sink| sink.counts.dropped.by_destination()),
        queue_bytes: now.queue_capacity,
        is_full: now.queue_capacity > 0 && now.queue_depth >= now.queue_capacity / 4 * 3,
        blocks: written.map(|sink| sink.when_full == FullPolicy::Block),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::ledger::counter_list::UpstreamTally;

    fn missing(missing: Option<u64>, missing_at_least: u64) -> UpstreamSnapshot {
        UpstreamSnapshot {
            unit: "flows".into(),
            missing,
            missing_at_least,
            missing_at_most: 1000,
            counts: UpstreamTally::default(),
            unseen: 0,
            unnumbered: 0,
            worst: Vec::new(),
        }
    }

    #[test]
    fn what_went_missing_meanwhile_is_the_number_or_the_lower_bound() {
        let told = |before, now| upstream(Some(&before), Some(&now)).expect("numbers");
        let exactly = told(missing(Some(3), 1), missing(Some(10), 2));
        assert_eq!(exactly, UpstreamEvidence { missing: Some(7), unit: "flows".into() });
        let at_least = told(missing(Some(3), 1), missing(None, 5));
        assert_eq!(at_least, UpstreamEvidence { missing: Some(4), unit: "flows at least".into() });
        assert_eq!(upstream(None, Some(&missing(Some(1), 1))), None);
    }
}
