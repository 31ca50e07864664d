//! What is counted for a lane that has no socket: what the kernel has lost of a receive queue past its stack, and how
//! much of it waits.

use mmsg::xdp::{Counter, Tally};
use serde::{Deserialize, Serialize};

/// Of a lane past the kernel's stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpSnapshot {
    pub interface: String,
    /// "native": the program sits in the driver; "generic": above it.
    pub mode: String,
    /// Whether the device writes frames itself; null while there was no engine yet.
    pub zero_copy: Option<bool>,
    /// Whether there is an engine. Without one its queue passes to the sockets of the listener.
    pub is_running: bool,
    /// The same in a word, with the reason: "running", "no_interface", "retrying", "given_up" or "ended".
    #[serde(default)]
    pub state: String,
    /// Room for so many frames that have arrived and are not received yet.
    pub chunks: u64,
    /// How many of these waited when it was looked at last, which is some times a second.
    pub waiting: u64,
    /// Datagrams that were taken although their checksum covers addresses and length only: their sender is on this
    /// host and has left the rest to a device.
    pub checksum_left_to_device: u64,
}

/// How the engine of a queue fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    Running,
    /// There is none, and will not be one.
    Ended,
    /// The interface is gone, and is waited for.
    NoInterface,
    /// It is tried again and again to make it anew.
    Retrying,
    /// That was given up.
    GivenUp,
}

impl QueueState {
    fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended => "ended",
            Self::NoInterface => "no_interface",
            Self::Retrying => "retrying",
            Self::GivenUp => "given_up",
        }
    }
}

/// What the kernel tells of a queue. Its count ends with the engine.
#[derive(Debug)]
pub(super) struct QueueSide {
    counter: Option<Counter>,
    /// As of the last look; `None` where it is not known.
    lost: Option<u64>,
    is_zero_copy: Option<bool>,
    /// Why there is no engine.
    pub(super) without: QueueState,
    /// What the engine counts itself.
    pub(super) tally: Tally,
}

impl QueueSide {
    /// Of a queue without an engine yet, which loses nothing.
    pub(super) fn new() -> Self {
        Self { counter: None, lost: Some(0), is_zero_copy: None, without: QueueState::Ended, tally: Tally::default() }
    }

    pub(super) fn begin(&mut self, counter: Counter) {
        self.is_zero_copy = Some(counter.is_zero_copy());
        self.counter = Some(counter);
    }

    /// Frames that were handed over and never received; `None` where that is not known.
    pub(super) fn lost(&mut self) -> Option<u64> {
        if let Some(counter) = &self.counter {
            self.lost = counter.lost().ok().flatten();
        }
        self.lost
    }

    /// Looks for the last time and lets go of the queue.
    pub(super) fn end(&mut self) {
        self.lost();
        self.counter = None;
    }

    /// What it shows.
    pub(super) fn read(&self) -> XdpSnapshot {
        XdpSnapshot {
            zero_copy: self.is_zero_copy,
            is_running: self.counter.is_some(),
            state: if self.counter.is_some() { QueueState::Running } else { self.without }.name().to_owned(),
            waiting: u64::from(self.tally.waiting),
            checksum_left_to_device: self.tally.left_to_device,
            ..XdpSnapshot::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_an_engine_has_lost_nothing_and_says_that_it_has_none() {
        let mut queue = QueueSide::new();
        queue.tally.left_to_device = 3;
        assert_eq!(queue.lost(), Some(0), "everything passes to the sockets");
        let shown = queue.read();
        assert_eq!((shown.is_running, shown.zero_copy, shown.checksum_left_to_device), (false, None, 3));
        queue.without = QueueState::NoInterface;
        queue.end();
        assert_eq!((queue.lost(), queue.read().state.as_str()), (Some(0), "no_interface"));
    }
}
