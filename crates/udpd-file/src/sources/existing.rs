//! What an earlier run, or the previous settings, left on the disk: sources with files, and indexes of finished files.
//!
//! Sources with files count among those that may have files (`sources_max`): otherwise invented senders would get that
//! many more files with every restart. The name of a file tells its source. The search looks through dated directories
//! from the newest on, and at a limited number of names, because datagrams have to wait at the start.
//!
//! The indexes are found by their names too, whether or not their source still sends.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::finished_files::Index;
use super::super::name::{FileName, is_behind_finished, matches};
use super::key::{KeyReading, SourceKey, SourcePattern, without_slashes};
use udpd_base::os::local_time::Zone;

/// How many names the search looks at, which takes a tenth of a second.
const NAMES_MAX: usize = 250_000;

#[derive(Debug)]
pub(super) struct SourceScan {
    sources_max: usize,
    names_left: usize,
    pub(super) sources: HashSet<SourceKey>,
}

impl SourceScan {
    pub(super) fn new(sources_max: usize) -> Self {
        Self { sources_max, names_left: NAMES_MAX, sources: HashSet::new() }
    }

    /// Whether there may be more files than the search has looked at.
    pub(super) fn is_cut_short(&self) -> bool {
        self.names_left == 0
    }

    /// Adds the sources of the path with this number, whose files are below this directory without placeholders.
    pub(super) fn take(&mut self, number: usize, path: &str, directory: &Path) {
        let below = path.strip_prefix(directory.to_str().unwrap_or_default()).unwrap_or(path);
        let levels = SourcePattern::levels(below.trim_start_matches('/'));
        let parts = SourcePattern::new(path).parts();
        self.collect(directory, &levels, KeyReading::new(number, parts));
    }

    fn collect(&mut self, directory: &Path, levels: &[SourcePattern], reading: KeyReading) {
        let Some((own, below)) = levels.split_first() else { return };
        // The levels below name no other source.
        let is_told = below.iter().all(|level| !level.names_a_datagram());
        let mut deeper: Vec<(PathBuf, KeyReading)> = Vec::new();
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if self.names_left == 0 || self.sources.len() == self.sources_max {
                return;
            }
            self.names_left -= 1;
            let (name, is_last) = (entry.file_name(), below.is_empty());
            let is_rest = |rest: &str| rest.is_empty() || is_last && is_behind_finished(rest);
            let read = name.to_str().and_then(|name| own.read(name, reading, &matches, &is_rest));
            match read {
                Some(read) if is_told => self.sources.extend(read.key()),
                Some(read) => deeper.push((entry.path(), read)),
                None => {}
            }
        }
        deeper.sort_by(|(one, _), (other, _)| other.cmp(one));
        deeper.into_iter().for_each(|(path, read)| self.collect(&path, below, read));
    }
}

/// Finds the indexes of all sources.
#[derive(Debug)]
pub(super) struct IndexFinder {
    roots: Vec<IndexRoot>,
    every: Duration,
    zone: Zone,
}

/// Where the indexes of one path are.
#[derive(Debug)]
struct IndexRoot {
    /// The directory without placeholders.
    directory: PathBuf,
    /// The pattern of each directory below, and of the index.
    levels: Vec<SourcePattern>,
}

impl IndexFinder {
    /// For these paths, with the names that a lane fills in.
    pub(super) fn new<'p>(paths: impl Iterator<Item = &'p str>, every: Duration, zone: Zone) -> Self {
        let root = |path: &str| {
            let list = Index::path_of(&FileName::new(without_slashes(path), every));
            let list = list.to_string_lossy();
            let fixed = list[..list.find('{').unwrap_or(list.len())].rfind('/').map_or(0, |slash| slash + 1);
            IndexRoot { directory: PathBuf::from(&list[..fixed]), levels: SourcePattern::levels(&list[fixed..]) }
        };
        Self { roots: paths.map(root).collect(), every, zone }
    }

    /// The paths that have an index, from this number on, and at most so many.
    pub(super) fn names(&self, from: usize, count_max: usize) -> Vec<FileName> {
        let mut lists = FoundIndexes { from, count_max, ..FoundIndexes::default() };
        self.roots.iter().for_each(|root| lists.collect(&root.directory, &root.levels));
        let paths = lists.found.iter().filter_map(|list| Index::pattern_of(list));
        paths.map(|path| FileName::new(path, self.every).in_zone(self.zone.clone())).collect()
    }
}

#[derive(Debug, Default)]
struct FoundIndexes {
    found: Vec<PathBuf>,
    from: usize,
    count_max: usize,
}

impl FoundIndexes {
    fn collect(&mut self, directory: &Path, levels: &[SourcePattern]) {
        let Some((own, below)) = levels.split_first() else { return };
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if self.found.len() == self.count_max {
                return;
            }
            if !entry.file_name().to_str().is_some_and(|name| own.fits(name)) {
                continue;
            }
            match below.is_empty() {
                false if kind.is_dir() => self.collect(&entry.path(), below),
                true if kind.is_file() && self.from > 0 => self.from -= 1,
                true if kind.is_file() => self.found.push(entry.path()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;

    /// The sources that are found with these files below a path, which is filled in for each of them.
    #[track_caller]
    fn assert_found(pattern: &str, files: &[&str], senders: &[&str]) {
        let directory = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().expect("it is below")).expect("made");
            fs::write(path, "").expect("written");
        }
        let path = format!("{}/{pattern}", directory.path().display());
        let mut scan = SourceScan::new(100);
        scan.take(7, &path, directory.path());
        let destination: IpAddr = "2001:db8::5".parse().expect("an address");
        let key = |sender: &&str| {
            let sender: SocketAddr = sender.parse().expect("an address");
            SourceKey::new(7, &SourcePattern::new(&path).parts(), sender, destination, 0)
        };
        assert_eq!(scan.sources, senders.iter().map(key).collect(), "{pattern}");
    }

    #[test]
    fn a_source_that_has_a_file_is_found_by_its_name_whatever_has_become_of_the_file() {
        let files = [
            "10.0.0.1.log",
            "10.0.0.1.log.20261121T064221Z",
            "10.0.0.2.log.20261121T064221Z-3",
            "10.0.0.3.log.20261121T064221Z.gz",
            "0--1.log",
            "fe80--1_if3.log",
            "overflow.log",
            ".10.0.0.9.log.udpd-index",
            "10.0.0.8.txt",
            "10.0.0.7.log.mine",
            "x.log",
        ];
        assert_found("{source}.log", &files, &["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::1]:1", "[fe80::1%3]:1"]);
        assert_found("{source}", &["10.0.0.1", "10.0.0.2.20261121T064221Z"], &["10.0.0.1:1", "10.0.0.2:1"]);
        let dated = ["2026/11/21/10.0.0.1.log", "2025/01/01/10.0.0.2.log", "2026/13/01/10.0.0.3.log", "x/1/1/a.log"];
        assert_found("%Y/%m/%d/{source}.log", &dated, &["10.0.0.1:1", "10.0.0.2:1"]);
        assert_found("{source}/%Y.log", &["10.0.0.1/2026.log", "x/2026.log"], &["10.0.0.1:1"]);
        let nested = ["10.0.0.0_8/10.1.2.3-514.log", "2001-db8--0_64/2001-db8--7-99.log"];
        assert_found("{source/8}/{source}-{source_port}.log", &nested, &["10.1.2.3:514", "[2001:db8::7]:99"]);
        assert_found("{source/24}.log", &["10.1.2.0_24.log", "10.1.2.3.log", "10.1.2.0_16.log"], &["10.1.2.9:1"]);
        assert_found("{host}/x.log", &["10.0.0.1/x.log", "web1/x.log", "overflow/x.log"], &["10.0.0.1:1"]);
        assert_found("a-{destination}/{source_port}", &["a-2001-db8--5/514", "b-2001-db8--5/515"], &["10.0.0.1:514"]);
    }

    #[test]
    fn no_more_are_found_than_may_have_files_and_no_more_names_are_looked_at_than_a_start_may_take() {
        let directory = tempfile::tempdir().expect("a directory");
        (0..9).for_each(|number| fs::write(directory.path().join(format!("10.0.0.{number}.log")), "").expect("made"));
        let path = format!("{}/{{source}}.log", directory.path().display());
        let mut scan = SourceScan::new(5);
        scan.take(0, &path, directory.path());
        assert_eq!((scan.sources.len(), scan.is_cut_short()), (5, false));
        let mut scan = SourceScan { names_left: 4, ..SourceScan::new(100) };
        scan.take(0, &path, directory.path());
        assert_eq!((scan.sources.len(), scan.is_cut_short()), (4, true));
    }

    #[test]
    fn the_lists_of_all_sources_are_found_and_those_of_other_sinks_are_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = |path: &str| directory.path().join(path).to_str().expect("UTF-8").to_owned();
        for (pattern, own, others) in [
            ("{source}.log", ["10.0.0.1.log", "overflow.log"], ["x.log", "10.0.0.1.log.log"]),
            ("{host}.idx", ["10.0.0.1.idx", "web1.example.idx"], ["Web.idx", "-x.idx"]),
            ("{source}/%Y/%H.log", ["10.0.0.1/%Y/%H.log", "0--1/%Y/%H.log"], ["x/%Y/%H.log", "10.0.0.1/%H.log"]),
            ("{source/24}.txt", ["10.0.0.0_24.txt", "2001-db8--0_64.txt"], ["x_24.txt", "10.0.0.0/24.txt"]),
            ("{source/8}/{source}-a", ["10.0.0.0_8/10.1.2.3-a", "overflow/overflow-a"], ["10.1.2.3-a", "x/10.1.2.3-a"]),
            ("%Y/{source}-a", ["%Y/10.0.0.1-a", "%Y/2001-db8--7-a"], ["%Y/10.0.0.1-b", "%m/10.0.0.1-a"]),
        ] {
            for path in own.iter().chain(&others) {
                let list = Index::path_of(&FileName::new(below(path), Duration::ZERO));
                fs::create_dir_all(list.parent().expect("a parent")).expect("made");
                fs::write(list, "").expect("written");
            }
            let finder = IndexFinder::new([below(pattern).as_str()].into_iter(), Duration::ZERO, Zone::default());
            let mut names = finder.names(0, 10);
            names.sort_by_key(|name| name.at(0));
            let mut expected: Vec<FileName> =
                own.iter().map(|path| FileName::new(below(path), Duration::ZERO)).collect();
            expected.sort_by_key(|name| name.at(0));
            assert_eq!(names, expected, "{pattern}");
            assert_eq!([finder.names(0, 1).len(), finder.names(1, 10).len(), finder.names(2, 10).len()], [1, 1, 0]);
        }
    }
}
