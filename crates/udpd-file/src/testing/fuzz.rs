//! Fuzz targets: paths with placeholders, the names of files, and the index of what was finished.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::finished_files::{FinishedFile, Index};
use crate::name::FileName;
use crate::sources::fuzz::source_of_name;
use crate::template::{self, PathNames};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("templates", templates), ("file_names", file_names), ("index", index)]
}

/// A message about a path stays on one line; a path that is right leads to the same place for every sender.
fn templates(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Err(advice) = template::check(text) {
        let said = advice.to_string();
        assert!(text.contains(char::is_control) || !said.contains(char::is_control), "{said:?}");
        return;
    }
    let names = PathNames { listener: "in", lane: 3, consumer: 1, sink: "out" };
    let path = template::expand(text, &names);
    assert_eq!(template::check(&path), Ok(()), "{path}");
    assert_eq!(template::is_by_datagram(text), template::is_by_datagram(&path));
    assert!(!template::needs_destination(text) || template::is_by_datagram(text));
    assert!(template::is_by_datagram(&path) || !path.contains(['{', '}']));
    if path.len() < 200 && path.split('{').count() < 6 {
        source_of_name(&path);
    }
}

/// The first line is a path with codes, the rest a name that another program may have made: what is taken for a file of
/// ours can be one, and each of ours is taken.
fn file_names(input: &[u8]) {
    let Some((pattern, below)) = std::str::from_utf8(input).ok().and_then(|text| text.split_once('\n')) else { return };
    if template::check(pattern).is_err() || pattern.contains('{') || !pattern.starts_with('/') {
        return;
    }
    let name = FileName::new(pattern.to_owned(), Duration::from_secs(3_600));
    let (directory, _) = name.below_fixed();
    if name.is_finished(below) {
        let before = name.before_finishing(&directory.join(below)).expect("what is finished was written");
        assert!(before.starts_with(&directory), "{before:?}");
        assert!(!below.split('/').any(|part| part == ".."), "{below}");
    }
    for seconds in [0, 951_826_154, 1_795_243_341, 253_402_300_799] {
        let path = name.at(seconds);
        let ends = name.ends(seconds).expect("a period is set");
        assert!(ends > seconds && ends <= seconds + 3_600);
        let below = path.strip_prefix(&directory).expect("below its directory").to_str().expect("text");
        assert_eq!(name.is_finished(below), name.is_dated(), "{below}");
        assert!(name.is_finished(&format!("{below}.20261124T150000Z")));
        assert_eq!(name.before_finishing(&path), Some(path.clone()));
    }
}

/// The first byte picks the path of the sink, the rest is its index; the files that it names are there, every other one
/// with the inode that it has there. No more is found than lines are there, and nothing outside of the directory.
fn index(input: &[u8]) {
    let Some((&kind, content)) = input.split_first() else { return };
    let root = tempfile::tempdir_in(memory()).expect("a directory");
    let pattern = ["a.log", "%Y/%m%d.log", "a-%H%M%S"][usize::from(kind % 3)];
    let name = FileName::new(root.path().join(pattern).to_string_lossy().into_owned(), Duration::ZERO);
    let mut written = Vec::new();
    let mut lines = 0;
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        lines += 1;
        let inode = std::str::from_utf8(line).ok().and_then(|line| made(root.path(), line, lines));
        match inode {
            Some((inode, name)) => written.extend_from_slice(format!("{inode} {name}\n").as_bytes()),
            None => written.extend_from_slice(line),
        }
    }
    let path = Index::path_of(&name);
    fs::write(&path, &written).expect("an index");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    let Ok(mut index) = Index::open(&name) else { return };
    let found = index.present();
    assert!(found.len() <= lines);
    for form in found.iter().flat_map(FinishedFile::forms) {
        let below = form.path.strip_prefix(root.path()).expect("below the directory");
        assert!(below.components().all(|part| matches!(part, Component::Normal(_))), "{below:?}");
        assert!(form.path.is_file());
    }
    let own = name.at(1_795_243_341);
    let _ = index.add(&own, 7);
    let again = Index::open(&name).expect("what was written is an index").present();
    let paths = |found: &[FinishedFile]| -> Vec<PathBuf> {
        found.iter().flat_map(FinishedFile::forms).map(|form| form.path.clone()).filter(|path| *path != own).collect()
    };
    assert_eq!(paths(&again), paths(&found));
}

/// Makes the file that a line of an index names, where it can be; its inode, and its name.
fn made<'l>(root: &Path, line: &'l str, number: usize) -> Option<(u64, &'l str)> {
    let (_, name) = line.strip_suffix('\n')?.split_once(' ')?;
    let path = root.join(name);
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if number % 2 == 1 || !is_plain || name.is_empty() || name.len() > 200 {
        return None;
    }
    fs::create_dir_all(path.parent()?).ok()?;
    fs::write(&path, b"x").ok()?;
    Some((fs::metadata(&path).ok()?.ino(), name))
}

/// A file system in memory, where there is one.
fn memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
