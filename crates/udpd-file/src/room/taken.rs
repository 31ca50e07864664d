//! What somebody else does to a file: moves it, removes it, or asks for another.
//!
//! A file that was moved is written until the next one is open, for whoever moved it reads it. Only one that has no
//! name any more, and so no reader, is not gone on with when no other can be begun.

use std::time::{Duration, Instant};

use super::{Fate, Kept, Room};

/// How long somebody who has moved a file has for putting a new one in its place, as logrotate does with `create`: it
/// takes one that is there already for a mistake and moves that away, too. Meanwhile the file is written on.
const GRACE: Duration = Duration::from_millis(100);

/// The same for somebody who has removed it, and may be about to remove its directory, too. Meanwhile what is written
/// is lost, so it is no longer than that takes.
const GRACE_REMOVED: Duration = Duration::from_millis(10);

impl Room {
    /// Something may have been done to the newest file. When it was moved or removed it is left a moment later.
    pub(crate) fn hear(&mut self) {
        let Some(kept) = &mut self.current else { return };
        if kept.handle.is_at(&kept.path) {
            kept.seen_bytes = kept.handle.length().unwrap_or(kept.seen_bytes);
            self.is_astray = false;
            return;
        }
        // One that could not be left is tried again anyway.
        if !self.is_astray {
            let is_moved = kept.handle.names().is_ok_and(|names| names > 0);
            let at = Instant::now() + if is_moved { GRACE } else { GRACE_REMOVED };
            self.looks_at = Some(self.looks_at.map_or(at, |before| before.min(at)));
        }
    }

    /// When another file is to be begun, if the newest was moved.
    pub(crate) fn looks_at(&self) -> Option<Instant> {
        self.looks_at
    }

    /// A file that somebody has moved or removed is none any more that a reader of the path would find.
    pub(crate) fn look(&mut self) {
        self.looks_at = None;
        let Some(kept) = &mut self.current else { return };
        if kept.handle.is_at(&kept.path) {
            kept.seen_bytes = kept.handle.length().unwrap_or(kept.seen_bytes);
            self.is_astray = false;
            return;
        }
        let taken = kept.clone();
        let is_removed = taken.handle.names().is_ok_and(|names| names == 0);
        match self.begin(self.clock.seconds()) {
            Ok(()) => {
                let what = if is_removed { "removed" } else { "moved" };
                log::info!("another process has {what} {}; udpd begins a new file", taken.path.display());
                self.left.push_back((taken, Fate::Taken));
                self.has_gone_over = true;
            }
            Err(error) if is_removed => {
                // What would be written to it nobody could ever read.
                self.current = None;
                self.left.push_back((taken, Fate::Taken));
                self.stop();
                self.explain(&error, "its datagrams count as sink_error until udpd can");
            }
            Err(error) => {
                self.is_astray = true;
                self.explain(&error, "until then udpd writes to the file that was moved");
            }
        }
    }

    /// Goes over to a new file where somebody has moved or removed the one in use; says whether there was any need,
    /// which the kernel may have told before.
    pub(crate) fn reopen(&mut self) -> Result<bool, String> {
        match self.is_in_trouble() {
            true => self.try_again(),
            false => self.look(),
        }
        match (&self.trouble, self.is_in_trouble()) {
            (Some((_, why)), true) => Err(why.clone()),
            _ => Ok(std::mem::take(&mut self.has_gone_over)),
        }
    }

    /// A file that somebody has moved is theirs, with all that is in it. Of one that was removed nobody has what was
    /// written after that: it was delivered as far as the consumer could know, and it is gone.
    pub(super) fn let_go(&mut self, kept: &Kept, written: u64) {
        if kept.handle.names().is_ok_and(|names| names > 0) {
            return self.force_if_asked(kept, written);
        }
        let after = kept.handle.length().unwrap_or(kept.seen_bytes).saturating_sub(kept.seen_bytes);
        self.ledger.note_removed_by_others(written, after);
        if after > 0 {
            log::warn!(
                "{} was removed while udpd wrote it; up to {after} bytes written after that are lost and count as \
                 doubtful_bytes; to remove a log, move it, run `udpd reopen`, and then remove it",
                kept.path.display()
            );
        }
    }
}
