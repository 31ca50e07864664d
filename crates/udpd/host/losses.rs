//! The sum of the layers: what this host lost, each packet once, and what nobody here can see.
//!
//! A counter that is contained in another is in the sum by that one, as long as that one is known. Everything below UDP
//! counts all protocols, so it is an upper bound for UDP; what UDP and its sockets count is exact.

use serde::{Deserialize, Serialize};

use super::counter::{Counter, Layer, Table, Unit};
use super::reading::Reading;
use super::tables::{SocketCounts, Udp};

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
    pub unseen: Vec<Unseen>,
}

/// What one counter says was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub layer: Layer,
    /// The key of the counter in its table.
    pub counter: String,
    /// The interface, or "ipv4" and "ipv6".
    pub place: String,
    pub count: u64,
    pub unit: Unit,
}

/// Something that may have been lost and that no counter tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    pub layer: Layer,
    pub what: String,
}

impl Losses {
    /// Adds up a difference, as [`Reading::since`] returns it.
    pub fn of(difference: &Reading) -> Self {
        let mut losses = Self::default();
        for (name, interface) in &difference.nic {
            // What repeats others stands there already.
            if !interface.repeats_others {
                losses.add_table(&interface.link, name);
            }
        }
        losses.add_table(&difference.conntrack, "host");
        losses.add_table(&difference.ip, "ipv4");
        losses.add_table(&difference.ip6, "ipv6");
        losses.add_udp(difference);
        losses.total = losses.lost.iter().map(|loss| loss.count).sum();
        let of_all = losses.lost.iter().filter(|loss| loss.layer < Layer::Udp);
        losses.of_any_protocol = of_all.map(|loss| loss.count).sum();
        losses
    }

    /// Every loss of a table that nothing else of the table contains.
    fn add_table<T: Table>(&mut self, table: &T, place: &str) {
        let outer = table.values().filter(|(counter, _)| counter.is_loss && counter.contained_in.is_empty());
        outer.for_each(|(counter, value)| self.add(counter, place, value));
    }

    fn add(&mut self, counter: &Counter, place: &str, value: Option<u64>) {
        match value {
            Some(0) => {}
            Some(count) => self.lost.push(Loss {
                layer: counter.layer,
                counter: counter.name.to_owned(),
                place: place.to_owned(),
                count,
                unit: counter.unit,
            }),
            None => self.unseen.push(Unseen {
                layer: counter.layer,
                what: format!("{} of {place} is not known: {}", counter.name, counter.help),
            }),
        }
    }

    /// What UDP and its sockets lost.
    ///
    /// Some kernels (6.18) count what `udp_mem` refuses at the socket alone, and elsewhere a socket's drops are all in
    /// `in_errors`. So the larger one is the number, and what the sockets have more stands at the socket.
    fn add_udp(&mut self, difference: &Reading) {
        self.add_table(&difference.udp, "ipv4");
        self.add_table(&difference.udp6, "ipv6");
        let sum = |value: fn(&Udp) -> Option<u64>| {
            Some(value(&difference.udp).unwrap_or(0) + value(&difference.udp6).unwrap_or(0))
        };
        let in_errors = sum(|udp| udp.in_errors).unwrap_or(0);
        let Some(sockets) = &difference.sockets else { return };
        let at_sockets: u64 = sockets.iter().filter_map(|socket| socket.counts.drops).sum();
        let [drops, ..] = SocketCounts::COUNTERS else { return };
        self.add(drops, "sockets", Some(at_sockets.saturating_sub(in_errors)));
    }
}
