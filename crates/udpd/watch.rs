//! What the main thread notices while the pipeline runs: losses, said once per interval with their layer and their cure.
//!
//! It compares two readings of the ledger. A line is written only when something was lost since the line before, so a host
//! that loses nothing logs nothing, and one that loses a million a second logs one line in ten seconds.

use crate::ledger::Snapshot;
use crate::ledger::snapshot::ListenerSnapshot;

/// Remembers the reading before.
#[derive(Debug, Default)]
pub struct LossWatch {
    before: Option<Snapshot>,
}

impl LossWatch {
    /// The lines that are due: what was lost between the last call and `now`.
    pub fn compare(&mut self, now: Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, listener) in now.listeners.iter().enumerate() {
            let before = self.before.as_ref().and_then(|before| before.listeners.get(index));
            losses(listener, before, &mut lines);
        }
        self.before = Some(now);
        lines
    }
}

fn losses(now: &ListenerSnapshot, before: Option<&ListenerSnapshot>, lines: &mut Vec<String>) {
    let name = &now.name;
    let mut say = |what: &str, count: u64, cure: &str| {
        if count > 0 {
            lines.push(format!("listener {name}: {what} {count} since the last report; {cure}"));
        }
    };
    let since = |field: fn(&ListenerSnapshot) -> u64| field(now).saturating_sub(before.map_or(0, field));
    say(
        "the kernel dropped",
        since(|listener| listener.kernel_dropped),
        "the receive buffer was full: raise receive_buffer or absorb, or add lanes",
    );
    say(
        "dropped as longer than max_length",
        since(|listener| listener.dropped.truncated),
        "raise max_length, or keep their heads with on_truncate = \"keep\"",
    );
    say("GRO trains that could not be split:", since(|listener| listener.dropped.unsplit), "set gro = \"off\"");
    say(
        "no batch was at hand for",
        since(|listener| listener.dropped.no_batch),
        "this is a bug of udpd: please report it",
    );
    for (place, sink) in now.sinks.iter().enumerate() {
        let earlier = before.and_then(|before| before.sinks.get(place));
        let full = sink.dropped.queue_full - earlier.map_or(0, |earlier| earlier.dropped.queue_full);
        let failed = sink.dropped.sink_error - earlier.map_or(0, |earlier| earlier.dropped.sink_error);
        say(
            &format!("sink {} was too slow for", sink.name),
            full,
            "raise its queue_batches for bursts, give it consumers = \"per_lane\", or make its destination faster",
        );
        say(&format!("sink {} could not deliver", sink.name), failed, "the error is logged where it began");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::snapshot::{HostSnapshot, ListenerDropped};

    fn reading(kernel_dropped: u64) -> Snapshot {
        Snapshot {
            version: String::new(),
            uptime_seconds: 0.0,
            host: HostSnapshot::default(),
            log_lines_lost: 0,
            listeners: vec![ListenerSnapshot {
                name: "syslog".into(),
                address: String::new(),
                arrived: 0,
                kernel_dropped,
                kernel_dropped_unit: String::new(),
                received: 0,
                bytes: 0,
                truncated: 0,
                dropped: ListenerDropped::default(),
                wrong_cpu: None,
                residual: 0,
                sinks: vec![],
                lanes: vec![],
            }],
        }
    }

    #[test]
    fn a_loss_is_said_once_with_its_layer_and_its_cure() {
        let mut watch = LossWatch::default();
        assert!(watch.compare(reading(0)).is_empty(), "nothing lost, nothing said");
        let lines = watch.compare(reading(744));
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].contains("listener syslog: the kernel dropped 744") && lines[0].contains("absorb"),
            "{lines:?}"
        );
        assert!(watch.compare(reading(744)).is_empty(), "what was said is not said again");
    }
}
