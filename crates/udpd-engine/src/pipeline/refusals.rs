//! What the engine of a receive queue refuses: frames that the kernel would have dropped before they were in a socket.
//! Past its stack nobody else counts them, so here they are received and dropped, by reason.

use std::io;

use mmsg::{Engine, xdp};

use udpd_base::ledger::LaneTally;

/// Frames that an engine has taken and refused: the kernel would have dropped them before a socket.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counted: xdp::Tally,
    /// Nothing comes out of its queue any more.
    pub(super) has_lost_its_queue: bool,
}

impl Refusals {
    /// Counts what has come since the last look as received and dropped. Returns what the engine of a queue says when
    /// its ring was not empty, or has become so.
    pub(super) fn count(&mut self, engine: &Engine, tally: &mut LaneTally) -> Option<xdp::Tally> {
        let now = engine.xdp_tally()?;
        let dropped = &mut tally.dropped;
        let before = &self.counted;
        for (now, before, counter) in [
            (now.malformed, before.malformed, &mut dropped.malformed),
            (now.header_checksum, before.header_checksum, &mut dropped.header_checksum),
            (now.checksum, before.checksum, &mut dropped.checksum),
            (now.no_checksum, before.no_checksum, &mut dropped.no_checksum),
        ] {
            *counter += now - before;
            tally.received += now - before;
        }
        let is_news = now.waiting > 0 || self.counted.waiting > 0;
        self.counted = now;
        is_news.then_some(now)
    }

    /// The interface is gone, or the kernel denies a call without which no frame comes.
    pub(super) fn lose_queue(&mut self, lane: usize, error: &io::Error) {
        self.has_lost_its_queue = true;
        log::error!(
            "lane {lane}: its receive queue can be received no more: {error}; the interface was removed, or the kernel \
             denies a call; from now on the sockets of the listener receive what comes, until udpd can make its engine \
             anew"
        );
    }
}
