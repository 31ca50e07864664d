//! Sinks: where datagrams go. A sink is owned by one consumer and called with batches, never with single datagrams, so
//! it can pay once per batch for what is dear: a system call, a lock, a look at the clock.
//!
//! The contract of the books: the consumer adds a batch to `taken` and `pending` before [`Sink::accept`]; the sink
//! moves each datagram exactly once from `pending` to `delivered` or `failed`, at the latest in [`Sink::flush`]. The
//! consumer flushes whenever its channel is empty, so nothing waits in a buffer while there is nothing else to do. A
//! sink whose destination acknowledges may hold them until the answer comes, and is then due until all have come.
//!
//! A type of sink is one folder (or file) below and one line of the table in `types`. Its folder says what an operator
//! may write of it (`written`), what that asks of the machine, and how it is opened (`settings`).

pub mod contract;
pub mod open_context;
pub mod outbox;
pub mod settings;
pub mod supplied;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod written;

pub use contract::{ConsumerFeeders, Sink, deliver, fail};
pub use open_context::OpenContext;
pub use settings::{AnySettings, Differs, SinkSettings};
pub use supplied::Supplied;
