//! The settings of interfaces before they were steered, on disk, so that they can be put back after a crash too.
//!
//! All of them are written before the first change: first to a file beside, then made durable, then renamed. So at any
//! moment there is either the whole file or none, and if there is none, nothing was changed. A second apply finds the
//! file and keeps its values: the oldest are the ones to go back to.
//!
//! Saving and removing take the lock, which is held through the whole of an apply or a restore: a restore in the middle
//! of an apply would leave changes that are in no journal.
//!
//! The folder belongs below /run and to root alone: a reboot puts all these settings back by itself, and removes the
//! files with them.

mod folder;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use self::folder::Folder;
use crate::identity::{Identity, Namespace};
use crate::setting::Setting;

pub use self::folder::JournalError;

const ENDING: &str = ".saved";
const LOCK: &str = "lock";

/// The pause between two attempts to take a lock that another process holds.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The folder with what was saved.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
}

/// The folder with what was saved, while no other process may change it.
#[derive(Debug)]
pub struct LockedJournal {
    folder: Folder,
    _lock: Flock<File>,
}

/// One file of the folder.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The file.
    pub path: PathBuf,
    /// The name of the interface when it was saved.
    pub interface: String,
    /// What was saved, or why the file is not usable.
    pub saved: Result<Saved, JournalError>,
    file: String,
}

impl Journal {
    /// In this folder, which is made when something is saved.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder that holds the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes the lock, for as long as the answer lives. Other processes that ask for it are told our `purpose`. When
    /// another process holds it, this waits for at most `timeout` and calls `on_wait` with what that process told.
    pub fn lock(
        &self,
        purpose: &str,
        timeout: Duration,
        on_wait: impl FnOnce(&str),
    ) -> Result<LockedJournal, JournalError> {
        let folder = Folder::open(&self.folder, true)?.expect("made where it was missing");
        take(folder, purpose, timeout, on_wait)
    }

    /// The same, without making the folder: `None` where it is missing, and so nothing is saved.
    pub fn lock_if_any(
        &self,
        purpose: &str,
        timeout: Duration,
        on_wait: impl FnOnce(&str),
    ) -> Result<Option<LockedJournal>, JournalError> {
        let folder = Folder::open(&self.folder, false)?;
        folder.map(|folder| take(folder, purpose, timeout, on_wait)).transpose()
    }

    /// The files of the folder. What is read without the lock may change or go at any time.
    pub fn entries(&self) -> Result<Vec<Entry>, JournalError> {
        Folder::open(&self.folder, false)?.map_or(Ok(Vec::new()), |folder| entries(&folder))
    }

    /// The interfaces for which something is saved, by their names then.
    #[cfg(test)]
    pub(crate) fn interfaces(&self) -> Result<Vec<String>, JournalError> {
        Ok(self.entries()?.into_iter().map(|entry| entry.interface).collect())
    }
}

fn take(
    folder: Folder,
    purpose: &str,
    timeout: Duration,
    on_wait: impl FnOnce(&str),
) -> Result<LockedJournal, JournalError> {
    let (mut file, mut on_wait) = (folder.lock_file(LOCK)?, Some(on_wait));
    let path = folder.path(LOCK);
    // Nothing where it is further away than a clock can tell.
    let until = Instant::now().checked_add(timeout);
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let holder = format!("process {} ({purpose})\n", std::process::id());
                let written =
                    lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(holder.as_bytes()));
                written.map_err(|cause| JournalError::Io { doing: format!("write {}", path.display()), cause })?;
                folder.sweep()?;
                return Ok(LockedJournal { folder, _lock: lock });
            }
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
            Err((_, error)) => return Err(JournalError::io(format!("lock {}", path.display()), error)),
        }
        let mut holder = String::new();
        let _ = file.rewind().and_then(|()| (&file).take(1000).read_to_string(&mut holder));
        let holder = if holder.trim().is_empty() { "another process" } else { holder.trim() };
        if until.is_some_and(|until| Instant::now() >= until) {
            let (path, seconds) = (path.display(), timeout.as_secs_f32());
            return Err(JournalError::Busy(format!(
                "{holder} holds {path}, after {seconds} s still; nothing was changed"
            )));
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait(holder);
        }
        std::thread::sleep(ASK_AGAIN);
    }
}

impl LockedJournal {
    /// The files of the folder.
    pub fn entries(&self) -> Result<Vec<Entry>, JournalError> {
        entries(&self.folder)
    }

    /// What is saved for this interface, whatever its name is by now.
    pub(crate) fn find(&self, identity: &Identity) -> Result<Option<Saved>, JournalError> {
        let Some(file) = self.file_of(identity)? else { return Ok(None) };
        let saved = read(&self.folder, &file)?;
        if saved.identity.is_device_of(identity) {
            return Ok(Some(saved));
        }
        let path = self.folder.path(&file);
        let what = format!(
            "{} is {identity} now, and {} is of {}: restore or forget that first",
            identity.name,
            path.display(),
            saved.identity
        );
        Err(JournalError::Unusable(what))
    }

    /// Saves, durably, in place of what is saved for the interface.
    pub(crate) fn save(&mut self, saved: &Saved) -> Result<(), JournalError> {
        let text = show(saved);
        if parse(&text).as_ref() != Some(saved) {
            let what = format!("what {} was like cannot be written as lines: {saved:?}", saved.identity.name);
            return Err(JournalError::Unusable(what));
        }
        let Identity { name, index, namespace, .. } = &saved.identity;
        let new = || format!("{name}.{index}.{}{ENDING}", namespace.inode);
        let file = self.file_of(&saved.identity)?.unwrap_or_else(new);
        self.folder.write(&file, &text)
    }

    /// Removes a file, because everything is as it was.
    pub(crate) fn remove(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.folder.remove(&entry.file)
    }

    /// The file of the interface of this number in its namespace.
    fn file_of(&self, identity: &Identity) -> Result<Option<String>, JournalError> {
        let ending = format!(".{}.{}{ENDING}", identity.index, identity.namespace.inode);
        Ok(self.folder.names()?.into_iter().find(|name| name.ends_with(&ending)))
    }
}

fn entries(folder: &Folder) -> Result<Vec<Entry>, JournalError> {
    let mut entries = Vec::new();
    for file in folder.names()? {
        let Some(stem) = file.strip_suffix(ENDING) else { continue };
        let interface = stem.rsplitn(3, '.').last().unwrap_or(stem).to_owned();
        entries.push(Entry { path: folder.path(&file), interface, saved: read(folder, &file), file });
    }
    Ok(entries)
}

/// A file that is damaged is an error, because a guess at what was could be written to the kernel.
fn read(folder: &Folder, file: &str) -> Result<Saved, JournalError> {
    let damaged = || JournalError::damaged(&folder.path(file));
    let saved = parse(&folder.read(file)?).ok_or_else(damaged)?;
    let Identity { name, index, namespace, .. } = &saved.identity;
    // A file that was renamed or copied is not of this interface.
    if file == format!("{name}.{index}.{}{ENDING}", namespace.inode) { Ok(saved) } else { Err(damaged()) }
}

// The text of a file has a first and a last line, so that half of it is never taken for the whole.

const FIRST_LINE: &str = "steering journal 2: what was, before it was changed";
const LAST_LINE: &str = "end";

/// The settings of an interface as they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Which interface.
    pub identity: Identity,
    /// The interrupts that irqbalance was asked to leave alone, and would not have otherwise.
    pub banned: Vec<u32>,
    /// Every setting that a change could disturb, with its value, in the order of application.
    pub values: Vec<(Setting, String)>,
    /// The same of settings that were not there at first, such as those of new queues. They may be gone again.
    pub later: Vec<(Setting, String)>,
}

impl Saved {
    /// Everything that is saved, in the order of application within each list.
    pub(crate) fn all(&self) -> impl Iterator<Item = &(Setting, String)> {
        self.values.iter().chain(&self.later)
    }

    /// True when the earlier value of this setting is saved.
    pub fn covers(&self, setting: &Setting) -> bool {
        self.all().any(|(saved, _)| is_one(saved, setting))
    }
}

/// Whether both are the same setting. A driver that resets asks for new interrupts under the old names; a line that
/// several devices share has several names, and one that its driver has released has only its number.
fn is_one(saved: &Setting, setting: &Setting) -> bool {
    match (saved, setting) {
        (Setting::Interrupt { number, name }, Setting::Interrupt { number: other_number, name: other }) => {
            let share_a_name = name.split(',').any(|name| other.split(',').any(|other| name == other));
            if name.is_empty() || other.is_empty() { number == other_number } else { share_a_name }
        }
        (saved, setting) => saved == setting,
    }
}

pub(crate) fn show(saved: &Saved) -> String {
    let Saved { identity, banned, values, later } = saved;
    let Identity { name, index, namespace, address, bus } = identity;
    let numbers: Vec<String> = banned.iter().map(u32::to_string).collect();
    let lines = |values: &[(Setting, String)], mark: &str| -> String {
        values.iter().map(|(setting, value)| format!("{mark}{setting}\t{value}\n")).collect()
    };
    let namespace = format!("{}:{}", namespace.device, namespace.inode);
    let (address, bus) = (address.as_deref().unwrap_or_default(), bus.as_deref().unwrap_or_default());
    let numbers = numbers.join(" ");
    let which = format!("name\t{name}\nindex\t{index}\nnamespace\t{namespace}\naddress\t{address}\nbus\t{bus}\n");
    let (values, later) = (lines(values, ""), lines(later, "later "));
    format!("{FIRST_LINE}\n{which}banned\t{numbers}\n{values}{later}{LAST_LINE}\n")
}

pub(crate) fn parse(text: &str) -> Option<Saved> {
    let lines: Vec<&str> = text.strip_suffix('\n')?.split('\n').collect();
    let [FIRST_LINE, name, index, namespace, address, bus, banned, rest @ .., LAST_LINE] = lines.as_slice() else {
        return None;
    };
    let (device, inode) = namespace.strip_prefix("namespace\t")?.split_once(':')?;
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let identity = Identity {
        name: some(name.strip_prefix("name\t")?)?,
        index: index.strip_prefix("index\t")?.parse().ok()?,
        namespace: Namespace { device: device.parse().ok()?, inode: inode.parse().ok()? },
        address: some(address.strip_prefix("address\t")?),
        bus: some(bus.strip_prefix("bus\t")?),
    };
    let banned = banned.strip_prefix("banned\t")?.split(' ').filter(|number| !number.is_empty());
    let banned = banned.map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let mut saved = Saved { identity, banned, values: Vec::new(), later: Vec::new() };
    for line in rest {
        let (setting, value) = line.split_once('\t')?;
        let (list, setting) = match setting.strip_prefix("later ") {
            Some(setting) => (&mut saved.later, setting),
            None => (&mut saved.values, setting),
        };
        list.push((Setting::parse(setting)?, value.to_owned()));
    }
    Some(saved)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation_tests;
