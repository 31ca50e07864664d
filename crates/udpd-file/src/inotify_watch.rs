//! What the keeper waits for: requests, and other processes that move or remove a file.
//!
//! The kernel reports by inotify when a file is renamed or loses a name, so the keeper begins another one at once, also
//! while nothing is written: not even the first datagram after a quiet hour goes into a file that was moved. Where
//! inotify reports nothing (its limit for this user is reached, no /proc, a file system on another machine, a directory
//! that is renamed as a whole) the keeper checks every 150 ms while the file is written.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::handle::LogHandle;
use udpd_base::seams::{clock, waits};

#[derive(Debug)]
pub(super) struct KeeperWaker(Arc<EventFd>);

impl KeeperWaker {
    /// Ends the keeper's wait, or its next one.
    pub(super) fn wake(&self) {
        // It fails only after 2^64 writes without a read.
        let _ = self.0.write(1);
    }
}

impl Drop for KeeperWaker {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Waits for the waker and for inotify events.
#[derive(Debug)]
pub(super) struct InotifyWatch {
    waker: Arc<EventFd>,
    inotify: Option<Inotify>,
    /// By file, the generation that is watched.
    watched: Vec<Option<(u64, WatchDescriptor)>>,
}

impl InotifyWatch {
    pub(super) fn new() -> nix::Result<(Self, KeeperWaker)> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .inspect_err(|error| {
                log::debug!("cannot watch files by inotify: {error}; udpd checks them while it writes")
            })
            .ok();
        Self::with(inotify)
    }

    pub(super) fn with(inotify: Option<Inotify>) -> nix::Result<(Self, KeeperWaker)> {
        let waker = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        Ok((Self { waker: Arc::clone(&waker), inotify, watched: Vec::new() }, KeeperWaker(waker)))
    }

    /// Watches this generation of a file and no older one; returns true when the watch is new.
    pub(super) fn follow(&mut self, index: usize, file: Option<(u64, &LogHandle)>) -> bool {
        if self.watched.len() <= index {
            self.watched.resize(index + 1, None);
        }
        let Some(inotify) = &self.inotify else { return false };
        if self.watched[index].map(|(generation, _)| generation) == file.map(|(generation, _)| generation) {
            return false;
        }
        if let Some((_, before)) = self.watched[index].take() {
            // The kernel has ended the watch of a file that is gone.
            let _ = inotify.rm_watch(before);
        }
        let Some((generation, handle)) = file else { return false };
        // By its descriptor, because its name may have changed.
        let path = format!("/proc/self/fd/{}", handle.descriptor());
        let moved_or_removed = AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_ATTRIB;
        match inotify.add_watch(path.as_str(), moved_or_removed) {
            Ok(watch) => {
                self.watched[index] = Some((generation, watch));
                true
            }
            Err(error) => {
                log::debug!("cannot watch a file by inotify: {error}; udpd checks it while it writes");
                false
            }
        }
    }

    /// Waits for the waker, the deadline, or a file that was moved or removed; returns the indexes of such files.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Vec<usize> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(clock::now()));
        // Rounded up: a timeout cut to 0 ms would spin.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let files = self.inotify.as_ref().map_or(self.waker.as_fd(), AsFd::as_fd);
        let mut sources = [self.waker.as_fd(), files].map(|source| PollFd::new(source, PollFlags::POLLIN));
        let mut asked = sources.clone();
        let ready = || poll(&mut asked, PollTimeout::ZERO).is_ok_and(|found| found > 0).then_some(Ok(1));
        match waits::until(deadline, ready, || Some(poll(&mut sources, timeout))).unwrap_or(Ok(0)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                log::error!("the keeper of files cannot wait for its requests: {error}; it polls for them instead");
                clock::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.waker.read();
        let Some(Ok(events)) = self.inotify.as_ref().map(Inotify::read_events) else { return Vec::new() };
        let is_about = |watch: WatchDescriptor| events.iter().any(|event| event.wd == watch);
        let overflow = events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
        let indexes = self.watched.iter().enumerate();
        indexes
            .filter_map(|(index, file)| file.is_some_and(|(_, watch)| overflow || is_about(watch)).then_some(index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::format::Boundary;

    #[test]
    fn a_move_or_a_removal_is_reported_at_once_and_a_write_is_not() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("log");
        let mut handle = LogHandle::open(&path, Boundary::Newline).expect("opened");
        let (mut watch, waker) = InotifyWatch::new().expect("a place to wait");
        assert!(watch.follow(1, Some((7, &handle))));
        assert!(!watch.follow(1, Some((7, &handle))), "it is watched already");
        handle.append_whole(b"line\n").expect("written");
        handle.sync().expect("synced");
        waker.wake();
        assert_eq!(watch.wait(None), [0; 0]);
        std::fs::rename(&path, directory.path().join("moved")).expect("moved");
        assert_eq!(watch.wait(None), [1]);
        std::fs::remove_file(directory.path().join("moved")).expect("removed");
        assert_eq!(watch.wait(None), [1]);
        watch.follow(1, None);
        drop(waker);
        assert_eq!(watch.wait(None), [0; 0]);
    }
}
