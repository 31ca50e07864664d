//! What is known of a counter of the kernel, and tables of them: one line a counter, from which the struct, its JSON,
//! the difference of two readings and the page of counters are made.
//!
//! Unlike a counter of our own, each may be unknown: a kernel is older, a file is not there, a driver says nothing.

use serde::{Deserialize, Serialize};

/// Where in the kernel something is counted, in the order in which a datagram gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelLayer {
    /// The network card and its driver.
    Nic,
    /// The queue of each core between the driver and IP.
    Softnet,
    /// Connection tracking.
    Conntrack,
    /// IPv4 or IPv6, with reassembly.
    Ip,
    /// UDP, for all sockets together.
    Udp,
    /// One socket.
    Socket,
}

impl KernelLayer {
    /// As it stands in JSON and in labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Softnet => "softnet",
            Self::Conntrack => "conntrack",
            Self::Ip => "ip",
            Self::Udp => "udp",
            Self::Socket => "socket",
        }
    }
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterUnit {
    /// What came over the wire as one: a datagram, or a fragment of one.
    Packets,
    /// What the kernel handles as one: a datagram, or, with GRO, a train of them.
    Buffers,
    /// Datagrams.
    Datagrams,
    /// Pieces of a datagram that was too long for a packet.
    Fragments,
    /// Rounds in which a core takes packets from its queues.
    Polls,
    Bytes,
    /// Of memory, as large as `getconf PAGESIZE` says.
    Pages,
    Sockets,
    Connections,
}

impl CounterUnit {
    /// As it stands in JSON and in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Buffers => "buffers",
            Self::Datagrams => "datagrams",
            Self::Fragments => "fragments",
            Self::Polls => "polls",
            Self::Bytes => "bytes",
            Self::Pages => "pages",
            Self::Sockets => "sockets",
            Self::Connections => "connections",
        }
    }
}

/// What is known of a counter beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelCounter {
    /// Its key, unique within its layer.
    pub name: &'static str,
    /// What the kernel calls it, where it stands.
    pub source: &'static str,
    pub layer: KernelLayer,
    pub unit: CounterUnit,
    /// How many bits it has; beyond them it begins anew.
    pub bits: u32,
    /// It rises and falls: a difference of two readings is the later one.
    pub is_gauge: bool,
    /// What it counts is lost.
    pub is_loss: bool,
    /// Not only UDP: what it counts may have been anything.
    pub of_all_protocols: bool,
    /// Counters, as `layer.name`, one of which has already counted all that this one counts.
    pub contained_in: &'static [&'static str],
    pub help: &'static str,
}

impl KernelCounter {
    /// What the counters of a table have in common.
    pub const fn of(layer: KernelLayer, unit: CounterUnit) -> Self {
        Self {
            name: "",
            source: "",
            layer,
            unit,
            bits: 64,
            is_gauge: false,
            is_loss: false,
            of_all_protocols: false,
            contained_in: &[],
            help: "",
        }
    }

    /// The same for counters below UDP.
    pub const fn of_all(layer: KernelLayer, unit: CounterUnit) -> Self {
        Self { of_all_protocols: true, ..Self::of(layer, unit) }
    }

    /// The same for what rises and falls.
    pub const fn gauge(layer: KernelLayer, unit: CounterUnit) -> Self {
        Self { is_gauge: true, ..Self::of(layer, unit) }
    }

    /// What was counted between two readings of this counter.
    ///
    /// A counter that went back by much has wrapped, or began anew with its device; then what it shows is what it
    /// counted since then. One that went back by a little was read while its parts were added up, and has counted
    /// nothing. Some drivers count in 32 bits what they tell in 64: one that stood close to the end of 32 bits has
    /// wrapped there.
    pub fn difference(&self, earlier: u64, later: u64) -> u64 {
        const NARROW: u64 = 1 << 32;
        const CLOSE: u64 = 1 << 28;
        if self.is_gauge {
            return later;
        }
        if self.bits == 32 {
            return u64::from((later as u32).wrapping_sub(earlier as u32));
        }
        match later.checked_sub(earlier) {
            Some(difference) => difference,
            None if earlier < NARROW && NARROW - earlier + later < CLOSE => NARROW - earlier + later,
            None if later > earlier / 2 => 0,
            None => later,
        }
    }

    /// `layer.name`, by which others name it in `contained_in`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.layer.name(), self.name)
    }
}

/// Some counters of the kernel that are read together.
pub trait KernelTable: Default + Clone {
    const COUNTERS: &'static [KernelCounter];

    /// In the order of `COUNTERS`.
    fn values(&self) -> impl Iterator<Item = (&'static KernelCounter, Option<u64>)>;

    fn cells(&mut self) -> impl Iterator<Item = (&'static KernelCounter, &mut Option<u64>)>;

    /// Writes the value of the counter that the kernel calls so; no such counter is fine.
    fn set(&mut self, source: &str, value: u64) {
        if let Some((_, cell)) = self.cells().find(|(counter, _)| counter.source == source) {
            *cell = Some(value);
        }
    }

    /// Forgets all values.
    fn clear(&mut self) {
        self.cells().for_each(|(_, cell)| *cell = None);
    }

    /// Takes what it does not know itself from an earlier reading.
    fn fill_from(&mut self, earlier: &Self) {
        self.cells().zip(earlier.values()).for_each(|((_, cell), (_, earlier))| *cell = cell.or(earlier));
    }

    /// What was counted since `earlier`; not known where one of the two is not.
    #[must_use]
    fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for ((counter, cell), (_, earlier)) in difference.cells().zip(earlier.values()) {
            let later = *cell;
            *cell = match (later, earlier) {
                (Some(later), _) if counter.is_gauge => Some(later),
                (Some(later), Some(earlier)) => Some(counter.difference(earlier, later)),
                _ => None,
            };
        }
        difference
    }

    /// Adds what was counted meanwhile, as `since` returns it. What is not known any more keeps its last sum: it is
    /// true of the time for which it was known.
    fn count_on(&mut self, meanwhile: &Self) {
        for ((counter, cell), (_, more)) in self.cells().zip(meanwhile.values()) {
            if counter.is_gauge {
                *cell = more;
            } else if let Some(more) = more {
                *cell = Some(cell.unwrap_or(0) + more);
            }
        }
    }
}

/// Declares a table: one line a counter, with its name, what the kernel calls it, its help and the facts in which it
/// differs from the others.
macro_rules! tables {
    ($(
        $(#[$about:meta])*
        pub struct $table:ident = $common:expr => {
            $($name:ident = $source:literal: $help:literal $(, $fact:ident = $value:expr)*;)+
        }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $table {
            $(
                #[doc = $help]
                pub $name: Option<u64>,
            )+
        }

        impl $crate::counter::KernelTable for $table {
            const COUNTERS: &'static [$crate::counter::KernelCounter] = &[$($crate::counter::KernelCounter {
                name: stringify!($name),
                source: $source,
                help: $help,
                $($fact: $value,)*
                ..$common
            }),+];

            fn values(&self) -> impl Iterator<Item = (&'static $crate::counter::KernelCounter, Option<u64>)> {
                Self::COUNTERS.iter().zip([$(self.$name),+])
            }

            fn cells(&mut self) -> impl Iterator<Item = (&'static $crate::counter::KernelCounter, &mut Option<u64>)> {
                Self::COUNTERS.iter().zip([$(&mut self.$name),+])
            }
        }
    )+};
}

pub(super) use tables;
