//! Records in files.
//!
//! A file is a prefix of whole records at any moment that a reader can see: a write that took a part of a record is cut back
//! to the record before. While the file cannot be written, each datagram is counted as failed, other sinks do not notice,
//! and the file is tried again four times a second.
//!
//! The consumer only ever writes. Whatever else is done to files, beginning and finishing them, syncing and removing them, is
//! for a thread of its own, see [`keeper`](self): a disk that takes its time costs no datagram.

mod desk;
mod handle;
mod keeper;
mod name;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use super::Sink;
use super::encoder::{Encoder, Format, Scene};
use super::outbox::Outbox;
use crate::crew::Crew;
use crate::ledger::{FileLedger, Tally};
use crate::pool::LaneBatch;
use desk::{At, Note, Order};
use handle::{Handle, cure};
use keeper::Keeper;
use name::Name;

/// How often the consumer has its keeper see whether the path still leads to the file, while it writes.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How soon a full file that could not be finished is asked for again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// How soon a file that was asked for is looked for while nothing arrives.
const DESK_POLL: Duration = Duration::from_millis(5);

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
    /// Opens the file of each lane; `path_of_lane` is indexed like the lanes and may hold codes for the time. Lanes with the
    /// same path share a file. Each file has its own ledger.
    pub fn open(
        path_of_lane: &[Option<String>],
        scenes: &Arc<[Scene]>,
        settings: FileSettings,
        crew: &Crew,
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
            files.push(LogFile::open(path.clone(), encoder, settings, crew)?);
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
    keeper: Keeper,
    /// What is written to; `None` while nothing can be.
    handle: Option<Handle>,
    /// Which file that is, or was.
    generation: u64,
    /// How long it is.
    length: u64,
    /// Not before then is a full file to be finished: it could not be the last time.
    full_pause: Option<Instant>,
    /// When its name or its period ends, by the clock that dates are read from, and by the one that waits.
    ends: Option<(SystemTime, Instant)>,
    /// The next file has been asked for, and is looked for at this moment although nothing arrives.
    changing: Option<Instant>,
    /// When the oldest unsynced record must be on the disk.
    sync_due: Option<Instant>,
    last_look: Instant,
}

impl LogFile {
    fn open(path: String, encoder: Encoder, settings: FileSettings, crew: &Crew) -> io::Result<Self> {
        let ledger = Arc::new(FileLedger::default());
        let name = Name::new(path.clone(), settings.rotate_every);
        let boundary = settings.format.boundary();
        let keeper = Keeper::start(name, settings, boundary, encoder.header(), Arc::clone(&ledger), crew)?;
        let mut file = Self {
            path,
            outbox: Outbox::new(encoder),
            settings,
            ledger,
            keeper,
            handle: None,
            generation: 0,
            length: 0,
            full_pause: None,
            ends: None,
            changing: None,
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
        let (written, outcome) = self.outbox.write_to(handle, tallies);
        if written > 0 {
            self.note_written(written as u64);
        }
        if let Err(error) = outcome {
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
            let wall = SystemTime::now();
            self.ends = ends.map(|ends| (ends, now + ends.duration_since(wall).unwrap_or_default()));
        }
        self.changing = None;
        self.full_pause = Some(now + FULL_PAUSE);
        if note.stop_before > self.generation {
            self.full_pause = None;
            self.length = note.begun.as_ref().map_or(0, |begun| begun.length);
            self.handle = note.begun.map(|begun| begun.handle);
        }
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
        if self.changing.is_some() || self.handle.is_none() {
            return;
        }
        let is_over = self.ends.is_some_and(|(ends, _)| ends <= SystemTime::now());
        if is_full || is_over {
            self.changing = Some(now + DESK_POLL);
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
            self.sync_due = Some(now + DESK_POLL);
        } else {
            self.sync_due = None;
            self.keeper.order(Order::Sync(self.at()));
        }
    }

    fn due(&self) -> Option<Instant> {
        let ends = self.ends.filter(|_| self.changing.is_none() && self.handle.is_some());
        [self.sync_due, self.changing, ends.map(|(_, at)| at)].into_iter().flatten().min()
    }

    fn when_due(&mut self) {
        let now = Instant::now();
        self.look_at_desk();
        self.sync_if_due(now);
        if self.changing.is_some_and(|at| at <= now) {
            self.changing = Some(now + DESK_POLL);
        }
        if let Some((ends, at)) = self.ends
            && at <= now
        {
            // The clock of dates may have been set back meanwhile.
            self.ends = Some((ends, now + ends.duration_since(SystemTime::now()).unwrap_or_default().max(DESK_POLL)));
            self.change_if(false, now);
        }
    }

    fn break_off(&mut self, error: &io::Error) {
        log::error!(
            "cannot write to {}: {error}; its datagrams are counted as sink_error until it can be written again{}",
            self.path,
            cure(error)
        );
        self.handle = None;
        self.changing = None;
        let errno = error.raw_os_error().unwrap_or_default();
        self.keeper.order(Order::Broken { at: self.at(), errno, whole_bytes: self.length });
    }

    fn close(self) {
        if self.settings.sync != Sync::Never && self.handle.is_some() {
            self.keeper.order(Order::Sync(self.at()));
        }
        self.keeper.finish();
    }
}
