//! A folder and files in it that only root and this process can have written.
//!
//! root reads here what it then writes to the kernel. So each step of the path is opened from the descriptor of the one
//! before, and none through a link: a user who may write to a directory on the way could otherwise make root read or
//! overwrite a file of the choice of that user.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// The file of an interface with a thousand queues takes a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A new file has this ending until it is whole.
const UNFINISHED: &str = ".new";

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder. With `create` missing folders are made; without it the answer is `None` where it is missing.
    pub(super) fn open(path: &Path, create: bool) -> Result<Option<Self>, JournalError> {
        let steps = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fail = |at: &Path, error: Errno| match error {
            Errno::ELOOP | Errno::ENOTDIR => {
                JournalError::Unusable(format!("{} is not a directory itself but a link or a file", at.display()))
            }
            error => JournalError::io(format!("open {}", at.display()), error),
        };
        let start = if path.is_absolute() { Path::new("/") } else { Path::new(".") };
        let mut walked = start.to_owned();
        let mut descriptor = openat(AT_FDCWD, start, steps, Mode::empty()).map_err(|error| fail(start, error))?;
        for component in path.components() {
            let name = match component {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
                Component::ParentDir => Path::new(".."),
                Component::Normal(name) => Path::new(name),
            };
            walked.push(name);
            let mut opened = openat(&descriptor, name, steps, Mode::empty());
            if matches!(opened, Err(Errno::ENOENT)) {
                if !create {
                    return Ok(None);
                }
                match mkdirat(&descriptor, name, Mode::S_IRWXU) {
                    Ok(()) | Err(Errno::EEXIST) => opened = openat(&descriptor, name, steps, Mode::empty()),
                    Err(error) => return Err(JournalError::io(format!("make {}", walked.display()), error)),
                }
            }
            descriptor = opened.map_err(|error| fail(&walked, error))?;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let descriptor = openat(&descriptor, ".", flags, Mode::empty()).map_err(|error| fail(path, error))?;
        let folder = Self { descriptor, path: path.to_owned() };
        let status = fstat(&folder.descriptor).map_err(|error| JournalError::io(folder.reading(""), error))?;
        folder.check_owner("", &status)?;
        Ok(Some(folder))
    }

    /// The path of a file in it, for a message.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.path.clone() } else { self.path.join(name) }
    }

    fn reading(&self, name: &str) -> String {
        format!("read {}", self.path(name).display())
    }

    /// Only root and this process may be able to write it.
    fn check_owner(&self, name: &str, status: &FileStat) -> Result<(), JournalError> {
        let path = self.path(name);
        let ours = geteuid().as_raw();
        if status.st_uid != 0 && status.st_uid != ours {
            let what = format!("{} belongs to user {} and not to root", path.display(), status.st_uid);
            return Err(JournalError::Unusable(what));
        }
        let others = (Mode::S_IWGRP | Mode::S_IWOTH).bits();
        if status.st_mode & others != 0 {
            let mode = status.st_mode & 0o7777;
            let what = format!("{} is writable by others than its owner (mode {mode:o})", path.display());
            return Err(JournalError::Unusable(what));
        }
        Ok(())
    }

    /// The names of what is in it, in order.
    pub(super) fn names(&self) -> Result<Vec<String>, JournalError> {
        let fail = |error| JournalError::io(self.reading(""), error);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut entries = Dir::openat(&self.descriptor, ".", flags, Mode::empty()).map_err(fail)?;
        let mut names = Vec::new();
        for entry in entries.iter() {
            names.push(entry.map_err(fail)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn open_file(&self, name: &str, flags: OFlag) -> Result<File, JournalError> {
        // A pipe in its place must not make us wait for a writer.
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let path = self.path(name);
        let path = path.display();
        let file =
            openat(&self.descriptor, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|error| match error {
                Errno::ELOOP => JournalError::Unusable(format!("{path} is a symbolic link")),
                error => JournalError::io(format!("open {path}"), error),
            })?;
        let status = fstat(&file).map_err(|error| JournalError::io(self.reading(name), error))?;
        if SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(JournalError::Unusable(format!("{path} is not a regular file")));
        }
        if status.st_nlink != 1 {
            return Err(JournalError::Unusable(format!(
                "{path} has {} names, and one of them is not ours",
                status.st_nlink
            )));
        }
        self.check_owner(name, &status)?;
        Ok(File::from(file))
    }

    pub(super) fn read(&self, name: &str) -> Result<String, JournalError> {
        let mut text = String::new();
        let file = self.open_file(name, OFlag::O_RDONLY)?;
        match file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text) {
            Ok(_) if text.len() as u64 <= FILE_BYTES_MAX => Ok(text),
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                Err(JournalError::Io { doing: self.reading(name), cause: error })
            }
            Ok(_) | Err(_) => Err(JournalError::damaged(&self.path(name))),
        }
    }

    /// Replaces a file: at any moment there is the whole old one or the whole new one.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), JournalError> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let beside = format!(".{}-{}{UNFINISHED}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let fail = |cause| JournalError::Io { doing: format!("write {}", self.path(name).display()), cause };
        let mut file = self.open_file(&beside, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        let outcome = write_all(&mut file, text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| {
            #[cfg(test)]
            crate::testing::faults::before()?;
            renameat(&self.descriptor, beside.as_str(), &self.descriptor, name)?;
            self.sync()
        });
        outcome.map_err(|cause| {
            let _ = unlinkat(&self.descriptor, beside.as_str(), UnlinkatFlags::NoRemoveDir);
            fail(cause)
        })
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), JournalError> {
        #[cfg(test)]
        crate::testing::faults::before_removal();
        let removed = unlinkat(&self.descriptor, name, UnlinkatFlags::NoRemoveDir).map_err(io::Error::from);
        let fail = |cause| JournalError::Io { doing: format!("remove {}", self.path(name).display()), cause };
        removed.and_then(|()| self.sync()).map_err(fail)
    }

    /// Removes unfinished files of processes that were killed while they wrote. Only under the lock.
    pub(super) fn sweep(&self) -> Result<(), JournalError> {
        for name in self.names()?.iter().filter(|name| name.starts_with('.') && name.ends_with(UNFINISHED)) {
            self.remove(name)?;
        }
        Ok(())
    }

    pub(super) fn lock_file(&self, name: &str) -> Result<File, JournalError> {
        self.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::fsync(&self.descriptor)?)
    }
}

fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    crate::testing::faults::cut(file, bytes)?;
    file.write_all(bytes)
}

/// Why saved settings cannot be written, read or removed. A file that is unusable needs a person to look at it; any
/// other error may pass.
#[derive(Debug)]
#[non_exhaustive]
pub enum JournalError {
    /// A file or the folder cannot be read or written.
    Io {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        cause: io::Error,
    },
    /// A file or a folder is not used: it is damaged, or another user may have put it there.
    Unusable(String),
    /// Another process holds the lock.
    Busy(String),
}

impl JournalError {
    pub(super) fn io(doing: String, error: Errno) -> Self {
        Self::Io { doing, cause: error.into() }
    }

    pub(super) fn damaged(path: &Path) -> Self {
        Self::Unusable(format!("{} is damaged: nothing is restored from it", path.display()))
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, cause } => write!(formatter, "cannot {doing}: {cause}"),
            Self::Unusable(what) | Self::Busy(what) => formatter.write_str(what),
        }
    }
}

impl std::error::Error for JournalError {}
