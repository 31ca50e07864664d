//! How datagrams change hands: the pool that every batch comes home to, the channel from receivers to a consumer, and
//! the route that says which of the two forms they take and what happens when a sink does not keep up.

pub mod batch;
mod bell;
pub mod blocks;
pub mod channel;
mod marks;
pub mod pool;
pub mod route;
pub mod stamp;
#[cfg(test)]
mod stress_tests;

pub use bell::Caller;
