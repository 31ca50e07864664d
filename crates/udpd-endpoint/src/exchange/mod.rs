//! A listening socket and the one thread that serves its clients: the frame of the control socket and of the metrics
//! endpoint.
//!
//! A client asks one question, gets one answer and leaves. All clients are served at once, by one thread that waits for
//! all of them in `poll` and never for one of them: a connection that says nothing costs the others nothing. How many
//! are held is bounded; when one more comes, the oldest to which no answer is owed has to go. So no number of idle
//! connections keeps a question out, and none of them can stay for ever: each stage of an exchange has its deadline.
//! Nobody there means that nobody wakes, but for a service with streams.
//!
//! A stream is an answer that goes on: a piece with every beat, the same for all. Who follows one is a guest, and
//! guests have some of the places, so that others always find one. A client that is too slow for a piece misses it, and
//! one that cannot take a piece in the time of an answer is let go; so none of them makes the service keep more than
//! that.

mod client;
mod protocol;
mod server;
mod service;
mod ticket;

pub(crate) use protocol::{Limits, Listener, Protocol, Question, Reply};
pub(crate) use service::Service;
pub(crate) use ticket::{Asker, Ticket};

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
pub(crate) mod tests;
