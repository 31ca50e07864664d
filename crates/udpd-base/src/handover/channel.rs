//! The channel between receivers and a consumer: a queue for each lane that feeds it, bounded, lock-free.
//!
//! A queue has a place for everything of its lane that can be under way, so it is never full; what is bounded is the
//! memory of what waits, and a [`SinkRoute`](super::route::SinkRoute) says what happens when that is used up. Beside
//! each queue there is a place for one open block: what a receiver has packed and not filled. It takes the block out
//! again to go on filling it; a consumer whose queues are empty takes it as it is. So short batches are joined for as
//! long as the consumer is behind and not longer, without a timer. The place is a queue of one and not an atomic cell:
//! a cell keeps a pointer as a number, which miri rightly refuses, and looking into an empty cell writes to it.
//!
//! The queues are crossbeam's; the sleep is ours, see `bell`. A consumer of a thousand lanes does not
//! look through a thousand queues to find the one that has something, see `marks`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::batch::Parcel;
use super::sync::{ArrayQueue, AtomicBool, AtomicU64, OnceLock, Thread, fence, thread};
use crate::os::threads;
use crate::seams::{clock, waits};

/// What lies between one lane and the consumer.
#[derive(Debug)]
struct Passage {
    queue: ArrayQueue<Parcel>,
    /// A block waits here that its receiver may still add to.
    open: ArrayQueue<Parcel>,
    /// Nothing more comes from the lane.
    is_closed: AtomicBool,
}

/// A receiver's end of a channel.
#[derive(Debug)]
pub struct Feed {
    passage: Arc<Passage>,
    /// Set when this goes, so that the consumer looks and sees it.
    mark: QueueMark,
    /// Declared last, so that the bell rings for a consumer that can then see that this feed is gone.
    ringer: Ringer,
}

/// The consumer's end of a channel.
#[derive(Debug, Default)]
pub struct ConsumerInbox {
    sources: Vec<SourceQueue>,
    /// Which of them may have something.
    marks: QueueMarks,
    /// Where to look first: each lane has its turn.
    next: usize,
    /// How many of the first sources are known to be closed.
    closed: usize,
    bell: Arc<ConsumerWaker>,
    /// It waits for the consumer of another one, and has its bell.
    is_replacement: bool,
}

/// What one lane leaves for the consumer.
#[derive(Debug)]
struct SourceQueue {
    passage: Arc<Passage>,
    /// Taken out before its turn.
    held: Option<Parcel>,
    is_closed: bool,
}

/// How a consumer's wait ended.
#[derive(Debug)]
pub enum Waited {
    /// With a batch.
    Batch(Parcel),
    /// The deadline has passed, or [`Caller::call`] was called.
    Deadline,
    /// There is no feed any more, or the channel was ended, and nothing is left.
    Ended,
}

/// Can end a channel, and take out what is in it.
#[derive(Debug, Clone)]
pub struct Closer {
    bell: Arc<ConsumerWaker>,
    passages: Vec<Arc<Passage>>,
}

impl Closer {
    /// The consumer takes what is there and ends, although a feed is left: its receiver cannot be woken.
    pub fn end(&self) {
        // Release: who sees it must see what was queued before.
        self.bell.ended.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether something waits.
    pub fn has_any(&self) -> bool {
        self.passages.iter().any(|passage| !passage.queue.is_empty() || !passage.open.is_empty())
    }

    /// Takes out what waits, although the consumer may take some of it at the same time: each load goes one way.
    pub fn drain(&self) -> impl Iterator<Item = Parcel> {
        self.passages.iter().flat_map(|passage| std::iter::from_fn(|| passage.pop()))
    }
}

impl Passage {
    fn pop(&self) -> Option<Parcel> {
        self.queue.pop().or_else(|| self.open.pop())
    }
}

impl SourceQueue {
    /// The oldest load of the lane. The open block is newer than what was queued before it was left, and older than
    /// what was queued after it was taken; numbers tell which is which.
    #[inline]
    fn take(&mut self) -> Option<Parcel> {
        // Asked first: whatever was queued before that is seen then.
        let is_closed = self.passage.is_closed.load(Ordering::Acquire);
        if let Some(queued) = self.passage.queue.pop() {
            return Some(self.older(queued));
        }
        self.is_closed = is_closed;
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        // As a rule there is none, and a look costs less than trying.
        if self.passage.open.is_empty() {
            return None;
        }
        self.held = self.passage.open.pop();
        match self.passage.queue.pop() {
            Some(queued) => Some(self.older(queued)),
            None => self.held.take(),
        }
    }

    /// Of `queued` and what is held the one that was begun first; the other is held.
    fn older(&mut self, queued: Parcel) -> Parcel {
        match &mut self.held {
            Some(held) if held.number < queued.number => std::mem::replace(held, queued),
            _ => queued,
        }
    }
}

impl Drop for ConsumerInbox {
    fn drop(&mut self) {
        if !self.is_replacement {
            self.bell.gone.store(true, Ordering::Relaxed);
        }
    }
}

impl ConsumerInbox {
    /// One for the same consumer, which takes nothing from it before [`ConsumerInbox::go_on_with`]. A call of that
    /// consumer is heard as before.
    pub fn replacement(consumer: &Caller) -> Self {
        let mut inbox = Self::default();
        (inbox.bell, inbox.is_replacement) = (Arc::clone(&consumer.0), true);
        inbox
    }

    /// Takes from the lanes of `next` from now on. The lanes before have ended, and nothing of theirs is left.
    pub fn go_on_with(&mut self, mut next: Self) {
        debug_assert!(next.is_replacement && Arc::ptr_eq(&self.bell, &next.bell), "an inbox of another consumer");
        self.sources = std::mem::take(&mut next.sources);
        self.marks = std::mem::take(&mut next.marks);
        (self.next, self.closed) = (0, 0);
    }

    /// One more lane, with a place for everything of it that can be under way.
    pub fn attach(&mut self, places: usize) -> Feed {
        let (queue, open) = (ArrayQueue::new(places), ArrayQueue::new(1));
        let passage = Arc::new(Passage { queue, open, is_closed: AtomicBool::new(false) });
        self.sources.push(SourceQueue { passage: Arc::clone(&passage), held: None, is_closed: false });
        Feed { passage, mark: self.marks.add(), ringer: Ringer(Arc::clone(&self.bell)) }
    }

    /// The oldest load of the lane whose turn it is, or of the next one that has any.
    pub fn take(&mut self) -> Option<Parcel> {
        if let [only] = self.sources.as_mut_slice() {
            return only.take();
        }
        let first = self.next;
        for mut places in [first..self.sources.len(), 0..first] {
            while let Some(place) = self.marks.next(places.clone()) {
                if let Some(parcel) = self.take_from(place) {
                    self.next = if place + 1 == self.sources.len() { 0 } else { place + 1 };
                    return Some(parcel);
                }
                places.start = place + 1;
            }
        }
        None
    }

    /// The oldest load of one lane. Its mark goes when there is none, and what comes in that moment is seen.
    fn take_from(&mut self, place: usize) -> Option<Parcel> {
        let source = &mut self.sources[place];
        let mut taken = source.take();
        if taken.is_none() && self.marks.clear(place) {
            taken = source.take();
            if taken.is_some() {
                self.marks.set(place);
            }
        }
        taken
    }

    /// How many loads of a lane can be in it at once: of the lane that has the fewest places.
    pub fn places_min(&self) -> usize {
        self.sources.iter().map(|source| source.passage.queue.capacity()).min().unwrap_or(0)
    }

    /// Sleeps for this long, whatever comes. Receivers see it and fill their batches up meanwhile.
    pub fn nap(&self, length: Duration) {
        self.bell.napping.store(true, Ordering::Relaxed);
        threads::blocking(|| clock::sleep(length));
        self.bell.napping.store(false, Ordering::Relaxed);
    }

    /// Whether it was ended.
    pub fn is_ended(&self) -> bool {
        self.bell.ended.load(Ordering::Relaxed)
    }

    /// For those who end it, once every lane is attached.
    pub fn closer(&self) -> Closer {
        let passages = self.sources.iter().map(|source| Arc::clone(&source.passage)).collect();
        Closer { bell: Arc::clone(&self.bell), passages }
    }

    /// For those who have something for the sink.
    pub fn caller(&self) -> Caller {
        Caller(Arc::clone(&self.bell))
    }

    /// Whether nothing more comes from any lane.
    fn is_closed(&mut self) -> bool {
        self.closed += self.sources[self.closed..].iter().take_while(|source| source.is_closed).count();
        self.closed == self.sources.len()
    }

    /// Sleeps until there is something, until the deadline or a call, or until the last feed is gone. Always called by
    /// the same thread.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Waited {
        let bell = Arc::clone(&self.bell);
        bell.consumer.get_or_init(thread::current);
        let outcome = loop {
            // Release: who rings must see the thread to wake behind it.
            bell.asleep.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            let is_ended = bell.ended.load(Ordering::Acquire);
            if let Some(parcel) = self.take() {
                break Waited::Batch(parcel);
            }
            if is_ended || self.is_closed() {
                break Waited::Ended;
            }
            // Read behind the fence, like the queues: either the call is seen here, or the caller sees the sleeper.
            if bell.called.load(Ordering::Relaxed) && bell.called.swap(false, Ordering::Acquire) {
                break Waited::Deadline;
            }
            if deadline.is_some_and(|deadline| deadline <= clock::now()) {
                break Waited::Deadline;
            }
            threads::blocking(|| waits::park(deadline));
        };
        bell.asleep.store(false, Ordering::Relaxed);
        outcome
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.passage.is_closed.store(true, Ordering::Release);
    }
}

impl Feed {
    /// How many loads the consumer has not taken yet.
    pub(super) fn len(&self) -> usize {
        self.passage.queue.len()
    }

    /// Whether so many more loads could be queued.
    pub(super) fn has_places(&self, loads: usize) -> bool {
        self.passage.queue.len() + loads <= self.passage.queue.capacity()
    }

    /// True when a load that is handed over now would be looked at soon: the consumer does not nap and has not fallen
    /// behind.
    pub fn is_awaited(&self) -> bool {
        !self.ringer.0.napping.load(Ordering::Relaxed) && self.passage.queue.len() < 4
    }

    /// Whether there is a consumer.
    pub(super) fn is_gone(&self) -> bool {
        self.ringer.0.gone.load(Ordering::Relaxed)
    }

    /// Queues a load and wakes the consumer.
    pub(super) fn send(&self, parcel: Parcel) {
        self.send_quietly(parcel);
        self.ring();
    }

    /// Queues a load. A consumer that sleeps goes on sleeping until [`Feed::ring`].
    pub(super) fn send_quietly(&self, parcel: Parcel) {
        self.passage.queue.push(parcel).expect("there is a place for everything that can be under way");
        self.mark.set();
    }

    /// Wakes the consumer if it sleeps.
    pub(super) fn ring(&self) {
        self.ringer.0.ring();
    }

    /// Leaves a block that is not full for the consumer, or for [`Feed::take_open`].
    pub(super) fn leave(&self, parcel: Parcel) {
        self.passage.open.push(parcel).expect("the block that was there is taken out first");
        self.mark.set();
        self.ringer.0.ring();
    }

    /// The block that was left, unless the consumer has it.
    pub(super) fn take_open(&self) -> Option<Parcel> {
        self.passage.open.pop()
    }

    /// Takes the oldest load out of the queue.
    pub(super) fn evict(&self) -> Option<Parcel> {
        self.passage.queue.pop()
    }
}

// The bell between receivers and a consumer: wakes a consumer that sleeps, and costs a fence where it is awake.
//
// Before it sleeps, crossbeam's own `recv` yields its core many times over, which costs more than receiving does when
// a consumer is woken often. Here a consumer that finds nothing parks at once, and a receiver rings only for a
// consumer that has said it is going to sleep.

/// Wakes one sleeping consumer.
#[derive(Debug, Default)]
pub(super) struct ConsumerWaker {
    /// The consumer sleeps until it is woken, or is about to sleep.
    pub(super) asleep: AtomicBool,
    /// The consumer sleeps for a fixed time, from which no call wakes it.
    pub(super) napping: AtomicBool,
    /// The consumer is to look at something else than its queues.
    pub(super) called: AtomicBool,
    /// There is no consumer any more. A queue alone would not tell: its other end is held for eviction and for
    /// watching.
    pub(super) gone: AtomicBool,
    /// Nothing more comes, whatever feeds are left.
    pub(super) ended: AtomicBool,
    pub(super) consumer: OnceLock<Thread>,
}

impl ConsumerWaker {
    /// Rings if the consumer sleeps or is about to. The fence pairs with the one in
    /// [`ConsumerInbox::wait`](super::channel::ConsumerInbox::wait): either the consumer sees what was left before this
    /// call, or this call sees that it is going to sleep.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Acquire)
            && let Some(consumer) = self.consumer.get()
        {
            waits::unpark(consumer);
        }
    }
}

/// A feed's hold on the bell; rings when the feed goes.
#[derive(Debug)]
pub(super) struct Ringer(pub(super) Arc<ConsumerWaker>);

impl Drop for Ringer {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Wakes a sleeping consumer without a batch: its sink has something to do. A consumer that is awake finds that by
/// itself.
#[derive(Debug, Clone, Default)]
pub struct Caller(pub(super) Arc<ConsumerWaker>);

impl Caller {
    /// Calls. Costs a fence where the consumer is awake.
    pub fn call(&self) {
        // A swap and not a store: who hears one call of several sees what was done before each of them.
        self.0.called.swap(true, Ordering::Release);
        self.0.ring();
    }
}

// Which queues of a consumer may have something: a bit for each, in words of 64.
//
// A consumer may be fed by a thousand lanes of which one is busy. Looking into every queue each time would cost it
// more than what it does with the datagrams. So a receiver that leaves something sets the mark of its queue, and the
// consumer looks where marks are. The first few queues have none and are always looked into: for a handful that is
// cheaper, and the usual consumer has one.

/// How many queues have no mark.
const UNMARKED: usize = 4;

type Word = Arc<CachePadded<AtomicU64>>;

/// The consumer's side.
#[derive(Debug, Default)]
pub(super) struct QueueMarks {
    queues: usize,
    /// For the queues from [`UNMARKED`] on.
    words: Vec<Word>,
}

/// The side of the receiver that feeds one queue.
#[derive(Debug)]
pub(super) struct QueueMark(Option<(Word, u64)>);

/// The word and the bit of a queue; `None` where it has none.
fn place_of(queue: usize) -> Option<(usize, u64)> {
    let number = queue.checked_sub(UNMARKED)?;
    Some((number / 64, 1 << (number % 64)))
}

impl QueueMarks {
    /// One more queue.
    pub(super) fn add(&mut self) -> QueueMark {
        let place = place_of(self.queues);
        self.queues += 1;
        QueueMark(place.map(|(word, bit)| {
            if word == self.words.len() {
                self.words.push(Word::default());
            }
            (Arc::clone(&self.words[word]), bit)
        }))
    }

    /// The first of these queues that may have something.
    pub(super) fn next(&self, mut queues: Range<usize>) -> Option<usize> {
        while queues.start < queues.end {
            let Some((word, bit)) = place_of(queues.start) else { return Some(queues.start) };
            // The bit and those above it.
            let left = self.words[word].load(Ordering::Acquire) & !(bit - 1);
            let first_of_word = UNMARKED + word * 64;
            if left != 0 {
                return Some(first_of_word + left.trailing_zeros() as usize).filter(|queue| *queue < queues.end);
            }
            queues.start = first_of_word + 64;
        }
        None
    }

    /// Takes the mark of a queue that was found empty. It has to be looked into once more, because something may have
    /// come before the mark was gone; false when that would bring nothing new.
    pub(super) fn clear(&self, queue: usize) -> bool {
        let Some((word, bit)) = place_of(queue) else { return false };
        self.words[word].fetch_and(!bit, Ordering::Relaxed);
        // Pairs with the one in [`QueueMark::set`].
        fence(Ordering::SeqCst);
        true
    }

    /// Something was found all the same.
    pub(super) fn set(&self, queue: usize) {
        if let Some((word, bit)) = place_of(queue) {
            self.words[word].fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl QueueMark {
    /// Something has been left in the queue. Either the mark is set behind this, or the consumer, which takes it at
    /// this moment, sees what was left.
    pub(super) fn set(&self) {
        let Some((word, bit)) = &self.0 else { return };
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(*bit, Ordering::Release);
        }
    }
}

/// The queue is closed, and that is something to see as well.
impl Drop for QueueMark {
    fn drop(&mut self) {
        self.set();
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod channel_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_marked_queue_is_found_and_no_other_but_the_first_few() {
        let mut marks = QueueMarks::default();
        let feeds: Vec<QueueMark> = (0..300).map(|_| marks.add()).collect();
        let found = |marks: &QueueMarks, range: Range<usize>| {
            let mut found = Vec::new();
            let mut start = range.start;
            while let Some(queue) = marks.next(start..range.end) {
                found.push(queue);
                start = queue + 1;
            }
            found
        };
        let few: Vec<usize> = (0..UNMARKED).collect();
        assert_eq!(found(&marks, 0..300), few);
        let marked = [UNMARKED, UNMARKED + 63, UNMARKED + 64, 200, 299];
        marked.iter().for_each(|&queue| feeds[queue].set());
        assert_eq!(found(&marks, 0..300), [few.as_slice(), &marked].concat());
        assert_eq!(found(&marks, UNMARKED + 1..299), [UNMARKED + 63, UNMARKED + 64, 200]);
        assert!(marks.clear(200) && !marks.clear(0));
        assert_eq!(found(&marks, 100..300), [299]);
        marks.clear(299);
        drop(feeds);
        assert_eq!(found(&marks, 0..300).len(), 300, "what is closed is looked into once more");
    }

    #[test]
    fn nothing_that_was_left_stays_unseen() {
        const ROUNDS: u64 = if cfg!(miri) { 200 } else { 20_000 };
        let mut marks = QueueMarks::default();
        let mark = (0..=UNMARKED).map(|_| marks.add()).last().expect("one");
        let left = Arc::new(AtomicU64::new(0));
        let leaving = Arc::clone(&left);
        let receiver = std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                leaving.fetch_add(1, Ordering::Relaxed);
                mark.set();
            }
        });
        let mut taken = 0;
        while taken < ROUNDS {
            if marks.next(UNMARKED..UNMARKED + 1).is_some() {
                taken += left.swap(0, Ordering::Relaxed);
                if marks.clear(UNMARKED) {
                    taken += left.swap(0, Ordering::Relaxed);
                }
            }
            std::hint::spin_loop();
        }
        receiver.join().expect("it ends");
    }
}
