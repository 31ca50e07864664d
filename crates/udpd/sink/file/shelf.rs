//! The finished files of a sink: which are kept, and which are removed. Only files that this sink finished are ever
//! removed, see `index`; and of those never the newest, never one that is open here, and never one that anybody has
//! locked.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::handle::Handle;
use super::index::{Finished, Index};
use super::lock;
use super::name::Name;
use super::settings::Keep;

/// The finished files of one path.
#[derive(Debug)]
pub(super) struct Shelf {
    name: Name,
    keep: Keep,
    /// Which they are; `None` when nothing is ever removed.
    index: Option<Index>,
    /// Files of which it was said that they could not be removed.
    said: HashSet<PathBuf>,
}

impl Shelf {
    /// Without what an earlier run has left in the index.
    pub(super) fn new(name: &Name, keep: Keep) -> Self {
        Self { name: name.clone(), keep, index: None, said: HashSet::new() }
    }

    /// Reads that, which nobody else adds to any more.
    pub(super) fn read(&mut self) {
        if self.keep == Keep::ALL {
            return;
        }
        match Index::open(&self.name) {
            Ok(index) => self.index = Some(index),
            Err(error) => log::error!(
                "cannot read the list of finished files, {}: {error}; keep removes nothing; move the list away or \
                 remove it, and restart udpd",
                Index::path_of(&self.name).display()
            ),
        }
    }

    /// Says once what will never be removed although it looks like a finished file.
    pub(super) fn say_unlisted(&self, current: &Path) {
        let Some(index) = &self.index else { return };
        let unlisted = index.unlisted(current);
        if unlisted > 0 {
            log::warn!(
                "{unlisted} files have names like finished ones of {}, but {} does not list them: keep neither \
                 counts nor removes them",
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
        if let Err(error) = inode.and_then(|inode| index.add(path, inode)) {
            log::warn!(
                "cannot list {} in {}: {error}; unless udpd can before it ends, keep never removes that file",
                path.display(),
                index.path().display()
            );
        }
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
        let Some(index) = &mut self.index else { return Vec::new() };
        let mut finished = index.present();
        finished.retain(|file| !open.contains(&file.inode));
        let (mut files, mut bytes) = (0, 0);
        let mut kept = 0;
        for file in finished.iter().rev() {
            files += 1;
            bytes += file.bytes;
            let is_beyond =
                (self.keep.files > 0 && files > self.keep.files) || (self.keep.bytes > 0 && bytes > self.keep.bytes);
            // The newest stays however long it is.
            if is_beyond && kept > 0 {
                break;
            }
            kept += 1;
        }
        finished.truncate(finished.len() - kept);
        let removed = finished.into_iter().filter(|file| self.remove(file));
        removed.map(|file| file.path).collect()
    }

    /// Removes one file, if it is the one that is listed and nobody uses it.
    fn remove(&mut self, file: &Finished) -> bool {
        let outcome = open_to_look(&file.path).and_then(|opened| {
            if opened.metadata()?.ino() != file.inode {
                return Err(io::Error::other("it is now another file"));
            }
            if lock::is_locked(&opened) {
                return Err(io::Error::other("somebody has locked it"));
            }
            fs::remove_file(&file.path)
        });
        if let Err(error) = outcome {
            if self.said.insert(file.path.clone()) {
                log::warn!("cannot remove {}: {error}; udpd keeps it and tries again", file.path.display());
            }
            return false;
        }
        self.said.remove(&file.path);
        true
    }
}

/// Opens a file to see what it is, and waits for nobody.
fn open_to_look(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path)
}
