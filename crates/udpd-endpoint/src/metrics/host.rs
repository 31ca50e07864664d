//! The host ledger as metrics. `udpd_host_lost_total` has each loss once, so that its sum means something; the other
//! metrics show the kernel's counters as they are, of which some contain others.
//!
//! How many time series there are is bounded: by the number of cores, and by [`INTERFACES_MAX`] for interfaces, of
//! which a host with containers has hundreds. Those that were there first are shown.

use hostloss::{HostReading, InterfaceReading, KernelCounter, KernelTable};

/// The most interfaces with samples of their own.
const INTERFACES_MAX: usize = 32;

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: u64,
}

const LOST: (&str, &str) = (
    "udpd_host_lost_total",
    "Packets and buffers that this host lost since udpd started, each once, by the layer, the kernel's counter and the \
     place. Layers below udp count all protocols, layers udp and socket all programs of this network namespace. Of the \
     first 32 interfaces.",
);
const COUNTER: (&str, &str) = (
    "udpd_host_events_total",
    "What the kernel counted since udpd started, by layer, counter and place. Some counters contain others: do not sum \
     them. Of the first 32 interfaces.",
);
const SOFTNET: (&str, &str) =
    ("udpd_host_softnet_total", "What each core did with packets since udpd started, by the kernel's counter.");
const GAUGE: (&str, &str) =
    ("udpd_host_state", "What the kernel holds now and what it allows: memory of UDP sockets, sockets, connections.");
const UNSEEN: (&str, &str) = (
    "udpd_host_unseen_losses",
    "How many kinds of loss cannot be seen on this host; host.lost.unseen in JSON names them.",
);

/// All samples of the host.
pub(super) fn samples(host: &HostReading) -> Vec<Sample> {
    let mut samples = Samples::default();
    let mut interfaces: Vec<(&String, &InterfaceReading)> = host.nic.iter().collect();
    interfaces.sort_by_key(|(_, interface)| interface.index);
    for (name, interface) in interfaces.into_iter().take(INTERFACES_MAX) {
        samples.add_table(&interface.link, name, !interface.repeats_others);
    }
    samples.add_table(&host.conntrack, "host", true);
    for (place, ip, udp) in [("ipv4", &host.ip, &host.udp), ("ipv6", &host.ip6, &host.udp6)] {
        samples.add_table(ip, place, true);
        samples.add_table(udp, place, true);
    }
    samples.add_table(&host.memory, "host", false);
    samples.add_table(&host.socket_drops, "host", false);
    for (core, counts) in &host.softnet {
        for (counter, value) in counts.values().filter(|(counter, _)| !counter.is_gauge) {
            let labels = vec![("cpu", core.to_string()), ("counter", counter.name.to_owned())];
            samples.add(SOFTNET, labels, value);
        }
    }
    // What UDP has not counted of what its sockets dropped.
    let at_sockets = host.lost.lost.iter().filter(|loss| loss.counter == "drops");
    for loss in at_sockets {
        let labels = labels(loss.layer.name(), &loss.counter, &loss.place);
        samples.add(LOST, labels, Some(loss.count));
    }
    if host != &HostReading::default() {
        samples.add(UNSEEN, Vec::new(), Some(host.lost.unseen.len() as u64));
    }
    samples.samples
}

#[derive(Default)]
struct Samples {
    samples: Vec<Sample>,
}

impl Samples {
    /// The counters of a table. A loss that another contains is shown, and not among the losses.
    fn add_table<T: KernelTable>(&mut self, table: &T, place: &str, is_in_sum: bool) {
        for (counter, value) in table.values() {
            let KernelCounter { layer, name, is_loss, is_gauge, contained_in, .. } = *counter;
            let labels = || labels(layer.name(), name, place);
            if is_gauge {
                self.add(GAUGE, labels(), value);
                continue;
            }
            self.add(COUNTER, labels(), value);
            if is_in_sum && is_loss && contained_in.is_empty() {
                self.add(LOST, labels(), value);
            }
        }
    }

    /// What nobody knows has no sample.
    fn add(
        &mut self,
        (name, help): (&'static str, &'static str),
        labels: Vec<(&'static str, String)>,
        value: Option<u64>,
    ) {
        self.samples.extend(value.map(|value| Sample { name, help, labels, value }));
    }
}

fn labels(layer: &str, counter: &str, place: &str) -> Vec<(&'static str, String)> {
    vec![("layer", layer.to_owned()), ("counter", counter.to_owned()), ("place", place.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::Losses;
    use hostloss::tables::{LinkCounters, Udp};

    fn sum(samples: &[Sample], name: &str) -> u64 {
        samples.iter().filter(|sample| sample.name == name).map(|sample| sample.value).sum()
    }

    #[test]
    fn the_sum_of_what_was_lost_is_that_of_the_layers_and_what_is_unknown_has_no_sample() {
        let mut host = HostReading::default();
        let link =
            LinkCounters { rx_dropped: Some(4), rx_crc_errors: Some(2), rx_errors: Some(3), ..LinkCounters::default() };
        host.nic.insert("eth0".to_owned(), InterfaceReading { index: 2, link, ..InterfaceReading::default() });
        host.udp = Udp { in_errors: Some(9), rcvbuf_errors: Some(9), ..Udp::default() };
        host.lost = Losses::of(&host);
        let samples = samples(&host);
        assert_eq!(sum(&samples, "udpd_host_lost_total"), 16);
        assert_eq!(host.lost.total, 16);
        assert_eq!(sum(&samples, "udpd_host_events_total"), 4 + 2 + 3 + 9 + 9);
        assert!(!samples.iter().any(|sample| sample.labels.contains(&("counter", "mem_errors".to_owned()))));
    }

    #[test]
    fn a_host_with_a_thousand_interfaces_shows_those_that_were_there_first() {
        let mut host = HostReading::default();
        for index in 1..=1000_u32 {
            let link = LinkCounters { rx_dropped: Some(1), ..LinkCounters::default() };
            host.nic.insert(format!("veth{index}"), InterfaceReading { index, link, ..InterfaceReading::default() });
        }
        let samples = samples(&host);
        assert_eq!(sum(&samples, "udpd_host_lost_total"), INTERFACES_MAX as u64);
        assert!(samples.iter().any(|sample| sample.labels.contains(&("place", "veth1".to_owned()))));
        assert!(!samples.iter().any(|sample| sample.labels.contains(&("place", "veth33".to_owned()))));
    }
}
