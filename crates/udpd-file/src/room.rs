//! One file, and the next one of the same name, and so on, as the keeper knows them.
//!
//! A file that is to be left is kept until the consumer has left it, and only then put away: whatever was written to it
//! last is forced to the disk as well, or counted as doubtful. And it is left only for another that is open.

mod compressing;
mod disk;
mod first;
mod taken;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::clock::Clock;
use super::compress::Pile;
use super::desk::{At, Begun, Desk};
use super::handle::{Handle, cure, set_aside};
use super::name::{Name, failed_names, finished_names};
use super::settings::{FileSettings, Rotate, Sync};
use super::shelf::Shelf;
use udpd_base::format::boundary::Boundary;
use udpd_base::ledger::FileLedger;
use udpd_base::sink::Prospect;

/// How long it is until a file that could not be begun is asked for again.
const CHANGE_AGAIN: Duration = Duration::from_secs(1);

/// A file and what it is called now.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) handle: Handle,
    path: Arc<Path>,
    generation: u64,
    /// How long it was when it was last seen in its place.
    seen_bytes: u64,
}

/// What becomes of a file when the consumer has left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Finished,
    /// Somebody has taken it, and keeps it.
    Taken,
    Condemned,
}

/// What the keeper knows of a file.
pub(super) struct Room {
    name: Name,
    rotate: Rotate,
    sync: Sync,
    boundary: Boundary,
    header: Vec<u8>,
    ledger: Arc<FileLedger>,
    desk: Arc<Desk>,
    clock: Clock,
    shelf: Shelf,
    /// The finished files that wait to be compressed.
    pile: Option<Pile>,
    prospect: Prospect,
    /// Another sink still writes in its place, and nothing is begun.
    is_held: bool,
    /// The first file was made here.
    has_made_first: bool,
    /// The number of the newest file there ever was.
    generation: u64,
    /// When it was begun, in seconds since 1970.
    begun: u64,
    /// The newest file; `None` while none can be written, and it is tried again.
    current: Option<Kept>,
    /// The newest file is not in its place any more, and none could be begun there.
    is_astray: bool,
    /// Somebody has moved the newest file, and this is when another is begun.
    looks_at: Option<Instant>,
    /// Somebody has taken a file since it was last asked whether there was any need for another.
    has_gone_over: bool,
    /// Files that the consumer may still write to, the oldest first.
    left: VecDeque<(Kept, Fate)>,
    /// A file that could not be written, which is gone on with when it is still in its place, and how long it is up to
    /// the end of its last whole record.
    resting: Option<(Handle, u64)>,
    /// A file whose sync has failed and that could not be given another name: nothing is written in its place until it
    /// can.
    condemned: Option<Kept>,
    /// What was last said of why there is no file, and the number of that error.
    trouble: Option<(i32, String)>,
}

impl Room {
    /// Opens the first file, which then lies on the desk. Where another sink still writes there it only finds out what
    /// would be in the way, and waits for [`Room::begin_first`].
    pub(super) fn open(
        name: Name,
        settings: &FileSettings,
        header: Vec<u8>,
        (ledger, desk): (Arc<FileLedger>, Arc<Desk>),
        clock: Clock,
        prospect: Prospect,
    ) -> io::Result<Self> {
        let recipe = settings.recipe();
        let shelf = Shelf::new(&name, settings.keep, recipe);
        let is_held = prospect.has_forerunner;
        let mut room = Self {
            name,
            rotate: settings.rotate,
            sync: settings.sync,
            boundary: settings.format.boundary(),
            header,
            ledger,
            desk,
            clock,
            shelf,
            pile: recipe.map(Pile::new),
            prospect,
            is_held,
            has_made_first: false,
            generation: 0,
            begun: 0,
            current: None,
            is_astray: false,
            looks_at: None,
            has_gone_over: false,
            left: VecDeque::new(),
            resting: None,
            condemned: None,
            trouble: None,
        };
        if is_held { room.try_beside() } else { room.open_first() }?;
        Ok(room)
    }

    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }

    pub(super) fn compresses(&self) -> bool {
        self.pile.is_some()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The newest file and its number.
    pub(super) fn newest(&self) -> Option<(u64, &Handle)> {
        self.current.as_ref().map(|kept| (kept.generation, &kept.handle))
    }

    /// Whether the consumer may still write to a file before this one.
    pub(super) fn has_before(&self, generation: u64) -> bool {
        self.left.iter().any(|(kept, _)| kept.generation < generation)
    }

    /// Whether there is something to be tried again.
    pub(super) fn is_in_trouble(&self) -> bool {
        !self.is_held && (self.current.is_none() || self.is_astray)
    }

    /// Opens the file of this moment and writes what it begins with; the consumer finds it on the desk.
    fn begin(&mut self, now: u64) -> io::Result<()> {
        let path = self.name.at(now);
        self.shelf.finish_interrupted(&path);
        let is_new = path.symlink_metadata().is_err();
        let opened = Handle::open(&path, self.boundary).and_then(|mut handle| {
            handle.append_whole(&self.header)?;
            Ok((handle.length()?, handle))
        });
        match opened {
            Ok((length, handle)) => {
                self.shelf.begun(&path, &handle, is_new);
                self.has_made_first |= is_new && self.generation == 0;
                self.put(handle, &path, length, now);
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

    fn put(&mut self, handle: Handle, path: &Path, length: u64, now: u64) {
        self.generation += 1;
        self.begun = now;
        self.is_astray = false;
        self.trouble = None;
        let begun = Begun { handle: handle.clone(), length };
        self.desk.begin(self.generation, begun, self.ends(now));
        self.current = Some(Kept { handle, path: path.into(), generation: self.generation, seen_bytes: length });
    }

    fn ends(&self, now: u64) -> Option<SystemTime> {
        self.name.ends(now).map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Finishes the file, if it is due or full, and begins the next. When that fails the consumer goes on with what it
    /// has.
    pub(super) fn change(&mut self, generation: u64, is_full: bool) {
        let Some(before) = self.current.clone().filter(|kept| kept.generation == generation) else { return };
        if !before.handle.is_at(&before.path) {
            // What is at its path is somebody else's, and is not to be renamed.
            self.look();
            if self.generation == generation {
                self.desk.go_on(Some(self.clock.now() + CHANGE_AGAIN));
            }
            return;
        }
        let now = self.clock.seconds();
        let is_renamed = *self.name.at(now) == *before.path;
        let is_over = is_full || self.name.is_over(self.begun, now);
        if is_renamed && (!is_over || self.is_empty(&before.handle)) {
            // Only a code that has not changed was due, such as the month at midnight; or the clock was set within the
            // period; or nothing was ever written.
            return self.desk.go_on(self.ends(now));
        }
        match self.replace(before.clone(), is_renamed, now) {
            Ok(finished) => self.left.push_back((finished, Fate::Finished)),
            Err(error) => {
                log::error!(
                    "cannot begin a new file in place of {}: {error}; udpd goes on writing to it{}",
                    before.path.display(),
                    cure(&error)
                );
                self.desk.go_on(Some(self.clock.now() + CHANGE_AGAIN));
            }
        }
    }

    /// Begins a file in the place of this one; returns this one with the name it has from now on.
    fn replace(&mut self, mut before: Kept, is_renamed: bool, now: u64) -> io::Result<Kept> {
        if !is_renamed {
            return self.begin(now).map(|()| before);
        }
        let own_name = Arc::clone(&before.path);
        before.path = self.finish(&before.handle, &own_name, now)?;
        self.begin(now).inspect_err(|_| {
            // The consumer goes on writing to it, so it gets its name back, unless somebody has taken that.
            let _ = set_aside(&before.path, std::iter::once(own_name.to_path_buf()), |_| ());
        })?;
        Ok(before)
    }

    /// Gives a file the name of a finished one.
    fn finish(&mut self, handle: &Handle, path: &Path, now: u64) -> io::Result<Arc<Path>> {
        let shelf = &mut self.shelf;
        set_aside(path, finished_names(path, now), |name| shelf.list(name, handle)).map(Arc::from)
    }

    fn is_empty(&self, handle: &Handle) -> bool {
        handle.length().is_ok_and(|length| length == self.header.len() as u64)
    }

    /// The consumer has left every file before this one, having written so many bytes in all, and nothing more comes
    /// into them.
    pub(super) fn settle(&mut self, before: u64, written: u64) {
        while self.left.front().is_some_and(|(kept, _)| kept.generation < before) {
            let Some((kept, fate)) = self.left.pop_front() else { return };
            match fate {
                Fate::Finished => self.put_away(&kept, written),
                Fate::Taken => self.let_go(&kept, written),
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
        if self.sync != Sync::Never {
            self.sync_directory();
            self.shelf.sync();
        }
        self.pile.iter_mut().for_each(Pile::note_finished);
        let open = self.in_use();
        for path in self.shelf.clear(&open) {
            self.ledger.note_removed();
            for directory in self.name.dated_directories(&path) {
                // It stays while there is something in it.
                if fs::remove_dir(directory).is_err() {
                    break;
                }
            }
        }
    }

    /// The files that are written, or may be again.
    fn in_use(&self) -> Vec<u64> {
        let kept = self.left.iter().map(|(kept, _)| kept).chain(&self.current).chain(&self.condemned);
        let handles = kept.map(|kept| &kept.handle).chain(self.resting.iter().map(|(handle, _)| handle));
        handles.filter_map(|handle| handle.inode().ok()).collect()
    }

    /// The consumer is to write to no file until there is another.
    fn stop(&mut self) {
        // A number that no file has.
        self.generation += 1;
        self.desk.stop(self.generation);
    }

    /// A write to this file has failed, and nothing more is written to it.
    pub(super) fn break_off(&mut self, at: At, errno: i32, whole_bytes: u64) {
        // Also of a file that was finished meanwhile. Where it cannot be done now it is done before more is written.
        let mut known = self.left.iter().map(|(kept, _)| kept).chain(&self.current);
        if let Some(kept) = known.find(|kept| kept.generation == at.generation) {
            let _ = kept.handle.cut_to(whole_bytes);
        }
        self.settle(at.generation + 1, at.written);
        if let Some(kept) = self.current.take_if(|kept| kept.generation == at.generation) {
            self.is_astray = false;
            let error = io::Error::from_raw_os_error(errno);
            self.trouble = Some((errno, format!("cannot write to {}: {error}{}", kept.path.display(), cure(&error))));
            // Forced to the disk now: whether there will be another sync of it nobody knows.
            self.force_if_asked(&kept, at.written);
            self.resting = Some((kept.handle, whole_bytes));
        }
    }

    /// Tries once more what could not be done.
    pub(super) fn try_again(&mut self) {
        if self.is_astray {
            return self.look();
        }
        if self.current.is_none()
            && let Err(error) = self.go_on()
        {
            self.explain(&error, "udpd tries again");
        }
    }

    /// Says why there is no file, once for each reason.
    fn explain(&mut self, error: &io::Error, consequence: &str) {
        let errno = error.raw_os_error().unwrap_or_default();
        let text = format!("cannot begin {}: {error}{}", self.name.at(self.clock.seconds()).display(), cure(error));
        if self.trouble.as_ref().is_none_or(|(said, _)| *said != errno) {
            log::error!("{text}; {consequence}");
        }
        self.trouble = Some((errno, text));
    }

    fn go_on(&mut self) -> io::Result<()> {
        if let Some(kept) = &self.condemned {
            if kept.handle.is_at(&kept.path) {
                set_aside(&kept.path, failed_names(&kept.path, self.clock.seconds()), |_| ())?;
            }
            self.condemned = None;
        }
        let now = self.clock.seconds();
        let path = self.name.at(now);
        let Some((handle, whole_bytes)) = self.resting.clone().filter(|(handle, _)| handle.is_at(&path)) else {
            // Its lock goes with it, which a file of the same name could want.
            self.resting = None;
            return self.begin(now);
        };
        // Nobody else has written it meanwhile. What a failed write left of a record could not always be cut off at
        // once.
        handle.cut_to(whole_bytes)?;
        match handle.probe_room() {
            Err(error) if error.raw_os_error() == Some(Errno::EFBIG as i32) && self.rotate != Rotate::NEVER => {
                // As long as files may be here is as good as full.
                let path = self.finish(&handle, &path, now)?;
                let kept = Kept { handle, path, generation: self.generation, seen_bytes: whole_bytes };
                self.resting = None;
                self.put_away(&kept, self.ledger.written());
                return self.begin(now);
            }
            outcome => outcome?,
        }
        let length = handle.length()?;
        self.resting = None;
        self.put(handle, &path, length, now);
        Ok(())
    }

    /// The consumer has ended, and has left every file.
    pub(super) fn close(&mut self, written: u64) {
        self.settle(u64::MAX, written);
        if let Some(kept) = self.current.take_if(|kept| kept.handle.names().is_ok_and(|names| names == 0)) {
            self.let_go(&kept, written);
        }
    }

    /// The consumer has ended and said nothing.
    pub(super) fn close_unheard(&mut self) {
        self.close(self.ledger.written());
    }
}
