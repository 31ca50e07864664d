//! The way of notes from one receiver to the thread of its listener: a ring of atomic words with one writer and one
//! reader. Writing a note is a few plain stores, and a batch of them is published by one; nothing is locked or
//! allocated. A full ring refuses, and what it refused is counted: the receiver never waits.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crossbeam_utils::CachePadded;

use super::header::FLOWS_MAX;
use super::note::{Note, WORDS};

/// Notes that wait for their reader. A power of two.
pub(super) const NOTES: usize = 1 << 15;

/// What the ring of a lane takes.
pub(super) const RING_BYTES: usize = NOTES * WORDS * size_of::<u64>();

type Slot = [AtomicU64; WORDS];

/// One lane's ring, and what is counted beside it.
#[derive(Debug)]
pub(super) struct Ring {
    /// Made by its writer, so that they lie on the memory node of the core that writes them.
    slots: OnceLock<Box<[Slot]>>,
    /// Notes ever written.
    written: CachePadded<AtomicUsize>,
    /// Notes ever read.
    read: CachePadded<AtomicUsize>,
    /// Datagrams that found the ring full.
    pub(super) unseen: CachePadded<AtomicU64>,
    /// Datagrams without such a header.
    pub(super) unnumbered: AtomicU64,
    /// The most numbers that a datagram has covered, and as many at least as NetFlow 5 allows.
    pub(super) units_max: AtomicU64,
    /// The lane has changed its socket.
    pub(super) is_other_socket: AtomicBool,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            slots: OnceLock::new(),
            written: CachePadded::default(),
            read: CachePadded::default(),
            unseen: CachePadded::default(),
            unnumbered: AtomicU64::new(0),
            units_max: AtomicU64::new(FLOWS_MAX.into()),
            is_other_socket: AtomicBool::new(false),
        }
    }
}

/// The receiver's end.
#[derive(Debug)]
pub(super) struct Writer {
    ring: Arc<Ring>,
    /// Notes written, also those that are not published.
    written: usize,
    /// Notes that are known to be read.
    read: usize,
}

impl Writer {
    /// To be called by the thread that writes.
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        ring.slots();
        Self { ring, written: 0, read: 0 }
    }

    /// Writes all of these notes, or none and false.
    pub(super) fn write(&mut self, notes: &[Note]) -> bool {
        if self.written - self.read + notes.len() > NOTES {
            self.read = self.ring.read.load(Ordering::Acquire);
            if self.written - self.read + notes.len() > NOTES {
                return false;
            }
        }
        let slots = self.ring.slots();
        for note in notes {
            let (slot, words) = (&slots[self.written % NOTES], note.words());
            for (cell, word) in slot.iter().zip(&words) {
                cell.store(*word, Ordering::Relaxed);
            }
            self.written += 1;
        }
        true
    }

    /// Lets the reader see what was written.
    pub(super) fn publish(&self) {
        self.ring.written.store(self.written, Ordering::Release);
    }
}

impl Ring {
    fn slots(&self) -> &[Slot] {
        let slot = |_| std::array::from_fn(|_| AtomicU64::new(0));
        self.slots.get_or_init(|| (0..NOTES).map(slot).collect())
    }

    /// Takes at most `limit` notes. Only ever called by one thread.
    pub(super) fn read(&self, limit: usize, mut take: impl FnMut(Note)) -> usize {
        let (first, end) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        let end = end.min(first + limit);
        if first == end {
            return 0;
        }
        let slots = self.slots();
        for place in first..end {
            let slot = &slots[place % NOTES];
            take(Note::from_words(std::array::from_fn(|word| slot[word].load(Ordering::Relaxed))));
        }
        self.read.store(end, Ordering::Release);
        end - first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.read.load(Ordering::Relaxed) == self.written.load(Ordering::Acquire)
    }
}

/// Wakes the thread of a listener that has gone to sleep; costs the receiver a fence a batch.
#[derive(Debug, Default)]
pub(super) struct Bell {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    pub(super) fn ring(&self) {
        // Pairs with the one of `sleep`: either the reader sees the notes, or this sees that it goes to sleep.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed)
            && self.is_asleep.swap(false, Ordering::Acquire)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Sleeps in `park` unless there is something to do by now.
    pub(super) fn sleep(&self, is_idle: impl Fn() -> bool, park: impl FnOnce()) {
        self.thread.get_or_init(std::thread::current);
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if is_idle() {
            park();
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_out_in_order_and_a_full_ring_takes_none() {
        let ring = Arc::new(Ring::default());
        let mut writer = Writer::new(Arc::clone(&ring));
        let note = |number| Note { number, ..Note::default() };
        for number in 0..NOTES as u64 - 1 {
            assert!(writer.write(&[note(number)]));
        }
        assert!(!writer.write(&[note(0), note(1)]), "of two that do not fit none is written");
        assert!(ring.is_empty(), "nothing is seen before it is published");
        writer.publish();
        let mut numbers = Vec::new();
        assert_eq!(ring.read(10, |note| numbers.push(note.number)), 10);
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        assert!(writer.write(&[note(0), note(1)]), "there is room again");
    }

    #[test]
    fn what_one_thread_writes_another_reads_whole_and_in_order() {
        let (ring, bell) = (Arc::new(Ring::default()), Arc::new(Bell::default()));
        let mut writer = Writer::new(Arc::clone(&ring));
        let bell_of_writer = Arc::clone(&bell);
        let count = 200_000_u64;
        let thread = std::thread::spawn(move || {
            for number in 0..count {
                let note = Note { number, units: number as u32, ..Note::default() };
                while !writer.write(&[note]) {
                    std::thread::yield_now();
                }
                if number % 7 == 0 || number == count - 1 {
                    writer.publish();
                    bell_of_writer.ring();
                }
            }
        });
        let mut next = 0;
        while next < count {
            let read = ring.read(NOTES, |note| {
                assert_eq!((note.number, note.units), (next, next as u32));
                next += 1;
            });
            if read == 0 {
                bell.sleep(|| ring.is_empty(), std::thread::park);
            }
        }
        thread.join().expect("the writer ends");
    }
}
