//! Where the sockets of an ordinary user's processes are: a directory that no other user can write to.
//!
//! A login has one (`XDG_RUNTIME_DIR`); what runs by `su`, by cron or in a container has none. A variable that was
//! inherited from another user, as by `su` without a dash, names a directory of theirs. In /tmp others may have made
//! the directory before, or a link of its name: so who uses that one looks first whose it is, and never behind a link.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, geteuid};

use super::user;

/// The user's own directory where there is no other.
const LAST: &str = "/tmp/udpd-";

/// The directories that a socket of this user may be in, the best first: a daemon takes the first, and a client
/// looks in all. None where they can be of no use.
pub fn directories() -> Vec<PathBuf> {
    of_user(geteuid(), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Path::new("/run/user"))
}

/// Where what outlives a process is: the directory that systemd gave to the unit, that of packages for root, or that of
/// the user. `None` where no variable tells.
pub fn state_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // systemd separates several directories with colons; the first is the one of the unit's own name.
    let of_unit = std::env::var("STATE_DIRECTORY").ok();
    let of_unit = of_unit.as_deref().and_then(|paths| paths.split(':').next()).filter(|path| path.starts_with('/'));
    of_unit.map(PathBuf::from).or_else(|| {
        if user::is_or_was_root() {
            return Some(PathBuf::from("/var/lib/udpd"));
        }
        let of_login = variable("XDG_STATE_HOME");
        of_login.or_else(|| Some(variable("HOME")?.join(".local/state"))).map(|state| state.join("udpd"))
    })
}

fn of_user(user: Uid, of_login: Option<PathBuf>, of_all_logins: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == user.as_raw());
    let of_login = of_login.filter(|path| path.is_absolute());
    let by_number = (!user.is_root()).then(|| of_all_logins.join(user.to_string()));
    let mut directories: Vec<PathBuf> =
        of_login.into_iter().chain(by_number).filter(is_own).map(|directory| directory.join("udpd")).collect();
    directories.extend((!user.is_root()).then(|| last(user)));
    directories.dedup();
    directories
}

fn last(user: Uid) -> PathBuf {
    PathBuf::from(format!("{LAST}{user}"))
}

/// Whether others may have made it before its user did.
pub fn is_shared_place(directory: &Path) -> bool {
    directory == last(geteuid())
}

/// Refuses a directory in a place that is shared unless it is this user's and no other gets in.
pub fn check_private(directory: &Path) -> io::Result<()> {
    check(&fs::symlink_metadata(directory)?, geteuid())
}

fn check(found: &Metadata, user: Uid) -> io::Result<()> {
    let (owner, mode) = (found.uid(), found.mode() & 0o777);
    let what = match () {
        () if found.is_symlink() => "it is a symbolic link".to_owned(),
        () if !found.is_dir() => "it is no directory".to_owned(),
        () if owner != user.as_raw() => format!("it belongs to user {owner}"),
        () if mode & 0o077 != 0 => format!("its mode is {mode:04o}, and others get in"),
        () => return Ok(()),
    };
    Err(io::Error::new(ErrorKind::PermissionDenied, what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_user_has_the_directory_of_the_login_then_that_of_all_its_logins_then_one_of_its_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let user = Uid::from_raw(fs::metadata(directory.path()).expect("it is there").uid());
        let (login, by_number) = (directory.path().join("login"), directory.path().join(user.to_string()));
        let find = |login: &Path| of_user(user, Some(login.to_owned()), directory.path());
        let own = |path: &Path| path.join("udpd");
        // Root's daemon has a place that is known, and root's clients look there first.
        let others = |paths: Vec<PathBuf>| if user.is_root() { Vec::new() } else { paths };
        assert_eq!(find(&login), others(vec![last(user)]), "neither is there");
        fs::create_dir(&by_number).expect("made");
        assert_eq!(find(&login), others(vec![own(&by_number), last(user)]));
        fs::create_dir(&login).expect("made");
        let whole = [vec![own(&login)], others(vec![own(&by_number), last(user)])].concat();
        assert_eq!(find(&login), whole);
        assert_eq!(find(Path::new("login")), others(vec![own(&by_number), last(user)]), "relative");
        let other = Uid::from_raw(user.as_raw() + 1);
        assert_eq!(of_user(other, Some(login), directory.path()), [last(other)], "another user's");
    }

    #[test]
    fn a_directory_of_somebody_else_a_link_and_one_that_others_get_into_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let user = Uid::from_raw(fs::metadata(directory.path()).expect("it is there").uid());
        let (own, link, file) = (directory.path().join("own"), directory.path().join("l"), directory.path().join("f"));
        fs::DirBuilder::new().mode(0o700).create(&own).expect("made");
        symlink(&own, &link).expect("a link");
        fs::write(&file, "").expect("a file");
        let check = |path: &Path, user| check(&fs::symlink_metadata(path).expect("it is there"), user);
        assert!(check(&own, user).is_ok());
        let refused = |path: &Path, user, why: &str| {
            let error = check(path, user).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(&own, Uid::from_raw(user.as_raw() + 1), "belongs to user");
        refused(&link, user, "symbolic link");
        refused(&file, user, "no directory");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).expect("it is ours");
        refused(&own, user, "its mode is 0750");
    }
}
