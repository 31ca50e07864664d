//! One open file: opened without harm to what is there, written, cut back, and recognized.
//!
//! A file is only ever appended to, never overwritten and never reached through a symbolic link at its last step. One
//! process writes it at a time. A record that a crash left unfinished is set aside before anything is appended.
//!
//! A file with several names (hard links) is refused: what is appended by one name appears under the others, which may
//! be a configuration, or yesterday's backup. It is not moved out of the way either, because the names may be intended.
//! Finished files may have as many names as a backup by `cp -l` gives them: they are not opened any more, and removing
//! one name takes nothing from the others.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, access};

use super::lock;
use super::repair::{check_format, set_torn_aside};
use udpd_base::format::Boundary;
use udpd_base::seams::disk;
use udpd_base::sink::outbox::OutboxDestination;

/// How much free space a broken file needs before it is written again.
const PROBE_BYTES: i64 = 1 << 20;

/// A file that is open for appending.
#[derive(Debug, Clone)]
pub(super) struct LogHandle(Arc<File>);

impl OutboxDestination for LogHandle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        disk::append(&self.0, bytes)
    }

    fn take_back(&mut self, bytes: usize) -> io::Result<()> {
        let length = self.0.metadata()?.len();
        disk::set_len(&self.0, length.saturating_sub(bytes as u64))
    }
}

impl LogHandle {
    /// Opens a file for appending, with its directories, and sets aside a record that a crash left without an end.
    pub(super) fn open(path: &Path, boundary: Boundary) -> io::Result<Self> {
        make_directory(directory_of(path))?;
        let file = append_to(path)?;
        // Before the repair: while another process writes the file, its last record may be unfinished without being
        // torn.
        lock::claim(&file, path)?;
        set_torn_aside(&file, path, boundary)?;
        Ok(Self(Arc::new(file)))
    }

    /// Opens a file again that was closed with this inode and length. Returns true if it is unchanged; otherwise opens
    /// it like any other.
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

    /// Checks what would prevent opening the file, while another sink writes it. It creates directories only.
    pub(super) fn check_beside(path: &Path, boundary: Boundary) -> io::Result<()> {
        make_directory(directory_of(path))?;
        match path.symlink_metadata() {
            Ok(_) => check_format(&append_to(path)?, boundary),
            // The file that the other sink writes has another name by now, or none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => try_directory(directory_of(path)),
            Err(error) => Err(error),
        }
    }

    /// Checks whether the disk takes bytes again, because a full disk still opens files: reserves space, which no
    /// reader can see, and frees it. A file system that cannot reserve fails at the next write instead.
    pub(super) fn probe_space(&self) -> io::Result<()> {
        let length = self.length()?;
        let offset = i64::try_from(length).map_err(io::Error::other)?;
        // The limit of the process applies to writing, not to reserving.
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit < length + PROBE_BYTES.unsigned_abs()) {
            return Err(Errno::EFBIG.into());
        }
        match fallocate(&*self.0, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, PROBE_BYTES) {
            Ok(()) => disk::set_len(&self.0, length),
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
        disk::append_all(&self.0, bytes).inspect_err(|_| {
            let _ = disk::set_len(&self.0, before);
        })
    }

    pub(super) fn cut_to(&self, length: u64) -> io::Result<()> {
        if self.length()? > length { disk::set_len(&self.0, length) } else { Ok(()) }
    }

    /// Syncs the file and gives its cache back to the kernel: the next writes use pages that were just in use, which
    /// are cheaper than fresh ones, and what other programs have cached stays.
    pub(super) fn sync(&self) -> io::Result<()> {
        disk::sync_data(&self.0)?;
        // Advice: where it is not taken nothing is wrong.
        let _ = posix_fadvise(&*self.0, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// How many names (hard links) it has: 0 after a removal.
    pub(super) fn names(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.nlink())
    }

    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        self.0.metadata()
    }

    /// For an inotify watch by `/proc/self/fd`.
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

/// Opens or creates a regular file with one name, to append to it. A symbolic link as the last part of the path is
/// refused; a pipe or a device does not block.
pub(super) fn append_to(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let options = OpenOptions::new().read(true).append(true).create(true).mode(0o640).custom_flags(flags).clone();
    let file = disk::open(path, &options)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.nlink() > 1 {
        return Err(io::Error::other(format!(
            "it has {} names (hard links), and every record would appear under all of them; move it away (mv), or \
             find the others (find / -xdev -samefile FILE) and remove them",
            metadata.nlink()
        )));
    }
    Ok(file)
}

/// Opens a regular file that exists, to read it and, where that is allowed, to cut it.
pub(super) fn open_there(path: &Path) -> io::Result<File> {
    let open = |append| {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        disk::open(path, OpenOptions::new().read(true).append(append).custom_flags(flags))
    };
    let file = match open(true) {
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied) => open(false)?,
        opened => opened?,
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Creates a directory and those above it.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Checks what would prevent creating files there. A sandbox may deny what the rights of a directory grant, so this
/// creates a file without a name. A disk that is full or cannot do that is no error here.
pub(super) fn try_directory(directory: &Path) -> io::Result<()> {
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let nameless = OpenOptions::new().write(true).mode(0o600).custom_flags(OFlag::O_TMPFILE.bits()).open(directory);
    nameless.map(drop).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    })
}

/// Renames a file to the first free one of `names`; it never overwrites. `announce` is called with the name before the
/// rename.
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
        match disk::rename_to_new(path, &name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // A file system that cannot refuse to replace: a link can be made only where nothing is.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => match disk::hard_link(path, &name) {
                Ok(()) => return disk::remove_file(path).map(|()| name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "every name for the finished file exists already"))
}

/// The cure for the usual causes.
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
        // The second case is the sandbox: its rule is for the directory that existed at the start.
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
        assert!(LogHandle::open(&link, Boundary::Newline).is_err());
        assert!(!target.exists(), "nothing is made behind a link");
        assert!(LogHandle::open(directory.path(), Boundary::Newline).is_err());
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let error = LogHandle::open(&pipe, Boundary::Newline).expect_err("a pipe is no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_file_with_several_names_is_refused_and_left_as_it_is() {
        let directory = directory();
        let (path, other) = (directory.path().join("log"), directory.path().join("configuration"));
        fs::write(&other, "precious, and without an end").expect("written");
        fs::hard_link(&other, &path).expect("linked");
        let error = LogHandle::open(&path, Boundary::Newline).expect_err("it is another's, too").to_string();
        assert!(error.contains("2 names") && error.contains("mv"), "{error}");
        assert_eq!(fs::read(&other).expect("there"), b"precious, and without an end");
        fs::remove_file(&other).expect("removed");
        LogHandle::open(&path, Boundary::Newline).expect("it has one name now");
    }

    #[test]
    fn a_file_knows_whether_its_path_still_leads_to_it() {
        let directory = directory();
        let path = directory.path().join("log");
        let handle = LogHandle::open(&path, Boundary::Newline).expect("opened");
        assert!(handle.is_at(&path));
        fs::rename(&path, directory.path().join("moved")).expect("moved");
        assert!(!handle.is_at(&path));
        fs::write(&path, b"another").expect("written");
        assert!(!handle.is_at(&path));
    }
}
