//! The host ledger of a daemon: what was counted since it started, added up reading by reading, so that no counter of
//! the kernel that wraps in between loses anything.
//!
//! The main thread looks once a second. A reader gets a copy of the sums; no thread waits for a driver but the one
//! that looks. Where there is never a look, as in a bench, no card is asked anything.

use std::sync::{Mutex, PoisonError};

use super::losses::Losses;
use super::reader::HostReader;
use super::reading::HostReading;

/// The sums, and the reader that they come from.
#[derive(Debug)]
pub struct HostLedger {
    watched: Mutex<WatchedHost>,
    sums: Mutex<HostSums>,
}

#[derive(Debug, Default)]
struct HostSums {
    reading: HostReading,
    /// The last look could tell what sockets on other ports dropped. Otherwise their sum stands still and is not told:
    /// it goes on when they can be told apart again.
    knows_elsewhere: bool,
}

#[derive(Debug)]
struct WatchedHost {
    reader: HostReader,
    /// `None` before the first look.
    before: Option<HostReading>,
}

impl HostLedger {
    /// Counts from the first look on, with the sockets on these ports.
    pub fn new(ports: impl IntoIterator<Item = u16>) -> Self {
        Self::over(HostReader::new(ports).sparing())
    }

    pub(super) fn over(reader: HostReader) -> Self {
        Self { watched: Mutex::new(WatchedHost { reader, before: None }), sums: Mutex::default() }
    }

    /// Looks from now on at the sockets on these ports. What those on others have dropped stays in the sums.
    pub fn look_at_ports(&self, ports: impl IntoIterator<Item = u16>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.reader.look_at_ports(ports);
        // A socket of others that is seen only now has not dropped everything just now.
        if watched.before.is_some() {
            watched.before = Some(watched.reader.read().clone());
        }
    }

    /// Whether there was a look.
    pub fn has_begun(&self) -> bool {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).before.is_some()
    }

    /// Reads all counters, and adds what they have counted since the last look. `own` are the inodes of the daemon's
    /// sockets.
    pub fn look(&self, own: impl IntoIterator<Item = u64>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let WatchedHost { reader, before } = &mut *watched;
        reader.own_sockets(own);
        let now = reader.read().clone();
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        *before = Some(match before.take() {
            Some(before) => {
                let meanwhile = now.since(&before);
                sums.knows_elsewhere = meanwhile.socket_drops.elsewhere.is_some();
                sums.reading.count_on(&meanwhile);
                now.after(before)
            }
            None => {
                sums.reading = now.since(&now);
                sums.knows_elsewhere = sums.reading.socket_drops.elsewhere.is_some();
                now
            }
        });
    }

    /// What was counted since the start, and the sum of the layers.
    pub fn sums(&self) -> HostReading {
        let mut sums = {
            let HostSums { reading, knows_elsewhere } = &*self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            let mut sums = reading.clone();
            sums.socket_drops.elsewhere = sums.socket_drops.elsewhere.filter(|_| *knows_elsewhere);
            sums
        };
        sums.lost = Losses::of(&sums);
        sums
    }
}
