//! Where the files of a sink lie, and what `--real-sinks` is allowed to touch: the command names that before anything
//! happens, and refuses what would cost data.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use nix::sys::statvfs::statvfs;

use super::scratch::bytes_in;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::sink::settings::SinkTarget;
use udpd_engine::config::{Config, SinkConfig};
use udpd_engine::plan::PipelinePlan;
use udpd_file::{FileSettings, Keep};

/// A disk with less free space is not written to.
pub(super) const FREE_MIN_BYTES: u64 = 256 << 20;

/// The directory above all files of a pattern, and what is below it.
pub(super) fn split(pattern: &str) -> (PathBuf, PathBuf) {
    let components: Vec<Component<'_>> = Path::new(pattern).components().collect();
    let is_fixed = |component: &&Component<'_>| !component.as_os_str().to_string_lossy().contains(['{', '%']);
    let fixed = components.iter().take_while(is_fixed).count().min(components.len().saturating_sub(1));
    (components[..fixed].iter().collect(), components[fixed..].iter().collect())
}

/// The directory itself, or its lowest ancestor that exists.
pub(super) fn nearest_existing(directory: &Path) -> &Path {
    directory.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/"))
}

/// An existing file with one of the names that a pattern with codes for the time can have.
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

/// The space that an ordinary user may still use there, in bytes.
pub(super) fn free_bytes(directory: &Path) -> io::Result<u64> {
    let found = statvfs(directory)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

/// A directory that trials write to, and its limits.
#[derive(Debug)]
pub(super) struct Disk {
    place: PathBuf,
    /// The most that may lie in it, for a directory of the bench.
    most_bytes: Option<u64>,
    /// How much must stay free for others.
    floor_bytes: u64,
}

impl Disk {
    /// Half of the space that is free now stays free.
    pub(super) fn new(place: &Path, most_bytes: Option<u64>, free_bytes: u64) -> Self {
        Self { place: place.to_owned(), most_bytes, floor_bytes: free_bytes / 2 }
    }

    /// Which limit is exceeded, if any.
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

/// What the sinks will touch, in words, and the disks that have to be watched meanwhile.
pub(super) fn touched(config: &Config, plan: &PipelinePlan) -> Result<(Vec<String>, Vec<Disk>), Failure> {
    let (mut lines, mut disks) = (Vec::new(), Vec::new());
    for (sink, planned) in config.sinks.iter().zip(&plan.sinks) {
        let what = match sink.settings.target() {
            SinkTarget::Nowhere => continue,
            SinkTarget::Files(path) => {
                let paths = planned.files(&config.listeners, &sink.name, path);
                disks.push(check(sink, path, paths.iter())?);
                format!(
                    "writes {}, and leaves there what it has written",
                    paths.into_iter().collect::<Vec<_>>().join(", ")
                )
            }
            SinkTarget::Peers(peers) => {
                let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
                format!("sends all trials to {}", peers.join(", "))
            }
            SinkTarget::Elsewhere(place) => format!("sends all trials to {place}"),
            SinkTarget::Stdout => {
                let text = "the report goes to standard output; measure without --real-sinks, which writes to a pipe";
                return Err(refuse(sink, text));
            }
        };
        lines.push(format!("sink {} is real: it {what}", sink.name));
    }
    Ok((lines, disks))
}

fn check<'a>(sink: &SinkConfig, pattern: &str, paths: impl Iterator<Item = &'a String>) -> Result<Disk, Failure> {
    if sink.settings.of_type::<FileSettings>().is_some_and(|file| file.keep != Keep::ALL) {
        let text = "its keep would remove files that were there before; measure without --real-sinks, or without keep";
        return Err(refuse(sink, text));
    }
    if let Some(path) = paths.filter_map(|path| existing(path)).next() {
        let text = format!(
            "{} exists already, and trials would be appended to it; measure without --real-sinks",
            path.display()
        );
        return Err(refuse(sink, &text));
    }
    let (directory, _) = split(pattern);
    let place = nearest_existing(&directory);
    let free = free_bytes(place).unwrap_or(0);
    if free < FREE_MIN_BYTES {
        let text =
            format!("sink {}: only {} MiB are free in {}; free some space", sink.name, free >> 20, place.display());
        return Err(Failure::new(ExitCode::Disk, text));
    }
    Ok(Disk::new(place, None, free))
}

fn refuse(sink: &SinkConfig, why: &str) -> Failure {
    Failure::new(ExitCode::Usage, format!("--real-sinks: sink {}: {why}", sink.name))
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
        assert_eq!(nearest_existing(Path::new("/nonexistent/a/b")), Path::new("/"));
        assert_eq!(nearest_existing(Path::new("/proc/self/nothing")), Path::new("/proc/self"));
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
        // Also a broken link belongs to another program.
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
