//! Which files were finished here, and in which order: what `keep` goes by.
//!
//! A directory does not say it. A time of change is whatever the last copy, the last `touch` or a wrong clock left; a
//! date in a name is what the clock said then; and a name that looks like ours may be another sink's log or somebody's
//! own file. So a sink with `keep` has a small file of its own beside its files, `.NAME.udpd-index`, with a line for
//! each file: its inode number and its name. The lines stand in the order in which the files were finished, and nothing
//! is ever removed that has no line there, whose name is not one that this sink gives, or whose inode number is
//! another.
//!
//! A line is written before a file gets its name: a crash in between leaves a line without a file, which is dropped,
//! and never a file without a line. A crash in the middle of a line costs that line. Who removes the index keeps the
//! files that it listed: they are counted in one warning and left alone. Lines of files that are gone are dropped, so
//! it is as long as what is kept.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::name::Name;

/// How it begins, so that nobody's file is ever taken for one.
const HEADER: &str = "udpd index 1\n";

/// What is longer is not an index.
const BYTES_MAX: u64 = 64 << 20;

/// It is written anew when it has more lines that say nothing any more than lines that do, and than this.
const STALE_LINES_MAX: usize = 64;

/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;

/// A file that was finished here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Below the directory of the index.
    name: String,
    inode: u64,
}

/// A finished file that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
    pub(super) bytes: u64,
}

/// The finished files of one path.
#[derive(Debug)]
pub(super) struct Index {
    name: Name,
    path: PathBuf,
    directory: PathBuf,
    /// The oldest first, each name once.
    entries: Vec<Entry>,
    /// How many lines the file has; `None`: it must be written anew before anything is added.
    lines: Option<usize>,
}

impl Index {
    /// Reads what an earlier run has left. An error means that something else is in its place.
    pub(super) fn open(name: &Name) -> io::Result<Self> {
        let (directory, _) = name.below_fixed();
        let path = Self::path_of(name);
        let mut index = Self { name: name.clone(), path, directory, entries: Vec::new(), lines: None };
        let (body, is_whole) = match read(&index.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(index),
            Err(error) => return Err(error),
        };
        let mut lines = 0;
        for line in String::from_utf8_lossy(&body).split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            lines += 1;
            if let Some((inode, name)) = line.split_once(' ')
                && let Ok(inode) = inode.parse()
                && index.name.is_finished(name)
            {
                index.enter(Entry { name: name.to_owned(), inode });
            }
        }
        index.lines = is_whole.then_some(lines);
        Ok(index)
    }

    /// A file is about to get this name, or has it and goes on; it is the newest.
    pub(super) fn add(&mut self, path: &Path, inode: u64) -> io::Result<()> {
        let Some(name) = self.below(path) else { return Ok(()) };
        let entry = Entry { name, inode };
        if self.entries.last() == Some(&entry) {
            return Ok(());
        }
        let line = format!("{inode} {}\n", entry.name);
        self.enter(entry);
        let most = STALE_LINES_MAX.max(self.entries.len());
        if let Some(lines) = self.lines.filter(|lines| lines.saturating_sub(self.entries.len()) <= most) {
            // A part of a line that could not be written whole would tear the next one, too.
            self.lines = None;
            match open_index(&self.path, OpenOptions::new().read(true).append(true)) {
                Ok(mut file) => {
                    file.write_all(line.as_bytes())?;
                    self.lines = Some(lines + 1);
                    return Ok(());
                }
                // Somebody has removed it. What it listed is still known.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.write_anew()
    }

    /// Whether this file, by this name, was finished here.
    pub(super) fn has(&self, path: &Path, inode: u64) -> bool {
        let name = self.below(path);
        self.entries.iter().any(|entry| entry.inode == inode && Some(&entry.name) == name.as_ref())
    }

    /// The finished files, the oldest first. Those that are gone, or that are others by now, are forgotten.
    pub(super) fn present(&mut self) -> Vec<Finished> {
        let mut found = Vec::with_capacity(self.entries.len());
        let directory = &self.directory;
        self.entries.retain(|entry| {
            let path = directory.join(&entry.name);
            match path.symlink_metadata() {
                Ok(metadata) if metadata.is_file() && metadata.ino() == entry.inode => {
                    found.push(Finished { path, inode: entry.inode, bytes: metadata.len() });
                    true
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => true,
                _ => false,
            }
        });
        found
    }

    /// How many files are named as if they had been finished here, and are not listed.
    pub(super) fn unlisted(&self, current: &Path) -> usize {
        let listed: HashSet<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
        let is_listed = |path: &Path| self.below(path).is_some_and(|name| listed.contains(name.as_str()));
        self.name.finished().iter().filter(|path| *path != current && !is_listed(path)).count()
    }

    /// Where the index of a path is. A path with codes has one for all moments, above the first directory with a code;
    /// what is below is made a name by writing `%-` for each slash, which is no code.
    pub(super) fn path_of(name: &Name) -> PathBuf {
        let (directory, below) = name.below_fixed();
        let mut file = format!(".{}.udpd-index", below.replace('/', "%-"));
        if file.len() > NAME_BYTES_MAX {
            file = format!(".{:016x}.udpd-index", fingerprint(below));
        }
        directory.join(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Forces it to the disk, if there is one.
    pub(super) fn sync(&self) -> io::Result<()> {
        match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => opened?.sync_data(),
        }
    }

    fn below(&self, path: &Path) -> Option<String> {
        path.strip_prefix(&self.directory).ok()?.to_str().map(str::to_owned)
    }

    fn enter(&mut self, entry: Entry) {
        self.entries.retain(|other| other.name != entry.name);
        self.entries.push(entry);
    }

    /// Beside it first, so that there is a whole one at every moment.
    fn write_anew(&mut self) -> io::Result<()> {
        // The newest may not have its name yet.
        let newest = self.entries.pop();
        self.present();
        self.entries.extend(newest);
        let mut text = HEADER.to_owned();
        self.entries.iter().for_each(|entry| text.push_str(&format!("{} {}\n", entry.inode, entry.name)));
        let mut beside = self.path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let mut file = match open(&beside, OpenOptions::new().write(true).create_new(true)) {
            // Left by a crash, if it is ours.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                open_index(&beside, OpenOptions::new().read(true))?;
                fs::remove_file(&beside)?;
                open(&beside, OpenOptions::new().write(true).create_new(true))?
            }
            opened => opened?,
        };
        file.write_all(text.as_bytes()).and_then(|()| file.sync_data())?;
        match open_index(&self.path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&beside, &self.path)?;
        self.lines = Some(self.entries.len());
        Ok(())
    }
}

/// FNV-1a: the same in every release, which the hash of the standard library does not promise.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Never through a link, and never into a file that has another name, too.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(0o640).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() && metadata.nlink() <= 1 {
        true => Ok(file),
        false => Err(io::Error::other("it is a link, or not a regular file")),
    }
}

/// Opens what begins as an index does, or was torn in its first line; anything else is somebody else's. Reads on behind
/// that line.
fn open_index(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open(path, options)?;
    let mut beginning = Vec::new();
    (&file).take(HEADER.len() as u64).read_to_end(&mut beginning)?;
    match HEADER.as_bytes().starts_with(&beginning) && file.metadata()?.len() <= BYTES_MAX {
        true => Ok(file),
        false => Err(io::Error::other("it is not an index of udpd")),
    }
}

/// The lines of an index, and whether it is whole up to its last byte.
fn read(path: &Path) -> io::Result<(Vec<u8>, bool)> {
    let mut file = open_index(path, OpenOptions::new().read(true))?;
    let mut body = Vec::new();
    file.read_to_end(&mut body)?;
    let has_header = file.metadata()?.len() >= HEADER.len() as u64;
    let is_whole = has_header && (body.is_empty() || body.ends_with(b"\n"));
    Ok((body, is_whole))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Subject {
        directory: tempfile::TempDir,
        name: Name,
    }

    impl Subject {
        fn new(pattern: &str) -> Self {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let pattern = directory.path().join(pattern).to_str().expect("UTF-8").to_owned();
            Self { directory, name: Name::new(pattern, Duration::ZERO) }
        }

        /// Makes a file and returns what it is called and its number.
        fn make(&self, name: &str) -> (PathBuf, u64) {
            let path = self.directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(&path, name).expect("written");
            let inode = path.metadata().expect("there").ino();
            (path, inode)
        }

        fn index(&self) -> Index {
            Index::open(&self.name).expect("an index, or none")
        }

        fn add(&self, index: &mut Index, name: &str) {
            let (path, inode) = self.make(name);
            index.add(&path, inode).expect("listed");
        }

        fn names(&self, index: &mut Index) -> Vec<String> {
            let below =
                |file: Finished| file.path.strip_prefix(self.directory.path()).expect("below").display().to_string();
            index.present().into_iter().map(below).collect()
        }

        fn bytes(&self, index: &Index) -> Vec<u8> {
            fs::read(index.path()).expect("there is an index")
        }
    }

    /// The name of a file that was finished so many seconds after a full minute.
    fn at(second: usize) -> String {
        format!("log.20261121T0642{second:02}Z")
    }

    #[test]
    fn the_order_is_that_of_the_lines_also_after_a_restart_and_whatever_the_names_say() {
        let subject = Subject::new("log");
        let mut index = subject.index();
        let order = [at(30), at(59), at(10), format!("{}-1", at(10))];
        order.iter().for_each(|name| subject.add(&mut index, name));
        assert_eq!(subject.names(&mut index), order);
        let mut again = subject.index();
        assert_eq!(subject.names(&mut again), order);
        subject.add(&mut again, &at(11));
        assert_eq!(subject.names(&mut subject.index()).last(), Some(&at(11)));
    }

    #[test]
    fn what_is_gone_another_file_or_no_name_of_this_sink_is_not_listed() {
        let subject = Subject::new("%Y/log");
        let mut index = subject.index();
        for year in ["2024/log", "2025/log", "2026/log"] {
            subject.add(&mut index, year);
        }
        fs::remove_file(subject.directory.path().join("2024/log")).expect("removed");
        let theirs = subject.directory.path().join("theirs");
        fs::write(&theirs, "theirs").expect("written");
        fs::rename(&theirs, subject.directory.path().join("2025/log")).expect("replaced");
        let (passwords, inode) = subject.make("passwords");
        let line = format!("{inode} passwords\n{inode} ../{}\n", passwords.display());
        fs::write(index.path(), [subject.bytes(&index), line.into_bytes()].concat()).expect("forged");
        assert_eq!(subject.names(&mut subject.index()), ["2026/log"]);
    }

    #[test]
    fn cut_anywhere_it_loses_the_lines_behind_the_cut_and_goes_on() {
        let subject = Subject::new("log");
        let mut index = subject.index();
        let names: Vec<String> = (0..4).map(at).collect();
        names.iter().for_each(|name| subject.add(&mut index, name));
        let whole = subject.bytes(&index);
        for cut in 0..=whole.len() {
            fs::write(index.path(), &whole[..cut]).expect("cut");
            let mut cut_index = subject.index();
            let lines = whole[..cut].iter().filter(|&&byte| byte == b'\n').count().saturating_sub(1);
            assert_eq!(subject.names(&mut cut_index), names[..lines], "cut at {cut}");
            subject.add(&mut cut_index, &at(50));
            let expected = [&names[..lines], &[at(50)]].concat();
            assert_eq!(subject.names(&mut subject.index()), expected, "added after a cut at {cut}");
        }
    }

    #[test]
    fn it_is_as_long_as_what_is_there() {
        let subject = Subject::new("log");
        let mut index = subject.index();
        for number in 0..1_000 {
            let name = format!("{}-{number}", at(1));
            subject.add(&mut index, &name);
            fs::remove_file(subject.directory.path().join(name)).expect("removed");
            if number % 7 == 0 {
                index.present();
            }
        }
        assert!(subject.bytes(&index).len() < 200 * 60, "{} bytes", subject.bytes(&index).len());
    }

    #[test]
    fn a_name_that_is_used_again_is_the_newest() {
        let subject = Subject::new("%H.log");
        let mut index = subject.index();
        for hour in ["10.log", "11.log", "12.log"] {
            subject.add(&mut index, hour);
        }
        let (path, inode) = subject.make("10.log");
        assert!(index.has(&path, inode));
        index.add(&path, inode).expect("listed");
        let expected = ["11.log", "12.log", "10.log"];
        assert_eq!(subject.names(&mut index), expected);
        assert_eq!(subject.names(&mut subject.index()), expected);
        subject.make("13.log");
        assert_eq!(index.unlisted(&path), 1);
    }

    #[test]
    fn what_is_in_its_place_and_no_index_is_left_as_it_is() {
        let subject = Subject::new("log");
        let (path, _) = subject.make(".log.udpd-index");
        assert!(Index::open(&subject.name).is_err());
        fs::remove_file(&path).expect("removed");
        let (target, _) = subject.make("target");
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        assert!(Index::open(&subject.name).is_err());
        fs::remove_file(&path).expect("removed");
        let mut index = subject.index();
        let (beside, _) = subject.make(".log.udpd-index.new");
        let (finished, inode) = subject.make(&at(0));
        assert!(index.add(&finished, inode).is_err());
        assert_eq!(fs::read(&beside).expect("there"), b".log.udpd-index.new");
        fs::write(&beside, HEADER).expect("what a crash of ours has left");
        index.add(&finished, inode).expect("listed");
        assert_eq!(fs::read(&target).expect("there"), b"target");
    }

    #[test]
    fn a_long_path_with_codes_has_an_index_of_its_own_too() {
        let long = "x".repeat(120);
        let one = Index::path_of(&Name::new(format!("/log/%Y/{long}/{long}"), Duration::ZERO));
        let other = Index::path_of(&Name::new(format!("/log/%m/{long}/{long}"), Duration::ZERO));
        assert!(one != other && one.file_name().expect("a name").len() < 60, "{}", one.display());
        let short = Index::path_of(&Name::new("/log/%Y/x.log".to_owned(), Duration::ZERO));
        assert_eq!(short, Path::new("/log/.%Y%-x.log.udpd-index"));
    }
}
