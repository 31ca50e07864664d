//! A socket of this host, on which somebody else listens.

mod peer;
mod settings;
mod sink;
mod spilled;

pub use settings::{Framing, UnixSettings, UnixSocket};
