//! What the kernel counts for a lane at its socket: a count of drops that wraps and goes with the socket, and beside it
//! what the socket's own filters have refused, which is in both.
//!
//! The filter counts first and the kernel a moment later, and they are read in the other order. So drops less refusals
//! are never more than what else was dropped, however many refusals come in between, and the highest of these
//! differences is shown: it never falls, and it is exact as soon as nothing is under way.

use std::sync::Arc;

use mmsg::{MemoryInfo, Refused, Socket};

use super::tables::LaneTally;

/// The socket that it counts at, and the sums.
#[derive(Debug)]
pub(super) struct KernelSide {
    pub(super) socket: Arc<Socket>,
    pub(super) drops: KernelDrops,
    denied: Denied,
    /// Drops that are no refusals of a filter, as far as is certain.
    dropped: u64,
    /// Drops at sockets beside this one that are closed.
    pub(super) elsewhere: u64,
    /// Of the drops still to be seen here, those that the ledger before has counted as refused already.
    debt: u64,
    /// It tells nothing any more, and that has been said.
    pub(super) is_silent: bool,
    /// What was seen last, once another lane goes on with the socket.
    handed_on: Option<MemoryInfo>,
}

impl KernelSide {
    /// What was counted before is in the books of those who read the socket then.
    pub(super) fn new(socket: Arc<Socket>) -> (Self, Option<u32>) {
        let before = socket.memory_info().ok().map(|memory| memory.drops);
        let drops = KernelDrops { last: before.unwrap_or(0), total: 0 };
        let denied = Denied { last: socket.refused(), total: None };
        // The pipeline says what the kernel does not tell from the beginning.
        let is_silent = before.is_none();
        (Self { socket, drops, denied, dropped: 0, elsewhere: 0, debt: 0, is_silent, handed_on: None }, before)
    }

    pub(super) fn observe(&mut self) -> Option<MemoryInfo> {
        if self.handed_on.is_some() {
            return self.handed_on;
        }
        match self.socket.memory_info() {
            Ok(info) => {
                self.drops.observe(info.drops);
                self.denied.observe(self.socket.refused());
                let denied = self.denied().map_or(0, |denied| denied.messages);
                self.dropped = self.dropped.max(self.drops.total.saturating_sub(denied + self.debt));
                self.is_silent = false;
                Some(info)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_silent, true) {
                    log::warn!(
                        "the kernel stopped reporting what it drops at a socket (SO_MEMINFO: {error}); \
                         kernel_dropped, arrived and residual are null until it reports again"
                    );
                }
                None
            }
        }
    }

    /// What was dropped and not refused by a filter, as of the last look.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped + self.elsewhere
    }

    /// What its filters have refused, as of the last look; `None` where it never had one.
    pub(super) fn denied(&self) -> Option<Refused> {
        self.denied.total
    }

    /// Looks for the last time, because another ledger counts on. Returns whether the kernel's count could be read.
    pub(super) fn leave(&mut self) -> bool {
        self.handed_on = self.observe();
        self.handed_on.is_some()
    }

    /// Has `other` count on, to which the same socket was left. Each drop and each refusal is counted by one of them.
    pub(super) fn hand_on(&self, other: &mut Self) {
        other.drops = KernelDrops { last: self.drops.last, total: 0 };
        other.denied = Denied { last: self.denied.last, total: None };
        let counted = self.dropped + self.debt + self.denied().map_or(0, |denied| denied.messages);
        (other.dropped, other.debt) = (0, counted - self.drops.total);
    }

    /// Counts on with another socket.
    pub(super) fn replace(&mut self, socket: Arc<Socket>) -> Arc<Socket> {
        self.drops.last = 0;
        self.denied.last = None;
        std::mem::replace(&mut self.socket, socket)
    }
}

impl LaneTally {
    /// With what a filter in the kernel has denied: as if it had been read, and then dropped for that.
    pub fn with_denied(mut self, denied: Refused) -> Self {
        self.received += denied.datagrams;
        self.bytes += denied.bytes;
        self.dropped.denied += denied.datagrams;
        self
    }
}

/// What filters have refused since the ledger began.
#[derive(Debug, Default)]
struct Denied {
    last: Option<Refused>,
    total: Option<Refused>,
}

impl Denied {
    fn observe(&mut self, now: Option<Refused>) {
        let Some(now) = now else { return };
        let (last, total) = (self.last.unwrap_or_default(), self.total.unwrap_or_default());
        self.total = Some(Refused {
            messages: total.messages + (now.messages - last.messages),
            datagrams: total.datagrams + (now.datagrams - last.datagrams),
            bytes: total.bytes + (now.bytes - last.bytes),
        });
        self.last = Some(now);
    }
}

/// The kernel's 32-bit count of drops, continued past its wrap.
#[derive(Debug, Default)]
pub(super) struct KernelDrops {
    pub(super) last: u32,
    pub(super) total: u64,
}

impl KernelDrops {
    fn observe(&mut self, count: u32) {
        self.total += u64::from(count.wrapping_sub(self.last));
        self.last = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_drops_are_counted_on_past_the_wrap_of_the_kernels_counter() {
        let mut drops = KernelDrops::default();
        for count in [0, 10, u32::MAX - 4, 5] {
            drops.observe(count);
        }
        assert_eq!(drops.total, u64::from(u32::MAX) + 6);
    }

    /// A ledger that has seen so many drops and so many refusals.
    fn seen(side: &mut KernelSide, drops: u32, refused: u64) -> u64 {
        side.drops.observe(drops);
        side.denied.observe(Some(Refused { messages: refused, datagrams: refused, bytes: 0 }));
        side.dropped = side.dropped.max(side.drops.total.saturating_sub(side.denied().unwrap().messages + side.debt));
        side.dropped
    }

    fn side() -> KernelSide {
        KernelSide::new(Arc::new(Socket::new(mmsg::Family::V4).expect("a socket"))).0
    }

    #[test]
    fn refusals_under_way_never_count_as_drops_and_what_is_shown_never_falls() {
        let mut side = side();
        assert_eq!(seen(&mut side, 10, 4), 6);
        assert_eq!(seen(&mut side, 10, 9), 6, "five of them have yet to be among the drops");
        assert_eq!(seen(&mut side, 16, 9), 7);
    }

    #[test]
    fn a_refusal_that_was_under_way_when_the_ledger_changed_is_counted_once() {
        let (mut before, mut after) = (side(), side());
        assert_eq!(seen(&mut before, 3, 2), 1);
        assert_eq!(seen(&mut before, 3, 5), 1, "three are under way");
        before.hand_on(&mut after);
        assert_eq!(seen(&mut after, 6, 5), 0, "they have come");
        assert_eq!(seen(&mut after, 9, 6), 2);
        let denied = before.denied().unwrap().messages + after.denied().unwrap().messages;
        assert_eq!(before.dropped() + after.dropped() + denied, 9);
    }
}
