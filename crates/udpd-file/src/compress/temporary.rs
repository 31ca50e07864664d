//! The file that a compressed form is written to before it has its name. It is hidden, so that nobody takes it for a
//! whole one, and is removed by whoever lets go of it without giving it that name.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::super::lock;
use udpd_base::codec::Method;

/// How its name ends.
const SUFFIX: &str = ".udpd-new";

/// A file that is being written, or is written and has no name yet.
#[derive(Debug)]
pub(super) struct Temporary {
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

/// Removes what a crash has left of a compressed form, unless another process writes it.
pub(crate) fn remove_left(plain: &Path) {
    for path in Method::ALL.map(|method| path_for(plain, method)) {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let Ok(left) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else { continue };
        if left.metadata().is_ok_and(|found| found.is_file()) && !lock::is_locked(&left) {
            let _ = fs::remove_file(&path);
        }
    }
}

impl Temporary {
    /// Makes it, in place of one that a crash has left. One that somebody has locked is written by another process.
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

    /// Whether it is still what is at its path.
    pub(super) fn is_in_place(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|found| found.is_file() && found.ino() == self.inode)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
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
        let first = Temporary::make(&plain, Method::Gzip, 0o640).expect("made");
        assert_eq!(first.file.metadata().expect("there").len(), 0);
        let error = Temporary::make(&plain, Method::Gzip, 0o640).expect_err("it is being written");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(first.is_in_place());
        drop(first);
        assert!(!path.exists());
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        Temporary::make(&plain, Method::Gzip, 0o640).expect_err("a link is no file of ours");
    }
}
