//! The lists of finished files that there are below the paths of a sink of files by source, whoever sends now: found by
//! their names, which say whose they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::index::Index;
use super::super::name::Name;
use super::key::{Pattern, without_slashes};

/// Where to look.
#[derive(Debug)]
pub(super) struct Walk {
    roots: Vec<Root>,
    every: Duration,
}

/// What the lists of one path are called.
#[derive(Debug)]
struct Root {
    /// In which nothing is filled in.
    directory: PathBuf,
    /// What each directory below is called, and then the list.
    levels: Vec<Pattern>,
}

impl Walk {
    /// For these paths, with the names that a lane fills in.
    pub(super) fn new<'p>(paths: impl Iterator<Item = &'p str>, every: Duration) -> Self {
        let root = |path: &str| {
            let list = Index::path_of(&Name::new(without_slashes(path), every));
            let list = list.to_string_lossy();
            let fixed = list[..list.find('{').unwrap_or(list.len())].rfind('/').map_or(0, |slash| slash + 1);
            Root { directory: PathBuf::from(&list[..fixed]), levels: Pattern::levels(&list[fixed..]) }
        };
        Self { roots: paths.map(root).collect(), every }
    }

    /// The paths that have a list, from the one of this number on, and so many at most.
    pub(super) fn names(&self, from: usize, count_max: usize) -> Vec<Name> {
        let mut lists = Lists { from, count_max, ..Lists::default() };
        self.roots.iter().for_each(|root| lists.collect(&root.directory, &root.levels));
        let paths = lists.found.iter().filter_map(|list| Index::pattern_of(list));
        paths.map(|path| Name::new(path, self.every)).collect()
    }
}

/// What is found.
#[derive(Debug, Default)]
struct Lists {
    found: Vec<PathBuf>,
    from: usize,
    count_max: usize,
}

impl Lists {
    fn collect(&mut self, directory: &Path, levels: &[Pattern]) {
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
    use super::*;

    #[test]
    fn the_lists_of_all_sources_are_found_and_those_of_other_sinks_are_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = |path: &str| directory.path().join(path).to_str().expect("UTF-8").to_owned();
        for (pattern, own, others) in [
            ("{source}.log", ["10.0.0.1.log", "overflow.log"], ["x.log", "10.0.0.1.log.log"]),
            ("{source}/%Y/%H.log", ["10.0.0.1/%Y/%H.log", "0--1/%Y/%H.log"], ["x/%Y/%H.log", "10.0.0.1/%H.log"]),
            ("{source/24}.txt", ["10.0.0.0_24.txt", "2001-db8--0_64.txt"], ["x_24.txt", "10.0.0.0/24.txt"]),
            ("{source/8}/{source}-a", ["10.0.0.0_8/10.1.2.3-a", "overflow/overflow-a"], ["10.1.2.3-a", "x/10.1.2.3-a"]),
            ("%Y/{source}-a", ["%Y/10.0.0.1-a", "%Y/2001-db8--7-a"], ["%Y/10.0.0.1-b", "%m/10.0.0.1-a"]),
        ] {
            for path in own.iter().chain(&others) {
                let list = Index::path_of(&Name::new(below(path), Duration::ZERO));
                fs::create_dir_all(list.parent().expect("a parent")).expect("made");
                fs::write(list, "").expect("written");
            }
            let walk = Walk::new([below(pattern).as_str()].into_iter(), Duration::ZERO);
            let mut names = walk.names(0, 10);
            names.sort_by_key(|name| name.at(0));
            let mut expected: Vec<Name> = own.iter().map(|path| Name::new(below(path), Duration::ZERO)).collect();
            expected.sort_by_key(|name| name.at(0));
            assert_eq!(names, expected, "{pattern}");
            assert_eq!([walk.names(0, 1).len(), walk.names(1, 10).len(), walk.names(2, 10).len()], [1, 1, 0]);
        }
    }
}
