//! What a thread has in place of the system, once it has entered a simulation: see `crate::seams`.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::seams::disk::DiskCall;

/// Decides what the seams tell. All that is not written has the system's own.
#[allow(clippy::disallowed_methods)]
pub trait Simulated: Send + Sync + fmt::Debug {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, length: Duration) {
        std::thread::sleep(length);
    }

    /// Before a call of the disk: an error instead of it.
    fn before(&self, _call: &DiskCall<'_>) -> io::Result<()> {
        Ok(())
    }

    /// A call of the disk was made.
    fn after(&self, _call: &DiskCall<'_>) {}

    /// How many bytes of a write the disk takes, and how the write ends then. What it takes is written by a call of its
    /// own. Bytes are appended where there is no place.
    fn write(&self, _file: &File, bytes: &[u8], _at: Option<u64>) -> (usize, io::Result<()>) {
        (bytes.len(), Ok(()))
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Simulated>>> = const { RefCell::new(None) };
}

/// The simulation of the calling thread.
pub fn current() -> Option<Arc<dyn Simulated>> {
    CURRENT.with_borrow(Clone::clone)
}

/// The calling thread is in the simulation until this is dropped.
#[derive(Debug)]
pub struct Entered(Option<Arc<dyn Simulated>>);

/// Enters a simulation.
pub fn enter(simulated: Arc<dyn Simulated>) -> Entered {
    Entered(CURRENT.replace(Some(simulated)))
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// A clock that moves only when it is told to, or when its thread sleeps. The date is that of the system when it began,
/// rounded to a day, so that a run does not depend on it.
#[derive(Debug)]
pub struct SimulatedClock {
    began: Instant,
    wall: SystemTime,
    passed_ns: AtomicU64,
    set_by_ns: AtomicU64,
}

impl Default for SimulatedClock {
    #[allow(clippy::disallowed_methods)]
    fn default() -> Self {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * 86_400);
        Self { began: Instant::now(), wall, passed_ns: AtomicU64::new(0), set_by_ns: AtomicU64::new(0) }
    }
}

impl SimulatedClock {
    pub fn now(&self) -> Instant {
        self.began + self.passed()
    }

    pub fn wall(&self) -> SystemTime {
        self.wall + self.passed() + Duration::from_nanos(self.set_by_ns.load(Ordering::Relaxed))
    }

    /// How much time has passed since it began.
    pub fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed_ns.load(Ordering::Relaxed))
    }

    pub fn advance(&self, by: Duration) {
        self.passed_ns.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets the date forward; the monotonic clock goes on as before.
    pub fn set_wall_forward(&self, by: Duration) {
        self.set_by_ns.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Simulated for SimulatedClock {
    fn now(&self) -> Instant {
        self.now()
    }

    fn wall(&self) -> SystemTime {
        self.wall()
    }

    fn sleep(&self, length: Duration) {
        self.advance(length);
    }
}

/// A disk with little free space: it takes a write up to its last free byte. The time is the system's.
#[derive(Debug)]
pub struct SmallDisk(AtomicU64);

impl SmallDisk {
    pub fn of(free_bytes: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(free_bytes)))
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Simulated for SmallDisk {
    fn before(&self, call: &DiskCall<'_>) -> io::Result<()> {
        match call {
            DiskCall::SetLength(file, bytes) => self.give_back(file.metadata()?.len().saturating_sub(*bytes)),
            DiskCall::Remove(path) => self.give_back(path.metadata()?.len()),
            _ => {}
        }
        Ok(())
    }

    fn write(&self, file: &File, bytes: &[u8], at: Option<u64>) -> (usize, io::Result<()>) {
        let length = file.metadata().map_or(0, |found| found.len());
        let grows = (at.unwrap_or(length) + bytes.len() as u64).saturating_sub(length);
        let free = self.0.load(Ordering::Relaxed);
        self.0.store(free.saturating_sub(grows), Ordering::Relaxed);
        match grows.checked_sub(free).filter(|missing| *missing > 0) {
            None => (bytes.len(), Ok(())),
            Some(missing) => {
                let fits = bytes.len().saturating_sub(usize::try_from(missing).unwrap_or(usize::MAX));
                (fits, Err(io::ErrorKind::StorageFull.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::{clock, disk};

    /// The third call fails, and a write after two bytes.
    #[derive(Debug, Default)]
    struct Failing(AtomicU64);

    impl Simulated for Failing {
        fn before(&self, _call: &DiskCall<'_>) -> io::Result<()> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                2 => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }
        }

        fn write(&self, _: &File, bytes: &[u8], _: Option<u64>) -> (usize, io::Result<()>) {
            (bytes.len().min(2), Err(io::ErrorKind::StorageFull.into()))
        }
    }

    #[test]
    fn a_thread_that_has_entered_a_simulation_has_its_clock_and_its_disk_and_no_other_thread_has() {
        let clock = Arc::new(SimulatedClock::default());
        let inside = enter(clock.clone());
        let (before, wall) = (clock::now(), clock::wall());
        clock::sleep(Duration::from_secs(3600));
        assert_eq!((clock::since(before), clock.passed()), (Duration::from_secs(3600), Duration::from_secs(3600)));
        assert_eq!(clock::wall(), wall + Duration::from_secs(3600));
        std::thread::spawn(move || assert!(clock::since(before) < Duration::from_secs(3600))).join().expect("it ends");
        drop(inside);
        assert!(current().is_none());

        let file = tempfile::tempfile().expect("a file");
        let _inside = enter(Arc::new(Failing::default()));
        disk::write_all_at(&file, b"abcd", 0).expect_err("after two bytes");
        let mut found = [0; 2];
        disk::read_exact_at(&file, &mut found, 0).expect("those are there");
        assert_eq!((&found, file.metadata().expect("there").len()), (b"ab", 2));
        assert!(disk::sync_data(&file).is_err());
        disk::sync_data(&file).expect("only once");
        assert_eq!(disk::append(&file, b"efgh").expect("some"), 2);
    }
}
