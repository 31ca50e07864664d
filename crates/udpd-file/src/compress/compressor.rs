//! The compressor: one thread for all sinks of the daemon, started by the first that needs it, at the lowest priority.
//! On a busy core it gets almost no time.
//!
//! Each path has at most one file in its queue, so the queue is bounded by the number of paths. The thread has one file
//! open at a time, and checks after each 256 KiB whether the sink of the file still runs; if not, it leaves the file as
//! it is. It ends when no sink needs it.

use std::convert::Infallible;
use std::fs::{File, FileTimes};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::super::lock;
use super::super::regular::open_there;
use super::super::repair::{move_aside, torn_end};
use super::form::TemporaryFile;
use super::{CompressError, CompressJob, CompressReport, CompressedFile, FileStamp};
use udpd_base::codec::CompressingWriter;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;

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

/// The thread, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Compressor(Arc<Mutex<Option<CompressorThread>>>);

#[derive(Debug)]
struct CompressorThread {
    jobs: Weak<CompressJobs>,
    /// Disconnected when it has ended.
    ended: Receiver<Infallible>,
}

impl std::fmt::Debug for CompressJobs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Jobs").field("waiting", &self.sender.len()).finish()
    }
}

impl CompressJobs {
    /// Queues a file. When the thread has ended there is no report, and the file stays as it is.
    pub fn bring(&self, job: CompressJob) {
        let _ = self.sender.send(job);
    }
}

impl Compressor {
    /// For a sink that wants it. The thread stays on these cores, if there are any, where no receiver is.
    pub fn engage(&self, registry: &ThreadRegistry, cores: &[usize]) -> io::Result<Arc<CompressJobs>> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = running.as_ref().and_then(|running| running.jobs.upgrade()) {
            return Ok(jobs);
        }
        let ((sender, jobs), (alive, ended)) = (unbounded(), unbounded());
        let own = Arc::new(CompressJobs { sender });
        let cores = cores.to_vec();
        registry.spawn("udpd-compress", ThreadRole::Compressor, move || {
            let _alive: Sender<Infallible> = alive;
            lower_priority(&cores);
            work(&jobs);
        })?;
        *running = Some(CompressorThread { jobs: Arc::downgrade(&own), ended });
        Ok(own)
    }

    /// Waits until the thread has ended, whose sinks have, and until whatever it had begun is removed again. A disk
    /// that takes longer leaves that to the next start.
    pub fn await_end(&self, limit: Duration) {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|running| running.ended.clone());
        if let Some(ended) = ended {
            // Nothing is ever sent.
            let _ = ended.recv_timeout(limit);
        }
    }
}

/// Lowers the priority and sets the cores of the thread.
fn lower_priority(cores: &[usize]) {
    if let Err(error) = rustix::process::setpriority_process(None, NICE_MAX) {
        log::warn!("cannot lower the priority of the thread that compresses files: {error}; it competes with others");
    }
    if !cores.is_empty()
        && let Err(error) = steer::confine_current_thread(cores)
    {
        let cores = steer::format_core_list(cores);
        log::warn!("the thread that compresses files cannot run on the cores {cores} only: {error}");
    }
}

fn work(jobs: &Receiver<CompressJob>) {
    while let Ok(job) = threads::blocking(|| jobs.recv()) {
        // At the lowest priority a job may take any time without the thread being stuck.
        threads::blocking(|| {
            let is_wanted = || job.receiver.strong_count() > 0;
            let outcome = pack(&job, &is_wanted);
            if let Some(receiver) = job.receiver.upgrade() {
                receiver.report(CompressReport { file: job.file, owner: job.owner, outcome });
            }
        });
    }
}

impl FileStamp {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { inode: metadata.ino(), bytes: metadata.len(), changed: metadata.modified()? })
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
        mend(&plain, job)?;
    }
    let before = FileStamp::of(&plain)?;
    let temporary = TemporaryFile::make(&job.file.path, job.recipe.method, plain.metadata()?.mode())?;
    let mut encoder = CompressingWriter::new(job.recipe, &temporary.file, before.bytes, before.changed)?;
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
                temporary.file.sync_data()?;
                account_taken(&plain, &temporary.file);
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
    temporary.file.sync_all()?;
    account_taken(&plain, &temporary.file);
    if FileStamp::of(&plain)? != before {
        return Err(CompressError::Changed);
    }
    let bytes = temporary.file.metadata()?.len();
    let target = job.recipe.method.path_of(&job.file.path);
    Ok(CompressedFile { temporary, plain: before, bytes, target, recipe: job.recipe })
}

/// Moves beside it what a crash has left of a record at its end. A file that is of another format than this sink writes
/// now is compressed as it is.
fn mend(plain: &File, job: &CompressJob) -> Result<(), CompressError> {
    let length = plain.metadata()?.len();
    let torn = match torn_end(plain, job.boundary) {
        Err(error) if error.raw_os_error().is_some() => return Err(CompressError::Failed(error)),
        found => found.unwrap_or_default(),
    };
    if torn.is_empty() {
        return Ok(());
    }
    // By a descriptor of its own, because the lock lasts as long as that. The mutex keeps the consumer from the file.
    let _files_lock =
        job.files_lock.as_ref().map(|files_lock| files_lock.lock().unwrap_or_else(PoisonError::into_inner));
    let own = open_there(&job.file.path)?;
    lock::claim(&own, &job.file.path).map_err(|_| CompressError::InUse)?;
    let metadata = own.metadata()?;
    if (metadata.ino(), metadata.len()) != (job.file.inode, length) {
        return Err(CompressError::Changed);
    }
    Ok(move_aside(&own, &job.file.path, &torn)?)
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

fn account_taken(plain: &File, packed: &File) {
    for file in [plain, packed] {
        // Advice: where it is not taken nothing is wrong.
        let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}
