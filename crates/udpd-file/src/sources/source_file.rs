//! The file of one source: opened, gone on with, left to whoever has moved it, and finished.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::super::handle::{Handle, set_aside};
use super::super::name::{Name, finished_names};
use super::super::settings::{FileSettings, Keep, Rotate};
use super::super::shelf::Shelf;
use super::census::Census;
use super::disks::Disks;
use super::key::{Key, Parts, Pattern};
use super::table::{Begun, Table};
use udpd_base::codec::Recipe;
use udpd_base::format::boundary::Boundary;
use udpd_base::ledger::FileLedger;
use udpd_base::logging::muffle::Muffle;

/// What the files of all sources have in common.
#[derive(Debug)]
pub(super) struct SourceFiles {
    /// With the names that a lane fills in, in the order in which they were first seen.
    paths: Vec<(String, Pattern)>,
    pub(super) rotate: Rotate,
    pub(super) keep: Keep,
    recipe: Option<Recipe>,
    /// See `annex`.
    pub(super) latch: Arc<Mutex<()>>,
    pub(super) disks: Arc<Disks>,
    /// For their lists.
    pub(super) muffles: Arc<[Muffle; 2]>,
    pub(super) boundary: Boundary,
    pub(super) header: Vec<u8>,
}

impl SourceFiles {
    pub(super) fn new(settings: &FileSettings, header: Vec<u8>) -> Self {
        let FileSettings { rotate, keep, format, .. } = *settings;
        let (recipe, boundary) = (settings.recipe(), format.boundary());
        let (latch, disks, muffles) = (Arc::default(), Arc::default(), Arc::default());
        Self { paths: Vec::new(), rotate, keep, recipe, latch, disks, muffles, boundary, header }
    }

    /// With the names that a lane fills in.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(|(path, _)| path.as_str())
    }

    fn latch(&self) -> MutexGuard<'_, ()> {
        self.latch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a path.
    pub(super) fn number(&mut self, path: String) -> usize {
        let known = self.paths.iter().position(|(other, _)| *other == path);
        known.unwrap_or_else(|| {
            let pattern = Pattern::new(&path);
            self.paths.push((path, pattern));
            self.paths.len() - 1
        })
    }

    /// What of a datagram tells files apart; the same for every path, because one template has made them.
    pub(super) fn parts(&self) -> Option<Parts> {
        self.paths.first().map(|(_, pattern)| pattern.parts())
    }

    /// What each path is called at a moment, for its codes alone.
    pub(super) fn any_name(&self) -> Option<Name> {
        self.paths.first().map(|(path, _)| Name::new(path.clone(), self.rotate.every))
    }

    /// The directories in which nothing is named by a datagram or the clock.
    pub(super) fn directories(&self) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().map(|(path, _)| {
            let fixed = &path[..path.find(['{', '%']).unwrap_or(path.len())];
            PathBuf::from(&fixed[..=fixed.rfind('/').unwrap_or(0)])
        })
    }

    /// Which sources have files already.
    pub(super) fn take_census(&self, census: &mut Census) {
        let paths = self.paths.iter().zip(self.directories()).enumerate();
        paths.for_each(|(number, ((path, _), directory))| census.take(number, path, &directory));
    }

    pub(super) fn name(&self, key: &Key) -> Name {
        Name::new(self.paths[key.path as usize].1.fill(key), self.rotate.every)
    }

    /// The path of a source's file at a moment.
    pub(super) fn path(&self, key: &Key, at: u64) -> PathBuf {
        self.name(key).at(at)
    }

    /// Sees to it that the file of a source is open and in its place. Where that took the descriptors of others, the
    /// error that said so is returned.
    pub(super) fn provide(
        &self,
        table: &mut Table,
        place: usize,
        now: u64,
        ledger: &FileLedger,
    ) -> Result<Option<io::Error>, (PathBuf, io::Error)> {
        self.leave_if_taken(table, place, ledger);
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
                // Others of this process or host need some, too: half of them are given up, and there is one more try.
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
                table.at(place).begun = Some(Begun { at, inode, length, seen_bytes: length, is_astray: false });
                table.note_opened(place, handle);
                Ok(lacking)
            }
            Err(error) => Err((path, error)),
        }
    }

    fn open(&self, path: &Path, begun: Option<Begun>, key: &Key) -> io::Result<Handle> {
        let _latch = self.latch();
        if let Some(left) = begun {
            let (mut handle, is_as_left) = Handle::open_again(path, self.boundary, (left.inode, left.length))?;
            self.disks.note(path, &handle.metadata()?)?;
            if !is_as_left {
                handle.append_whole(&self.header)?;
            }
            return Ok(handle);
        }
        let mut shelf = self.shelf(key);
        shelf.finish_interrupted(path);
        let is_new = path.symlink_metadata().is_err();
        let mut handle = Handle::open(path, self.boundary)?;
        let noted = handle.metadata().and_then(|metadata| self.disks.note(path, &metadata));
        if let Err(error) = noted.and_then(|()| handle.append_whole(&self.header)) {
            if is_new {
                let _ = fs::remove_file(path);
            }
            return Err(error);
        }
        shelf.begun(path, &handle, is_new);
        Ok(handle)
    }

    /// The finished files of one source. Its list is read whenever it is needed: ten thousand would be much to keep.
    fn shelf(&self, key: &Key) -> Shelf {
        let mut shelf = Shelf::new(&self.name(key), self.keep, self.recipe).muffled_by(&self.muffles);
        shelf.read();
        shelf
    }

    /// Leaves a file that somebody has moved or removed. One that was moved just now is written once more where nothing
    /// is in its place yet: whoever moves it may be about to make another there, as logrotate does with `create`.
    fn leave_if_taken(&self, table: &mut Table, place: usize, ledger: &FileLedger) {
        let source = table.at(place);
        let (Some(handle), Some(begun)) = (&source.handle, &mut source.begun) else { return };
        let path = self.path(&source.key, begun.at);
        if handle.is_at(&path) {
            begun.seen_bytes = begun.length;
            begun.is_astray = false;
            return;
        }
        let is_removed = handle.names().is_ok_and(|names| names == 0);
        if is_removed {
            let after = begun.length.saturating_sub(begun.seen_bytes);
            ledger.note_removed_bytes(after);
        } else if !begun.is_astray && path.symlink_metadata().is_err() {
            begun.is_astray = true;
            return;
        }
        source.begun = None;
        table.close(place);
    }

    /// Leaves the file, open or not, if somebody has moved or removed it; says whether that was so.
    pub(super) fn leave_at_once_if_taken(&self, table: &mut Table, place: usize, ledger: &FileLedger) -> bool {
        let source = table.at(place);
        let Some(begun) = &mut source.begun else { return false };
        if source.handle.is_some() {
            // Who asks for that has made the next file, or never will.
            begun.is_astray = true;
            self.leave_if_taken(table, place, ledger);
        } else if !is_as_begun(&self.path(&source.key, begun.at), begun) {
            source.begun = None;
        }
        table.at(place).begun.is_none()
    }

    /// Finishes the file of a source, where it is over at that moment or full; says whether it did.
    pub(super) fn finish(&self, table: &mut Table, place: usize, now: u64, is_full: bool) -> io::Result<bool> {
        let source = table.at(place);
        let (key, Some(begun)) = (source.key, source.begun) else { return Ok(false) };
        let name = self.name(&key);
        let path = name.at(begun.at);
        let is_renamed = name.at(now) == path;
        if is_renamed && !is_full && !name.is_over(begun.at, now) {
            return Ok(false);
        }
        let _latch = self.latch();
        // What is at its path may be somebody else's, and is not to be renamed.
        let is_own = is_as_begun(&path, &begun);
        if is_renamed && is_own {
            let mut shelf = self.shelf(&key);
            set_aside(&path, finished_names(&path, now), |name| shelf.list_by(name, Ok(begun.inode)))?;
        }
        table.close(place);
        table.at(place).begun = None;
        Ok(is_own)
    }
}

/// Whether what is at a path is the file that was begun there.
fn is_as_begun(path: &Path, begun: &Begun) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.ino() == begun.inode)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
