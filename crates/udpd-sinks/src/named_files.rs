//! The files that a sink names (certificates, keys, passwords and tokens): where they are, which users may read them,
//! and whether their content has changed.
//!
//! A path that begins with `$CREDENTIALS_DIRECTORY/` is a credential of the service manager (`LoadCredential=` of
//! systemd), which only this unit can read. A check of the configuration outside of the unit has none, which is no
//! error.

use std::fmt;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use udpd_base::os::path_check;
use udpd_base::text::advice::ValueAdvice;

/// How the path of a credential begins, and the variable that says where they are.
const CREDENTIAL: &str = "$CREDENTIALS_DIRECTORY/";
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// The longest file of certificates: those of all authorities that a system knows are a fifth of a mebibyte.
pub(crate) const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A path as the configuration may name it: absolute, or a credential.
pub(crate) fn check_path(text: &str) -> Result<PathBuf, ValueAdvice> {
    match text.strip_prefix(CREDENTIAL) {
        None => path_check::check_file(text),
        Some(name) if !name.is_empty() && !name.contains('/') => Ok(PathBuf::from(text)),
        Some(_) => {
            let cure = format!("write {CREDENTIAL}NAME, where the unit has LoadCredential=NAME:/path");
            Err(ValueAdvice::new(format!("{text:?} names no credential"), cure))
        }
    }
}

/// Where a file that the configuration names is; `None` for a credential if the service manager has passed none.
pub(crate) fn located(path: &Path) -> Option<PathBuf> {
    match path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)) {
        Some(name) => std::env::var_os(DIRECTORY).map(|directory| PathBuf::from(directory).join(name)),
        None => Some(path.to_owned()),
    }
}

/// The directories in which files are found, also when one is replaced, or a link's target changes.
pub(crate) fn directories(places: impl Iterator<Item = PathBuf>) -> impl Iterator<Item = PathBuf> {
    let with_behind_link = places.flat_map(|place| [place.canonicalize().ok(), Some(place)]);
    with_behind_link.flatten().filter_map(|place| place.parent().map(Path::to_owned))
}

/// The content of a file; an error if that is longer than it may be.
pub(crate) fn contents(place: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    // Opening a pipe would block, also one that has just taken the file's place.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(place)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let length = file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match length as u64 > bytes_max {
        true => Err(std::io::Error::other(format!("it is longer than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

/// A warning if users that should not may read a secret.
pub(crate) fn doubt(path: &Path) -> Option<ValueAdvice> {
    let place = located(path)?;
    let mode = std::fs::metadata(&place).ok()?.mode();
    (mode & 0o007 != 0).then(|| {
        let what = format!("every user of this host may use {} (mode {:03o})", place.display(), mode & 0o777);
        ValueAdvice::new(what, format!("take that away with: chmod o= {}", place.display()))
    })
}

/// A fingerprint of a file's content when the configuration was read, to notice a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Print(Option<u64>);

impl Print {
    pub(crate) fn of(path: &Path) -> Self {
        let print = |bytes: Vec<u8>| {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            hasher.finish()
        };
        Self(located(path).and_then(|place| contents(&place, BYTES_MAX).ok()).map(print))
    }
}

impl fmt::Debug for Print {
    /// A fingerprint of a password would help to guess it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Print")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("password");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        (directory, path)
    }

    #[test]
    fn a_file_that_every_user_may_read_is_warned_of_with_the_cure() {
        for mode in [0o644, 0o602, 0o601] {
            let (_directory, path) = written("secret", mode);
            let advice = doubt(&path).expect("a doubt").to_string();
            assert!(advice.contains(&format!("mode {mode:03o}")) && advice.contains("chmod o="), "{advice}");
        }
        for mode in [0o600, 0o640] {
            assert_eq!(doubt(&written("secret", mode).1), None, "its group is the operator's affair");
        }
    }

    #[test]
    fn a_path_is_absolute_or_a_credential() {
        assert_eq!(check_path("$CREDENTIALS_DIRECTORY/kafka"), Ok(PathBuf::from("$CREDENTIALS_DIRECTORY/kafka")));
        for text in ["$CREDENTIALS_DIRECTORY/", "$CREDENTIALS_DIRECTORY/a/b", "password", "/etc/../password"] {
            assert!(check_path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_print_is_another_when_the_file_holds_something_else_and_shows_nothing_of_it() {
        let (_directory, path) = written("one", 0o600);
        let before = Print::of(&path);
        fs::write(&path, "one").expect("written");
        assert_eq!(Print::of(&path), before, "the same text, written again");
        fs::write(&path, "two").expect("written");
        assert_ne!(Print::of(&path), before);
        assert_eq!(format!("{before:?}"), "Print");
        assert_eq!(Print::of(Path::new("/nonexistent")), Print(None));
    }
}
