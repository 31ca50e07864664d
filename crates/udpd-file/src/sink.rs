//! The sink of files: the file of each lane as its consumer sees it, what the consumer writes to it, and what it
//! requests from the keeper.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::clock::{FileEnd, WallClock};
use super::handle::{LogHandle, cure};
use super::keeper::FileKeeper;
use super::mailbox::{FileUpdate, KeeperHandle, KeeperRequest, Mailbox, WritePosition};
use super::name::FileName;
use super::rotating_file::RotatingFile;
use super::settings::{FileSettings, Sync};
use super::template;
use super::template::PathNames;
use udpd_base::format::{Encoder, Scene};
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{FileLedger, Tallies};
use udpd_base::seams::clock;
use udpd_base::sink::outbox::Outbox;
use udpd_base::sink::{ConsumerFeeders, Sink};

/// How often the consumer has its keeper check whether the path still leads to the file, while it writes: inotify does
/// not report everything. Together with the grace period after a move, a moved file is replaced within 250 ms.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);

/// The pause before a full file that could not be finished is requested again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// The pause before the next sync request to a disk that is slower than its syncs.
pub(super) const SYNC_PAUSE: Duration = Duration::from_millis(5);

/// A file and its successors of the same name.
#[derive(Debug)]
pub(super) struct LogFile {
    outbox: Outbox,
    /// With the path of this file, which may hold codes for the time.
    settings: FileSettings,
    ledger: Arc<FileLedger>,
    clock: WallClock,
    keeper: KeeperHandle,
    /// The open file; `None` while none can be written.
    handle: Option<LogHandle>,
    /// While there is no file: how many datagrams and bytes were lost before that began.
    lost_before: Option<(u64, u64)>,
    /// The generation of that file, or of the last one.
    generation: u64,
    length: u64,
    /// A full file is not finished before this, because the last attempt failed.
    full_pause: Option<Instant>,
    /// When its period or the time in its name ends.
    ends: Option<FileEnd>,
    /// The next file is requested and the keeper has not answered yet.
    is_changing: bool,
    /// When the oldest unsynced record must be on the disk.
    sync_due: Option<Instant>,
    last_look: Instant,
}

impl LogFile {
    pub(super) fn open(
        settings: FileSettings,
        encoder: Encoder,
        clock: WallClock,
        keeper: &mut FileKeeper,
        consumer: Caller,
    ) -> io::Result<Self> {
        let ledger = Arc::new(FileLedger::default());
        let name = FileName::new(settings.path.clone(), settings.rotate.every).in_zone(settings.time.zone());
        let mailbox = Arc::new(Mailbox::new(consumer));
        let rotating_file = RotatingFile::open(
            name,
            &settings,
            encoder.header(),
            Arc::clone(&ledger),
            Arc::clone(&mailbox),
            clock.clone(),
            keeper.context().clone(),
        )?;
        let mut file = Self {
            outbox: Outbox::new(encoder),
            settings,
            ledger,
            clock,
            keeper: keeper.add(rotating_file, mailbox),
            handle: None,
            lost_before: None,
            generation: 0,
            length: 0,
            full_pause: None,
            ends: None,
            is_changing: false,
            sync_due: None,
            last_look: clock::now(),
        };
        file.read_mailbox();
        Ok(file)
    }

    /// Waits for the first file, which the previous sink has written until now.
    pub(super) fn begin(&mut self) {
        self.keeper.begin();
        self.read_mailbox();
        if self.handle.is_none() {
            self.lost_before = Some(self.outbox.lost());
        }
    }

    pub(super) fn go_on_for(&mut self, scenes: Arc<[Scene]>) {
        self.outbox.go_on_for(scenes);
    }

    /// Its path, with the codes for the time.
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
        self.read_mailbox();
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

    /// Takes the keeper's update. It is called only between writes, because a file must end with a whole record.
    fn read_mailbox(&mut self) {
        let Some(update) = self.keeper.mailbox.take() else { return };
        let generation = update.stop_before;
        self.take(update);
        if generation > self.generation {
            // From here on nothing is written to the old file.
            self.generation = generation;
            self.keeper
                .request(KeeperRequest::ClosedBefore(WritePosition { generation, written: self.ledger.written() }));
        }
    }

    fn take(&mut self, update: FileUpdate) {
        let now = clock::now();
        if let Some(ends) = update.ends {
            self.ends = ends.map(|ends| FileEnd::new(ends, &self.clock, now));
        }
        self.is_changing = false;
        self.full_pause = Some(now + FULL_PAUSE);
        if update.stop_before > self.generation {
            self.full_pause = None;
            self.length = update.begun.as_ref().map_or(0, |begun| begun.length);
            self.handle = update.begun.map(|begun| begun.handle);
            match &self.handle {
                None => self.lost_before = self.lost_before.or(Some(self.outbox.lost())),
                Some(_) => self.log_lost("is written again"),
            }
        }
    }

    /// Logs what was lost while there was no file.
    fn log_lost(&mut self, what: &str) {
        let Some(before) = self.lost_before.take() else { return };
        let lost = self.outbox.lost();
        log::warn!(
            "{} {what}; {} datagrams ({} bytes) were lost meanwhile and are counted as sink_error",
            self.settings.path,
            lost.0 - before.0,
            lost.1 - before.1
        );
    }

    fn at(&self) -> WritePosition {
        WritePosition { generation: self.generation, written: self.ledger.written() }
    }

    /// Reads the clocks once per write, which carries thousands of datagrams under load.
    fn note_written(&mut self, bytes: u64) {
        self.ledger.add_written(bytes);
        self.length += bytes;
        let now = clock::now();
        if let Sync::Every(interval) = self.settings.sync {
            match self.sync_due {
                None => self.sync_due = Some(now + interval),
                Some(_) => self.sync_if_due(now),
            }
        }
        if now - self.last_look >= LOOK_INTERVAL {
            self.last_look = now;
            if !self.keeper.mailbox.is_looking.swap(true, Ordering::AcqRel) {
                self.keeper.request(KeeperRequest::Look);
            }
        }
        let is_full = self.settings.rotate.bytes > 0 && self.length >= self.settings.rotate.bytes;
        self.change_if(is_full && self.full_pause.is_none_or(|until| until <= now), now);
    }

    /// Requests the next file when this one is full or its period is over.
    fn change_if(&mut self, is_full: bool, now: Instant) {
        if self.is_changing || self.handle.is_none() {
            return;
        }
        let is_over = self.ends.is_some_and(|ends| ends.has_come(&self.clock, now));
        if is_full || is_over {
            self.is_changing = true;
            let request = if is_full { KeeperRequest::FinishFull } else { KeeperRequest::FinishDue };
            self.keeper.request(request(self.generation));
        }
    }

    fn sync_if_due(&mut self, now: Instant) {
        if self.sync_due.is_none_or(|due| due > now) {
            return;
        }
        // Where the disk is slower than its syncs, the next one is requested when this one is done.
        self.sync_due = (!self.keeper.sync(self.at())).then(|| now + SYNC_PAUSE);
    }

    /// The keeper wakes the consumer for an update, so that needs no due time.
    pub(super) fn due(&self) -> Option<Instant> {
        let ends = self.ends.filter(|_| !self.is_changing && self.handle.is_some());
        [self.sync_due, ends.map(|ends| ends.at)].into_iter().flatten().min()
    }

    pub(super) fn when_due(&mut self) {
        let now = clock::now();
        self.read_mailbox();
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
        self.keeper.request(KeeperRequest::Broken { at: self.at(), errno, whole_bytes: self.length });
    }

    pub(super) fn close(self) {
        self.ask_to_close().await_end();
    }

    /// The same without the wait.
    pub(super) fn ask_to_close(mut self) -> KeeperHandle {
        self.log_lost("was not written again before the end");
        let (at, syncs) = (self.at(), self.settings.sync != Sync::Never && self.handle.is_some());
        self.keeper.ask_to_close(at, syncs);
        self.keeper
    }
}

/// With the ledger of each file.
type OpenedFiles = (FileSink, Vec<Arc<FileLedger>>);

/// The files of one consumer, by lane.
#[derive(Debug)]
pub(super) struct FileSink {
    /// Their path, with the placeholders that a lane fills in.
    path: String,
    files: Vec<LogFile>,
    /// The file of each lane, by the lane's index; lanes that do not feed this consumer have none.
    file_of_lane: Vec<Option<usize>>,
    /// The sink of the previous pipeline writes them.
    has_predecessor: bool,
}

impl FileSink {
    /// Opens the file of each lane; `path_of_lane` is indexed like the lanes and may hold codes for the time. Lanes
    /// with the same path share a file. Each file has its own ledger. `keeper` wakes the consumer by `consumer`.
    /// An error comes with the path that could not be opened.
    pub(super) fn open(
        path_of_lane: &[Option<String>],
        scenes: &Arc<[Scene]>,
        settings: &FileSettings,
        keeper: &mut FileKeeper,
        consumer: &Caller,
    ) -> Result<OpenedFiles, (String, io::Error)> {
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
            let encoder = settings.encoder(scenes, |lane| file_of_lane[lane] == Some(index));
            let settings = FileSettings { path: path.clone(), ..settings.clone() };
            let opened = LogFile::open(settings, encoder, WallClock::default(), keeper, consumer.clone());
            files.push(opened.map_err(|error| (path.clone(), error))?);
        }
        let ledgers = files.iter().map(LogFile::ledger).collect();
        let has_predecessor = keeper.context().has_predecessor;
        Ok((Self { path: settings.path.clone(), files, file_of_lane, has_predecessor }, ledgers))
    }
}

/// The path of each lane that feeds the consumer.
pub(super) fn paths_of_lanes(
    path: &str,
    scenes: &[Scene],
    feeds: &[bool],
    sink: &str,
    consumer: usize,
) -> Vec<Option<String>> {
    let path_of = |(scene, feeds): (&Scene, &bool)| {
        let names = PathNames { listener: &scene.listener, lane: scene.lane, consumer, sink };
        feeds.then(|| template::expand(path, &names))
    };
    scenes.iter().zip(feeds).map(path_of).collect()
}

impl Sink for FileSink {
    fn begin(&mut self) {
        if std::mem::take(&mut self.has_predecessor) {
            self.files.iter_mut().for_each(LogFile::begin);
        }
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let index = self.file_of_lane[batch.lane].expect("the pipeline gave every lane of this consumer a file");
        let file = &mut self.files[index];
        file.accept(batch, tallies);
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
    }

    fn due(&self) -> Option<Instant> {
        self.files.iter().filter_map(LogFile::due).min()
    }

    fn when_due(&mut self, _tallies: &mut Tallies) {
        self.files.iter_mut().for_each(LogFile::when_due);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        let paths = paths_of_lanes(&self.path, &feeders.scenes, &feeders.feeds, &feeders.sink, feeders.consumer);
        let file_of = |path: Option<String>| self.files.iter().position(|file| Some(file.path()) == path.as_deref());
        self.file_of_lane = paths.into_iter().map(file_of).collect();
        self.files.iter_mut().for_each(|file| file.go_on_for(Arc::clone(&feeders.scenes)));
    }

    fn finish(&mut self, tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
        self.files.drain(..).for_each(LogFile::close);
    }
}

#[cfg(test)]
#[path = "compress_tests.rs"]
mod compress_tests;
#[cfg(test)]
#[path = "keep_tests.rs"]
mod keep_tests;
#[cfg(test)]
#[path = "moved_tests.rs"]
mod moved_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
#[cfg(test)]
#[path = "upload_tests.rs"]
mod upload_tests;
