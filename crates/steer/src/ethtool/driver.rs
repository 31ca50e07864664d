//! What a driver can be asked and told through ethtool: the questions as a trait, the answers as plain data.
//!
//! "The driver has no such thing" is a value of its own ([`EthtoolError::NotSupported`]), because most drivers answer
//! most questions so, and that is not a fault.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum EthtoolError {
    /// The driver has no such operation.
    NotSupported,
    /// The operation needs CAP_NET_ADMIN in the network namespace of the interface.
    Permission,
    /// There is no such interface.
    NoInterface,
    /// Any other failure, with what was attempted.
    Failed {
        /// The operation, as in "set the channels of eth0 to combined 8".
        operation: String,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl fmt::Display for EthtoolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSupported => formatter.write_str("the driver does not support it"),
            Self::Permission => formatter.write_str("it needs CAP_NET_ADMIN"),
            Self::NoInterface => formatter.write_str("there is no such interface"),
            Self::Failed { operation, cause } => write!(formatter, "cannot {operation}: {cause}"),
        }
    }
}

impl std::error::Error for EthtoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// An answer or its absence.
pub type Answer<T> = Result<T, EthtoolError>;

/// How many queues of each kind: in use, and the most there can be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Channels {
    /// Queues for receiving only.
    pub rx: u32,
    /// Queues for sending only.
    pub tx: u32,
    /// Interrupts that are neither.
    pub other: u32,
    /// Pairs of both.
    pub combined: u32,
    /// The most of `rx`.
    pub rx_max: u32,
    /// The most of `tx`.
    pub tx_max: u32,
    /// The most of `other`.
    pub other_max: u32,
    /// The most of `combined`.
    pub combined_max: u32,
}

impl Channels {
    /// Receive queues in use, whatever they are called.
    pub fn receiving(&self) -> u32 {
        self.rx + self.combined
    }
}

/// How many descriptors the rings have, and the most they can have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rings {
    /// Descriptors of each receive ring.
    pub rx: u32,
    /// Descriptors of each send ring.
    pub tx: u32,
    /// The most of `rx`.
    pub rx_max: u32,
    /// The most of `tx`.
    pub tx_max: u32,
}

/// How flows are spread over queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rss {
    /// The queue for each value of the hash.
    pub indirection: Vec<u32>,
    /// The key of the hash.
    pub key: Vec<u8>,
}

/// When a device announces what it received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// How long it waits at most.
    pub rx_usecs: u32,
    /// After how many datagrams it waits no longer; 0 is no such limit on most drivers.
    pub rx_frames: u32,
    /// The driver changes both as the load changes.
    pub adaptive_rx: bool,
}

/// Something of a device that is on or off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Feature {
    /// True when it is on.
    pub is_on: bool,
    /// False when the driver keeps it as it is.
    pub is_changeable: bool,
}

/// The name of the feature that lets a device sort datagrams by rules (ntuple).
pub const NTUPLE: &str = "rx-ntuple-filter";

/// Sends UDP datagrams to one queue, whatever their hash is. It compares nothing but what stands here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The family of the datagrams.
    pub family: Family,
    /// The address that they are sent to; `None` is any.
    pub destination: Option<IpAddr>,
    /// The port that they are sent to.
    pub port: u16,
    /// The queue that gets them.
    pub queue: u32,
}

impl Rule {
    /// Whether both are about the same datagrams, wherever they send them.
    pub fn is_about_the_same(&self, other: &Self) -> bool {
        Self { queue: 0, ..self.clone() } == Self { queue: 0, ..other.clone() }
    }
}

/// The rules by which a device sorts datagrams, ours and those of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// How many there can be; `None` when the driver does not tell.
    pub places: Option<u32>,
    /// The driver chooses the place of a new rule.
    pub driver_chooses: bool,
    /// Those that there are, by place. `None` is one that a [`Rule`] cannot express.
    pub taken: Vec<(u32, Option<Rule>)>,
}

impl Rules {
    /// How many more there can be; `None` when the driver does not tell.
    pub fn free(&self) -> Option<usize> {
        self.places.map(|places| (places as usize).saturating_sub(self.taken.len()))
    }

    /// A free place. The last one, because a device that ranks rules obeys the first that matches, and those that an
    /// administrator made by number stay before ours.
    pub fn last_free_place(&self) -> Option<u32> {
        (0..self.places?).rev().find(|place| self.taken.iter().all(|(taken, _)| taken != place))
    }
}

const RXH_IP_SRC: u64 = 1 << 4;
const RXH_IP_DST: u64 = 1 << 5;
const RXH_L4_B_0_1: u64 = 1 << 6;
const RXH_L4_B_2_3: u64 = 1 << 7;

/// Which fields of a datagram go into the hash: a mask of the `RXH_` bits of linux/ethtool.h.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// The source and destination addresses.
    pub const ADDRESSES: Self = Self(RXH_IP_SRC | RXH_IP_DST);
    /// The addresses and the ports.
    pub const ADDRESSES_AND_PORTS: Self = Self(RXH_IP_SRC | RXH_IP_DST | RXH_L4_B_0_1 | RXH_L4_B_2_3);

    /// Every part that ethtool has a letter for.
    const LETTERS: [(u64, char); 10] = [
        (1 << 1, 'm'), // RXH_L2DA
        (1 << 2, 'v'), // RXH_VLAN
        (1 << 3, 't'), // RXH_L3_PROTO
        (RXH_IP_SRC, 's'),
        (RXH_IP_DST, 'd'),
        (RXH_L4_B_0_1, 'f'),
        (RXH_L4_B_2_3, 'n'),
        (1 << 8, 'e'),  // RXH_GTP_TEID
        (1 << 9, 'l'),  // RXH_IP6_FL
        (1 << 31, 'r'), // RXH_DISCARD
    ];

    /// The letters that `ethtool -N ... rx-flow-hash` takes.
    pub fn letters(self) -> String {
        Self::LETTERS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, letter)| letter).collect()
    }

    /// Itself, unless a part of it has no letter: what cannot be written down cannot be put back either.
    pub(crate) fn expressible(self) -> Answer<Self> {
        let known = Self::LETTERS.iter().fold(0, |bits, (bit, _)| bits | bit);
        if self.0 & !known == 0 {
            return Ok(self);
        }
        let operation = format!("name what the device hashes ({:#x})", self.0);
        let cause = io::Error::other(format!("the bits {:#x} are not known", self.0 & !known));
        Err(EthtoolError::Failed { operation, cause })
    }

    /// What these letters mean; `None` when one of them means nothing.
    pub fn from_letters(letters: &str) -> Option<Self> {
        let bit = |wanted: char| Self::LETTERS.iter().find(|(_, letter)| *letter == wanted).map(|(bit, _)| *bit);
        letters.chars().try_fold(0, |bits, letter| Some(bits | bit(letter)?)).map(Self)
    }
}

/// The family whose UDP datagrams a hash is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// UDP over this family, in the words of ethtool.
    pub(crate) fn flow(self) -> &'static str {
        match self {
            Self::V4 => "udp4",
            Self::V6 => "udp6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Everything a driver can be asked and told.
pub trait Ethtool {
    /// The name of the driver, as in "virtio_net".
    fn driver(&self, interface: &str) -> Answer<String>;
    /// How many queues there are.
    fn channels(&self, interface: &str) -> Answer<Channels>;
    /// Sets the counts of `channels` that are in use; the `_max` fields are not looked at.
    fn set_channels(&self, interface: &str, channels: &Channels) -> Answer<()>;
    /// How long the rings are.
    fn rings(&self, interface: &str) -> Answer<Rings>;
    /// Sets the lengths of `rings` that are in use; the `_max` fields are not looked at.
    fn set_rings(&self, interface: &str, rings: &Rings) -> Answer<()>;
    /// The indirection table, the key and the function of the hash.
    fn rss(&self, interface: &str) -> Answer<Rss>;
    /// Sets the indirection table; `None` is the driver's own default.
    fn set_indirection(&self, interface: &str, table: Option<&[u32]>) -> Answer<()>;
    /// Sets the key of the hash.
    fn set_rss_key(&self, interface: &str, key: &[u8]) -> Answer<()>;
    /// What of a UDP datagram is hashed.
    fn flow_hash(&self, interface: &str, family: Family) -> Answer<FlowHash>;
    /// Sets what of a UDP datagram is hashed.
    fn set_flow_hash(&self, interface: &str, family: Family, hash: FlowHash) -> Answer<()>;
    /// When the device announces what it received.
    fn coalescing(&self, interface: &str) -> Answer<Coalescing>;
    /// Sets that; what [`Coalescing`] does not name keeps its value.
    fn set_coalescing(&self, interface: &str, coalescing: &Coalescing) -> Answer<()>;
    /// A feature by the kernel's name for it, such as [`NTUPLE`].
    fn feature(&self, interface: &str, name: &str) -> Answer<Feature>;
    /// Turns a feature on or off.
    fn set_feature(&self, interface: &str, name: &str, on: bool) -> Answer<()>;
    /// The rules by which the device sorts.
    fn rules(&self, interface: &str) -> Answer<Rules>;
    /// Adds a rule at a place, or where the driver likes, and returns where it is.
    fn insert_rule(&self, interface: &str, rule: &Rule, place: Option<u32>) -> Answer<u32>;
    /// Deletes the rule at a place.
    fn delete_rule(&self, interface: &str, place: u32) -> Answer<()>;
}
