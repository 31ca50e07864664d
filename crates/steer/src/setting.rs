//! One setting of a host, with its name.
//!
//! Values are texts, exactly as the kernel shows them where it shows texts, so that "as it was before" can mean byte
//! for byte.

use std::fmt;
use std::net::IpAddr;

use crate::ethtool::{EthtoolError, Family};

/// What can be set. The order is the order of application: most drivers forget the later ones when an earlier one
/// changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Setting {
    /// The counts of queues: "rx tx other combined".
    Channels,
    /// The lengths of the rings: "rx tx".
    Rings,
    /// When the device announces what it received: "adaptive-rx off rx-usecs 50 rx-frames 0".
    Coalescing,
    /// Whether the device sorts datagrams by rules: "on" or "off".
    Ntuple,
    /// The rule that sends UDP datagrams to a queue: "queue 7 at 1021", the place behind it, or "none".
    Rule {
        /// The family of the datagrams.
        family: Family,
        /// The address that they are sent to; `None` is any.
        destination: Option<IpAddr>,
        /// The port that they are sent to.
        port: u16,
    },
    /// The indirection table: numbers with commas.
    Indirection,
    /// The key of the hash, in hexadecimal.
    HashKey,
    /// What is hashed of UDP over IPv4, as letters.
    FlowHashV4,
    /// What is hashed of UDP over IPv6, as letters.
    FlowHashV6,
    /// The cores of an interrupt.
    Interrupt {
        /// Its number, as in `/proc/irq`.
        number: u32,
        /// Its name, by which it is found again when the driver has asked for new ones.
        name: String,
    },
    /// The mask of RPS of a receive queue.
    Rps(usize),
    /// The mask of XPS of a send queue.
    Xps(usize),
    /// Whether kernel threads poll the queues (threaded NAPI): 0 or 1.
    Threaded,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channels => formatter.write_str("channels"),
            Self::Rings => formatter.write_str("rings"),
            Self::Coalescing => formatter.write_str("coalescing"),
            Self::Ntuple => formatter.write_str("ntuple"),
            Self::Rule { family, destination, port } => {
                let family = if *family == Family::V4 { "udp4" } else { "udp6" };
                let destination = destination.map_or("any".to_owned(), |address| address.to_string());
                write!(formatter, "rule {family} {destination} {port}")
            }
            Self::Indirection => formatter.write_str("indirection"),
            Self::HashKey => formatter.write_str("hash-key"),
            Self::FlowHashV4 => formatter.write_str("flow-hash-udp4"),
            Self::FlowHashV6 => formatter.write_str("flow-hash-udp6"),
            Self::Interrupt { number, name } => write!(formatter, "interrupt {number} {name}"),
            Self::Rps(queue) => write!(formatter, "rps {queue}"),
            Self::Xps(queue) => write!(formatter, "xps {queue}"),
            Self::Threaded => formatter.write_str("threaded-napi"),
        }
    }
}

impl Setting {
    /// Reads the name that [`fmt::Display`] writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        Some(match (word, rest) {
            ("channels", "") => Self::Channels,
            ("rings", "") => Self::Rings,
            ("coalescing", "") => Self::Coalescing,
            ("ntuple", "") => Self::Ntuple,
            ("rule", rest) => parse_rule(rest)?,
            ("indirection", "") => Self::Indirection,
            ("hash-key", "") => Self::HashKey,
            ("flow-hash-udp4", "") => Self::FlowHashV4,
            ("flow-hash-udp6", "") => Self::FlowHashV6,
            ("threaded-napi", "") => Self::Threaded,
            ("rps", queue) => Self::Rps(queue.parse().ok()?),
            ("xps", queue) => Self::Xps(queue.parse().ok()?),
            ("interrupt", rest) => {
                let (number, name) = rest.split_once(' ')?;
                Self::Interrupt { number: number.parse().ok()?, name: name.to_owned() }
            }
            _ => return None,
        })
    }
}

fn parse_rule(text: &str) -> Option<Setting> {
    let [family, destination, port] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let family = match family {
        "udp4" => Family::V4,
        "udp6" => Family::V6,
        _ => return None,
    };
    let destination = if destination == "any" { None } else { Some(destination.parse::<IpAddr>().ok()?) };
    let fits = destination.is_none_or(|address| address.is_ipv4() == (family == Family::V4));
    Some(Setting::Rule { family, destination, port: port.parse().ok()? }).filter(|_| fits)
}

/// Why a setting could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingError {
    /// Neither the host nor its driver has it.
    NotSupported,
    /// The queue or the interrupt that it belongs to is not there.
    Gone(String),
    /// A right is missing: what cannot be done, and which right it takes.
    Permission(String),
    /// Any other failure: what was attempted, and the cause.
    Failed(String),
}

impl fmt::Display for SettingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSupported => formatter.write_str("neither the host nor the driver supports it"),
            Self::Gone(what) | Self::Permission(what) | Self::Failed(what) => formatter.write_str(what),
        }
    }
}

impl std::error::Error for SettingError {}

impl From<EthtoolError> for SettingError {
    fn from(error: EthtoolError) -> Self {
        match error {
            EthtoolError::NotSupported => Self::NotSupported,
            EthtoolError::Permission => Self::Permission(error.to_string()),
            EthtoolError::NoInterface | EthtoolError::Failed { .. } => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read_back_by_the_name_that_it_shows() {
        let rule = |family, destination| Setting::Rule { family, destination, port: 514 };
        let settings = [
            Setting::Channels,
            Setting::Rings,
            Setting::Coalescing,
            Setting::Ntuple,
            rule(Family::V4, None),
            rule(Family::V4, Some(IpAddr::from([192, 0, 2, 1]))),
            rule(Family::V6, None),
            rule(Family::V6, Some(IpAddr::from([7; 16]))),
            Setting::Indirection,
            Setting::HashKey,
            Setting::FlowHashV4,
            Setting::FlowHashV6,
            Setting::Interrupt { number: 38, name: "eth0-TxRx-0 (old)".to_owned() },
            Setting::Rps(3),
            Setting::Xps(4),
            Setting::Threaded,
        ];
        for setting in &settings {
            assert_eq!(Setting::parse(&setting.to_string()).as_ref(), Some(setting));
        }
        assert!(settings.is_sorted(), "the order in which they are applied");
        for wrong in ["", "rule", "rule udp4 any", "rule udp4 ::1 514", "rule udp6 any 70000", "coalescing 1", "rps x"]
        {
            assert_eq!(Setting::parse(wrong), None, "{wrong:?}");
        }
    }
}
