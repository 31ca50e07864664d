//! The first file of a room: opened at once, or when the sink of before that writes it has closed it; and removed again
//! when nobody has use for it.

use std::fs;
use std::io;
use std::sync::atomic::Ordering;

use super::super::handle::Handle;
use super::Room;

impl Room {
    /// Opens it, and takes over what an earlier run or another sink has finished.
    pub(super) fn open_first(&mut self) -> io::Result<()> {
        let now = self.clock.seconds();
        self.shelf.read();
        self.shelf.remove_left();
        self.begin(now)?;
        self.shelf.say_unlisted(&self.name.at(now));
        Ok(())
    }

    /// Finds out what would be in the way, while somebody else writes there.
    pub(super) fn try_beside(&self) -> io::Result<()> {
        Handle::try_beside(&self.name.at(self.clock.seconds()), self.boundary)
    }

    /// Nobody else writes there any more. What cannot be opened all the same is tried again, as a file that broke.
    pub(crate) fn begin_first(&mut self) {
        self.is_held = false;
        if let Err(error) = self.open_first() {
            self.explain(&error, "its datagrams count as sink_error until udpd can");
        }
    }
}

impl Drop for Room {
    /// A start or a reload that is refused leaves no empty file behind.
    fn drop(&mut self) {
        let is_needless = self.has_made_first && !self.prospect.is_in_force.load(Ordering::Acquire);
        if let (true, Some(kept)) = (is_needless, &self.current)
            && self.is_empty(&kept.handle)
            && kept.handle.is_at(&kept.path)
        {
            let _ = fs::remove_file(&kept.path);
        }
    }
}
