//! How datagrams change hands: the pool that every batch comes home to, the channel from receivers to a consumer, and
//! the route that says which of the two forms they take and what happens when a sink does not keep up.
//!
//! # Lent or packed
//!
//! The length of a datagram is not known before it is received, so a batch has a slot of full length for each. That is
//! right for what is handed on at once, and wrong for what waits: a hundred short datagrams would hold a hundred long
//! slots. So there are two forms, and a sink sees no difference:
//!
//! ```text
//!  receiver --(the batch itself, by counted reference)--------> consumer     while it keeps up
//!      |                                                           ^
//!      +--(copies, one behind the other in blocks)-> | | | |open|--+         while it is behind
//! ```
//!
//! Copying is paid only while a consumer is behind, and by memory that was touched a moment ago. It serves every engine
//! alike, because packing reads datagrams and does not care whose memory they are in. The other way, small slots with
//! an overflow for long datagrams, would have saved the copy and cost every receive call a second vector for each slot;
//! and what a ring of io_uring or AF_XDP fills is contiguous and of full length anyway.
//!
//! A block that is not full stays *open*: it lies in a place of its own beside the queue, where the receiver takes it
//! out again to go on and a consumer that has nothing else takes it as it is. So short batches are joined for as long
//! as the consumer is behind and not longer, without a timer. Loads of a lane are numbered, and a consumer that holds
//! an open block compares numbers, so nothing overtakes.
//!
//! Blocks belong to memory nodes and not to lanes. Each queue owns a few, or what `absorb` and `queue_bytes` promise
//! its sink; the others are shared, and a queue borrows up to its limit. A sink that takes nothing for ever therefore
//! holds its own part and what is shared, and the ledger counts what it refuses as its own `queue_full`.
//!
//! # Waking up
//!
//! At moderate rates most of the cost of receiving is waking threads. The receiver's wake-ups are the kernel's; the
//! consumer's are ours. An idle consumer sleeps in its channel, and a lone datagram is handed on at once. In a flood,
//! which is a rate of datagrams and not of wake-ups, it naps for a millisecond at a time instead, so a flood costs a
//! thousand wake-ups a second whatever its rate; receivers see the nap and rest meanwhile, and their batches are full
//! when the consumer looks. Without traffic no thread wakes but the main thread and, where a service manager asks for
//! signs of life, the watchdog, each once a second.
//!
//! A sink that never waits can do without the second wake-up: `inline`, it runs on the receiver. The loop is the same,
//! and what differs is the outlet: a channel, or the sink and its ledger. Such a sink keeps nothing beyond a batch, so
//! nothing of it is due while its receiver sleeps in the kernel.

pub mod batch;
pub mod channel;
pub mod pool;
pub mod route;
#[cfg(test)]
mod stress_tests;
mod sync;

pub use channel::Caller;
