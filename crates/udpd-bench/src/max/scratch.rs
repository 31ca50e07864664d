//! Directories that the bench has made, for itself alone, and that never outlive it.
//!
//! They are removed when the search ends, however it ends: by its answer, an error, a panic or a signal. Only kill -9
//! leaves one behind, under a name that says whose it was. Before the bench removes anything in one it checks that it
//! still is the directory that it made: in a directory of another user, that user could have replaced it.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::libc::{O_DIRECTORY, O_NOFOLLOW};
use udpd_base::os::threads::lock;

/// How many names to try; one should do.
const NAMES_MAX: usize = 8;

/// How often a directory is emptied: a sink that was given up may still write into it for a moment.
const REMOVALS_MAX: usize = 100;
const REMOVAL_REST: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Default)]
pub(super) struct ScratchDirs(Arc<Mutex<Vec<ScratchDir>>>);

#[derive(Debug)]
struct ScratchDir {
    path: PathBuf,
    /// Held open, so that no other directory can get its number once it is gone.
    made: File,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl ScratchDir {
    fn make(inside: &Path) -> io::Result<Self> {
        for _ in 0..NAMES_MAX {
            // The standard library seeds each of these anew from the kernel's random numbers.
            let random = RandomState::new().build_hasher().finish();
            let path = inside.join(format!(".udpd-bench-{}-{random:016x}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let flags = O_DIRECTORY | O_NOFOLLOW;
                    let made = OpenOptions::new().read(true).custom_flags(flags).open(&path).inspect_err(|_| {
                        // It is empty, so no file of another program goes with it.
                        let _ = fs::remove_dir(&path);
                    })?;
                    return Ok(Self { path, made });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn is_own(&self) -> io::Result<bool> {
        Ok(identity(&self.made.metadata()?) == identity(&self.path.symlink_metadata()?))
    }

    fn empty(&self) -> io::Result<()> {
        if !self.is_own()? {
            return Err(io::Error::other("it is no longer the directory that the bench made"));
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let removed = match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path()),
                false => fs::remove_file(entry.path()),
            };
            removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    }

    fn remove(&self) {
        let mut outcome = Ok(());
        for _ in 0..REMOVALS_MAX {
            outcome = self.empty().and_then(|()| fs::remove_dir(&self.path));
            match &outcome {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => thread::sleep(REMOVAL_REST),
            }
        }
        if let Err(error) = outcome {
            log::error!("cannot remove {}: {error}; check whose it is, and remove it by hand", self.path.display());
        }
    }
}

impl ScratchDirs {
    /// Makes a directory inside of another, and returns its path.
    pub(super) fn make(&self, inside: &Path) -> io::Result<PathBuf> {
        let scratch = ScratchDir::make(inside)?;
        let path = scratch.path.clone();
        lock(&self.0).push(scratch);
        Ok(path)
    }

    /// Removes what is in one of them.
    pub(super) fn empty(&self, path: &Path) -> io::Result<()> {
        let all = lock(&self.0);
        all.iter().find(|scratch| scratch.path == path).map_or(Ok(()), ScratchDir::empty)
    }

    pub(super) fn remove(&self) {
        let mut all = lock(&self.0);
        all.drain(..).for_each(|scratch| scratch.remove());
    }
}

/// The disk space of a directory's files. What is removed meanwhile does not count.
pub(super) fn bytes_in(directory: &Path) -> u64 {
    /// Of the kernel's count, whatever the file system's own blocks are.
    const BLOCK_BYTES: u64 = 512;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        Ok(found) => found.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_private_and_goes_away_with_all_that_is_in_it() {
        let outside = tempfile::tempdir().expect("a directory");
        let scratches = ScratchDirs::default();
        let path = scratches.make(outside.path()).expect("made");
        assert_eq!(path.symlink_metadata().expect("there").mode() & 0o777, 0o700);
        fs::create_dir_all(path.join("2026/11")).expect("made");
        fs::write(path.join("2026/11/a.log"), vec![7; 10_000]).expect("written");
        assert!(bytes_in(&path) >= 10_000);
        scratches.empty(&path).expect("emptied");
        assert_eq!((path.exists(), bytes_in(&path)), (true, 0));
        fs::write(path.join("b.log"), "more").expect("written");
        scratches.remove();
        assert_eq!(fs::read_dir(outside.path()).expect("listed").count(), 0);
        // Twice does no harm.
        scratches.remove();
    }

    #[test]
    fn what_somebody_has_put_in_its_place_is_left_alone() {
        let outside = tempfile::tempdir().expect("a directory");
        let scratches = ScratchDirs::default();
        let path = scratches.make(outside.path()).expect("made");
        let theirs = outside.path().join("theirs");
        fs::create_dir(&theirs).expect("made");
        fs::write(theirs.join("kept.log"), "kept").expect("written");
        fs::remove_dir(&path).expect("removed");
        for link in [false, true] {
            match link {
                false => fs::rename(&theirs, &path).expect("renamed"),
                true => std::os::unix::fs::symlink(&theirs, &path).expect("linked"),
            }
            assert!(scratches.empty(&path).is_err());
            if !link {
                fs::rename(&path, &theirs).expect("renamed back");
            }
        }
        scratches.remove();
        assert_eq!(fs::read_to_string(theirs.join("kept.log")).expect("still there"), "kept");
    }

    #[test]
    fn a_link_in_it_is_removed_and_not_what_it_leads_to() {
        let outside = tempfile::tempdir().expect("a directory");
        let scratches = ScratchDirs::default();
        let path = scratches.make(outside.path()).expect("made");
        let theirs = tempfile::tempdir().expect("a directory");
        fs::write(theirs.path().join("kept.log"), "kept").expect("written");
        std::os::unix::fs::symlink(theirs.path(), path.join("link")).expect("linked");
        scratches.remove();
        assert!(theirs.path().join("kept.log").exists() && !path.exists());
    }
}
