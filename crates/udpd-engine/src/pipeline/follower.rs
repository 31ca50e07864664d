//! The thread of a listener with a `sequence`, which follows the numbers of its streams. It is no consumer: it gets
//! notes and no datagrams, and a receiver never waits for it.

use std::thread::JoinHandle;

use udpd_inspect::upstream::UpstreamMonitor;

/// A running one.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) upstream: UpstreamMonitor,
    pub(super) thread: JoinHandle<()>,
}

impl Follower {
    /// Lets it take what the receivers have left and end.
    pub(super) fn end(&self) {
        self.upstream.end();
    }
}
