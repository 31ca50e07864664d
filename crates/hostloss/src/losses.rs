//! The sum of the layers: what this host lost, each packet once, and what cannot be seen here.
//!
//! A counter that is contained in another is in the sum by that one, as long as that one is known. Everything below UDP
//! counts all protocols, so it is an upper bound for UDP; what UDP and its sockets count is exact.

use serde::{Deserialize, Serialize};

use super::reading::{HostReading, InterfaceReading};
use super::tables::{CounterUnit, KernelCounter, KernelLayer, KernelTable, SocketCounts, SocketDrops, Udp};

/// What was lost between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// In the order of the layers, without those that lost nothing. Nothing stands in two of them.
    pub lost: Vec<Loss>,
    /// Their sum. In buffers and packets: a train of GRO counts as one, and so does a fragment.
    pub total: u64,
    /// Of the sum, what may have been other protocols than UDP.
    pub of_any_protocol: u64,
    /// What is not in the sum because it cannot be seen.
    pub unseen: Vec<UncountedLoss>,
}

/// What one counter says was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Where in the kernel it was lost.
    pub layer: KernelLayer,
    /// The key of the counter in its table.
    pub counter: String,
    /// The interface, or "ipv4" and "ipv6".
    pub place: String,
    /// How many were lost.
    pub count: u64,
    /// What was counted.
    pub unit: CounterUnit,
}

/// Something that may have been lost and that no counter tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncountedLoss {
    /// Where in the kernel it may have been lost.
    pub layer: KernelLayer,
    /// What that is, and why no counter tells.
    pub what: String,
}

impl Losses {
    /// Adds up a difference, as [`HostReading::since`] returns it.
    pub fn of(difference: &HostReading) -> Self {
        let mut losses = Self::default();
        for (name, interface) in &difference.nic {
            if interface.repeats_others {
                continue;
            }
            if is_empty(&interface.link) {
                losses.unsee(KernelLayer::Nic, format!("what {name} lost: it has not been read twice"));
            }
            losses.add_table(&interface.link, name);
            losses.add_beside(name, interface);
        }
        if difference.interfaces_left_out > 0 {
            let what = format!("what {} more interfaces lost: too many to read", difference.interfaces_left_out);
            losses.unsee(KernelLayer::Nic, what);
        }
        losses.add_table(&difference.conntrack, "host");
        losses.add_table(&difference.ip, "ipv4");
        losses.add_table(&difference.ip6, "ipv6");
        losses.add_udp(difference);
        difference.unread.iter().for_each(|(layer, why)| losses.unsee(*layer, why.clone()));
        losses.total = losses.lost.iter().map(|loss| loss.count).sum();
        let of_all = losses.lost.iter().filter(|loss| loss.layer < KernelLayer::Udp);
        losses.of_any_protocol = of_all.map(|loss| loss.count).sum();
        losses
    }

    /// Every loss of a table that nothing else of the table contains. Of a table without any value there is nothing to
    /// say here: the kernel has no such thing, or its reader says why not.
    fn add_table<T: KernelTable>(&mut self, table: &T, place: &str) {
        if is_empty(table) {
            return;
        }
        let outer = table.values().filter(|(counter, _)| counter.is_loss && counter.contained_in.is_empty());
        outer.for_each(|(counter, value)| self.add(counter, place, value));
    }

    fn add(&mut self, counter: &KernelCounter, place: &str, value: Option<u64>) {
        match value {
            Some(0) => {}
            Some(count) => self.lost.push(Loss {
                layer: counter.layer,
                counter: counter.name.to_owned(),
                place: place.to_owned(),
                count,
                unit: counter.unit,
            }),
            None => self.unsee(counter.layer, format!("{} of {place}: this kernel does not count it", counter.name)),
        }
    }

    fn unsee(&mut self, layer: KernelLayer, what: String) {
        self.unseen.push(UncountedLoss { layer, what });
    }

    /// What a driver tells of losses that the interface's own counters do not have.
    fn add_beside(&mut self, name: &str, interface: &InterfaceReading) {
        // The network of a cloud drops before the card, and says so in a counter that also counts what it only delayed.
        let beyond = interface.driver_counters.iter().filter(|counter| counter.name.ends_with("allowance_exceeded"));
        for counter in beyond.filter(|counter| counter.value != Some(0)) {
            let count = counter.value.map_or_else(|| "an unknown number of".to_owned(), |count| count.to_string());
            let what = format!(
                "how many of {count} packets the network of the cloud dropped at {name} and how many it delayed \
                 ({})",
                counter.name
            );
            self.unsee(KernelLayer::Nic, what);
        }
        if interface.driver == "virtio_net" && interface.queues.values().all(|queue| queue.hw_drops.is_none()) {
            let what = format!("what the hypervisor dropped because the receive ring of {name} was full");
            self.unsee(KernelLayer::Nic, what);
        }
    }

    /// What UDP and its sockets lost.
    ///
    /// Some kernels (6.18) count what `udp_mem` refuses at the socket alone, and elsewhere a socket's drops are all in
    /// `in_errors`. So the larger one is the number, and what the sockets have more stands at the socket. Both are of
    /// all sockets of the network namespace, those that were closed since as they were seen last: what one program's
    /// sockets dropped says nothing of another's, and would hide it. Where the drops of some are not known, what the
    /// others dropped may or may not be in `in_errors`: what is beyond it is lost for certain, and the rest is said to
    /// be unknown.
    fn add_udp(&mut self, difference: &HostReading) {
        self.add_table(&difference.udp, "ipv4");
        self.add_table(&difference.udp6, "ipv6");
        // Who could not read them has said why.
        let is_told = difference.unread.iter().any(|(layer, _)| *layer == KernelLayer::Socket);
        let SocketDrops { own, others_on_ports, elsewhere } = difference.socket_drops;
        let whose =
            [(own, "of this daemon"), (others_on_ports, "of others on its ports"), (elsewhere, "on other ports")];
        for (_, whose) in whose.into_iter().filter(|(drops, _)| drops.is_none() && !is_told) {
            self.unsee(KernelLayer::Socket, format!("what UDP sockets {whose} dropped: it has not been read twice"));
        }
        let in_errors = |udp: &Udp| udp.in_errors.unwrap_or(0);
        let at_udp = in_errors(&difference.udp) + in_errors(&difference.udp6);
        let at_sockets: u64 = difference.socket_drops.values().filter_map(|(_, drops)| drops).sum();
        self.add(SocketCounts::DROPS, "all sockets", Some(at_sockets.saturating_sub(at_udp)));
        if at_sockets.min(at_udp) > 0 && whose.iter().any(|(drops, _)| drops.is_none()) {
            let what = format!(
                "how many of {at_sockets} drops of the sockets seen here are not among the {at_udp} errors of UDP"
            );
            self.unsee(KernelLayer::Socket, what);
        }
    }
}

fn is_empty(table: &impl KernelTable) -> bool {
    table.values().all(|(_, value)| value.is_none())
}

#[cfg(test)]
#[path = "losses_tests.rs"]
mod tests;
