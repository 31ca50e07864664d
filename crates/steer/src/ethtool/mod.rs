//! Drivers, asked and told through ethtool.
//!
//! The trait [`Ethtool`] is the seam. Behind it are the ioctls of the running kernel ([`Ioctl`]) or, in tests, a device
//! that exists only in memory.

pub(crate) mod command;
mod driver;
mod ioctl;
mod wire;

pub use driver::{
    Answer, Channels, Coalescing, DriverInfo, Ethtool, EthtoolError, Family, Feature, FlowHash, NTUPLE, Rings, Rss,
    Rule, Rules,
};
pub use ioctl::{DriverStatistics, Ioctl};
