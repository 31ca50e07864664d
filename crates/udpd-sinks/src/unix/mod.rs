//! A Unix socket on which another process listens.

mod peer;
mod settings;
mod sink;
mod spilled;

pub use settings::{Framing, UnixSettings, UnixSocket};
