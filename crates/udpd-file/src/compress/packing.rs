//! Writing the compressed form of a file: whole, checked against what the file was when it was begun, and on the disk.

use std::fs::{File, FileTimes};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::PoisonError;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::super::lock;
use super::super::regular::open_there;
use super::super::repair::{move_aside, torn_end};
use super::job::{Job, Made, Refusal, Seen};
use super::temporary::Temporary;
use udpd_base::codec::Encoder;

/// How much is read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// After so many bytes what was written is forced to the disk, and the kernel has the memory of both files back. So a
/// file of a gibibyte does not fall on the disk of those that are written in one piece, and does not push out what
/// other programs have cached.
const STEP_BYTES: u64 = 8 << 20;

/// So much of a file system, or a part of it where it is small, is left to the files that are being written.
const RESERVE_BYTES: u64 = 256 << 20;
const RESERVE_PART: u64 = 32;

impl Seen {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { inode: metadata.ino(), bytes: metadata.len(), changed: metadata.modified()? })
    }
}

/// Does it, for as long as `is_wanted`.
pub(super) fn pack(job: &Job, is_wanted: &dyn Fn() -> bool) -> Result<Made, Refusal> {
    let mut plain = open_there(&job.file.path)?;
    if plain.metadata()?.ino() != job.file.inode {
        return Err(Refusal::Changed);
    }
    if lock::is_locked(&plain) {
        return Err(Refusal::InUse);
    }
    if job.file.may_be_torn {
        mend(&plain, job)?;
    }
    let before = Seen::of(&plain)?;
    let temporary = Temporary::make(&job.file.path, job.recipe.method, plain.metadata()?.mode())?;
    let mut encoder = Encoder::new(job.recipe, &temporary.file, before.bytes, before.changed)?;
    io::Seek::rewind(&mut plain)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut done, mut step) = (0, 0);
    loop {
        if !is_wanted() {
            return Err(Refusal::Unwanted);
        }
        if done >= step {
            step = done + STEP_BYTES;
            leave_room(&temporary.file)?;
            if done > 0 {
                temporary.file.sync_data()?;
                let_go(&plain, &temporary.file);
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
            return Err(Refusal::Changed);
        }
        encoder.write_all(&chunk[..count])?;
    }
    if done != before.bytes {
        return Err(Refusal::Changed);
    }
    encoder.finish()?;
    // Whoever goes by the age of files finds the same.
    temporary.file.set_times(FileTimes::new().set_modified(before.changed).set_accessed(before.changed))?;
    temporary.file.sync_all()?;
    let_go(&plain, &temporary.file);
    if Seen::of(&plain)? != before {
        return Err(Refusal::Changed);
    }
    let bytes = temporary.file.metadata()?.len();
    let target = job.recipe.method.path_of(&job.file.path);
    Ok(Made { temporary, plain: before, bytes, target, recipe: job.recipe })
}

/// Moves beside it what a crash has left of a record at its end. A file that is of another format than this sink writes
/// now is compressed as it is.
fn mend(plain: &File, job: &Job) -> Result<(), Refusal> {
    let length = plain.metadata()?.len();
    let torn = match torn_end(plain, job.boundary) {
        Err(error) if error.raw_os_error().is_some() => return Err(Refusal::Failed(error)),
        found => found.unwrap_or_default(),
    };
    if torn.is_empty() {
        return Ok(());
    }
    // By a descriptor of its own, because the lock lasts as long as that. Nobody begins to write the file meanwhile.
    let _latch = job.latch.as_ref().map(|latch| latch.lock().unwrap_or_else(PoisonError::into_inner));
    let own = open_there(&job.file.path)?;
    lock::claim(&own, &job.file.path).map_err(|_| Refusal::InUse)?;
    let metadata = own.metadata()?;
    if (metadata.ino(), metadata.len()) != (job.file.inode, length) {
        return Err(Refusal::Changed);
    }
    Ok(move_aside(&own, &job.file.path, &torn)?)
}

/// A disk that is nearly full belongs to what is received.
fn leave_room(file: &File) -> io::Result<()> {
    let disk = rustix::fs::fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let reserve = RESERVE_BYTES.min(bytes(disk.f_blocks) / RESERVE_PART);
    // A file system that does not say how large it is does not say what is free.
    if disk.f_blocks > 0 && bytes(disk.f_bavail) < reserve {
        let what = format!("less than {} MiB of its disk are free", reserve.div_ceil(1 << 20));
        return Err(io::Error::new(io::ErrorKind::StorageFull, what));
    }
    Ok(())
}

fn let_go(plain: &File, packed: &File) {
    for file in [plain, packed] {
        // Advice: where it is not taken nothing is wrong.
        let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}
