//! A file and its successors of the same name, as the keeper sees them: it begins, finishes, syncs and replaces them.
//!
//! The keeper tells the consumer to change to the next file only when that file is open. The old file stays open until
//! the consumer has changed. Only then does the keeper finish it, so the last bytes are synced too, or counted as
//! doubtful.
//!
//! A failed sync is final: the kernel reports a lost write once and then forgets it. The keeper renames a file whose
//! sync has failed so that its name says so, counts its unsynced bytes as doubtful, and begins another file.
//!
//! Another process may move or remove the file, or ask for a new one. A moved file is written until the next one is
//! open, because the process that moved it reads it. Only a removed file, which has no reader, is given up at once when
//! no other file can be begun.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::clock::WallClock;
use super::compress::{CompressError, CompressReport, exchange};
use super::handle::{LogHandle, cure, set_aside};
use super::keeper::{CompressOffer, KeptFiles};
use super::mailbox::{KeeperRequest, Mailbox, NewFile, Reopened, WritePosition};
use super::name::{FileName, failed_names, finished_names};
use super::queue::JobQueue;
use super::retention::{FileRetention, Treatment};
use super::settings::{FileSettings, Rotate, Sync};
use super::upload::{self, UploadOffer, UploadReport};
use udpd_base::codec::Recipe;
use udpd_base::format::Boundary;
use udpd_base::ledger::FileLedger;
use udpd_base::seams::clock;
use udpd_base::seams::disk;
use udpd_base::sink::OpenContext;

/// The pause before the consumer asks again for a file that could not be begun.
const CHANGE_AGAIN: Duration = Duration::from_secs(1);

/// An open file and its current path.
#[derive(Debug, Clone)]
struct OpenFile {
    handle: LogHandle,
    path: Arc<Path>,
    generation: u64,
    /// Its length when its path last led to it.
    seen_bytes: u64,
}

/// Why the consumer stops writing to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClosingReason {
    Finished,
    /// Another process has moved or removed it.
    Moved,
    SyncFailed,
}

/// A file and its successors of the same name.
pub(super) struct RotatingFile {
    name: FileName,
    rotate: Rotate,
    sync: Sync,
    boundary: Boundary,
    header: Vec<u8>,
    ledger: Arc<FileLedger>,
    mailbox: Arc<Mailbox>,
    clock: WallClock,
    retention: FileRetention,
    /// The finished files that wait to be compressed.
    queue: Option<JobQueue>,
    /// Those that wait to be uploaded.
    uploads: Option<JobQueue>,
    recipe: Option<Recipe>,
    context: OpenContext,
    /// The sink of the previous pipeline still writes there, so no file is begun yet.
    waits_for_previous: bool,
    /// The first file did not exist before.
    has_made_first: bool,
    /// The number of the newest file.
    generation: u64,
    /// When the newest file was begun, in seconds since 1970.
    begun: u64,
    /// The newest file; `None` while no file can be written and the keeper retries.
    current: Option<OpenFile>,
    /// The path no longer leads to the newest file, and no other could be begun there.
    is_displaced: bool,
    /// When to replace the newest file, which another process has moved.
    checks_at: Option<Instant>,
    /// A moved file was replaced since files were last reopened.
    has_reopened: bool,
    /// Older files that the consumer may still write to, the oldest first.
    closing: VecDeque<(OpenFile, ClosingReason)>,
    /// A file that could not be written, and its length up to the last whole record. It is used again if its path still
    /// leads to it.
    broken: Option<(LogHandle, u64)>,
    /// A file whose sync has failed and that could not be renamed. No file is begun until it can be.
    unsynced_file: Option<OpenFile>,
    /// The error number and text of the last logged reason why there is no file.
    last_error: Option<(i32, String)>,
}

impl RotatingFile {
    /// Opens the first file and puts it into the mailbox. While the sink of the previous pipeline still writes there,
    /// it only checks what would prevent that, and waits for [`RotatingFile::open_first_late`].
    pub(super) fn open(
        name: FileName,
        settings: &FileSettings,
        header: Vec<u8>,
        ledger: Arc<FileLedger>,
        mailbox: Arc<Mailbox>,
        clock: WallClock,
        context: OpenContext,
    ) -> io::Result<Self> {
        let treatment = Treatment::of(settings);
        let retention = FileRetention::new(&name, treatment);
        let waits_for_previous = context.has_predecessor;
        let mut file = Self {
            name,
            rotate: settings.rotate,
            sync: settings.sync,
            boundary: settings.format.boundary(),
            header,
            ledger,
            mailbox,
            clock,
            retention,
            queue: treatment.recipe.map(|_| JobQueue::new()),
            uploads: treatment.upload.map(|_| JobQueue::new()),
            recipe: treatment.recipe,
            context,
            waits_for_previous,
            has_made_first: false,
            generation: 0,
            begun: 0,
            current: None,
            is_displaced: false,
            checks_at: None,
            has_reopened: false,
            closing: VecDeque::new(),
            broken: None,
            unsynced_file: None,
            last_error: None,
        };
        if waits_for_previous { file.check_beside() } else { file.open_first() }?;
        Ok(file)
    }

    /// Opens the file for the current time, writes its header, and puts it into the mailbox.
    fn begin(&mut self, now: u64) -> io::Result<()> {
        let path = self.name.at(now);
        self.retention.finish_interrupted(&path);
        let is_new = path.symlink_metadata().is_err();
        let opened = LogHandle::open(&path, self.boundary).and_then(|mut handle| {
            handle.append_whole(&self.header)?;
            Ok((handle.length()?, handle))
        });
        match opened {
            Ok((length, handle)) => {
                self.retention.begun(&path, &handle, is_new);
                self.has_made_first |= is_new && self.generation == 0;
                self.publish(handle, &path, length, now);
                Ok(())
            }
            Err(error) => {
                if is_new && fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == 0) {
                    // An empty leftover would block the old file from getting its name back.
                    let _ = disk::remove_file(&path);
                }
                Err(error)
            }
        }
    }

    fn publish(&mut self, handle: LogHandle, path: &Path, length: u64, now: u64) {
        self.generation += 1;
        self.begun = now;
        self.is_displaced = false;
        self.last_error = None;
        let begun = NewFile { handle: handle.clone(), length };
        self.mailbox.begin(self.generation, begun, self.ends(now));
        self.current = Some(OpenFile { handle, path: path.into(), generation: self.generation, seen_bytes: length });
    }

    fn ends(&self, now: u64) -> Option<SystemTime> {
        self.name.ends(now).map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Finishes the file, if it is due or full, and begins the next. If that fails the consumer keeps the old one.
    fn change(&mut self, generation: u64, is_full: bool) {
        let Some(before) = self.current.clone().filter(|file| file.generation == generation) else { return };
        if !before.handle.is_at(&before.path) {
            // The path leads to a file of another process, which must not be renamed.
            self.replace_if_moved();
            if self.generation == generation {
                self.mailbox.go_on(Some(self.clock.now() + CHANGE_AGAIN));
            }
            return;
        }
        let now = self.clock.seconds();
        let is_renamed = *self.name.at(now) == *before.path;
        let is_over = is_full || self.name.is_over(self.begun, now);
        if is_renamed && (!is_over || self.is_empty(&before.handle)) {
            // A time code was due that has not changed, such as the month at midnight; or the clock was set within the
            // period; or nothing was written.
            return self.mailbox.go_on(self.ends(now));
        }
        match self.replace(before.clone(), is_renamed, now) {
            Ok(finished) => self.closing.push_back((finished, ClosingReason::Finished)),
            Err(error) => {
                log::error!(
                    "cannot begin a new file in place of {}: {error}; udpd goes on writing to it{}",
                    before.path.display(),
                    cure(&error)
                );
                self.mailbox.go_on(Some(self.clock.now() + CHANGE_AGAIN));
            }
        }
    }

    /// Begins a file in the place of this one; returns this one with its new name.
    fn replace(&mut self, mut before: OpenFile, is_renamed: bool, now: u64) -> io::Result<OpenFile> {
        if !is_renamed {
            return self.begin(now).map(|()| before);
        }
        let own_name = Arc::clone(&before.path);
        before.path = self.finish(&before.handle, &own_name, now)?;
        self.begin(now).inspect_err(|_| {
            // The consumer goes on writing to it, so it gets its name back, unless that name is taken.
            let _ = set_aside(&before.path, std::iter::once(own_name.to_path_buf()), |_| ());
        })?;
        Ok(before)
    }

    /// Renames a file to the name of a finished one.
    fn finish(&mut self, handle: &LogHandle, path: &Path, now: u64) -> io::Result<Arc<Path>> {
        let retention = &mut self.retention;
        set_aside(path, finished_names(path, now, self.name.zone()), |name| retention.list(name, handle)).map(Arc::from)
    }

    fn is_empty(&self, handle: &LogHandle) -> bool {
        handle.length().is_ok_and(|length| length == self.header.len() as u64)
    }

    /// The consumer no longer writes to the files before this generation; `written` is its total of bytes so far.
    fn note_closed(&mut self, before: u64, written: u64) {
        while self.closing.front().is_some_and(|(file, _)| file.generation < before) {
            let Some((file, reason)) = self.closing.pop_front() else { return };
            match reason {
                ClosingReason::Finished => self.finish_closed(&file, written),
                ClosingReason::Moved => self.account_moved(&file, written),
                ClosingReason::SyncFailed => self.ledger.note_doubtful(written),
            }
        }
    }

    fn finish_closed(&mut self, file: &OpenFile, written: u64) {
        if self.is_empty(&file.handle) {
            // Nothing arrived in this period.
            if file.handle.is_at(&file.path) {
                let _ = disk::remove_file(&file.path);
            }
            return;
        }
        self.ledger.note_finished();
        self.force_if_asked(file, written);
        if self.sync != Sync::Never {
            self.sync_directory();
            self.retention.sync();
        }
        self.queue.iter_mut().chain(&mut self.uploads).for_each(JobQueue::note_finished);
        let open = self.inodes_in_use();
        let removed = self.retention.clear(&open, &self.ledger);
        removed.iter().for_each(|path| self.remove_directories(path));
        self.count_waiting();
    }

    /// Publishes how many files wait to be uploaded: the thread may have one for hours.
    fn count_waiting(&mut self) {
        if self.uploads.is_some() {
            let (open, now) = (self.inodes_in_use(), self.clock.seconds());
            self.ledger.note_not_uploaded(self.retention.waiting_for_upload(&open, now).len() as u64);
        }
    }

    /// Removes the directories that a removed file has left empty.
    fn remove_directories(&self, path: &Path) {
        for directory in self.name.dated_directories(path) {
            // A directory that is not empty stays.
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }

    /// The inodes of the files that are written or may be written again.
    fn inodes_in_use(&self) -> Vec<u64> {
        let file = self.closing.iter().map(|(file, _)| file).chain(&self.current).chain(&self.unsynced_file);
        let handles = file.map(|file| &file.handle).chain(self.broken.iter().map(|(handle, _)| handle));
        handles.filter_map(|handle| handle.inode().ok()).collect()
    }

    /// Tells the consumer to write to no file until there is another.
    fn stop(&mut self) {
        // No file has this number.
        self.generation += 1;
        self.mailbox.stop(self.generation);
    }

    /// A write to this file has failed and the consumer writes nothing more to it.
    fn break_off(&mut self, at: WritePosition, errno: i32, whole_bytes: u64) {
        // This also holds for a file that was finished meanwhile. If the cut fails now, it is made before the next
        // write.
        let mut known = self.closing.iter().map(|(file, _)| file).chain(&self.current);
        if let Some(file) = known.find(|file| file.generation == at.generation) {
            let _ = file.handle.cut_to(whole_bytes);
        }
        self.note_closed(at.generation + 1, at.written);
        if let Some(file) = self.current.take_if(|file| file.generation == at.generation) {
            self.is_displaced = false;
            let error = io::Error::from_raw_os_error(errno);
            self.last_error =
                Some((errno, format!("cannot write to {}: {error}{}", file.path.display(), cure(&error))));
            // Sync it now: there may be no other chance.
            self.force_if_asked(&file, at.written);
            self.broken = Some((file.handle, whole_bytes));
        }
    }

    /// Logs why there is no file, once for each error number.
    fn log_error_once(&mut self, error: &io::Error, consequence: &str) {
        let errno = error.raw_os_error().unwrap_or_default();
        let text = format!("cannot begin {}: {error}{}", self.name.at(self.clock.seconds()).display(), cure(error));
        if self.last_error.as_ref().is_none_or(|(logged, _)| *logged != errno) {
            log::error!("{text}; {consequence}");
        }
        self.last_error = Some((errno, text));
    }

    fn go_on(&mut self) -> io::Result<()> {
        if let Some(file) = &self.unsynced_file {
            if file.handle.is_at(&file.path) {
                set_aside(&file.path, failed_names(&file.path, self.clock.seconds(), self.name.zone()), |_| ())?;
            }
            self.unsynced_file = None;
        }
        let now = self.clock.seconds();
        let path = self.name.at(now);
        let Some((handle, whole_bytes)) = self.broken.clone().filter(|(handle, _)| handle.is_at(&path)) else {
            // Dropping it releases its lock, which a file of the same name needs.
            self.broken = None;
            return self.begin(now);
        };
        // No other process has written it meanwhile. The cut after the failed write may itself have failed.
        handle.cut_to(whole_bytes)?;
        match handle.probe_space() {
            Err(error) if error.raw_os_error() == Some(Errno::EFBIG as i32) && self.rotate != Rotate::NEVER => {
                // It has reached the limit on file sizes, so it counts as full.
                let path = self.finish(&handle, &path, now)?;
                let file = OpenFile { handle, path, generation: self.generation, seen_bytes: whole_bytes };
                self.broken = None;
                self.finish_closed(&file, self.ledger.written());
                return self.begin(now);
            }
            outcome => outcome?,
        }
        let length = handle.length()?;
        self.broken = None;
        self.publish(handle, &path, length, now);
        Ok(())
    }

    /// The consumer has ended and writes to no file any more.
    fn close(&mut self, written: u64) {
        self.note_closed(u64::MAX, written);
        if let Some(file) = self.current.take_if(|file| file.handle.names().is_ok_and(|names| names == 0)) {
            self.account_moved(&file, written);
        }
    }
}

// The first file: opened at once, or when the previous sink has closed it; removed when its pipeline never receives.

impl RotatingFile {
    /// Opens the first file, and reads which files an earlier run or sink has finished.
    fn open_first(&mut self) -> io::Result<()> {
        let now = self.clock.seconds();
        self.retention.read();
        self.retention.remove_left();
        self.begin(now)?;
        self.retention.warn_unlisted(&self.name.at(now));
        Ok(())
    }

    /// Checks what would prevent opening the file, while the previous sink still writes it.
    fn check_beside(&self) -> io::Result<()> {
        LogHandle::check_beside(&self.name.at(self.clock.seconds()), self.boundary)
    }

    /// The previous sink has closed its file. A file that cannot be opened now is retried.
    fn open_first_late(&mut self) {
        self.waits_for_previous = false;
        if let Err(error) = self.open_first() {
            self.log_error_once(&error, "its datagrams count as sink_error until udpd can");
        }
    }
}

impl Drop for RotatingFile {
    /// Removes the empty file of a start or a reload that was refused.
    fn drop(&mut self) {
        let is_needless = self.has_made_first && !self.context.is_in_force.load(Ordering::Acquire);
        if let (true, Some(file)) = (is_needless, &self.current)
            && self.is_empty(&file.handle)
            && file.handle.is_at(&file.path)
        {
            let _ = disk::remove_file(&file.path);
        }
    }
}

// Files that another process moves or removes.

/// How long a process that has moved a file gets to create a new one at its path. logrotate does so with `create`, and
/// takes a file that exists already for a mistake and moves it away too. Meanwhile the moved file is written.
const GRACE: Duration = Duration::from_millis(100);

/// The same after a removal, because the process may be about to remove the directory too. What is written meanwhile is
/// lost, so this is short.
const GRACE_REMOVED: Duration = Duration::from_millis(10);

impl RotatingFile {
    /// The newest file, if its path no longer leads to it; otherwise notes how long the file is.
    fn newest_if_moved(&mut self) -> Option<OpenFile> {
        let file = self.current.as_mut()?;
        if !file.handle.is_at(&file.path) {
            return Some(file.clone());
        }
        file.seen_bytes = file.handle.length().unwrap_or(file.seen_bytes);
        self.is_displaced = false;
        None
    }

    /// A moved file keeps all its records. What was written to a removed file after its removal is lost although it
    /// counts as delivered, so it is counted as doubtful.
    fn account_moved(&mut self, file: &OpenFile, written: u64) {
        if file.handle.names().is_ok_and(|names| names > 0) {
            return self.force_if_asked(file, written);
        }
        let after = file.handle.length().unwrap_or(file.seen_bytes).saturating_sub(file.seen_bytes);
        self.ledger.note_removed_by_others(written, after);
        if after > 0 {
            log::warn!(
                "{} was removed while udpd wrote it; up to {after} bytes written after that are lost and count as \
                 doubtful_bytes; to remove a log, move it, run `udpd reopen`, and then remove it",
                file.path.display()
            );
        }
    }
}

// Syncs.

impl RotatingFile {
    /// Syncs what the consumer has written so far to the file it writes to.
    fn sync(&mut self, at: WritePosition) {
        let is_it = |file: &OpenFile| file.generation == at.generation;
        if let Some(file) = self.current.clone().filter(is_it) {
            if !self.force(&file, at.written) {
                self.current = None;
                self.is_displaced = false;
                self.closing.push_back((file, ClosingReason::SyncFailed));
                if let Err(error) = self.go_on() {
                    self.stop();
                    self.log_error_once(&error, "its datagrams count as sink_error until udpd can");
                }
            }
        } else if let Some(index) =
            self.closing.iter().position(|(file, reason)| is_it(file) && *reason != ClosingReason::SyncFailed)
        {
            let file = self.closing[index].0.clone();
            if !self.force(&file, at.written) {
                self.closing[index].1 = ClosingReason::SyncFailed;
            }
        }
    }

    fn force_if_asked(&mut self, file: &OpenFile, written: u64) {
        if self.sync != Sync::Never {
            self.force(file, written);
        }
    }

    /// Syncs a file and counts the outcome. Returns false when the sync failed and the file was set aside.
    fn force(&mut self, file: &OpenFile, written: u64) -> bool {
        let begun = clock::wall();
        match file.handle.sync() {
            Ok(()) => self.ledger.note_synced(written, begun),
            Err(error) => {
                self.ledger.note_sync_failure();
                self.ledger.note_doubtful(written);
                self.set_unsynced_aside(file, &error);
                return false;
            }
        }
        true
    }

    /// Renames a file whose sync has failed.
    fn set_unsynced_aside(&mut self, file: &OpenFile, error: &io::Error) {
        let path = file.path.display();
        let what = format!("cannot sync {path} to the disk: {error}; its unsynced bytes may be lost");
        if !file.handle.is_at(&file.path) {
            return log::error!("{what}; another process has moved or removed it{}", cure(error));
        }
        match set_aside(&file.path, failed_names(&file.path, self.clock.seconds(), self.name.zone()), |_| ()) {
            Ok(aside) => log::error!("{what}; set it aside as {}{}", aside.display(), cure(error)),
            Err(refusal) => {
                log::error!("{what}; cannot set it aside: {refusal}; its datagrams count as sink_error until udpd can");
                self.unsynced_file = Some(file.clone());
            }
        }
    }

    /// A directory holds the names of its files, so it has to be synced as well.
    fn sync_directory(&self) {
        let path = self.name.at(self.begun);
        let directory = path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = fs::File::open(directory).and_then(|directory| disk::sync_all(&directory)) {
            log::warn!("cannot sync the directory {} to the disk: {error}", directory.display());
        }
    }
}

impl KeptFiles for RotatingFile {
    fn handle(&mut self, request: KeeperRequest) {
        match request {
            KeeperRequest::Begin => self.open_first_late(),
            KeeperRequest::Sync(at) => self.sync(at),
            KeeperRequest::FinishFull(generation) => self.change(generation, true),
            KeeperRequest::FinishDue(generation) => self.change(generation, false),
            KeeperRequest::Look => self.note_change(),
            KeeperRequest::ClosedBefore(WritePosition { generation, written }) => self.note_closed(generation, written),
            KeeperRequest::Broken { at, errno, whole_bytes } => self.break_off(at, errno, whole_bytes),
            KeeperRequest::Close(at) => self.close(at.written),
            KeeperRequest::Reopened { .. } => {}
        }
    }

    /// Counts as begun also what was replaced since the last call because of inotify.
    fn reopen(&mut self, outcome: &mut Reopened) -> u64 {
        match self.is_failing() {
            true => self.try_again(),
            false => self.replace_if_moved(),
        }
        match (&self.last_error, self.is_failing()) {
            (Some((_, why)), true) => outcome.refused.push(why.clone()),
            _ if std::mem::take(&mut self.has_reopened) => outcome.begun += 1,
            _ => outcome.unmoved += 1,
        }
        self.generation
    }

    /// The number is the generation before which all files must be closed.
    fn finish_reopening(&mut self, number: u64, _: &mut Reopened) -> bool {
        self.closing.iter().all(|(file, _)| file.generation >= number)
    }

    fn watched(&self) -> Option<(u64, &LogHandle)> {
        self.current.as_ref().map(|file| (file.generation, &file.handle))
    }

    fn note_change(&mut self) {
        let Some(file) = self.newest_if_moved() else { return };
        // A file that could not be replaced is retried anyway.
        if !self.is_displaced {
            let is_moved = file.handle.names().is_ok_and(|names| names > 0);
            let at = clock::now() + if is_moved { GRACE } else { GRACE_REMOVED };
            self.checks_at = Some(self.checks_at.map_or(at, |before| before.min(at)));
        }
    }

    fn checks_at(&self) -> Option<Instant> {
        self.checks_at
    }

    fn replace_if_moved(&mut self) {
        self.checks_at = None;
        let Some(file) = self.newest_if_moved() else { return };
        let is_removed = file.handle.names().is_ok_and(|names| names == 0);
        match self.begin(self.clock.seconds()) {
            Ok(()) => {
                let what = if is_removed { "removed" } else { "moved" };
                log::info!("another process has {what} {}; udpd begins a new file", file.path.display());
                self.closing.push_back((file, ClosingReason::Moved));
                self.has_reopened = true;
            }
            Err(error) if is_removed => {
                // No process could ever read what is written to it.
                self.current = None;
                self.is_displaced = false;
                self.closing.push_back((file, ClosingReason::Moved));
                self.stop();
                self.log_error_once(&error, "its datagrams count as sink_error until udpd can");
            }
            Err(error) => {
                self.is_displaced = true;
                self.log_error_once(&error, "until then udpd writes to the file that was moved");
            }
        }
    }

    fn is_failing(&self) -> bool {
        !self.waits_for_previous && (self.current.is_none() || self.is_displaced)
    }

    fn try_again(&mut self) {
        if self.is_displaced {
            return self.replace_if_moved();
        }
        if self.current.is_none()
            && let Err(error) = self.go_on()
        {
            self.log_error_once(&error, "udpd tries again");
        }
    }

    fn close_abandoned(&mut self) {
        self.close(self.ledger.written());
    }

    fn compresses(&self) -> bool {
        self.queue.is_some()
    }

    fn offer(&mut self, now: Instant) -> Option<CompressOffer> {
        if self.waits_for_previous || !self.queue.as_mut()?.wants(now) {
            return None;
        }
        let (inodes_in_use, seconds) = (self.inodes_in_use(), self.clock.seconds());
        let queue = self.queue.as_mut()?;
        let candidates = self.retention.candidates(&inodes_in_use, seconds);
        self.ledger.note_uncompressed(candidates.len() as u64);
        let chosen = queue.choose(candidates, now)?;
        let path = chosen.path.clone();
        let recipe = self.recipe?;
        match self.retention.with_free_name(chosen, recipe.method, seconds) {
            Ok(file) => {
                queue.note_asked();
                Some(CompressOffer { file, recipe, boundary: self.boundary, files_lock: None })
            }
            Err(error) => {
                queue.note_refused(&path, &CompressError::from(error), now, &self.ledger);
                None
            }
        }
    }

    fn offers_at(&self, now: Instant) -> Option<Instant> {
        self.queue.as_ref().filter(|_| !self.waits_for_previous)?.checks_at(now)
    }

    fn take_report(&mut self, CompressReport { file, outcome, .. }: CompressReport) {
        // Its name has come again meanwhile, and it is written again.
        let is_open = self.inodes_in_use().contains(&file.inode);
        let outcome = if is_open { Err(CompressError::InUse) } else { outcome };
        let Some(queue) = &mut self.queue else { return };
        match outcome.and_then(|made| exchange(&mut self.retention, &file.path, &made)) {
            Ok(sizes) => {
                queue.note_compressed(sizes, &self.ledger);
                self.uploads.iter_mut().for_each(JobQueue::note_finished);
                self.count_waiting();
            }
            Err(refusal) => queue.note_refused(&file.path, &refusal, clock::now(), &self.ledger),
        }
    }

    fn offer_upload(&mut self, now: Instant) -> Option<UploadOffer> {
        if self.waits_for_previous || !self.uploads.as_mut()?.wants(now) {
            return None;
        }
        let (inodes_in_use, seconds) = (self.inodes_in_use(), self.clock.seconds());
        let queue = self.uploads.as_mut()?;
        let waiting = self.retention.waiting_for_upload(&inodes_in_use, seconds);
        self.ledger.note_not_uploaded(waiting.len() as u64);
        let chosen = queue.choose(waiting, now)?;
        UploadOffer::of(&chosen, self.boundary, None, queue, &self.ledger)
    }

    fn uploads_at(&self, now: Instant) -> Option<Instant> {
        self.uploads.as_ref().filter(|_| !self.waits_for_previous)?.checks_at(now)
    }

    fn take_upload_report(&mut self, report: UploadReport) {
        let Some(queue) = &mut self.uploads else { return };
        if upload::settle(&report, queue, &mut self.retention, &self.ledger) {
            self.remove_directories(&report.path);
        }
    }
}
