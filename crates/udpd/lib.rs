//! udpd, the front door for UDP on a Linux host.
//!
//! ```text
//! NIC queue --> core --> socket --> receiver --> channel --> consumer --> sink
//!                                     ^                         |
//!                                     +----- empty batches <----+
//! ```
//!
//! The modules below stand in the order of use: commands, then the pipeline, then the threads, then what they hold.
//! Imports run downwards only. Reading order for a newcomer: `pipeline`, `receiver`, `consumer`, `pool`, `ledger`.
#![forbid(unsafe_code)]

pub mod cli;
pub mod exit;

pub mod bench;
pub mod check;
pub mod nic;
pub mod replay;
pub mod run;
pub mod sharing;
pub mod signals;
pub mod stats;
pub mod steering;
pub mod upkeep;

pub mod config;
mod console;
pub mod control;
pub mod logging;
pub mod metrics;
pub mod notify;
pub mod watch;
pub mod watchdog;

mod activation;
mod exchange;
mod service;

pub mod budget;
pub mod engine;
pub mod holder;
pub mod limits;
pub mod machine;
pub mod pipeline;
pub mod sock_diag;

pub mod channel;
pub mod consumer;
pub mod receiver;

pub mod calendar;
pub mod capture;
pub mod crew;
pub mod ledger;
pub mod packet;
pub mod policy;
pub mod pool;
pub mod sink;
pub mod successor;
