//! Files by source: each datagram goes to the file that its own addresses name, ten thousand of them if need be.
//!
//! Everything is bounded. So many files are open at once (`open_files`), and the one that was written longest ago is
//! closed for another. What is not written yet lies in one buffer for all files (`buffer_bytes`), so it outlives their
//! descriptors. So many sources get a file of their own (`sources_max`); one overflow file takes all others, and the
//! ledger counts what went there. Sources that have files from an earlier run count among them, see `existing`.
//!
//! Records gather for a second before they are written: with ten thousand files of which a thousand are open, every
//! write may cost an opening and a closing, and one that carries a second's records is worth them. The consumer opens,
//! writes, finishes and closes its files itself; the keeper syncs them and removes old ones, see `keeper`.
//!
//! A closed file is recognized by its inode and length. If they have not changed it is written again as it is;
//! otherwise it is repaired like a file after a crash.

mod error_log;
mod existing;
mod file_systems;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(super) mod fuzz;
mod gathered;
pub(super) mod host_names;
mod keeper;
mod key;
mod source_file;
mod table;

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::clock::{FileEnd, WallClock};
use super::handle::{cure, make_directory, try_directory};
use super::keeper::FileKeeper;
use super::mailbox::{KeeperHandle, KeeperRequest, Mailbox, WritePosition};
use super::settings::{FileSettings, Sync};
use super::sink::SYNC_PAUSE;
use super::sink::paths_of_lanes;
use error_log::{SourceError, SourcesErrorLog};
use existing::SourceScan;
pub(super) use file_systems::FILE_SYSTEMS_MAX;
use gathered::{GatheredRecords, NONE, RecordChain};
use host_names::HostNames;
use keeper::KeptSourceFiles;
use key::{KeyParts, SourceKey};
use source_file::SourceFiles;
use table::KnownSources;
use udpd_base::capture::headers;
use udpd_base::format::{Encoder, Scene};
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{FileLedger, Tallies};
use udpd_base::logging::repeats;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::seams::clock;
use udpd_base::sink::outbox::OutboxDestination;
use udpd_base::sink::{ConsumerFeeders, Sink};
use udpd_base::sink::{deliver, fail};

/// How long a record waits for others of its source.
const GATHER: Duration = Duration::from_secs(1);

/// How many files are finished at a period's end before the next datagrams are handled.
const FINISHED_AT_ONCE: usize = 64;

pub(crate) fn memory_bytes_max(settings: &FileSettings) -> usize {
    let buffer = usize::try_from(settings.buffer_bytes).unwrap_or(usize::MAX);
    let names = if settings.is_by_name() { host_names::memory_bytes_max(settings.sources_max) } else { 0 };
    gathered::memory_bytes_max(buffer, settings.format) + table::memory_bytes_max(settings.sources_max) + names
}

/// The files by source of one consumer.
#[derive(Debug)]
pub(crate) struct SourcesSink {
    settings: FileSettings,
    encoder: Encoder,
    files: SourceFiles,
    parts: KeyParts,
    /// The number of the path of each lane.
    path_of_lane: Vec<Option<usize>>,
    scenes: Arc<[Scene]>,
    table: KnownSources,
    gathered: GatheredRecords,
    /// The sources with gathered records.
    waiting: Vec<usize>,
    write_due: Option<Instant>,
    sync_due: Option<Instant>,
    clock: WallClock,
    ends: Option<FileEnd>,
    /// The next source whose period may be over.
    sweep: Option<usize>,
    ledger: Arc<FileLedger>,
    keeper: Option<KeeperHandle>,
    error_log: SourcesErrorLog,
    /// How many datagrams and bytes the current round could not write.
    failed: (u64, u64),
    has_said_overflow: bool,
}

impl SourcesSink {
    /// Checks whether files can be created at the paths. No file is created before its first datagram.
    pub(crate) fn open(
        path_of_lane: Vec<Option<String>>,
        scenes: &Arc<[Scene]>,
        settings: &FileSettings,
        keeper: &mut FileKeeper,
        consumer: &Caller,
        registry: &ThreadRegistry,
    ) -> io::Result<(Self, Arc<FileLedger>)> {
        let feeds: Vec<bool> = path_of_lane.iter().map(Option::is_some).collect();
        let encoder = settings.encoder(scenes, |lane| feeds[lane]);
        let hosts = settings.is_by_name().then(|| HostNames::start(registry, settings.sources_max)).transpose()?;
        let mut files = SourceFiles::new(settings, encoder.header(), hosts);
        let path_of_lane: Vec<Option<usize>> =
            path_of_lane.into_iter().map(|path| path.map(|path| files.number(path))).collect();
        let parts = files.parts().ok_or_else(|| io::Error::other("no lane feeds it"))?;
        for directory in files.directories() {
            make_directory(&directory)?;
            try_directory(&directory)?;
        }
        let ledger = Arc::new(FileLedger::default());
        let directory = files.directories().next().unwrap_or_default();
        files.file_systems.begin(&directory)?;
        let mailbox = Arc::new(Mailbox::new(consumer.clone()));
        let kept = KeptSourceFiles::new(&files, settings, Arc::clone(&ledger), Arc::clone(&mailbox));
        let buffer = usize::try_from(settings.buffer_bytes).unwrap_or(usize::MAX);
        // Each lane can have a path of its own.
        let mut table = KnownSources::new(settings.sources_max, path_of_lane.len(), settings.open_files);
        let mut scan = SourceScan::new(settings.sources_max);
        threads::blocking(|| files.scan_sources(&mut scan));
        if scan.is_cut_short() {
            log::info!(
                "{}: there are more files than a start can look through; sources that have only older ones may have \
                 files beside those that sources_max allows",
                settings.path
            );
        }
        for source in scan.sources {
            table.place(source);
        }
        let mut sink = Self {
            encoder,
            parts,
            scenes: Arc::clone(scenes),
            table,
            path_of_lane,
            files,
            gathered: GatheredRecords::new(buffer, settings.format),
            waiting: Vec::with_capacity(settings.sources_max + feeds.len()),
            write_due: None,
            sync_due: None,
            clock: WallClock::default(),
            ends: None,
            sweep: None,
            ledger: Arc::clone(&ledger),
            keeper: Some(keeper.add(kept, mailbox)),
            error_log: SourcesErrorLog::new(),
            failed: (0, 0),
            has_said_overflow: false,
            settings: settings.clone(),
        };
        sink.set_end();
        Ok((sink, ledger))
    }

    /// Computes when the current period ends.
    fn set_end(&mut self) {
        let seconds = self.files.any_name().and_then(|name| name.ends(self.clock.seconds()));
        let end = |seconds| FileEnd::new(UNIX_EPOCH + Duration::from_secs(seconds), &self.clock, clock::now());
        self.ends = seconds.map(end);
    }

    fn key(&mut self, batch: &LaneBatch, datagram: &mmsg::Datagram<'_>, now: Option<Instant>) -> SourceKey {
        let path = self.path_of_lane[batch.lane].expect("the pipeline gave every lane of this consumer a path");
        let bound: IpAddr = self.scenes[batch.lane].address.ip();
        let destination = datagram.destination().unwrap_or(bound);
        // There are no more paths than lanes.
        let key = SourceKey::new(path as u32, &self.parts, headers::source(datagram), destination, 0);
        match (&mut self.files.hosts, key.nameless(), now) {
            (Some(hosts), Some(address), Some(now)) => match hosts.of(address, now) {
                0 => key,
                host => key.named(&self.parts, host),
            },
            _ => key,
        }
    }

    fn note_overflow(&mut self, datagrams: u64) {
        self.ledger.note_overflow(datagrams);
        if !std::mem::replace(&mut self.has_said_overflow, true) {
            log::warn!(
                "{}: {} sources have files of their own, as many as sources_max allows; the records of all others go \
                 to the file named overflow; raise sources_max, name networks instead of senders in path, or remove \
                 files of before and restart udpd",
                self.settings.path,
                self.table.own()
            );
        }
    }

    fn finish_file(&mut self, place: usize, now: u64, is_full: bool) {
        match threads::blocking(|| self.files.finish(&mut self.table, place, now, is_full)) {
            Ok(true) => {
                self.ledger.note_finished();
                self.note_finished(place);
                let key = self.table.at(place).key;
                let needs_keeper = self.files.retention.add_finished(self.files.name(&key));
                self.keeper.iter().filter(|_| needs_keeper).for_each(KeeperHandle::wake);
                if self.settings.sync == Sync::WhenFinished {
                    self.sync_due = self.sync_due.or(Some(clock::now()));
                }
            }
            Ok(false) => {}
            Err(error) => self.log_finish_error(place, &error),
        }
    }

    /// Finishes some of the files whose period is over.
    fn sweep(&mut self) {
        let Some(next) = self.sweep else { return };
        let end = (next + FINISHED_AT_ONCE).min(self.table.len());
        let now = self.clock.seconds();
        (next..end).for_each(|place| self.finish_file(place, now, false));
        self.sweep = (end < self.table.len()).then_some(end);
    }

    fn at(&self) -> WritePosition {
        WritePosition { generation: 0, written: self.ledger.written() }
    }

    fn sync_if_due(&mut self, now: Instant) {
        if self.sync_due.is_none_or(|due| due > now) {
            return;
        }
        let is_asked = self.keeper.as_ref().is_none_or(|keeper| keeper.sync(self.at()));
        self.sync_due = (!is_asked).then(|| now + SYNC_PAUSE);
    }

    /// On a request to reopen, closes every moved file and answers how many there were. Files that are not open now
    /// count too, because the operator has moved them all alike.
    fn reopen_if_asked(&mut self, tallies: &mut Tallies) {
        let update = self.keeper.as_ref().and_then(|keeper| keeper.mailbox.take());
        let Some(number) = update.and_then(|update| update.reopen) else { return };
        self.write_out(tallies);
        let begun: Vec<usize> = (0..self.table.len()).filter(|&place| self.table.at(place).begun.is_some()).collect();
        let is_moved = |&&place: &&usize| self.files.close_at_once_if_moved(&mut self.table, place, &self.ledger);
        let closed = threads::blocking(|| begun.iter().filter(is_moved).count());
        if let Some(keeper) = &self.keeper {
            keeper.request(KeeperRequest::Reopened { number, closed, unmoved: begun.len() - closed });
        }
    }
}

impl Sink for SourcesSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.encoder.begin();
        let mut overflow = 0;
        // Asked once a batch, and only for names.
        let now = self.files.hosts.as_mut().map(|hosts| {
            let now = clock::now();
            hosts.take_answers(now);
            now
        });
        for datagram in batch.datagrams.datagrams() {
            let key = self.key(batch, &datagram, now);
            let (place, is_own) = self.table.place(key);
            overflow += u64::from(!is_own);
            let chain = &mut self.table.at(place).chain;
            if chain.is_empty() {
                self.waiting.push(place);
            }
            self.gathered.push(chain, batch.listener, &mut self.encoder, |encoder, bytes| {
                encoder.append(bytes, batch.lane, &datagram);
            });
            if self.gathered.is_full() {
                self.write_out(tallies);
            }
        }
        if overflow > 0 {
            self.note_overflow(overflow);
        }
        if self.write_due.is_none() && !self.gathered.is_empty() {
            self.write_due = Some(clock::now() + GATHER);
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.reopen_if_asked(tallies);
    }

    fn due(&self) -> Option<Instant> {
        let sweep = self.sweep.map(|_| clock::now());
        [self.write_due, self.sync_due, self.ends.map(|ends| ends.at), sweep].into_iter().flatten().min()
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.reopen_if_asked(tallies);
        let now = clock::now();
        if self.ends.is_some_and(|ends| ends.has_come(&self.clock, now)) {
            self.sweep = Some(0);
            self.set_end();
        }
        if self.write_due.is_some_and(|due| due <= now) {
            self.write_out(tallies);
        }
        self.sweep();
        self.sync_if_due(now);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        let paths =
            paths_of_lanes(&self.settings.path, &feeders.scenes, &feeders.feeds, &feeders.sink, feeders.consumer);
        self.path_of_lane = paths.into_iter().map(|path| path.map(|path| self.files.number(path))).collect();
        self.scenes = Arc::clone(&feeders.scenes);
        self.encoder.go_on_for(Arc::clone(&feeders.scenes));
    }

    fn finish(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        self.write_out(tallies);
        publish(tallies);
        self.log_final();
        (0..self.table.len()).for_each(|place| self.table.close(place));
        let at = self.at();
        if let Some(keeper) = self.keeper.take() {
            keeper.close(at, self.settings.sync != Sync::Never);
        }
    }
}

// Writing what was gathered. What one file does not take fails, and no other file notices.

impl SourcesSink {
    /// Writes all gathered records: first to the open files, so that none is closed for another one before its write.
    fn write_out(&mut self, tallies: &mut Tallies) {
        if self.gathered.is_empty() {
            self.write_due = None;
            return;
        }
        let now = self.clock.seconds();
        self.move_to_names();
        let mut waiting = std::mem::take(&mut self.waiting);
        self.failed = (0, 0);
        waiting.sort_unstable_by_key(|&place| !self.table.is_open(place));
        let mut written = 0;
        for &place in &waiting {
            written += self.write_source(place, now, tallies);
        }
        waiting.clear();
        self.waiting = waiting;
        self.gathered.clear();
        self.write_due = None;
        self.ledger.note_sources(self.table.own() as u64);
        self.note_written(written);
        self.log_recovery();
    }

    /// Moves records of senders whose name has come since to those of the name. They came before all that are there.
    fn move_to_names(&mut self) {
        let Some(hosts) = &mut self.files.hosts else { return };
        let now = clock::now();
        hosts.take_answers(now);
        for index in 0..self.waiting.len() {
            let place = self.waiting[index];
            let key = self.table.at(place).key;
            let host = key.nameless().map_or(0, |address| hosts.of(address, now));
            let named = key.named(&self.parts, host);
            if host == 0 || self.table.change_key(place, named) {
                continue;
            }
            let (of_name, is_own) = self.table.place(named);
            if is_own {
                let mut from = self.table.at(place).chain;
                let to = &mut self.table.at(of_name).chain;
                if to.is_empty() {
                    self.waiting.push(of_name);
                }
                self.gathered.move_before(&mut from, to);
                self.table.at(place).chain = from;
            }
        }
    }

    fn note_written(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.ledger.add_written(bytes);
        if let (Sync::Every(interval), None) = (self.settings.sync, self.sync_due) {
            self.sync_due = Some(clock::now() + interval);
        }
    }

    /// Writes the records of one source; returns the number of bytes written.
    fn write_source(&mut self, place: usize, now: u64, tallies: &mut Tallies) -> u64 {
        let mut first = std::mem::replace(&mut self.table.at(place).chain, RecordChain::EMPTY).first;
        let mut written = 0;
        if first == NONE {
            return 0;
        }
        match threads::blocking(|| self.files.provide(&mut self.table, place, now, &self.ledger)) {
            Ok(None) => {}
            Ok(Some(lacking)) => self.log_descriptor_shortage(&lacking),
            Err((path, error)) => {
                self.log_write_error(place, &path, &error);
                self.settle(first, NONE, 0, tallies);
                return 0;
            }
        }
        while first != NONE {
            let (bytes, next) = self.gathered.together(first);
            let source = self.table.at(place);
            let (Some(handle), Some(begun)) = (&mut source.handle, &mut source.begun) else { break };
            let (mut done, mut outcome) = (0, Ok(()));
            while done < bytes.len() && outcome.is_ok() {
                match threads::blocking(|| handle.write(&bytes[done..])) {
                    Ok(0) => outcome = Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => done += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => outcome = Err(error),
                }
            }
            let whole = settle_whole(&self.gathered, first, next, done, tallies, &mut self.failed);
            if whole < done {
                // If that fails, the file has changed and is repaired when it is opened again.
                let _ = threads::blocking(|| handle.take_back(done - whole));
            }
            begun.length += whole as u64;
            written += whole as u64;
            if let Err(error) = outcome {
                let path = self.files.path(&source.key, begun.at);
                self.log_write_error(place, &path, &error);
                self.table.close(place);
                self.settle(next, NONE, 0, tallies);
                return written;
            }
            first = next;
        }
        self.table.note_written(place);
        self.error_log.succeed(SourceError::Writing, &mut self.table.at(place).failing);
        let length = self.table.at(place).begun.map_or(0, |begun| begun.length);
        if self.files.rotate.bytes > 0 && length >= self.files.rotate.bytes {
            self.finish_file(place, now, true);
        }
        written
    }

    /// Of the records from `first` to before `end`, those in the first `done` bytes are delivered and the others fail.
    fn settle(&mut self, first: u32, end: u32, done: usize, tallies: &mut Tallies) {
        settle_whole(&self.gathered, first, end, done, tallies, &mut self.failed);
    }
}

/// Of the records from `first` to before `end`, delivers those that are whole in the first `done` bytes and fails the
/// others; returns how long the whole ones are.
fn settle_whole(
    gathered: &GatheredRecords,
    first: u32,
    end: u32,
    done: usize,
    tallies: &mut Tallies,
    failed: &mut (u64, u64),
) -> usize {
    let (mut next, mut length, mut whole) = (first, 0, 0);
    while next != end
        && let Some(record) = gathered.record(next)
    {
        let bytes = (record.end - record.start) as usize;
        length += bytes;
        let tally = &mut tallies[record.listener as usize];
        if length <= done {
            whole = length;
            deliver(tally, 1);
        } else {
            fail(tally, 1);
            failed.0 += 1;
            failed.1 += bytes as u64;
        }
        next = record.next;
    }
    whole
}

// The log lines. `error_log` decides when they are written.

impl SourcesSink {
    /// The file of a source cannot be written.
    fn log_write_error(&mut self, place: usize, path: &Path, error: &io::Error) {
        let failing = &mut self.table.at(place).failing;
        let Some(suppressed) = self.error_log.fail(SourceError::Writing, failing, clock::now()) else { return };
        log::error!(
            "cannot write to {}: {error}; the datagrams of each source whose file cannot be written count as \
             sink_error until it can be{}{}",
            path.display(),
            cure(error),
            repeats(suppressed)
        );
    }

    /// The file of a source cannot be finished and stays in use.
    fn log_finish_error(&mut self, place: usize, error: &io::Error) {
        let source = self.table.at(place);
        let Some(suppressed) = self.error_log.fail(SourceError::Finishing, &mut source.failing, clock::now()) else {
            return;
        };
        let path = self.files.path(&source.key, source.begun.map_or(self.clock.seconds(), |begun| begun.at));
        log::error!(
            "cannot finish {}: {error}; udpd goes on writing it and tries again{}{}",
            path.display(),
            cure(error),
            repeats(suppressed)
        );
    }

    /// A file could be opened only after others were closed for it.
    fn log_descriptor_shortage(&mut self, error: &io::Error) {
        let Some(suppressed) = self.error_log.fail_descriptors(clock::now()) else { return };
        log::warn!(
            "{}: cannot open one more file: {error}; half of those that are open are closed for it, so files are \
             opened more often{}{}",
            self.settings.path,
            cure(error),
            repeats(suppressed)
        );
    }

    /// The file of a source is finished.
    fn note_finished(&mut self, place: usize) {
        self.error_log.succeed(SourceError::Finishing, &mut self.table.at(place).failing);
        if self.error_log.is_over(SourceError::Finishing, clock::now()) {
            log::warn!("{}: files that are over are finished again", self.settings.path);
        }
    }

    /// A round of writing is over.
    fn log_recovery(&mut self) {
        let now = clock::now();
        self.error_log.add_lost(self.failed);
        if self.failed.0 == 0 && self.error_log.is_over(SourceError::Writing, now) {
            let lost = self.error_log.take_lost();
            self.log_lost("is written again", lost);
        }
        if self.error_log.descriptors_recovered(now) {
            log::warn!("{}: no file was closed for another one's descriptor for a minute", self.settings.path);
        }
    }

    fn log_final(&mut self) {
        match self.error_log.take_final() {
            Some((lost, true)) => self.log_lost("is written again", lost),
            Some((lost, false)) => self.log_lost("was not written again before the end", lost),
            None => {}
        }
    }

    fn log_lost(&self, what: &str, (datagrams, bytes): (u64, u64)) {
        log::warn!(
            "{} {what}; {datagrams} datagrams ({bytes} bytes) were lost meanwhile and are counted as sink_error",
            self.settings.path
        );
    }
}
