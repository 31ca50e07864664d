//! Recovery: the datagrams that an earlier process has left in the directory of a spill.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{HEAD_BYTES, Unreadable};
use super::segment::{self, Segment};
use super::segment_reader;
use super::store::SpillLanes;
use udpd_base::os::trusted_files;
use udpd_base::seams::disk;

/// The writer of a spill locks this file.
const LOCK: &str = "lock";

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Datagrams that wait, by listener.
    pub left: Vec<(usize, u64)>,
    /// Datagrams that cannot be read, because of an unfinished write or damage, by listener.
    pub torn: Vec<(usize, u64)>,
    /// Bytes of which nothing can be read.
    pub torn_bytes: u64,
    /// How many of those that wait may have been handed on already, by listener.
    pub twice_at_most: Vec<(usize, u64)>,
    /// Files that cannot be read, under their new names.
    pub set_aside: Vec<PathBuf>,
    /// Empty files that were removed.
    pub empty: Vec<PathBuf>,
    /// Unknown listeners of datagrams that wait.
    pub unknown: Vec<String>,
}

/// Locks a directory for its writer. The kernel releases the lock when the file is closed.
pub(super) fn claim(directory: &Path) -> io::Result<File> {
    trusted_files::make_directory(directory)?;
    let lock = trusted_files::open(&directory.join(LOCK), OpenOptions::new().write(true).create(true).truncate(false))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("another udpd has it; is a second one running?")),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        // A file system without locks is no reason to lose datagrams.
        Err(TryLockError::Error(error)) => {
            log::debug!("cannot lock {}: {error}", directory.display());
            Ok(lock)
        }
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    if trusted_files::is_refusal(&error) {
        return error;
    }
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Moves the segments of another directory, which has no writer, in front of those of this one.
pub(super) fn move_in(from: &Path, to: &Path, first: u64) -> io::Result<()> {
    let named = |error| named(from, error);
    let _lock = claim(from).map_err(named)?;
    let theirs = segment::list(from).map_err(named)?;
    let before = segment::list(to)?.first().map_or(first, |(number, _)| *number);
    for ((_, path), number) in theirs.iter().rev().zip((1..before).rev()) {
        disk::rename(path, &segment::path(to, number)).map_err(named)?;
    }
    Ok(())
}

/// Opens the segments, the oldest first.
pub(super) fn recover(directory: &Path, lanes: &SpillLanes) -> io::Result<(Vec<Segment>, Recovered)> {
    let mut found = Recovered::default();
    let mut segments = Vec::new();
    for (number, path) in segment::list(directory)? {
        let named = |error| named(&path, error);
        match Segment::open((number, path.clone())).map_err(named)? {
            Ok(segment) => segments.extend(take(segment, lanes, &mut found).map_err(named)?),
            Err(Unreadable::Newer(version)) => {
                let what = format!("{} is of a newer udpd (version {version} of its layout)", path.display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            Err(Unreadable::OtherMachine) => {
                let what = format!("{} is of another kind of machine", path.display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            Err(Unreadable::Damaged) => {
                let torn = segment_reader::contents_unsealed(&path).map_err(named)?;
                add_torn(&torn, lanes, &mut found);
                set_aside(&path, &mut found).map_err(named)?;
            }
        }
    }
    Ok((segments, found))
}

fn set_aside(path: &Path, found: &mut Recovered) -> io::Result<()> {
    let bytes = path.metadata()?.len();
    if bytes == 0 {
        // It was only created, or a power cut has taken its content.
        found.empty.push(path.to_owned());
        return disk::remove_file(path);
    }
    found.torn_bytes += bytes;
    found.set_aside.push(segment::set_aside(path)?);
    Ok(())
}

fn add(sums: &mut Vec<(usize, u64)>, listener: usize, datagrams: u64) {
    match sums.iter_mut().find(|(own, _)| *own == listener) {
        Some((_, sum)) => *sum += datagrams,
        None => sums.push((listener, datagrams)),
    }
}

fn add_torn(torn: &[(String, u64)], lanes: &SpillLanes, found: &mut Recovered) {
    torn.iter().for_each(|(name, datagrams)| add(&mut found.torn, lanes.find(name, "").listener, *datagrams));
}

/// Reads a segment; one without waiting datagrams is removed.
fn take(mut segment: Segment, lanes: &SpillLanes, found: &mut Recovered) -> io::Result<Option<Segment>> {
    let contents = segment_reader::contents(&segment)?;
    if contents.records == 0 && contents.torn_bytes >= HEAD_BYTES as u64 {
        // There was a frame, and it cannot be read.
        add_torn(&contents.torn, lanes, found);
        return set_aside(&segment.path, found).map(|()| None);
    }
    segment.records = contents.records;
    for (name, datagrams) in contents.left.iter().chain(&contents.torn) {
        if !lanes.knows(name) && !found.unknown.contains(name) && *datagrams > 0 {
            found.unknown.push(name.clone());
        }
    }
    for (name, datagrams) in &contents.left {
        let listener = lanes.find(name, "").listener;
        segment.add_left(listener, *datagrams);
        add(&mut found.left, listener, *datagrams);
    }
    add_torn(&contents.torn, lanes, found);
    for (name, datagrams) in &contents.handed {
        add(&mut found.twice_at_most, lanes.find(name, "").listener, *datagrams);
    }
    found.torn_bytes += contents.torn_bytes;
    if segment.is_done() {
        return segment.remove().map(|()| None);
    }
    Ok(Some(segment))
}
