//! The sink of files by source: gathers records, and has those of each source written to its file when it is time.

mod saying;
mod writing;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::super::clock::{Clock, Ends};
use super::super::handle::{make_directory, try_directory};
use super::super::keeper::FileKeeper;
use super::super::settings::{FileSettings, Sync};
use super::super::sink::paths_of_lanes;
use super::annex::{Annex, AnnexPost};
use super::census::Census;
use super::gathered::{self, Gathered};
use super::key::{Key, Parts};
use super::piles::SourcePiles;
use super::source_file::SourceFiles;
use super::table::{self, Table};
use super::voice::Voice;
use udpd_base::capture::headers;
use udpd_base::format::encoder::{Encoder, Scene};
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{FileLedger, Tallies};
use udpd_base::os::crew;
use udpd_base::sink::{Feeders, Sink};

/// The longest that a record waits for others of its source.
const GATHER: Duration = Duration::from_secs(1);

/// So many files are finished, when their time is over, before the next datagrams are looked at.
const FINISHED_AT_ONCE: usize = 64;

/// How soon a disk that is slower than its syncs is asked again.
const SYNC_PAUSE: Duration = Duration::from_millis(5);

/// The memory of one consumer.
pub(crate) fn memory_bytes_max(settings: &FileSettings) -> usize {
    let buffer = usize::try_from(settings.buffer_bytes).unwrap_or(usize::MAX);
    gathered::memory_bytes_max(buffer, settings.format) + table::memory_bytes_max(settings.sources_max)
}

/// The files by source of one consumer.
#[derive(Debug)]
pub(crate) struct SourcesSink {
    settings: FileSettings,
    encoder: Encoder,
    files: SourceFiles,
    parts: Parts,
    /// Which path the datagrams of a lane fill in, by the lane's index.
    path_of_lane: Vec<Option<usize>>,
    scenes: Arc<[Scene]>,
    table: Table,
    gathered: Gathered,
    /// The sources with records in there.
    waiting: Vec<usize>,
    write_due: Option<Instant>,
    sync_due: Option<Instant>,
    clock: Clock,
    ends: Option<Ends>,
    /// The next source whose file may be over.
    sweep: Option<usize>,
    ledger: Arc<FileLedger>,
    annex: Option<AnnexPost>,
    voice: Voice,
    /// How many datagrams and bytes could not be written within the writing in hand.
    failed: (u64, u64),
    has_said_overflow: bool,
}

impl SourcesSink {
    /// Sees whether files can be made where the paths lead. None is made before its first datagram comes.
    pub(crate) fn open(
        path_of_lane: Vec<Option<String>>,
        scenes: &Arc<[Scene]>,
        settings: &FileSettings,
        keeper: &mut FileKeeper,
        consumer: &Caller,
    ) -> io::Result<(Self, Arc<FileLedger>)> {
        let feeds: Vec<bool> = path_of_lane.iter().map(Option::is_some).collect();
        let encoder = settings.encoder(scenes, |lane| feeds[lane]);
        let mut files = SourceFiles::new(settings, encoder.header());
        let path_of_lane: Vec<Option<usize>> =
            path_of_lane.into_iter().map(|path| path.map(|path| files.number(path))).collect();
        let parts = files.parts().ok_or_else(|| io::Error::other("no lane feeds it"))?;
        for directory in files.directories() {
            make_directory(&directory)?;
            try_directory(&directory)?;
        }
        let ledger = Arc::new(FileLedger::default());
        let directory = files.directories().next().unwrap_or_default();
        let care = (settings.keep, settings.recipe());
        files.disks.begin(&directory)?;
        let annex = Annex::new(&files, care, Arc::clone(&ledger), consumer.clone());
        let piles = settings.recipe().map(|recipe| SourcePiles::new(recipe, settings, files.paths()));
        let buffer = usize::try_from(settings.buffer_bytes).unwrap_or(usize::MAX);
        // Each lane can have a path of its own.
        let mut table = Table::new(settings.sources_max, path_of_lane.len(), settings.open_files);
        let mut census = Census::new(settings.sources_max);
        crew::at_rest(|| files.take_census(&mut census));
        if census.is_cut_short() {
            log::info!(
                "{}: there are more files than a start can look through; sources that have only older ones may have \
                 files beside those that sources_max allows",
                settings.path
            );
        }
        for source in census.sources {
            table.place(source);
        }
        let mut sink = Self {
            encoder,
            parts,
            scenes: Arc::clone(scenes),
            table,
            path_of_lane,
            files,
            gathered: Gathered::new(buffer, settings.format),
            waiting: Vec::with_capacity(settings.sources_max + feeds.len()),
            write_due: None,
            sync_due: None,
            clock: Clock::default(),
            ends: None,
            sweep: None,
            ledger: Arc::clone(&ledger),
            annex: Some(keeper.take_sources(annex, piles)),
            voice: Voice::new(),
            failed: (0, 0),
            has_said_overflow: false,
            settings: settings.clone(),
        };
        sink.set_end();
        Ok((sink, ledger))
    }

    /// When files are over next.
    fn set_end(&mut self) {
        let seconds = self.files.any_name().and_then(|name| name.ends(self.clock.seconds()));
        let end = |seconds| Ends::new(UNIX_EPOCH + Duration::from_secs(seconds), &self.clock, Instant::now());
        self.ends = seconds.map(end);
    }

    fn key(&self, batch: &LaneBatch, datagram: &mmsg::Datagram<'_>) -> Key {
        let path = self.path_of_lane[batch.lane].expect("the pipeline gave every lane of this consumer a path");
        let bound: IpAddr = self.scenes[batch.lane].address.ip();
        let destination = datagram.destination().unwrap_or(bound);
        // There are no more paths than lanes.
        Key::new(path as u32, &self.parts, headers::source(datagram), destination)
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
        match crew::at_rest(|| self.files.finish(&mut self.table, place, now, is_full)) {
            Ok(true) => {
                self.ledger.note_finished();
                self.note_finished(place);
                let key = self.table.at(place).key;
                if let Some(annex) = &self.annex {
                    annex.clear(self.files.name(&key));
                }
                if self.settings.sync == Sync::WhenFinished {
                    self.sync_due = self.sync_due.or(Some(Instant::now()));
                }
            }
            Ok(false) => {}
            Err(error) => self.say_unfinished(place, &error),
        }
    }

    /// Finishes some of the files whose time is over.
    fn sweep(&mut self) {
        let Some(next) = self.sweep else { return };
        let end = (next + FINISHED_AT_ONCE).min(self.table.len());
        let now = self.clock.seconds();
        (next..end).for_each(|place| self.finish_file(place, now, false));
        self.sweep = (end < self.table.len()).then_some(end);
    }

    fn sync_if_due(&mut self, now: Instant) {
        if self.sync_due.is_none_or(|due| due > now) {
            return;
        }
        let is_asked = self.annex.as_ref().is_none_or(|annex| annex.sync(self.ledger.written()));
        self.sync_due = (!is_asked).then(|| now + SYNC_PAUSE);
    }

    /// Leaves every file that somebody has moved, when that is asked for, and says how many those are: also of those
    /// that are closed for the moment, because whoever asked has moved them all alike.
    fn reopen_if_asked(&mut self, tallies: &mut Tallies) {
        let Some(wish) = self.annex.as_ref().and_then(AnnexPost::wish) else { return };
        self.write_out(tallies);
        let begun: Vec<usize> = (0..self.table.len()).filter(|&place| self.table.at(place).begun.is_some()).collect();
        let is_taken = |&&place: &&usize| self.files.leave_at_once_if_taken(&mut self.table, place, &self.ledger);
        let left = crew::at_rest(|| begun.iter().filter(is_taken).count());
        if let Some(annex) = &self.annex {
            annex.answer(wish, left, begun.len() - left);
        }
    }
}

impl Sink for SourcesSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.encoder.begin();
        let mut overflow = 0;
        for datagram in batch.datagrams.datagrams() {
            let (place, is_own) = self.table.place(self.key(batch, &datagram));
            overflow += u64::from(!is_own);
            let chain = &mut self.table.at(place).chain;
            if chain.is_empty() {
                self.waiting.push(place);
            }
            self.gathered.push(chain, batch.listener, &mut self.encoder, |encoder, bytes| {
                encoder.append(bytes, batch, &datagram);
            });
            if self.gathered.is_full() {
                self.write_out(tallies);
            }
        }
        if overflow > 0 {
            self.note_overflow(overflow);
        }
        if self.write_due.is_none() && !self.gathered.is_empty() {
            self.write_due = Some(Instant::now() + GATHER);
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.reopen_if_asked(tallies);
    }

    fn due(&self) -> Option<Instant> {
        let sweep = self.sweep.map(|_| Instant::now());
        [self.write_due, self.sync_due, self.ends.map(|ends| ends.at), sweep].into_iter().flatten().min()
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.reopen_if_asked(tallies);
        let now = Instant::now();
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

    fn go_on_for(&mut self, feeders: &Feeders) {
        let paths =
            paths_of_lanes(&self.settings.path, &feeders.scenes, &feeders.feeds, &feeders.sink, feeders.consumer);
        self.path_of_lane = paths.into_iter().map(|path| path.map(|path| self.files.number(path))).collect();
        self.scenes = Arc::clone(&feeders.scenes);
        self.encoder.go_on_for(Arc::clone(&feeders.scenes));
    }

    fn finish(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        self.write_out(tallies);
        publish(tallies);
        self.say_last_words();
        (0..self.table.len()).for_each(|place| self.table.close(place));
        let sync = (self.settings.sync != Sync::Never).then(|| self.ledger.written());
        if let Some(annex) = self.annex.take() {
            annex.close(sync);
        }
    }
}
