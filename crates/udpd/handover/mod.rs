//! How batches change hands: the channel from receiver to consumer, and the pool that every batch comes home to.

pub mod channel;
pub mod pool;
