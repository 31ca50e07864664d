//! What the metrics address serves: the ledger for Prometheus and a page for people, over as much of HTTP as that
//! takes.
//!
//! `server` binds and serves, `answers` says what is at which path, `request` and `response` read and word HTTP.
//! `token` and `hosts` decide who may ask. `exposition` is the text for Prometheus, with `host` for what the host lost,
//! `history` the last hour, with `listener_hours` for each listener, `page/` what a browser gets.

mod answers;
mod exposition;
mod history;
mod host;
mod hosts;
mod listener_hours;
mod page;
mod request;
mod response;
mod server;
mod token;

pub use exposition::exposition;
pub use server::{MetricsHandle, MetricsServer};
pub use token::TokenFile;

#[cfg(test)]
mod ledger_page_tests;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod tests;
