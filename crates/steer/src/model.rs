//! What is read of a host before anything is decided: plain data, without any I/O.
//!
//! The reader fills these from sysfs, procfs, netlink and ethtool; the planner, the checker and the printer only read
//! them. What could not be read has its reason, because a guess here becomes an interrupt on the wrong core later.

use std::fmt;

use crate::ethtool::{Channels, Coalescing, Feature, FlowHash, Rings, Rss, Rules};
use crate::topology::Topology;

/// A value that was read, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known<T> {
    /// The value that was read.
    Is(T),
    /// The device or its driver has no such thing: nothing to set, and no fault.
    NotSupported,
    /// There may be an answer, but it could not be read: the reason, as a clause that fits behind "unknown: ".
    Unknown(String),
}

impl<T> Known<T> {
    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::NotSupported | Self::Unknown(_) => None,
        }
    }
}

impl<T: fmt::Display> fmt::Display for Known<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(value) => value.fmt(formatter),
            Self::NotSupported => formatter.write_str("not supported"),
            Self::Unknown(reason) => write!(formatter, "unknown: {reason}"),
        }
    }
}

/// A host, as far as steering is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its cores, caches and memory nodes.
    pub topology: Topology,
    /// The interfaces that were asked for, in the order in which they were asked for.
    pub interfaces: Vec<Interface>,
}

/// What kind of device an interface is, which decides whether there is anything to steer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A device on a bus, with interrupts of its own.
    Physical,
    /// The loopback device.
    Loopback,
    /// One end of a virtual cable.
    Veth,
    /// A device whose other side is a program.
    Tun,
    /// Several interfaces behind one name; what is steered are its members.
    Bond,
    /// A switch in the kernel; what is steered are its ports.
    Bridge,
    /// A tag on another interface; what is steered is that one.
    Vlan,
    /// A radio.
    Wireless,
    /// Anything else without a device of its own: the name the kernel has for it.
    Virtual(String),
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The name it has now.
    pub name: String,
    /// Its `ifindex`, which it keeps when it is renamed.
    pub index: u32,
    /// What kind of device it is.
    pub kind: Kind,
    /// The interfaces below it: members of a bond, ports of a bridge, the parent of a VLAN.
    pub members: Vec<String>,
    /// True when it is administratively up.
    pub is_up: bool,
    /// The driver, as ethtool tells it.
    pub driver: Known<String>,
    /// The memory node of the device.
    pub node: Option<usize>,
    /// Its receive queues, in order.
    pub queues: Vec<Queue>,
    /// How many queues it uses and could use.
    pub channels: Known<Channels>,
    /// How long its rings are and could be.
    pub rings: Known<Rings>,
    /// How it spreads flows over its queues.
    pub rss: Known<Rss>,
    /// What it hashes of a UDP datagram over IPv4.
    pub flow_hash_v4: Known<FlowHash>,
    /// What it hashes of a UDP datagram over IPv6.
    pub flow_hash_v6: Known<FlowHash>,
    /// When it announces what it received.
    pub coalescing: Known<Coalescing>,
    /// The rules by which it sorts. Read only where a plan needs them: it takes a call for each rule, and some drivers
    /// log a line for each call that they do not support.
    pub sorting: Known<Sorting>,
    /// Its send queues, in order.
    pub send_queues: Vec<SendQueue>,
}

impl Interface {
    /// Why its coalescing cannot be set, where that shows before it is tried; `None` where it does not.
    pub(crate) fn why_not_coalesced(&self) -> Option<&'static str> {
        // How virtio_net answers without VIRTIO_NET_F_NOTF_COAL: it refuses every change.
        let as_without = self.coalescing.get().is_some_and(|now| (now.rx_usecs, now.rx_frames) == (0, 1));
        let is_virtio = self.driver.get().is_some_and(|driver| driver == "virtio_net");
        (is_virtio && as_without).then_some("the host of this virtual card gave it no coalescing")
    }
}

/// The rules by which a device sorts datagrams before it hashes them (ntuple).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sorting {
    /// Whether it sorts by rules at all.
    pub ntuple: Feature,
    /// The rules that there are, ours and those of others.
    pub rules: Rules,
}

/// One send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendQueue {
    /// Its number, from 0.
    pub index: usize,
    /// The cores that send through it (XPS); `None` where the kernel has no mask for it.
    pub cores: Option<Vec<usize>>,
}

/// One receive queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its number, from 0.
    pub index: usize,
    /// The interrupt that announces its datagrams.
    pub interrupt: Known<Interrupt>,
    /// The number of its polling context (NAPI), where the kernel says it.
    pub napi: Option<u32>,
    /// The cores to which RPS hands its datagrams on; empty when RPS is off.
    pub rps_cores: Vec<usize>,
    /// Where its datagrams are processed.
    pub work: Known<Work>,
}

/// One interrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupt {
    /// Its number, as in `/proc/irq`.
    pub number: u32,
    /// The name its driver gave it.
    pub name: String,
    /// The cores that it may fire on (`smp_affinity_list`).
    pub requested: Vec<usize>,
    /// The cores where it fires (`effective_affinity_list`); on most machines one.
    pub effective: Vec<usize>,
    /// False when the kernel manages it and refuses changes.
    pub is_settable: bool,
    /// The source that says that it belongs to this queue.
    pub source: Source,
}

/// The source that says which interrupt belongs to a queue, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The kernel, over the `netdev` netlink family.
    Netlink,
    /// The name of the interrupt, by the pattern of the device's driver.
    DriverName,
    /// The device has exactly one queue and one interrupt.
    OnlyOne,
}

/// What processes the datagrams of a queue, and on which cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// What decides where.
    pub by: WorkBy,
    /// The cores; one, unless the interrupt or RPS spreads.
    pub cores: Vec<usize>,
}

/// What decides where the datagrams of a queue are processed. Where several are at work it is the last that a datagram
/// meets: a program that polls keeps it, RPS hands on what a thread or an interrupt has taken, and a thread takes over
/// from the interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkBy {
    /// A program polls the queue from its own core.
    BusyPoll,
    /// A kernel thread of this id polls it.
    Thread(u32),
    /// The interrupt, and the softirq behind it.
    Interrupt,
    /// RPS hands datagrams on to other cores after the interrupt.
    Rps,
}
