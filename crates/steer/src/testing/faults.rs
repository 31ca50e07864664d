//! Faults on order, of the thread that orders them: a process that is killed at the Nth step, a file that cannot be
//! written, a journal that is cut at a byte. Each question to a device, each setting of it and each write of a file is
//! a step.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};

/// What the panic of a killed process says.
pub(crate) const KILLED: &str = "killed, for the test";

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// How many more steps there are before the process is killed.
    pub(crate) steps_left: Option<u64>,
    /// How many more writes of files succeed before one fails, with this error number.
    pub(crate) writes_left: Option<(u64, i32)>,
    /// Of the journal's text so many bytes are written before the disk is full.
    pub(crate) room: Option<usize>,
    /// The process is killed by a full disk, instead of hearing of it.
    pub(crate) is_killed_by_full_disk: bool,
}

thread_local! {
    static FAULTS: RefCell<Faults> = const {
        RefCell::new(Faults { steps_left: None, writes_left: None, room: None, is_killed_by_full_disk: false })
    };
}

/// Orders these from now on, in place of those before.
pub(crate) fn order(faults: Faults) {
    FAULTS.set(faults);
}

/// A step of the process.
pub(crate) fn step() {
    let is_killed = FAULTS.with_borrow_mut(|faults| match &mut faults.steps_left {
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    });
    if is_killed {
        // What is dropped on the way down goes on.
        order(Faults::default());
        panic!("{KILLED}");
    }
}

/// A file is about to be written.
pub(crate) fn before() -> io::Result<()> {
    step();
    FAULTS.with_borrow_mut(|faults| match faults.writes_left {
        Some((0, error)) => {
            faults.writes_left = None;
            Err(io::Error::from_raw_os_error(error))
        }
        Some((left, error)) => {
            faults.writes_left = Some((left - 1, error));
            Ok(())
        }
        None => Ok(()),
    })
}

/// A file of the journal is about to be removed.
pub(crate) fn before_removal() {
    step();
}

/// A file of the journal is about to be written: some of it is, where the disk is full behind it.
pub(crate) fn cut(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    step();
    let (room, is_killed) = FAULTS.with_borrow_mut(|faults| (faults.room, faults.is_killed_by_full_disk));
    let Some(room) = room.filter(|room| *room < bytes.len()) else { return Ok(()) };
    file.write_all(&bytes[..room])?;
    if is_killed {
        order(Faults::default());
        panic!("{KILLED}");
    }
    Err(io::Error::from_raw_os_error(libc::ENOSPC))
}
