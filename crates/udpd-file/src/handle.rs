//! One open file: how it is opened without harm to what is there, written, cut back, and recognized.
//!
//! A file is only ever appended to, never overwritten and never reached through a symbolic link at its last step. One
//! process writes it at a time. What a crash left without an end is set aside before anything is appended.
//!
//! A file with several names (hard links) is refused: what is appended by one name appears under the others, which may
//! be a configuration, or yesterday's backup. It is not moved out of the way either, because whoever gave it its names
//! knows why. Finished files may have as many names as a backup by `cp -l` gives them: they are not opened any more,
//! and removing one name takes nothing from the others.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::lock;
use super::regular::append_to;
use super::repair::{check_format, set_torn_aside};
use udpd_base::format::boundary::Boundary;
use udpd_base::sink::outbox::Destination;

/// How much room there must be before a broken file is written again.
const PROBE_BYTES: i64 = 1 << 20;

/// A file that is open for appending.
#[derive(Debug, Clone)]
pub(super) struct Handle(Arc<File>);

impl Destination for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn take_back(&mut self, bytes: usize) -> io::Result<()> {
        let length = self.0.metadata()?.len();
        self.0.set_len(length.saturating_sub(bytes as u64))
    }
}

impl Handle {
    /// Opens a file for appending, with its directories, and sets aside a record that a crash left without an end.
    pub(super) fn open(path: &Path, boundary: Boundary) -> io::Result<Self> {
        make_directory(directory_of(path))?;
        let file = append_to(path)?;
        // Before the repair: an unfinished record of a file that somebody writes is no torn one.
        lock::claim(&file, path)?;
        set_torn_aside(&file, path, boundary)?;
        Ok(Self(Arc::new(file)))
    }

    /// Opens again a file that was closed with this number and length. Found as it was left it is gone on with as it
    /// is, and true is said; otherwise it is opened like any other.
    pub(super) fn open_again(path: &Path, boundary: Boundary, left: (u64, u64)) -> io::Result<(Self, bool)> {
        match append_to(path) {
            Ok(file) => {
                let metadata = file.metadata()?;
                if (metadata.ino(), metadata.len()) == left {
                    lock::claim(&file, path)?;
                    return Ok((Self(Arc::new(file)), true));
                }
            }
            // Its directory may be gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok((Self::open(path, boundary)?, false))
    }

    /// What would keep the file from being opened, while another sink writes it. Only directories are made.
    pub(super) fn try_beside(path: &Path, boundary: Boundary) -> io::Result<()> {
        make_directory(directory_of(path))?;
        match path.symlink_metadata() {
            Ok(_) => check_format(&append_to(path)?, boundary),
            // The one that is written has another name by now, or none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => try_directory(directory_of(path)),
            Err(error) => Err(error),
        }
    }

    /// A full disk still opens files. Whether it takes bytes again is tried by reserving room, which no reader can see,
    /// and giving it back. A file system that cannot reserve has its say at the next write.
    pub(super) fn probe_room(&self) -> io::Result<()> {
        let length = self.length()?;
        let offset = i64::try_from(length).map_err(io::Error::other)?;
        // Reserving is not held to the limit of the process; writing is.
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit < length + PROBE_BYTES.unsigned_abs()) {
            return Err(Errno::EFBIG.into());
        }
        match fallocate(&*self.0, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, PROBE_BYTES) {
            Ok(()) => self.0.set_len(length),
            Err(Errno::EOPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends all of `bytes`, or nothing.
    pub(super) fn append_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let before = self.length()?;
        (&*self.0).write_all(bytes).inspect_err(|_| {
            let _ = self.0.set_len(before);
        })
    }

    /// Cuts off what is beyond this length.
    pub(super) fn cut_to(&self, length: u64) -> io::Result<()> {
        if self.length()? > length { self.0.set_len(length) } else { Ok(()) }
    }

    /// Forces what is written to the disk, and lets the kernel have the memory back: what comes next is written to
    /// pages that were just in use, which are cheaper than fresh ones, and what other programs have cached stays.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_data()?;
        // Advice: where it is not taken nothing is wrong.
        let _ = posix_fadvise(&*self.0, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// How many names it has: 0 when it was removed and only this process still has it.
    pub(super) fn names(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.nlink())
    }

    /// The number of the file on its file system.
    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        self.0.metadata()
    }

    /// For watching it by what the process calls it.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Whether this is the file that `path` leads to.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (self.0.metadata(), path.symlink_metadata()) {
            (Ok(own), Ok(found)) => identity(own) == identity(found),
            _ => false,
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// With those above it.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// What would keep files from being made there. A sandbox denies what the rights of a directory grant, so one is made
/// that never has a name. A disk that is full or cannot do that is no reason not to begin.
pub(super) fn try_directory(directory: &Path) -> io::Result<()> {
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let nameless = OpenOptions::new().write(true).mode(0o600).custom_flags(OFlag::O_TMPFILE.bits()).open(directory);
    nameless.map(drop).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    })
}

/// Renames a file to the first of `names` that nobody has; nothing is ever overwritten. `announce` hears of the name
/// before the file has it.
pub(super) fn set_aside(
    path: &Path,
    names: impl Iterator<Item = PathBuf>,
    mut announce: impl FnMut(&Path),
) -> io::Result<PathBuf> {
    for name in names {
        if name.symlink_metadata().is_ok() {
            continue;
        }
        announce(&name);
        match renameat_with(CWD, path, CWD, &name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(rustix::io::Errno::EXIST) => {}
            // A file system that cannot refuse to replace: a link can be made only where nothing is.
            Err(rustix::io::Errno::INVAL) => match fs::hard_link(path, &name) {
                Ok(()) => return fs::remove_file(path).map(|()| name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "every name for the finished file exists already"))
}

/// What helps against the usual causes.
pub(super) fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => {
            return "; raise the limit on open files (ulimit -n, LimitNOFILE= in the unit file), or lower open_files";
        }
        Some(Errno::ENFILE) => return "; this host has as many files open as it may: raise it (sysctl fs.file-max)",
        _ => {}
    }
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space on that file system",
        io::ErrorKind::ReadOnlyFilesystem => "; mount that file system read-write",
        io::ErrorKind::NotFound => "; the directory was removed: create it again",
        // The second is the sandbox: its rule is for the directory that was there at the start.
        io::ErrorKind::PermissionDenied => {
            "; let the user of udpd write there, or, where the directory was removed meanwhile, restart udpd"
        }
        io::ErrorKind::FileTooLarge => {
            "; it has reached the limit on file sizes: raise it (ulimit -f, LimitFSIZE= in the unit file), or lower \
             rotate.bytes"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn a_symbolic_link_a_directory_and_a_pipe_are_refused() {
        let directory = directory();
        let target = directory.path().join("target");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(Handle::open(&link, Boundary::Newline).is_err());
        assert!(!target.exists(), "nothing is made behind a link");
        assert!(Handle::open(directory.path(), Boundary::Newline).is_err());
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let error = Handle::open(&pipe, Boundary::Newline).expect_err("a pipe is no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_file_with_several_names_is_refused_and_left_as_it_is() {
        let directory = directory();
        let (path, other) = (directory.path().join("log"), directory.path().join("configuration"));
        fs::write(&other, "precious, and without an end").expect("written");
        fs::hard_link(&other, &path).expect("linked");
        let error = Handle::open(&path, Boundary::Newline).expect_err("it is another's, too").to_string();
        assert!(error.contains("2 names") && error.contains("mv"), "{error}");
        assert_eq!(fs::read(&other).expect("there"), b"precious, and without an end");
        fs::remove_file(&other).expect("removed");
        Handle::open(&path, Boundary::Newline).expect("it has one name now");
    }

    #[test]
    fn a_file_knows_whether_its_path_still_leads_to_it() {
        let directory = directory();
        let path = directory.path().join("log");
        let handle = Handle::open(&path, Boundary::Newline).expect("opened");
        assert!(handle.is_at(&path));
        fs::rename(&path, directory.path().join("moved")).expect("moved");
        assert!(!handle.is_at(&path));
        fs::write(&path, b"another").expect("written");
        assert!(!handle.is_at(&path));
    }
}
