//! udpd, the front door for UDP on a Linux host.
//!
//! ```text
//! NIC queue --> core --> socket --> receiver --> channel --> consumer --> sink
//!                                     ^                         |
//!                                     +----- empty batches <----+
//! ```
//!
//! The rooms below stand in the order of the floors, and a file imports only from floors below its own: a test derives
//! the rule from this list. Reading order for a newcomer: `pipeline`, its `receiver` and `consumer`, `handover`,
//! `ledger`.
#![forbid(unsafe_code)]
// Nobody outside reads the documentation of a program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

pub mod cli;

pub mod commands;
pub mod watch;

pub mod pipeline;
pub mod plan;

pub mod config;

pub mod sink;

pub mod format;
pub mod policy;
pub mod upstream;

pub mod endpoint;
pub mod logging;

pub mod spill;

pub mod handover;
pub mod ledger;

pub mod settings;

pub mod host;

pub mod sandbox;

pub mod capture;
pub mod codec;
pub mod os;
pub mod text;

pub mod exit;
