//! Which queues of a consumer may have something: a bit for each, in words of 64.
//!
//! A consumer may be fed by a thousand lanes of which one is busy. Looking into every queue each time would cost it
//! more than what it does with the datagrams. So a receiver that leaves something sets the mark of its queue, and the
//! consumer looks where marks are. The first few queues have none and are always looked into: for a handful that is
//! cheaper, and the usual consumer has one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

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
