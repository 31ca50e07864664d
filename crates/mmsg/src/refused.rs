//! What the filters of a socket have refused, counted by their programs in the kernel. The counter belongs to the
//! socket and not to a filter: a filter that replaces another counts on, so it does not matter which of the two refused
//! a datagram that was under way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf::MappedArray;

/// How much was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// As the kernel counts drops: a train of `UDP_GRO` is one.
    pub messages: u64,
    /// Each datagram of a train.
    pub datagrams: u64,
    /// Of payload.
    pub bytes: u64,
}

/// Where programs count it.
#[derive(Debug)]
pub(crate) struct RefusedCounter {
    array: OwnedFd,
    mapped: MappedArray,
}

/// The numbers of the array: messages, datagrams beyond one per message, and bytes.
pub(crate) const NUMBERS: usize = 3;

impl RefusedCounter {
    /// A counter in an array of one value with as many numbers.
    pub(crate) fn new(array: OwnedFd) -> io::Result<Self> {
        let mapped = MappedArray::new(array.as_fd(), NUMBERS)?;
        Ok(Self { array, mapped })
    }

    /// The array, for a program.
    pub(crate) fn array(&self) -> BorrowedFd<'_> {
        self.array.as_fd()
    }

    /// The programs write the messages last.
    pub(crate) fn read(&self) -> Refused {
        let number = |place: usize| self.mapped.numbers()[place].load(Ordering::Acquire);
        let messages = number(0);
        Refused { messages, datagrams: messages + number(1), bytes: number(2) }
    }
}
