//! How things stand with a destination, and what of the spill it is sent.

use std::time::{Duration, Instant};

use crate::Frame;

/// How soon a destination is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(250);

/// How things stand with the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It takes everything, and nothing is in the spill.
    Well,
    /// It took nothing when it was tried last.
    Down { retry: Instant },
    /// It was sent one datagram, and may still refuse it.
    Trial { until: Instant },
    /// It takes what is in the spill.
    Draining,
}

/// Where a frame waits while it is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// In a segment: it counts as spilled.
    OnDisk,
    /// In front of what the disk does not take: it is pending.
    InMemory,
    /// Nowhere any more: only its first datagram is left, which was sent and may still be refused, and is pending.
    Nowhere,
}

/// A frame of the spill that is being sent.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) frame: Frame,
    pub(super) held: Held,
    /// The places of the datagrams that are not decided, in their order.
    pub(super) todo: Vec<usize>,
}

impl Work {
    /// Up to which place of its segment everything is decided.
    pub(super) fn decided(&self) -> u64 {
        self.todo.first().map_or(self.frame.end, |&first| self.frame.in_segment(first))
    }

    /// Whether nothing behind that place is.
    pub(super) fn is_a_rest(&self) -> bool {
        self.decided() + self.todo.len() as u64 == self.frame.end
    }
}
