//! What the tests and the benches share: configurations, a daemon to aim at, a load generator, and checks of what came.
//!
//! Each of them uses a part, so what one leaves unused is not dead.
#![allow(dead_code, unused_imports)]

pub(crate) mod ask;
pub(crate) mod daemon;
pub(crate) mod ended;
pub(crate) mod engines;
pub(crate) mod ledger;
pub(crate) mod licence;
pub(crate) mod load;
pub(crate) mod manager;
pub(crate) mod outcome;
pub(crate) mod pipeline;
pub(crate) mod process;
pub(crate) mod setup;
pub(crate) mod site;
pub(crate) mod sockets;
pub(crate) mod source;
pub(crate) mod wait;

pub(crate) use ask::Ask;
pub(crate) use daemon::{Daemon, SCALE, free_address};
pub(crate) use ended::{Ended, contents, files};
pub(crate) use engines::{engines, name_in, two_engines};
pub(crate) use ledger::*;
pub(crate) use load::{Amount, Load, LoadReport, read_text_header};
pub(crate) use manager::Manager;
pub(crate) use outcome::{Outcome, is_root, not_checked, udpd};
pub(crate) use process::{Process, Thread, UDPD, threads};
pub(crate) use setup::{Setup, example};
pub(crate) use site::{Running, Site};
pub(crate) use sockets::*;
pub(crate) use wait::{PATIENCE, until};
