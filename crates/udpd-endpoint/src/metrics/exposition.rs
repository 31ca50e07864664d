//! The ledger as Prometheus reads it. The counters are those of the ledger's tables, by their names there; what udpd
//! measures beside them has its name and its meaning here.
//!
//! Values are read from a [`Snapshot`] when a scraper asks, so a scrape shows the same sums as `udpd stats`. No label
//! ever holds a source address: senders must not be able to decide how many time series there are. For the host their
//! number is bounded by the number of cores, and by [`INTERFACES_MAX`] for interfaces, of which a host with containers
//! has hundreds. Those that were there first are shown.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};

use hostloss::{HostReading, InterfaceReading, KernelCounter, KernelTable};
use udpd_base::ledger::counter_list::KERNEL_DROPPED;
use udpd_base::ledger::snapshot::{
    BeforeSnapshot, LaneSnapshot, ListenerSnapshot, SinkSnapshot, Snapshot, Takes, UpstreamSnapshot,
};
use udpd_base::ledger::{ConnectionState, CounterTable, LedgerCounter, ResidenceSnapshot};

/// What all drops have in common, whatever their reason.
const DROPPED_HELP: &str = "Datagrams lost, by the layer that lost them and why. In layer kernel of a listener with \
                            gro the kernel counts buffers, each of which may hold many datagrams.";

/// The most interfaces with samples of their own.
const INTERFACES_MAX: usize = 32;

/// Each loss once, so that its sum means something. The metrics below show the kernel's counters as they are.
const HOST_LOST: (&str, &str) = (
    "udpd_host_lost_total",
    "Packets and buffers that this host lost since udpd started, each once, by the layer, the kernel's counter and the \
     place. Layers below udp count all protocols, layers udp and socket all programs of this network namespace. Of the \
     first 32 interfaces.",
);
const HOST_EVENTS: (&str, &str) = (
    "udpd_host_events_total",
    "What the kernel counted since udpd started, by layer, counter and place. Some counters contain others: do not sum \
     them. Of the first 32 interfaces.",
);
const HOST_SOFTNET: (&str, &str) =
    ("udpd_host_softnet_total", "What each core did with packets since udpd started, by the kernel's counter.");
const HOST_STATE: (&str, &str) =
    ("udpd_host_state", "What the kernel holds now and what it allows: memory of UDP sockets, sockets, connections.");
const HOST_UNSEEN: (&str, &str) = (
    "udpd_host_unseen_losses",
    "How many kinds of loss cannot be seen on this host; host.lost.unseen in JSON names them.",
);

/// The whole ledger in the text format of Prometheus, version 0.0.4.
pub fn exposition(snapshot: &Snapshot) -> String {
    let mut to = Exposition::default();
    to.add("udpd_build_info", "Always 1; the label says which version runs.", &[("version", &snapshot.version)], 1);
    to.add("udpd_uptime_seconds", "Time since the process started.", &[], snapshot.uptime_seconds);
    let help = "Log lines that could not be written because stderr was full or closed.";
    to.add("udpd_log_lines_lost_total", help, &[], snapshot.log_lines_lost);
    if let Some(before) = &snapshot.before {
        add_before(&mut to, before);
    }
    if let Some(readiness) = &snapshot.readiness {
        let help = "Whether udpd is ready for datagrams (1) or not (0); readiness in JSON says why not.";
        to.add("udpd_ready", help, &[], u8::from(readiness.ready));
    }
    let mut seen = BTreeSet::new();
    for listener in &snapshot.listeners {
        add_listener(&mut to, listener);
        for lane in &listener.lanes {
            add_lane(&mut to, &[("listener", &listener.name), ("lane", &lane.lane.to_string())], lane);
        }
        for sink in &listener.sinks {
            add_sink(&mut to, &[("listener", &listener.name), ("sink", &sink.name)], sink);
            // These stand under each listener that feeds the sink, and are of all of them together.
            if seen.insert(&sink.name) {
                add_whole_sink(&mut to, sink);
            }
        }
    }
    add_host(&mut to, &snapshot.host);
    to.text()
}

/// What the process before may have lost.
fn add_before(to: &mut Exposition, before: &BeforeSnapshot) {
    let help = "Datagrams that the process before had room for when it was killed, so that it lost no more; 0 when it \
                has ended by itself. Absent where nothing is known of one.";
    let mut add = |name: &'static str, help: &'static str, count: Option<u64>| {
        count.into_iter().for_each(|count| to.add(name, help, &[], count));
    };
    add("udpd_before_lost_datagrams_at_most", help, before.lost_datagrams_at_most);
    let help = "The memory that these were in. Absent where nothing is known of one.";
    add("udpd_before_lost_bytes_at_most", help, before.lost_bytes_at_most);
    let help = "What the kernel had dropped at the sockets of the process before when it looked last before it was \
                killed; 0 when it has ended by itself. Absent where nothing is known of it.";
    add("udpd_before_kernel_dropped", help, before.kernel_dropped);
    let help = "What the process before had dropped itself when it looked last before it was killed; 0 when it has \
                ended by itself. Absent where nothing is known of it.";
    add("udpd_before_dropped", help, before.dropped);
}

fn add_listener(to: &mut Exposition, listener: &ListenerSnapshot) {
    let labels = [("listener", listener.name.as_str())];
    to.add_table(&labels, listener.counts.values().filter(|(counter, _)| !counter.by_lane));
    to.add_table(&labels, listener.kernel_dropped.map(|count| (&KERNEL_DROPPED, count)));
    to.add_table(&labels, listener.counts.dropped.values());
    if let Some(between) = listener.kernel_dropped_between {
        let help = "What the kernel dropped between the last look of the process before and the start of this one; in \
                    no other metric. Absent where no socket is of that process.";
        to.add("udpd_dropped_between_processes", help, &labels, between);
    }
    if let Some(residual) = listener.residual {
        let help = "Datagrams that the ledger cannot account for; anything but 0 is a bug of udpd. Absent where \
                    a term is unknown.";
        to.add("udpd_ledger_residual_datagrams", help, &labels, residual);
    }
    if let Some(upstream) = &listener.upstream {
        add_upstream(to, &listener.name, upstream);
    }
    if let Some(sharers) = &listener.shared_with {
        let help = "Sockets of other processes that take datagrams sent to this listener. Absent when udpd cannot \
                    see them.";
        let taking = sharers.iter().filter(|sharer| sharer.takes != Takes::Nothing);
        to.add("udpd_foreign_sockets", help, &labels, taking.map(|sharer| sharer.sockets).sum::<u64>());
    }
}

/// What never reached this host, in the unit of the label.
fn add_upstream(to: &mut Exposition, listener: &str, upstream: &UpstreamSnapshot) {
    let labels = [("listener", listener), ("unit", upstream.unit.as_str())];
    if let Some(missing) = upstream.missing {
        let help = "What was sent and never reached this host, by the numbers that the datagrams carry. Falls where \
                    something comes late. Absent where only bounds are known.";
        to.add("udpd_upstream_missing", help, &labels, missing);
    }
    let help = "What surely never reached this host: the gaps, less all that this host may have lost itself.";
    to.add("udpd_upstream_missing_at_least", help, &labels, upstream.missing_at_least);
    let help = "What may never have reached this host: the gaps, less what this host surely lost itself.";
    to.add("udpd_upstream_missing_at_most", help, &labels, upstream.missing_at_most);
    to.add_table(&labels, upstream.counts.values());
    let help = "Datagrams received whose numbers udpd had no time to follow.";
    to.add("udpd_upstream_unseen_datagrams_total", help, &labels[..1], upstream.unseen);
    let help = "Datagrams received without the number that `sequence` names.";
    to.add("udpd_upstream_unnumbered_datagrams_total", help, &labels[..1], upstream.unnumbered);
}

fn add_lane(to: &mut Exposition, labels: &[(&str, &str)], lane: &LaneSnapshot) {
    to.add_table(labels, lane.counts.values().filter(|(counter, _)| counter.by_lane));
    if let Some(wrong) = lane.wrong_cpu {
        let help = "Datagrams that arrived on another core than planned. Absent without a plan, or without the \
                    permission to count. For a listener with gro the kernel counts buffers, each of which may hold \
                    many datagrams.";
        to.add("udpd_wrong_cpu_datagrams_total", help, labels, wrong);
    }
    let help = "How much of a socket's receive buffer is in use, as the kernel accounts.";
    to.add("udpd_socket_receive_buffer_used_bytes", help, labels, lane.receive_buffer_used_bytes);
    let help = "The size of a socket's receive buffer as granted, which is twice the value set.";
    to.add("udpd_socket_receive_buffer_max_bytes", help, labels, lane.receive_buffer_bytes);
}

fn add_sink(to: &mut Exposition, labels: &[(&str, &str)], sink: &SinkSnapshot) {
    to.add_table(labels, sink.counts.values());
    to.add_table(labels, sink.counts.dropped.values());
    to.add("udpd_queue_depth", "Bytes of the pool that what waits for a sink takes.", labels, sink.queue_depth);
    let help = "Bytes of the pool that it can take before when_full decides, if nothing else waits.";
    to.add("udpd_queue_capacity", help, labels, sink.queue_capacity);
}

fn add_whole_sink(to: &mut Exposition, sink: &SinkSnapshot) {
    let label = ("sink", sink.name.as_str());
    if let Some(residence) = &sink.residence {
        to.add_residence(&[label], residence);
    }
    if let Some(files) = &sink.files {
        to.add_table(&[label], files.counts.values());
    }
    for destination in &sink.destinations {
        to.add_table(&[label, ("destination", &destination.address)], destination.counts.values());
    }
    for state in ConnectionState::ALL {
        let connections = &sink.peers.connections;
        if !connections.is_empty() {
            let help = "Connections of a sink to its servers, by whether the last attempt to connect or to send \
                        succeeded (up) or not (down).";
            let count = connections.iter().filter(|connection| connection.state == state).count();
            to.add("udpd_sink_connections", help, &[label, ("state", state.name())], count);
        }
    }
    if !sink.peers.connections.is_empty() {
        let help = "Datagrams on their way to the servers of a sink, not answered or acknowledged yet.";
        let sum: u64 = sink.peers.connections.iter().map(|connection| connection.on_the_way).sum();
        to.add("udpd_sink_on_the_way_datagrams", help, &[label], sum);
    }
    for refusal in &sink.peers.refusals {
        let help = "Datagrams that servers have refused for good, by the kind of their reason: a status, a code or a \
                    name of theirs.";
        let labels = [label, ("reason", refusal.reason.as_str())];
        to.add("udpd_sink_refused_datagrams_total", help, &labels, refusal.datagrams);
    }
}

fn add_host(to: &mut Exposition, host: &HostReading) {
    let mut interfaces: Vec<(&String, &InterfaceReading)> = host.nic.iter().collect();
    interfaces.sort_by_key(|(_, interface)| interface.index);
    for (name, interface) in interfaces.into_iter().take(INTERFACES_MAX) {
        to.add_kernel_table(&interface.link, name, !interface.repeats_others);
    }
    to.add_kernel_table(&host.conntrack, "host", true);
    for (place, ip, udp) in [("ipv4", &host.ip, &host.udp), ("ipv6", &host.ip6, &host.udp6)] {
        to.add_kernel_table(ip, place, true);
        to.add_kernel_table(udp, place, true);
    }
    to.add_kernel_table(&host.memory, "host", false);
    to.add_kernel_table(&host.socket_drops, "host", false);
    for (core, counts) in &host.softnet {
        for (counter, value) in counts.values().filter(|(counter, _)| !counter.is_gauge) {
            to.add_known(HOST_SOFTNET, &[("cpu", &core.to_string()), ("counter", counter.name)], value);
        }
    }
    // What UDP has not counted of what its sockets dropped.
    for loss in host.lost.lost.iter().filter(|loss| loss.counter == "drops") {
        let labels = [("layer", loss.layer.name()), ("counter", loss.counter.as_str()), ("place", loss.place.as_str())];
        to.add_known(HOST_LOST, &labels, Some(loss.count));
    }
    if host != &HostReading::default() {
        to.add_known(HOST_UNSEEN, &[], Some(host.lost.unseen.len() as u64));
    }
}

/// What is written so far: the metrics in the order of their first sample.
#[derive(Default)]
struct Exposition {
    metrics: Vec<Metric>,
}

/// One metric and its samples, each on a line.
struct Metric {
    name: &'static str,
    help: &'static str,
    is_histogram: bool,
    samples: String,
}

impl Exposition {
    fn add_table(&mut self, labels: &[(&str, &str)], values: impl IntoIterator<Item = (&'static LedgerCounter, u64)>) {
        for (counter, value) in values {
            if counter.layer.is_empty() {
                self.add(counter.metric, counter.help, labels, value);
            } else {
                let of_drop = [("layer", counter.layer), ("reason", counter.name)];
                self.add(counter.metric, DROPPED_HELP, &[labels, &of_drop].concat(), value);
            }
        }
    }

    /// The counters of a kernel's table. A loss that another one contains is shown, and not among the losses.
    fn add_kernel_table<T: KernelTable>(&mut self, table: &T, place: &str, is_in_sum: bool) {
        for (counter, value) in table.values() {
            let KernelCounter { layer, name, is_loss, is_gauge, contained_in, .. } = *counter;
            let labels = [("layer", layer.name()), ("counter", name), ("place", place)];
            self.add_known(if is_gauge { HOST_STATE } else { HOST_EVENTS }, &labels, value);
            if !is_gauge && is_in_sum && is_loss && contained_in.is_empty() {
                self.add_known(HOST_LOST, &labels, value);
            }
        }
    }

    /// One sample, unless its value is not known.
    fn add_known(&mut self, (name, help): (&'static str, &'static str), labels: &[(&str, &str)], value: Option<u64>) {
        value.into_iter().for_each(|value| self.add(name, help, labels, value));
    }

    /// The one histogram there is. Its buckets are always the same, so that sums over sinks are right.
    fn add_residence(&mut self, labels: &[(&str, &str)], residence: &ResidenceSnapshot) {
        let name = "udpd_residence_seconds";
        let help = "How long datagrams stayed from the receive call to the sink's delivery, sampled. Absent where \
                    nothing was measured yet.";
        let all = [("+Inf".to_owned(), residence.count)];
        let within = residence.cumulative().map(|(end, count)| (end.to_string(), count)).chain(all);
        for (end, count) in within {
            self.add_part(name, "_bucket", help, &[labels, &[("le", &end)]].concat(), count);
        }
        self.add_part(name, "_sum", help, labels, residence.sum_seconds);
        self.add_part(name, "_count", help, labels, residence.count);
    }

    fn add(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: impl Display) {
        self.add_part(name, "", help, labels, value);
    }

    /// One sample of a metric whose samples have names of their own.
    fn add_part(
        &mut self,
        name: &'static str,
        part: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        let place = self.metrics.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            self.metrics.push(Metric { name, help, is_histogram: !part.is_empty(), samples: String::new() });
            self.metrics.len() - 1
        });
        let text = &mut self.metrics[place].samples;
        text.push_str(name);
        text.push_str(part);
        for (position, (label, content)) in labels.iter().enumerate() {
            text.push(if position == 0 { '{' } else { ',' });
            text.push_str(label);
            text.push_str("=\"");
            push_escaped(text, content);
            text.push('"');
        }
        if !labels.is_empty() {
            text.push('}');
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, " {value}");
    }

    fn text(self) -> String {
        let mut text = String::new();
        for Metric { name, help, is_histogram, samples } in self.metrics {
            let kind = match is_histogram {
                true => "histogram",
                false if name.ends_with("_total") => "counter",
                false => "gauge",
            };
            let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n{samples}", help.replace('`', ""));
        }
        text
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

#[cfg(test)]
#[path = "exposition_tests.rs"]
mod tests;
