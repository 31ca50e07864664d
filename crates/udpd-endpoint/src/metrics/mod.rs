//! What the metrics address serves: the ledger for Prometheus and a page for people, over as much of HTTP as that
//! takes.
//!
//! `server` binds, serves, and says what is at which path. `http` reads and words HTTP, `access` decides who may ask.
//! `exposition` is the text for Prometheus, `history` the last hour, `days` more of it on the disk, `page/` what a
//! browser gets.

mod access;
mod days;
mod exposition;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod history;
mod http;
mod page;
mod server;

pub use access::TokenFile;
pub use days::{DAYS_MAX, bytes_on_disk, file_in};
pub use exposition::exposition;
pub(crate) use http::head_length;
pub(crate) use server::listen_failure;
pub use server::{KeptDays, MetricsHandle, MetricsServer};

#[cfg(test)]
mod exported_names_tests;
#[cfg(test)]
mod tests;
