//! The thread that keeps one file: it begins and finishes files, forces them to the disk, removes old ones, and gets a broken
//! one going again. All of that can take as long as a disk likes, and the consumer never waits for it: it goes on writing to
//! the file it has, and finds the next one on the desk when it is ready.
//!
//! A sync that failed is final. The kernel reports a lost write once and then forgets it, so a file whose sync has failed is
//! set aside under a name that says so, its unsynced bytes are counted as doubtful, and another file is begun.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::handle::{Handle, cure};
use super::name::{Name, finished_names};
use super::{FileSettings, Sync};
use crate::ledger::FileLedger;
use crate::sink::boundary::Boundary;

/// How often a file that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// The most orders that can be under way: each kind once, and a file for each that was begun.
const ORDERS_MAX: usize = 8;

/// What the consumer asks for.
#[derive(Debug)]
pub(super) enum Order {
    /// Force the file to the disk; so many bytes had been written when this was asked.
    Sync(u64),
    /// Finish the file and begin another: it is long enough.
    FinishFull,
    /// The moment has come that [`Next::ends`] named.
    FinishDue,
    /// See whether the path still leads to the file.
    Look,
    /// The consumer writes to the file from the desk from now on, and had written so many bytes before.
    Taken(u64),
    /// A write has failed; the file is given up.
    Broken,
}

/// What lies on the desk for the consumer.
#[derive(Debug)]
pub(super) struct Next {
    /// What to write to from now on; `None`: on to the same file.
    pub(super) handle: Option<Handle>,
    /// How long that file is.
    pub(super) length: u64,
    /// When to ask for the next one.
    pub(super) ends: Option<SystemTime>,
    /// The answer to [`Order::Broken`]: nothing else helps a consumer whose file was broken.
    pub(super) is_repair: bool,
}

/// Where keeper and consumer leave things for each other.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Whether there is a `next`.
    is_ready: AtomicBool,
    next: Mutex<Option<Next>>,
    /// The file that the consumer has must not be written any more.
    pub(super) is_lost: AtomicBool,
    /// A sync is under way, and another need not be asked for.
    pub(super) is_syncing: AtomicBool,
    /// The same for a look.
    pub(super) is_looking: AtomicBool,
}

impl Desk {
    /// What lies there, if anything does.
    pub(super) fn take(&self) -> Option<Next> {
        if !self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        self.is_ready.store(false, Ordering::Relaxed);
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn clear(&self) {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn put(&self, next: Next) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        self.is_ready.store(true, Ordering::Release);
    }
}

/// The consumer's end.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) desk: Arc<Desk>,
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Opens the first file and starts the thread; it sleeps until there is an order.
    pub(super) fn start(
        name: Name,
        settings: FileSettings,
        boundary: Boundary,
        header: Vec<u8>,
        ledger: Arc<FileLedger>,
    ) -> io::Result<(Self, Next)> {
        let (orders, inbox) = bounded(ORDERS_MAX);
        let desk = Arc::new(Desk::default());
        let now = seconds_now();
        let mut room = Room {
            path: name.at(now),
            name,
            settings,
            boundary,
            header,
            ledger,
            desk: Arc::clone(&desk),
            begun: now,
            current: None,
            finished: None,
            is_broken: false,
        };
        let first = room.begin(now, false)?;
        let thread = thread::Builder::new().name("udpd-keeper".into()).spawn(move || room.run(&inbox))?;
        Ok((Self { desk, orders, thread }, first))
    }

    /// Asks for something. Never more orders are under way than the channel has room for, so this does not wait.
    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Waits until everything asked for is done.
    pub(super) fn finish(self) {
        drop(self.orders);
        let _ = self.thread.join();
    }
}

/// What the thread knows.
struct Room {
    name: Name,
    settings: FileSettings,
    boundary: Boundary,
    header: Vec<u8>,
    ledger: Arc<FileLedger>,
    desk: Arc<Desk>,
    /// What the newest file is called.
    path: PathBuf,
    /// When it was begun.
    begun: u64,
    /// The newest file.
    current: Option<Handle>,
    /// The file before, until the consumer has stopped writing to it, and what it is called now.
    finished: Option<(Handle, PathBuf)>,
    /// There is no file to write to, and it is tried again.
    is_broken: bool,
}

impl Room {
    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            let order = match self.is_broken {
                true => inbox.recv_timeout(RETRY),
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match order {
                Ok(order) => self.handle(order),
                Err(RecvTimeoutError::Timeout) => self.recover(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle(&mut self, order: Order) {
        match order {
            Order::Sync(written) => {
                // What the consumer has written so far is in the file that it has not yet left, if there is one.
                let (handle, path) = match &self.finished {
                    Some((handle, path)) => (Some(handle), path),
                    None => (self.current.as_ref(), &self.path),
                };
                if let Some(handle) = handle
                    && let Err(error) = self.force(handle, written)
                {
                    let path = path.clone();
                    self.condemn(&path, &error);
                }
                self.desk.is_syncing.store(false, Ordering::Release);
            }
            Order::FinishFull => self.change(true),
            Order::FinishDue => self.change(false),
            Order::Look => {
                self.look();
                self.desk.is_looking.store(false, Ordering::Release);
            }
            Order::Taken(written) => {
                if let Some((handle, path)) = self.finished.take() {
                    self.put_away(handle, path, written);
                }
            }
            Order::Broken => {
                // A file that the consumer has not yet seen is begun once more: it is locked while it lies there.
                self.desk.clear();
                self.current = None;
                self.is_broken = true;
            }
        }
    }

    /// Opens the file of this moment and writes what it begins with. With `probe` the disk must have room for more.
    fn begin(&mut self, now: u64, probe: bool) -> io::Result<Next> {
        let path = self.name.at(now);
        let mut handle = Handle::open(&path, self.boundary)?;
        if probe {
            handle.probe_room()?;
        }
        if !self.header.is_empty() {
            handle.append_whole(&self.header)?;
        }
        let length = handle.length()?;
        self.current = Some(handle.clone());
        (self.path, self.begun) = (path, now);
        Ok(Next { handle: Some(handle), length, ends: self.ends(now), is_repair: probe })
    }

    fn ends(&self, now: u64) -> Option<SystemTime> {
        self.name.ends(now).map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Finishes the file, if it is due or full, and begins the next. When that fails the consumer goes on with what it has.
    fn change(&mut self, is_full: bool) {
        let Some(current) = self.current.clone() else { return };
        let now = seconds_now();
        let is_renamed = self.name.at(now) == self.path;
        let is_over = is_full || self.name.is_over(self.begun, now);
        if is_renamed && (!is_over || self.is_empty(&current)) {
            // Only a code that has not changed was due, such as the month at midnight; or nothing was ever written.
            return self.desk.put(Next { handle: None, length: 0, ends: self.ends(now), is_repair: false });
        }
        let before = self.path.clone();
        let outcome = match is_renamed {
            true => set_aside(&before, finished_names(&before, now)).and_then(|aside| {
                let next = self.begin(now, false);
                if next.is_err() {
                    // The consumer goes on writing to it, so it gets its name back, unless somebody has taken that.
                    let _ = set_aside(&aside, std::iter::once(before.clone()));
                }
                Ok((aside, next?))
            }),
            false => self.begin(now, false).map(|next| (before, next)),
        };
        match outcome {
            Ok((aside, next)) => {
                self.finished = Some((current, aside));
                self.desk.put(next);
            }
            Err(error) => {
                log::error!(
                    "cannot begin a new file in place of {}: {error}; it is written on{}",
                    self.path.display(),
                    cure(&error)
                );
                let later = SystemTime::now() + Duration::from_secs(1);
                self.desk.put(Next { handle: None, length: 0, ends: Some(later), is_repair: false });
            }
        }
    }

    fn is_empty(&self, handle: &Handle) -> bool {
        handle.length().is_ok_and(|length| length == self.header.len() as u64)
    }

    /// The consumer has left this file, and nothing more comes into it.
    fn put_away(&mut self, handle: Handle, path: PathBuf, written: u64) {
        if self.is_empty(&handle) {
            // A period in which nothing came.
            let _ = fs::remove_file(&path);
            return;
        }
        self.ledger.note_finished();
        if self.settings.sync != Sync::Never {
            if let Err(error) = self.force(&handle, written) {
                self.condemn(&path, &error);
            }
            self.sync_directory();
        }
        self.remove_old();
    }

    /// A file that somebody has moved or removed is none any more that a reader of the path would find.
    fn look(&mut self) {
        if self.is_broken || self.current.as_ref().is_none_or(|handle| handle.is_at(&self.path)) {
            return;
        }
        log::warn!("{} was moved or removed by somebody else; a new one is begun", self.path.display());
        self.give_up();
        self.recover();
    }

    fn give_up(&mut self) {
        self.current = None;
        self.is_broken = true;
        self.desk.is_lost.store(true, Ordering::Release);
    }

    fn recover(&mut self) {
        if let Ok(next) = self.begin(seconds_now(), true) {
            log::info!("{} can be written again", self.path.display());
            self.is_broken = false;
            self.desk.put(next);
        }
    }

    /// Forces a file to the disk, and counts what came of it.
    fn force(&self, handle: &Handle, written: u64) -> io::Result<()> {
        let begun = SystemTime::now();
        let outcome = handle.sync();
        match &outcome {
            Ok(()) => self.ledger.note_synced(written, begun),
            Err(_) => self.ledger.note_doubtful(written),
        }
        outcome
    }

    /// Sets a file aside whose sync has failed, and begins another if it was the newest.
    fn condemn(&mut self, path: &Path, error: &io::Error) {
        let failed = finished_names(path, seconds_now()).map(|mut name| {
            name.as_mut_os_string().push(".failed");
            name
        });
        let aside = set_aside(path, failed);
        log::error!(
            "cannot force {} to the disk: {error}; what it holds unsynced may be lost, it is set aside as {}{}",
            path.display(),
            aside.as_deref().unwrap_or(path).display(),
            cure(error)
        );
        if path == self.path {
            self.give_up();
            self.recover();
        }
    }

    /// The names of files are kept by their directory, which has to be forced to the disk as well.
    fn sync_directory(&self) {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = fs::File::open(directory).and_then(|directory| directory.sync_all()) {
            log::warn!("cannot force the directory {} to the disk: {error}", directory.display());
        }
    }

    /// Removes finished files beyond what is to be kept, the oldest first.
    fn remove_old(&self) {
        let FileSettings { keep_files, keep_bytes, .. } = self.settings;
        if keep_files == 0 && keep_bytes == 0 {
            return;
        }
        let finished = self.name.finished(&self.path);
        let mut files = finished.len() as u64;
        let mut bytes: u64 = finished.iter().map(|(_, length)| length).sum();
        for (path, length) in finished {
            if (keep_files == 0 || files <= keep_files) && (keep_bytes == 0 || bytes <= keep_bytes) {
                return;
            }
            match fs::remove_file(&path) {
                Ok(()) => self.ledger.note_removed(),
                Err(error) => log::warn!("cannot remove {}: {error}; it is kept", path.display()),
            }
            files -= 1;
            bytes -= length;
            for directory in self.name.dated_directories(&path) {
                // It stays while there is something in it.
                if fs::remove_dir(directory).is_err() {
                    break;
                }
            }
        }
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Renames a file to the first of `names` that nobody has; nothing is ever overwritten.
fn set_aside(path: &Path, names: impl Iterator<Item = PathBuf>) -> io::Result<PathBuf> {
    for name in names {
        match renameat2(AT_FDCWD, path, AT_FDCWD, &name, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(Errno::EEXIST) => {}
            // A file system that cannot refuse to replace: a link can be made only where nothing is.
            Err(Errno::EINVAL) => match fs::hard_link(path, &name) {
                Ok(()) => return fs::remove_file(path).map(|()| name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "every name for the finished file is taken"))
}
