//! `udpd bench ladder`: receiving a million datagrams a second as measured steps, on this machine.

mod advice;
mod command;
mod measure;
mod step;
mod trial;

pub use command::{LadderArguments, execute};
