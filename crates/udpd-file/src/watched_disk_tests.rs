//! The disk of the simulation: it fails as it is told, the process dies at a call, and each call must be one that udpd
//! may make. It knows what each file holds.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use seeds::Chance;

use super::{Keep, KeeperThread};
use udpd_base::codec::{self, Method};
use udpd_base::seams::disk::DiskCall;
use udpd_base::testing::simulated::Simulated;
use udpd_base::testing::simulated_disk::SimulatedDisk;

/// The number of a record.
pub(super) type Number = u64;

thread_local! {
    /// The keeper of the process, for a consumer that it interrupts.
    pub(super) static KEEPER: RefCell<Option<Rc<RefCell<KeeperThread>>>> = const { RefCell::new(None) };
}

/// The keeper works while the consumer is in a call of the disk, unless the call is the keeper's.
fn interrupt_consumer() {
    let keeper = KEEPER.with_borrow(Clone::clone);
    if let Some(mut keeper) = keeper.as_ref().and_then(|keeper| keeper.try_borrow_mut().ok()) {
        keeper.work(Vec::new());
    }
}

/// What the disk of the simulation knows and demands.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Another program acts: its calls do not fail, and may do all.
    pub(super) is_other: bool,
    /// The process dies at the call after so many.
    pub(super) dies_in: Option<u64>,
    pub(super) is_dead: bool,
    /// The keeper works before the next write of the consumer.
    pub(super) is_interrupted: bool,
    /// The write that is the last call of the process.
    pub(super) is_last_write: bool,
    pub(super) chance: u64,
    /// By how many seconds the date was set.
    pub(super) set_by: i64,
    /// The files of other programs.
    pub(super) foreign: BTreeSet<u64>,
    pub(super) keep: Keep,
    /// Those at our path, which are ours when udpd has opened them.
    pub(super) adoptable: BTreeSet<u64>,
    /// Records that something else than a fault of udpd may have taken.
    pub(super) gone: BTreeSet<Number>,
    /// Records that a sync has promised.
    pub(super) durable: BTreeSet<Number>,
    /// How often a file has changed.
    pub(super) versions: HashMap<u64, u64>,
    /// Something has changed since the last check.
    pub(super) is_changed: bool,
    /// What was read of a file at a version.
    pub(super) read: HashMap<u64, (u64, Content)>,
    /// A demand that was not met.
    pub(super) broken: Option<String>,
}

/// The disk that fails, with what the model demands of each call.
#[derive(Debug)]
pub(super) struct WatchedDisk {
    pub(super) inner: Arc<SimulatedDisk>,
    pub(super) root: PathBuf,
    pub(super) facts: Mutex<Facts>,
}

/// What is in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) records: Vec<Number>,
    /// Bytes behind the last line end.
    pub(super) torn: usize,
    /// Lines that are nothing.
    pub(super) damaged: usize,
    /// It is compressed, and not whole.
    pub(super) is_cut: bool,
    /// Lines of other programs.
    pub(super) others: usize,
}

/// The record with this number. Its length is made from the number.
pub(super) fn record(number: Number) -> String {
    let padding = Chance::new(number).below(60);
    format!("#{number:06}{}", "p".repeat(usize::try_from(padding).expect("small")))
}

pub(super) fn content_of(bytes: &[u8]) -> Content {
    let mut content = Content::default();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\n") else {
            content.torn = line.len();
            break;
        };
        let text = std::str::from_utf8(line).unwrap_or_default();
        let number = text.get(1..7).and_then(|digits| digits.parse().ok());
        match number {
            Some(number) if text == record(number) => content.records.push(number),
            _ if text.starts_with('x') => content.others += 1,
            _ => content.damaged += 1,
        }
    }
    content
}

impl WatchedDisk {
    pub(super) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another program does this.
    pub(super) fn as_other<T>(&self, act: impl FnOnce() -> T) -> T {
        self.facts().is_other = true;
        let done = act();
        self.facts().is_other = false;
        done
    }

    /// Loses power. Puts the numbers that removed files have now into the index, in place of those that they had.
    pub(super) fn lose_power(&self, chance: &mut Chance, index: &Path) {
        let renumbered = self.inner.lose_power(chance);
        let now = |number: &u64| renumbered.get(number).copied();
        let mut facts = self.facts();
        let (foreign, adoptable): (Vec<u64>, Vec<u64>) =
            (facts.foreign.iter().filter_map(now).collect(), facts.adoptable.iter().filter_map(now).collect());
        facts.foreign.extend(foreign);
        facts.adoptable.extend(adoptable);
        let Ok(text) = fs::read(index) else { return };
        let lines = text.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let end = line.iter().position(|byte| *byte == b' ').unwrap_or_default();
            let number = std::str::from_utf8(&line[..end]).ok().and_then(|number| number.parse().ok());
            let number = number.and_then(|number| now(&number));
            number.map_or_else(|| line.to_vec(), |number| [number.to_string().as_bytes(), &line[end..]].concat())
        });
        fs::write(index, lines.collect::<Vec<_>>().concat()).expect("written");
        self.inner.adopt();
    }

    /// What is in a file now.
    pub(super) fn content(&self, facts: &mut Facts, path: &Path) -> Content {
        let Ok(found) = path.symlink_metadata() else { return Content::default() };
        let version = facts.versions.get(&found.ino()).copied().unwrap_or_default();
        let key = version.wrapping_mul(1 << 32) + found.len();
        if let Some((known, content)) = facts.read.get(&found.ino())
            && *known == key
        {
            return content.clone();
        }
        let mut bytes = Vec::new();
        let mut is_cut = false;
        if Method::of_name(&path.to_string_lossy()).is_some() {
            let unpacked = File::open(path).and_then(codec::unpacked);
            is_cut = unpacked.and_then(|mut unpacked| unpacked.read_to_end(&mut bytes)).is_err();
        } else {
            bytes = fs::read(path).unwrap_or_default();
        }
        let content = Content { is_cut, ..content_of(&bytes) };
        facts.read.insert(found.ino(), (key, content.clone()));
        content
    }

    /// The files with records of ours, with the inode of each.
    pub(super) fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        let mut directories = vec![self.root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    directories.push(entry.path());
                } else if !name.starts_with('.') && !name.ends_with(".torn") {
                    found.push((entry.path(), entry.ino()));
                }
            }
        }
        found.sort();
        found
    }

    pub(super) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// Whether udpd may do this.
    pub(super) fn demand(&self, facts: &mut Facts, call: &DiskCall<'_>) -> Result<(), String> {
        let inode = |path: &Path| path.symlink_metadata().ok().map(|found| found.ino());
        let is_foreign = |path: &Path| inode(path).is_some_and(|inode| facts.foreign.contains(&inode));
        match *call {
            DiskCall::Remove(path) | DiskCall::Rename(path, _) if is_foreign(path) => {
                Err(format!("it touches {}, which is another program's", self.relative(path)))
            }
            DiskCall::Rename(_, path) if is_foreign(path) => {
                Err(format!("it replaces {}, which is another program's", self.relative(path)))
            }
            DiskCall::Write(file, ..) | DiskCall::SetLength(file, _)
                if file.metadata().is_ok_and(|found| facts.foreign.contains(&found.ino())) =>
            {
                Err("it writes a file of another program".to_owned())
            }
            DiskCall::Remove(path) => self.demand_removal(facts, path),
            _ => Ok(()),
        }
    }

    /// A file with records is removed when there is another form of it, or by `keep`.
    pub(super) fn demand_removal(&self, facts: &mut Facts, path: &Path) -> Result<(), String> {
        let name = self.relative(path);
        if name.rsplit('/').next().is_some_and(|file| file.starts_with('.')) {
            return Ok(());
        }
        let Ok(own) = path.symlink_metadata() else { return Ok(()) };
        let removed = self.content(facts, path);
        let Some(last) = removed.records.last().copied() else { return Ok(()) };
        let own_base = base_of(&name);
        let (mut newer, mut newer_bytes) = (BTreeSet::new(), 0);
        for (other, inode) in self.files() {
            let content = self.content(facts, &other);
            let other_name = self.relative(&other);
            let other_base = base_of(&other_name);
            let is_form = inode != own.ino() || own.nlink() > 1;
            if is_form && other != path && content.records == removed.records && !content.is_cut {
                return Ok(());
            }
            let is_finished =
                other_name != "log" && !other_name.starts_with("moved") && !other_name.starts_with("link");
            // A fault or a power loss may have left a file without a record, which counts all the same.
            let is_newer = content.records.last().is_none_or(|other| *other > last);
            if is_finished && is_newer {
                newer_bytes += other.symlink_metadata().map_or(0, |found| found.len());
                if other_base != own_base {
                    newer.insert(other_base);
                }
            }
        }
        let Keep { files, bytes } = facts.keep;
        let is_beyond = (files > 0 && newer.len() as u64 >= files) || (bytes > 0 && newer_bytes + own.len() > bytes);
        if !is_beyond || newer.is_empty() {
            let found: Vec<String> = self.files().iter().map(|(path, _)| self.relative(path)).collect();
            return Err(format!(
                "it removes {name} with record {last}, {:?}; newer are {newer:?} with {newer_bytes} bytes; {found:?}",
                facts.keep
            ));
        }
        facts.gone.extend(removed.records);
        Ok(())
    }
}

/// The name without the suffix of a compressed form.
pub(super) fn base_of(name: &str) -> String {
    Method::of_name(name).map_or(name, |(_, plain)| plain).to_owned()
}

impl Simulated for WatchedDisk {
    fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    fn wall(&self) -> SystemTime {
        let by = self.facts().set_by;
        let length = Duration::from_secs(by.unsigned_abs());
        if by < 0 { self.inner.clock.wall() - length } else { self.inner.clock.wall() + length }
    }

    fn sleep(&self, length: Duration) {
        self.inner.clock.advance(length);
    }

    fn before(&self, call: &DiskCall<'_>) -> io::Result<()> {
        let mut facts = self.facts();
        if facts.is_other {
            return Ok(());
        }
        if facts.dies_in == Some(0) && !facts.is_last_write {
            facts.is_dead = true;
        }
        if facts.is_dead {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(left) = &mut facts.dies_in {
            *left = left.saturating_sub(1);
        }
        self.inner.before(call)?;
        if let Err(broken) = self.demand(&mut facts, call) {
            facts.broken.get_or_insert(broken);
        }
        Ok(())
    }

    fn after(&self, call: &DiskCall<'_>) {
        self.inner.after(call);
        let mut facts = self.facts();
        facts.is_changed |= !matches!(call, DiskCall::Read(..) | DiskCall::Sync(_));
        match *call {
            DiskCall::Open(path) if !facts.is_other => {
                if let Ok(found) = path.symlink_metadata()
                    && facts.adoptable.remove(&found.ino())
                {
                    facts.foreign.remove(&found.ino());
                }
            }
            DiskCall::Write(file, ..) => {
                let Ok(found) = file.metadata() else { return };
                *facts.versions.entry(found.ino()).or_default() += 1;
                if found.nlink() == 0 {
                    // It is lost, and counted as doubtful.
                    let mut all = vec![0; usize::try_from(found.len()).expect("short")];
                    file.read_exact_at(&mut all, 0).expect("readable");
                    facts.gone.extend(content_of(&all).records);
                }
                if facts.is_last_write {
                    (facts.is_last_write, facts.is_dead) = (false, true);
                }
            }
            DiskCall::SetLength(file, _) => {
                if let Ok(found) = file.metadata() {
                    *facts.versions.entry(found.ino()).or_default() += 1;
                }
            }
            DiskCall::Sync(file) => {
                let Ok(found) = file.metadata() else { return };
                if found.is_dir() {
                    return;
                }
                // Journaling file systems keep with a file the names that lead to it.
                drop(facts);
                if let Ok(directory) = File::open(&self.root) {
                    self.inner.after(&DiskCall::Sync(&directory));
                }
                let mut facts = self.facts();
                for (path, inode) in self.files() {
                    if inode == found.ino() {
                        let content = self.content(&mut facts, &path);
                        facts.durable.extend(content.records);
                    }
                }
            }
            _ => {}
        }
    }

    fn write(&self, file: &File, bytes: &[u8], at: Option<u64>) -> (usize, io::Result<()>) {
        if std::mem::take(&mut self.facts().is_interrupted) {
            interrupt_consumer();
        }
        let mut facts = self.facts();
        if facts.is_other {
            return (bytes.len(), Ok(()));
        }
        if facts.dies_in == Some(0) && !facts.is_dead {
            let part = Chance::new(facts.chance).index(bytes.len() + 1);
            facts.is_last_write = part > 0;
            facts.is_dead = part == 0;
            return (part, Err(io::ErrorKind::BrokenPipe.into()));
        }
        match facts.is_dead {
            true => (0, Err(io::ErrorKind::BrokenPipe.into())),
            false => self.inner.write(file, bytes, at),
        }
    }
}
