//! The channel between a receiver and a consumer: bounded, lock-free, and with a policy for when it is full.
//!
//! A full channel is never an accident: `when_full` says what happens and the ledger counts it. Only `block` lets a
//! receiver wait, and then only while the consumer lives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};

use crate::pool::Parcel;

/// How often a receiver that is blocked on a full channel looks whether it is told to give up.
const GIVE_UP_POLL: Duration = Duration::from_millis(20);

/// What happens to a batch when the channel is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullPolicy {
    /// The batch that just arrived is dropped.
    DropNewest,
    /// The oldest batch in the channel is dropped to make room.
    DropOldest,
    /// The receiver waits.
    Block,
}

/// A receiver's end of a channel.
#[derive(Debug, Clone)]
pub struct Feed {
    sender: Sender<Parcel>,
    /// The other end, for taking out the oldest batch.
    evict: Receiver<Parcel>,
    policy: FullPolicy,
}

/// Makes a channel of `depth` batches: the receivers' end, to be cloned for each lane, and the consumer's.
pub fn channel(depth: usize, policy: FullPolicy) -> (Feed, Receiver<Parcel>) {
    let (sender, receiver) = bounded(depth);
    (Feed { sender, evict: receiver.clone(), policy }, receiver)
}

impl Feed {
    /// Hands a batch over, or applies the policy; every batch that is not going to be consumed, this one or an older one,
    /// goes to `dropped`. With [`FullPolicy::Block`] it returns once there is room or once `give_up` is set.
    pub fn offer(&self, parcel: Parcel, give_up: &AtomicBool, mut dropped: impl FnMut(Parcel)) {
        let Err(error) = self.sender.try_send(parcel) else { return };
        let parcel = match error {
            TrySendError::Disconnected(parcel) => return dropped(parcel),
            TrySendError::Full(parcel) => parcel,
        };
        match self.policy {
            FullPolicy::DropNewest => dropped(parcel),
            FullPolicy::DropOldest => self.displace(parcel, dropped),
            FullPolicy::Block => {
                if let Err(parcel) = self.wait(parcel, give_up) {
                    dropped(parcel);
                }
            }
        }
    }

    /// True when the consumer has fallen behind, so that batches had better be full before they take a place.
    pub fn is_behind(&self) -> bool {
        self.sender.len() * 4 > self.sender.capacity().unwrap_or(usize::MAX)
    }

    /// Takes the oldest batch out and tries again. Where several lanes feed one channel another may take the place first;
    /// every round some lane gets on, so this ends.
    fn displace(&self, mut parcel: Parcel, mut dropped: impl FnMut(Parcel)) {
        loop {
            if let Ok(oldest) = self.evict.try_recv() {
                dropped(oldest);
            }
            match self.sender.try_send(parcel) {
                Ok(()) => return,
                Err(TrySendError::Disconnected(parcel)) => return dropped(parcel),
                Err(TrySendError::Full(back)) => parcel = back,
            }
        }
    }

    fn wait(&self, mut parcel: Parcel, give_up: &AtomicBool) -> Result<(), Parcel> {
        while !give_up.load(Ordering::Relaxed) {
            match self.sender.send_timeout(parcel, GIVE_UP_POLL) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
                Err(SendTimeoutError::Timeout(back)) => parcel = back,
            }
        }
        Err(parcel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use mmsg::{BatchShape, Control, RecvBatch};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn parcels(count: usize) -> Vec<Parcel> {
        let shape = BatchShape { slots: 1, slot_bytes: 64, control: Control::default(), huge_pages: false };
        let (batches, _) = RecvBatch::pool(count, &shape).expect("a small pool");
        let (mut pool, _home) = Pool::new(batches, 0, 0, 1);
        std::iter::from_fn(|| pool.take()).collect()
    }

    /// The numbers of the batches that were kept and of those that were dropped, each in order.
    fn offer_all(policy: FullPolicy, depth: usize, count: usize) -> (Vec<usize>, Vec<usize>) {
        let (feed, consumer) = channel(depth, policy);
        let parcels = parcels(count);
        let names: Vec<_> = parcels.iter().map(std::sync::Arc::as_ptr).collect();
        let number =
            |parcel: Parcel| names.iter().position(|&name| name == std::sync::Arc::as_ptr(&parcel)).expect("ours");
        let mut dropped = Vec::new();
        for parcel in parcels {
            feed.offer(parcel, &NEVER, |parcel| dropped.push(number(parcel)));
        }
        let kept = consumer.try_iter().map(number).collect();
        (kept, dropped)
    }

    #[test]
    fn drop_newest_keeps_the_first_batches_and_drops_the_later_ones() {
        let (kept, dropped) = offer_all(FullPolicy::DropNewest, 2, 5);
        assert_eq!((kept, dropped), (vec![0, 1], vec![2, 3, 4]));
    }

    #[test]
    fn drop_oldest_keeps_the_last_batches_and_drops_the_earlier_ones() {
        let (kept, dropped) = offer_all(FullPolicy::DropOldest, 2, 5);
        assert_eq!((kept, dropped), (vec![3, 4], vec![0, 1, 2]));
    }

    #[test]
    fn block_waits_for_room_and_drops_nothing() {
        let (feed, consumer) = channel(1, FullPolicy::Block);
        let mut parcels = parcels(2).into_iter();
        feed.offer(parcels.next().expect("a batch"), &NEVER, |_| panic!("there is room"));
        let second = parcels.next().expect("a batch");
        let blocked = std::thread::spawn(move || feed.offer(second, &NEVER, |_| panic!("block never drops")));
        assert_eq!(consumer.iter().take(2).count(), 2);
        blocked.join().expect("the offer returns");
    }

    #[test]
    fn block_gives_up_when_told_to() {
        let (feed, _consumer) = channel(1, FullPolicy::Block);
        let give_up = AtomicBool::new(true);
        let mut dropped = 0;
        for parcel in parcels(2) {
            feed.offer(parcel, &give_up, |_| dropped += 1);
        }
        assert_eq!(dropped, 1);
    }

    #[test]
    fn a_channel_is_behind_above_a_quarter_of_its_depth() {
        let (feed, _consumer) = channel(8, FullPolicy::DropNewest);
        let mut parcels = parcels(3).into_iter();
        for expected in [false, false, true] {
            feed.offer(parcels.next().expect("a batch"), &NEVER, |_| panic!("there is room"));
            assert_eq!(feed.is_behind(), expected);
        }
    }
}
