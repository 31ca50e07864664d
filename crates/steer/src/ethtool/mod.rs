//! Drivers, asked and told through ethtool.
//!
//! The trait [`Ethtool`] has two implementations: the ioctls of the running kernel ([`Ioctl`]) and, for tests, a device
//! in memory.

pub(crate) mod command;
mod driver;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod ioctl;
mod wire;

pub use driver::{
    Answer, Channels, Coalescing, Ethtool, EthtoolError, Family, Feature, FlowHash, NTUPLE, Rings, Rss, Rule, Rules,
};
pub use ioctl::{DriverStatistics, Ioctl};
