//! The list of the files that were finished here, in their order, by which `keep` removes the oldest.
//!
//! A directory does not tell that. An mtime is set by the last copy, the last `touch` or a wrong clock; a date in a
//! name comes from the clock; and a name that looks like ours may be another sink's log or a file of another program.
//! So a sink with `keep`, `compress` or `upload` has a small file of its own beside its files, `.NAME.udpd-index`, with
//! a line for each file: its inode number and its name. The lines stand in the order in which the files were finished.
//! A file is removed only if it has a line there, a name that this sink gives, and the same inode number.
//!
//! A line is written before a file gets its name: a crash in between leaves a line without a file, which is dropped,
//! and never a file without a line. The compressed form of a file has a line of its own, and the place of the file in
//! the order: one or both forms may exist. Where the sink uploads its files, a line says of a file that stays here that
//! the server has it, and how long it was then. A crash in the middle of a line costs that line. If the index is
//! removed, the files that it listed stay: they are counted in one warning and left alone. Lines of files that are gone
//! are dropped, so the index is as long as what is kept.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::name::FileName;
use udpd_base::codec::Method;
use udpd_base::os::trusted_files;
use udpd_base::seams::disk;

/// The first line, so that no other file is taken for an index.
const HEADER: &str = "udpd index 1\n";

/// How a line begins that says that a file was uploaded. A release that does not know it passes over it.
const UPLOADED: &str = "uploaded ";

/// A longer file is not an index.
const BYTES_MAX: u64 = 64 << 20;

/// The index is rewritten when it has more stale lines than valid ones, and more than this.
const STALE_LINES_MAX: usize = 64;

/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;

/// A file that was finished here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexEntry {
    /// Its path below the directory of the index, without the suffix of a compressed form.
    name: String,
    /// The inode of the plain file.
    plain: Option<u64>,
    /// The method and inode of its compressed form.
    compressed: Option<(Method, u64)>,
    /// The inode and length of the form that was uploaded.
    uploaded: Option<(u64, u64)>,
    /// An earlier run has listed it.
    is_from_before: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FinishedFile {
    /// The file as it was written.
    pub(super) plain: Option<FinishedForm>,
    pub(super) compressed: Option<FinishedForm>,
    /// The inode and length of what was uploaded.
    uploaded: Option<(u64, u64)>,
    /// An earlier run has listed it, and may have left it unfinished.
    pub(super) is_from_before: bool,
}

/// A file in one of its forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FinishedForm {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
    pub(super) bytes: u64,
}

impl IndexEntry {
    /// As the index has it.
    fn lines(&self) -> impl Iterator<Item = String> {
        let Self { name, plain, compressed, uploaded, .. } = self;
        let plain = plain.map(|inode| format!("{inode} {name}\n"));
        let compressed = compressed.map(|(method, inode)| format!("{inode} {name}{}\n", method.suffix()));
        let uploaded = uploaded.map(|(inode, bytes)| format!("{UPLOADED}{inode} {bytes} {name}\n"));
        plain.into_iter().chain(compressed).chain(uploaded)
    }

    fn line_count(&self) -> usize {
        [self.plain.is_some(), self.compressed.is_some(), self.uploaded.is_some()].map(usize::from).iter().sum()
    }
}

impl FinishedFile {
    pub(super) fn forms(&self) -> impl Iterator<Item = &FinishedForm> {
        self.plain.iter().chain(&self.compressed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.forms().map(|form| form.bytes).sum()
    }

    /// Whether the server has it as it is now.
    pub(super) fn is_uploaded(&self) -> bool {
        self.forms().any(|form| self.uploaded == Some((form.inode, form.bytes)))
    }
}

/// The finished files of one path.
#[derive(Debug)]
pub(super) struct Index {
    name: FileName,
    path: PathBuf,
    directory: PathBuf,
    /// The oldest first, each name once.
    entries: Vec<IndexEntry>,
    /// How many lines the file has; `None`: it must be rewritten before a line is added.
    lines: Option<usize>,
}

impl Index {
    /// Reads the index of an earlier run. An error means that something else is in its place.
    pub(super) fn open(name: &FileName) -> io::Result<Self> {
        let (directory, _) = name.below_fixed();
        let path = Self::path_of(name);
        let mut index = Self { name: name.clone(), path, directory, entries: Vec::new(), lines: None };
        let (body, is_whole) = match read(&index.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(index),
            Err(error) => return Err(error),
        };
        let mut lines = 0;
        for line in String::from_utf8_lossy(&body).split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            lines += 1;
            let (of_upload, line) = (line.starts_with(UPLOADED), line.strip_prefix(UPLOADED).unwrap_or(line));
            if let Some((inode, rest)) = line.split_once(' ')
                && let Ok(inode) = inode.parse()
            {
                match of_upload {
                    true => index.read_uploaded(inode, rest),
                    false => index.read_line(inode, rest),
                }
            }
        }
        index.entries.iter_mut().for_each(|entry| entry.is_from_before = true);
        index.lines = is_whole.then_some(lines);
        Ok(index)
    }

    fn read_line(&mut self, inode: u64, name: &str) {
        if self.name.is_finished(name) {
            return self.enter(name, inode);
        }
        if let Some((method, stem)) = Method::of_name(name).filter(|(_, stem)| self.name.is_finished(stem)) {
            self.enter_compressed(stem, method, inode);
        }
    }

    fn read_uploaded(&mut self, inode: u64, rest: &str) {
        if let Some((bytes, name)) = rest.split_once(' ')
            && let Ok(bytes) = bytes.parse()
            && let Some(entry) = self.entries.iter_mut().rfind(|entry| entry.name == name)
        {
            entry.uploaded = Some((inode, bytes));
        }
    }

    /// Notes that the server has a form of a file, with this inode and so long. A line that is lost costs a question to
    /// the server.
    pub(super) fn add_uploaded(&mut self, form: &Path, inode: u64, bytes: u64) -> io::Result<()> {
        let is_it =
            |entry: &IndexEntry| entry.plain == Some(inode) || entry.compressed.is_some_and(|(_, own)| own == inode);
        let below = self.below(form).unwrap_or_default();
        let mut entries = self.entries.iter_mut();
        let Some(entry) = entries.rfind(|entry| below.starts_with(&entry.name) && is_it(entry)) else { return Ok(()) };
        entry.uploaded = Some((inode, bytes));
        let name = entry.name.clone();
        self.append(&name, &format!("{UPLOADED}{inode} {bytes} {name}\n"))
    }

    /// Lists a file that is about to get this name, or that has it and is written again, as the newest. One that is
    /// listed under another name keeps its place.
    pub(super) fn add(&mut self, path: &Path, inode: u64) -> io::Result<()> {
        let Some(name) = self.below(path) else { return Ok(()) };
        if self.entries.last().is_some_and(|last| last.name == name && last.plain == Some(inode)) {
            return Ok(());
        }
        self.forget_unused_names(inode);
        self.enter(&name, inode);
        // A listed file that gets another name keeps its place, because it is as old as before.
        let place = self.entries.iter().position(|entry| entry.plain == Some(inode)).unwrap_or_default() + 1;
        if place + 1 < self.entries.len() {
            self.entries[place..].rotate_right(1);
            self.lines = None;
            return self.rewrite(&name);
        }
        self.append(&name, &format!("{inode} {name}\n"))
    }

    /// Drops the names that a file was about to get and has not got: a disk that refuses each attempt would add one
    /// each second.
    fn forget_unused_names(&mut self, inode: u64) {
        let directory = &self.directory;
        let is_gone = |name: &str| find(directory.join(name), inode).is_err();
        let of_it = self.entries.iter_mut().filter(|entry| entry.plain == Some(inode));
        of_it.filter(|entry| is_gone(&entry.name)).for_each(|entry| entry.plain = None);
    }

    /// Lists the compressed form of the file of this path, which is about to get its name. The line is forced to the
    /// disk first: after a power loss a form that is not listed would be taken for another program's, and the plain
    /// file would be compressed once more beside it.
    pub(super) fn add_compressed(&mut self, plain: &Path, method: Method, inode: u64) -> io::Result<()> {
        let Some(name) = self.below(plain) else { return Ok(()) };
        self.enter_compressed(&name, method, inode);
        self.append(&name, &format!("{inode} {name}{}\n", method.suffix()))?;
        self.sync()
    }

    /// Adds a line about the file `name`.
    fn append(&mut self, name: &str, line: &str) -> io::Result<()> {
        let valid = self.entries.iter().map(IndexEntry::line_count).sum();
        let most = STALE_LINES_MAX.max(valid);
        if let Some(lines) = self.lines.filter(|lines| lines.saturating_sub(valid) <= most) {
            // A line that was written in part would damage the next one too.
            self.lines = None;
            match open_index(&self.path, OpenOptions::new().read(true).append(true)) {
                Ok(file) => {
                    disk::append_all(&file, line.as_bytes())?;
                    self.lines = Some(lines + 1);
                    return Ok(());
                }
                // The index was removed, but its entries are still in memory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.rewrite(name)
    }

    /// Whether this file was finished here under this name.
    pub(super) fn has(&self, path: &Path, inode: u64) -> bool {
        let name = self.below(path);
        self.entries.iter().any(|entry| entry.plain == Some(inode) && Some(&entry.name) == name.as_ref())
    }

    /// The finished files, the oldest first. Entries of files that are gone or replaced are dropped.
    pub(super) fn present(&mut self) -> Vec<FinishedFile> {
        self.present_but(None)
    }

    /// The same, but keeps the entries of one name without a check, because its files may not have it yet.
    fn present_but(&mut self, pending: Option<&str>) -> Vec<FinishedFile> {
        let mut found = Vec::with_capacity(self.entries.len());
        let directory = &self.directory;
        self.entries.retain_mut(|entry| {
            if Some(entry.name.as_str()) == pending {
                return true;
            }
            let path = directory.join(&entry.name);
            let (mut plain, mut compressed) = (None, None);
            if let Some(inode) = entry.plain {
                plain = find(path.clone(), inode).unwrap_or_else(|()| {
                    entry.plain = None;
                    None
                });
            }
            if let Some((method, inode)) = entry.compressed {
                compressed = find(method.path_of(&path), inode).unwrap_or_else(|()| {
                    entry.compressed = None;
                    None
                });
            }
            if plain.is_some() || compressed.is_some() {
                let IndexEntry { uploaded, is_from_before, .. } = *entry;
                found.push(FinishedFile { plain, compressed, uploaded, is_from_before });
            }
            entry.plain.is_some() || entry.compressed.is_some()
        });
        found
    }

    /// How many files have names like finished ones, and are not listed.
    pub(super) fn unlisted(&self, current: &Path) -> usize {
        let listed: HashSet<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
        let is_listed = |path: &Path| self.below(path).is_some_and(|name| listed.contains(name.as_str()));
        self.name.finished().iter().filter(|path| *path != current && !is_listed(path)).count()
    }

    /// The path of the index. A path with codes has one index, above the first directory with a code; the rest becomes
    /// its name, with `%-`, which is no code, in place of each slash.
    pub(super) fn path_of(name: &FileName) -> PathBuf {
        let (directory, below) = name.below_fixed();
        let mut file = format!(".{}.udpd-index", below.replace('/', "%-"));
        if file.len() > NAME_BYTES_MAX {
            file = format!(".{:016x}.udpd-index", fingerprint(below));
        }
        directory.join(file)
    }

    /// The path whose index this is; `None` if its name does not tell.
    pub(super) fn pattern_of(index: &Path) -> Option<String> {
        let below = index.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".udpd-index")?.replace("%-", "/");
        index.parent()?.join(below).to_str().map(str::to_owned)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the index, if there is one.
    pub(super) fn sync(&self) -> io::Result<()> {
        match open(&self.path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => disk::sync_data(&opened?),
        }
    }

    fn below(&self, path: &Path) -> Option<String> {
        path.strip_prefix(&self.directory).ok()?.to_str().map(str::to_owned)
    }

    /// Adds a plain file. Where names repeat, an older compressed file may have the same name.
    fn enter(&mut self, name: &str, inode: u64) {
        self.entries.iter_mut().filter(|entry| entry.name == name).for_each(|entry| entry.plain = None);
        self.entries.retain(|entry| entry.plain.is_some() || entry.compressed.is_some());
        let (name, plain) = (name.to_owned(), Some(inode));
        self.entries.push(IndexEntry { name, plain, compressed: None, uploaded: None, is_from_before: false });
    }

    /// Adds the compressed form of a file, in the place of that file.
    fn enter_compressed(&mut self, name: &str, method: Method, inode: u64) {
        let compressed = Some((method, inode));
        let is_same = |other: &IndexEntry| other.name == name && other.compressed.is_some_and(|(own, _)| own == method);
        self.entries.iter_mut().filter(|entry| is_same(entry)).for_each(|entry| entry.compressed = None);
        match self.entries.iter_mut().rfind(|entry| entry.name == name && entry.plain.is_some()) {
            Some(entry) => entry.compressed = compressed,
            None => {
                let (name, plain, uploaded) = (name.to_owned(), None, None);
                self.entries.push(IndexEntry { name, plain, compressed, uploaded, is_from_before: false });
            }
        }
        self.entries.retain(|entry| entry.plain.is_some() || entry.compressed.is_some());
    }

    /// Rewrites the index: beside it first, so that a complete one exists at every moment. The files of the name
    /// `pending` may not have it yet.
    fn rewrite(&mut self, pending: &str) -> io::Result<()> {
        self.present_but(Some(pending));
        let mut text = HEADER.to_owned();
        let mut lines = 0;
        for line in self.entries.iter().flat_map(IndexEntry::lines) {
            text.push_str(&line);
            lines += 1;
        }
        let mut beside = self.path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let file = match open(&beside, OpenOptions::new().write(true).create_new(true)) {
            // If it is ours, a crash has left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                open_index(&beside, OpenOptions::new().read(true))?;
                disk::remove_file(&beside)?;
                open(&beside, OpenOptions::new().write(true).create_new(true))?
            }
            opened => opened?,
        };
        let replace = || match open_index(&self.path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => disk::rename(&beside, &self.path),
        };
        let written = disk::append_all(&file, text.as_bytes()).and_then(|()| disk::sync_data(&file));
        written.and_then(|()| replace()).inspect_err(|_| {
            let _ = disk::remove_file(&beside);
        })?;
        self.lines = Some(lines);
        Ok(())
    }
}

/// A file, if it exists and has this inode; an error if it is gone or another one.
fn find(path: PathBuf, inode: u64) -> Result<Option<FinishedForm>, ()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_file() && metadata.ino() == inode => {
            Ok(Some(FinishedForm { path, inode, bytes: metadata.len() }))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Ok(None),
        _ => Err(()),
    }
}

/// FNV-1a: the same in every release, which the hash of the standard library does not promise.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Opens only a file that no other user can have written, because what is listed will be removed.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    trusted_files::open_as(path, options, 0o640)
}

/// Opens a file that begins like an index, perhaps with a torn first line, and refuses any other. The next read begins
/// after that line.
fn open_index(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open(path, options)?;
    let mut beginning = Vec::new();
    (&file).take(HEADER.len() as u64).read_to_end(&mut beginning)?;
    match HEADER.as_bytes().starts_with(&beginning) && file.metadata()?.len() <= BYTES_MAX {
        true => Ok(file),
        false => Err(io::Error::other("it is not an index of udpd")),
    }
}

/// The lines of an index, and whether its last line is complete.
fn read(path: &Path) -> io::Result<(Vec<u8>, bool)> {
    let mut file = open_index(path, OpenOptions::new().read(true))?;
    let mut body = Vec::new();
    file.read_to_end(&mut body)?;
    let has_header = file.metadata()?.len() >= HEADER.len() as u64;
    let is_whole = has_header && (body.is_empty() || body.ends_with(b"\n"));
    Ok((body, is_whole))
}

#[cfg(test)]
#[path = "finished_files_tests.rs"]
mod tests;
