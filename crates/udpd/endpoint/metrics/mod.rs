//! The metrics endpoint: the ledger for Prometheus, over as much of HTTP as that takes.

mod exposition;
mod http;

pub use exposition::exposition;
pub use http::{MetricsHandle, MetricsServer};
