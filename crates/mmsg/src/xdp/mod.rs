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
//!
//! # Three engines, one batch
//!
//! `recvmmsg`, io_uring and AF_XDP fill the same batches. A slot's memory is a block that is laid out as io_uring fills
//! one (preface, name, control, payload), and the header that `recvmmsg` reads points into it. The ring of a lane has
//! blocks of the lane's own pool; a filled one changes places with the empty one of the batch's slot, so no payload is
//! copied a second time, every batch owns as many blocks as it was born with, and the pool's sum stays true. From there
//! on the accounts, the splitting of trains and the reader are the same code. Where the kernel stops (`shutdown` is not
//! seen by a receive that a ring has in flight) a poll for the end of the socket does it; then the ring is taken down,
//! what it had received is handed out, and `recvmmsg` takes the rest.
//!
//! A ring belongs to the thread that made it: the kernel then runs its work only inside that thread's calls, without
//! locks and interrupts. Hence lanes make their engines themselves. If the kernel will not let go of its blocks when an
//! engine is dropped, their memory is leaked rather than unmapped.
//!
//! AF_XDP takes frames of one receive queue before the kernel's stack has seen them. Its chunks are the same blocks,
//! and change places in the same way. The kernel writes a frame at a fixed distance from the start of its chunk, so a
//! payload lies where the headers before it end, and not where a block has it otherwise: the slot points there until it
//! is armed again, and what a reader wants to know of the datagram is written over the headers, which have been read by
//! then. Blocks are no power of two long, so chunks are those that the kernel calls unaligned; a device that writes by
//! itself gets only those that lie within a page.
//!
//! The program hands over what the stack would have brought to the socket and nothing else, so whatever it does not
//! know is passed and an ordinary socket beside it gets it. What it hands over and the engine then refuses is what the
//! kernel would have dropped: wrong lengths and checksums. A sender on the same host leaves checksums to the device,
//! and a virtual cable has none: then the field has the sum of addresses and lengths alone. Nothing in a frame tells
//! that from a wrong checksum that looks so by chance, which one in 65,536 does; so whether it is taken, and then
//! counted, or refused is an option.
//!
//! In the daemon the program is attached without an address, so everything passes until every lane is there, and again
//! from the moment that they are to end. A lane of a queue has no socket: its ledger reads what its queue has lost, and
//! whatever is kept, bound or handed on is of the lanes of addresses beside it. A reload ends the engines before it
//! makes new ones, because a queue has one; meanwhile the sockets receive. An interface that came back, or has more
//! queues, is a reload without a request: the lanes follow from the queues, and their memory and consumers from the
//! lanes. The program stays loaded throughout, because to attach it again takes no right and to load it does.
//!
//! It ends without a gap: the queue's socket leaves the program's map, every core that had a frame in hand is waited
//! for (`membarrier`), and the ring is final. When an engine is dropped nothing is leaked: the kernel has pinned the
//! pages and lets go of them last, whatever is unmapped here.

mod attached_program;
mod engine;
mod frame;
mod frame_metadata;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod move_frame;
mod options;
mod program;
mod refusal;
mod rings;
mod sender_cmsg;
mod socket;
#[cfg(test)]
mod testing;
mod umem;

pub use crate::refusal::{Obstacle, Refusal};
pub use attached_program::{Loaded, Redirect};
pub(crate) use engine::Xdp;
pub use options::{Checksums, Mode, Options, Tally, Wanted};
pub use socket::{Counter, Statistics, socket};
