//! What the lanes of a listener, the thread of its streams and the readers of the ledger share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::ring::{Bell, Ring};
use super::settings::Sequence;
use udpd_base::ledger::Published;
use udpd_base::ledger::tables::UpstreamTally;

/// By lane of the listener, and once for all.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) sequence: Sequence,
    /// The kernel says at each datagram how many it has dropped before.
    pub(super) knows_drops: bool,
    pub(super) rings: Vec<Arc<Ring>>,
    /// What the kernel drops at a lane is taken off already, where it left a gap.
    pub(super) is_matched: Vec<AtomicBool>,
    pub(super) bell: Arc<Bell>,
    pub(super) tally: Published<UpstreamTally>,
    pub(super) is_ending: AtomicBool,
}
