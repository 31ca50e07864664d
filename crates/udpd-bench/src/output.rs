//! The files that `--csv` and `--svg` name. The bench overwrites nothing that it has not made, unless `--force` says
//! so, and then only a regular file under its own name: never what a symbolic link leads to, and no pipe, device or
//! socket.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use udpd_base::exit::{ExitCode, Failure};

/// A file that is to be written when everything has been measured.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    option: &'static str,
    path: &'a Path,
    force: bool,
}

impl<'a> Output<'a> {
    /// The file of an option, if it is given. What stands in its way is told now, and not after everything has been
    /// measured.
    pub(crate) fn of(option: &'static str, path: Option<&'a PathBuf>, force: bool) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let output = Self { option, path, force };
        match path.symlink_metadata() {
            Ok(found) if !found.is_file() => Err(output.refuse("is not a regular file; choose another path")),
            Ok(_) if !force => Err(output.exists()),
            _ => Ok(Some(output)),
        }
    }

    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        self.open()?.write_all(text.as_bytes()).map_err(|error| self.cannot(&error))
    }

    fn open(&self) -> Result<File, Failure> {
        match OpenOptions::new().write(true).create_new(true).open(self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.force => self.open_existing(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(self.exists()),
            other => other.map_err(|error| self.cannot(&error)),
        }
    }

    fn open_existing(&self) -> Result<File, Failure> {
        // A pipe without a reader would be waited for; and nothing is cut off before it is known what it is.
        let flags = O_NOFOLLOW | O_NONBLOCK;
        let file =
            OpenOptions::new().write(true).custom_flags(flags).open(self.path).map_err(|error| self.cannot(&error))?;
        match file.metadata() {
            Ok(found) if !found.is_file() => Err(self.refuse("is not a regular file; choose another path")),
            Ok(_) => file.set_len(0).map(|()| file).map_err(|error| self.cannot(&error)),
            Err(error) => Err(self.cannot(&error)),
        }
    }

    fn exists(&self) -> Failure {
        self.refuse("exists already; choose another path, or add --force to overwrite it")
    }

    fn refuse(&self, why: &str) -> Failure {
        Failure::new(ExitCode::Usage, format!("{}: {} {why}", self.option, self.path.display()))
    }

    fn cannot(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => ExitCode::Permission,
            _ => ExitCode::Disk,
        };
        let text = format!("{}: cannot write {}: {error}; choose another path", self.option, self.path.display());
        Failure::new(code, text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &PathBuf, force: bool, text: &str) -> Result<(), Failure> {
        Output::of("--csv", Some(path), force)?.expect("a path was given").write(text)
    }

    #[test]
    fn what_is_there_is_overwritten_only_by_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.csv");
        write(&path, false, "a long first one").expect("a new file");
        let failure = write(&path, false, "second").expect_err("it is there");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("--force"), "{failure}");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "a long first one");
        write(&path, true, "second").expect("forced");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "second");
    }

    #[test]
    fn a_file_that_comes_while_the_bench_measures_is_kept_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.csv");
        let output = Output::of("--csv", Some(&path), false).expect("nothing is there").expect("a path was given");
        fs::write(&path, "somebody's").expect("written");
        assert_eq!(output.write("the bench's").expect_err("it is there").code, ExitCode::Usage);
        assert_eq!(fs::read_to_string(&path).expect("the file"), "somebody's");
    }

    #[test]
    fn no_force_goes_through_a_link_or_into_a_pipe() {
        let directory = tempfile::tempdir().expect("a directory");
        let [target, link, pipe] = ["target", "link", "pipe"].map(|name| directory.path().join(name));
        fs::write(&target, "somebody's").expect("written");
        symlink(&target, &link).expect("a link");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        for path in [link, pipe] {
            let output = Output { option: "--csv", path: &path, force: true };
            assert!(output.write("the bench's").is_err(), "{}: also when it came after the first look", path.display());
            assert_eq!(write(&path, true, "the bench's").expect_err("refused").code, ExitCode::Usage);
        }
        assert_eq!(fs::read_to_string(&target).expect("the file"), "somebody's");
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_matter_of_the_disk() {
        let failure = write(&"/nonexistent/a.csv".into(), false, "").expect_err("no directory");
        assert_eq!(failure.code, ExitCode::Disk);
    }
}
