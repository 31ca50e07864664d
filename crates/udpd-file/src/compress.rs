//! Compression of finished files, by one thread for the whole daemon, which no receiver and no consumer waits for.
//!
//! The keeper of a sink says which file, from its list of finished ones, one at a time for each path, and after a
//! failure not before a pause (`queue`). The thread ([`Compressor`]) writes the compressed form into a hidden
//! temporary file beside the file and syncs it. The keeper then lists it, gives it its name, and only after that has
//! reached the disk removes the plain file ([`exchange`]). So at every moment there is at least one complete form under
//! a listed name. A crash leaves a temporary file, which the next attempt replaces, or both forms, of which the next
//! start removes the plain one.
//!
//! No queue holds what waits: it is every file of the index without a compressed form. So a full disk, a restart, or a
//! build without the method loses none of it.
//!
//! The thread is started by the first sink that needs it, at the lowest priority, and ends when no sink needs it. Each
//! path has at most one file in its queue, so the number of paths bounds the queue. The thread has one file open at a
//! time, and checks after each 256 KiB whether the sink of the file still runs; if not, it leaves the file as it is.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{File, FileTimes, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use super::finished_files::FinishedForm;
use super::handle::open_there;
use super::handle::set_aside;
use super::lock;
use super::repair::{move_aside, torn_end};
use super::retention::{FileRetention, WaitingFile, remove_unused};
use super::upload::UploadReport;
use udpd_base::codec::{CompressingWriter, Method, Recipe};
use udpd_base::format::Boundary;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::{disk, waits};

/// A file to be compressed.
#[derive(Debug)]
pub struct CompressJob {
    pub(crate) file: WaitingFile,
    pub recipe: Recipe,
    pub boundary: Boundary,
    /// The number of its owner at the keeper.
    pub owner: usize,
    /// Held by a consumer that begins to write the file again (files by source).
    pub files_lock: Option<Arc<Mutex<()>>>,
    /// Receives the report. When it is gone, the result would get no name.
    pub receiver: Weak<dyn ReportReceiver>,
}

/// Receives the outcome of a job.
pub trait ReportReceiver: Send + Sync {
    fn report(&self, report: CompressReport);

    fn report_upload(&self, report: UploadReport);
}

/// The outcome of a job.
#[derive(Debug)]
pub struct CompressReport {
    pub(crate) file: WaitingFile,
    pub owner: usize,
    pub outcome: Result<CompressedFile, CompressError>,
}

/// A complete compressed form, synced, that has no name yet.
#[derive(Debug)]
pub struct CompressedFile {
    pub(super) temporary: TemporaryFile,
    pub(super) plain: FileStamp,
    pub(super) bytes: u64,
    pub(super) target: PathBuf,
    pub(super) recipe: Recipe,
}

/// What shows that a file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    pub(super) changed: SystemTime,
}

/// Why a file was not compressed.
#[derive(Debug)]
pub enum CompressError {
    /// The file was removed, replaced or changed meanwhile.
    Changed,
    /// Another process has locked it.
    InUse,
    /// Its sink has ended.
    Unwanted,
    Failed(io::Error),
}

impl From<io::Error> for CompressError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Changed,
            io::ErrorKind::ResourceBusy => Self::InUse,
            _ => Self::Failed(error),
        }
    }
}

impl fmt::Display for CompressError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => formatter.write_str("it was changed or removed meanwhile"),
            Self::InUse => formatter.write_str("another process has locked it"),
            Self::Unwanted => formatter.write_str("its sink has ended"),
            Self::Failed(error) => write!(formatter, "{error}"),
        }
    }
}

/// How its name ends.
const SUFFIX: &str = ".udpd-new";

/// A file that is being written, or is written and has no name yet.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    path: PathBuf,
    file: File,
    inode: u64,
}

/// Where the compressed form of a file is written first.
fn path_for(plain: &Path, method: Method) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(plain.file_name().unwrap_or_default());
    name.push(method.suffix());
    name.push(SUFFIX);
    plain.with_file_name(name)
}

/// The name of the file of which this would be the compressed form, where it is the name of a temporary file.
pub(crate) fn is_temporary_of(name: &str) -> Option<&str> {
    let form = name.strip_prefix('.')?.strip_suffix(SUFFIX)?;
    Method::of_name(form).map(|(_, plain)| plain)
}

/// Removes the temporary file that a crash has left, unless another process writes it.
pub(crate) fn remove_left(plain: &Path) {
    for path in Method::ALL.map(|method| path_for(plain, method)) {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let Ok(left) = disk::open(&path, OpenOptions::new().read(true).custom_flags(flags)) else { continue };
        if left.metadata().is_ok_and(|found| found.is_file()) && !lock::is_locked(&left) {
            let _ = disk::remove_file(&path);
        }
    }
}

impl TemporaryFile {
    /// Creates it, in place of one that a crash has left. A locked one is being written by another process.
    fn make(plain: &Path, method: Method, mode: u32) -> io::Result<Self> {
        let path = path_for(plain, method);
        let open = |options: &mut OpenOptions| {
            let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
            disk::open(&path, options.custom_flags(flags).mode(mode & 0o777))
        };
        let make = || open(OpenOptions::new().write(true).create_new(true));
        let file = match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let left = open(OpenOptions::new().read(true))?;
                if !left.metadata()?.is_file() {
                    return Err(io::Error::other(format!("{} is in the way", path.display())));
                }
                if lock::is_locked(&left) {
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process compresses it"));
                }
                disk::remove_file(&path)?;
                make()?
            }
            made => made?,
        };
        let inode = file.metadata()?.ino();
        let temporary = Self { path, file, inode };
        lock::claim(&temporary.file, &temporary.path)?;
        Ok(temporary)
    }

    /// Whether its path still leads to it.
    fn is_in_place(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|found| found.is_file() && found.ino() == self.inode)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = disk::remove_file(&self.path);
        }
    }
}

/// How many bytes a file was long, and is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompressedSizes {
    pub from_bytes: u64,
    pub to_bytes: u64,
}

/// The whole exchange, for a keeper that alone writes the index and begins the file.
pub(crate) fn exchange(
    retention: &mut FileRetention,
    plain: &Path,
    made: &CompressedFile,
) -> Result<CompressedSizes, CompressError> {
    list(retention, plain, made)?;
    take_place(made)?;
    Ok(remove_plain(plain, made))
}

/// Adds the compressed form to the index, before it gets its name.
pub(crate) fn list(retention: &mut FileRetention, plain: &Path, made: &CompressedFile) -> Result<(), CompressError> {
    if !made.plain.is_of(plain) || !made.temporary.is_in_place() {
        return Err(CompressError::Changed);
    }
    if made.target.symlink_metadata().is_ok() {
        let what = format!("another process has made {} meanwhile", made.target.display());
        return Err(CompressError::Failed(io::Error::new(io::ErrorKind::AlreadyExists, what)));
    }
    retention.list_compressed(plain, made.recipe.method, made.temporary.inode).map_err(CompressError::Failed)
}

/// Renames it and syncs the directory.
pub(crate) fn take_place(made: &CompressedFile) -> Result<(), CompressError> {
    set_aside(&made.temporary.path, std::iter::once(made.target.clone()), |_| ()).map_err(CompressError::Failed)?;
    let directory = made.target.parent().unwrap_or(Path::new("/"));
    File::open(directory).and_then(|directory| disk::sync_all(&directory)).map_err(CompressError::Failed)
}

/// Removes the plain file. If that fails, the next look at the index does it.
pub(crate) fn remove_plain(plain: &Path, made: &CompressedFile) -> CompressedSizes {
    let form = FinishedForm { path: plain.to_owned(), inode: made.plain.inode, bytes: made.plain.bytes };
    if made.plain.is_of(plain)
        && let Err(error) = remove_unused(&form)
    {
        log::debug!("cannot remove {} yet, which is compressed: {error}", plain.display());
    }
    CompressedSizes { from_bytes: made.plain.bytes, to_bytes: made.bytes }
}

/// How much is read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// After so many bytes what was written is forced to the disk, and the kernel has the memory of both files back. So a
/// file of a gibibyte does not fall on the disk of those that are written in one piece, and does not push out what
/// other programs have cached.
const STEP_BYTES: u64 = 8 << 20;

/// So much of a file system, or a part of it where it is small, is left to the files that are being written.
const RESERVE_BYTES: u64 = 256 << 20;
const RESERVE_PART: u64 = 32;

/// The lowest priority that a thread can have.
const NICE_MAX: i32 = 19;

/// Where files to be compressed are brought.
pub struct CompressJobs {
    sender: Sender<CompressJob>,
}

#[derive(Debug, Clone, Default)]
pub struct Compressor(Arc<Mutex<Option<CompressorThread>>>);

#[derive(Debug)]
struct CompressorThread {
    jobs: Weak<CompressJobs>,
    ended: Receiver<Infallible>,
}

impl std::fmt::Debug for CompressJobs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CompressJobs").field("waiting", &self.sender.len()).finish()
    }
}

impl CompressJobs {
    pub(super) fn new() -> (Arc<Self>, Receiver<CompressJob>) {
        let (sender, jobs) = unbounded();
        (Arc::new(Self { sender }), jobs)
    }

    /// Queues a file. When the thread has ended there is no report, and the file stays as it is.
    pub fn bring(&self, job: CompressJob) {
        let _ = self.sender.send(job);
    }
}

impl Compressor {
    /// For a sink that wants it. The thread stays on these cores, if there are any, where no receiver is.
    pub fn engage(&self, registry: &ThreadRegistry, cores: &[usize]) -> io::Result<Arc<CompressJobs>> {
        let mut running = threads::lock(&self.0);
        if let Some(jobs) = running.as_ref().and_then(|running| running.jobs.upgrade()) {
            return Ok(jobs);
        }
        let ((own, jobs), (alive, ended)) = (CompressJobs::new(), unbounded());
        let cores = cores.to_vec();
        registry.spawn("udpd-compress", ThreadRole::Compressor, move || {
            let _alive: Sender<Infallible> = alive;
            go_into_background("compresses files", &cores);
            work(&jobs);
        })?;
        *running = Some(CompressorThread { jobs: Arc::downgrade(&own), ended });
        Ok(own)
    }

    /// Waits until the thread has ended, whose sinks have, and until whatever it had begun is removed again. A disk
    /// that takes longer leaves that to the next start.
    pub fn await_end(&self, limit: Duration) {
        let ended = threads::lock(&self.0).as_ref().map(|running| running.ended.clone());
        if let Some(ended) = ended {
            // Nothing is ever sent.
            let _ = waits::recv_timeout(&ended, limit);
        }
    }
}

/// Lowers the priority and sets the cores of the thread that does this.
pub fn go_into_background(does: &str, cores: &[usize]) {
    if let Err(error) = rustix::process::setpriority_process(None, NICE_MAX) {
        log::warn!("cannot lower the priority of the thread that {does}: {error}; it competes with others");
    }
    if !cores.is_empty()
        && let Err(error) = steer::confine_current_thread(cores)
    {
        let cores = steer::format_core_list(cores);
        log::warn!("the thread that {does} cannot run on the cores {cores} only: {error}");
    }
}

fn work(jobs: &Receiver<CompressJob>) {
    while let Ok(job) = threads::blocking(|| waits::recv(jobs)) {
        // At the lowest priority a job may take any time without the thread being stuck.
        threads::blocking(|| do_job(job));
    }
}

/// Compresses a file and reports it.
pub(super) fn do_job(job: CompressJob) {
    let is_wanted = || job.receiver.strong_count() > 0;
    let outcome = pack(&job, &is_wanted);
    if let Some(receiver) = job.receiver.upgrade() {
        receiver.report(CompressReport { file: job.file, owner: job.owner, outcome });
    }
}

impl FileStamp {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { inode: metadata.ino(), bytes: metadata.len(), changed: metadata.modified()? })
    }

    /// Whether the file at this path is still the same.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|found| {
            let is_changed = found.modified().map_or(true, |changed| changed != self.changed);
            found.is_file() && (found.ino(), found.len()) == (self.inode, self.bytes) && !is_changed
        })
    }
}

/// Compresses a file, as long as `is_wanted`.
fn pack(job: &CompressJob, is_wanted: &dyn Fn() -> bool) -> Result<CompressedFile, CompressError> {
    let mut plain = open_there(&job.file.path)?;
    if plain.metadata()?.ino() != job.file.inode {
        return Err(CompressError::Changed);
    }
    if lock::is_locked(&plain) {
        return Err(CompressError::InUse);
    }
    if job.file.may_be_torn {
        mend(&plain, &job.file, job.boundary, job.files_lock.as_deref())?;
    }
    let before = FileStamp::of(&plain)?;
    let temporary = TemporaryFile::make(&job.file.path, job.recipe.method, plain.metadata()?.mode())?;
    let mut encoder =
        CompressingWriter::new(job.recipe, disk::Appender(&temporary.file), before.bytes, before.changed)?;
    io::Seek::rewind(&mut plain)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut done, mut step) = (0, 0);
    loop {
        if !is_wanted() {
            return Err(CompressError::Unwanted);
        }
        if done >= step {
            step = done + STEP_BYTES;
            keep_reserve(&temporary.file)?;
            if done > 0 {
                disk::sync_data(&temporary.file)?;
                drop_cache(&plain, &temporary.file);
            }
        }
        let count = match plain.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            break;
        }
        done += count as u64;
        if done > before.bytes {
            return Err(CompressError::Changed);
        }
        encoder.write_all(&chunk[..count])?;
    }
    if done != before.bytes {
        return Err(CompressError::Changed);
    }
    encoder.finish()?;
    // Tools that go by the age of files find the same age.
    temporary.file.set_times(FileTimes::new().set_modified(before.changed).set_accessed(before.changed))?;
    disk::sync_all(&temporary.file)?;
    drop_cache(&plain, &temporary.file);
    if FileStamp::of(&plain)? != before {
        return Err(CompressError::Changed);
    }
    let bytes = temporary.file.metadata()?.len();
    let target = job.recipe.method.path_of(&job.file.path);
    Ok(CompressedFile { temporary, plain: before, bytes, target, recipe: job.recipe })
}

/// Moves beside it what a crash has left of a record at its end. A file that is of another format than this sink writes
/// now is compressed as it is.
pub(crate) fn mend(
    plain: &File,
    file: &WaitingFile,
    boundary: Boundary,
    files_lock: Option<&Mutex<()>>,
) -> Result<(), CompressError> {
    let length = plain.metadata()?.len();
    let torn = match torn_end(plain, boundary) {
        Err(error) if error.raw_os_error().is_some() => return Err(CompressError::Failed(error)),
        found => found.unwrap_or_default(),
    };
    if torn.is_empty() {
        return Ok(());
    }
    // By a descriptor of its own, because the lock lasts as long as that. The mutex keeps the consumer from the file.
    let _files_lock = files_lock.map(threads::lock);
    let own = open_there(&file.path)?;
    lock::claim(&own, &file.path).map_err(|_| CompressError::InUse)?;
    let metadata = own.metadata()?;
    if (metadata.ino(), metadata.len()) != (file.inode, length) {
        return Err(CompressError::Changed);
    }
    Ok(move_aside(&own, &file.path, &torn)?)
}

/// Refuses a disk that is nearly full: the rest is for received datagrams.
fn keep_reserve(file: &File) -> io::Result<()> {
    let file_system = rustix::fs::fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(file_system.f_frsize);
    let reserve = RESERVE_BYTES.min(bytes(file_system.f_blocks) / RESERVE_PART);
    // A file system that does not say how large it is does not say what is free.
    if file_system.f_blocks > 0 && bytes(file_system.f_bavail) < reserve {
        let what = format!("less than {} MiB of its disk are free", reserve.div_ceil(1 << 20));
        return Err(io::Error::new(io::ErrorKind::StorageFull, what));
    }
    Ok(())
}

fn drop_cache(plain: &File, packed: &File) {
    for file in [plain, packed] {
        // Advice: where it is not taken nothing is wrong.
        let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_crash_has_left_is_replaced_and_what_another_process_writes_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let plain = directory.path().join("a.log");
        let path = path_for(&plain, Method::Gzip);
        assert_eq!(path, directory.path().join(".a.log.gz.udpd-new"));
        assert_eq!(is_temporary_of(".a.log.gz.udpd-new"), Some("a.log"));
        fs::write(&path, "left").expect("written");
        let first = TemporaryFile::make(&plain, Method::Gzip, 0o640).expect("made");
        assert_eq!(first.file.metadata().expect("there").len(), 0);
        let error = TemporaryFile::make(&plain, Method::Gzip, 0o640).expect_err("it is being written");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(first.is_in_place());
        drop(first);
        assert!(!path.exists());
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        TemporaryFile::make(&plain, Method::Gzip, 0o640).expect_err("a link is no file of ours");
    }
}
