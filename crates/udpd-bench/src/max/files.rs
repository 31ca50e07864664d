//! Where the files of a sink lie: which of them are there already, and in what directory of the disk.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::sys::statvfs::statvfs;

use super::scratch::bytes_in;

/// What a free disk has at least.
pub(super) const FREE_MIN_BYTES: u64 = 256 << 20;

/// The directory above all files of a pattern, and what is below it.
pub(super) fn split(pattern: &str) -> (PathBuf, PathBuf) {
    let components: Vec<Component<'_>> = Path::new(pattern).components().collect();
    let is_fixed = |component: &&Component<'_>| !component.as_os_str().to_string_lossy().contains(['{', '%']);
    let fixed = components.iter().take_while(is_fixed).count().min(components.len().saturating_sub(1));
    (components[..fixed].iter().collect(), components[fixed..].iter().collect())
}

/// The directory itself, or the lowest above it that is there.
pub(super) fn ground(directory: &Path) -> &Path {
    directory.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/"))
}

/// A file that is there under one of the names which a pattern with codes for the time can have.
pub(super) fn existing(pattern: &str) -> Option<PathBuf> {
    let components: Vec<Component<'_>> = Path::new(pattern).components().collect();
    find(PathBuf::new(), &components)
}

fn find(directory: PathBuf, rest: &[Component<'_>]) -> Option<PathBuf> {
    let Some((first, rest)) = rest.split_first() else {
        return directory.symlink_metadata().is_ok().then_some(directory);
    };
    let name = first.as_os_str().to_string_lossy();
    if !name.contains('%') {
        return find(directory.join(first), rest);
    }
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut named = entries.filter(|entry| is_dated(&name, &entry.file_name().to_string_lossy()));
    named.find_map(|entry| find(entry.path(), rest))
}

/// Whether `name` is `pattern` with digits for its codes: four for a year, two for everything else.
fn is_dated(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    while let Some(character) = pattern.next() {
        let fits = match character {
            '%' => {
                let digits = if pattern.next() == Some('Y') { 4 } else { 2 };
                (0..digits).all(|_| name.next().is_some_and(|digit| digit.is_ascii_digit()))
            }
            other => name.next() == Some(other),
        };
        if !fits {
            return false;
        }
    }
    name.next().is_none()
}

/// What an ordinary user may still write there, in bytes.
pub(super) fn free_bytes(directory: &Path) -> io::Result<u64> {
    let found = statvfs(directory)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

/// A directory that trials write to, and how much is too much.
#[derive(Debug)]
pub(super) struct Disk {
    place: PathBuf,
    /// Where everything in it is the bench's: how much that may be.
    most_bytes: Option<u64>,
    /// How much must stay free for others.
    floor_bytes: u64,
}

impl Disk {
    /// Half of what is free now stays free.
    pub(super) fn new(place: &Path, most_bytes: Option<u64>, free_bytes: u64) -> Self {
        Self { place: place.to_owned(), most_bytes, floor_bytes: free_bytes / 2 }
    }

    /// What is wrong with it, in the middle of a trial.
    pub(super) fn trouble(&self) -> Option<String> {
        let place = self.place.display();
        if let (Some(most), used) = (self.most_bytes, bytes_in(&self.place))
            && used > most
        {
            let text = "udpd ended the trial; lower the end of --rate, or shorten trials with --seconds";
            return Some(format!("{place} has grown to {used} bytes, faster than files can be removed: {text}"));
        }
        let free = free_bytes(&self.place).ok().filter(|free| *free < self.floor_bytes)?;
        Some(format!(
            "{free} bytes are left in {place}, half of what was free at the start: udpd ended the trial; free some \
             space"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_split_where_its_first_code_or_placeholder_begins() {
        for (pattern, directory, below) in [
            ("/var/log/udpd/all.log", "/var/log/udpd", "all.log"),
            ("/var/log/%Y/%m/{listener}.log", "/var/log", "%Y/%m/{listener}.log"),
            ("/data/{sink}/a/b.log", "/data", "{sink}/a/b.log"),
            ("/all.log", "/", "all.log"),
        ] {
            assert_eq!(split(pattern), (directory.into(), below.into()), "{pattern}");
        }
        assert_eq!(ground(Path::new("/nonexistent/a/b")), Path::new("/"));
        assert_eq!(ground(Path::new("/proc/self/nothing")), Path::new("/proc/self"));
    }

    #[test]
    fn a_file_of_any_day_is_found_and_what_only_looks_like_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
        fs::create_dir(at("2025")).expect("made");
        for name in ["2025/in-01.log.gz", "2025/in-1.log", "2025/in-xx.log"] {
            fs::write(at(name), "").expect("written");
        }
        assert_eq!(existing(&at("%Y/in-%d.log")), None);
        assert_eq!(existing(&at("plain.log")), None);
        fs::write(at("2025/in-31.log"), "").expect("written");
        assert_eq!(existing(&at("%Y/in-%d.log")), Some(at("2025/in-31.log").into()));
        // Also a link that leads nowhere is something of somebody's.
        std::os::unix::fs::symlink("/nonexistent", at("plain.log")).expect("linked");
        assert_eq!(existing(&at("plain.log")), Some(at("plain.log").into()));
    }

    #[test]
    fn a_directory_that_grows_beyond_its_bound_and_a_disk_that_fills_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("a.log"), vec![7; 100_000]).expect("written");
        let free = free_bytes(directory.path()).expect("a file system");
        assert_eq!(Disk::new(directory.path(), Some(1 << 20), free).trouble(), None);
        let told = Disk::new(directory.path(), Some(50_000), free).trouble().expect("too much");
        assert!(told.contains("faster than files can be removed") && told.contains("--seconds"), "{told}");
        let told = Disk::new(directory.path(), None, u64::MAX).trouble().expect("hardly anything is that free");
        assert!(told.contains("free some space"), "{told}");
    }
}
