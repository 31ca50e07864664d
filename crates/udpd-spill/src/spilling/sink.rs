//! The sink that stands in front: to the sink below, or to the spill.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mmsg::PackedBatch;

use super::attempt::Attempt;
use super::home::{Home, refusal};
use super::settings::Spill;
use super::voice::Voice;
use super::way::{Held, RETRY, Way, Work};
use crate::{FRAME_BYTES_MAX, Recovered, Store};
use udpd_base::exit::Failure;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::Tallies;
use udpd_base::os::crew;
use udpd_base::sink::settings::Opening;
use udpd_base::sink::{Feeders, Sink, fail};

/// How often what was written to the spill is forced to the disk, while something is.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How often a full spill that is waited for is looked at.
const ROOM_WAIT: Duration = Duration::from_millis(20);

/// How long what a disk does not take waits for another try, as long as it is little.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);

/// The spills that this process has had. What is found there is in its books already.
static OWN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// What was found in a spill, and is not in the books yet.
#[derive(Debug)]
struct Opened {
    found: Recovered,
    /// By a sink of this process.
    is_own: bool,
}

/// A sink in front of another, with a spill.
pub struct Spilling<S> {
    pub(super) inner: S,
    /// `None` where no lane feeds the consumer.
    home: Option<Home>,
    /// `None` before it is open, or where it cannot be.
    pub(super) store: Option<Store>,
    opened: Option<Opened>,
    when_full: FullPolicy,
    /// Whether nobody waits for this consumer any more.
    pub(super) is_unawaited: fn() -> bool,
    /// So it is, and there was no room: what still comes is lost.
    is_given_up: bool,
    /// How soon a destination is tried again.
    pub(super) retry: Duration,
    pub(super) way: Way,
    /// What of the spill is being sent.
    pub(super) work: Option<Work>,
    /// The datagrams of that.
    pub(super) batch: LaneBatch,
    /// Which of the batch in hand were left.
    pub(super) left: Vec<usize>,
    /// What the sink below counts of datagrams from the spill.
    pub(super) scratch: Tallies,
    pub(super) voice: Voice,
    next_sync: Option<Instant>,
    /// Nothing comes any more.
    is_last: bool,
    /// Since when the disk has taken nothing of what waits to be written.
    pub(super) refused_since: Option<Instant>,
    /// Bytes that came into the spill since something was last sent from it.
    pub(super) added_bytes: u64,
}

impl<S: fmt::Debug> fmt::Debug for Spilling<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Spilling").field("inner", &self.inner).field("way", &self.way).finish_non_exhaustive()
    }
}

impl<S: Attempt> Spilling<S> {
    /// Opens the spill, unless another sink has it and ends before this one begins.
    pub fn open(inner: S, spill: &Spill, opening: &Opening<'_>) -> Result<Self, Failure> {
        let home = Home::of(spill, opening)?;
        let directory = home.as_ref().map(|home| home.directory.clone()).unwrap_or_default();
        let refused = |error: io::Error| refusal(opening.sink, &directory, &error);
        let mut sink = Self::new(inner, opening.sink, home, opening.when_full).map_err(refused)?;
        if !opening.context.has_predecessor {
            sink.open_store().map_err(refused)?;
        }
        Ok(sink)
    }

    pub(super) fn new(inner: S, name: &str, home: Option<Home>, when_full: FullPolicy) -> io::Result<Self> {
        let batch = PackedBatch::pool(1, FRAME_BYTES_MAX, false)?.0.remove(0);
        let listeners = home.as_ref().map_or(0, |home| home.places.listeners());
        Ok(Self {
            inner,
            home,
            store: None,
            opened: None,
            when_full,
            is_unawaited: crew::is_given_up,
            is_given_up: false,
            retry: RETRY,
            way: Way::Well,
            work: None,
            batch: LaneBatch::unpacked(batch),
            left: Vec::new(),
            scratch: Tallies::new(0..listeners),
            voice: Voice::new(name),
            next_sync: None,
            is_last: false,
            refused_since: None,
            added_bytes: 0,
        })
    }

    /// One that a single listener feeds, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_listener(inner: S, (listener, name): (usize, &str), directory: &std::path::Path) -> Self {
        let bound = "127.0.0.1:514".to_owned();
        let lane = crate::Lane { lane: 0, listener, name: name.to_owned(), bound };
        let places = crate::Places::of(vec![lane]).expect("a lane");
        let bytes_max = crate::BYTES_MIN;
        let home = Home { directory: directory.to_owned(), bytes_max, places, others: Vec::new() };
        let mut sink = Self::new(inner, "stream", Some(home), FullPolicy::DropNewest).expect("memory");
        sink.open_store().expect("it opens");
        sink
    }

    pub fn open_store(&mut self) -> io::Result<()> {
        let Some(home) = self.home.clone() else { return Ok(()) };
        let (store, found) = Store::open(&home.directory, home.bytes_max, home.places, &home.others)?;
        let is_own = !OWN.lock().unwrap_or_else(PoisonError::into_inner).insert(home.directory);
        self.voice.takes_over(&store, &found);
        if !store.is_empty() {
            self.way = Way::Down { retry: Instant::now() };
        }
        (self.store, self.opened) = (Some(store), Some(Opened { found, is_own }));
        Ok(())
    }

    /// Takes what was found in the spill into the books.
    pub fn count_opened(&mut self, tallies: &mut Tallies) {
        let Some(Opened { found, is_own }) = self.opened.take() else { return };
        for (listener, datagrams) in found.left {
            let tally = &mut tallies[listener];
            tally.spilled += datagrams;
            *(if is_own { &mut tally.spilled_again } else { &mut tally.spilled_before }) += datagrams;
        }
        for (listener, datagrams) in found.torn {
            let tally = &mut tallies[listener];
            tally.dropped.spill_torn += datagrams;
            tally.spilled_before += datagrams;
        }
        for (listener, datagrams) in found.twice_at_most {
            tallies[listener].spill_repeats_at_most += datagrams;
        }
    }

    /// Whether what comes need not wait behind anything.
    fn goes_straight(&self) -> bool {
        self.way == Way::Well
    }

    /// Puts datagrams of a batch into the spill: those at the places that were left, or all.
    fn put(&mut self, batch: &LaneBatch, only_left: bool, tallies: &mut Tallies) {
        let mut left = std::mem::take(&mut self.left);
        {
            let mut wanted = left.iter().peekable();
            for (place, datagram) in batch.datagrams.datagrams().enumerate() {
                if only_left && wanted.next_if_eq(&&place).is_none() {
                    continue;
                }
                match &mut self.store {
                    None => {
                        self.inner.forget_left();
                        fail(&mut tallies[batch.listener], 1);
                    }
                    Some(store) if self.is_given_up => {
                        if store.is_empty() {
                            self.inner.forget_left();
                        }
                        fail(&mut tallies[batch.listener], 1);
                    }
                    Some(store) => {
                        if self.way == Way::Well {
                            // The spill has become empty within this batch; the rest of it still comes before others.
                            self.way = Way::Draining;
                        }
                        if store.push(batch.lane, &datagram) {
                            self.write_out(tallies);
                        }
                    }
                }
            }
        }
        left.clear();
        self.left = left;
    }

    /// Writes what waits for it, or does what `when_full` says.
    fn write_out(&mut self, tallies: &mut Tallies) {
        loop {
            let Some(store) = self.store.as_mut().filter(|store| store.unwritten_bytes() > 0) else { return };
            let bytes = store.unwritten_bytes();
            let mut spilled = |listener: usize, datagrams| {
                tallies[listener].pending -= datagrams;
                tallies[listener].spilled += datagrams;
            };
            let error = match crew::at_rest(|| store.write_out(&mut spilled)) {
                Err(error) => error,
                Ok(lent) => {
                    self.added_bytes += bytes;
                    self.refused_since = None;
                    self.next_sync.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
                    if let Some(error) = store.take_unforced() {
                        self.voice.cannot_sync(store.directory(), &error);
                    }
                    return self.note_written(lent);
                }
            };
            self.voice.full(store, &error, self.when_full);
            let is_patient = !(self.is_last && self.when_full == FullPolicy::Block);
            if error.kind() != io::ErrorKind::QuotaExceeded && !store.is_write_due() && is_patient {
                // The disk may have failed for a moment only.
                let since = *self.refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() < WRITE_PATIENCE {
                    return;
                }
            }
            let goes_on = match self.when_full {
                FullPolicy::DropNewest => false,
                FullPolicy::DropOldest => self.give_up_oldest(tallies),
                FullPolicy::Block if (self.is_unawaited)() => {
                    self.is_given_up = true;
                    self.voice.gave_up();
                    false
                }
                FullPolicy::Block => {
                    self.drain(tallies);
                    // This may take as long as the destination does.
                    tallies.publish();
                    crew::at_rest(|| thread::sleep(ROOM_WAIT.min(self.retry)));
                    true
                }
            };
            if !goes_on {
                return self.forget_unwritten(tallies);
            }
        }
    }

    /// What is being sent from memory is on the disk now, if so.
    fn note_written(&mut self, lent: Option<(u64, u64)>) {
        if let (Some(work), Some((segment, end))) = (&mut self.work, lent) {
            work.held = Held::OnDisk;
            (work.frame.segment, work.frame.end) = (segment, end);
        }
    }

    /// What was not written finds no room.
    fn forget_unwritten(&mut self, tallies: &mut Tallies) {
        self.refused_since = None;
        if self.store.as_ref().is_none_or(|store| store.unwritten_bytes() == 0) {
            return;
        }
        if self.work.as_ref().is_some_and(|work| work.held == Held::InMemory) {
            self.orphan_work(tallies);
        }
        let Some(store) = &mut self.store else { return };
        if store.left() == 0 {
            self.inner.forget_left();
        }
        let is_given_up = self.is_given_up;
        store.forget_unwritten(|listener, datagrams| {
            let tally = &mut tallies[listener];
            if is_given_up {
                fail(tally, datagrams);
            } else {
                tally.pending -= datagrams;
                tally.dropped.spill_full += datagrams;
            }
        });
    }

    fn expect_handed(&mut self, datagrams: u64) {
        if let Some(store) = &mut self.store {
            store.expect_handed(datagrams);
        }
    }

    /// Makes room; false where there is nothing to give up.
    fn give_up_oldest(&mut self, tallies: &mut Tallies) -> bool {
        let Some(oldest) = self.store.as_ref().and_then(Store::oldest) else { return false };
        let is_hit = |work: &Work| work.held == Held::OnDisk && work.frame.segment == oldest;
        if self.work.as_ref().is_some_and(is_hit) {
            self.orphan_work(tallies);
        }
        for (listener, datagrams) in self.store.as_mut().map(Store::drop_oldest).unwrap_or_default() {
            tallies[listener].spilled -= datagrams;
            tallies[listener].dropped.spill_full += datagrams;
        }
        self.inner.forget_left();
        true
    }

    /// Forces the spill to the disk, when it is time.
    fn sync_when_due(&mut self) {
        let (Some(due), Some(store)) = (self.next_sync, &mut self.store) else { return };
        if due > Instant::now() {
            return;
        }
        self.next_sync = None;
        if let Err(error) = crew::at_rest(|| store.sync()) {
            self.voice.cannot_sync(store.directory(), &error);
        }
    }
}

impl<S: Attempt> Sink for Spilling<S> {
    fn begin(&mut self) {
        self.inner.begin();
        if self.store.is_none()
            && let Err(error) = self.open_store()
        {
            let directory = self.home.as_ref().map(|home| home.directory.clone()).unwrap_or_default();
            self.voice.cannot_open(&directory, &error);
        }
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.count_opened(tallies);
        if !self.goes_straight() {
            return self.put(batch, false, tallies);
        }
        self.inner.attempt(batch, tallies, &mut self.left);
        if self.left.is_empty() {
            return;
        }
        if let Some(store) = &self.store {
            self.voice.begins(store);
            self.has_left();
        }
        let in_hand = self.inner.in_hand() as u64;
        self.expect_handed(in_hand);
        self.put(batch, true, tallies);
        if in_hand > 0 {
            self.write_out(tallies);
            let Some(store) = self.store.as_mut().filter(|store| store.unwritten_bytes() == 0) else { return };
            store.expect_handed(0);
            if let Err(error) = store.note_handed(in_hand) {
                self.voice.cannot_sync(store.directory(), &error);
            }
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.count_opened(tallies);
        self.write_out(tallies);
        self.drain(tallies);
        self.sync_when_due();
        if self.inner.due().is_some_and(|due| due <= Instant::now()) {
            self.inner.when_due();
        }
    }

    fn due(&self) -> Option<Instant> {
        let way = match self.way {
            _ if self.opened.is_some() => Some(Instant::now()),
            Way::Well => None,
            Way::Down { retry } => Some(retry),
            Way::Trial { until } => Some(until),
            Way::Draining => Some(Instant::now()),
        };
        way.into_iter().chain(self.next_sync).chain(self.inner.due()).min()
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush(tallies);
    }

    fn go_on_for(&mut self, feeders: &Feeders) {
        self.inner.go_on_for(feeders);
    }

    fn finish(&mut self, tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {
        self.count_opened(tallies);
        self.is_last = true;
        self.write_out(tallies);
        self.forget_unwritten(tallies);
        if self.work.as_ref().is_some_and(|work| work.held == Held::Nowhere) && !self.inner.has_refused() {
            // It is not known to have been refused.
            self.settle(tallies);
            self.work = None;
        }
        self.give_up_orphan(tallies);
        let is_a_rest = self.work.as_ref().is_none_or(Work::is_a_rest);
        let may_be_twice = matches!(self.way, Way::Trial { .. }) || self.inner.in_hand() > 0 || !is_a_rest;
        let Some(mut store) = self.store.take() else { return };
        if let Err(error) = store.close(may_be_twice) {
            self.voice.cannot_sync(store.directory(), &error);
        }
        self.voice.stays(&store);
    }
}
