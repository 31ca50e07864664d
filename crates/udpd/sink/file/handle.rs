//! One open file: how it is opened without harm to what is there, written, cut back, and recognized.
//!
//! A file is only ever appended to, never overwritten and never reached through a symbolic link at its last step. One process
//! writes it at a time. What a crash left without an end is set aside before anything is appended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, FallocateFlags, Flock, FlockArg, OFlag, PosixFadviseAdvice, RenameFlags, fallocate, posix_fadvise,
    renameat2,
};

use crate::sink::boundary::Boundary;
use crate::sink::outbox::Destination;

/// How much room there must be before a broken file is written again.
const PROBE_BYTES: i64 = 1 << 20;

/// How far back the end of an existing file of lines is searched for its last whole line, and how much of a file of blocks is
/// read at once. No record is as long.
const REPAIR_BYTES: u64 = 1 << 20;

/// How every capture begins: the type of its first block, the same in either byte order.
const CAPTURE_BEGINS: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A file that is open for appending.
#[derive(Debug, Clone)]
pub(super) struct Handle(Arc<Flock<File>>);

impl Destination for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&**self.0).write(bytes)
    }

    fn take_back(&mut self, bytes: usize) -> io::Result<()> {
        let length = self.0.metadata()?.len();
        self.0.set_len(length.saturating_sub(bytes as u64))
    }
}

impl Handle {
    /// Opens a file for appending, with its directories, and sets aside a record that a crash left without an end.
    pub(super) fn open(path: &Path, boundary: Boundary) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
        }
        // Before the repair: an unfinished record of a file that somebody writes is no torn one.
        let file =
            Flock::lock(append_to(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
                Errno::EWOULDBLOCK => io::Error::other("another process writes it; is a second udpd running?"),
                error => error.into(),
            })?;
        set_torn_aside(&file, path, boundary)?;
        Ok(Self(Arc::new(file)))
    }

    /// A full disk still opens files. Whether it takes bytes again is tried by reserving room, which no reader can see, and
    /// giving it back. A file system that cannot reserve has its say at the next write.
    pub(super) fn probe_room(&self) -> io::Result<()> {
        let length = self.length()?;
        let offset = i64::try_from(length).map_err(io::Error::other)?;
        match fallocate(&**self.0, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, PROBE_BYTES) {
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
        (&**self.0).write_all(bytes).inspect_err(|_| {
            let _ = self.0.set_len(before);
        })
    }

    /// Cuts off what is beyond this length.
    pub(super) fn cut_to(&self, length: u64) -> io::Result<()> {
        if self.length()? > length { self.0.set_len(length) } else { Ok(()) }
    }

    /// Forces what is written to the disk, and lets the kernel have the memory back: what comes next is written to pages that
    /// were just in use, which are cheaper than fresh ones, and what other programs have cached stays.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_data()?;
        // Advice: where it is not taken nothing is wrong.
        let _ = posix_fadvise(&**self.0, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    /// How long the file is.
    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
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

/// Renames a file to the first of `names` that nobody has; nothing is ever overwritten.
pub(super) fn set_aside(path: &Path, names: impl Iterator<Item = PathBuf>) -> io::Result<PathBuf> {
    for name in names {
        match renameat2(AT_FDCWD, path, AT_FDCWD, &name, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(Errno::EEXIST) => {}
            // A file system that cannot refuse to replace: a link can be made only where nothing is.
            Err(Errno::EINVAL) => match fs::hard_link(path, &name) {
                Ok(()) => return fs::remove_file(path).map(|()| name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "every name for the finished file is taken"))
}

/// What helps against the usual causes.
pub(super) fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room on that file system",
        io::ErrorKind::ReadOnlyFilesystem => "; mount that file system read-write",
        io::ErrorKind::NotFound => "; the directory was removed: create it again",
        io::ErrorKind::PermissionDenied => "; let the user of udpd write there",
        _ => "",
    }
}

/// Opens or makes a regular file; a symbolic link in the last place is refused, a pipe or a device does not block.
fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Refuses to go on with a file of another format, which would be taken for one with a torn end.
fn check_format(mut file: &File, boundary: Boundary) -> io::Result<()> {
    let mut beginning = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(CAPTURE_BEGINS.len() as u64).read_to_end(&mut beginning)?;
    let is_capture = beginning == CAPTURE_BEGINS;
    match boundary {
        Boundary::Newline if is_capture => Err(io::Error::other("it is a capture: lines are not appended to one")),
        Boundary::Block if !is_capture && !CAPTURE_BEGINS.starts_with(&beginning) => {
            Err(io::Error::other("it is no capture: none is appended to it"))
        }
        _ => Ok(()),
    }
}

/// Moves what follows the last whole record into a file beside this one.
fn set_torn_aside(file: &File, path: &Path, boundary: Boundary) -> io::Result<()> {
    check_format(file, boundary)?;
    let torn = match boundary {
        Boundary::Newline => torn_line(file)?,
        Boundary::Block | Boundary::Length => torn_record(file, boundary)?,
    };
    if torn.is_empty() {
        return Ok(());
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(".torn");
    append_to(Path::new(&aside))?.write_all(&torn)?;
    file.set_len(file.metadata()?.len() - torn.len() as u64)?;
    log::warn!(
        "{}: its last {} bytes are a record that an earlier stop left unfinished; moved to {}",
        path.display(),
        torn.len(),
        Path::new(&aside).display()
    );
    Ok(())
}

/// What follows the last line end. A file whose last mebibyte has no line end at all is not one of ours and is refused.
fn torn_line(mut file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let looked_at = length.min(REPAIR_BYTES);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(length - looked_at))?;
    file.take(looked_at).read_to_end(&mut tail)?;
    let whole = Boundary::Newline.whole(&tail).bytes;
    if whole == 0 && length > looked_at {
        return Err(io::Error::other("its last mebibyte has no line end: it is not a file of lines"));
    }
    Ok(tail.split_off(whole))
}

/// What follows the last whole record, found by walking from the first: a payload may hold anything, also what looks like
/// the end of a record.
fn torn_record(mut file: &File, boundary: Boundary) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0))?;
    let mut chunk = Vec::new();
    loop {
        let begun = chunk.len() as u64;
        file.take(REPAIR_BYTES - begun).read_to_end(&mut chunk)?;
        let whole = boundary.whole(&chunk).bytes;
        let is_last = (chunk.len() as u64) < REPAIR_BYTES;
        if whole == 0 && !is_last {
            return Err(io::Error::other("it holds something else than what would be appended"));
        }
        chunk.drain(..whole);
        if is_last {
            return Ok(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn a_torn_line_is_set_aside_and_whole_lines_stay() {
        let directory = directory();
        let path = directory.path().join("deep/er/log");
        drop(Handle::open(&path, Boundary::Newline).expect("made with its directories"));
        fs::write(&path, b"whole\ntorn").expect("written");
        Handle::open(&path, Boundary::Newline).expect("repaired");
        assert_eq!(fs::read(&path).expect("readable"), b"whole\n");
        assert_eq!(fs::read(path.with_extension("torn")).expect("set aside"), b"torn");
    }

    #[test]
    fn a_torn_record_is_found_from_the_front_also_in_a_long_file() {
        let directory = directory();
        let path = directory.path().join("records");
        // The payload looks like a record with an end; only the walk from the front is not deceived.
        let record = [&1000_u32.to_be_bytes()[..], &[0; 1000]].concat();
        let whole = record.repeat(3000);
        fs::write(&path, [&whole[..], &record[..504]].concat()).expect("written");
        drop(Handle::open(&path, Boundary::Length).expect("repaired"));
        assert_eq!(fs::read(&path).expect("readable"), whole);
        assert_eq!(fs::read(directory.path().join("records.torn")).expect("set aside"), record[..504]);
        fs::write(&path, vec![0xff; 2 << 20]).expect("written");
        let error = Handle::open(&path, Boundary::Length).expect_err("something else");
        assert!(error.to_string().contains("something else"), "{error}");
        assert_eq!(fs::metadata(&path).expect("there").len(), 2 << 20, "left as it is");
    }

    #[test]
    fn a_file_of_another_format_is_refused_and_left_as_it_is() {
        let directory = directory();
        let path = directory.path().join("file");
        for (content, boundary, words) in [
            (&b"text, and no line end"[..], Boundary::Block, "no capture"),
            (&[&CAPTURE_BEGINS[..], b"and so on\ntorn"].concat(), Boundary::Newline, "a capture"),
        ] {
            fs::write(&path, content).expect("written");
            let error = Handle::open(&path, boundary).expect_err("another format").to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(fs::read(&path).expect("there"), content);
        }
        fs::write(&path, &CAPTURE_BEGINS[..2]).expect("written");
        Handle::open(&path, Boundary::Block).expect("a capture that was torn at once");
        assert_eq!(fs::metadata(&path).expect("there").len(), 0);
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
