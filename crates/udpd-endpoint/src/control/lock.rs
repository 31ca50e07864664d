//! A lock for the moments in which a daemon makes its control socket, which only its own user can hold.
//!
//! A lock on the directory would not do: every user that may read a directory may lock it, and so keep the daemon from
//! starting. So the lock is on a file of its own beside the socket, which only the daemon's user may open. It is
//! removed again while it is held, because one that root left behind would keep the service's user out. Hence a process
//! that gets the lock looks whether the file is still the one at the path; if it is not, another process has been here,
//! and the lock is worth nothing.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use udpd_base::seams::clock;

/// A process that may open it can hold it.
const MODE: u32 = 0o600;

/// How often, and how far apart, to try. Its rightful holders keep it while they ask a socket whether it is served.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// The lock, held. Its file goes with it.
#[derive(Debug)]
pub(super) struct StartLock {
    file: File,
    path: PathBuf,
}

impl StartLock {
    /// Where the lock of a socket is.
    pub(super) fn path_for(socket: &Path) -> PathBuf {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        path.into()
    }

    /// Takes it, or gives up after two seconds with `WouldBlock`.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let file = open(path)?;
            match file.try_lock() {
                Ok(()) => {
                    let lock = Self { file, path: path.into() };
                    if lock.is_in_place() {
                        return Ok(lock);
                    }
                }
                Err(TryLockError::WouldBlock) => clock::sleep(PAUSE),
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    fn is_in_place(&self) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (self.file.metadata(), self.path.symlink_metadata()) {
            (Ok(own), Ok(found)) => identity(own) == identity(found),
            _ => false,
        }
    }
}

impl Drop for StartLock {
    fn drop(&mut self) {
        if self.is_in_place() {
            // One that stays is locked and removed by the next.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the lock's file, which is empty, and nothing that another user may have put in its place.
fn open(path: &Path) -> io::Result<File> {
    let foreign = || io::Error::new(ErrorKind::AlreadyExists, "the file is not a lock of udpd");
    // Without waiting for the other end of a pipe or a line.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(MODE).custom_flags(flags.bits());
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(number) if number == Errno::ELOOP as i32 => foreign(),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() == 0 && metadata.nlink() <= 1 { Ok(file) } else { Err(foreign()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use std::thread;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = StartLock::path_for(&directory.path().join("control.sock"));
        (directory, path)
    }

    #[test]
    fn only_its_owner_may_open_it_and_it_goes_with_its_holder() {
        let (_directory, path) = place();
        let lock = StartLock::take(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(lock);
        assert!(!path.exists());
    }

    #[test]
    fn it_is_held_by_one_at_a_time_however_many_try() {
        let (_directory, path) = place();
        let inside = std::sync::atomic::AtomicU32::new(0);
        let order = std::sync::atomic::Ordering::SeqCst;
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = StartLock::take(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, order), 0);
                        inside.fetch_sub(1, order);
                        drop(lock);
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn one_that_a_crash_has_left_is_taken() {
        let (_directory, path) = place();
        fs::write(&path, "").unwrap();
        drop(StartLock::take(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_on_a_file_that_was_removed_meanwhile_counts_for_nothing() {
        let (_directory, path) = place();
        let first = StartLock::take(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!first.is_in_place());
        let second = StartLock::take(&path).unwrap();
        drop(first);
        assert!(path.exists(), "the first has no file any more and leaves the second's alone");
        drop(second);
    }

    #[test]
    fn what_is_no_lock_is_refused_and_left_as_it_is() {
        let (directory, path) = place();
        let precious = directory.path().join("precious");
        fs::write(&precious, "").unwrap();
        type Make<'a> = (&'a str, &'a dyn Fn());
        let link = || symlink(&precious, &path).unwrap();
        let hard_link = || fs::hard_link(&precious, &path).unwrap();
        let text = || fs::write(&path, "text").unwrap();
        let pipe = || nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let cases: [Make<'_>; 4] = [("link", &link), ("hard link", &hard_link), ("text", &text), ("pipe", &pipe)];
        for (what, make) in cases {
            make();
            let error = StartLock::take(&path).unwrap_err();
            assert!(error.to_string().contains("not a lock of udpd"), "{what}: {error}");
            assert!(path.symlink_metadata().is_ok(), "{what}");
            fs::remove_file(&path).unwrap();
        }
        assert!(precious.exists());
    }
}
