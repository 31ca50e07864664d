//! The finished files of a sink: which are kept, and which are removed. Only files that this sink finished are ever
//! removed or compressed, see `index`; and of those never one that is open here, and never one that anybody has locked.
//! The newest is never removed.
//!
//! A file counts once, whether it lies here as it was written, compressed, or, after a crash, in both forms.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nix::fcntl::OFlag;

use super::compress::remove_left;
use super::handle::{Handle, set_aside};
use super::index::{Finished, Form, Index};
use super::lock;
use super::name::{Name, finished_names};
use super::settings::Keep;
use udpd_base::codec::{Method, Recipe};
use udpd_base::logging::muffle::{Muffle, count};

/// The finished files of one path.
#[derive(Debug)]
pub(super) struct Shelf {
    name: Name,
    keep: Keep,
    recipe: Option<Recipe>,
    /// Which they are; `None` when nothing is ever removed or compressed.
    index: Option<Index>,
    /// Whether it may speak, as one of many: of a list that cannot be read, and of one that cannot be added to.
    muffles: Option<Arc<[Muffle; 2]>>,
    /// Files of which it was said that they could not be removed.
    said: HashSet<PathBuf>,
}

/// A file that waits to be compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
    /// An earlier run may have left its last record without an end.
    pub(super) may_be_torn: bool,
}

impl Shelf {
    /// Without what an earlier run has left in the index.
    pub(super) fn new(name: &Name, keep: Keep, recipe: Option<Recipe>) -> Self {
        Self { name: name.clone(), keep, recipe, index: None, muffles: None, said: HashSet::new() }
    }

    /// The same as one of many.
    pub(super) fn muffled_by(self, muffles: &Arc<[Muffle; 2]>) -> Self {
        Self { muffles: Some(Arc::clone(muffles)), ..self }
    }

    /// How often it was silent about its list; `None` when it is to be so now.
    fn may_speak(&self, of: usize) -> Option<u64> {
        self.muffles.as_ref().map_or(Some(0), |muffles| muffles[of].let_speak(Instant::now()))
    }

    /// Reads that, which nobody else adds to any more.
    pub(super) fn read(&mut self) {
        if self.keep == Keep::ALL && self.recipe.is_none() {
            return;
        }
        match Index::open(&self.name) {
            Ok(index) => self.index = Some(index),
            Err(error) => {
                let Some(silent) = self.may_speak(0) else { return };
                log::error!(
                    "cannot read the list of finished files, {}: {error}; keep removes nothing and compress \
                     compresses nothing; move the list away or remove it, and restart udpd{}",
                    Index::path_of(&self.name).display(),
                    count(silent)
                );
            }
        }
    }

    /// Says once what will never be removed although it looks like a finished file.
    pub(super) fn say_unlisted(&self, current: &Path) {
        let Some(index) = &self.index else { return };
        let unlisted = index.unlisted(current);
        if unlisted > 0 {
            log::warn!(
                "{unlisted} files have names like finished ones of {}, but {} does not list them: keep neither \
                 counts nor removes them, and compress leaves them as they are",
                current.display(),
                index.path().display()
            );
        }
    }

    /// A file is about to get this name and is finished with it.
    pub(super) fn list(&mut self, path: &Path, handle: &Handle) {
        self.list_by(path, handle.inode());
    }

    /// The same for a file that is not open.
    pub(super) fn list_by(&mut self, path: &Path, inode: io::Result<u64>) {
        let Some(index) = &mut self.index else { return };
        let Err(error) = inode.and_then(|inode| index.add(path, inode)) else { return };
        let list = index.path().display().to_string();
        let Some(silent) = self.may_speak(1) else { return };
        log::warn!(
            "cannot list {} in {list}: {error}; unless udpd can before it ends, keep never removes that file and \
             compress leaves it as it is{}",
            path.display(),
            count(silent)
        );
    }

    /// A file is begun. Where the path has codes it already has the name that it will be finished with; one that was
    /// there and is listed nowhere is somebody else's, who has more in it than this sink.
    pub(super) fn begun(&mut self, path: &Path, handle: &Handle, is_new: bool) {
        let is_known = |index: &Index| handle.inode().is_ok_and(|inode| index.has(path, inode));
        if self.name.is_dated() && (is_new || self.index.as_ref().is_some_and(is_known)) {
            self.list(path, handle);
        }
    }

    /// Forces the list to the disk.
    pub(super) fn sync(&self) {
        if let Some(index) = &self.index
            && let Err(error) = index.sync()
        {
            log::warn!("cannot sync {} to the disk: {error}", index.path().display());
        }
    }

    /// Where a file system cannot refuse to replace, a file gets its last name by a link, and a crash leaves it with
    /// both. It is finished by that, and its first name is free again.
    pub(super) fn finish_interrupted(&self, path: &Path) {
        let Ok(found) = path.symlink_metadata() else { return };
        if !found.is_file() || found.nlink() != 2 {
            return;
        }
        let is_same = |other: &PathBuf| {
            other != path
                && other.parent() == path.parent()
                && other.symlink_metadata().is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
        };
        if self.name.finished().iter().any(is_same) {
            let _ = fs::remove_file(path);
        }
    }

    /// Removes the oldest files beyond what is to be kept, but none of those that are `open` here; returns which.
    pub(super) fn clear(&mut self, open: &[u64]) -> Vec<PathBuf> {
        let Some(index) = self.index.as_mut().filter(|_| self.keep != Keep::ALL) else { return Vec::new() };
        let mut finished = index.present();
        finished.retain(|file| !file.plain.as_ref().is_some_and(|plain| open.contains(&plain.inode)));
        let (mut files, mut bytes) = (0, 0);
        let mut kept = 0;
        for file in finished.iter().rev() {
            files += 1;
            bytes += file.bytes();
            let is_beyond =
                (self.keep.files > 0 && files > self.keep.files) || (self.keep.bytes > 0 && bytes > self.keep.bytes);
            // The newest stays however long it is.
            if is_beyond && kept > 0 {
                break;
            }
            kept += 1;
        }
        finished.truncate(finished.len() - kept);
        let removed = finished.iter().filter(|file| self.remove(file));
        removed.filter_map(|file| Some(file.forms().next()?.path.clone())).collect()
    }

    /// Removes what a crash has left of compressed forms.
    pub(super) fn remove_left(&self) {
        self.name.begun_to_be_compressed().iter().for_each(|plain| remove_left(plain));
    }

    /// Removes a file in each of its forms.
    fn remove(&mut self, file: &Finished) -> bool {
        let mut forms = file.forms();
        forms.all(|form| self.remove_form(form))
    }

    /// Removes one file, if it is the one that is listed and nobody uses it.
    fn remove_form(&mut self, file: &Form) -> bool {
        if let Err(error) = remove_unused(file) {
            if self.said.insert(file.path.clone()) {
                log::warn!("cannot remove {}: {error}; udpd keeps it and tries again", file.path.display());
            }
            return false;
        }
        self.said.remove(&file.path);
        true
    }

    /// Which files wait to be compressed, the oldest first: none of those that are `open` here, and not the one of this
    /// moment, whose path comes again. A crash that has left a file in both forms is finished here.
    pub(super) fn candidates(&mut self, open: &[u64], now: u64) -> Vec<Candidate> {
        let current = self.name.at(now);
        let Some(index) = self.index.as_mut().filter(|_| self.recipe.is_some()) else { return Vec::new() };
        let mut candidates = Vec::new();
        for file in index.present() {
            let Finished { plain: Some(plain), compressed, is_from_before } = file else { continue };
            if open.contains(&plain.inode) || plain.path == current {
                continue;
            }
            match compressed {
                None => {
                    let Form { path, inode, .. } = plain;
                    candidates.push(Candidate { path, inode, may_be_torn: is_from_before });
                }
                Some(compressed) if is_the_same(&plain, &compressed) => drop(self.remove_form(&plain)),
                // Somebody has changed one of the two, and neither is ours to remove.
                Some(_) => {}
            }
        }
        candidates
    }

    /// Where the name of the compressed form is taken the file gets another name first; returns what it is called then.
    /// That happens where the path has a code that comes again, such as the hour of the day.
    pub(super) fn with_free_name(&mut self, file: Candidate, method: Method, now: u64) -> io::Result<Candidate> {
        if method.path_of(&file.path).symlink_metadata().is_err() {
            return Ok(file);
        }
        let base = self.name.before_finishing(&file.path).unwrap_or_else(|| file.path.clone());
        let path = set_aside(&file.path, finished_names(&base, now), |name| self.list_by(name, Ok(file.inode)))?;
        Ok(Candidate { path, ..file })
    }

    /// The compressed form of a file, with this number, is about to get its name.
    pub(super) fn list_compressed(&mut self, plain: &Path, method: Method, inode: u64) -> io::Result<()> {
        let Some(index) = &mut self.index else { return Err(io::Error::other("there is no list of finished files")) };
        index.add_compressed(plain, method, inode)
    }
}

/// Removes a file, if it is this one and nobody uses it.
pub(super) fn remove_unused(file: &Form) -> io::Result<()> {
    let opened = open_to_look(&file.path)?;
    if opened.metadata()?.ino() != file.inode {
        return Err(io::Error::other("it is now another file"));
    }
    if lock::is_locked(&opened) {
        return Err(io::Error::other("somebody has locked it"));
    }
    fs::remove_file(&file.path)
}

/// Whether a compressed form was made of this file and neither was changed since: it has the same time of change.
fn is_the_same(plain: &Form, compressed: &Form) -> bool {
    let changed = |form: &Form| form.path.symlink_metadata().and_then(|metadata| metadata.modified()).ok();
    changed(plain).is_some_and(|changed_at| changed(compressed) == Some(changed_at))
}

/// Opens a file to see what it is, and waits for nobody.
fn open_to_look(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path)
}
