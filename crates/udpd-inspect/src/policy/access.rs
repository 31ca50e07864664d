//! `allow` and `deny`, in the configuration and in files, as one table: who may send, by longest prefix.
//!
//! [`Networks`] collects what is written. [`AccessList`] is made of it once and never changed; all lanes of a listener
//! read the same one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use mmsg::SourceRanges;

use super::ranges::{ListedNetwork, Number, Ranges};

/// Which sources are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessList {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
    /// How many networks it was made of, each counted once.
    networks: usize,
}

/// Networks that are accepted or refused, and where each is written.
#[derive(Debug, Default)]
pub struct Networks {
    v4: Vec<ListedNetwork<u32>>,
    v6: Vec<ListedNetwork<u128>>,
}

/// Where a network is written: a line of one of several texts, which the caller numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkOrigin {
    pub text: u16,
    pub line: u32,
}

/// A network that is accepted in one place and refused in another.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    pub network: IpNet,
    pub allowed: NetworkOrigin,
    pub denied: NetworkOrigin,
}

impl Networks {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub fn push(&mut self, network: IpNet, accept: bool, NetworkOrigin { text, line }: NetworkOrigin) {
        let bits = network.prefix_len();
        match network {
            IpNet::V4(v4) => self.v4.push(ListedNetwork { first: v4.network().to_bits(), bits, accept, text, line }),
            IpNet::V6(v6) => self.v6.push(ListedNetwork { first: v6.network().to_bits(), bits, accept, text, line }),
        }
    }

    /// Puts them in order, and reports those that are both accepted and refused.
    pub fn sort(&mut self, mut report: impl FnMut(Conflict)) {
        let address = |bits: u32| IpAddr::from(Ipv4Addr::from_bits(bits));
        sort(&mut self.v4, |one, other| report(conflict(address(one.first), one, other)));
        let address = |bits: u128| IpAddr::from(Ipv6Addr::from_bits(bits));
        sort(&mut self.v6, |one, other| report(conflict(address(one.first), one, other)));
    }

    /// The table, once they are in order and without conflicts. A source in no network gets the answer `otherwise`.
    pub fn into_list(self, otherwise: bool) -> AccessList {
        let networks = distinct(&self.v4) + distinct(&self.v6);
        AccessList { v4: Ranges::of(&self.v4, otherwise), v6: Ranges::of(&self.v6, otherwise), networks }
    }
}

impl AccessList {
    /// The longest network that holds a source decides; a source in none is accepted when `allow` is empty. No network
    /// may be in both, which is for the configuration to see to.
    pub fn new(allow: &[IpNet], deny: &[IpNet]) -> Self {
        let mut networks = Networks::default();
        let nowhere = NetworkOrigin { text: 0, line: 0 };
        allow.iter().for_each(|network| networks.push(*network, true, nowhere));
        deny.iter().for_each(|network| networks.push(*network, false, nowhere));
        networks.sort(|_| {});
        networks.into_list(allow.is_empty())
    }

    /// Whether datagrams of `source` are accepted. A mapped IPv4 address counts as IPv4.
    pub fn accepts(&self, source: IpAddr) -> bool {
        match source.to_canonical() {
            IpAddr::V4(v4) => self.v4.accepts(v4.to_bits()),
            IpAddr::V6(v6) => self.v6.accepts(v6.to_bits()),
        }
    }

    /// A copy that also accepts all sources of a network.
    pub fn also_accepting(&self, network: IpNet) -> Self {
        let mut list = self.clone();
        match network {
            IpNet::V4(v4) => list.v4 = self.v4.also_accepting(v4.network().to_bits(), v4.broadcast().to_bits()),
            IpNet::V6(v6) => list.v6 = self.v6.also_accepting(v6.network().to_bits(), v6.broadcast().to_bits()),
        }
        list
    }

    /// The same table for a filter in the kernel.
    pub fn ranges(&self) -> SourceRanges<'_> {
        let (v4_first, v4_turns) = self.v4.turns();
        let (v6_first, v6_turns) = self.v6.turns();
        SourceRanges { v4_first, v4_turns, v6_first, v6_turns }
    }

    /// How many networks it was made of.
    pub fn networks(&self) -> usize {
        self.networks
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes()
    }
}

/// Sorts outer networks before inner ones, and of equal ones the accepted last. `report` gets those that are both
/// refused and accepted, each once.
fn sort<T: Number>(entries: &mut [ListedNetwork<T>], mut report: impl FnMut(&ListedNetwork<T>, &ListedNetwork<T>)) {
    entries.sort_unstable_by_key(|entry| (entry.first, entry.bits, entry.accept, entry.text, entry.line));
    for pair in entries.windows(2) {
        let is_same = (pair[0].first, pair[0].bits) == (pair[1].first, pair[1].bits);
        if is_same && pair[0].accept != pair[1].accept {
            report(&pair[0], &pair[1]);
        }
    }
}

fn conflict<T>(address: IpAddr, denied: &ListedNetwork<T>, allowed: &ListedNetwork<T>) -> Conflict {
    let origin = |entry: &ListedNetwork<T>| NetworkOrigin { text: entry.text, line: entry.line };
    let network = IpNet::new_assert(address, denied.bits);
    Conflict { network, allowed: origin(allowed), denied: origin(denied) }
}

/// How many different networks these are, which are in order.
fn distinct<T: Number>(entries: &[ListedNetwork<T>]) -> usize {
    entries.chunk_by(|one, other| (one.first, one.bits) == (other.first, other.bits)).count()
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
