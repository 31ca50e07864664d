//! The life of files, with a real keeper and real files. What is awaited is a state, never a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::*;
use crate::upload::{ServiceSlot, UploadSettings};
use crate::{Compressor, FileReopener, Keep, Reopened, Rotate};
use udpd_base::format::Format;
use udpd_base::format::prefix::{LinePrefix, Strip};
use udpd_base::ledger::SinkTally;
use udpd_base::ledger::counter_list::FileTally;
use udpd_base::os::local_time::ShownTime;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::OpenContext;
use udpd_base::sink::outbox::OutboxDestination;
use udpd_base::sink::testing::{Received, scenes};

pub(super) const PLAIN: FileSettings = FileSettings {
    path: String::new(),
    format: Format::Lines,
    rotate: Rotate::NEVER,
    keep: Keep { files: 0, bytes: 0 },
    sync: Sync::Never,
    prefix: LinePrefix::None,
    time: ShownTime::Utc,
    strip: Strip::Nothing,
    compress: None,
    compress_level: None,
    upload: UploadSettings {
        url: String::new(),
        region: String::new(),
        credentials_file: String::new(),
        ca_file: String::new(),
        timeout: Duration::from_secs(1),
        remove: false,
        service: ServiceSlot(None),
    },
    open_files: 2,
    sources_max: 2,
    buffer_bytes: 1 << 20,
};

/// With a new file from this size on.
pub(super) fn rotating(bytes: u64) -> FileSettings {
    FileSettings { rotate: Rotate { bytes, every: Duration::ZERO }, ..PLAIN }
}

/// A file in a directory of its own.
pub(super) struct Subject {
    pub(super) file: Option<LogFile>,
    pub(super) directory: tempfile::TempDir,
    pub(super) tally: SinkTally,
    pub(super) clock: WallClock,
    pub(super) reopener: FileReopener,
    compressor: Compressor,
}

/// A file with a keeper of its own.
fn open(settings: FileSettings, clock: &WallClock, compressor: &Compressor) -> io::Result<(LogFile, FileReopener)> {
    let encoder = Encoder::new(settings.format, scenes(1), |_| true);
    let mut keeper = FileKeeper::new(1, OpenContext::default())?;
    if let Some(service) = &settings.upload.service.0 {
        keeper.upload_by(service, "s");
    }
    let file = LogFile::open(settings, encoder, clock.clone(), &mut keeper, Caller::default())?;
    Ok((file, keeper.start(&ThreadRegistry::new().0, compressor, &[])?))
}

impl Subject {
    pub(super) fn open(name: &str, settings: FileSettings) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = WallClock::default();
        let path = directory.path().join(name).to_str().expect("UTF-8").to_owned();
        let compressor = Compressor::default();
        let (file, reopener) = open(FileSettings { path, ..settings }, &clock, &compressor).expect("opened");
        Self { file: Some(file), directory, tally: SinkTally::default(), clock, reopener, compressor }
    }

    /// Ends it and opens it anew, as a restart does.
    pub(super) fn restart(&mut self) {
        let settings = self.file().settings.clone();
        self.close();
        self.reopen_with(settings);
    }

    /// The second half of that.
    pub(super) fn reopen_with(&mut self, settings: FileSettings) {
        let (file, reopener) = open(settings, &self.clock, &self.compressor).expect("opened again");
        (self.file, self.reopener) = (Some(file), reopener);
    }

    /// Reopens moved files, as `udpd reopen` does.
    pub(super) fn reopen(&self) -> Reopened {
        self.reopener.ask().expect("a keeper").recv().expect("an answer")
    }

    pub(super) fn counts(&mut self) -> FileTally {
        counts(self.file())
    }

    pub(super) fn file(&mut self) -> &mut LogFile {
        self.file.as_mut().expect("not closed")
    }

    /// Offers one datagram; true when it is delivered.
    pub(super) fn write(&mut self, payload: &str) -> bool {
        let batch = Received::over_loopback(&[payload.as_bytes()]).batch;
        let before = self.tally.delivered;
        self.tally.pending += 1;
        let mut tallies = Tallies::from([self.tally]);
        let file = self.file();
        file.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            file.outbox.push(&batch, &datagram);
        }
        file.flush(&mut tallies);
        self.tally = tallies[0];
        assert_eq!(self.tally.pending, 0);
        self.tally.delivered > before
    }

    /// Lets the keeper work until this holds.
    pub(super) fn until(&mut self, what: &str, holds: impl Fn(&mut LogFile) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self.file()) {
            assert!(Instant::now() < deadline, "in vain: {what}");
            thread::yield_now();
            self.file().read_mailbox();
        }
    }

    pub(super) fn close(&mut self) {
        self.file.take().expect("not closed yet").close();
        self.compressor.await_end(Duration::from_secs(20));
    }

    /// The same without those that are there for the sink alone.
    pub(super) fn logs(&self) -> Vec<(String, String)> {
        self.files().into_iter().filter(|(name, _)| !name.ends_with(".udpd-index")).collect()
    }

    /// The names and contents of all files.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        let mut directories = vec![self.directory.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("readable").flatten() {
                match entry.path() {
                    path if path.is_dir() => directories.push(path),
                    path => {
                        let name = path.strip_prefix(self.directory.path()).expect("below").display().to_string();
                        files.push((name, String::from_utf8_lossy(&fs::read(path).expect("readable")).into_owned()));
                    }
                }
            }
        }
        files.sort();
        files
    }
}

pub(super) fn counts(file: &LogFile) -> FileTally {
    FileLedger::sum([file.ledger.as_ref()].into_iter()).counts
}

pub(super) fn path_of(subject: &Subject, name: &str) -> PathBuf {
    subject.directory.path().join(name)
}

fn finished(path: &Path) -> usize {
    FileName::new(path.to_str().expect("UTF-8").to_owned(), Duration::ZERO).finished().len()
}

#[test]
fn a_full_file_is_finished_and_every_record_is_in_exactly_one() {
    let mut subject = Subject::open("log", rotating(20));
    for number in 0..30 {
        assert!(subject.write(&format!("record {number:02}")));
        subject.until("the next file", |file| !file.is_changing);
    }
    let ledger = Arc::clone(&subject.file().ledger);
    subject.close();
    let files = subject.files();
    let all: Vec<&str> = files.iter().flat_map(|(_, content)| content.lines()).collect();
    let mut sorted = all.clone();
    sorted.sort_unstable();
    let expected: Vec<String> = (0..30).map(|number| format!("record {number:02}")).collect();
    assert_eq!(sorted, expected);
    // Two records of ten bytes fill one.
    assert_eq!((files.len(), finished(&path_of(&subject, "log"))), (16, 15));
    let sum = FileLedger::sum([ledger.as_ref()].into_iter());
    assert_eq!((sum.counts.written_bytes, sum.counts.finished, sum.counts.unsynced_bytes), (300, 15, 300));
}

#[test]
fn a_period_that_ends_begins_a_file_and_one_without_records_leaves_none() {
    let mut subject = Subject::open("%Y/%m%d-%H%M%S.log", FileSettings { sync: Sync::Never, ..PLAIN });
    for number in 0..3 {
        assert!(subject.write(&format!("{number}")));
        // The end of the second is waited for as the consumer does it.
        subject.until("a new second", |file| {
            let next = file.due().expect("a name with seconds ends");
            thread::sleep(next.saturating_duration_since(Instant::now()));
            file.when_due();
            file.is_changing
        });
        subject.until("the next file", |file| !file.is_changing);
    }
    subject.close();
    let files = subject.files();
    let contents: Vec<&str> = files.iter().map(|(_, content)| content.as_str()).collect();
    assert_eq!(contents, ["0\n", "1\n", "2\n", ""], "{files:?}");
    assert!(files.iter().all(|(name, _)| name.len() == "2026/1121-064221.log".len()), "{files:?}");
}

#[test]
fn a_broken_file_counts_failures_and_is_written_again_when_it_can_be() {
    let mut subject = Subject::open("log", PLAIN);
    assert!(subject.write("before"));
    // What a write leaves that fails in the middle of a record and cannot be taken back.
    let path = path_of(&subject, "log");
    let append = |path| fs::OpenOptions::new().append(true).open(path);
    io::Write::write_all(&mut append(path).expect("opened"), b"a part of a rec").expect("written");
    // Before the keeper is told, which may repair it at once.
    subject.file().handle = None;
    assert!(!subject.write("lost"));
    subject.file().break_off(&io::ErrorKind::StorageFull.into());
    assert_eq!(subject.tally.dropped.sink_error, 1);
    subject.until("a repair", |file| file.handle.is_some());
    assert!(subject.write("after"));
    subject.close();
    assert_eq!(subject.files(), [("log".to_owned(), "before\nafter\n".to_owned())]);
}

#[test]
fn a_file_that_breaks_while_the_next_is_on_its_way_is_repaired_all_the_same() {
    let mut subject = Subject::open("log", rotating(1));
    for round in 0..10 {
        assert!(subject.write("full at once"), "round {round}");
        // A part of a record that could not be taken back, in a file that is being finished.
        subject.file().handle.clone().expect("open").write(b"a part").expect("written");
        subject.file().break_off(&io::ErrorKind::StorageFull.into());
        subject.until("a repair", |file| file.handle.is_some());
        subject.until("no other file on its way", |file| !file.is_changing);
    }
    subject.close();
    let contents: String = subject.files().into_iter().map(|(_, content)| content).collect();
    assert_eq!(contents, "full at once\n".repeat(10));
}

#[test]
fn a_capture_begins_with_its_header_in_every_file_and_goes_on_after_a_restart() {
    let settings = FileSettings { format: Format::Pcapng, ..PLAIN };
    let mut subject = Subject::open("capture", settings);
    assert!(subject.write("one"));
    subject.restart();
    let path = path_of(&subject, "capture");
    assert!(subject.write("two"));
    subject.close();
    let bytes = fs::read(path).expect("readable");
    let whole = Format::Pcapng.boundary().whole(&bytes);
    assert_eq!((whole.bytes, whole.records), (bytes.len(), 2));
}

#[test]
fn a_full_file_that_cannot_be_finished_is_written_on_and_asked_for_again_later() {
    // There is no room in the name for the moment at which it was finished.
    let name = "x".repeat(250);
    let mut subject = Subject::open(&name, rotating(1));
    assert!(subject.write("full at once"));
    subject.until("an answer", |file| !file.is_changing);
    assert!(subject.file().full_pause.is_some());
    assert!(subject.write("and more"));
    assert!(!subject.file().is_changing, "not asked at every write");
    subject.close();
    assert_eq!(subject.files(), [(name, "full at once\nand more\n".to_owned())]);
}
