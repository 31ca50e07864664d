//! The ledger for Prometheus: one table says what each metric is called, what it means and where its values come from.
//!
//! Values are read from a [`Snapshot`] when somebody asks, so a scrape shows the same sums as `udpd stats`. No label
//! ever holds a source address: senders must not be able to decide how many time series there are.

mod http;

use std::collections::BTreeSet;
use std::fmt::{Display, Write};

use crate::ledger::Snapshot;
use crate::ledger::snapshot::{DestinationSnapshot, FilesSnapshot, SinkSnapshot, Takes};
pub use http::{MetricsHandle, MetricsServer};

/// What a metric's value does over time.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Only grows, until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric. Its samples are all read from the same snapshot.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: fn(&Snapshot, &mut Samples<'_>),
}

/// Every metric there is, in the order of the output.
const METRICS: &[Metric] = &[
    Metric {
        name: "udpd_build_info",
        kind: Kind::Gauge,
        help: "Always 1; the label says which version runs.",
        samples: |snapshot, to| to.add(&[("version", &snapshot.version)], 1),
    },
    Metric {
        name: "udpd_uptime_seconds",
        kind: Kind::Gauge,
        help: "Time since the process started.",
        samples: |snapshot, to| to.add(&[], snapshot.uptime_seconds),
    },
    Metric {
        name: "udpd_log_lines_lost_total",
        kind: Kind::Counter,
        help: "Log lines that could not be written because stderr was full or closed.",
        samples: |snapshot, to| to.add(&[], snapshot.log_lines_lost),
    },
    Metric {
        name: "udpd_received_datagrams_total",
        kind: Kind::Counter,
        help: "Datagrams read from the sockets.",
        samples: |snapshot, to| {
            each_lane(snapshot, |listener, lane, lane_label| {
                to.add(&[("listener", listener), ("lane", lane_label)], lane.received);
            });
        },
    },
    Metric {
        name: "udpd_received_bytes_total",
        kind: Kind::Counter,
        help: "Payload bytes read from the sockets.",
        samples: |snapshot, to| {
            for listener in &snapshot.listeners {
                to.add(&[("listener", &listener.name)], listener.bytes);
            }
        },
    },
    Metric {
        name: "udpd_receive_calls_total",
        kind: Kind::Counter,
        help: "Receive calls that returned datagrams.",
        samples: |snapshot, to| {
            each_lane(snapshot, |listener, lane, lane_label| {
                to.add(&[("listener", listener), ("lane", lane_label)], lane.calls);
            });
        },
    },
    Metric {
        name: "udpd_truncated_datagrams_total",
        kind: Kind::Counter,
        help: "Datagrams longer than max_length, whether their head was kept or they were dropped.",
        samples: |snapshot, to| {
            for listener in &snapshot.listeners {
                to.add(&[("listener", &listener.name)], listener.truncated);
            }
        },
    },
    Metric {
        name: "udpd_dropped_datagrams_total",
        kind: Kind::Counter,
        help: "Datagrams lost, by the layer that lost them and why. In layer kernel of a listener with gro the \
               kernel counts buffers, each of which may hold many datagrams.",
        samples: dropped,
    },
    Metric {
        name: "udpd_sink_delivered_datagrams_total",
        kind: Kind::Counter,
        help: "Datagrams that a sink has handed on.",
        samples: |snapshot, to| {
            each_sink(snapshot, |listener, sink| {
                to.add(&[("listener", listener), ("sink", &sink.name)], sink.delivered);
            });
        },
    },
    Metric {
        name: "udpd_sink_unsynced_bytes",
        kind: Kind::Gauge,
        help: "Bytes written to files that a power loss could take.",
        samples: |snapshot, to| each_file_sink(snapshot, |sink, files| to.add(&[("sink", sink)], files.unsynced_bytes)),
    },
    Metric {
        name: "udpd_sink_doubtful_bytes_total",
        kind: Kind::Counter,
        help: "Bytes written to files that udpd could not sync to the disk.",
        samples: |snapshot, to| each_file_sink(snapshot, |sink, files| to.add(&[("sink", sink)], files.doubtful_bytes)),
    },
    Metric {
        name: "udpd_sink_sync_failures_total",
        kind: Kind::Counter,
        help: "Files that udpd could not sync to the disk and set aside.",
        samples: |snapshot, to| each_file_sink(snapshot, |sink, files| to.add(&[("sink", sink)], files.sync_failures)),
    },
    Metric {
        name: "udpd_relay_sent_datagrams_total",
        kind: Kind::Counter,
        help: "Datagrams that the kernel took for a destination.",
        samples: |snapshot, to| {
            each_destination(snapshot, |sink, destination| {
                to.add(&[("sink", sink), ("destination", &destination.address)], destination.sent);
            });
        },
    },
    Metric {
        name: "udpd_relay_icmp_errors_total",
        kind: Kind::Counter,
        help: "Errors with which the network answered for a destination, such as that nobody listens.",
        samples: |snapshot, to| {
            each_destination(snapshot, |sink, destination| {
                to.add(&[("sink", sink), ("destination", &destination.address)], destination.icmp_errors);
            });
        },
    },
    Metric {
        name: "udpd_ledger_residual_datagrams",
        kind: Kind::Gauge,
        help: "Datagrams that the ledger cannot account for; anything but 0 is a bug of udpd. Absent where a term is \
               unknown.",
        samples: |snapshot, to| {
            for listener in &snapshot.listeners {
                to.add_known(&[("listener", &listener.name)], listener.residual);
            }
        },
    },
    Metric {
        name: "udpd_foreign_sockets",
        kind: Kind::Gauge,
        help: "Sockets of other processes that take datagrams sent to this listener. Absent when udpd cannot see them.",
        samples: |snapshot, to| {
            for listener in &snapshot.listeners {
                let Some(sharers) = &listener.shared_with else { continue };
                let taking = sharers.iter().filter(|sharer| sharer.takes != Takes::Nothing);
                to.add(&[("listener", &listener.name)], taking.map(|sharer| sharer.sockets).sum::<u64>());
            }
        },
    },
    Metric {
        name: "udpd_wrong_cpu_datagrams_total",
        kind: Kind::Counter,
        help: "Datagrams that arrived on another core than planned. Absent without a plan, or without the permission \
               to count. For a listener with gro the kernel counts buffers, each of which may hold many datagrams.",
        samples: |snapshot, to| {
            each_lane(snapshot, |listener, lane, lane_label| {
                to.add_known(&[("listener", listener), ("lane", lane_label)], lane.wrong_cpu);
            });
        },
    },
    Metric {
        name: "udpd_queue_depth",
        kind: Kind::Gauge,
        help: "Batches waiting for a sink.",
        samples: |snapshot, to| {
            each_sink(snapshot, |listener, sink| {
                to.add(&[("listener", listener), ("sink", &sink.name)], sink.queue_depth);
            });
        },
    },
    Metric {
        name: "udpd_queue_capacity",
        kind: Kind::Gauge,
        help: "Batches that can wait for a sink before when_full decides.",
        samples: |snapshot, to| {
            each_sink(snapshot, |listener, sink| {
                to.add(&[("listener", listener), ("sink", &sink.name)], sink.queue_capacity);
            });
        },
    },
    Metric {
        name: "udpd_socket_receive_buffer_used_bytes",
        kind: Kind::Gauge,
        help: "How much of a socket's receive buffer is in use, as the kernel accounts.",
        samples: |snapshot, to| {
            each_lane(snapshot, |listener, lane, lane_label| {
                to.add(&[("listener", listener), ("lane", lane_label)], lane.receive_buffer_used_bytes);
            });
        },
    },
    Metric {
        name: "udpd_socket_receive_buffer_max_bytes",
        kind: Kind::Gauge,
        help: "The size of a socket's receive buffer as granted, which is twice the value set.",
        samples: |snapshot, to| {
            each_lane(snapshot, |listener, lane, lane_label| {
                to.add(&[("listener", listener), ("lane", lane_label)], lane.receive_buffer_bytes);
            });
        },
    },
];

fn dropped(snapshot: &Snapshot, to: &mut Samples<'_>) {
    for listener in &snapshot.listeners {
        let name = listener.name.as_str();
        to.add_known(&[("listener", name), ("layer", "kernel"), ("reason", "socket")], listener.kernel_dropped);
        let dropped = &listener.dropped;
        for (reason, count) in [
            ("truncated", dropped.truncated),
            ("denied", dropped.denied),
            ("rate_limited", dropped.rate_limited),
            ("no_batch", dropped.no_batch),
            ("unsplit", dropped.unsplit),
            ("unread", dropped.unread),
        ] {
            to.add(&[("listener", name), ("layer", "listener"), ("reason", reason)], count);
        }
        for sink in &listener.sinks {
            for (reason, count) in [("queue_full", sink.dropped.queue_full), ("sink_error", sink.dropped.sink_error)] {
                let labels = [("listener", name), ("layer", "sink"), ("sink", sink.name.as_str()), ("reason", reason)];
                to.add(&labels, count);
            }
        }
    }
}

fn each_lane(snapshot: &Snapshot, mut visit: impl FnMut(&str, &crate::ledger::snapshot::LaneSnapshot, &str)) {
    for listener in &snapshot.listeners {
        for lane in &listener.lanes {
            visit(&listener.name, lane, &lane.lane.to_string());
        }
    }
}

fn each_sink(snapshot: &Snapshot, mut visit: impl FnMut(&str, &SinkSnapshot)) {
    for listener in &snapshot.listeners {
        for sink in &listener.sinks {
            visit(&listener.name, sink);
        }
    }
}

/// Every sink once, although it stands under each listener that feeds it.
fn each_sink_once(snapshot: &Snapshot, mut visit: impl FnMut(&SinkSnapshot)) {
    let mut seen = BTreeSet::new();
    for sink in snapshot.listeners.iter().flat_map(|listener| &listener.sinks) {
        if seen.insert(&sink.name) {
            visit(sink);
        }
    }
}

fn each_file_sink(snapshot: &Snapshot, mut visit: impl FnMut(&str, &FilesSnapshot)) {
    each_sink_once(snapshot, |sink| sink.files.iter().for_each(|files| visit(&sink.name, files)));
}

fn each_destination(snapshot: &Snapshot, mut visit: impl FnMut(&str, &DestinationSnapshot)) {
    each_sink_once(snapshot, |sink| sink.destinations.iter().for_each(|destination| visit(&sink.name, destination)));
}

/// Where the samples of one metric are written.
struct Samples<'a> {
    name: &'static str,
    text: &'a mut String,
}

impl Samples<'_> {
    /// A value that nobody knows is absent, never 0.
    fn add_known(&mut self, labels: &[(&str, &str)], value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(labels, value);
        }
    }

    fn add(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.name);
        for (position, (label, content)) in labels.iter().enumerate() {
            self.text.push(if position == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            push_escaped(self.text, content);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, " {value}");
    }
}

/// Writes a label value so that nothing in it can end it.
fn push_escaped(text: &mut String, content: &str) {
    for character in content.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

/// The whole ledger in the text format of Prometheus, version 0.0.4.
pub fn exposition(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let mut samples = String::new();
        (metric.samples)(snapshot, &mut Samples { name: metric.name, text: &mut samples });
        if !samples.is_empty() {
            let _ = write!(text, "# HELP {0} {1}\n# TYPE {0} {kind}\n{samples}", metric.name, metric.help);
        }
    }
    text
}

#[cfg(test)]
mod tests;
