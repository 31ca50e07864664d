//! The channel between a receiver and a consumer: bounded, lock-free, and with a policy for when it is full.
//!
//! A full channel is never an accident: `when_full` says what happens and the ledger counts it. Only `block` lets a
//! receiver wait, and then only while the consumer lives.
//!
//! The queue is crossbeam's; the sleep is ours. Before it sleeps, crossbeam's own `recv` yields its core many times
//! over, which costs more than receiving does when a consumer is woken often. Here a consumer that finds nothing parks
//! at once, and a receiver rings only for a consumer that has said it is going to sleep.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use super::pool::Parcel;
use crate::os::crew;

/// How often a receiver that is blocked on a full channel looks whether it is told to give up.
const GIVE_UP_POLL: Duration = Duration::from_millis(20);

/// What happens to a batch when the channel is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullPolicy {
    /// The batch that just arrived is dropped.
    #[default]
    DropNewest,
    /// The oldest batch in the channel is dropped to make room.
    DropOldest,
    /// The receiver waits; the kernel then drops what does not fit the receive buffer.
    Block,
}

/// Why a batch will not be consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// The channel was full, and the policy is to drop.
    Full,
    /// The consumer is gone, or the receiver was told not to wait for it any longer.
    GivenUp,
}

/// A receiver's end of a channel.
#[derive(Debug, Clone)]
pub struct Feed {
    sender: Sender<Parcel>,
    /// Declared after the sender, so that when the last feed goes the bell rings for a consumer that can then see it.
    ringer: Ringer,
    /// The other end, for taking out the oldest batch.
    evict: Receiver<Parcel>,
    policy: FullPolicy,
}

/// The consumer's end of a channel.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Parcel>,
    bell: Arc<Bell>,
}

/// Sees how full a channel is, and can end it.
#[derive(Debug, Clone)]
pub struct Gauge {
    receiver: Receiver<Parcel>,
    bell: Arc<Bell>,
}

impl Gauge {
    /// How many batches wait.
    pub fn depth(&self) -> usize {
        self.receiver.len()
    }

    /// How many batches it can hold.
    pub fn capacity(&self) -> usize {
        self.receiver.capacity().unwrap_or(usize::MAX)
    }

    /// The consumer takes what is there and ends, although a feed is left: its receiver cannot be woken.
    pub fn end(&self) {
        self.bell.ended.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

/// How a consumer's wait ended.
#[derive(Debug)]
pub enum Waited {
    /// With a batch.
    Batch(Parcel),
    /// The deadline has passed, or somebody has called.
    Deadline,
    /// There is no feed any more, or the channel was ended, and nothing is left.
    Ended,
}

/// Wakes one sleeping consumer.
#[derive(Debug, Default)]
struct Bell {
    /// The consumer sleeps until somebody rings, or is about to.
    asleep: AtomicBool,
    /// The consumer sleeps for a fixed time and would not hear.
    napping: AtomicBool,
    /// Somebody wants the consumer to look at something else than the queue.
    called: AtomicBool,
    /// There is no consumer any more. The queue alone would not tell: its other end is held for eviction and for
    /// watching.
    gone: AtomicBool,
    /// Nothing more comes, whatever feeds are left.
    ended: AtomicBool,
    consumer: OnceLock<Thread>,
}

impl Bell {
    /// Rings if the consumer sleeps or is about to. The fence pairs with the one in [`Inbox::wait`]: either the
    /// consumer sees what was sent before this call, or this call sees that it is going to sleep.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
            && let Some(consumer) = self.consumer.get()
        {
            consumer.unpark();
        }
    }
}

/// A feed's hold on the bell; rings when the feed goes.
#[derive(Debug, Clone)]
struct Ringer(Arc<Bell>);

impl Drop for Ringer {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Wakes a sleeping consumer without a batch: its sink has something to do, see [`Waited::Deadline`]. A consumer that
/// is awake finds that by itself.
#[derive(Debug, Clone, Default)]
pub struct Caller(Arc<Bell>);

impl Caller {
    /// Calls. Costs a fence where the consumer is awake.
    pub fn call(&self) {
        self.0.called.store(true, Ordering::Relaxed);
        self.0.ring();
    }
}

/// Makes a channel of `depth` batches: the receivers' end, to be cloned for each lane, and the consumer's.
pub fn channel(depth: usize, policy: FullPolicy) -> (Feed, Inbox) {
    let (sender, receiver) = bounded(depth);
    let bell = Arc::new(Bell::default());
    let feed = Feed { sender, ringer: Ringer(Arc::clone(&bell)), evict: receiver.clone(), policy };
    (feed, Inbox { receiver, bell })
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.bell.gone.store(true, Ordering::Relaxed);
    }
}

impl Inbox {
    /// The oldest batch, if there is one.
    pub fn take(&self) -> Option<Parcel> {
        self.receiver.try_recv().ok()
    }

    /// How many batches it can hold.
    pub fn depth(&self) -> usize {
        self.receiver.capacity().unwrap_or(usize::MAX)
    }

    /// Sleeps for this long, whatever comes. Receivers see it and fill their batches up meanwhile.
    pub fn nap(&self, length: Duration) {
        self.bell.napping.store(true, Ordering::Relaxed);
        crew::at_rest(|| thread::sleep(length));
        self.bell.napping.store(false, Ordering::Relaxed);
    }

    /// For watching how full it is.
    pub fn gauge(&self) -> Gauge {
        Gauge { receiver: self.receiver.clone(), bell: Arc::clone(&self.bell) }
    }

    /// For those who have something for the sink.
    pub fn caller(&self) -> Caller {
        Caller(Arc::clone(&self.bell))
    }

    /// Sleeps until there is a batch, until the deadline or a call, or until the last feed is gone. Always called by
    /// the same thread.
    pub fn wait(&self, deadline: Option<Instant>) -> Waited {
        self.bell.consumer.get_or_init(thread::current);
        loop {
            self.bell.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let is_ended = self.bell.ended.load(Ordering::Relaxed);
            let taken = self.receiver.try_recv();
            if let Err(TryRecvError::Empty) = taken
                && !is_ended
            {
                // Read behind the fence, like the queue: either the call is seen here, or the caller sees the sleeper.
                if self.bell.called.load(Ordering::Relaxed) && self.bell.called.swap(false, Ordering::Relaxed) {
                    self.bell.asleep.store(false, Ordering::Relaxed);
                    return Waited::Deadline;
                }
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    None => crew::at_rest(thread::park),
                    Some(Duration::ZERO) => {
                        self.bell.asleep.store(false, Ordering::Relaxed);
                        return Waited::Deadline;
                    }
                    Some(left) => crew::at_rest(|| thread::park_timeout(left)),
                }
                continue;
            }
            self.bell.asleep.store(false, Ordering::Relaxed);
            return taken.map_or(Waited::Ended, Waited::Batch);
        }
    }
}

impl Feed {
    /// Hands a batch over, or applies the policy; every batch that is not going to be consumed, this one or an older
    /// one, goes to `dropped`. With [`FullPolicy::Block`] it returns once there is room, once `give_up` is set, or once
    /// the consumer is gone.
    pub fn offer(&self, parcel: Parcel, give_up: &AtomicBool, mut dropped: impl FnMut(Parcel, NotTaken)) {
        let Err(error) = self.sender.try_send(parcel) else { return self.ringer.0.ring() };
        let parcel = error.into_inner();
        match self.policy {
            FullPolicy::DropNewest => dropped(parcel, NotTaken::Full),
            FullPolicy::DropOldest => self.displace(parcel, dropped),
            FullPolicy::Block => {
                if let Err(parcel) = self.wait(parcel, give_up) {
                    dropped(parcel, NotTaken::GivenUp);
                }
            }
        }
    }

    /// True when a batch that is handed over now would be looked at soon: the consumer does not nap and has not fallen
    /// behind.
    pub fn is_awaited(&self) -> bool {
        !self.ringer.0.napping.load(Ordering::Relaxed) && !self.is_behind()
    }

    /// True when the consumer has fallen behind and the channel has places left, so that batches had better be full
    /// before they take one. Where there is none left it makes no difference any more.
    pub fn is_filling(&self) -> bool {
        self.is_behind() && !self.sender.is_full()
    }

    fn is_behind(&self) -> bool {
        self.sender.len() * 4 > self.sender.capacity().unwrap_or(usize::MAX)
    }

    /// Takes the oldest batch out and tries again. Where several lanes feed one channel another may take the place
    /// first; every round some lane gets on, so this ends.
    fn displace(&self, mut parcel: Parcel, mut dropped: impl FnMut(Parcel, NotTaken)) {
        loop {
            if let Ok(oldest) = self.evict.try_recv() {
                dropped(oldest, NotTaken::Full);
            }
            match self.sender.try_send(parcel) {
                Ok(()) => return self.ringer.0.ring(),
                Err(error) => parcel = error.into_inner(),
            }
        }
    }

    fn wait(&self, mut parcel: Parcel, give_up: &AtomicBool) -> Result<(), Parcel> {
        while !give_up.load(Ordering::Relaxed) && !self.ringer.0.gone.load(Ordering::Relaxed) {
            match crew::at_rest(|| self.sender.send_timeout(parcel, GIVE_UP_POLL)) {
                Ok(()) => {
                    self.ringer.0.ring();
                    return Ok(());
                }
                Err(error) => parcel = error.into_inner(),
            }
        }
        Err(parcel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::pool::Pool;
    use mmsg::{BatchShape, RecvBatch};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn parcels(count: usize) -> Vec<Parcel> {
        let shape = BatchShape::new(1, 64);
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
            feed.offer(parcel, &NEVER, |parcel, _| dropped.push(number(parcel)));
        }
        let kept = std::iter::from_fn(|| consumer.take()).map(number).collect();
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
        feed.offer(parcels.next().expect("a batch"), &NEVER, |_, _| panic!("there is room"));
        let second = parcels.next().expect("a batch");
        let blocked = std::thread::spawn(move || feed.offer(second, &NEVER, |_, _| panic!("block never drops")));
        for _ in 0..2 {
            assert!(matches!(consumer.wait(None), Waited::Batch(_)));
        }
        blocked.join().expect("the offer returns");
    }

    #[test]
    fn block_does_not_wait_for_a_consumer_that_is_gone() {
        let (feed, consumer) = channel(1, FullPolicy::Block);
        drop(consumer);
        let mut given_up = 0;
        for parcel in parcels(2) {
            feed.offer(parcel, &NEVER, |_, why| given_up += usize::from(why == NotTaken::GivenUp));
        }
        assert_eq!(given_up, 1, "the first found room");
    }

    #[test]
    fn block_gives_up_when_told_to() {
        let (feed, _consumer) = channel(1, FullPolicy::Block);
        let give_up = AtomicBool::new(true);
        let mut dropped = 0;
        for parcel in parcels(2) {
            feed.offer(parcel, &give_up, |_, why| {
                assert_eq!(why, NotTaken::GivenUp);
                dropped += 1;
            });
        }
        assert_eq!(dropped, 1);
    }

    #[test]
    fn a_sleeping_consumer_hears_of_every_batch_and_of_the_end() {
        let (feed, consumer) = channel(4, FullPolicy::Block);
        let parcels = parcels(if cfg!(debug_assertions) { 2_000 } else { 20_000 });
        let count = parcels.len();
        let other = feed.clone();
        let (first, second) = (parcels[..count / 2].to_vec(), parcels[count / 2..].to_vec());
        let senders = [(feed, first), (other, second)].map(|(feed, parcels)| {
            std::thread::spawn(move || {
                for parcel in parcels {
                    feed.offer(parcel, &NEVER, |_, _| panic!("block never drops"));
                }
            })
        });
        let mut taken = 0;
        while let Waited::Batch(_) = consumer.wait(None) {
            taken += 1;
        }
        assert_eq!(taken, count);
        for sender in senders {
            sender.join().expect("the sender ends");
        }
    }

    #[test]
    fn a_wait_with_a_deadline_ends_at_it() {
        let (_feed, consumer) = channel(4, FullPolicy::Block);
        assert!(matches!(consumer.wait(Some(Instant::now() + Duration::from_millis(5))), Waited::Deadline));
    }

    #[test]
    fn a_sleeping_consumer_hears_every_call_and_one_before_its_sleep_too() {
        let (_feed, consumer) = channel(4, FullPolicy::Block);
        let caller = consumer.caller();
        let (heard, hearing) = bounded(0);
        caller.call();
        let calling = std::thread::spawn(move || {
            for () in hearing {
                caller.call();
            }
        });
        for _ in 0..1_000 {
            assert!(matches!(consumer.wait(None), Waited::Deadline));
            heard.send(()).expect("somebody calls");
        }
        assert!(matches!(consumer.wait(None), Waited::Deadline));
        drop(heard);
        calling.join().expect("the caller ends");
    }

    #[test]
    fn a_channel_fills_up_from_a_quarter_of_its_depth_until_it_is_full_and_is_awaited_before() {
        let (feed, _consumer) = channel(8, FullPolicy::DropNewest);
        for (place, parcel) in parcels(8).into_iter().enumerate() {
            assert_eq!((feed.is_awaited(), feed.is_filling()), (place <= 2, place > 2), "{place} batches");
            feed.offer(parcel, &NEVER, |_, _| panic!("there is room"));
        }
        assert_eq!(
            (feed.is_awaited(), feed.is_filling()),
            (false, false),
            "nobody waits for a full channel to fill up"
        );
    }
}
