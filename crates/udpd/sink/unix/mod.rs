//! A socket of this host, on which somebody else listens.

mod settings;
mod sink;

pub use settings::{Framing, UnixSettings, UnixSocket};
