//! What the process has from the operating system: threads, signals, its output, its service manager, and who owns a
//! port.

pub mod console;
pub mod crew;
pub mod duty;
pub mod holder;
pub mod interrupt;
pub mod lookup;
pub mod names;
pub mod notify;
pub(crate) mod owned;
pub(crate) mod paths;
pub mod products;
pub mod runtime;
pub mod signals;
#[cfg(test)]
pub(crate) mod testing;
pub mod threads;
pub mod user;
pub mod warden;
