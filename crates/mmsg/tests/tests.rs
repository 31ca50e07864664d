//! Everything that needs sockets of loopback only, in one program.
#![cfg(not(miri))] // system calls throughout

mod common;

mod adopt;
mod engines;
mod examples;
mod extras;
mod gro_trains;
mod group;
mod options;
mod receive;
mod replace;
mod send;
mod sources;
mod waits;
mod wake;
