//! Paths that the daemon will create: checked without touching them.

use std::path::{Component, Path, PathBuf};

use crate::text::advice::ValueAdvice;

/// The longest path of a Unix socket that the kernel takes (sun_path, without its final zero byte).
const SOCKET_PATH_MAX: usize = 107;

/// An absolute path of a file that may be there or not, but is no directory.
pub fn check_file(text: &str) -> Result<PathBuf, ValueAdvice> {
    if text.is_empty() {
        return Err(ValueAdvice::new("the path is empty", "write an absolute path, such as \"/var/log/udpd/all.log\""));
    }
    if text.chars().any(char::is_control) {
        return Err(ValueAdvice::new(
            format!("{text:?} holds a control character"),
            "write a path of printable characters",
        ));
    }
    let path = Path::new(text);
    if !path.is_absolute() {
        let what = match text.chars().next() {
            Some('$' | '~') => format!("{text:?} is not filled in: there is no shell and no home here"),
            _ => format!("{text:?} is relative, and the daemon has no directory of its own"),
        };
        return Err(ValueAdvice::new(what, "write a path that starts with /"));
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(ValueAdvice::new(format!("{text:?} climbs with .."), "write the path that it leads to"));
    }
    if let Some(advice) = stream_of_this_process(path) {
        return Err(advice);
    }
    if text.ends_with('/') || path.is_dir() {
        let file = format!("{}/NAME", text.trim_end_matches('/'));
        return Err(ValueAdvice::new(format!("{text:?} is a directory"), format!("name a file in it: {file:?}")));
    }
    Ok(tidy(path))
}

/// What is under these names is a stream that this process was started with, and behind a symbolic link.
fn stream_of_this_process(path: &Path) -> Option<ValueAdvice> {
    let own = ["/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];
    let path = tidy(path);
    let text = path.to_str()?;
    let number = own.iter().find_map(|folder| text.strip_prefix(folder));
    match (text, number) {
        ("/dev/stdout", _) | (_, Some("1")) => {
            let what = format!("{text:?} is the standard output of udpd and no file of its own");
            Some(ValueAdvice::new(what, "write records there with a sink of type \"stdout\", or --to stdout:"))
        }
        ("/dev/stdin" | "/dev/stderr", _) | (_, Some(_)) => {
            let what = format!("{text:?} is a stream that udpd was started with, and no file of its own");
            Some(ValueAdvice::new(what, "write the path that it leads to"))
        }
        _ => None,
    }
}

/// As [`check_file`], for a file that will be replaced as a whole. Whatever else stands there, a device above all, was
/// made by another program for another purpose.
pub fn check_replaced(text: &str) -> Result<PathBuf, ValueAdvice> {
    let path = check_file(text)?;
    let what = match path.symlink_metadata().map(|found| found.file_type()) {
        Ok(kind) if kind.is_symlink() => "a symbolic link, which would itself be replaced by a file",
        Ok(kind) if !kind.is_file() => "not a regular file, and would be replaced by one",
        _ => return Ok(path),
    };
    Err(ValueAdvice::new(format!("{text:?} is {what}"), "name a regular file, or one that does not exist yet"))
}

/// As [`check_file`], for a Unix socket.
pub fn check_socket(text: &str) -> Result<PathBuf, ValueAdvice> {
    let path = check_file(text)?;
    if text.len() > SOCKET_PATH_MAX {
        let what = format!("{text:?} is {} bytes long, and the path of a socket at most {SOCKET_PATH_MAX}", text.len());
        return Err(ValueAdvice::new(what, "choose a shorter path, such as \"/run/udpd/control.sock\""));
    }
    Ok(path)
}

/// The path without doubled slashes and dots, so that two spellings of one file compare equal.
pub fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The path without links, as far as it leads to something that is there.
pub fn resolve(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_there = |directory: &&Path| directory.is_dir();
    let Some(directory) = path.ancestors().skip(1).find(is_there) else { return tidy(&path) };
    let below = path.strip_prefix(directory).unwrap_or(&path);
    tidy(&directory.canonicalize().unwrap_or_else(|_| directory.to_owned()).join(below))
}

/// The path from `directory` on, as text.
pub fn absolute(path: &Path, directory: &Path) -> Result<String, ValueAdvice> {
    let slash = path.as_os_str().to_string_lossy().ends_with('/');
    let whole = tidy(&directory.join(path));
    match whole.to_str() {
        // Joining would lose the final slash, which says that a directory is meant.
        Some(text) => Ok(format!("{text}{}", if slash { "/" } else { "" })),
        None => Err(ValueAdvice::new(format!("{whole:?} is not UTF-8"), "choose a path that is")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_must_be_an_absolute_file() {
        assert_eq!(check_file("/var//log/./x.log"), Ok(PathBuf::from("/var/log/x.log")));
        for (text, words) in [
            ("", "is empty"),
            ("x.log", "is relative"),
            ("/tmp", "is a directory"),
            ("/nonexistent/", "\"/nonexistent/NAME\""),
            ("/var/../etc/x", "climbs"),
            ("/var/x\0y", "control character"),
            ("/dev/stdout", "a sink of type \"stdout\""),
            ("/dev//fd/1", "a sink of type \"stdout\""),
            ("/proc/self/fd/7", "write the path that it leads to"),
            ("/dev/stderr", "write the path that it leads to"),
        ] {
            let advice = check_file(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text:?}: {advice}");
        }
    }

    #[test]
    fn a_file_to_be_replaced_is_a_regular_file_or_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(path("file"), "").expect("a file");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("a link");
        nix::unistd::mkfifo(path("pipe").as_str(), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(check_replaced(&path("file")).is_ok());
        assert!(check_replaced(&path("absent")).is_ok());
        for (name, words) in [("link", "symbolic link"), ("pipe", "not a regular file")] {
            let advice = check_replaced(&path(name)).expect_err(name).to_string();
            assert!(advice.contains(words), "{name}: {advice}");
        }
        assert!(check_replaced("/dev/null").is_err());
    }

    #[test]
    fn a_socket_must_fit_the_kernel() {
        assert!(check_socket(&format!("/{}", "x".repeat(106))).is_ok());
        assert!(check_socket(&format!("/{}", "x".repeat(107))).is_err());
    }
}
