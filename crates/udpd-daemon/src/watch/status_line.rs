//! The status line of the service manager: what `systemctl status` says at a glance, without asking the daemon.
//!
//! Rates are of the time between two readings, and the sums since the start stand behind them: a loss of last night is
//! still to be seen in the morning. A line that says the same as the last one is not sent again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sink_stalls;
use udpd_base::ledger::{CounterTable as _, Snapshot};
use udpd_base::text::tables::grouped;

/// What was said last, and of which reading.
#[derive(Debug, Default)]
pub struct StatusLine {
    before: StatusSums,
    said: String,
}

/// All listeners together.
#[derive(Debug, Clone, Copy, Default)]
struct StatusSums {
    uptime_seconds: f64,
    received: u64,
    kernel_dropped: Option<u64>,
    /// For a reason that udpd itself counts, in a lane or at a sink.
    dropped: u64,
}

impl StatusSums {
    fn of(snapshot: &Snapshot) -> Self {
        let listeners = &snapshot.listeners;
        let dropped_by_lanes: u64 = listeners.iter().map(|listener| listener.counts.dropped.total()).sum();
        let sinks = listeners.iter().flat_map(|listener| &listener.sinks);
        Self {
            uptime_seconds: snapshot.uptime_seconds,
            received: listeners.iter().map(|listener| listener.counts.received).sum(),
            kernel_dropped: listeners.iter().map(|listener| listener.kernel_dropped).sum(),
            dropped: dropped_by_lanes + sinks.map(|sink| sink.counts.dropped.total()).sum::<u64>(),
        }
    }
}

impl StatusLine {
    /// The line that is due after this reading, unless it is the last one again. It begins with the sinks that take
    /// nothing.
    pub fn after(&mut self, snapshot: &Snapshot, stalled: &BTreeMap<&str, Duration>) -> Option<&str> {
        let takes_nothing = |(sink, lasts): (&&str, &Duration)| {
            let in_flight = grouped(sink_stalls::in_flight(snapshot, sink));
            format!("sink {sink} takes nothing for {} s, {in_flight} in flight; ", lasts.as_secs())
        };
        let unready = snapshot.readiness.as_ref().filter(|readiness| !readiness.ready);
        let unready = unready.map(|readiness| format!("not ready ({}): {}; ", readiness.reason, readiness.text));
        let stalled = stalled.iter().map(takes_nothing).collect::<String>();
        let line = unready.unwrap_or_default() + &stalled + &self.line(StatusSums::of(snapshot));
        if line == self.said {
            return None;
        }
        self.said = line;
        Some(&self.said)
    }

    fn line(&mut self, now: StatusSums) -> String {
        let before = std::mem::replace(&mut self.before, now);
        let seconds = now.uptime_seconds - before.uptime_seconds;
        // The first reading stands on the start, when the kernel had dropped nothing.
        let kernel_before = if before.uptime_seconds > 0.0 { before.kernel_dropped } else { Some(0) };
        let rate = |now: u64, before: u64| match seconds > 0.0 {
            true => grouped((now.saturating_sub(before) as f64 / seconds).round() as u64),
            false => "0".to_owned(),
        };
        let unknown = || "not known".to_owned();
        let kernel_rate = now.kernel_dropped.zip(kernel_before);
        format!(
            "receives {}/s; drops {}/s, the kernel {}; since the start {} received, {} dropped, by the kernel {}",
            rate(now.received, before.received),
            rate(now.dropped, before.dropped),
            kernel_rate.map_or_else(unknown, |(now, before)| format!("{}/s", rate(now, before))),
            grouped(now.received),
            grouped(now.dropped),
            now.kernel_dropped.map_or_else(unknown, grouped),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(uptime_seconds: f64, received: u64, kernel_dropped: Option<u64>, dropped: u64) -> StatusSums {
        StatusSums { uptime_seconds, received, kernel_dropped, dropped }
    }

    #[test]
    fn rates_are_of_the_time_since_the_last_line_and_sums_of_all_time() {
        let mut status = StatusLine::default();
        assert_eq!(
            status.line(sums(10.0, 20_000, Some(50), 0)),
            "receives 2,000/s; drops 0/s, the kernel 5/s; since the start 20,000 received, 0 dropped, by the kernel 50"
        );
        assert_eq!(
            status.line(sums(20.0, 50_000, Some(50), 10)),
            "receives 3,000/s; drops 1/s, the kernel 0/s; since the start 50,000 received, 10 dropped, by the kernel 50"
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_nothing() {
        let mut status = StatusLine::default();
        let line = status.line(sums(10.0, 0, None, 0));
        assert!(line.contains("the kernel not known;") && line.ends_with("by the kernel not known"), "{line}");
    }

    #[test]
    fn the_same_line_is_not_said_again() {
        let mut status = StatusLine::default();
        let mut snapshot = Snapshot {
            version: String::new(),
            uptime_seconds: 10.0,
            before: None,
            listeners: Vec::new(),
            host: hostloss::HostReading::default(),
            log_lines_lost: 0,
            last_reload: None,
            draining_since: None,
            readiness: None,
            drain: None,
        };
        assert!(status.after(&snapshot, &BTreeMap::new()).is_some());
        snapshot.uptime_seconds = 20.0;
        assert_eq!(status.after(&snapshot, &BTreeMap::new()), None);
        let stalled = BTreeMap::from([("archive", Duration::from_secs(14))]);
        let line = status.after(&snapshot, &stalled).expect("it says something else");
        assert!(line.starts_with("sink archive takes nothing for 14 s, 0 in flight; receives 0/s"), "{line}");
    }
}
