//! One file as its consumer sees it: what is written to it, and what is asked of its keeper.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::clock::{Clock, Ends};
use super::desk::{At, Desk, Note, Order};
use super::handle::{Handle, cure};
use super::keeper::{FileKeeper, Post};
use super::name::Name;
use super::room::Room;
use super::settings::{FileSettings, Sync};
use udpd_base::format::encoder::{Encoder, Scene};
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{FileLedger, Tallies};
use udpd_base::sink::outbox::Outbox;

/// How often the consumer has its keeper see whether the path still leads to the file, while it writes; the kernel does
/// not tell everything. With the moment that somebody who moves a file is left for a new one, it is left within a
/// quarter of a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);

/// How soon a full file that could not be finished is asked for again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// How soon a disk that is slower than its syncs is asked again.
const SYNC_PAUSE: Duration = Duration::from_millis(5);

/// A file, and the next one of the same name, and so on.
#[derive(Debug)]
pub(super) struct LogFile {
    outbox: Outbox,
    /// With the path of this file, which may hold codes for the time.
    settings: FileSettings,
    ledger: Arc<FileLedger>,
    clock: Clock,
    keeper: Post,
    /// What is written to; `None` while nothing can be.
    handle: Option<Handle>,
    /// Since when there is none, in datagrams and bytes that were lost in all by then.
    lost_before: Option<(u64, u64)>,
    /// Which file that is, or was.
    generation: u64,
    length: u64,
    /// Not before then is a full file to be finished: it could not be the last time.
    full_pause: Option<Instant>,
    /// When its name or its period ends.
    ends: Option<Ends>,
    /// The next file has been asked for, and the keeper has not answered yet.
    is_changing: bool,
    /// When the oldest unsynced record must be on the disk.
    sync_due: Option<Instant>,
    last_look: Instant,
}

impl LogFile {
    pub(super) fn open(
        settings: FileSettings,
        encoder: Encoder,
        clock: Clock,
        keeper: &mut FileKeeper,
        consumer: Caller,
    ) -> io::Result<Self> {
        let ledger = Arc::new(FileLedger::default());
        let name = Name::new(settings.path.clone(), settings.rotate.every);
        let desk = Arc::new(Desk::new(consumer));
        let (books, own_desk) = (Arc::clone(&ledger), Arc::clone(&desk));
        let prospect = keeper.prospect().clone();
        let room = Room::open(name, &settings, encoder.header(), (books, own_desk), clock.clone(), prospect)?;
        let mut file = Self {
            outbox: Outbox::new(encoder),
            settings,
            ledger,
            clock,
            keeper: keeper.take(room, desk),
            handle: None,
            lost_before: None,
            generation: 0,
            length: 0,
            full_pause: None,
            ends: None,
            is_changing: false,
            sync_due: None,
            last_look: Instant::now(),
        };
        file.look_at_desk();
        Ok(file)
    }

    /// Waits for the first file, which another sink has written until now.
    pub(super) fn begin(&mut self) {
        self.keeper.begin();
        self.look_at_desk();
        if self.handle.is_none() {
            self.lost_before = Some(self.outbox.lost());
        }
    }

    pub(super) fn go_on_for(&mut self, scenes: Arc<[Scene]>) {
        self.outbox.go_on_for(scenes);
    }

    /// What it is called, codes for the time and all.
    pub(super) fn path(&self) -> &str {
        &self.settings.path
    }

    pub(super) fn ledger(&self) -> Arc<FileLedger> {
        Arc::clone(&self.ledger)
    }

    pub(super) fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            self.outbox.push(batch, &datagram);
            if self.outbox.is_full() {
                self.flush(tallies);
            }
        }
    }

    pub(super) fn flush(&mut self, tallies: &mut Tallies) {
        self.look_at_desk();
        if self.outbox.is_empty() {
            return;
        }
        let Some(handle) = &mut self.handle else {
            return self.outbox.discard(tallies);
        };
        let lost = self.outbox.lost();
        let (written, outcome) = self.outbox.write_to(handle, tallies);
        if written > 0 {
            self.note_written(written as u64);
        }
        if let Err(error) = outcome {
            self.lost_before = Some(lost);
            self.break_off(&error);
        }
    }

    /// Takes what the keeper has left. Only ever while nothing is half written: a file ends with a whole record.
    fn look_at_desk(&mut self) {
        let Some(note) = self.keeper.desk.take() else { return };
        let generation = note.stop_before;
        self.take(note);
        if generation > self.generation {
            // Now that nothing more goes there.
            self.generation = generation;
            self.keeper.order(Order::Left(At { generation, written: self.ledger.written() }));
        }
    }

    fn take(&mut self, note: Note) {
        let now = Instant::now();
        if let Some(ends) = note.ends {
            self.ends = ends.map(|ends| Ends::new(ends, &self.clock, now));
        }
        self.is_changing = false;
        self.full_pause = Some(now + FULL_PAUSE);
        if note.stop_before > self.generation {
            self.full_pause = None;
            self.length = note.begun.as_ref().map_or(0, |begun| begun.length);
            self.handle = note.begun.map(|begun| begun.handle);
            match &self.handle {
                None => self.lost_before = self.lost_before.or(Some(self.outbox.lost())),
                Some(_) => self.say_lost("is written again"),
            }
        }
    }

    /// Once there is a file again, what it cost that there was none.
    fn say_lost(&mut self, what: &str) {
        let Some(before) = self.lost_before.take() else { return };
        let lost = self.outbox.lost();
        log::warn!(
            "{} {what}; {} datagrams ({} bytes) were lost meanwhile and are counted as sink_error",
            self.settings.path,
            lost.0 - before.0,
            lost.1 - before.1
        );
    }

    fn at(&self) -> At {
        At { generation: self.generation, written: self.ledger.written() }
    }

    /// The clocks are read once per write, which carries thousands of datagrams when many come.
    fn note_written(&mut self, bytes: u64) {
        self.ledger.add_written(bytes);
        self.length += bytes;
        let now = Instant::now();
        if let Sync::Every(interval) = self.settings.sync {
            match self.sync_due {
                None => self.sync_due = Some(now + interval),
                Some(_) => self.sync_if_due(now),
            }
        }
        if now - self.last_look >= LOOK_INTERVAL {
            self.last_look = now;
            if !self.keeper.desk.is_looking.swap(true, Ordering::AcqRel) {
                self.keeper.order(Order::Look);
            }
        }
        let is_full = self.settings.rotate.bytes > 0 && self.length >= self.settings.rotate.bytes;
        self.change_if(is_full && self.full_pause.is_none_or(|until| until <= now), now);
    }

    /// Asks for the next file when this one is full or its time is over.
    fn change_if(&mut self, is_full: bool, now: Instant) {
        if self.is_changing || self.handle.is_none() {
            return;
        }
        let is_over = self.ends.is_some_and(|ends| ends.has_come(&self.clock, now));
        if is_full || is_over {
            self.is_changing = true;
            let order = if is_full { Order::FinishFull } else { Order::FinishDue };
            self.keeper.order(order(self.generation));
        }
    }

    fn sync_if_due(&mut self, now: Instant) {
        if self.sync_due.is_none_or(|due| due > now) {
            return;
        }
        if self.keeper.desk.is_syncing.swap(true, Ordering::AcqRel) {
            // The disk is slower than was asked for; it is asked again when it is done.
            self.sync_due = Some(now + SYNC_PAUSE);
        } else {
            self.sync_due = None;
            self.keeper.order(Order::Sync(self.at()));
        }
    }

    /// What the keeper leaves need not be waited for: it calls.
    pub(super) fn due(&self) -> Option<Instant> {
        let ends = self.ends.filter(|_| !self.is_changing && self.handle.is_some());
        [self.sync_due, ends.map(|ends| ends.at)].into_iter().flatten().min()
    }

    pub(super) fn when_due(&mut self) {
        let now = Instant::now();
        self.look_at_desk();
        self.sync_if_due(now);
        if self.ends.is_some_and(|ends| ends.at <= now) {
            self.change_if(false, now);
        }
    }

    fn break_off(&mut self, error: &io::Error) {
        log::error!(
            "cannot write to {}: {error}; its datagrams count as sink_error until it can be written again{}",
            self.settings.path,
            cure(error)
        );
        self.handle = None;
        self.is_changing = false;
        let errno = error.raw_os_error().unwrap_or_default();
        self.keeper.order(Order::Broken { at: self.at(), errno, whole_bytes: self.length });
    }

    pub(super) fn close(mut self) {
        self.say_lost("was not written again before the end");
        if self.settings.sync != Sync::Never && self.handle.is_some() {
            self.keeper.order(Order::Sync(self.at()));
        }
        let at = self.at();
        self.keeper.close(at);
    }
}

#[cfg(test)]
#[path = "compress_tests.rs"]
mod compress_tests;
#[cfg(test)]
#[path = "keep_tests.rs"]
mod keep_tests;
#[cfg(test)]
#[path = "taken_tests.rs"]
mod taken_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
