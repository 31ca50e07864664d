//! The temporary file of a compressed form, and its exchange for the plain file. The temporary file is hidden, so that
//! no reader takes it for a complete one, and is removed when it is dropped without a rename.
//!
//! Each step of the exchange leaves one complete form under a listed name, even if a crash follows it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::super::handle::set_aside;
use super::super::index::FinishedForm;
use super::super::lock;
use super::super::retention::{Retention, remove_unused};
use super::{CompressError, CompressedFile, FileStamp};
use udpd_base::codec::Method;

/// How its name ends.
const SUFFIX: &str = ".udpd-new";

/// A file that is being written, or is written and has no name yet.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) inode: u64,
}

/// Where the compressed form of a file is written first.
pub(super) fn path_for(plain: &Path, method: Method) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(plain.file_name().unwrap_or_default());
    name.push(method.suffix());
    name.push(SUFFIX);
    plain.with_file_name(name)
}

/// The name of the file of which this would be the compressed form, where it is the name of a temporary file.
pub(crate) fn is_temporary_of(name: &str) -> Option<&str> {
    let form = name.strip_prefix('.')?.strip_suffix(SUFFIX)?;
    Method::of_name(form).map(|(_, plain)| plain)
}

/// Removes the temporary file that a crash has left, unless another process writes it.
pub(crate) fn remove_left(plain: &Path) {
    for path in Method::ALL.map(|method| path_for(plain, method)) {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let Ok(left) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else { continue };
        if left.metadata().is_ok_and(|found| found.is_file()) && !lock::is_locked(&left) {
            let _ = fs::remove_file(&path);
        }
    }
}

impl TemporaryFile {
    /// Creates it, in place of one that a crash has left. A locked one is being written by another process.
    pub(super) fn make(plain: &Path, method: Method, mode: u32) -> io::Result<Self> {
        let path = path_for(plain, method);
        let open = |options: &mut OpenOptions| {
            let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
            options.custom_flags(flags).mode(mode & 0o777).open(&path)
        };
        let make = || open(OpenOptions::new().write(true).create_new(true));
        let file = match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let left = open(OpenOptions::new().read(true))?;
                if !left.metadata()?.is_file() {
                    return Err(io::Error::other(format!("{} is in the way", path.display())));
                }
                if lock::is_locked(&left) {
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process compresses it"));
                }
                fs::remove_file(&path)?;
                make()?
            }
            made => made?,
        };
        let inode = file.metadata()?.ino();
        let temporary = Self { path, file, inode };
        lock::claim(&temporary.file, &temporary.path)?;
        Ok(temporary)
    }

    /// Whether its path still leads to it.
    pub(super) fn is_in_place(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|found| found.is_file() && found.ino() == self.inode)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// How many bytes a file was long, and is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompressedSizes {
    pub from_bytes: u64,
    pub to_bytes: u64,
}

/// The whole exchange, for a keeper that alone writes the index and begins the file.
pub(crate) fn exchange(
    retention: &mut Retention,
    plain: &Path,
    made: &CompressedFile,
) -> Result<CompressedSizes, CompressError> {
    list(retention, plain, made)?;
    take_place(made)?;
    Ok(remove_plain(plain, made))
}

/// Adds the compressed form to the index, before it gets its name.
pub(crate) fn list(retention: &mut Retention, plain: &Path, made: &CompressedFile) -> Result<(), CompressError> {
    if !is_unchanged(plain, &made.plain) || !made.temporary.is_in_place() {
        return Err(CompressError::Changed);
    }
    if made.target.symlink_metadata().is_ok() {
        let what = format!("another process has made {} meanwhile", made.target.display());
        return Err(CompressError::Failed(io::Error::new(io::ErrorKind::AlreadyExists, what)));
    }
    retention.list_compressed(plain, made.recipe.method, made.temporary.inode).map_err(CompressError::Failed)
}

/// Renames it and syncs the directory.
pub(crate) fn take_place(made: &CompressedFile) -> Result<(), CompressError> {
    set_aside(&made.temporary.path, std::iter::once(made.target.clone()), |_| ()).map_err(CompressError::Failed)?;
    let directory = made.target.parent().unwrap_or(Path::new("/"));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(CompressError::Failed)
}

/// Removes the plain file. If that fails, the next look at the index does it.
pub(crate) fn remove_plain(plain: &Path, made: &CompressedFile) -> CompressedSizes {
    let form = FinishedForm { path: plain.to_owned(), inode: made.plain.inode, bytes: made.plain.bytes };
    if is_unchanged(plain, &made.plain)
        && let Err(error) = remove_unused(&form)
    {
        log::debug!("cannot remove {} yet, which is compressed: {error}", plain.display());
    }
    CompressedSizes { from_bytes: made.plain.bytes, to_bytes: made.bytes }
}

fn is_unchanged(path: &Path, seen: &FileStamp) -> bool {
    path.symlink_metadata().is_ok_and(|found| {
        let is_changed = found.modified().map_or(true, |changed| changed != seen.changed);
        found.is_file() && (found.ino(), found.len()) == (seen.inode, seen.bytes) && !is_changed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_has_left_is_replaced_and_what_another_process_writes_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let plain = directory.path().join("a.log");
        let path = path_for(&plain, Method::Gzip);
        assert_eq!(path, directory.path().join(".a.log.gz.udpd-new"));
        assert_eq!(is_temporary_of(".a.log.gz.udpd-new"), Some("a.log"));
        fs::write(&path, "left").expect("written");
        let first = TemporaryFile::make(&plain, Method::Gzip, 0o640).expect("made");
        assert_eq!(first.file.metadata().expect("there").len(), 0);
        let error = TemporaryFile::make(&plain, Method::Gzip, 0o640).expect_err("it is being written");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(first.is_in_place());
        drop(first);
        assert!(!path.exists());
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        TemporaryFile::make(&plain, Method::Gzip, 0o640).expect_err("a link is no file of ours");
    }
}
