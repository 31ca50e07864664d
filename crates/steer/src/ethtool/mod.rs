//! Drivers, asked and told through ethtool.
//!
//! The trait [`Ethtool`] is the seam. Behind it are the ioctls of the running kernel ([`Ioctl`]) or, in tests, a device
//! that exists only in memory.

pub(crate) mod command;
mod driver;
#[cfg(test)]
pub(crate) mod fake;
mod ioctl;
mod wire;

pub use driver::{Answer, Channels, DriverInfo, Ethtool, EthtoolError, Family, FlowHash, Rings, Rss};
pub use ioctl::Ioctl;
