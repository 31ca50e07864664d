//! Faults on order, of the process that a thread plays: at the Nth thing that it says or waits for.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::panic::resume_unwind;
use std::time::Duration;

use super::*;

/// What unwinds the thread of a process that is killed.
#[derive(Debug)]
pub(in super::super) struct Killed;

#[derive(Debug, Clone)]
pub(in super::super) enum Fault {
    Killed,
    /// After so many bytes of a message.
    KilledWithin(usize),
    Hangs(Duration),
    /// Within a message.
    HangsWithin(usize, Duration),
    /// The connection closes, and the process lives on.
    Closes,
    /// It speaks as another version.
    Says(&'static str),
}

thread_local! {
    static ORDERED: RefCell<Vec<(u64, Fault)>> = const { RefCell::new(Vec::new()) };
}

/// Orders these, each at so many points from now.
pub(in super::super) fn order(faults: Vec<(u64, Fault)>) {
    ORDERED.set(faults);
}

fn due() -> Option<Fault> {
    ORDERED.with_borrow_mut(|ordered| {
        let due = ordered.iter().position(|(left, _)| *left == 0).map(|place| ordered.remove(place).1);
        ordered.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
        due
    })
}

fn meet(fault: Fault, wire: &mut Wire) {
    match fault {
        Fault::Killed | Fault::KilledWithin(_) => resume_unwind(Box::new(Killed)),
        Fault::Hangs(length) | Fault::HangsWithin(_, length) => clock::sleep(length),
        Fault::Closes => drop(wire.stream.shutdown(Shutdown::Both)),
        Fault::Says(line) => drop(wire.stream.write_all(line.as_bytes())),
    }
}

/// A point without a message.
pub(in super::super) fn pass(wire: &mut Wire) {
    if let Some(fault) = due() {
        meet(fault, wire);
    }
}

/// The message as it is said.
pub(in super::super) fn changed(wire: &mut Wire, mut line: Vec<u8>) -> io::Result<Vec<u8>> {
    match due() {
        Some(Fault::KilledWithin(bytes)) => {
            let _ = wire.stream.write_all(&line[..bytes % line.len()]);
            resume_unwind(Box::new(Killed));
        }
        Some(Fault::HangsWithin(bytes, length)) => {
            let rest = line.split_off(bytes % line.len());
            wire.stream.write_all(&line)?;
            clock::sleep(length);
            line = rest;
        }
        Some(Fault::Says(other)) => line = other.as_bytes().to_vec(),
        Some(fault) => meet(fault, wire),
        None => {}
    }
    Ok(line)
}

impl PeerProcess {
    /// One that has ended when the other end of `watch` is closed.
    pub(in super::super) fn simulated(user: u32, process: Option<u32>, watch: Option<OwnedFd>) -> Self {
        Self { user, process, watch }
    }
}
