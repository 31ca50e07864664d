//! The thread that keeps one file: it begins and finishes files, forces them to the disk, removes old ones, and gets a broken
//! one going again. All of that can take as long as a disk likes, and the consumer never waits for it: it goes on writing to
//! the file it has, and finds the next one on the desk when it is ready.
//!
//! A file that is to be left is kept until the consumer has left it, and only then put away: whatever was written to it last
//! is forced to the disk as well, or counted as doubtful.
//!
//! A sync that failed is final. The kernel reports a lost write once and then forgets it, so a file whose sync has failed is
//! set aside under a name that says so, its unsynced bytes are counted as doubtful, and another file is begun.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::desk::{At, Begun, Desk, Order};
use super::handle::{Handle, cure, set_aside};
use super::name::{Name, failed_names, finished_names};
use super::{FileSettings, Sync};
use crate::crew::{self, Crew};
use crate::ledger::FileLedger;
use crate::sink::boundary::Boundary;

/// How often a file that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// How long it is until a file that could not be begun is asked for again.
const CHANGE_AGAIN: Duration = Duration::from_secs(1);

/// The most orders that can be under way: each kind once, and once more for the file that lies on the desk.
const ORDERS_MAX: usize = 8;

/// The consumer's end.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) desk: Arc<Desk>,
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Opens the first file, which then lies on the desk, and starts the thread; it sleeps until there is an order.
    pub(super) fn start(
        name: Name,
        settings: FileSettings,
        boundary: Boundary,
        header: Vec<u8>,
        ledger: Arc<FileLedger>,
        crew: &Crew,
    ) -> io::Result<Self> {
        let (orders, inbox) = bounded(ORDERS_MAX);
        let desk = Arc::new(Desk::default());
        let mut room = Room {
            name,
            settings,
            boundary,
            header,
            ledger,
            desk: Arc::clone(&desk),
            generation: 0,
            begun: 0,
            current: None,
            left: VecDeque::new(),
            resting: None,
            condemned: None,
            explained: None,
        };
        room.begin(seconds_now())?;
        let thread = crew.spawn("udpd-keeper", move || room.run(&inbox))?;
        Ok(Self { desk, orders, thread })
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

/// A file and what it is called now.
#[derive(Debug, Clone)]
struct Kept {
    handle: Handle,
    path: Arc<Path>,
    generation: u64,
}

/// What becomes of a file when the consumer has left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is complete.
    Finished,
    /// Somebody has taken it, and keeps it.
    Taken,
    /// Its sync has failed.
    Condemned,
}

/// What the thread knows.
struct Room {
    name: Name,
    settings: FileSettings,
    boundary: Boundary,
    header: Vec<u8>,
    ledger: Arc<FileLedger>,
    desk: Arc<Desk>,
    /// The number of the newest file there ever was.
    generation: u64,
    /// When it was begun, in seconds since 1970.
    begun: u64,
    /// The newest file; `None` while none can be written, and it is tried again.
    current: Option<Kept>,
    /// Files that the consumer may still write to, the oldest first.
    left: VecDeque<(Kept, Fate)>,
    /// A file that could not be written, which is gone on with when it is still in its place, and how long it is up to the end
    /// of its last whole record.
    resting: Option<(Handle, u64)>,
    /// A file whose sync has failed and that could not be given another name: nothing is written in its place until it can.
    condemned: Option<Kept>,
    /// The number of the error that was last said since there is no file.
    explained: Option<i32>,
}

impl Room {
    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            let order = match &self.current {
                None => crew::at_rest(|| inbox.recv_timeout(RETRY)),
                Some(_) => crew::at_rest(|| inbox.recv()).map_err(|_| RecvTimeoutError::Disconnected),
            };
            match order {
                // What it does there is what a disk does: as long as that takes, nothing hangs but the disk.
                Ok(order) => crew::at_rest(|| self.handle(order)),
                Err(RecvTimeoutError::Timeout) => crew::at_rest(|| self.recover()),
                // The consumer has ended, and has left every file.
                Err(RecvTimeoutError::Disconnected) => return self.settle(self.generation, self.ledger.written()),
            }
        }
    }

    fn handle(&mut self, order: Order) {
        match order {
            Order::Sync(at) => {
                self.sync(at);
                self.desk.is_syncing.store(false, Ordering::Release);
            }
            Order::FinishFull(generation) => self.change(generation, true),
            Order::FinishDue(generation) => self.change(generation, false),
            Order::Look => {
                self.look();
                self.desk.is_looking.store(false, Ordering::Release);
            }
            Order::Left(At { generation, written }) => self.settle(generation, written),
            Order::Broken { at, errno, whole_bytes } => {
                // Also of a file that was finished meanwhile. Where it cannot be done now it is done before more is written.
                let mut known = self.left.iter().map(|(kept, _)| kept).chain(&self.current);
                if let Some(kept) = known.find(|kept| kept.generation == at.generation) {
                    let _ = kept.handle.cut_to(whole_bytes);
                }
                self.settle(at.generation + 1, at.written);
                if let Some(kept) = self.current.take_if(|kept| kept.generation == at.generation) {
                    self.explained = Some(errno);
                    // Forced to the disk now: whether there will be another sync of it nobody knows.
                    self.force_if_asked(&kept, at.written);
                    self.resting = Some((kept.handle, whole_bytes));
                }
            }
        }
    }

    /// Opens the file of this moment and writes what it begins with; the consumer finds it on the desk.
    fn begin(&mut self, now: u64) -> io::Result<()> {
        let path = self.name.at(now);
        let is_new = path.symlink_metadata().is_err();
        let opened = Handle::open(&path, self.boundary).and_then(|mut handle| {
            handle.append_whole(&self.header)?;
            Ok((handle.length()?, handle))
        });
        match opened {
            Ok((length, handle)) => {
                self.put(Kept { handle, path: path.into(), generation: self.generation + 1 }, length, now);
                Ok(())
            }
            Err(error) => {
                if is_new && fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == 0) {
                    // It was made and got no further, and would be in the way of the one that keeps its name.
                    let _ = fs::remove_file(&path);
                }
                Err(error)
            }
        }
    }

    fn put(&mut self, kept: Kept, length: u64, now: u64) {
        (self.generation, self.begun) = (kept.generation, now);
        self.desk.begin(kept.generation, Begun { handle: kept.handle.clone(), length }, self.ends(now));
        self.current = Some(kept);
    }

    fn ends(&self, now: u64) -> Option<SystemTime> {
        self.name.ends(now).map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Finishes the file, if it is due or full, and begins the next. When that fails the consumer goes on with what it has.
    fn change(&mut self, generation: u64, is_full: bool) {
        let Some(before) = self.current.clone().filter(|kept| kept.generation == generation) else { return };
        let now = seconds_now();
        let is_renamed = *self.name.at(now) == *before.path;
        let is_over = is_full || self.name.is_over(self.begun, now);
        if is_renamed && (!is_over || self.is_empty(&before.handle)) {
            // Only a code that has not changed was due, such as the month at midnight; or nothing was ever written.
            return self.desk.go_on(self.ends(now));
        }
        match self.replace(before.clone(), is_renamed, now) {
            Ok(finished) => self.left.push_back((finished, Fate::Finished)),
            Err(error) => {
                log::error!(
                    "cannot begin a new file in place of {}: {error}; it is written on{}",
                    before.path.display(),
                    cure(&error)
                );
                self.desk.go_on(Some(SystemTime::now() + CHANGE_AGAIN));
            }
        }
    }

    /// Begins a file in the place of this one; returns this one with the name it has from now on.
    fn replace(&mut self, mut before: Kept, is_renamed: bool, now: u64) -> io::Result<Kept> {
        if !is_renamed {
            return self.begin(now).map(|()| before);
        }
        let own_name = Arc::clone(&before.path);
        before.path = set_aside(&own_name, finished_names(&own_name, now))?.into();
        self.begin(now).inspect_err(|_| {
            // The consumer goes on writing to it, so it gets its name back, unless somebody has taken that.
            let _ = set_aside(&before.path, std::iter::once(own_name.to_path_buf()));
        })?;
        Ok(before)
    }

    fn is_empty(&self, handle: &Handle) -> bool {
        handle.length().is_ok_and(|length| length == self.header.len() as u64)
    }

    /// The consumer has left every file before this one, having written so many bytes in all, and nothing more comes into them.
    fn settle(&mut self, before: u64, written: u64) {
        while self.left.front().is_some_and(|(kept, _)| kept.generation < before) {
            let Some((kept, fate)) = self.left.pop_front() else { return };
            match fate {
                Fate::Finished => self.put_away(&kept, written),
                Fate::Taken => self.force_if_asked(&kept, written),
                Fate::Condemned => self.ledger.note_doubtful(written),
            }
        }
    }

    fn put_away(&mut self, kept: &Kept, written: u64) {
        if self.is_empty(&kept.handle) {
            // A period in which nothing came.
            if kept.handle.is_at(&kept.path) {
                let _ = fs::remove_file(&kept.path);
            }
            return;
        }
        self.ledger.note_finished();
        self.force_if_asked(kept, written);
        if self.settings.sync != Sync::Never {
            self.sync_directory();
        }
        self.remove_old();
    }

    /// A file that somebody has moved or removed is none any more that a reader of the path would find.
    fn look(&mut self) {
        if let Some(kept) = self.current.take_if(|kept| !kept.handle.is_at(&kept.path)) {
            log::warn!("{} was moved or removed by somebody else; another is begun", kept.path.display());
            self.abandon(kept, Fate::Taken);
        }
    }

    /// The consumer is to leave this file, the newest, and there is another as soon as there can be one.
    fn abandon(&mut self, kept: Kept, fate: Fate) {
        self.left.push_back((kept, fate));
        // A number that no file has.
        self.generation += 1;
        self.desk.stop(self.generation);
        self.explained = None;
        self.recover();
    }

    fn recover(&mut self) {
        match self.try_again() {
            Ok(()) => {
                self.explained = None;
                log::info!("{} can be written", self.name.at(self.begun).display());
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or_default();
                if self.explained.replace(errno) != Some(errno) {
                    let path = self.name.at(seconds_now());
                    log::error!("cannot begin {}: {error}; it is tried again{}", path.display(), cure(&error));
                }
            }
        }
    }

    fn try_again(&mut self) -> io::Result<()> {
        if let Some(kept) = &self.condemned {
            if kept.handle.is_at(&kept.path) {
                set_aside(&kept.path, failed_names(&kept.path, seconds_now()))?;
            }
            self.condemned = None;
        }
        let now = seconds_now();
        let path = self.name.at(now);
        let Some((handle, whole_bytes)) = self.resting.clone().filter(|(handle, _)| handle.is_at(&path)) else {
            // Its lock goes with it, which a file of the same name could want.
            self.resting = None;
            return self.begin(now);
        };
        // Nobody else has written it meanwhile. What a failed write left of a record could not always be cut off at once.
        handle.cut_to(whole_bytes)?;
        handle.probe_room()?;
        let length = handle.length()?;
        self.resting = None;
        self.put(Kept { handle, path: path.into(), generation: self.generation + 1 }, length, now);
        Ok(())
    }

    /// Forces to the disk what the consumer has written so far: it is in the file that it has not yet left.
    fn sync(&mut self, at: At) {
        let is_it = |kept: &Kept| kept.generation == at.generation;
        if let Some(kept) = self.current.clone().filter(is_it) {
            if !self.force(&kept, at.written) {
                self.current = None;
                self.abandon(kept, Fate::Condemned);
            }
        } else if let Some(index) = self.left.iter().position(|(kept, fate)| is_it(kept) && *fate != Fate::Condemned) {
            let kept = self.left[index].0.clone();
            if !self.force(&kept, at.written) {
                self.left[index].1 = Fate::Condemned;
            }
        }
    }

    fn force_if_asked(&mut self, kept: &Kept, written: u64) {
        if self.settings.sync != Sync::Never {
            self.force(kept, written);
        }
    }

    /// Forces a file to the disk, and counts what came of it. False when that failed, and it has been set aside.
    fn force(&mut self, kept: &Kept, written: u64) -> bool {
        let begun = SystemTime::now();
        match kept.handle.sync() {
            Ok(()) => self.ledger.note_synced(written, begun),
            Err(error) => {
                self.ledger.note_sync_failure();
                self.ledger.note_doubtful(written);
                self.condemn(kept, &error);
                return false;
            }
        }
        true
    }

    /// Sets a file aside whose sync has failed.
    fn condemn(&mut self, kept: &Kept, error: &io::Error) {
        let path = kept.path.display();
        let what = format!("cannot force {path} to the disk: {error}; what it holds unsynced may be lost");
        if !kept.handle.is_at(&kept.path) {
            return log::error!("{what}; somebody has moved or removed it{}", cure(error));
        }
        match set_aside(&kept.path, failed_names(&kept.path, seconds_now())) {
            Ok(aside) => log::error!("{what}, it is set aside as {}{}", aside.display(), cure(error)),
            Err(refusal) => {
                log::error!(
                    "{what}, and it cannot be set aside: {refusal}; its datagrams are counted as sink_error until it can"
                );
                self.condemned = Some(kept.clone());
            }
        }
    }

    /// The names of files are kept by their directory, which has to be forced to the disk as well.
    fn sync_directory(&self) {
        let path = self.name.at(self.begun);
        let directory = path.parent().unwrap_or(Path::new("/"));
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
        let finished = self.name.finished(&self.name.at(self.begun));
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
