//! What the process has from the operating system: threads, signals, its output, its service manager, and who owns a
//! port.

pub mod console;
pub mod holder;
pub mod lookup;
pub mod names;
pub mod notify;
pub mod owned;
pub mod paths;
pub mod role;
pub mod runtime;
pub mod signals;
pub mod threads;
pub mod user;
pub mod watchdog;
