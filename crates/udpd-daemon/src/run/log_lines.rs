//! The log lines of a daemon about itself: its lanes, its memory, and its ledger.

use udpd_base::ledger::CounterTable as _;
use udpd_base::ledger::snapshot::{ListenerSnapshot, Snapshot};
use udpd_engine::pipeline::{Lane, Pipeline};
use udpd_engine::plan::buffers;

pub(super) fn log_lane(lane: &Lane) {
    let Lane { setup, address, core, .. } = lane;
    let (plan, name) = (&setup.plan, &setup.listener.name);
    let place = match (core, plan.node) {
        (Some(core), Some(node)) => format!("core {core}, node {node}"),
        (Some(core), None) => format!("core {core}"),
        (None, _) => "any core".to_owned(),
    };
    if plan.is_first_of_its_engine() {
        log::info!("listener {name}: engine {}: {}", plan.engine.kind, plan.engine.why);
    }
    let Some(buffer) = &lane.buffer else {
        let covers = plan.covered(0).as_secs_f64() * 1000.0;
        let (queue, bytes) = (plan.intake.queue.unwrap_or(0), plan.ring_bytes());
        log::info!(
            "{setup}: receive queue {queue}, {place}, {bytes} bytes for frames that wait, covers {covers:.1} ms at {}/s",
            plan.rate
        );
        return;
    };
    log::info!(
        "{setup}: {address}, {place}, receive buffer {} bytes requested, {} granted, covers \
         {:.1} ms at {}/s",
        2 * buffer.asked_bytes,
        buffer.granted_bytes,
        plan.covered(buffer.granted_bytes).as_secs_f64() * 1000.0,
        plan.rate
    );
    if plan.number == 0 && buffer.is_clamped() {
        log::warn!(
            "listener {name}: the kernel granted {} of {} bytes of receive buffer; {}",
            buffer.granted_bytes,
            2 * buffer.asked_bytes,
            buffers::buffer_cure(buffer.asked_bytes)
        );
    }
}

/// One warning for all memory that lies in ordinary pages.
pub(super) fn log_small_pages(pipeline: &Pipeline) {
    if let [why, ..] = pipeline.reasons_for_small_pages().as_slice() {
        log::warn!("memory for datagrams is not in huge pages: {why}");
    }
}

/// Warns where another program decides which socket gets a datagram: it may give none to a socket that was kept.
pub(super) fn log_foreign_group_owner(pipeline: &Pipeline) {
    let Some(lane) = pipeline.lanes().iter().find(|lane| lane.socket().is_some_and(|socket| socket.group_has_owner()))
    else {
        return;
    };
    log::warn!(
        "{}: another program owns the groups of sockets here, as udpgrm does (it answers option 200 of UDP): it, and \
         not spread, decides which lane gets a datagram, and udpd's sockets that are kept over a restart may get \
         none; run udpd outside of the control group that it is attached to",
        lane.setup
    );
}

/// A line for each listener: where its datagrams are. These are also the last lines.
pub(super) fn log_ledger(snapshot: &Snapshot) {
    for listener in &snapshot.listeners {
        log::info!("{}", account(listener));
    }
}

/// Where the datagrams of a listener are.
fn account(listener: &ListenerSnapshot) -> String {
    let sinks = listener.sinks.iter().map(|sink| {
        let (delivered, dropped) = (sink.counts.delivered, sink.counts.dropped.total());
        let spilled = match sink.counts.spilled {
            0 => String::new(),
            spilled => format!(", waiting in its spill {spilled}"),
        };
        format!("; sink {}: delivered {delivered}, dropped {dropped}{spilled}", sink.name)
    });
    format!(
        "listener {}: arrived {}, dropped by the kernel {}, received {}{}; residual {}",
        listener.name,
        known(listener.arrived),
        known(listener.kernel_dropped),
        listener.counts.received,
        sinks.collect::<String>(),
        known(listener.residual)
    )
}

fn known(count: Option<impl ToString>) -> String {
    count.map_or_else(|| "not known".to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::ledger::testing::example;

    #[test]
    fn the_last_line_says_what_waits_in_a_spill_where_something_does() {
        let mut listener = example().listeners.remove(0);
        assert!(!account(&listener).contains("spill"), "{}", account(&listener));
        listener.sinks[1].counts.spilled = 7;
        let line = account(&listener);
        assert_eq!(line.matches(", waiting in its spill 7").count(), 1, "{line}");
        assert!(line.ends_with("waiting in its spill 7; residual 0"), "it stands beside the other terms: {line}");
    }
}
