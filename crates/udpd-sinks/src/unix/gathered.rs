//! What a stream with a spill has in hand, and how long a call waits for a peer.

use std::time::Duration;

/// How long a peer that takes nothing is waited for at once. With a spill it then counts as one that is gone; without
/// one what it has taken until then is counted, and it is waited for again.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// Records of a batch that are on their way into a stream.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The place of each datagram in its batch, and where its record ends in the buffer.
    pub(super) records: Vec<(usize, usize)>,
    /// What is left of the record that the peer has taken a part of.
    pub(super) cut: Vec<u8>,
}
