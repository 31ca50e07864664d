//! What a destination does with one batch, where there is a spill: which datagrams of it are queued, sent and left.
//! Datagrams are known by their places in the batch.

/// One batch.
#[derive(Debug, Default)]
pub(super) struct BatchOutcome {
    /// The one in hand.
    pub(super) place: usize,
    /// Those in the queue, in its order, and how many of them are decided.
    queued: Vec<usize>,
    decided: usize,
    /// Those that the kernel has taken.
    pub(super) sent: Vec<usize>,
    /// Those that it has not, and may another time.
    pub(super) left: Vec<usize>,
}

impl BatchOutcome {
    /// The one in hand is queued.
    pub(super) fn queue(&mut self) {
        self.queued.push(self.place);
    }

    /// The one in hand is left.
    pub(super) fn leave(&mut self) {
        self.left.push(self.place);
    }

    /// The next message of the queue has met its fate: of its datagrams so many have failed, and so many are left.
    pub(super) fn settle(&mut self, datagrams: usize, failed: usize, left: usize) {
        let end = (self.decided + datagrams).min(self.queued.len());
        let own = &self.queued[self.decided..end];
        let sent = own.len() - (failed + left).min(own.len());
        self.sent.extend_from_slice(&own[..sent]);
        self.left.extend_from_slice(&own[own.len() - left.min(own.len())..]);
        self.decided = end;
    }

    /// The queue is empty.
    pub(super) fn forget_queue(&mut self) {
        self.queued.clear();
        self.decided = 0;
    }

    /// Whether nothing of it can be taken back any more.
    pub(super) fn is_over(&self) -> bool {
        self.sent.is_empty() && self.queued.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datagram_of_a_message_is_sent_failed_or_left() {
        let mut outcome = BatchOutcome::default();
        for place in 0..6 {
            outcome.place = place;
            outcome.queue();
        }
        outcome.settle(3, 0, 0);
        outcome.settle(2, 1, 1);
        outcome.settle(1, 0, 1);
        (outcome.place, _) = (6, outcome.forget_queue());
        outcome.leave();
        assert_eq!((&outcome.sent[..], &outcome.left[..]), (&[0, 1, 2][..], &[4, 5, 6][..]));
    }
}
