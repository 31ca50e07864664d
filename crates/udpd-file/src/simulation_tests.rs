//! A file with its successors, `keep` and compression in one thread, on a disk that fails, fills up, loses power and
//! is changed by other programs. The seed picks whether the consumer, the keeper or the compressor acts next; what they
//! tell each other waits in its channels.
//!
//! The model knows of each record whether it was delivered, and whether something else than udpd took it. It reads the
//! directory and believes no ledger.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::Receiver;
use mmsg::PackedBatch;
use seeds::{Chance, Run, Simulation};

use super::super::clock::WallClock;
use super::super::compress::{self, CompressJob, CompressJobs};
use super::super::finished_files::Index;
use super::super::inotify_watch::InotifyWatch;
use super::super::name::{FileName, finished_names};
use super::super::settings::{FileSettings, Keep, Rotate, Sync};
use super::super::sink::LogFile;
use super::*;
use udpd_base::codec::Method;
use udpd_base::format::{Encoder, Format, Scene};
use udpd_base::handover::Caller;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{FileLedger, SinkTally, Tallies};
use udpd_base::seams::disk;
use udpd_base::sink::testing::scenes;
use udpd_base::testing::simulated::{self, Simulated};
use udpd_base::testing::simulated_disk::{Call, SimulatedDisk, When};

#[path = "watched_disk_tests.rs"]
mod watched_disk;

use watched_disk::{Facts, KEEPER, Number, WatchedDisk, base_of, record};

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pending,
    Delivered,
    Failed,
    /// The process died while it was written.
    Unknown,
}

/// A process: the consumer, the keeper, and what waits for the compressor.
struct Process {
    file: LogFile,
    keeper: Rc<RefCell<KeeperThread>>,
    jobs: Receiver<CompressJob>,
    reopener: FileReopener,
}

struct World {
    directory: tempfile::TempDir,
    disk: Arc<WatchedDisk>,
    settings: FileSettings,
    process: Option<Process>,
    fates: Vec<Fate>,
    pending: Vec<Number>,
    tallies: Tallies,
    before: SinkTally,
    answers: Vec<Receiver<Reopened>>,
    others: u64,
    /// The watched file has changed, and the keeper has not heard of it.
    is_changed: bool,
    /// The first record of the process.
    first: usize,
    had_crash: bool,
    had_power_loss: bool,
    had_fault: bool,
}

thread_local! {
    static BATCH: RefCell<Option<LaneBatch>> = const { RefCell::new(None) };
    static SCENES: RefCell<Option<Arc<[Scene]>>> = const { RefCell::new(None) };
}

fn two_scenes() -> Arc<[Scene]> {
    SCENES.with_borrow_mut(|known| Arc::clone(known.get_or_insert_with(|| scenes(1))))
}

fn settings_of(chance: &mut Chance, path: String) -> FileSettings {
    let keep = Keep {
        files: chance.weighted(&[(3, 0), (2, 1), (2, 2), (1, 4)]),
        bytes: chance.weighted(&[(6, 0), (1, 1), (1, 200), (1, 900)]),
    };
    let every = Duration::from_secs(chance.weighted(&[(3, 0), (1, 60), (1, 3600)]));
    let sync = [Sync::Never, Sync::WhenFinished, Sync::Every(Duration::from_secs(1))];
    FileSettings {
        path,
        format: Format::Lines,
        rotate: Rotate { bytes: chance.weighted(&[(1, 0), (1, 1), (3, 120), (1, 400)]), every },
        keep,
        sync: *chance.pick(&sync),
        compress: chance.happens(1, 2).then_some(Method::Gzip),
        compress_level: Some(1),
        ..FileSettings::default()
    }
}

impl World {
    fn new(run: &mut Run) -> Self {
        let directory = tempfile::tempdir_in(udpd_base::testing::memory()).expect("a directory");
        let chance = run.setup();
        let name = chance.weighted(&[(6, "log"), (1, "log-%M"), (1, "log-%S"), (1, "%H/log-%M")]);
        let path = directory.path().join(name).to_str().expect("UTF-8").to_owned();
        let settings = settings_of(chance, path);
        let inner = SimulatedDisk::of(directory.path(), chance.clone());
        if name.contains('/') || !chance.happens(1, 3) {
            inner.without_power_loss();
        }
        let facts = Mutex::new(Facts { keep: settings.keep, ..Facts::default() });
        let disk = Arc::new(WatchedDisk { inner, root: directory.path().to_owned(), facts });
        Self {
            directory,
            disk,
            settings,
            process: None,
            fates: Vec::new(),
            pending: Vec::new(),
            tallies: Tallies::from([SinkTally::default()]),
            before: SinkTally::default(),
            answers: Vec::new(),
            others: 0,
            is_changed: false,
            first: 0,
            had_crash: false,
            had_power_loss: false,
            had_fault: false,
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let (watch, waker) = InotifyWatch::with(None)?;
        let (requests, requested) = bounded(REQUESTS_MAX);
        let (reopeners, asked) = bounded(REOPENERS_MAX);
        let (reports, reported) = unbounded();
        let (upload_reports, reported_uploads) = unbounded();
        let inbox = Arc::new(KeeperInbox { requests, reopeners, reports, upload_reports, waker });
        let mut keeper = FileKeeper {
            context: OpenContext::default(),
            entries: Vec::new(),
            inbox,
            requests: requested,
            reopeners: asked,
            reports: reported,
            upload_reports: reported_uploads,
            uploads: None,
            watch,
        };
        let encoder = Encoder::new(Format::Lines, two_scenes(), |_| true);
        let file = LogFile::open(self.settings.clone(), encoder, WallClock::default(), &mut keeper, Caller::default())?;
        let reopener = FileReopener(Arc::downgrade(&keeper.inbox));
        let (own, jobs) = CompressJobs::new();
        let jobs_of_keeper = self.settings.compress.is_some().then_some(own);
        let keeper = Rc::new(RefCell::new(keeper.into_thread(jobs_of_keeper)));
        KEEPER.set(Some(Rc::clone(&keeper)));
        self.process = Some(Process { file, keeper, jobs, reopener });
        self.first = self.fates.len();
        Ok(())
    }

    fn accept(&mut self, count: u64) {
        let Some(process) = &mut self.process else { return };
        let mut packed = Vec::new();
        for _ in 0..count {
            let number = self.fates.len() as Number;
            self.fates.push(Fate::Pending);
            self.pending.push(number);
            let record = record(number);
            mmsg::pack_known(
                "127.0.0.1:9".parse().expect("an address"),
                None,
                (record.as_bytes(), record.len()),
                &mut packed,
            );
        }
        self.tallies[0].pending += count;
        self.before.pending += count;
        BATCH.with_borrow_mut(|known| {
            let batch = known.get_or_insert_with(|| {
                let (mut batches, _) = PackedBatch::pool(1, 64 << 10, false).expect("memory");
                LaneBatch::unpacked(batches.pop().expect("one"))
            });
            assert!(batch.unpack((0, 0), &packed, |_| true));
            process.file.accept(batch, &mut self.tallies);
        });
    }

    fn flush(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.file.flush(&mut self.tallies);
        self.settle();
    }

    /// Takes over what the sink has counted.
    fn settle(&mut self) {
        let now = self.tallies[0];
        let delivered = usize::try_from(now.delivered - self.before.delivered).expect("few");
        let failed = usize::try_from(now.dropped.sink_error - self.before.dropped.sink_error).expect("few");
        assert_eq!((now.pending, delivered + failed), (0, self.pending.len()), "the ledger does not close");
        let is_dead = self.disk.facts().is_dead;
        for (place, number) in self.pending.drain(..).enumerate() {
            self.fates[number as usize] = match place < delivered {
                true => Fate::Delivered,
                false if is_dead => Fate::Unknown,
                false => Fate::Failed,
            };
        }
        self.before = now;
    }

    fn keep_work(&mut self) {
        let changed = if std::mem::take(&mut self.is_changed) { vec![0] } else { Vec::new() };
        if let Some(process) = &mut self.process {
            process.keeper.borrow_mut().work(changed);
        }
    }

    fn keep_one(&mut self) {
        let Some(process) = &mut self.process else { return };
        let mut keeper = process.keeper.borrow_mut();
        if let Ok((number, request)) = keeper.requests.try_recv() {
            keeper.handle(number, request);
        }
    }

    fn compress_one(&mut self) -> bool {
        let Some(process) = &mut self.process else { return false };
        let job = process.jobs.try_recv();
        job.map(compress::do_job).is_ok()
    }

    fn when_due(&mut self) {
        if let Some(process) = &mut self.process
            && process.file.due().is_some_and(|due| due <= clock::now())
        {
            process.file.when_due();
        }
    }

    /// The process is gone, and its open files.
    fn end_dead(&mut self) {
        self.disk.facts().is_dead = true;
        self.process = None;
        KEEPER.set(None);
        self.answers.clear();
        let mut facts = self.disk.facts();
        (facts.is_dead, facts.dies_in, facts.is_last_write) = (false, None, false);
        drop(facts);
        for number in self.pending.drain(..) {
            self.fates[number as usize] = Fate::Failed;
        }
        self.tallies = Tallies::from([SinkTally::default()]);
        self.before = SinkTally::default();
        self.had_crash = true;
    }

    fn lose_power(&mut self, chance: &mut Chance) {
        self.end_dead();
        self.had_power_loss = true;
        // Directories are no part of the simulated disk.
        for entry in fs::read_dir(self.directory.path()).expect("a directory").flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        self.disk.lose_power(chance, &Index::path_of(&FileName::new(self.settings.path.clone(), Duration::ZERO)));
        let mut facts = self.disk.facts();
        facts.read.clear();
        let all: BTreeSet<Number> = (0..self.fates.len() as Number).collect();
        let lost: Vec<Number> = all.difference(&facts.durable).copied().collect();
        facts.gone.extend(lost);
        facts.is_changed = true;
    }

    /// Ends as at a reload or at the end.
    fn end(&mut self) {
        self.flush();
        let Some(Process { file, keeper, jobs, .. }) = self.process.take() else { return };
        KEEPER.set(None);
        let mut keeper = Rc::into_inner(keeper).expect("the process alone has it").into_inner();
        let ledger = file.ledger();
        let handle = file.ask_to_close();
        let mut turns = 0;
        loop {
            let is_wanted = keeper.work(Vec::new());
            if handle.done.try_recv().is_err_and(|error| error.is_disconnected()) {
                break;
            }
            assert!(is_wanted && turns < 10, "the keeper does not close the file");
            turns += 1;
        }
        drop(handle);
        let sum = FileLedger::sum([ledger.as_ref()].into_iter()).counts;
        if self.settings.sync != Sync::Never {
            let facts = self.disk.facts();
            if !facts.is_dead && sum.doubtful_bytes == 0 && sum.unsynced_bytes == 0 {
                for (number, fate) in self.fates.iter().enumerate().skip(self.first) {
                    let number = number as Number;
                    let is_safe = facts.durable.contains(&number) || facts.gone.contains(&number);
                    assert!(*fate != Fate::Delivered || is_safe, "record {number} counts as synced and was not");
                }
            }
        }
        assert!(!keeper.work(Vec::new()), "no consumer is left");
        drop(keeper);
        while let Ok(job) = jobs.try_recv() {
            compress::do_job(job);
        }
        self.answers.clear();
    }

    fn current(&self) -> PathBuf {
        let name = FileName::new(self.settings.path.clone(), Duration::ZERO);
        name.at(WallClock::default().seconds())
    }

    /// Another program takes this file away.
    fn note_gone(&self, path: &Path) {
        let mut facts = self.disk.facts();
        if path.symlink_metadata().is_ok_and(|found| found.nlink() == 1) {
            let content = self.disk.content(&mut facts, path);
            facts.gone.extend(content.records);
        }
    }

    fn make_foreign(&mut self, path: &Path, is_for_ever: bool) -> bool {
        let made = self.disk.as_other(|| {
            let file = disk::open(path, OpenOptions::new().write(true).create_new(true))?;
            disk::append_all(&file, b"x is theirs\n")?;
            file.metadata()
        });
        if let Ok(made) = &made {
            let mut facts = self.disk.facts();
            facts.foreign.insert(made.ino());
            if !is_for_ever {
                facts.adoptable.insert(made.ino());
            }
        }
        made.is_ok()
    }

    /// Another program does something in the directory.
    fn other(&mut self, chance: &mut Chance) -> String {
        self.others += 1;
        let root = self.directory.path().to_owned();
        let own = self.current();
        let aside = root.join(format!("moved-{}", self.others));
        let disk = Arc::clone(&self.disk);
        let files: Vec<(PathBuf, u64)> = {
            let foreign = self.disk.facts().foreign.clone();
            self.disk.files().into_iter().filter(|(_, inode)| !foreign.contains(inode)).collect()
        };
        self.is_changed |= chance.happens(2, 3);
        match chance.below(9) {
            0 | 1 => {
                let moved = disk.as_other(|| disk::rename_to_new(&own, &aside)).is_ok();
                if chance.happens(1, 4) {
                    self.make_foreign(&own, false);
                }
                format!("moves the file: {moved}")
            }
            2 => {
                if own.is_file() {
                    self.note_gone(&own);
                    disk.as_other(|| disk::remove_file(&own)).expect("removed");
                }
                "removes the file".to_owned()
            }
            3 if own.is_file() => {
                self.note_gone(&own);
                self.make_foreign(&aside, false);
                disk.as_other(|| disk::rename(&aside, &own)).expect("replaced");
                "replaces the file".to_owned()
            }
            4 if !files.is_empty() => {
                let (file, _) = chance.pick(&files);
                let suffix = Method::of_name(&file.to_string_lossy()).map_or("", |(method, _)| method.suffix());
                let link = root.join(format!("link-{}{suffix}", self.others));
                disk.as_other(|| disk::hard_link(file, &link)).expect("linked");
                format!("links {}", disk.relative(file))
            }
            5 => {
                let seconds = WallClock::default().seconds() + chance.below(3);
                let names: Vec<PathBuf> = finished_names(&own, seconds, &Default::default()).take(2).collect();
                let name = chance.pick(&names).clone();
                let name = if chance.happens(1, 2) { Method::Gzip.path_of(&name) } else { name };
                let made = self.make_foreign(&name, true);
                format!("makes {}: {made}", disk.relative(&name))
            }
            6 if !files.is_empty() => {
                let (file, _) = chance.pick(&files);
                if *file != own {
                    self.note_gone(file);
                    disk.as_other(|| disk::remove_file(file)).expect("removed");
                }
                format!("removes {}", disk.relative(file))
            }
            7 if !own.exists() => {
                let made = fs::create_dir(&own).is_ok();
                format!("is in the way: {made}")
            }
            _ => {
                self.stop_others();
                "takes away what is in the way".to_owned()
            }
        }
    }

    /// Takes away links, and directories in the place of files.
    fn stop_others(&mut self) {
        let below =
            |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        for directory in below(self.directory.path()).filter(|path| path.is_dir()) {
            for inner in below(&directory).filter(|path| path.is_dir()) {
                let _ = fs::remove_dir(inner);
            }
            // One with files stays.
            let _ = fs::remove_dir(directory);
        }
        for (path, _) in self.disk.files() {
            let name = self.disk.relative(&path);
            if name.starts_with("link-") {
                self.note_gone(&path);
                self.disk.as_other(|| disk::remove_file(&path)).expect("removed");
            }
        }
    }

    /// What must hold at any moment.
    fn check(&self) {
        let mut facts = self.disk.facts();
        if let Some(broken) = &facts.broken {
            panic!("{broken}");
        }
        let mut found: BTreeMap<Number, Vec<(String, u64)>> = BTreeMap::new();
        for (path, inode) in self.disk.files() {
            let name = self.disk.relative(&path);
            if facts.foreign.contains(&inode) {
                continue;
            }
            let content = self.disk.content(&mut facts, &path);
            assert!(content.records.is_sorted_by(|one, next| one < next), "{name} is out of order: {content:?}");
            assert!(!content.is_cut || self.had_power_loss, "{name} is not whole");
            assert!(content.damaged == 0 || self.had_power_loss, "{name} has damaged lines: {content:?}");
            assert!(
                content.torn == 0 || self.had_fault || self.had_crash,
                "{name} has a torn end of {} bytes, and nothing has failed",
                content.torn
            );
            for number in content.records {
                let places = found.entry(number).or_default();
                match places.iter_mut().find(|(_, other)| *other == inode) {
                    Some(known) if known.0.starts_with("link-") => known.0.clone_from(&name),
                    Some(_) => {}
                    None => places.push((name.clone(), inode)),
                }
            }
        }
        for (number, fate) in self.fates.iter().enumerate() {
            let number = number as Number;
            let mut places = found.remove(&number).unwrap_or_default();
            // A link is a copy that another program keeps.
            if places.iter().any(|(name, _)| !name.starts_with("link-")) {
                places.retain(|(name, _)| !name.starts_with("link-"));
            }
            let is_once = match &places[..] {
                links if links.iter().all(|(name, _)| name.starts_with("link-")) => true,
                [one, other] => base_of(&one.0) == base_of(&other.0) && one.0 != other.0,
                few => few.len() <= 1,
            };
            assert!(is_once, "record {number}, {fate:?}, is more than once: {places:?}");
            if facts.gone.contains(&number) {
                continue;
            }
            match fate {
                Fate::Delivered => assert!(!places.is_empty(), "record {number} counts as delivered and is nowhere"),
                Fate::Failed | Fate::Pending => {
                    assert!(places.is_empty(), "record {number} is {fate:?} and in {places:?}");
                }
                Fate::Unknown => {}
            }
        }
        assert!(found.is_empty(), "records of nowhere: {found:?}");
    }

    /// Faults stop, and all must work again.
    fn recover(&mut self) {
        self.disk.inner.works();
        self.disk.facts().dies_in = None;
        self.stop_others();
        if self.process.is_none() {
            self.start().expect("nothing prevents it");
        }
        let mut idle = 0;
        for _ in 0..60 {
            self.disk.inner.clock.advance(Duration::from_millis(300));
            self.flush();
            self.when_due();
            self.keep_work();
            let keeper = &self.process.as_ref().expect("it runs").keeper;
            let is_failing = keeper.borrow_mut().files().any(|files| files.is_failing());
            idle = if is_failing { 0 } else { idle + 1 };
            if idle > 5 {
                break;
            }
        }
        assert!(idle > 5, "it goes on failing");
        self.check();
        self.work_on();
        self.check();
        for answer in &self.answers {
            assert!(answer.try_recv().is_ok(), "a request to reopen has no answer");
        }
        self.end();
        // What a fault has left of a crash goes at the next start.
        self.start().expect("nothing prevents it");
        self.work_on();
        self.end();
        self.check();
        self.check_end();
    }

    /// Without a fault: files are filled, finished, compressed and removed.
    fn work_on(&mut self) {
        for _ in 0..8 {
            self.accept(2);
            self.flush();
            let last = self.fates.last().expect("accepted");
            assert_eq!(*last, Fate::Delivered, "nothing fails any more");
            self.disk.inner.clock.advance(Duration::from_millis(1100));
            self.keep_work();
            self.when_due();
            self.flush();
            self.keep_work();
        }
        // Longer than any pause after a failure.
        for _ in 0..3 {
            self.disk.inner.clock.advance(Duration::from_secs(601));
            self.when_due();
            self.keep_work();
            self.flush();
            self.keep_work();
            while self.compress_one() {
                self.keep_work();
            }
        }
    }

    /// What must hold after a clean end.
    fn check_end(&self) {
        let hidden = |directory: &Path| -> Vec<String> {
            let names = fs::read_dir(directory).into_iter().flatten().flatten();
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        for name in hidden(self.directory.path()) {
            // The next rewrite of the index replaces what a crash has left of one.
            let is_left = name.ends_with(".udpd-new") || (name.ends_with(".new") && !self.had_crash);
            assert!(!is_left, "{name} is left over");
        }
        let Keep { files, bytes } = self.settings.keep;
        if self.settings.rotate.bytes == 0 || self.settings.rotate.bytes > 200 || (files == 0 && bytes == 0) {
            return;
        }
        let name = FileName::new(self.settings.path.clone(), self.settings.rotate.every);
        let mut index = Index::open(&name).expect("an index");
        let current = self.current();
        let mut present = index.present();
        present.retain(|file| file.plain.as_ref().is_none_or(|plain| plain.path != current));
        let sizes: Vec<u64> = present.iter().map(|file| file.bytes()).collect();
        // A dated file that the end has closed is not finished yet.
        let most = files + u64::from(name.is_dated());
        assert!(files == 0 || present.len() as u64 <= most, "keep = {files} leaves {present:?}");
        let sum: u64 = sizes.iter().rev().skip(1).sum();
        let newest = sizes.last().copied().unwrap_or_default();
        assert!(bytes == 0 || sizes.len() < 2 || name.is_dated() || sum + newest <= bytes, "{bytes}: {sizes:?}");
    }

    fn books(&self) -> String {
        let mut facts = self.disk.facts();
        let mut books = format!("{:?} {:?}\n", self.fates, self.tallies[0]);
        for (path, _) in self.disk.files() {
            let content = self.disk.content(&mut facts, &path);
            let _ = writeln!(books, "{} {content:?}", self.disk.relative(&path));
        }
        books
    }
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Accept,
    AcceptAndFlush,
    Interrupted,
    Flush,
    WhenDue,
    Work,
    One,
    Compress,
    Time,
    Date,
    Other,
    Fault,
    Full,
    Works,
    Reopen,
    RemoveAll,
    Kill,
    PowerLoss,
    Restart,
}

const ACTIONS: [(u64, Action); 19] = [
    (6, Action::Accept),
    (16, Action::AcceptAndFlush),
    (4, Action::Interrupted),
    (4, Action::Flush),
    (8, Action::WhenDue),
    (16, Action::Work),
    (12, Action::One),
    (8, Action::Compress),
    (8, Action::Time),
    (1, Action::Date),
    (6, Action::Other),
    (4, Action::Fault),
    (1, Action::Full),
    (4, Action::Works),
    (1, Action::Reopen),
    (1, Action::RemoveAll),
    (2, Action::Kill),
    (4, Action::PowerLoss),
    (2, Action::Restart),
];

const TIMES_MS: [u64; 9] = [1, 20, 110, 160, 300, 1100, 5000, 61_000, 601_000];

fn act(world: &mut World, action: Action, chance: &mut Chance) -> String {
    if world.process.is_none() && chance.happens(1, 2) {
        let started = world.start();
        return format!("starts: {:?}", started.map_err(|error| error.to_string()));
    }
    let disk = Arc::clone(&world.disk);
    match action {
        Action::Accept => {
            world.accept(chance.within(1..4));
            String::new()
        }
        Action::AcceptAndFlush => {
            world.accept(chance.within(1..5));
            world.flush();
            format!("{} records, {:?}", world.fates.len(), world.fates.last())
        }
        Action::Interrupted => {
            world.accept(chance.within(1..5));
            disk.facts().is_interrupted = true;
            world.flush();
            disk.facts().is_interrupted = false;
            format!("{} records, {:?}", world.fates.len(), world.fates.last())
        }
        Action::Flush => {
            world.flush();
            String::new()
        }
        Action::WhenDue => {
            world.when_due();
            String::new()
        }
        Action::Work => {
            world.keep_work();
            String::new()
        }
        Action::One => {
            world.keep_one();
            String::new()
        }
        Action::Compress => world.compress_one().to_string(),
        Action::Time => {
            let length = Duration::from_millis(*chance.pick(&TIMES_MS));
            disk.inner.clock.advance(length);
            format!("{length:?}")
        }
        Action::Date => {
            let by = *chance.pick(&[-90_000, -3600, -61, -1, 1, 61, 3600, 90_000]);
            disk.facts().set_by += by;
            format!("by {by} s")
        }
        Action::Other => world.other(chance),
        Action::Fault => {
            world.had_fault = true;
            let call = *chance.pick(&Call::ALL);
            let when = match chance.below(3) {
                0 => When::Often(1, 1 + chance.below(3)),
                _ => When::After(chance.below(6)),
            };
            let error = *chance.pick(&[libc::EIO, libc::ENOSPC, libc::EMFILE]);
            disk.inner.fail(call, when, error);
            format!("{call:?} {when:?} {error}")
        }
        Action::Full => {
            world.had_fault = true;
            let free = chance.below(300);
            disk.inner.has_free(free, libc::ENOSPC);
            format!("{free} bytes are free")
        }
        Action::Works => {
            disk.inner.works();
            String::new()
        }
        Action::Reopen => {
            let answer = world
                .process
                .as_ref()
                .and_then(|process| (process.keeper.borrow().reopeners.is_empty()).then(|| process.reopener.ask())?);
            world.answers.extend(answer);
            String::new()
        }
        Action::RemoveAll => {
            for (path, inode) in disk.files() {
                world.note_gone(&path);
                disk.facts().foreign.remove(&inode);
                disk.as_other(|| disk::remove_file(&path)).expect("removed");
            }
            if world.current().parent() != Some(world.directory.path()) {
                let _ = fs::remove_dir_all(world.current().parent().expect("a parent"));
            }
            String::new()
        }
        Action::Kill => {
            let mut facts = disk.facts();
            facts.dies_in = Some(chance.below(12));
            facts.chance = chance.next();
            format!("at call {:?}", facts.dies_in)
        }
        Action::PowerLoss => {
            if world.disk.inner.records() {
                world.lose_power(chance);
            }
            String::new()
        }
        Action::Restart => {
            world.end();
            if disk.facts().is_dead {
                return "dies at its end".to_owned();
            }
            if chance.happens(1, 2) {
                let path = world.settings.path.clone();
                world.settings = settings_of(chance, path);
                disk.facts().keep = world.settings.keep;
            }
            let started = world.start();
            format!("{:?} {:?}", world.settings, started.map_err(|error| error.to_string()))
        }
    }
}

fn simulate(run: &mut Run) -> String {
    let mut world = World::new(run);
    let _inside = simulated::enter(Arc::clone(&world.disk) as Arc<dyn Simulated>);
    world.start().expect("an empty directory");
    while let Some(mut chance) = run.step() {
        let action = chance.weighted(&ACTIONS);
        let what = act(&mut world, action, &mut chance);
        run.trace(|| format!("{action:?} {what}"));
        if world.disk.facts().is_dead {
            run.trace(|| "the process is dead".to_owned());
            world.end_dead();
        }
        if std::mem::take(&mut world.disk.facts().is_changed)
            && (run.steps_done().is_multiple_of(4) || world.process.is_none())
        {
            world.check();
        }
    }
    run.trace(|| "faults stop".to_owned());
    world.recover();
    world.books()
}

#[test]
fn files_keep_every_delivered_record_once_whatever_fails_and_whatever_others_do() {
    Simulation::new("files_keep_every_delivered_record_once_whatever_fails_and_whatever_others_do", 150, 100)
        .with_corpus(include_str!("simulation_tests.seeds"))
        .check(simulate);
}
