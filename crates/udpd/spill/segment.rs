//! One file of a spill: frames behind one another, and in front of them how far they are decided.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::layout::{HEAD_BYTES, HEADER_BYTES, Head, Header, MARKS, Mark, Unreadable};

/// What a segment is called behind its number.
const SUFFIX: &str = ".spill";

/// What one is called of which nothing can be read.
const UNREADABLE_SUFFIX: &str = ".torn";

/// One file.
#[derive(Debug)]
pub(super) struct Segment {
    /// Its place among the others.
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) header: Header,
    /// How long it is.
    pub(super) bytes: u64,
    /// How many datagrams it has had.
    pub(super) records: u64,
    pub(super) mark: Mark,
    /// The mark that its header has.
    written: Mark,
    /// How many datagrams of each listener are not decided.
    pub(super) left: Vec<(usize, u64)>,
    /// How many were not when they came here, and of those the ones that were read.
    pub(super) held: u64,
    pub(super) seen: u64,
    /// Whether a power loss could take some of it.
    pub(super) is_unsynced: bool,
}

/// The segments of a directory by number, the oldest first.
pub(super) fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        found.extend(number.map(|number| (number, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// Where the segment of this number is.
pub(super) fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}{SUFFIX}"))
}

impl Segment {
    /// A new one.
    pub(super) fn create(directory: &Path, number: u64) -> io::Result<Self> {
        let path = path(directory, number);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(&path)?;
        // The standard library seeds its hash tables with random numbers, and has no others.
        let key = (RandomState::new().hash_one(number) >> 32) as u32;
        let header = Header { number, key };
        if let Err(error) = file.write_all_at(&header.encode(), 0) {
            // An empty file says nothing to anybody.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self::new((number, path), file, header, HEADER_BYTES as u64, Mark::default()))
    }

    fn new((number, path): (u64, PathBuf), file: File, header: Header, bytes: u64, mark: Mark) -> Self {
        let (records, left, held, seen) = (0, Vec::new(), 0, 0);
        Self { number, path, file, header, bytes, records, mark, written: mark, left, held, seen, is_unsynced: true }
    }

    /// One that a former process has left. Nobody knows yet what is in it.
    pub(super) fn open((number, path): (u64, PathBuf)) -> io::Result<Result<Self, Unreadable>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path)?;
        let bytes = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        if bytes < HEADER_BYTES as u64 || file.read_exact_at(&mut header, 0).is_err() {
            return Ok(Err(Unreadable::Damaged));
        }
        Ok(Header::decode(&header).map(|own| {
            let mark = Mark::latest(&header);
            Self { is_unsynced: false, ..Self::new((number, path), file, own, bytes, mark) }
        }))
    }

    /// Appends whole frames of so many datagrams. On a failure it is as it was.
    pub(super) fn append(&mut self, frames: &[u8], records: u64) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(frames, self.bytes) {
            // What is left behind the end is written over, or found to be torn.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += frames.len() as u64;
        self.records += records;
        self.is_unsynced = true;
        Ok(())
    }

    /// Whether no datagram of it is left to decide.
    pub(super) fn is_done(&self) -> bool {
        self.left.iter().all(|(_, left)| *left == 0)
    }

    /// So many more datagrams of a listener are in it.
    pub(super) fn add_left(&mut self, listener: usize, datagrams: u64) {
        self.held += datagrams;
        match self.left.iter_mut().find(|(own, _)| *own == listener) {
            Some((_, left)) => *left += datagrams,
            None => self.left.push((listener, datagrams)),
        }
    }

    /// Writes how far it is decided, if that is not in its header yet.
    pub(super) fn write_mark(&mut self) -> io::Result<()> {
        if (self.mark.decided, self.mark.handed) == (self.written.decided, self.written.handed) {
            return Ok(());
        }
        let mark = Mark { turn: self.written.turn + 1, ..self.mark };
        self.file.write_all_at(&mark.encode(), MARKS[mark.turn as usize % MARKS.len()])?;
        (self.mark, self.written, self.is_unsynced) = (mark, mark, true);
        Ok(())
    }

    /// Forces it to the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.is_unsynced {
            self.file.sync_data()?;
            self.is_unsynced = false;
        }
        Ok(())
    }

    /// The head at `at`, if there is one.
    pub(super) fn head(&self, at: u64) -> Option<Head> {
        let mut bytes = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Head::decode(&bytes, self.header, at)
    }

    /// Removes its file.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// Gives a file of which nothing can be read another name, so that nobody looks at it again.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension(UNREADABLE_SUFFIX.trim_start_matches('.'));
    fs::rename(path, &aside).map(|()| aside)
}
