//! Both sides of a redundant pair, and each datagram once: the first to come is handed on, its copies are counted and
//! dropped.
//!
//! A *feed* is what is sent twice, and each address on which udpd receives it is a *side*. The kernel gives the sides
//! of a feed to different receivers, so all of them share one `table`, without a lock. A datagram is compared by a
//! `fingerprint` of its payload, or of the part of it that has its sequence number. Time is that of its batch, and not
//! asked for by datagram.

mod fingerprint;
mod settings;
mod sync;
mod table;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mmsg::RecvBatch;

pub use self::fingerprint::FingerprintKey;
use self::fingerprint::KEY_BYTES;
pub use self::settings::{Copies, CopyKey, Deduplicate};
pub use self::table::{CopyTable, Meeting, SIDES_MAX};
use crate::upstream::Sequence;
use udpd_base::ledger::LaneTally;
use udpd_base::seams::clock;

/// Places for each datagram that comes within the window at the rate that the listeners are made for. With a quarter in
/// use, one datagram in 200,000 finds its bucket full.
const PLACES_EACH: u64 = 4;

/// What a feed is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPlan {
    /// Its name; `None` where one listener is all of it.
    pub name: Option<String>,
    pub window: Duration,
    pub key: CopyKey,
    pub sequence: Option<Sequence>,
    /// Datagrams a second, copies included.
    pub rate: u64,
    /// Where it comes, by listener and address.
    pub sides: Vec<(String, SocketAddr)>,
}

impl FeedPlan {
    fn buckets(&self) -> usize {
        let datagrams = u128::from(self.rate) * self.window.as_millis() * u128::from(PLACES_EACH) / 1000;
        <CopyTable>::buckets(usize::try_from(datagrams).unwrap_or(usize::MAX)).max(1)
    }

    /// How the log calls it.
    fn shown(&self) -> &str {
        self.name.as_deref().or_else(|| self.sides.first().map(|(listener, _)| listener.as_str())).unwrap_or("")
    }

    /// The memory of the feed.
    pub fn bytes(&self) -> usize {
        <CopyTable>::bytes(self.buckets()) + KEY_BYTES
    }
}

/// What the receivers of a feed share.
#[derive(Debug)]
pub struct Feed {
    pub plan: FeedPlan,
    table: CopyTable,
    key: FingerprintKey,
    started: Instant,
    window_ms: u64,
    has_warned: AtomicBool,
}

impl Feed {
    pub fn new(plan: FeedPlan) -> Self {
        let window_ms = u64::try_from(plan.window.as_millis()).unwrap_or(u64::MAX);
        Self {
            table: CopyTable::new(plan.buckets(), window_ms),
            key: FingerprintKey::random(),
            started: clock::now(),
            window_ms,
            has_warned: AtomicBool::new(false),
            plan,
        }
    }

    fn meet(&self, payload: &[u8], side: usize, now: u64) -> Meeting {
        let number = match self.plan.key {
            CopyKey::Payload => None,
            CopyKey::Sequence => self.plan.sequence.and_then(|sequence| sequence.number_bytes(payload)),
        };
        let fingerprint = number.map_or_else(|| self.key.of(payload, 0), |number| self.key.of(number, 1));
        self.table.meet(fingerprint, side, now)
    }
}

/// One side of a feed, at one lane.
#[derive(Debug, Clone)]
pub struct Deduplicator {
    pub feed: Arc<Feed>,
    side: usize,
}

impl Deduplicator {
    /// For a lane of this listener that is bound to this address.
    pub fn new(feed: Arc<Feed>, listener: &str, bound: SocketAddr) -> Self {
        let is_own = |(name, address): &(String, SocketAddr)| name == listener && *address == bound;
        let is_of_listener = |(name, _): &(String, SocketAddr)| name == listener;
        let sides = &feed.plan.sides;
        // What comes past the kernel's stack is for any address of its listener.
        let side = sides.iter().position(is_own).or_else(|| sides.iter().position(is_of_listener)).unwrap_or(0);
        Self { feed, side: side.min(SIDES_MAX - 1) }
    }

    /// Drops the copies in a batch, and counts them. What was cut off cannot be compared, and stays.
    pub fn apply(&self, batch: &mut RecvBatch, tally: &mut LaneTally) {
        let feed = &*self.feed;
        let elapsed = u64::try_from(clock::since(feed.started).as_millis()).unwrap_or(u64::MAX);
        let now = elapsed.saturating_add(feed.window_ms + 1);
        let before = tally.deduplicate_overflow;
        batch.retain(|datagram| {
            if datagram.is_truncated() {
                return true;
            }
            let counter = match feed.meet(datagram.payload(), self.side, now) {
                Meeting::New => return true,
                Meeting::Overflow => {
                    tally.deduplicate_overflow += 1;
                    return true;
                }
                Meeting::Copy => &mut tally.dropped.duplicate,
                Meeting::Repeated => &mut tally.dropped.repeated,
            };
            *counter += 1;
            false
        });
        if tally.deduplicate_overflow > before && !feed.has_warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "feed {}: more datagrams come within the window of deduplicate than its table was made for, which is \
                 {} a second; udpd hands on what it cannot remember, so their copies are handed on too, and counts \
                 them as deduplicate_overflow: raise absorb.rate, or shorten the window",
                feed.plan.shown(),
                feed.plan.rate
            );
        }
    }
}

#[cfg(test)]
mod tests;
