//! Which sources have files already, of an earlier run or of the settings before. They count among those that may have
//! files (`sources_max`): otherwise invented senders would get as many files more with every restart.
//!
//! A name says whose the file is. Directories that the clock names are looked through from the newest on, and of all
//! names so many only: at a start datagrams have to wait.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::name::{behind, is_behind_finished};
use super::key::{Key, Pattern, Reading};

/// So many names are looked at. It takes a tenth of a second.
const NAMES_MAX: usize = 250_000;

/// What is found.
#[derive(Debug)]
pub(super) struct Census {
    sources_max: usize,
    names_left: usize,
    pub(super) sources: HashSet<Key>,
}

impl Census {
    pub(super) fn new(sources_max: usize) -> Self {
        Self { sources_max, names_left: NAMES_MAX, sources: HashSet::new() }
    }

    /// Whether there may be more files than it has looked at.
    pub(super) fn is_cut_short(&self) -> bool {
        self.names_left == 0
    }

    /// Takes in the sources of a path, which is the one of this number, with files below the directory in which nothing
    /// is filled in.
    pub(super) fn take(&mut self, number: usize, path: &str, directory: &Path) {
        let below = path.strip_prefix(directory.to_str().unwrap_or_default()).unwrap_or(path);
        let levels = Pattern::levels(below.trim_start_matches('/'));
        let parts = Pattern::new(path).parts();
        self.collect(directory, &levels, Reading::new(number, parts));
    }

    fn collect(&mut self, directory: &Path, levels: &[Pattern], reading: Reading) {
        let Some((own, below)) = levels.split_first() else { return };
        // What lies deeper is of no other source.
        let is_told = below.iter().all(|level| !level.names_a_datagram());
        let mut deeper: Vec<(PathBuf, Reading)> = Vec::new();
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if self.names_left == 0 || self.sources.len() == self.sources_max {
                return;
            }
            self.names_left -= 1;
            let (name, is_last) = (entry.file_name(), below.is_empty());
            let is_rest = |rest: &str| rest.is_empty() || is_last && is_behind_finished(rest);
            let read = name.to_str().and_then(|name| own.read(name, reading, &behind, &is_rest));
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
        let mut census = Census::new(100);
        census.take(7, &path, directory.path());
        let destination: IpAddr = "2001:db8::5".parse().expect("an address");
        let key = |sender: &&str| {
            let sender: SocketAddr = sender.parse().expect("an address");
            Key::new(7, &Pattern::new(&path).parts(), sender, destination)
        };
        assert_eq!(census.sources, senders.iter().map(key).collect(), "{pattern}");
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
        assert_found("a-{destination}/{source_port}", &["a-2001-db8--5/514", "b-2001-db8--5/515"], &["10.0.0.1:514"]);
    }

    #[test]
    fn no_more_are_found_than_may_have_files_and_no_more_names_are_looked_at_than_a_start_may_take() {
        let directory = tempfile::tempdir().expect("a directory");
        (0..9).for_each(|number| fs::write(directory.path().join(format!("10.0.0.{number}.log")), "").expect("made"));
        let path = format!("{}/{{source}}.log", directory.path().display());
        let mut census = Census::new(5);
        census.take(0, &path, directory.path());
        assert_eq!((census.sources.len(), census.is_cut_short()), (5, false));
        let mut census = Census { names_left: 4, ..Census::new(100) };
        census.take(0, &path, directory.path());
        assert_eq!((census.sources.len(), census.is_cut_short()), (4, true));
    }
}
