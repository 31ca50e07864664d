//! A disk that fails as a test says, and of which a power loss takes what was not synced.
//!
//! Files are real ones, below one directory; only what a power loss may leave is kept beside them. Names are as on a
//! journaling file system: those of changes survive as a prefix of their order, and a synced directory keeps all
//! changes before. Of the writes to a file since its last sync any may be lost, and one may be torn at a sector.
//! A process that is killed loses nothing of it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use seeds::Chance;

use super::simulated::{Simulated, SimulatedClock};
use crate::seams::disk::DiskCall;

/// A torn write ends at a multiple of this in its file.
const SECTOR_BYTES: u64 = 512;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Open,
    Read,
    Write,
    SetLength,
    Sync,
    Rename,
    Link,
    Remove,
}

impl Call {
    pub const ALL: [Self; 8] =
        [Self::Open, Self::Read, Self::Write, Self::SetLength, Self::Sync, Self::Rename, Self::Link, Self::Remove];

    fn of(call: &DiskCall<'_>) -> Self {
        match call {
            DiskCall::Open(_) => Self::Open,
            DiskCall::Read(..) => Self::Read,
            DiskCall::Write(..) => Self::Write,
            DiskCall::SetLength(..) => Self::SetLength,
            DiskCall::Sync(_) => Self::Sync,
            DiskCall::Rename(..) => Self::Rename,
            DiskCall::Link(..) => Self::Link,
            DiskCall::Remove(_) => Self::Remove,
        }
    }
}

/// Which calls of a kind fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The one after so many that do not.
    After(u64),
    /// So many times of so many.
    Often(u64, u64),
}

/// A change that a power loss takes from the file, if it was not synced.
#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl Change {
    fn make(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(at, bytes) => {
                let at = index(*at);
                // Most are behind the end. In a build that is not optimized zeros first take longer than all the rest.
                content.resize(content.len().max(at), 0);
                let (over, behind) = bytes.split_at(bytes.len().min(content.len() - at));
                content[at..at + over.len()].copy_from_slice(over);
                content.extend_from_slice(behind);
            }
            Self::Length(bytes) => content.resize(index(*bytes), 0),
        }
    }

    /// Makes what is before a sector's end in the write.
    fn make_torn(&self, content: &mut Vec<u8>, chance: &mut Chance) {
        if let Self::Write(at, bytes) = self {
            let end = at + chance.below(bytes.len() as u64 + 1);
            let end = (end / SECTOR_BYTES * SECTOR_BYTES).max(*at);
            Self::Write(*at, bytes[..index(end - at)].to_vec()).make(content);
        }
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("a file that fits in memory")
}

#[derive(Debug, Default)]
struct SimulatedFile {
    synced: Vec<u8>,
    changes: Vec<Change>,
    bad: Vec<Range<u64>>,
    /// Its mtime when it was last seen.
    changed_at: Option<SystemTime>,
}

impl SimulatedFile {
    /// What it held before a power loss.
    fn whole(&self) -> Vec<u8> {
        let mut content = self.synced.clone();
        self.changes.iter().for_each(|change| change.make(&mut content));
        content
    }
}

/// A change of names.
#[derive(Debug)]
enum NameChange {
    Made(PathBuf, u64),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

impl NameChange {
    fn make(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Made(path, inode) => {
                names.insert(path.clone(), *inode);
            }
            Self::Renamed(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Removed(path) => {
                names.remove(path);
            }
        }
    }
}

#[derive(Debug)]
struct State {
    chance: Chance,
    faults: Vec<(Call, When, i32)>,
    /// Free bytes, and the error of a write that finds none.
    free: Option<(u64, i32)>,
    is_recorded: bool,
    files: BTreeMap<u64, SimulatedFile>,
    names: BTreeMap<PathBuf, u64>,
    synced_names: BTreeMap<PathBuf, u64>,
    journal: Vec<NameChange>,
    calls: u64,
    faults_seen: u64,
    sleeps_until: Option<Duration>,
}

/// The disk, with a clock of its own.
#[derive(Debug)]
pub struct SimulatedDisk {
    pub clock: SimulatedClock,
    root: PathBuf,
    state: Mutex<State>,
}

impl SimulatedDisk {
    /// What is below this directory is on the disk, and synced.
    pub fn of(root: &Path, chance: Chance) -> Arc<Self> {
        let state = State {
            chance,
            faults: Vec::new(),
            free: None,
            is_recorded: true,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            journal: Vec::new(),
            calls: 0,
            faults_seen: 0,
            sleeps_until: None,
        };
        let disk = Self { clock: SimulatedClock::default(), root: root.to_owned(), state: Mutex::new(state) };
        disk.adopt();
        Arc::new(disk)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is recorded any more: there will be no power loss.
    pub fn without_power_loss(&self) {
        self.state().is_recorded = false;
    }

    /// Whether there may be a power loss.
    pub fn records(&self) -> bool {
        self.state().is_recorded
    }

    /// Takes what is there now as synced.
    pub fn adopt(&self) {
        let mut state = self.state();
        let state = &mut *state;
        let bad = |state: &State, inode| state.files.get(&inode).map(|file| file.bad.clone()).unwrap_or_default();
        let (mut files, mut names) = (BTreeMap::new(), BTreeMap::new());
        for (path, inode) in files_below(&self.root) {
            let synced = if state.is_recorded { fs::read(&path).expect("readable") } else { Vec::new() };
            let changed_at = path.symlink_metadata().and_then(|found| found.modified()).ok();
            files.insert(inode, SimulatedFile { synced, changes: Vec::new(), bad: bad(state, inode), changed_at });
            names.insert(path, inode);
        }
        (state.files, state.names, state.synced_names) = (files, names.clone(), names);
        state.journal.clear();
    }

    /// Calls of this kind fail with this error number.
    pub fn fail(&self, call: Call, when: When, error: i32) {
        self.state().faults.push((call, when, error));
    }

    /// Takes so many bytes more; a write behind them fails with this error number.
    pub fn has_free(&self, bytes: u64, error: i32) {
        self.state().free = Some((bytes, error));
    }

    /// Reads of this part of a file fail, until faults stop.
    pub fn is_bad(&self, path: &Path, part: Range<u64>) {
        let mut state = self.state();
        if let Some(inode) = state.names.get(path).copied() {
            state.files.entry(inode).or_default().bad.push(part);
        }
    }

    /// No call fails any more, and there is room.
    pub fn works(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.free = None;
        state.files.values_mut().for_each(|file| file.bad.clear());
    }

    /// How many calls were made, and how many of them have failed.
    pub fn calls(&self) -> (u64, u64) {
        let state = self.state();
        (state.calls, state.faults_seen)
    }

    /// Sleeping behind this time is a hang: it panics.
    pub fn must_not_sleep_for(&self, length: Duration) {
        self.state().sleeps_until = Some(self.clock.passed() + length);
    }

    /// The files there are, by their names.
    pub fn files(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    /// What a power loss leaves takes the place of what is there. All that had files open must be gone. A file that
    /// loses nothing keeps its mtime. Returns the inode numbers of removed files that are back, the old one first:
    /// a real disk would give them their old numbers.
    pub fn lose_power(&self, chance: &mut Chance) -> BTreeMap<u64, u64> {
        let state = self.state();
        assert!(state.is_recorded, "what a power loss leaves was not recorded");
        let kept = chance.index(state.journal.len() + 1);
        let mut names = state.synced_names.clone();
        state.journal[..kept].iter().for_each(|change| change.make(&mut names));
        let mut contents = BTreeMap::new();
        for inode in names.values() {
            if !contents.contains_key(inode) {
                contents.insert(*inode, state.files.get(inode).map(|file| left_of(file, chance)).unwrap_or_default());
            }
        }
        // A file keeps its inode number.
        let aside = |inode: u64| self.root.join(format!(".power-loss-{inode}"));
        for (path, inode) in files_below(&self.root) {
            match aside(inode).exists() {
                true => fs::remove_file(path),
                false => fs::rename(path, aside(inode)),
            }
            .expect("it is there");
        }
        let (mut written, mut renumbered) = (BTreeMap::<u64, PathBuf>::new(), BTreeMap::new());
        for (path, inode) in names {
            match written.get(&inode) {
                Some(first) => fs::hard_link(first, &path).expect("a link"),
                None => {
                    let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
                    let file = options.open(aside(inode)).expect("a file");
                    file.write_all_at(&contents[&inode], 0).expect("room");
                    let own = state.files.get(&inode).filter(|own| own.whole() == contents[&inode]);
                    if let Some(changed_at) = own.and_then(|own| own.changed_at) {
                        file.set_modified(changed_at).expect("set");
                    }
                    let now = file.metadata().expect("it is open").ino();
                    if now != inode {
                        renumbered.insert(inode, now);
                    }
                    fs::rename(aside(inode), &path).expect("renamed");
                    written.insert(inode, path);
                }
            }
        }
        for (path, _) in files_below(&self.root).into_iter().filter(|(path, inode)| *path == aside(*inode)) {
            fs::remove_file(path).expect("it is there");
        }
        drop(state);
        self.adopt();
        renumbered
    }
}

/// The files below a directory, with their inodes.
fn files_below(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let metadata = path.symlink_metadata().expect("it is there");
        if metadata.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push((path, metadata.ino()));
        }
    }
    found.sort();
    found
}

/// What a power loss may leave of a file.
fn left_of(file: &SimulatedFile, chance: &mut Chance) -> Vec<u8> {
    let mut content = file.synced.clone();
    let count = file.changes.len();
    match chance.below(5) {
        0 => {}
        1 => content = file.whole(),
        2 => {
            let kept = chance.index(count + 1);
            file.changes[..kept].iter().for_each(|change| change.make(&mut content));
            if let Some(torn) = file.changes.get(kept) {
                torn.make_torn(&mut content, chance);
            }
        }
        // Any of them, and the length of all: what is missing is zeros.
        kind => {
            for change in &file.changes {
                match chance.below(4) {
                    0 => {}
                    1 => change.make_torn(&mut content, chance),
                    _ => change.make(&mut content),
                }
            }
            if kind == 3 {
                content.resize(file.whole().len(), 0);
            }
        }
    }
    content
}

impl State {
    /// The error of a fault that hits this call.
    fn fault(&mut self, call: Call) -> Option<i32> {
        for at in 0..self.faults.len() {
            let (kind, when, error) = &mut self.faults[at];
            let error = *error;
            if *kind != call {
                continue;
            }
            let hits = match when {
                When::Often(times, of) => self.chance.happens(*times, *of),
                When::After(0) => {
                    self.faults.remove(at);
                    self.faults_seen += 1;
                    return Some(error);
                }
                When::After(left) => {
                    *left -= 1;
                    false
                }
            };
            if hits {
                self.faults_seen += 1;
                return Some(error);
            }
        }
        None
    }

    fn give_back(&mut self, bytes: u64) {
        if let Some((free, _)) = &mut self.free {
            *free += bytes;
        }
    }

    /// A name is removed, or another file takes it.
    fn let_go(&mut self, path: &Path) {
        if self.free.is_some()
            && let Ok(found) = path.symlink_metadata()
            && found.nlink() == 1
        {
            self.give_back(found.len());
        }
    }

    fn change(&mut self, file: &File, change: impl FnOnce() -> Change) {
        if self.is_recorded
            && let Ok(found) = file.metadata()
            && let Some(file) = self.files.get_mut(&found.ino())
        {
            file.changes.push(change());
            file.changed_at = found.modified().ok();
        }
    }

    fn change_name(&mut self, change: NameChange) {
        change.make(&mut self.names);
        if self.is_recorded {
            self.journal.push(change);
        }
    }

    fn opened(&mut self, path: &Path) {
        let Ok(found) = fs::metadata(path) else { return };
        if !found.is_file() {
            return;
        }
        if self.names.get(path) != Some(&found.ino()) {
            self.files.insert(found.ino(), SimulatedFile::default());
            self.change_name(NameChange::Made(path.to_owned(), found.ino()));
        }
    }

    fn synced(&mut self, file: &File) {
        let Ok(found) = file.metadata() else { return };
        if found.is_dir() {
            for change in std::mem::take(&mut self.journal) {
                change.make(&mut self.synced_names);
            }
        } else if let Some(file) = self.files.get_mut(&found.ino()) {
            for change in std::mem::take(&mut file.changes) {
                change.make(&mut file.synced);
            }
            file.changed_at = found.modified().ok();
        }
    }
}

impl Simulated for SimulatedDisk {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    fn sleep(&self, length: Duration) {
        self.clock.advance(length);
        let limit = self.state().sleeps_until;
        assert!(limit.is_none_or(|limit| self.clock.passed() <= limit), "it hangs: it sleeps again and again");
    }

    fn before(&self, call: &DiskCall<'_>) -> io::Result<()> {
        let mut state = self.state();
        state.calls += 1;
        // Whether a write fails is decided in `write`.
        let kind = Call::of(call);
        if kind != Call::Write
            && let Some(error) = state.fault(kind)
        {
            return Err(io::Error::from_raw_os_error(error));
        }
        match call {
            DiskCall::Read(file, bytes, at) => {
                let inode = file.metadata()?.ino();
                let part = *at..*at + *bytes as u64;
                let is_bad = |bad: &Range<u64>| bad.start < part.end && part.start < bad.end;
                if state.files.get(&inode).is_some_and(|file| file.bad.iter().any(is_bad)) {
                    state.faults_seen += 1;
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
            }
            DiskCall::SetLength(file, bytes) => {
                let length = file.metadata()?.len();
                state.give_back(length.saturating_sub(*bytes));
            }
            DiskCall::Remove(path) | DiskCall::Rename(_, path) => state.let_go(path),
            _ => {}
        }
        Ok(())
    }

    fn after(&self, call: &DiskCall<'_>) {
        let mut state = self.state();
        match *call {
            DiskCall::Open(path) => state.opened(path),
            DiskCall::Read(..) => {}
            DiskCall::Write(file, bytes, at) => {
                // What was appended is the end of the file now.
                let at = || at.unwrap_or_else(|| file.metadata().map_or(0, |found| found.len()) - bytes.len() as u64);
                state.change(file, || Change::Write(at(), bytes.to_vec()));
            }
            DiskCall::SetLength(file, bytes) => state.change(file, || Change::Length(bytes)),
            DiskCall::Sync(file) => state.synced(file),
            DiskCall::Rename(from, to) => state.change_name(NameChange::Renamed(from.to_owned(), to.to_owned())),
            DiskCall::Link(_, to) => {
                if let Ok(found) = fs::metadata(to) {
                    state.change_name(NameChange::Made(to.to_owned(), found.ino()));
                }
            }
            DiskCall::Remove(path) => state.change_name(NameChange::Removed(path.to_owned())),
        }
    }

    fn write(&self, file: &File, bytes: &[u8], at: Option<u64>) -> (usize, io::Result<()>) {
        let mut state = self.state();
        if let Some(error) = state.fault(Call::Write) {
            let written = state.chance.index(bytes.len() + 1);
            return (written, Err(io::Error::from_raw_os_error(error)));
        }
        let Some((free, error)) = state.free else { return (bytes.len(), Ok(())) };
        let length = file.metadata().map_or(0, |found| found.len());
        let grows = (at.unwrap_or(length) + bytes.len() as u64).saturating_sub(length);
        state.free = Some((free.saturating_sub(grows), error));
        match grows.checked_sub(free).filter(|missing| *missing > 0) {
            None => (bytes.len(), Ok(())),
            Some(missing) => {
                state.faults_seen += 1;
                (bytes.len().saturating_sub(index(missing)), Err(io::Error::from_raw_os_error(error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::disk;
    use crate::testing::simulated;

    fn made(path: &Path) -> File {
        disk::open(path, OpenOptions::new().write(true).create(true).truncate(false)).expect("it opens")
    }

    #[test]
    fn a_power_loss_leaves_what_was_synced_and_any_of_the_rest_and_names_in_their_order() {
        let mut seen = [0; 6];
        for seed in 0..200 {
            let directory = tempfile::tempdir_in(crate::testing::memory()).expect("a directory");
            let simulated = SimulatedDisk::of(directory.path(), Chance::new(seed));
            let inside = simulated::enter(simulated.clone());
            let names = ["a", "b", "c"].map(|name| directory.path().join(name));
            let file = made(&names[0]);
            disk::append_all(&file, b"synced").expect("written");
            disk::sync_all(&file).expect("synced");
            disk::sync_all(&File::open(directory.path()).expect("it opens")).expect("synced");
            disk::append_all(&file, b"more").expect("written");
            drop(made(&names[1]));
            disk::rename(&names[0], &names[2]).expect("renamed");
            drop((file, inside));
            simulated.lose_power(&mut Chance::new(seed));
            let is_there = [0, 1, 2].map(|at| names[at].exists());
            let expected = [[true, false, false], [true, true, false], [false, true, true]];
            seen[expected.iter().position(|own| *own == is_there).expect("a prefix")] += 1;
            let content =
                fs::read(names.iter().rfind(|name| fs::read(name).is_ok_and(|found| !found.is_empty())).expect("one"));
            let contents: [&[u8]; 3] = [b"synced", b"syncedmore", b"synced\0\0\0\0"];
            let content = content.expect("readable");
            seen[3 + contents.iter().position(|own| *own == content).expect("what may be")] += 1;
        }
        assert!(seen.iter().all(|seen| *seen > 5), "{seen:?}");
    }

    #[test]
    fn a_disk_fails_as_it_is_told_takes_what_there_is_room_for_and_works_again() {
        let directory = tempfile::tempdir_in(crate::testing::memory()).expect("a directory");
        let simulated = SimulatedDisk::of(directory.path(), Chance::new(1));
        let _inside = simulated::enter(simulated.clone());
        let path = directory.path().join("a");
        simulated.fail(Call::Open, When::After(1), libc::EMFILE);
        simulated.has_free(10, libc::EDQUOT);
        let file = made(&path);
        assert!(disk::open(&path, OpenOptions::new().read(true)).is_err());
        let own = disk::open(&path, OpenOptions::new().read(true)).expect("it opens");
        let error = disk::write_all_at(&file, &[1; 12], 0).expect_err("full");
        assert_eq!((error.raw_os_error(), own.metadata().expect("there").len()), (Some(libc::EDQUOT), 10));
        disk::set_len(&file, 4).expect("shorter");
        disk::append_all(&file, &[1; 6]).expect("room again");
        simulated.is_bad(&path, 3..4);
        disk::read_exact_at(&own, &mut [0; 3], 0).expect("good");
        assert!(disk::read_exact_at(&own, &mut [0; 3], 1).is_err());
        simulated.fail(Call::Sync, When::Often(1, 1), libc::EIO);
        assert!(disk::sync_data(&file).is_err());
        simulated.works();
        disk::sync_data(&file).expect("it works");
        disk::read_exact_at(&own, &mut [0; 3], 1).expect("it works");
        assert_eq!(simulated.calls().1, 4);
    }
}
