//! `udpd bench`: a generator and a receiver whose counts can be believed, and the parts they share.
//!
//! `send` numbers, times and paces datagrams; `recv` receives them with the real pipeline and classifies each; `ladder`
//! measures one way of receiving after the other, and `max` looks for the rate at which a whole pipeline begins to
//! lose. Both are library calls with a stop flag first and commands second, so that other measurements can be built on
//! them.
#![forbid(unsafe_code)]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod cable;
mod chart;
mod clock;
pub mod ladder;
mod machine;
pub mod max;
mod output;
mod pacer;
pub mod payload;
pub mod recv;
pub mod send;
mod sizes;
