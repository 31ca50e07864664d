//! Whether a receive call waits, and for how long: what batches and engines are asked alike.

use std::time::Duration;

/// Whether a receive call waits for the first datagram.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for the first datagram, then take what else is there (`MSG_WAITFORONE`).
    Block,
    /// Let datagrams gather: wait until the batch is full or this time is over, and after that for as long as nothing
    /// has come. An engine that cannot be woken by a full batch waits the whole time.
    Gather(Duration),
    /// Take what is there (`MSG_DONTWAIT`).
    No,
}
