//! The lock on a file. Two daemons on one file would tear each other's records, so the writer of a file locks it.
//!
//! The lock is one of an open file description (`F_OFD_SETLK`), for writing, over the whole file. It was chosen over
//! `flock` because that is what readers use: `flock -s log cat` must not keep a daemon from starting, and on a local
//! file system the two kinds do not see each other. It was chosen over the classic record lock because that one belongs
//! to the process: two sinks of one daemon would not see each other, and the first to close any descriptor of the file
//! would release it for both. The kernel releases the lock when the last descriptor is closed. Nothing has to be
//! unlocked, so no unlock can fail.
//!
//! On a file system without locks the log is written all the same, after one warning.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Locks a file for writing. The error names what holds a lock.
pub(super) fn claim(file: &File, path: &Path) -> io::Result<()> {
    claim_by(path, || fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file())).map(drop), || conflict(file))
}

/// The same with calls that a test can make fail.
fn claim_by(
    path: &Path,
    mut lock: impl FnMut() -> nix::Result<()>,
    conflict: impl FnOnce() -> nix::Result<libc::flock>,
) -> io::Result<()> {
    loop {
        return match lock() {
            Ok(()) => Ok(()),
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN | Errno::EACCES) => Err(io::Error::other(match conflict() {
                Ok(lock) if is(&lock, libc::F_RDLCK) => {
                    "another process holds a read lock on it (see lslocks); end that process"
                }
                _ => "another process writes it; is a second udpd running?",
            })),
            Err(error) => {
                warn_once(path, error);
                Ok(())
            }
        };
    }
}

/// Whether a lock of any kind is held on the file; false if that cannot be found out.
pub(super) fn is_locked(file: &File) -> bool {
    let of_any_kind = conflict(file).is_ok_and(|lock| !is(&lock, libc::F_UNLCK));
    // Released when the caller closes the file.
    of_any_kind || matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// The lock that conflicts with one for writing; an `F_UNLCK` when there is none.
fn conflict(file: impl AsFd) -> nix::Result<libc::flock> {
    let mut lock = whole_file();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map(|_| lock)
}

fn whole_file() -> libc::flock {
    // The constants are small; the types of the fields are not the same on every machine.
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

fn is(lock: &libc::flock, kind: libc::c_int) -> bool {
    libc::c_int::from(lock.l_type) == kind
}

fn warn_once(path: &Path, error: Errno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn!(
            "cannot lock {}: {error}; udpd writes files there without locks and cannot notice a second udpd on the \
             same file: give each its own file",
            path.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("log");
        std::fs::write(&path, "").expect("written");
        (directory, path)
    }

    fn open(path: &Path) -> File {
        File::options().read(true).append(true).open(path).expect("opened")
    }

    #[test]
    fn a_second_writer_is_refused_also_within_the_process_and_until_the_first_has_closed_it() {
        let (_directory, path) = file();
        let (first, second) = (open(&path), open(&path));
        claim(&first, &path).expect("no other writer");
        let also_first = first.try_clone().expect("cloned");
        drop(first);
        let error = claim(&second, &path).expect_err("another writer").to_string();
        assert!(error.contains("a second udpd"), "{error}");
        assert!(is_locked(&second));
        drop(also_first);
        assert!(!is_locked(&second));
        claim(&second, &path).expect("the first writer has closed it");
    }

    #[test]
    fn a_reader_that_locks_with_flock_keeps_no_writer_out() {
        let (_directory, path) = file();
        let (reader, writer) = (open(&path), open(&path));
        reader.lock_shared().expect("locked");
        claim(&writer, &path).expect("a reader is no writer");
        assert!(is_locked(&open(&path)), "by either of them");
    }

    #[test]
    fn a_lock_for_reading_that_does_conflict_is_called_that() {
        let (_directory, path) = file();
        let reader = open(&path);
        let shared = libc::flock { l_type: libc::F_RDLCK as _, ..whole_file() };
        fcntl(&reader, FcntlArg::F_OFD_SETLK(&shared)).expect("locked");
        let error = claim(&open(&path), &path).expect_err("it conflicts").to_string();
        assert!(error.contains("read lock"), "{error}");
    }

    #[test]
    fn a_file_system_without_locks_is_written_all_the_same_and_an_interrupted_call_is_made_again() {
        let path = Path::new("/nowhere/log");
        for error in [Errno::ENOLCK, Errno::EOPNOTSUPP, Errno::EINVAL, Errno::EIO, Errno::ENOSYS] {
            claim_by(path, || Err(error), || unreachable!("there is no conflict")).expect("written");
        }
        let mut outcomes = [Err(Errno::EINTR), Err(Errno::EINTR), Ok(())].into_iter();
        claim_by(path, || outcomes.next().expect("no more calls than that"), || unreachable!()).expect("at last");
        assert!(outcomes.next().is_none());
    }
}
