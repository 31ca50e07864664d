//! What the keeper waits for: orders, and somebody who moves or removes a file.
//!
//! The kernel tells (inotify) when a file that is written is renamed or loses a name, so another is begun within a
//! moment, also while nothing is written: not even the first datagram after a quiet hour goes into a file that somebody
//! has taken. Where the kernel does not tell (no inotify left to this user, no /proc, a file system on another machine,
//! a directory that is renamed as a whole) the keeper looks every 150 ms while the file is written.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::handle::Handle;

/// Rings for the keeper.
#[derive(Debug)]
pub(super) struct Bell(Arc<EventFd>);

impl Bell {
    /// The keeper need not be asleep.
    pub(super) fn ring(&self) {
        // It fails only when nobody has listened to it 2^64 times.
        let _ = self.0.write(1);
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

/// Where the keeper waits.
#[derive(Debug)]
pub(super) struct Lookout {
    bell: Arc<EventFd>,
    inotify: Option<Inotify>,
    /// By room, the file that is watched, by its generation.
    watched: Vec<Option<(u64, WatchDescriptor)>>,
}

impl Lookout {
    /// A place to wait, and the bell for it.
    pub(super) fn new() -> nix::Result<(Self, Bell)> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .inspect_err(|error| {
                log::debug!("cannot watch files by inotify: {error}; udpd checks them while it writes")
            })
            .ok();
        Ok((Self { bell: Arc::clone(&bell), inotify, watched: Vec::new() }, Bell(bell)))
    }

    /// From now on the file of this room is watched, and no other; true when that is another than before.
    pub(super) fn follow(&mut self, room: usize, file: Option<(u64, &Handle)>) -> bool {
        if self.watched.len() <= room {
            self.watched.resize(room + 1, None);
        }
        let Some(inotify) = &self.inotify else { return false };
        if self.watched[room].map(|(generation, _)| generation) == file.map(|(generation, _)| generation) {
            return false;
        }
        if let Some((_, before)) = self.watched[room].take() {
            // One that is gone is watched no longer as it is.
            let _ = inotify.rm_watch(before);
        }
        let Some((generation, handle)) = file else { return false };
        // By its descriptor: whatever its name is by now, it is this file.
        let path = format!("/proc/self/fd/{}", handle.descriptor());
        let moved_or_removed = AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_ATTRIB;
        match inotify.add_watch(path.as_str(), moved_or_removed) {
            Ok(watch) => {
                self.watched[room] = Some((generation, watch));
                true
            }
            Err(error) => {
                log::debug!("cannot watch a file by inotify: {error}; udpd checks it while it writes");
                false
            }
        }
    }

    /// Waits until the bell rings, until the deadline, or until something was done to a file; returns the rooms of such
    /// files.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Vec<usize> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Up to the next millisecond: one that is cut off would be spent spinning.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let files = self.inotify.as_ref().map_or(self.bell.as_fd(), AsFd::as_fd);
        let mut sources = [self.bell.as_fd(), files].map(|source| PollFd::new(source, PollFlags::POLLIN));
        match poll(&mut sources, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                log::error!(
                    "the thread that keeps files cannot wait for its orders: {error}; it polls for them instead"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.bell.read();
        let Some(Ok(events)) = self.inotify.as_ref().map(Inotify::read_events) else { return Vec::new() };
        let is_about = |watch: WatchDescriptor| events.iter().any(|event| event.wd == watch);
        let overflow = events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
        let rooms = self.watched.iter().enumerate();
        rooms
            .filter_map(|(room, file)| file.is_some_and(|(_, watch)| overflow || is_about(watch)).then_some(room))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::format::boundary::Boundary;

    #[test]
    fn who_moves_or_removes_a_file_is_heard_at_once_and_who_writes_it_is_not() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("log");
        let mut handle = Handle::open(&path, Boundary::Newline).expect("opened");
        let (mut lookout, bell) = Lookout::new().expect("a place to wait");
        assert!(lookout.follow(1, Some((7, &handle))));
        assert!(!lookout.follow(1, Some((7, &handle))), "it is watched already");
        handle.append_whole(b"line\n").expect("written");
        handle.sync().expect("synced");
        bell.ring();
        assert_eq!(lookout.wait(None), [0; 0]);
        std::fs::rename(&path, directory.path().join("moved")).expect("moved");
        assert_eq!(lookout.wait(None), [1]);
        std::fs::remove_file(directory.path().join("moved")).expect("removed");
        assert_eq!(lookout.wait(None), [1]);
        lookout.follow(1, None);
        drop(bell);
        assert_eq!(lookout.wait(None), [0; 0]);
    }
}
