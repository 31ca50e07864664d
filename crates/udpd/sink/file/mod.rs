//! Records in files.
//!
//! A file is a prefix of whole records at any moment that a reader can see: a write that took a part of a record is cut
//! back to the record before. While the file cannot be written, each datagram is counted as failed, other sinks do not
//! notice, and the file is tried again four times a second; when it is written again the log says what that cost.
//!
//! The consumer only ever writes. Whatever else is done to files, beginning and finishing them, syncing and removing
//! them, is for a thread of its own, see [`keeper`](self): a disk that takes its time costs no datagram.

mod clock;
mod desk;
mod handle;
mod index;
#[cfg(test)]
mod keep_tests;
mod keeper;
mod lock;
mod lookout;
mod name;
mod repair;
mod room;
mod shelf;
#[cfg(test)]
mod taken_tests;
pub mod template;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Sink;
use super::outbox::Outbox;
use crate::format::encoder::{Encoder, Format, Scene};
use crate::handover::channel::Caller;
use crate::handover::pool::LaneBatch;
use crate::ledger::{FileLedger, Tally};
use clock::{Clock, Ends};
use desk::{At, Desk, Note, Order};
use handle::{Handle, cure};
use keeper::Post;
use name::Name;
use room::Room;

pub use keeper::{FileKeeper, Reopened, Reopener};

/// How often the consumer has its keeper see whether the path still leads to the file, while it writes; the kernel does
/// not tell everything. With the moment that somebody who moves a file is left for a new one, it is left within a
/// quarter of a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);

/// How soon a full file that could not be finished is asked for again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// How soon a disk that is slower than its syncs is asked again.
const SYNC_PAUSE: Duration = Duration::from_millis(5);

/// How the files of a sink are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSettings {
    /// How datagrams are written.
    pub format: Format,
    /// A file of this size is finished; 0 = never.
    pub rotate_bytes: u64,
    /// Files are finished at the multiples of this since midnight, UTC; zero = never.
    pub rotate_every: Duration,
    /// How many finished files are kept; 0 = all.
    pub keep_files: u64,
    /// How many bytes of them; 0 = all.
    pub keep_bytes: u64,
    /// When written records are forced to the disk.
    pub sync: Sync,
}

impl FileSettings {
    /// Whether a file is ever finished because of its length or its age.
    fn rotates(&self) -> bool {
        self.rotate_bytes > 0 || !self.rotate_every.is_zero()
    }
}

/// When written records are forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// The kernel decides.
    Never,
    /// When a file is finished.
    WhenFinished,
    /// At most this long after the write.
    Every(Duration),
}

/// Which file the datagrams of which lane go to, for one consumer.
#[derive(Debug)]
pub struct FileSink {
    files: Vec<LogFile>,
    /// The file of each lane, by the lane's index; lanes that do not feed this consumer have none.
    file_of_lane: Vec<Option<usize>>,
}

impl FileSink {
    /// Opens the file of each lane; `path_of_lane` is indexed like the lanes and may hold codes for the time. Lanes
    /// with the same path share a file. Each file has its own ledger. `keeper` keeps them, and wakes their consumer by
    /// `consumer`.
    pub fn open(
        path_of_lane: &[Option<String>],
        scenes: &Arc<[Scene]>,
        settings: FileSettings,
        keeper: &mut FileKeeper,
        consumer: &Caller,
    ) -> io::Result<(Self, Vec<Arc<FileLedger>>)> {
        let mut paths: Vec<&String> = Vec::new();
        let mut file_of_lane = Vec::with_capacity(path_of_lane.len());
        for path in path_of_lane {
            let Some(path) = path else {
                file_of_lane.push(None);
                continue;
            };
            let known = paths.iter().position(|other| *other == path);
            file_of_lane.push(Some(known.unwrap_or_else(|| {
                paths.push(path);
                paths.len() - 1
            })));
        }
        let mut files = Vec::with_capacity(paths.len());
        for (index, path) in paths.into_iter().enumerate() {
            let encoder = Encoder::new(settings.format, Arc::clone(scenes), |lane| file_of_lane[lane] == Some(index));
            files.push(LogFile::open(path.clone(), encoder, settings, Clock::default(), keeper, consumer.clone())?);
        }
        let ledgers = files.iter().map(|file| Arc::clone(&file.ledger)).collect();
        Ok((Self { files, file_of_lane }, ledgers))
    }
}

impl Sink for FileSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        let index = self.file_of_lane[batch.lane].expect("the pipeline gave every lane of this consumer a file");
        let file = &mut self.files[index];
        file.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            file.outbox.push(batch, &datagram);
            if file.outbox.is_full() {
                file.flush(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
    }

    fn due(&self) -> Option<Instant> {
        self.files.iter().filter_map(LogFile::due).min()
    }

    fn when_due(&mut self, _tallies: &mut [Tally]) {
        self.files.iter_mut().for_each(LogFile::when_due);
    }

    fn finish(&mut self, tallies: &mut [Tally], _publish: &mut dyn FnMut(&[Tally])) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
        self.files.drain(..).for_each(LogFile::close);
    }
}

/// A file, and the next one of the same name, and so on.
#[derive(Debug)]
struct LogFile {
    path: String,
    outbox: Outbox,
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
    /// How long it is.
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
    fn open(
        path: String,
        encoder: Encoder,
        settings: FileSettings,
        clock: Clock,
        keeper: &mut FileKeeper,
        consumer: Caller,
    ) -> io::Result<Self> {
        let ledger = Arc::new(FileLedger::default());
        let name = Name::new(path.clone(), settings.rotate_every);
        let desk = Arc::new(Desk::new(consumer));
        let (books, own_desk) = (Arc::clone(&ledger), Arc::clone(&desk));
        let room = Room::open(name, settings, encoder.header(), books, own_desk, clock.clone())?;
        let mut file = Self {
            path,
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

    fn flush(&mut self, tallies: &mut [Tally]) {
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
            self.path,
            lost.0 - before.0,
            lost.1 - before.1
        );
    }

    /// Where the consumer is.
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
        let is_full = self.settings.rotate_bytes > 0 && self.length >= self.settings.rotate_bytes;
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
    fn due(&self) -> Option<Instant> {
        let ends = self.ends.filter(|_| !self.is_changing && self.handle.is_some());
        [self.sync_due, ends.map(|ends| ends.at)].into_iter().flatten().min()
    }

    fn when_due(&mut self) {
        let now = Instant::now();
        self.look_at_desk();
        self.sync_if_due(now);
        if self.ends.is_some_and(|ends| ends.at <= now) {
            self.change_if(false, now);
        }
    }

    fn break_off(&mut self, error: &io::Error) {
        log::error!(
            "cannot write to {}: {error}; its datagrams count as sink_error until udpd can be written again{}",
            self.path,
            cure(error)
        );
        self.handle = None;
        self.is_changing = false;
        let errno = error.raw_os_error().unwrap_or_default();
        self.keeper.order(Order::Broken { at: self.at(), errno, whole_bytes: self.length });
    }

    fn close(mut self) {
        self.say_lost("was not written again before the end");
        if self.settings.sync != Sync::Never && self.handle.is_some() {
            self.keeper.order(Order::Sync(self.at()));
        }
        let at = self.at();
        self.keeper.close(at);
    }
}
