//! The file of one source: opened, opened again, closed when it was moved, and finished.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use super::super::handle::{LogHandle, set_aside};
use super::super::name::{FileName, finished_names};
use super::super::settings::{FileSettings, Rotate};
use super::existing::SourceScan;
use super::file_systems::FileSystems;
use super::host_names::HostNames;
use super::keeper::SourceRetention;
use super::key::{KeyParts, SourceKey, SourcePattern};
use super::table::{BegunFile, KnownSources};
use udpd_base::format::Boundary;
use udpd_base::ledger::FileLedger;
use udpd_base::os::local_time::Zone;
use udpd_base::seams::disk;

/// What the files of all sources have in common.
#[derive(Debug)]
pub(super) struct SourceFiles {
    /// With the placeholders of a lane filled in, in the order of first use.
    paths: Vec<(String, SourcePattern)>,
    pub(super) rotate: Rotate,
    pub(super) retention: SourceRetention,
    pub(super) file_systems: Arc<FileSystems>,
    pub(super) boundary: Boundary,
    header: Vec<u8>,
    zone: Zone,
    /// The names of senders, where the path has them.
    pub(super) hosts: Option<HostNames>,
}

impl SourceFiles {
    pub(super) fn new(settings: &FileSettings, header: Vec<u8>, hosts: Option<HostNames>) -> Self {
        let (rotate, boundary) = (settings.rotate, settings.format.boundary());
        let (retention, file_systems) = (SourceRetention::new(settings), Arc::default());
        Self { paths: Vec::new(), rotate, retention, file_systems, boundary, header, zone: settings.time.zone(), hosts }
    }

    /// With the placeholders of a lane filled in.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(|(path, _)| path.as_str())
    }

    pub(super) fn number(&mut self, path: String) -> usize {
        let known = self.paths.iter().position(|(other, _)| *other == path);
        known.unwrap_or_else(|| {
            let pattern = SourcePattern::new(&path);
            self.paths.push((path, pattern));
            self.paths.len() - 1
        })
    }

    /// What of a datagram selects its file; the same for every path, because all come from one template.
    pub(super) fn parts(&self) -> Option<KeyParts> {
        self.paths.first().map(|(_, pattern)| pattern.parts())
    }

    /// The name of a path, for its time codes only.
    pub(super) fn any_name(&self) -> Option<FileName> {
        self.paths.first().map(|(path, _)| FileName::new(path.clone(), self.rotate.every).in_zone(self.zone.clone()))
    }

    /// The directories without placeholders and time codes.
    pub(super) fn directories(&self) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().map(|(path, _)| {
            let fixed = &path[..path.find(['{', '%']).unwrap_or(path.len())];
            PathBuf::from(&fixed[..=fixed.rfind('/').unwrap_or(0)])
        })
    }

    /// Finds the sources that have files already.
    pub(super) fn scan_sources(&self, scan: &mut SourceScan) {
        let paths = self.paths.iter().zip(self.directories()).enumerate();
        paths.for_each(|(number, ((path, _), directory))| scan.take(number, path, &directory));
    }

    pub(super) fn name(&self, key: &SourceKey) -> FileName {
        let host = self.hosts.as_ref().map_or("", |hosts| hosts.name(key.host()));
        FileName::new(self.paths[key.path as usize].1.fill(key, host), self.rotate.every).in_zone(self.zone.clone())
    }

    /// The path of a source's file at a moment.
    pub(super) fn path(&self, key: &SourceKey, at: u64) -> PathBuf {
        self.name(key).at(at)
    }

    /// Ensures that the file of a source is open and in its place. Returns the error of the first attempt if other
    /// files had to be closed for its descriptor.
    pub(super) fn provide(
        &self,
        table: &mut KnownSources,
        place: usize,
        now: u64,
        ledger: &FileLedger,
    ) -> Result<Option<io::Error>, (PathBuf, io::Error)> {
        self.close_if_moved(table, place, ledger);
        if table.is_open(place) {
            return Ok(None);
        }
        let key = table.at(place).key;
        let begun = table.at(place).begun;
        let path = self.path(&key, begun.map_or(now, |begun| begun.at));
        if let Some(oldest) = table.oldest_if_full() {
            table.close(oldest);
        }
        let mut lacking = None;
        let opened = match self.open(&path, begun, &key) {
            Err(error) if is_out_of_descriptors(&error) && table.open() > 0 => {
                // The process or the host is out of descriptors: close half of these files, and try once more.
                for _ in 0..table.open().div_ceil(2) {
                    table.oldest().into_iter().for_each(|oldest| table.close(oldest));
                }
                lacking = Some(error);
                self.open(&path, begun, &key)
            }
            opened => opened,
        };
        match opened.and_then(|handle| Ok((handle.inode()?, handle.length()?, handle))) {
            Ok((inode, length, handle)) => {
                let at = begun.map_or(now, |begun| begun.at);
                table.at(place).begun = Some(BegunFile { at, inode, length, seen_bytes: length, is_displaced: false });
                table.note_opened(place, handle);
                Ok(lacking)
            }
            Err(error) => Err((path, error)),
        }
    }

    fn open(&self, path: &Path, begun: Option<BegunFile>, key: &SourceKey) -> io::Result<LogHandle> {
        let _lock = self.retention.lock();
        if let Some(left) = begun {
            let (mut handle, is_as_left) = LogHandle::open_again(path, self.boundary, (left.inode, left.length))?;
            self.file_systems.note(path, &handle.metadata()?)?;
            if !is_as_left {
                handle.append_whole(&self.header)?;
            }
            return Ok(handle);
        }
        let mut retention = self.retention.of(&self.name(key));
        retention.finish_interrupted(path);
        let is_new = path.symlink_metadata().is_err();
        let mut handle = LogHandle::open(path, self.boundary)?;
        let noted = handle.metadata().and_then(|metadata| self.file_systems.note(path, &metadata));
        if let Err(error) = noted.and_then(|()| handle.append_whole(&self.header)) {
            if is_new {
                let _ = disk::remove_file(path);
            }
            return Err(error);
        }
        retention.begun(path, &handle, is_new);
        Ok(handle)
    }

    /// Closes a file that another process has moved or removed. A file that was moved just now is written once more
    /// while nothing is in its place: the process may be about to create another there, as logrotate does with
    /// `create`.
    fn close_if_moved(&self, table: &mut KnownSources, place: usize, ledger: &FileLedger) {
        let source = table.at(place);
        let (Some(handle), Some(begun)) = (&source.handle, &mut source.begun) else { return };
        let path = self.path(&source.key, begun.at);
        if handle.is_at(&path) {
            begun.seen_bytes = begun.length;
            begun.is_displaced = false;
            return;
        }
        let is_removed = handle.names().is_ok_and(|names| names == 0);
        if is_removed {
            let after = begun.length.saturating_sub(begun.seen_bytes);
            ledger.note_removed_bytes(after);
        } else if !begun.is_displaced && path.symlink_metadata().is_err() {
            begun.is_displaced = true;
            return;
        }
        source.begun = None;
        table.close(place);
    }

    /// Closes the file, open or not, if another process has moved or removed it; returns whether it has.
    pub(super) fn close_at_once_if_moved(&self, table: &mut KnownSources, place: usize, ledger: &FileLedger) -> bool {
        let source = table.at(place);
        let Some(begun) = &mut source.begun else { return false };
        if source.handle.is_some() {
            // The process that asks for this has created the next file, or never will.
            begun.is_displaced = true;
            self.close_if_moved(table, place, ledger);
        } else if !is_as_begun(&self.path(&source.key, begun.at), begun) {
            source.begun = None;
        }
        table.at(place).begun.is_none()
    }

    /// Finishes the file of a source if its period is over or it is full; returns whether it did.
    pub(super) fn finish(&self, table: &mut KnownSources, place: usize, now: u64, is_full: bool) -> io::Result<bool> {
        let source = table.at(place);
        let (key, Some(begun)) = (source.key, source.begun) else { return Ok(false) };
        let name = self.name(&key);
        let path = name.at(begun.at);
        let is_renamed = name.at(now) == path;
        if is_renamed && !is_full && !name.is_over(begun.at, now) {
            return Ok(false);
        }
        let _lock = self.retention.lock();
        // The path may lead to a file of another process, which must not be renamed.
        let is_own = is_as_begun(&path, &begun);
        if is_renamed && is_own {
            let mut retention = self.retention.of(&name);
            set_aside(&path, finished_names(&path, now, &self.zone), |name| retention.list_by(name, Ok(begun.inode)))?;
        }
        table.close(place);
        table.at(place).begun = None;
        Ok(is_own)
    }
}

/// Whether a path still leads to the file that was begun there.
fn is_as_begun(path: &Path, begun: &BegunFile) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.ino() == begun.inode)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
