//! The notes that a receiver writes for the tracker of its listener, and the ring that carries them.
//!
//! A note says which numbers of a stream a run of datagrams covers, and nothing of the payload. The ring is an array of
//! atomic words with one writer and one reader. Writing a note is a few plain stores, and one more store publishes a
//! whole batch of them; nothing is locked or allocated. A full ring refuses notes, and what it refuses is counted: the
//! receiver never waits.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crossbeam_utils::CachePadded;

use super::header::{ExporterClock, FLOWS_MAX};
use udpd_base::seams::waits;

/// The words of a note: a cache line.
const WORDS: usize = 8;

/// How many notes a ring holds. A power of two. In tests it is short, so that a simulation fills it.
pub(super) const NOTES: usize = if cfg!(test) { 1 << 8 } else { 1 << 15 };

/// The memory of a lane's ring.
pub(super) const RING_BYTES: usize = NOTES * WORDS * size_of::<u64>();

/// What tells one stream from another: the transport session, and what the protocol has to tell streams of a session
/// apart. Two exporters behind one address differ in the port, the two sides of a redundant feed in the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StreamKey {
    /// An IPv4 address as the IPv6 address that it is mapped to.
    pub(super) source: u128,
    pub(super) stream: u64,
    pub(super) session: Session,
}

/// The rest of a transport session, which fits where the alignment of a key leaves room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Session {
    pub(super) port: u16,
    /// A number of the listener's `Destinations`.
    pub(super) destination: u16,
}

impl Session {
    #[inline]
    pub(super) fn bits(self) -> u64 {
        u64::from(self.destination) << 16 | u64::from(self.port)
    }
}

impl Hash for StreamKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.source);
        state.write_u64(self.stream);
        state.write_u64(self.session.bits());
    }
}

impl StreamKey {
    #[inline]
    pub(super) fn new(source: SocketAddr, destination: u16, stream: u64) -> Self {
        const MAPPED: u128 = 0xffff << 32;
        let address = match source.ip() {
            IpAddr::V4(v4) => MAPPED | u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        Self { source: address, stream, session: Session { port: source.port(), destination } }
    }

    /// The address of the exporter.
    pub(super) fn address(&self) -> IpAddr {
        IpAddr::from(Ipv6Addr::from_bits(self.source)).to_canonical()
    }
}

/// What a note is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum NoteKind {
    /// Datagrams, each of which begins where the one before it ended.
    #[default]
    Run,
    /// An IPFIX message, to which the notes of records and templates before it belong.
    Message,
    /// The same, with sets that could not all be read.
    MessageInPart,
    /// Records: `number` is their template, `units` their bytes.
    Records,
    /// A template: `number` is its own, `units` are the words of its `RecordFormat`.
    Template,
}

const KINDS: [NoteKind; 5] =
    [NoteKind::Run, NoteKind::Message, NoteKind::MessageInPart, NoteKind::Records, NoteKind::Template];

/// One note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SequenceNote {
    pub(super) key: StreamKey,
    pub(super) kind: NoteKind,
    /// The first number that is covered.
    pub(super) number: u64,
    /// How many numbers are covered.
    pub(super) units: u32,
    pub(super) datagrams: u16,
    pub(super) clock: ExporterClock,
    /// What the kernel had dropped at the socket when the first of these datagrams came.
    pub(super) drops: u32,
}

impl SequenceNote {
    fn words(&self) -> [u64; WORDS] {
        let Self { key, kind, number, units, datagrams, clock, drops } = *self;
        let half = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let flags = u32::from(clock.uptime_ms.is_some()) << 8 | u32::from(clock.made_at.is_some()) << 9 | kind as u32;
        [
            (key.source >> 64) as u64,
            key.source as u64,
            key.stream,
            number,
            half(units, drops),
            half(clock.uptime_ms.unwrap_or(0), clock.made_at.unwrap_or(0)),
            half(datagrams.into(), flags),
            key.session.bits(),
        ]
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let high = |word: u64| (word >> 32) as u32;
        let flags = words[6] as u32;
        let has = |bit: u32, value: u32| (flags >> bit & 1 == 1).then_some(value);
        Self {
            key: StreamKey {
                source: u128::from(words[0]) << 64 | u128::from(words[1]),
                stream: words[2],
                session: Session { port: words[7] as u16, destination: (words[7] >> 16) as u16 },
            },
            kind: KINDS[(flags & 7) as usize],
            number: words[3],
            units: high(words[4]),
            drops: words[4] as u32,
            datagrams: high(words[6]) as u16,
            clock: ExporterClock { uptime_ms: has(8, high(words[5])), made_at: has(9, words[5] as u32) },
        }
    }
}

type Slot = [AtomicU64; WORDS];

/// The ring of one lane, and what is counted beside it.
#[derive(Debug)]
pub(super) struct NoteRing {
    /// Made by its writer, so that it lies on the memory node of the core that writes it.
    slots: OnceLock<Box<[Slot]>>,
    /// Notes ever written.
    written: CachePadded<AtomicUsize>,
    /// Notes ever read.
    read: CachePadded<AtomicUsize>,
    /// Datagrams whose note found the ring full.
    pub(super) unseen: CachePadded<AtomicU64>,
    /// Datagrams without a header of the protocol.
    pub(super) unnumbered: AtomicU64,
    /// The most numbers that a datagram has covered, and at least as many as NetFlow 5 allows.
    pub(super) units_max: AtomicU64,
    /// Whether the lane has changed its socket.
    pub(super) is_other_socket: AtomicBool,
}

impl Default for NoteRing {
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

/// The receiver's end of a ring.
#[derive(Debug)]
pub(super) struct NoteWriter {
    ring: Arc<NoteRing>,
    /// Notes written, also those that are not published yet.
    written: usize,
    /// Notes that are known to be read.
    read: usize,
}

impl NoteWriter {
    /// To be called by the thread that writes.
    pub(super) fn new(ring: Arc<NoteRing>) -> Self {
        ring.slots();
        Self { ring, written: 0, read: 0 }
    }

    /// Writes all of these notes, or none and returns false.
    pub(super) fn write(&mut self, notes: &[SequenceNote]) -> bool {
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

impl NoteRing {
    fn slots(&self) -> &[Slot] {
        let slot = |_| std::array::from_fn(|_| AtomicU64::new(0));
        self.slots.get_or_init(|| (0..NOTES).map(slot).collect())
    }

    /// Takes at most `limit` notes. Only ever called by one thread.
    pub(super) fn read(&self, limit: usize, mut take: impl FnMut(SequenceNote)) -> usize {
        let (first, end) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        let end = end.min(first + limit);
        if first == end {
            return 0;
        }
        let slots = self.slots();
        for index in first..end {
            let slot = &slots[index % NOTES];
            take(SequenceNote::from_words(std::array::from_fn(|word| slot[word].load(Ordering::Relaxed))));
        }
        self.read.store(end, Ordering::Release);
        end - first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.read.load(Ordering::Relaxed) == self.written.load(Ordering::Acquire)
    }
}

/// Wakes the tracker of a listener that has gone to sleep. It costs a receiver one fence a batch.
#[derive(Debug, Default)]
pub(super) struct TrackerWaker {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl TrackerWaker {
    pub(super) fn wake(&self) {
        // Pairs with the fence of `sleep`: either the tracker sees the notes, or this sees that it goes to sleep.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed)
            && self.is_asleep.swap(false, Ordering::Acquire)
            && let Some(thread) = self.thread.get()
        {
            waits::unpark(thread);
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
    fn an_ipv4_sender_is_the_same_as_its_mapped_address() {
        let key = |text: &str| StreamKey::new(SocketAddr::new(text.parse().expect("an address"), 9), 3, 7);
        assert_eq!(key("192.0.2.129"), key("::ffff:192.0.2.129"));
        assert_ne!(key("192.0.2.129"), key("::192.0.2.129"));
    }

    #[test]
    fn a_note_comes_out_as_it_was_written() {
        for kind in KINDS {
            for uptime_ms in [None, Some(0), Some(u32::MAX)] {
                let note = SequenceNote {
                    key: StreamKey::new("[2001:db8::7]:65534".parse().expect("an address"), 65_535, u64::MAX - 1),
                    kind,
                    number: u64::MAX - 2,
                    units: u32::MAX - 3,
                    datagrams: 65_533,
                    clock: ExporterClock { uptime_ms, made_at: Some(5) },
                    drops: u32::MAX,
                };
                assert_eq!(SequenceNote::from_words(note.words()), note);
            }
        }
    }

    #[test]
    fn notes_come_out_in_order_and_a_full_ring_takes_none() {
        let ring = Arc::new(NoteRing::default());
        let mut writer = NoteWriter::new(Arc::clone(&ring));
        let note = |number| SequenceNote { number, ..SequenceNote::default() };
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
        let (ring, waker) = (Arc::new(NoteRing::default()), Arc::new(TrackerWaker::default()));
        let mut writer = NoteWriter::new(Arc::clone(&ring));
        let waker_of_writer = Arc::clone(&waker);
        let count = 200_000_u64;
        let thread = std::thread::spawn(move || {
            for number in 0..count {
                let note = SequenceNote { number, units: number as u32, ..SequenceNote::default() };
                while !writer.write(&[note]) {
                    std::thread::yield_now();
                }
                if number % 7 == 0 || number == count - 1 {
                    writer.publish();
                    waker_of_writer.wake();
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
                waker.sleep(|| ring.is_empty(), std::thread::park);
            }
        }
        thread.join().expect("the writer ends");
    }
}
