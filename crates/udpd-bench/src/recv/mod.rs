//! `udpd bench recv`: receives what `udpd bench send` sends with the real pipeline, and classifies each datagram.

mod command;
mod flows;
mod run;
mod tracker;

pub use command::{RecvArguments, execute};
