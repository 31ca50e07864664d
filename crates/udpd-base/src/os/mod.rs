//! What the process has from the operating system: threads, signals, its output, its service manager, and who owns a
//! port.

pub mod console;
pub mod holder;
pub mod host_names;
pub mod local_time;
pub mod lookup;
pub mod notify;
pub mod path_check;
pub mod role;
pub mod runtime;
pub mod signals;
pub mod threads;
pub mod trusted_files;
pub mod user;
pub mod watchdog;
