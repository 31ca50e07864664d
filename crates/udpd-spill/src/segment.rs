//! One file of a spill: frames behind one another, and in front of them how far they are decided.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::layout::{FrameHead, HEAD_BYTES, HEADER_BYTES, MARK_BYTES, MARKS, SegmentHeader, SegmentMark, Unreadable};
use udpd_base::os::trusted_files;
use udpd_base::seams::disk;

/// No segment has a number from this one on.
const NUMBER_END: u64 = 1 << 62;

/// The suffix of a segment after its number.
const SUFFIX: &str = ".spill";

/// The suffix of a segment that cannot be read.
const UNREADABLE_SUFFIX: &str = ".torn";

#[derive(Debug)]
pub(super) struct Segment {
    /// Its place among the others.
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) header: SegmentHeader,
    pub(super) bytes: u64,
    /// How many datagrams it has had.
    pub(super) records: u64,
    pub(super) mark: SegmentMark,
    /// The mark in its header.
    written: SegmentMark,
    /// How many of the first datagrams an earlier process may have handed on.
    handed_before: u32,
    /// How many datagrams of each listener are not decided.
    pub(super) left: Vec<(usize, u64)>,
    /// How many were undecided when they were added, and how many of those were read.
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
        let number = number.filter(|number| *number < NUMBER_END);
        // A file with another name is not udpd's.
        found.extend(number.map(|number| (number, path(directory, number))).filter(|(_, own)| *own == entry.path()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Where the segment of this number is.
pub(super) fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}{SUFFIX}"))
}

impl Segment {
    /// Creates a segment. So many of its first datagrams have been handed on already.
    pub(super) fn create(directory: &Path, number: u64, handed: u32) -> io::Result<Self> {
        let path = path(directory, number);
        let file = trusted_files::open(&path, OpenOptions::new().read(true).write(true).create_new(true))?;
        // The seed of a hash table is the only random number of the standard library.
        let key = (RandomState::new().hash_one(number) >> 32) as u32;
        let header = SegmentHeader { number, key };
        let mark = SegmentMark { handed, turn: u32::from(handed > 0), ..SegmentMark::default() };
        let mut bytes = header.encode();
        if handed > 0 {
            let at = MARKS[mark.turn as usize % MARKS.len()] as usize;
            bytes[at..at + MARK_BYTES].copy_from_slice(&mark.encode());
        }
        if let Err(error) = disk::write_all_at(&file, &bytes, 0) {
            // An empty file holds nothing.
            let _ = disk::remove_file(&path);
            return Err(error);
        }
        Ok(Self::new((number, path), file, header, HEADER_BYTES as u64, mark))
    }

    fn new((number, path): (u64, PathBuf), file: File, header: SegmentHeader, bytes: u64, mark: SegmentMark) -> Self {
        Self {
            number,
            path,
            file,
            header,
            bytes,
            records: 0,
            mark,
            written: mark,
            handed_before: 0,
            left: Vec::new(),
            held: 0,
            seen: 0,
            is_unsynced: true,
        }
    }

    /// Opens a segment of an earlier process, without reading its contents. That process may have been killed before
    /// it has synced them.
    pub(super) fn open((number, path): (u64, PathBuf)) -> io::Result<Result<Self, Unreadable>> {
        let file = trusted_files::open(&path, OpenOptions::new().read(true).write(true))?;
        let bytes = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        if bytes < HEADER_BYTES as u64 {
            return Ok(Err(Unreadable::Damaged));
        }
        disk::read_exact_at(&file, &mut header, 0)?;
        Ok(SegmentHeader::decode(&header).map(|own| {
            let mark = SegmentMark::latest(&header);
            let new = Self::new((number, path), file, own, bytes, mark);
            Self { handed_before: mark.handed, ..new }
        }))
    }

    /// Appends whole frames of so many datagrams. On a failure the segment stays as it was.
    pub(super) fn append(&mut self, frames: &[u8], records: u64) -> io::Result<()> {
        if let Err(error) = disk::write_all_at(&self.file, frames, self.bytes) {
            // Bytes that stay after the end are overwritten, or found to be torn.
            let _ = disk::set_len(&self.file, self.bytes);
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
        self.mark.turn = self.written.turn;
        if self.mark == self.written {
            return Ok(());
        }
        let mark = SegmentMark { turn: self.written.turn + 1, ..self.mark };
        disk::write_all_at(&self.file, &mark.encode(), MARKS[mark.turn as usize % MARKS.len()])?;
        (self.mark, self.written, self.is_unsynced) = (mark, mark, true);
        Ok(())
    }

    /// The destination holds no datagrams of it any more, except those that an earlier process has handed on.
    pub(super) fn take_back(&mut self) {
        self.mark.take_back(self.handed_before);
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.is_unsynced {
            disk::sync_data(&self.file)?;
            self.is_unsynced = false;
        }
        Ok(())
    }

    pub(super) fn head(&self, at: u64) -> io::Result<Option<FrameHead>> {
        let mut bytes = [0; HEAD_BYTES];
        disk::read_exact_at(&self.file, &mut bytes, at)?;
        Ok(FrameHead::decode(&bytes, self.header, at))
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        disk::remove_file(&self.path)
    }
}

/// Renames a file that cannot be read, so that it is not opened again.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension(UNREADABLE_SUFFIX.trim_start_matches('.'));
    disk::rename(path, &aside).map(|()| aside)
}
