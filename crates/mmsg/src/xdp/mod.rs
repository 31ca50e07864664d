//! AF_XDP: datagrams of a network interface past the kernel's stack, with an account of each.
//!
//! A [`Redirect`] puts a program of some hundred instructions at an interface. It hands whole UDP datagrams to one port
//! over to the engines of the interface's receive queues, which [`Engine::af_xdp`](crate::Engine::af_xdp) makes, and
//! lets everything else pass to the kernel. The engines fill the same batches as every other engine.
//!
//! What the kernel lost of a queue is in its [`Statistics`], what the engine refused in its [`Tally`], to the frame:
//! handed over = received + refused + lost.
//!
//! ```no_run
//! use std::sync::Arc;
//! use mmsg::{BatchShape, Engine, RecvBatch, Wait, xdp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wanted = xdp::Wanted::new("eth1", 5140);
//! let redirect = Arc::new(xdp::Redirect::attach(&wanted, &["192.0.2.7".parse()?])?);
//!
//! // One engine for each receive queue, on a thread of its own. 63 batches are room for 4,032 frames.
//! let (mut reserve, _) = RecvBatch::pool(64, &BatchShape::new(64, 2048))?;
//! let mut batch = reserve.remove(0);
//! let mut engine = Engine::af_xdp(Arc::clone(&redirect), reserve, &xdp::Options::new(0))?;
//! while engine.receive(&mut batch, Wait::Block)? > 0 {
//!     for datagram in &batch {
//!         println!("{:?}: {} bytes", datagram.source(), datagram.length());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! It ends without a gap: [`Engine::finish`](crate::Engine::finish) lets the queue's frames pass to the stack, where
//! the ordinary socket takes them, and what is in the ring can still be received.

mod control;
mod engine;
mod frame;
mod hidden_state;
mod move_frame;
mod options;
mod program;
mod redirect;
mod refusal;
mod rings;
mod socket;
#[cfg(test)]
mod testing;
mod umem;

pub use crate::refusal::{Obstacle, Refusal};
pub(crate) use engine::Xdp;
pub use options::{Checksums, Mode, Options, Tally, Wanted};
pub use redirect::{Loaded, Redirect};
pub use socket::{Counter, Statistics, socket};
