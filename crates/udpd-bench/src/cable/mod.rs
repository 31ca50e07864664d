//! The cable of the bench: an interface that receives, another one that sends to it, and who is addressed.
//!
//! Loopback takes no frames and no XDP program. Where the bench is to measure what lies past the sockets, or the
//! sockets on the same way, it needs two Ethernet interfaces with a wire between them. Whoever has them names them.
//! Everybody else gets a virtual pair in a network namespace of the bench's own, where nothing of this host can be
//! disturbed, and which goes when the process goes.

mod lay;
mod options;
mod wire;

pub use options::Options;
pub use wire::Cable;
pub(super) use wire::check;
