//! `udpd bench recv`: takes what `udpd bench send` sends through the real pipeline, and says what became of each
//! datagram.

mod command;
mod flows;
mod run;
mod tracker;

pub use command::{RecvArguments, execute};
