//! One reading of all counters, and what happened between two.
//!
//! The same type holds a reading (the kernel's own numbers) and a difference (what was counted between two readings),
//! because each question to one is a question to the other. It is also `host` in `udpd stats --json`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::losses::Losses;
use super::nic::{self, DRIVERS, DriverCounter};
use super::tables::{Conntrack, Ip, LinkCounters, QueueCounters, SocketCounts, SocketDrops, Softnet, Udp, UdpMemory};
use super::tables::{KernelLayer, KernelTable};

/// The most interfaces that have a sum, with those that are gone.
const INTERFACES_SUMMED_MAX: usize = 256;

/// All counters of this host, as far as the network namespace of the reader sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReading {
    /// By name.
    pub nic: BTreeMap<String, InterfaceReading>,
    /// Interfaces beyond those that are read.
    pub interfaces_left_out: u64,
    /// By the number of the core, those that are online.
    pub softnet: BTreeMap<u32, Softnet>,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// IPv4.
    pub ip: Ip,
    /// IPv6.
    pub ip6: Ip,
    /// UDP over IPv4.
    pub udp: Udp,
    /// UDP over IPv6.
    pub udp6: Udp,
    /// The memory of UDP sockets and the limits on it.
    pub memory: UdpMemory,
    /// Those on the ports that the reader was asked for, of all processes, in the order of their inodes; null when
    /// they cannot be seen.
    pub sockets: Option<Vec<SocketReading>>,
    /// Inode and drops of those on other ports that have dropped something, in the order of their inodes: what
    /// `socket_drops` is made from.
    #[serde(skip)]
    pub elsewhere: Option<Vec<(u64, u32)>>,
    /// What all of them dropped between two readings, by whose they are.
    pub socket_drops: SocketDrops,
    /// What could not be read, and why; empty when all was.
    pub unread: Vec<(KernelLayer, String)>,
    /// The sum of the layers, in what a daemon publishes; empty elsewhere, where [`Losses::of`] makes it.
    pub lost: Losses,
}

/// One network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceReading {
    /// Its number in this network namespace.
    pub index: u32,
    /// Empty when it has none that tells its name.
    pub driver: String,
    /// What it counts others count as well: a bond repeats the counts of its members.
    pub repeats_others: bool,
    /// What the kernel counts for it.
    #[serde(flatten)]
    pub link: LinkCounters,
    /// By number; only where the driver tells.
    pub queues: BTreeMap<u32, QueueCounters>,
    /// What the driver itself counts as dropped, by its own names. Part of the counters above on most drivers, and
    /// hence in no sum.
    pub driver_counters: Vec<DriverCounter>,
}

/// One UDP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketReading {
    /// What it is bound to.
    pub address: SocketAddr,
    /// Its inode, which tells it from every other socket.
    pub inode: u64,
    /// The user who made it.
    pub uid: u32,
    /// The index of the interface that it is bound to; 0 for none.
    pub interface: u32,
    /// What it is connected to, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// An IPv6 socket that leaves IPv4 alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub v6_only: bool,
    /// It is one of the process that has read.
    pub own: bool,
    /// Its drops and its receive buffer.
    #[serde(flatten)]
    pub counts: SocketCounts,
}

impl HostReading {
    /// What was counted since `earlier`. What was not there then is not known, but for what rises and falls.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (name, interface) in &mut difference.nic {
            *interface = interface.since(earlier.nic.get(name).filter(|before| before.index == interface.index));
        }
        let no_core = Softnet::default();
        for (core, counts) in &mut difference.softnet {
            *counts = counts.since(earlier.softnet.get(core).unwrap_or(&no_core));
        }
        difference.conntrack = self.conntrack.since(&earlier.conntrack);
        difference.ip = self.ip.since(&earlier.ip);
        difference.ip6 = self.ip6.since(&earlier.ip6);
        difference.udp = self.udp.since(&earlier.udp);
        difference.udp6 = self.udp6.since(&earlier.udp6);
        for socket in difference.sockets.iter_mut().flatten() {
            let before = earlier.socket(socket.inode);
            // A socket that was made meanwhile has counted from 0.
            let new = SocketCounts { drops: earlier.sockets.as_ref().map(|_| 0), ..SocketCounts::default() };
            socket.counts = socket.counts.since(before.map_or(&new, |before| &before.counts));
        }
        difference.socket_drops = SocketDrops {
            own: difference.dropped_on_ports(true),
            others_on_ports: difference.dropped_on_ports(false),
            elsewhere: self.dropped_elsewhere(earlier),
        };
        difference.elsewhere = None;
        difference
    }

    /// Of a difference: what the sockets on the ports dropped, those of this process or those of others. Not known
    /// where it is not known of one of them.
    fn dropped_on_ports(&self, own: bool) -> Option<u64> {
        let sockets = self.sockets.as_ref()?.iter().filter(|socket| socket.own == own);
        sockets.map(|socket| socket.counts.drops).sum()
    }

    /// What the sockets on other ports dropped since then. One that was made meanwhile, or that had dropped nothing,
    /// has counted from 0.
    fn dropped_elsewhere(&self, earlier: &Self) -> Option<u64> {
        let before = earlier.elsewhere.as_ref()?;
        let drops = |inode: &u64| {
            let place = before.binary_search_by_key(inode, |(inode, _)| *inode);
            place.map_or(0, |place| before[place].1)
        };
        let since = |(inode, now): &(u64, u32)| u64::from(now.wrapping_sub(drops(inode)));
        Some(self.elsewhere.as_ref()?.iter().map(since).sum())
    }

    /// Adds what was counted meanwhile, as `since` returns it. An interface or a core that is there no longer keeps its
    /// sum, and so do all of a layer that could not be read; a socket that was closed is left out.
    pub fn count_on(&mut self, meanwhile: &Self) {
        let mut before = std::mem::replace(self, meanwhile.clone());
        for (name, interface) in &mut self.nic {
            if let Some(mut sum) = before.nic.remove(name) {
                sum.count_on(interface);
                *interface = sum;
            }
        }
        // Cables of containers come and go without end.
        let room = INTERFACES_SUMMED_MAX.saturating_sub(self.nic.len());
        self.nic.extend(before.nic.into_iter().take(room));
        for (core, sum) in before.softnet {
            let counts = self.softnet.entry(core).or_default();
            let more = std::mem::replace(counts, sum);
            counts.count_on(&more);
        }
        before.conntrack.count_on(&meanwhile.conntrack);
        before.ip.count_on(&meanwhile.ip);
        before.ip6.count_on(&meanwhile.ip6);
        before.udp.count_on(&meanwhile.udp);
        before.udp6.count_on(&meanwhile.udp6);
        (self.conntrack, self.ip, self.ip6) = (before.conntrack, before.ip, before.ip6);
        (self.udp, self.udp6) = (before.udp, before.udp6);
        before.socket_drops.count_on(&meanwhile.socket_drops);
        self.socket_drops = before.socket_drops;
        let Some(sockets) = &mut self.sockets else {
            self.sockets = before.sockets;
            return;
        };
        let sums = before.sockets.unwrap_or_default();
        for socket in sockets {
            if let Ok(place) = sums.binary_search_by_key(&socket.inode, |sum| sum.inode) {
                let more = std::mem::replace(&mut socket.counts, sums[place].counts);
                socket.counts.count_on(&more);
            }
        }
    }

    /// Takes the place of `earlier` as what the next reading is compared with. What a failed reading does not have
    /// stays as it was, so that what is counted meanwhile is found by the next one that succeeds.
    #[must_use]
    pub fn after(mut self, earlier: Self) -> Self {
        if self.nic.is_empty() {
            self.nic = earlier.nic;
        } else {
            for (name, before) in earlier.nic {
                if let Some(now) = self.nic.get_mut(&name).filter(|now| now.index == before.index) {
                    now.fill_from(before);
                }
            }
        }
        if self.softnet.is_empty() {
            self.softnet = earlier.softnet;
        }
        self.sockets = self.sockets.or(earlier.sockets);
        self.elsewhere = self.elsewhere.or(earlier.elsewhere);
        self.conntrack.fill_from(&earlier.conntrack);
        self.ip.fill_from(&earlier.ip);
        self.ip6.fill_from(&earlier.ip6);
        self.udp.fill_from(&earlier.udp);
        self.udp6.fill_from(&earlier.udp6);
        self
    }

    /// The socket with this inode.
    pub fn socket(&self, inode: u64) -> Option<&SocketReading> {
        let sockets = self.sockets.as_ref()?;
        sockets.binary_search_by_key(&inode, |socket| socket.inode).ok().map(|place| &sockets[place])
    }
}

impl InterfaceReading {
    fn since(&self, earlier: Option<&Self>) -> Self {
        let none = Self::default();
        let earlier = earlier.unwrap_or(&none);
        let mut difference = self.clone();
        difference.link = self.link.since(&earlier.link);
        let missed = nic::missed_since(&self.driver, &earlier.driver_counters, &self.driver_counters);
        difference.link.rx_missed_errors = missed.unwrap_or(difference.link.rx_missed_errors);
        let no_queue = QueueCounters::default();
        for (number, queue) in &mut difference.queues {
            *queue = queue.since(earlier.queues.get(number).unwrap_or(&no_queue));
        }
        // Drivers have the same name several times; their order is what tells them apart.
        let same_names = self.driver_counters.len() == earlier.driver_counters.len();
        for (place, counter) in difference.driver_counters.iter_mut().enumerate() {
            let before = earlier.driver_counters.get(place).filter(|before| same_names && before.name == counter.name);
            let both = counter.value.zip(before.and_then(|before| before.value));
            counter.value = both.map(|(later, earlier)| DRIVERS.difference(earlier, later));
        }
        difference
    }

    /// Takes what it does not know itself from an earlier reading: a driver that is set up anew may not answer.
    fn fill_from(&mut self, earlier: Self) {
        self.link.fill_from(&earlier.link);
        if self.driver_counters.is_empty() {
            self.driver_counters = earlier.driver_counters;
        }
    }

    /// What came back under the same name counts on.
    fn count_on(&mut self, meanwhile: &Self) {
        let (mut link, mut queues) = (self.link, std::mem::take(&mut self.queues));
        let counters = std::mem::take(&mut self.driver_counters);
        *self = meanwhile.clone();
        link.count_on(&meanwhile.link);
        self.link = link;
        // Queues that are gone, or that could not be read this time, keep theirs.
        for (number, queue) in &self.queues {
            queues.entry(*number).or_default().count_on(queue);
        }
        self.queues = queues;
        if self.driver_counters.is_empty() {
            self.driver_counters = counters;
            return;
        }
        for (counter, before) in self.driver_counters.iter_mut().zip(counters) {
            if counter.name == before.name {
                counter.value = match (counter.value, before.value) {
                    (Some(more), Some(sum)) => Some(sum + more),
                    (one, other) => one.or(other),
                };
            }
        }
    }
}
