//! Lines in a file.
//!
//! A file is only ever appended to, never overwritten and never reached through a symbolic link at its last step. It is a
//! prefix of whole lines at any moment that a reader can see: a write that took a part of a line is cut back to the line
//! before. While the file cannot be written, each datagram is counted as failed, other sinks do not notice, and the
//! file is tried again four times a second.
//!
//! Forcing data to the disk takes long, so it is done by a thread of its own that only ever sees the file handle.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};

use super::Sink;
use super::outbox::{Destination, Outbox};
use super::sync::Syncer;
use crate::ledger::Tally;
use crate::pool::LaneBatch;

/// How often a file that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// How much room there must be before a broken file is written again.
const PROBE_BYTES: i64 = 1 << 20;

/// How far back the end of an existing file is searched for its last whole line.
const REPAIR_BYTES_MAX: u64 = 1 << 20;

/// Which file the datagrams of which lane go to, for one consumer.
#[derive(Debug)]
pub struct FileSink {
    files: Vec<LogFile>,
    /// The file of each lane, by the lane's index; lanes that do not feed this consumer have none.
    file_of_lane: Vec<Option<usize>>,
}

impl FileSink {
    /// Opens the file of each lane; `path_of_lane` is indexed like the lanes. Lanes with the same path share a file.
    pub fn open(path_of_lane: &[Option<PathBuf>], sync: Option<Duration>) -> io::Result<Self> {
        let mut files: Vec<LogFile> = Vec::new();
        let mut file_of_lane = Vec::with_capacity(path_of_lane.len());
        for path in path_of_lane {
            let Some(path) = path else {
                file_of_lane.push(None);
                continue;
            };
            let known = files.iter().position(|file| file.path == *path);
            file_of_lane.push(Some(match known {
                Some(index) => index,
                None => {
                    files.push(LogFile::open(path.clone(), sync)?);
                    files.len() - 1
                }
            }));
        }
        Ok(Self { files, file_of_lane })
    }
}

impl Sink for FileSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        let index = self.file_of_lane[batch.lane].expect("the pipeline gave every lane of this consumer a file");
        let file = &mut self.files[index];
        for datagram in batch.datagrams.datagrams() {
            file.outbox.push(batch.listener, datagram.payload(), datagram.length());
            if file.outbox.is_full() {
                file.flush(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
    }

    fn due(&self) -> Option<Instant> {
        self.files.iter().filter_map(|file| file.sync_due).min()
    }

    fn when_due(&mut self, _tallies: &mut [Tally]) {
        let now = Instant::now();
        self.files.iter_mut().for_each(|file| file.sync_if_due(now));
    }

    fn finish(&mut self, tallies: &mut [Tally]) {
        self.files.iter_mut().for_each(|file| file.flush(tallies));
        self.files.drain(..).for_each(LogFile::close);
    }
}

/// One open file.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    outbox: Outbox,
    state: State,
    /// How long a written line may stay unsynced, and who sees to it.
    sync: Option<(Duration, Syncer)>,
    /// When the oldest unsynced line must be on the disk.
    sync_due: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Open(Handle),
    /// Not before this moment is it tried again.
    Broken {
        retry_at: Instant,
    },
}

#[derive(Debug)]
struct Handle(Arc<Flock<File>>);

impl Destination for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&**self.0).write(bytes)
    }

    fn take_back(&mut self, bytes: usize) -> io::Result<()> {
        let length = self.0.metadata()?.len();
        self.0.set_len(length.saturating_sub(bytes as u64))
    }
}

impl LogFile {
    fn open(path: PathBuf, sync: Option<Duration>) -> io::Result<Self> {
        let handle = open_for_append(&path)?;
        let sync = match sync {
            Some(interval) => Some((interval, Syncer::start(&path)?)),
            None => None,
        };
        Ok(Self { path, outbox: Outbox::default(), state: State::Open(handle), sync, sync_due: None })
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        if self.outbox.is_empty() {
            return;
        }
        self.reopen_if_due();
        let State::Open(handle) = &mut self.state else {
            return self.outbox.discard(tallies);
        };
        match self.outbox.write_to(handle, tallies) {
            Ok(()) => self.note_unsynced(),
            Err(error) => self.break_off("write to", &error),
        }
    }

    /// What was just written must be synced within the interval; a clock is read once per write, not per line.
    fn note_unsynced(&mut self) {
        let Some((interval, _)) = &self.sync else { return };
        let now = Instant::now();
        match self.sync_due {
            None => self.sync_due = Some(now + *interval),
            Some(_) => self.sync_if_due(now),
        }
    }

    fn sync_if_due(&mut self, now: Instant) {
        if self.sync_due.is_none_or(|due| due > now) {
            return;
        }
        self.sync_due = None;
        let Some((_, syncer)) = &self.sync else { return };
        if let Some(error) = syncer.take_error() {
            // What the kernel could not write it has forgotten: a handle with a failed sync is not to be trusted again.
            self.break_off("force to the disk", &error);
        } else if let State::Open(handle) = &self.state {
            syncer.request(Arc::clone(&handle.0));
        }
    }

    fn break_off(&mut self, operation: &str, error: &io::Error) {
        log::error!(
            "cannot {operation} {}: {error}; its datagrams are counted as sink_error until it can be written again{}",
            self.path.display(),
            cure(error)
        );
        self.sync_due = None;
        self.state = State::Broken { retry_at: Instant::now() + RETRY };
    }

    fn reopen_if_due(&mut self) {
        let State::Broken { retry_at } = self.state else { return };
        let now = Instant::now();
        if now < retry_at {
            return;
        }
        match open_for_append(&self.path).and_then(probe_room) {
            Ok(handle) => {
                log::info!("{} can be written again", self.path.display());
                self.state = State::Open(handle);
            }
            Err(_) => self.state = State::Broken { retry_at: now + RETRY },
        }
    }

    fn close(self) {
        if let (State::Open(handle), Some((_, syncer))) = (self.state, self.sync) {
            syncer.request(handle.0);
            if let Some(error) = syncer.finish() {
                log::error!(
                    "cannot force {} to the disk: {error}; its last lines may not survive a power loss",
                    self.path.display()
                );
            }
        }
    }
}

/// What helps against the usual causes.
fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room on that file system",
        io::ErrorKind::ReadOnlyFilesystem => "; mount that file system read-write",
        io::ErrorKind::NotFound => "; the directory was removed: create it again",
        io::ErrorKind::PermissionDenied => "; let the user of udpd write there",
        _ => "",
    }
}

/// A full disk still opens files. Whether it takes bytes again is tried by reserving room, which no reader can see, and
/// giving it back. A file system that cannot reserve has its say at the next write.
fn probe_room(handle: Handle) -> io::Result<Handle> {
    let length = handle.0.metadata()?.len();
    let offset = i64::try_from(length).map_err(io::Error::other)?;
    match fallocate(&**handle.0, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, PROBE_BYTES) {
        Ok(()) => handle.0.set_len(length)?,
        Err(Errno::EOPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(handle)
}

/// Opens a file for appending, with its directories, and sets aside a line that a crash left without an end.
fn open_for_append(path: &Path) -> io::Result<Handle> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
    }
    // Before the repair: an unfinished line of a file that somebody writes is no torn one.
    let file = Flock::lock(append_to(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => io::Error::other("another process writes it; is a second udpd running?"),
        error => error.into(),
    })?;
    let torn = torn_tail(&file)?;
    if !torn.is_empty() {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".torn");
        append_to(Path::new(&aside))?.write_all(&torn)?;
        file.set_len(file.metadata()?.len() - torn.len() as u64)?;
        log::warn!(
            "{}: its last {} bytes are a line that an earlier stop left unfinished; moved to {}",
            path.display(),
            torn.len(),
            Path::new(&aside).display()
        );
    }
    Ok(Handle(Arc::new(file)))
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

/// What follows the last line end. A file whose last mebibyte has no line end at all is not one of ours and is refused.
fn torn_tail(mut file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let looked_at = length.min(REPAIR_BYTES_MAX);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(length - looked_at))?;
    file.take(looked_at).read_to_end(&mut tail)?;
    let whole = tail.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    if whole == 0 && length > looked_at {
        return Err(io::Error::other("its last mebibyte has no line end: it is not a file of lines"));
    }
    Ok(tail.split_off(whole))
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
        open_for_append(&path).expect("made with its directories");
        fs::write(&path, b"whole\ntorn").expect("written");
        open_for_append(&path).expect("repaired");
        assert_eq!(fs::read(&path).expect("readable"), b"whole\n");
        assert_eq!(fs::read(path.with_extension("torn")).expect("set aside"), b"torn");
    }

    #[test]
    fn a_symbolic_link_a_directory_and_a_pipe_are_refused() {
        let directory = directory();
        let target = directory.path().join("target");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(open_for_append(&link).is_err());
        assert!(!target.exists(), "nothing is made behind a link");
        assert!(open_for_append(directory.path()).is_err());
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let error = open_for_append(&pipe).expect_err("a pipe is no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_broken_file_counts_failures_and_is_written_again_when_it_can_be() {
        let directory = directory();
        let path = directory.path().join("log");
        let mut file = LogFile::open(path.clone(), None).expect("opened");
        file.break_off("write to", &io::ErrorKind::StorageFull.into());
        let mut tallies = [Tally { pending: 2, ..Tally::default() }];
        file.outbox.push(0, b"lost", 4);
        file.flush(&mut tallies);
        assert_eq!((tallies[0].failed, tallies[0].pending), (1, 1));
        file.state = State::Broken { retry_at: Instant::now() };
        file.outbox.push(0, b"kept", 4);
        file.flush(&mut tallies);
        assert_eq!((tallies[0].delivered, tallies[0].pending), (1, 0));
        assert_eq!(fs::read(&path).expect("readable"), b"kept\n");
    }
}
